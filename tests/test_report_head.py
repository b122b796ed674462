"""The first screen: what was audited, what the worst verdict amounts to, what must be known first, what to do next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from auditor.cli import COMMANDS
from auditor.config import KINDS
from auditor.model import Verdict
from auditor.report import advice, cards, gpus, head, kinds, notices, surroundings
from auditor.report.words import Labels

PLAN = {"config": "c.toml", "arguments": ["--set", "sweep.count=[1, 2]"]}


def found(verdict: str, id: str = "F1", arm: str = "ring", **more: Any) -> dict[str, Any]:
    fixed = {
        "probe": "tail",
        "kind": "foreign_read",
        "claim": f"claim of {id}.",
        "reproduce": f"auditor run --arm {arm}",
    }
    return {"id": id, "arm": arm, "verdict": verdict, **fixed, **more}


def content(*rows: Any, code: int = 1, arms: Any = ()) -> dict[str, Any]:
    return {"exit_code": code, "arms": list(arms), "findings": list(rows)}


def commands(*rows: Any, plan: Any = PLAN, **more: Any) -> list[str]:
    return [step.command for step in advice.steps(content(*rows, **more), rows, plan, "results/r1")]


def source(arm: str, ranks: list[int], host: str = "node1", **environment: Any) -> dict[str, Any]:
    return {"arm": arm, "ranks": ranks, "environment": {"system": {"host": host}, **environment}}


# -------------------------------------------------------------------------------------------------------------- next steps


def test_a_fail_is_run_again_bundled_and_kept() -> None:
    assert commands(found("PASS"), found("FAIL", "F2"), found("FAIL", "F3")) == [
        "auditor run --arm ring",
        "auditor evidence results/r1 --finding F2",
        "auditor compare results/r1 NEW_RUN",
    ]


def test_the_fail_of_real_hardware_comes_before_a_model_s() -> None:
    arms = [{"name": "b300", "describe": {"simulated": True}}, {"name": "ring", "describe": {}}]
    rows = [found("FAIL", "F1", "b300"), found("FAIL", "F2", "ring")]
    assert "--finding F2" in commands(*rows, arms=arms)[1]
    assert commands(rows[0], arms=arms) == ["auditor run --arm b300", "auditor backends"]
    assert "nothing needs mending" in advice.steps(content(rows[0], arms=arms), rows[:1], PLAN, "r")[0].words


def test_what_stayed_open_is_asked_again_and_what_was_not_run_is_resumed() -> None:
    assert commands(found("INCONCLUSIVE"), code=0) == ["auditor run --arm ring"]
    resume = "auditor run c.toml --set 'sweep.count=[1, 2]' --resume --out results/r1"
    assert commands(found("INCONCLUSIVE", kind="not_run"), code=0) == [resume]
    assert commands(found("FAIL"), code=130) == [resume]
    assert commands(found("PASS"), code=130, plan={}) == ["auditor run --resume --out results/r1"]
    assert commands(found("PASS"), code=3, arms=[{"name": "ring", "status": "failed"}])[1] == resume


def test_one_rounding_mode_can_be_demanded_and_several_cannot() -> None:
    even = found("INFORMATION", kind="rounding_mode", measure={"mode": "ties_to_even"})
    wanted = """auditor run c.toml --set 'sweep.count=[1, 2]' --set 'expect.rounding_mode="ties_to_even"'"""
    assert commands(even, code=0) == ["auditor impact results/r1", wanted, "auditor compare results/r1 NEW_RUN"]
    mixed = found("INFORMATION", kind="rounding_mode", measure={"mode": "mixed"})
    for rows in ([even, mixed], [mixed]):
        assert commands(*rows, code=0)[1] == ""
    assert commands(found("INFORMATION", kind="shift_dependence"), code=0) == ["", "auditor compare results/r1 NEW_RUN"]


def test_nothing_looked_at_leads_to_the_backends_and_the_plan() -> None:
    assert commands(code=5) == ["auditor backends", "auditor plan c.toml --set 'sweep.count=[1, 2]'"]
    assert commands(found("WAIVED"), code=5) == commands(code=5)
    assert commands(found("PASS"), code=0) == ["auditor compare results/r1 NEW_RUN"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_words_and_a_step_with_a_command_that_exists(verdict: Verdict) -> None:
    assert advice.VERDICT_WORDS[verdict]
    rows = [found(str(verdict))]
    steps = advice.steps(content(*rows, code=0), rows, PLAN, "results/r1")
    assert steps
    assert any(step.command for step in steps)
    for step in steps:
        words = shlex.split(step.command)
        assert not words or (words[0] == "auditor" and words[1] in COMMANDS)


def test_a_run_directory_is_named_as_a_shell_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert advice.place(Path("results/a b")) == "'results/a b'"
    assert advice.place(tmp_path / "work" / "r1") == "r1"
    assert advice.place(tmp_path / "home" / "my runs" / "r1") == "~/'my runs/r1'"
    assert advice.place(tmp_path / "else" / "r1") == f"{tmp_path}/else/r1"
    assert os.path.expanduser("~") == str(tmp_path / "home")


def test_exit_codes_have_words_and_unknown_ones_none() -> None:
    assert advice.code_words(130) == "interrupted"
    assert [advice.code_words(code) for code in (99, None, "1")] == ["", "", ""]


# ------------------------------------------------------------------------------------------------------------- what audited


def test_arms_of_one_subject_are_named_together() -> None:
    mpich = {"backend": "mpi", "rank_n": 4, "describe": {"library_version": "MPICH 5.0.2"}}
    arms = [
        {"name": "mpi", **mpich},
        {"name": "ring", **mpich},
        {"name": "model", "backend": "simulator", "rank_n": 2, "describe": {"simulated": True, "preset": "b300"}},
        {"name": "nccl", "backend": "nccl", "rank_n": 1, "describe": {"nccl": "2.28.9"}},
        {"name": "mine", "backend": "my_module:Mine", "rank_n": None, "describe": None, "status": "failed"},
    ]
    assert head.subjects(arms) == (
        "MPICH 5.0.2 on 4 ranks (mpi, ring); the model b300 on 2 ranks (model); NCCL 2.28.9 on 1 rank (nccl); "
        "my_module:Mine (mine: failed)"
    )
    many = [{"name": f"a{n}", "backend": f"b{n}", "rank_n": n} for n in range(2, 10)]
    assert head.subjects(many).endswith("b7 on 7 ranks (a7); and 2 more")


def test_the_worst_is_named_by_probe_with_its_arms_and_the_rest_is_counted() -> None:
    rows = [found("FAIL", f"F{n}", f"arm{n}", probe=f"probe{n // 4}") for n in range(20)] + [
        found("INFORMATION", "F99")
    ]
    told = head.worst_lines(rows, Labels(rows))
    assert [(one["arms"], one["finding"]) for one in told["lines"]] == [
        ("arm0, arm1, arm2, … (4 in all)", "F0"),
        ("arm4, arm5, arm6, … (4 in all)", "F4"),
        ("arm8, arm9, arm10, … (4 in all)", "F8"),
    ]
    assert told["lines"][0]["gist"] == "foreign_read F0 and 3 more: claim of F0."
    assert told["more"] == 2
    assert head.worst_lines([found("PASS")], Labels([])) == {"lines": [], "more": 0}


def test_a_fail_names_its_ranks_by_host() -> None:
    rows = [{"rank": rank} for rank in (0, 1, 2, 5, 9, 9, None, "x")]
    hosts = {("ring", rank): f"node{rank // 4}" for rank in range(16)}
    assert cards.where(found("FAIL", evidence=rows), hosts) == "ranks 0–2 on node0; 5 on node1; 9 on node2"
    assert cards.where(found("FAIL", evidence=rows[:1]), {}) == "rank 0"
    assert cards.where(found("PASS", evidence=rows), hosts) == ""
    many = [{"rank": rank} for rank in range(64)]
    told = cards.where(found("FAIL", evidence=many), {("ring", rank): f"n{rank}" for rank in range(64)})
    assert told.endswith("5 on n5; and 58 more hosts")


def test_who_recorded_it_is_said_or_that_nobody_did() -> None:
    assert head.recorded(["n1", "n2"], "2026-01-02T03:04:05Z") == "On n1, n2, 2026-01-02 03:04 UTC."
    assert head.recorded([], None) == "Nothing was recorded."


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ("2026-01-02T03:04:05+00:00", "2026-01-02 03:04 UTC"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
        (None, "an unrecorded date"),
    ],
)
def test_dates_are_short_where_they_are_utc(recorded: Any, told: str) -> None:
    assert head.day(recorded) == told


# ---------------------------------------------------------------------------------------------------------- know this first


def told(arms: Any = (), sources: Any = (), problems: Any = (), reasons: Any = None) -> list[str]:
    return notices.notices({"arms": list(arms)}, reasons or {}, list(sources), list(problems))


def test_ranks_that_share_a_gpu_are_told_once_for_all_arms() -> None:
    limits = "One GPU served 4 ranks: no NVLink lay between those ranks."
    arms = [{"name": name, "describe": {"ranks_per_gpu": 4, "limits": limits}} for name in ("ring", "tree")]
    assert told(arms) == [f"ring, tree: {limits}"]
    assert told([{"name": "x", "describe": {"ranks_per_gpu": 2}}]) == [
        "x: 2 ranks share one GPU: no link between GPUs lay between them."
    ]
    assert told([{"name": "x", "describe": {"ranks_per_gpu": 1}}]) == []


def test_models_and_arms_that_did_not_run_are_told_with_the_reason() -> None:
    arms = [
        {"name": "m", "status": "ok", "describe": {"simulated": True}},
        {"name": "nccl", "status": "unavailable"},
        {"name": "tree", "status": "unavailable"},
        {"name": "ring", "status": "failed"},
    ]
    lines = told(arms, reasons={"nccl": "no GPU here.", "tree": "no GPU here", "ring": ""})
    assert lines[:2] == ["nccl, tree: not available here: no GPU here.", "ring: cut short by a failure."]
    assert lines[2].startswith("m: a model on this machine's processor, no hardware.")


def test_ranks_of_one_host_are_told_and_ranks_of_two_or_of_one_process_are_not() -> None:
    arms = [{"name": "mpi"}]
    one = [source("mpi", [0]), source("mpi", [1])]
    assert told(arms, one) == ["mpi: all ranks ran on one host, so no network between hosts took part."]
    assert told(arms, [source("mpi", [0]), source("mpi", [1], "node2")]) == []
    assert told(arms, [source("mpi", [0, 1])]) == []
    assert told(arms, [source("mpi", [0], ""), source("mpi", [1], "")]) == []


def test_hosts_that_differ_in_a_driver_or_package_are_named() -> None:
    sources = [
        source("a", [n], f"node{n}", gpus={"driver": "580" if n else "575"}, packages={"numpy": "2.4"})
        for n in range(5)
    ]
    assert told([{"name": "a"}], sources) == [
        "The hosts differ in GPU driver: 575 on node0; 580 on node1 and 3 more hosts."
    ]


SICK = {
    "index": 3,
    "name": "NVIDIA H200",
    "memory_bytes": 141 << 30,
    "pci": "00000000:19:00.0",
    "ecc_errors": {"uncorrected_volatile": 2, "corrected_volatile": 900},
    "remapped_rows": {"failed": 1, "pending": 0},
    "nvlink": {
        "links": {"active": 17, "inactive": 1},
        "versions": ["4.0"],
        "errors": {"replay": 5, "recovery": 0, "crc_data": "not supported"},
    },
    "fabric": {"state": "in progress"},
    "mig_mode": {"current": 1, "pending": 0},
}
WELL = {
    "index": 0,
    "name": "NVIDIA H200",
    "ecc_errors": "not supported",
    "nvlink": {"links": {"active": 18}, "errors": {"replay": 0}},
    "fabric": "not supported",
}


def test_what_speaks_against_a_gpu_is_told_with_its_host() -> None:
    asked = {"devices": [WELL, SICK, {"index": 7, "refused": "GpuIsLost"}]}
    sources = [
        source("a", [1], "node7", gpus={"management_library": "not asked: the first process of this node asks"}),
        source("a", [0], "node7", gpus=asked),
    ]
    sick, lost, _one_host = told([{"name": "a"}], sources)
    assert sick == (
        "GPU 3 of node7: 2 uncorrected memory errors since its driver was loaded; a memory row could not be remapped; "
        "1 of 18 NVLinks are inactive; NVLink errors (replay 5); its NVLink fabric is in progress; it is partitioned (MIG)."
    )
    assert lost == "GPU 7 of node7: does not answer (GpuIsLost)."
    assert told([], [source("a", [0], gpus={"devices": "refused: x"})]) == []


def test_gpus_have_a_row_each() -> None:
    assert gpus.row("node7", SICK) == (
        "node7 3",
        "NVIDIA H200",
        "141 GiB",
        "17 active; 1 inactive; version 4.0; errors: replay 5",
        "2",
        "00000000:19:00.0",
    )
    assert gpus.row("", WELL) == ("0", "NVIDIA H200", "", "18 active", "", "")
    assert gpus.row("", {"index": 7, "refused": "GpuIsLost"})[1] == "GpuIsLost"


def test_switched_off_multicast_is_told_where_a_gpu_took_part() -> None:
    off = [source("a", [0], variables={"NCCL_NVLS_ENABLE": "0"})]
    (line,) = told([{"name": "a", "describe": {"gpus": "0: H200"}}], off)
    assert line.startswith("In-switch multicast is switched off here (NCCL_NVLS_ENABLE=0)")
    assert told([{"name": "a", "describe": {}}], off) == []


def test_a_damaged_record_comes_first_and_many_notices_are_cut() -> None:
    arms = [{"name": f"a{n}", "describe": {"limits": f"limit {n}."}} for n in range(40)]
    lines = told(arms, problems=["shard torn", "another"])
    assert lines[0] == "The record is damaged or was cut short: shard torn (and 1 more)"
    assert len(lines) == notices.NOTICES
    assert lines[-1] == "and 30 more: see “What was audited” and “Environment”."


# -------------------------------------------------------------------------------------------------------------- kinds, hosts


def test_every_kind_of_the_contract_is_described() -> None:
    assert set(KINDS) | {"not_run"} <= set(kinds.KINDS)
    assert all(one.looks_for.endswith(".") and one.look_at for one in kinds.KINDS.values())
    assert kinds.about("new_kind").looks_for == "New kind."


def test_hosts_are_listed_with_their_ranks_and_gpus() -> None:
    env = {"gpus": {"models": ["H200", "H200"], "driver": "580"}, "cpu": {"model": "Xeon"}}
    sources = [source("ring", [n], f"node{n // 4}", **env) for n in range(8)] + [source("tree", [9], "node1", **env)]
    assert surroundings.rank_hosts(sources)["ring", 5] == "node1"
    assert surroundings.rank_hosts(sources[:4]) == {}
    rows = [surroundings._host_row(host, mine) for host, mine in surroundings.hosts(sources).items()]
    assert rows == [
        ("node0", "0–3 (ring)", "2 x H200", "580", "Xeon"),
        ("node1", "4–7 (ring); 9 (tree)", "2 x H200", "580", "Xeon"),
    ]
