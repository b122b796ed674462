# make audit: the main job on a fresh machine.  make test: all tests.  Both set everything up in .venv.
PYTHON ?= python3
BIN := .venv/bin
WORKERS = $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')  # many tests wait for processes that they started

.PHONY: audit test check bench pages smoke clean

audit: .venv/.audit
	@$(BIN)/auditor run configs/quickstart.toml; code=$$?; \
	if [ $$code -le 1 ]; then exit 0; fi; exit $$code  # findings (1) are a result, not an error of make

test: .venv/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.test
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/recording.py

pages: .venv/.test
	npm install --silent --no-package-lock --prefix tests/accessibility
	$(BIN)/python -m pytest tests/test_accessibility.py

smoke: .venv/.smoke
	$(BIN)/python tests/smoke.py

.venv/.smoke: .venv/.python pyproject.toml
	@$(BIN)/python tests/smoke.py --which
	$(BIN)/pip install --quiet --editable ".[mpi,fast,$$($(BIN)/python tests/smoke.py --which)]"
	@touch $@

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.audit: .venv/.python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[mpi,fast]'
	@touch $@

.venv/.test: .venv/.audit
	$(BIN)/pip install --quiet --editable '.[mpi,fast,dev,compile]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
