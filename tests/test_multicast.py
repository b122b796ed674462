"""Where somebody switched multicast off, nothing brings it back: no arm, no child, no launcher; and no source makes it unasked.

Real processes: the command line starts servers, workers, fresh processes and MPI ranks, and a subject from outside writes down
what each of them sees.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from auditor.errors import Unavailable
from auditor.multicast import MULTICAST_OFF, forbids_multicast, must_be_allowed, switched_off, with_settings
from auditor.processes import arm_environment

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "auditor"
NCCL, NVSHMEM, TORCH = MULTICAST_OFF
ALONE = [{NCCL: "0"}, {NVSHMEM: "1"}, {TORCH: "1"}]
SETTINGS = [*ALONE, dict(MULTICAST_OFF), {NCCL: "off"}, {NVSHMEM: "yes", NCCL: "1"}]
ENDED = {"probe", "start", "first call", "close"}
LAUNCHED = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "MPI_LOCAL")

ARM = '[[arm]]\nname = "{name}"\nbackend = "multicast_subjects:{cls}"\nranks = 2\noptions = {{ label = "{name}" }}\n{more}\n'
BACK = {
    "overrides": 'env = { NCCL_NVLS_ENABLE = "1", NVSHMEM_DISABLE_NVLS = "0", TORCH_SYMM_MEM_DISABLE_MULTICAST = "0" }',
    "unsets": 'env = { NCCL_NVLS_ENABLE = "", NVSHMEM_DISABLE_NVLS = "", TORCH_SYMM_MEM_DISABLE_MULTICAST = "" }',
    "algorithm": 'env = { NCCL_ALGO = "allreduce:NVLS;broadcast:^Ring" }',
    "path": 'path = "NVLS"',
}
REST = """
[sweep]
collective = ["all_reduce", "reduce_scatter"]
format = ["binary32"]
count = [5]
shift = [0]
repeats = 2
seed = 7
[probes]
run = ["{probe}"]
"""


def config(folder: Path, *arms: str, probe: str = "coverage") -> Path:
    """Arms by name: those of BACK would bring multicast back, ``one`` has a process for each rank."""
    path = folder / "multicast.toml"
    texts = [
        ARM.format(name=name, cls="RecordsOne" if "one" in name else "Records", more=BACK.get(name, ""))
        for name in arms
    ]
    path.write_text("\n".join(texts) + REST.format(probe=probe))
    return path


@pytest.fixture
def auditor(tmp_path):
    """Runs the command line with only these switches set; gives (exit code, what it printed, lines of the subjects)."""
    log = tmp_path / "seen.jsonl"

    def run(switches: Mapping[str, str], *words: object, launcher: tuple[str, ...] = ()) -> tuple[int, str, list[dict]]:
        log.unlink(missing_ok=True)
        clean = {k: v for k, v in os.environ.items() if k not in MULTICAST_OFF and not k.startswith(LAUNCHED)}
        environ = {**clean, **switches, "MULTICAST_LOG": str(log), "PYTHONPATH": str(HERE)}
        command = [*launcher, sys.executable, "-m", "auditor", *map(str, words)]
        done = subprocess.run(command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=200, check=False)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return done.returncode, done.stdout + done.stderr, lines

    return run


def expected(switches: Mapping[str, str]) -> dict[str, str]:
    """A switch that was set stands as it was, if it forbids; the others are off."""
    return {
        name: switches[name] if forbids_multicast(name, switches.get(name, "")) else off
        for name, off in MULTICAST_OFF.items()
    }


def seen_by(lines: list[dict], switches: Mapping[str, str]) -> set[str]:
    """The labels of arms that did anything; every line must show the switches off."""
    for line in lines:
        assert line["seen"] == expected(switches), line
    return {line["label"] for line in lines}


def reasons(folder: Path) -> dict[str, tuple[str, str]]:
    plan = json.loads((folder / "plan.json").read_text())
    return {arm["name"]: (arm["status"], arm["reason"]) for arm in plan["arms"]}


def mpiexec() -> str:
    pytest.importorskip("mpi4py")
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec")
    return found


# ---- one rule ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switches", SETTINGS)
@pytest.mark.parametrize("back", [{}, {NCCL: "1"}, {NVSHMEM: "0", TORCH: "0"}, dict.fromkeys(MULTICAST_OFF, "")])
def test_no_setting_of_an_arm_reaches_a_child_against_a_switch(monkeypatch, switches, back):
    for name in MULTICAST_OFF:
        monkeypatch.delenv(name, raising=False)
    for name, value in switches.items():
        monkeypatch.setenv(name, value)
    child = arm_environment({**back, "NCCL_ALGO": "Ring"})
    assert {name: child[name] for name in MULTICAST_OFF} == expected(switches)
    assert child["NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize("switches", SETTINGS)
def test_no_object_is_made_against_a_switch(switches):
    with pytest.raises(Unavailable, match="cannot be made"):
        must_be_allowed(switches)
    must_be_allowed({NCCL: "1"})


def test_where_nobody_forbids_an_arms_own_settings_hold():
    assert switched_off({NCCL: "1", NVSHMEM: ""}) == {}
    assert with_settings({NCCL: "1"}, {NCCL: "2"}) == {NCCL: "2"}


# ---- real processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switches", [*ALONE, dict(MULTICAST_OFF)])
def test_a_plan_asks_no_arm_that_would_bring_it_back(auditor, tmp_path, switches):
    code, said, lines = auditor(switches, "plan", config(tmp_path, "plain", *BACK))
    assert code == 0, said
    assert {line["step"] for line in lines} == {"probe"}
    assert seen_by(lines, switches) == {"plain"}
    for name in BACK:
        assert f"{name}: multicast_subjects:Records, 2 ranks: waived: " in said


@pytest.mark.parametrize("switches", [{NVSHMEM: "1"}, {TORCH: "1", NCCL: "off"}])
def test_a_run_starts_no_such_arm_and_every_process_sees_the_switches(auditor, tmp_path, switches):
    """The server's probe, the worker, and a worker for each fresh-process repeat."""
    run = tmp_path / "run"
    code, said, lines = auditor(switches, "run", config(tmp_path, "plain", *BACK, probe="repeatability"), "--out", run)
    assert code == 0, said
    assert seen_by(lines, switches) == {"plain"}
    assert {line["step"] for line in lines} == ENDED
    assert len({line["pid"] for line in lines if line["step"] == "start"}) >= 3
    for name in BACK:
        status, reason = reasons(run)[name]
        assert status == "waived"
        assert any(f"{switch}={value} is set here" in reason for switch, value in switches.items())
    described = json.loads((run / "findings.json").read_text())["arms"][0]["describe"]
    assert described == expected(switches)


def test_going_on_with_a_run_asks_again(auditor, tmp_path):
    """Begun where multicast was allowed, resumed where it is not: what is left of the plan is judged anew."""
    run, text = tmp_path / "run", config(tmp_path, "plain", *BACK)
    code, said, lines = auditor({}, "run", text, "--arm", "plain", "--out", run)
    assert code == 0, said
    assert lines[0]["seen"] == dict.fromkeys(MULTICAST_OFF)
    code, said, lines = auditor({TORCH: "1"}, "run", text, "--out", run, "--resume")
    assert code == 0, said
    assert seen_by(lines, {TORCH: "1"}) <= {"plain"}
    assert {reasons(run)[name][0] for name in BACK} == {"waived"}


@pytest.mark.mpi
def test_every_rank_under_our_own_mpiexec_sees_the_switches(auditor, tmp_path):
    mpiexec()
    code, said, lines = auditor(
        {NCCL: "0"}, "run", config(tmp_path, "one", probe="repeatability"), "--out", tmp_path / "run"
    )
    assert code == 0, said
    assert seen_by(lines, {NCCL: "0"}) == {"one"}
    assert {line["step"] for line in lines} == ENDED
    assert len({line["pid"] for line in lines if line["step"] == "first call"}) >= 4  # two ranks, and again fresh


@pytest.mark.mpi
@pytest.mark.parametrize("arm", ["one", "one-overrides"])
def test_under_an_outer_launcher_the_arms_own_settings_come_second(auditor, tmp_path, monkeypatch, arm):
    monkeypatch.setitem(BACK, "one-overrides", BACK["overrides"])
    words = ("run", config(tmp_path, arm), "--out", tmp_path / "run")
    code, said, lines = auditor({NVSHMEM: "1"}, *words, launcher=(mpiexec(), "-n", "2"))
    if arm == "one":
        assert code == 0, said
        assert seen_by(lines, {NVSHMEM: "1"}) == {"one"}
        assert len({line["pid"] for line in lines if line["step"] == "close"}) == 2
    else:
        assert code == 5, said
        assert lines == []
        assert "would allow multicast again" in reasons(tmp_path / "run")[arm][1]


@pytest.mark.mpi
@pytest.mark.parametrize("arm", ["one", "one-overrides"])
def test_a_switch_that_one_rank_alone_has_holds_for_all(auditor, tmp_path, monkeypatch, arm):
    """A launcher need not pass variables to other nodes."""
    monkeypatch.setitem(BACK, "one-overrides", BACK["overrides"])
    program = (sys.executable, "-m", "auditor")
    words = ("run", str(config(tmp_path, arm)), "--out", str(tmp_path / "run"))
    launcher = (mpiexec(), "-n", "1", *program, *words, ":", "-n", "1", "env", f"{TORCH}=1")
    code, said, lines = auditor({}, *words, launcher=launcher)
    if arm == "one":
        assert code == 0, said
        started = [line for line in lines if line["step"] == "start"]
        assert len({line["pid"] for line in started}) == 2
        seen_by(started, {TORCH: "1"})
    else:
        assert code == 5, said
        assert lines == []


# ---- the sources ---------------------------------------------------------------------------------------------------------

MAKERS = ("MulticastCreate",)  # CUDA's driver call, whatever the prefix; all others need the object that it makes
GUARDS = {"permit", "must_be_allowed"}


def unguarded(package: Path) -> list[str]:
    """Places that name one of CUDA's multicast calls in code, in a function that has not asked for permission above it."""
    wrong = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {id(text) for text in docstrings(tree)}
        for function, node in named(tree, texts):
            asked = min((call.lineno for call in guards(function)), default=None) if function else None
            if asked is None or asked > node.lineno:
                wrong.append(f"{path.relative_to(package)}:{node.lineno}")
    return wrong


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def named(
    tree: ast.AST, skipped: set[int], function: ast.AST | None = None
) -> Iterator[tuple[ast.AST | None, ast.expr | ast.alias]]:
    """(enclosing function, node) of every name, attribute or text that holds a call's name."""
    for child in ast.iter_child_nodes(tree):
        inside = child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        text = next(
            (word for key in ("attr", "id", "value", "name") if isinstance(word := getattr(child, key, 0), str)), ""
        )
        naming = isinstance(child, (ast.expr, ast.alias)) and id(child) not in skipped
        if naming and any(name in text for name in MAKERS):
            yield inside, child
        yield from named(child, skipped, inside)


def guards(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in GUARDS:
            yield node


def test_no_source_makes_a_multicast_object_without_asking_first():
    assert unguarded(PACKAGE) == []
    for path in [*PACKAGE.rglob("*.cu"), *PACKAGE.rglob("*.cuh")]:
        assert not any(f"cu{name}(" in path.read_text() for name in MAKERS), path


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("def f(driver):\n    driver.cuMulticastCreate(1)\n", True),
        ("def f(driver):\n    getattr(driver, 'cuMulticastCreate')(1)\n", True),
        ("def f(driver, o):\n    driver.cuMulticastCreate(1)\n    permit(o, {})\n", True),
        ("from cuda.bindings.driver import cuMulticastCreate as add\nadd(1)\n", True),
        ("x = cuMulticastCreate\n", True),
        ("def f(driver, o):\n    permit(o, {})\n    driver.cuMulticastCreate(1)\n", False),
        ('def f():\n    """cuMulticastCreate is for others."""\n', False),
    ],
)
def test_a_planted_call_is_found(tmp_path, source, wrong):
    (tmp_path / "planted.py").write_text(source)
    assert bool(unguarded(tmp_path)) is wrong
