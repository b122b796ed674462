"""The layers of DESIGN §2 hold, vendor libraries stay where they belong, and nothing heavy loads before it is needed."""

from __future__ import annotations

import ast
import codecs
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "auditor"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Library -> the only files (relative to the package) that may import it, function-level imports included.
PLACES = {
    "h5py": ("store/*",),
    "jinja2": ("report/*",),
    "matplotlib": ("report/*",),
    "plotly": ("report/*",),
    "mpi4py": ("backends/mpi*.py", "mpi_control.py", "launch*.py", "worker.py"),
    "cupy": ("backends/*", "kernels/cuda.py"),
    "cuda": ("backends/*", "kernels/cuda.py"),
    "nvshmem": ("backends/nvshmem*",),
    "nccl": ("backends/nccl*", "backends/multimem*"),
    "torch": ("backends/*",),
    "numba": ("kernels/*", "backends/mpi*.py"),
}
VENDOR = ("mpi4py", "cupy", "cuda", "nvshmem", "nccl", "torch", "numba")
HEAVY = ("h5py", "numba", "mpi4py", "cupy", "jinja2", "torch", "nvshmem", "nccl")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(top-level name, at module level) of every import in a file, those inside functions and ``import_module`` included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(child) for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for child in ast.walk(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            first = node.args[0] if node.args else None
            names = [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
        for name in names:
            yield name.partition(".")[0], id(node) not in inner


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def misplaced(package: Path) -> list[str]:
    """Imports of a library outside its place, and vendor imports at the module level of a backend."""
    wrong = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).as_posix()
        for name, top in imports(path):
            if name in PLACES and not any(fnmatch(inside, place) for place in PLACES[name]):
                wrong.append(f"{inside} imports {name}")
            if name in VENDOR and top and inside.startswith("backends/"):
                wrong.append(f"{inside} imports {name} at module level")
    return wrong


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over ``directory``'s pyproject.toml and package."""
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; "
    program += "sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its pyproject.toml, to spoil."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "auditor", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)


@pytest.mark.parametrize(
    ("module", "planted", "shown"),
    [
        ("model.py", "import auditor.harness", "auditor.model -> auditor.harness"),
        ("numerics/formats.py", "from auditor import model", "auditor.numerics.formats -> auditor.model"),
        ("config/records.py", "from auditor import inputs", "auditor.config.records -> auditor.inputs"),
        ("analysis/files.py", "def late():\n    from auditor import plan", "auditor.analysis.files -> auditor.plan"),
        ("probes/common.py", "def late():\n    import auditor.store", "auditor.probes.common -> auditor.store"),
    ],
)
def test_a_planted_violation_is_seen(copy: Path, module: str, planted: str, shown: str) -> None:
    path = copy / "auditor" / module
    path.write_text(path.read_text(encoding="utf-8") + f"\n{planted}\n", encoding="utf-8")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert shown in re.sub(r"\s+", " ", done.stdout)


def test_a_module_without_a_layer_is_seen(copy: Path) -> None:
    (copy / "auditor" / "stray.py").write_text("")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "stray" in done.stdout


def test_libraries_stay_in_their_places() -> None:
    assert misplaced(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "shown"),
    [
        ("probes/planted.py", "import h5py", "probes/planted.py imports h5py"),
        ("cli_planted.py", "def f():\n    from jinja2 import Template", "cli_planted.py imports jinja2"),
        (
            "harness_planted.py",
            "import importlib\nimportlib.import_module('cupy.cuda')",
            "harness_planted.py imports cupy",
        ),
        ("backends/mpi_planted.py", "from mpi4py import MPI", "backends/mpi_planted.py imports mpi4py at module level"),
        ("backends/nvshmem.py", "def f():\n    import mpi4py", "backends/nvshmem.py imports mpi4py"),
    ],
)
def test_a_misplaced_library_is_seen(tmp_path: Path, file: str, text: str, shown: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert misplaced(tmp_path) == [shown]


@pytest.mark.parametrize(
    "program",
    [
        "import auditor",
        "import auditor.cli",
        "import auditor.config; auditor.config.load()",
        "from auditor.backends.registry import listing; assert listing()",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(program: str) -> None:
    code = f"import sys; {program}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_modules_are_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: n for name, n in lengths.items() if n > 400} == {}
    assert len(lengths) > 20


# Spelled by rot13, so that the test does not contain what it looks for.
FOREIGN = [
    codecs.decode(word, "rot13") for word in ("/jbex/", "fhontrag", "pynhqr", "naguebcvp", "clcv.bet", "ungpu.qri")
]
TEXT = {".py", ".toml", ".md", ".cu", ".txt", ".yml", ".cfg", ".html", ".j2", ".json", ".js", ".css", ""}


def test_nothing_names_the_place_where_it_was_written() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = (
        listed.stdout.decode().split("\0") if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in MODULES]
    )
    paths = [ROOT / name for name in names if name and Path(name).suffix in TEXT and (ROOT / name).is_file()]
    assert len(paths) >= len(MODULES) // 2
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in paths
        for word in FOREIGN
        if word in path.read_text(encoding="utf-8", errors="replace").lower()
    ]
    assert found == []
