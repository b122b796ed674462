"""reproduce.py: every template compiles, is short, and computes what it should; GPUs and launchers are fakes."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any

import fake_vendor
import numpy as np
import pytest
from evidence_cases import case, step

from auditor.backends.simulator import Simulator
from auditor.evidence import relations
from auditor.evidence.cases import Case, Outcome
from auditor.evidence.perform import play_here
from auditor.evidence.relations import Relation
from auditor.evidence.script import LINES, NoScript, Subject, script, starts, steps_json

MPICH = {"library": "MPICH Version:      5.0.2", "library_version": "MPICH 5.0.2"}
KINDS = {
    "mpi": Subject(backend="mpi", options={}, env={}, describe=MPICH),
    "nccl": Subject(backend="nccl", options={}, env={"NCCL_ALGO": "Ring"}, describe={"nccl": "2.28.9"}),
    "nvshmem": Subject(backend="nvshmem", options={}, env={}, describe={"nvshmem": "3.4.5"}),
    "simulator": Subject(backend="simulator", options={"preset": "b300"}, env={}, describe={}),
    "plugin": Subject(backend="outside_subjects:Clean", options={}, env={}, describe={}),
}
COLUMN = {"column": (0x3F80, 0x3B80), "observed": 0x3F81, "expected": 0x3F80}
RELATIONS = {
    "not_rounded": Relation(
        "not_rounded",
        partial(relations.not_rounded, mode="ties_to_even", faithful=True),
        arguments=(("mode", "ties_to_even"),),
    ),
    "not_exact": Relation("not_exact", relations.not_exact),
    "steps_differ": Relation("steps_differ", relations.steps_differ, repeats=2),
    "columns_differ": Relation("columns_differ", relations.columns_differ),
    "repeats_differ": Relation("repeats_differ", relations.repeats_differ),
    "ranks_differ": Relation("ranks_differ", relations.ranks_differ),
    "unwritten": Relation("unwritten", relations.unwritten),
    "bytes_outside": Relation("bytes_outside", relations.bytes_outside),
    "send_changed": Relation("send_changed", relations.send_changed),
    "ends": Relation("ends", partial(relations.ends, how="crash"), arguments=(("how", "crash"),)),
    "same_again": Relation(
        "same_again",
        partial(relations.same_again, column=(0x3F80, 0x3B80), observed=0x3F81, expected=0x3F80),
        arguments=tuple(COLUMN.items()),
    ),
}
TIE = [[0x3F80, 0x3F80], [0x3B80, 0x3C40]]  # 1 + 2**-8, a tie, and 1 + 3 * 2**-8


def text_of(given: Case, relation: str, kind: str) -> str:
    return script(given, RELATIONS[relation], KINDS[kind], "title", "From nowhere.", "something is seen")


def steps_for(relation: str, collective: str, **more: Any) -> Case:
    rows = [row * 2 for row in TIE] if collective == "reduce_scatter" else TIE
    one = step(rows, collective=collective, **more)
    some = {"steps_differ": 2, "unwritten": 3}.get(relation, 1)
    return case(*[one] * some, repeats=3 if relation == "repeats_differ" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_compiles_and_is_short(kind: str) -> None:
    made = 0
    for relation, collective, in_place in itertools.product(
        RELATIONS, ("all_reduce", "reduce_scatter", "reduce"), (False, True)
    ):
        if kind == "nvshmem" and collective == "reduce":
            continue
        text = text_of(steps_for(relation, collective, in_place=in_place), relation, kind)
        compile(text, "reproduce.py", "exec")
        assert text.count("\n") <= LINES, (relation, collective, in_place)
        assert "#?" not in text
        assert "@" not in text.replace("@lru_cache", "")
        made += 1
    assert made >= 44


# ------------------------------------------------------------------------------------------------------------ simulator

OPTIONS: list[dict[str, Any]] = [
    {"preset": "b300"},
    {"preset": "b300", "neighbour_order": "reversed", "noise_bits": 3, "form": "SRF"},
    {"preset": "b300", "read_past": "zero"},
    {"preset": "b300", "read_past": False, "keyed_by": "self_and_neighbours"},
    {"preset": "b300", "group_bytes": 16, "shot": "two_shot"},
    {"order": "ring", "final": "toward_zero"},
    {"order": "tree", "accumulator": "same", "hop": "ties_to_away"},
    {"order": "recursive_doubling", "accumulator": "same", "hop": "toward_positive"},
    {"order": "fused", "accumulator": "exact", "final": "toward_negative"},
    {"order": "rank", "accumulator": "binary16", "hop": "toward_zero", "final": "away_from_zero"},
]


def random_case(seed: int, collective: str, fmt: str = "bfloat16", odd: bool = False) -> Case:
    """Finite values of a few binades, ranges that begin and end within a group, foreign codes beside them (``odd``: any)."""
    random = np.random.default_rng(seed)
    n, count = 3, 5
    exponent = {"bfloat16": 127 << 7, "binary16": 15 << 10}[fmt]

    def some(width: int) -> list[list[int]]:
        sign, rest = random.integers(0, 2, (n, width)) << 15, random.integers(-1500, 1500, (n, width))
        return (sign + exponent + rest).tolist()

    shares = n if collective == "reduce_scatter" else 1
    sides = [random.integers(0, 1 << 16, (n, 6)).tolist() if odd else some(6) for _ in range(2)]
    if odd:
        sides[1][0][0], sides[1][1][0] = (0x7F80, 0xFF80) if fmt == "bfloat16" else (0x7C00, 0x3C00)
    one = step(
        some(count * shares), fmt=fmt, collective=collective, head=sides[0], tail=sides[1], root=1, send_shift=seed % 5
    )
    return case(one)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_the_models_script_gives_the_simulators_bits(options: dict[str, Any], collective: str) -> None:
    subject = Subject(backend="simulator", options=options, env={}, describe={})
    compared = 0
    for seed in range(6):
        given = random_case(seed, collective, "binary16" if seed % 2 else "bfloat16", odd=seed > 2)
        space: dict[str, Any] = {"__name__": "reproduce"}
        exec(script(given, RELATIONS["not_rounded"], subject, "t", "o", "w"), space)
        got = space["play"](space["STEPS"][0])
        wanted = play_here(Simulator, options, given)
        for (_, _, rank), seen in wanted.seen.items():
            assert got[rank] == ([] if seen.output is None else seen.output.tolist()), (seed, rank)
            compared += len(got[rank])
    assert compared >= 30


def test_the_models_script_says_that_it_is_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(steps_for("not_rounded", "all_reduce"), "not_rounded", "simulator")
    assert "MODEL" in text.split('"""')[1]
    exec(text, {"__name__": "__main__"})
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith(("REPRODUCED", "NOT REPRODUCED"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"final": "stochastic"}, "no generator"),
        ({"preset": "b300", "form": "SRC"}, "SRC"),
    ],
)
def test_what_the_model_in_the_script_cannot_say_is_a_reason(options: dict[str, Any], words: str) -> None:
    subject = Subject(backend="simulator", options=options, env={}, describe={})
    with pytest.raises(NoScript, match=words):
        script(steps_for("not_rounded", "all_reduce"), RELATIONS["not_rounded"], subject, "t", "o", "w")


@pytest.mark.parametrize(
    ("subject", "changes", "words"),
    [
        (Subject(backend="mpi", options={"op": "user"}, env={}, describe=MPICH), {}, "the auditor's own"),
        (Subject(backend="mpi", options={}, env={}, describe=MPICH), {"fmt": "float8_e5m2"}, "no datatype"),
        (Subject(backend="nccl", options={"buffers": "window"}, env={}, describe={}), {}, "options.buffers"),
        (Subject(backend="nvshmem", options={"scope": "block"}, env={}, describe={}), {}, "options.scope"),
        (Subject(backend="nvshmem", options={}, env={}, describe={}), {"collective": "reduce"}, "has no reduce"),
        (Subject(backend="torch", options={}, env={}, describe={}), {}, "no template"),
        (Subject(backend="a:B", options={}, env={}, describe={}, memory="cuda"), {}, "host memory"),
        (Subject(backend="a:B", options={}, env={}, describe={}, process_model="one"), {}, "one process only"),
        (KINDS["mpi"], {"group": (0, 2)}, "group"),
    ],
)
def test_what_no_template_covers_is_a_reason(subject: Subject, changes: dict[str, Any], words: str) -> None:
    given = case(step([[1, 2], [3, 4]], **changes), rank_n=3 if "group" in changes else 2)
    with pytest.raises(NoScript, match=words):
        script(given, RELATIONS["not_rounded"], subject, "t", "o", "w")


# ----------------------------------------------------------------------------------------------------------- GPU fakes


def truncated(total: Any) -> Any:
    """Sums cut to 8 bits toward zero: bfloat16 then keeps them."""
    mantissa, exponent = np.frexp(total)
    return np.ldexp(np.trunc(mantissa * 256) / 256, exponent)


def to_even(total: Any) -> Any:
    return total


def said(machine: fake_vendor.Machine, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    fake_vendor.run(machine, text)
    return capsys.readouterr().out


@pytest.mark.parametrize("launched", [False, True], ids=["one process", "mpiexec"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_nccl_in_one_process_and_under_mpiexec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], collective: str, launched: bool
) -> None:
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID", "NCCL_ALGO"):
        monkeypatch.delenv(name, raising=False)
    if launched:
        monkeypatch.setenv("PMI_RANK", "0")
    given = steps_for("not_rounded", collective, send_shift=3, recv_shift=1)
    for spoil, word in ((truncated, "REPRODUCED"), (to_even, "NOT REPRODUCED")):
        machine = fake_vendor.Machine(2 if launched else 1, 2, spoil)
        fake_vendor.install(monkeypatch, machine)
        out = said(machine, text_of(given, "not_rounded", "nccl"), capsys)
        assert out.rstrip().splitlines()[-1].startswith(word), out
        assert machine.calls == [
            {"all_reduce": "allReduce", "reduce_scatter": "reduceScatter"}.get(collective, "reduce")
        ]
        assert ("one process a GPU" in out) is launched


def test_nccl_needs_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID", "NCCL_MULTI_RANK_GPU_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    machine = fake_vendor.Machine(1, 1, to_even)
    fake_vendor.install(monkeypatch, machine)
    with pytest.raises(SystemExit, match="2 GPUs are needed"):
        fake_vendor.run(machine, text_of(steps_for("not_rounded", "all_reduce"), "not_rounded", "nccl"))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_nvshmem_under_mpiexec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], collective: str
) -> None:
    given = steps_for("not_rounded", collective, send_shift=2, recv_shift=5)
    for spoil, word in ((truncated, "REPRODUCED"), (to_even, "NOT REPRODUCED")):
        machine = fake_vendor.Machine(2, 2, spoil)
        fake_vendor.install(monkeypatch, machine)
        out = said(machine, text_of(given, "not_rounded", "nvshmem"), capsys)
        assert out.rstrip().splitlines()[-1].startswith(word), out
        assert machine.calls == [f"bfloat16_sum_{'reduce' if collective == 'all_reduce' else 'reducescatter'}"]


def test_guards_of_a_gpus_arenas_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result that is one element too long changes two bytes past the range on each rank."""
    machine = fake_vendor.Machine(2, 2, to_even)
    fake_vendor.install(monkeypatch, machine)
    honest = machine.nvshmem

    def one_more(name: str, target: int, source: int, count: int) -> None:
        honest(name, target, source, count)
        fake_vendor.view(target + 2 * count, 2, np.uint8)[:] = 0x11

    machine.nvshmem = one_more  # type: ignore[method-assign]
    out = said(machine, text_of(steps_for("bytes_outside", "all_reduce"), "bytes_outside", "nvshmem"), capsys)
    assert "REPRODUCED: 4 places" in out
    assert "byte +4" in out


# ------------------------------------------------------------------------------------------------------------ the text


def test_settings_of_the_arm_are_defaults_and_never_allow_multicast() -> None:
    env = {
        "NCCL_NVLS_ENABLE": "1",
        "NVSHMEM_DISABLE_NVLS": "0",
        "NCCL_ALGO": "NVLS",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }
    subject = Subject(backend="nccl", options={}, env=env, describe={})
    text = script(steps_for("not_rounded", "all_reduce"), RELATIONS["not_rounded"], subject, "t", "o", "w")
    assert '{"NCCL_ALGO": "NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", **os.environ}' in text
    assert "NCCL_NVLS_ENABLE" not in text
    assert "NVSHMEM_DISABLE_NVLS" not in text


def test_a_large_case_is_read_from_its_file(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = case(step([[0x3F80] * 200, [0x3B80] * 200]))
    text = text_of(given, "not_rounded", "simulator")
    assert "case.json" in text
    (tmp_path / "case.json").write_text(json.dumps({"steps": steps_json(given, KINDS["simulator"])}))
    exec(text, {"__name__": "__main__", "__file__": str(tmp_path / "reproduce.py")})
    assert "NOT REPRODUCED: 0 places" in capsys.readouterr().out


def test_what_would_be_too_long_goes_to_the_file() -> None:
    env = {f"NCCL_SETTING_{k}": "x" * 40 for k in range(6)}
    subject = Subject(backend="nccl", options={}, env=env, describe={})
    for relation in ("not_rounded", "steps_differ", "bytes_outside"):
        given = steps_for(relation, "reduce", tail=[[0] * 20, [0] * 19 + [1]])
        text = script(given, RELATIONS[relation], subject, "t", "o", "w")
        compile(text, "reproduce.py", "exec")
        assert text.count("\n") <= LINES


def test_a_handle_is_given_for_the_release_that_it_was_seen_in() -> None:
    given = steps_for("not_rounded", "all_reduce")
    text = text_of(given, "not_rounded", "mpi")
    assert "0x4c00024c" in text
    assert '"MPICH Version:      5.0." in version' in text
    other = Subject(backend="mpi", options={}, env={}, describe={"library": "MPICH 6", "library_version": "MPICH 6.1"})
    assert "fromhandle" not in script(given, RELATIONS["not_rounded"], other, "t", "o", "w")
    assert starts(given, other) == "mpiexec -n 2 python reproduce.py"


def test_the_plugins_script_plays_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    exec(text_of(steps_for("not_rounded", "all_reduce"), "not_rounded", "plugin"), {"__name__": "__main__"})
    assert "NOT REPRODUCED: 0 places" in capsys.readouterr().out
    truncating = Subject(backend="outside_subjects:Truncates", options={}, env={}, describe={})
    text = script(steps_for("not_rounded", "all_reduce"), RELATIONS["not_rounded"], truncating, "t", "o", "w")
    exec(text, {"__name__": "__main__"})
    assert "REPRODUCED: 2 places" in capsys.readouterr().out


def test_an_empty_outcome_is_whole() -> None:
    assert Outcome().whole
