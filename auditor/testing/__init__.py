"""A kit for writers of backends: does a class keep the contract of DESIGN §4?

``check_backend(MyBackend, {}, ranks=2)`` gives one line for each discrepancy. With pytest, subclass :class:`BackendConformance`::

    class TestMyBackend(BackendConformance):
        backend = MyBackend

Data are small integers that every format, order and accumulator adds exactly, so a backend is judged by what it writes and where,
never by how it rounds: that is the auditor's own work. The fault matrix (`auditor selftest`) has its place in this module.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar

from auditor.backends.registry import gaps
from auditor.errors import ConfigError
from auditor.model import World
from auditor.testing.bench import Subject, one_process_world
from auditor.testing.checks import CHECKS

__all__ = ["CHECKS", "BackendConformance", "check_backend"]
LINES = 20  # of one check; what is over is counted


def check_backend(
    cls: type[Any],
    options: Mapping[str, Any] | None = None,
    ranks: int = 2,
    *,
    world: World | None = None,
    checks: Collection[str] = tuple(CHECKS),
) -> list[str]:
    """Every discrepancy of a backend class from the contract, one line each; empty: none was found.

    ``world``: needed for ``process_model`` "one" with more than one rank: start the kit in every process under the launcher,
    each with its own. ``checks``: names of :data:`CHECKS`. Raises Unavailable where the backend cannot run here, ConfigError
    where ``world`` is missing or there is no such check.
    """
    if unknown := set(checks) - set(CHECKS):
        raise ConfigError(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    if missing := gaps(cls):
        return [f"contract: {line}" for line in missing]
    subject = Subject(cls, dict(options or {}), world or one_process_world(cls, ranks))
    found: list[str] = []
    for name in (name for name in CHECKS if name in checks):
        lines = [f"{name}: {line}" for line in _collected(CHECKS[name], subject)]
        found += [*lines[:LINES], f"{name}: and {len(lines) - LINES} more"] if len(lines) > LINES else lines
        if lines and name in ("probe", "arrays"):
            return found  # nothing below can be judged
    return found


class BackendConformance:
    """Subclass it in a test module and set ``backend``; pytest then runs every check at every rank count."""

    backend: ClassVar[type[Any]]
    options: ClassVar[Mapping[str, Any]] = {}
    ranks: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def test_contract(self) -> None:
        _demand([f"contract: {line}" for line in gaps(self.backend)])

    def test_imports(self) -> None:
        self._check("imports")

    def test_probe(self) -> None:
        self._check("probe")

    def test_arrays(self) -> None:
        self._check("arrays")

    def test_calls(self) -> None:
        self._check("calls")

    def test_groups(self) -> None:
        self._check("groups")

    def test_features(self) -> None:
        self._check("features")

    def test_refusal(self) -> None:
        self._check("refusal")

    def test_lifecycle(self) -> None:
        self._check("lifecycle")

    def _check(self, name: str) -> None:
        for ranks in self.ranks[:1] if name == "imports" else self.ranks:
            subject = Subject(self.backend, dict(self.options), one_process_world(self.backend, ranks))
            _demand([f"{ranks} ranks: {line}" for line in _collected(CHECKS[name], subject)])


def _collected(check: Callable[[Subject], Iterator[str]], subject: Subject) -> list[str]:
    """The check's lines; one more where the backend prints, which would tear the auditor's own output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        lines = list(check(subject))
    return [*lines, f"the backend prints: {out.getvalue()[:60]!r}"] if out.getvalue() else lines


def _demand(lines: list[str]) -> None:
    if lines:
        raise AssertionError("\n".join(lines))
