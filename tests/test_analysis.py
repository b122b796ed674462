"""analysis: what the record itself shows, numbering, the command to reproduce, the exit code, and findings.json on disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_view import FakeView, a_trial, one

from auditor.analysis import SCHEMA, analyze, command, exit_code, read_findings, write_findings
from auditor.config import BUILT_IN, HARNESS_KINDS, KINDS, Scope, load
from auditor.errors import EvidenceError
from auditor.model import Evidence, Finding, Observation, Planned, Verdict
from auditor.plan import build

PLAIN: dict[str, Any] = {"status": "ok", "reason": "", "waivers": (), "path": None, "describe": {}}


class Arm(FakeView):
    """A fake arm with the plan's words about it; ``details`` may also drop an observation by returning None."""

    def __init__(self, planned: list[Planned], details: Any = None, *, arm: str = "a", **said: Any) -> None:
        super().__init__(planned, lambda trial, repeat, rank: np.zeros(trial.call.count, np.uint16), arm=arm)
        self.expect = said.pop("expect", {})
        self.plan = {**PLAIN, **said}
        self.status, self.reason = self.plan["status"], self.plan["reason"]
        self.details = details or (lambda trial, repeat, rank: {})

    def observations(self, trial_id: str) -> list[Observation]:
        changed = []
        for seen in super().observations(trial_id):
            more = self.details(self._trials[trial_id].trial, seen.repeat, seen.rank)
            if more is not None:
                changed.append(replace(seen, **more))
        return changed


class Run:
    def __init__(self, *arms: Arm, **plan: Any) -> None:
        self.run_id = "r1"
        self.arms = {arm.arm: arm for arm in arms}
        self.arm_names = list(self.arms)
        self.plan = {"config": "c.toml", "arguments": [], **plan}

    def arm(self, name: str) -> Arm:
        return self.arms[name]


def probe(*verdicts: Verdict, kind: str = "foreign_read", fails: Exception | None = None) -> Any:
    def analyze_arm(view: Any) -> Iterator[Finding]:
        for verdict in verdicts:
            yield Finding(arm=view.arm, probe="tail", kind=kind, verdict=verdict, claim="x", scope={"count": 64})
        if fails is not None:
            raise fails

    return SimpleNamespace(NAME="tail", KINDS=(kind,), plan=None, analyze=analyze_arm)


def rows(content: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["probe"], row["kind"], row["verdict"]) for row in content["findings"]]


def harness(arm: Arm, **plan: Any) -> list[dict[str, Any]]:
    """Findings of one arm, with a probe that has nothing to say."""
    content = analyze(Run(arm, **plan), known={"coverage": probe()})
    assert {row["kind"] for row in content["findings"]} <= set(HARNESS_KINDS)
    return list(content["findings"])


# -------------------------------------------------------------------------------------------------- what the record shows


def test_what_an_arm_cannot_show_stands_in_every_findings_limits() -> None:
    arm = Arm([one(probe="tail")], describe={"limits": "One GPU served 4 ranks."})
    limited = probe(Verdict.PASS)
    own = analyze(Run(arm), known={"tail": limited})["findings"]
    assert [row["limits"] for row in own] == ["One GPU served 4 ranks."]
    with_more = SimpleNamespace(**{**vars(limited), "analyze": lambda view: _limited(limited, view)})
    assert analyze(Run(arm), known={"tail": with_more})["findings"][0]["limits"] == "Mine. One GPU served 4 ranks."


def _limited(plain: Any, view: Any) -> Iterator[Finding]:
    return (replace(found, limits="Mine.") for found in plain.analyze(view))


def test_a_clean_arm_shows_nothing() -> None:
    assert harness(Arm([one()])) == []


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        ("crash", "crash", "the subject crashes in 2 trials: died by SIGSEGV (rank 1)."),
        ("hang", "hang", "the subject does not return in 2 trials: died by SIGSEGV (rank 1)."),
        ("error", "backend_error", "the subject raises an error on a call that its capabilities allow in 2 trials: "),
    ],
)
def test_trouble_is_one_fail_a_cell_with_the_counts_listed(status: str, kind: str, words: str) -> None:
    def details(trial: Any, repeat: int, rank: int) -> dict[str, Any] | None:
        if trial.call.format == "bfloat16" and trial.call.count != 3:
            return {"status": status, "message": "died by SIGSEGV"} if (repeat, rank) == (0, 1) else None
        return {}

    trials = [one(count=count, format=name) for name in ("bfloat16", "binary16") for count in (1, 2, 3)]
    (found,) = harness(Arm(trials, details))
    assert (found["kind"], found["verdict"], found["probe"]) == (kind, "FAIL", "harness")
    assert found["claim"].startswith(f"all_reduce sum of bfloat16 on 2 ranks: {words}")
    assert (found["scope"]["count"], found["scope"]["format"]) == ([1, 2], "bfloat16")
    assert [(row["rank"], row["observed"]) for row in found["evidence"]] == [(1, "died by SIGSEGV")] * 2
    assert (found["measure"]["trials"], found["measure"]["evidence_total"]) == (2, 2)


def test_a_crash_that_was_expected_is_information() -> None:
    arm = Arm([one()], lambda *_: {"status": "crash", "message": "SIGABRT"}, expect={"crash": True})
    assert [(row["kind"], row["verdict"]) for row in harness(arm)] == [("crash", "INFORMATION")]


def test_a_flood_of_messages_is_capped() -> None:
    many = Arm([one(repeats=40)], lambda trial, repeat, rank: {"status": "error", "message": f"code {repeat}"})
    (found,) = harness(many)
    assert "code 0; code 1; code 2; and 37 more messages (rank 0 and 1)" in found["claim"]
    assert (len(found["evidence"]), found["measure"]["evidence_total"]) == (16, 80)
    assert len(found["measure"]["messages"]) == 16


def test_a_refusal_is_waived_in_the_library_s_words() -> None:
    arm = Arm(
        [one(), one(count=3)], lambda trial, repeat, rank: {"status": "unsupported", "message": "no NVLS for fp32"}
    )
    (found,) = harness(arm)
    assert (found["kind"], found["verdict"]) == ("unsupported", "WAIVED")
    assert "the library refuses: no NVLS for fp32" in found["claim"]


def test_what_was_skipped_is_inconclusive_beside_the_crash() -> None:
    def details(trial: Any, repeat: int, rank: int) -> dict[str, Any] | None:
        status = "crash" if trial.send_shift < 2 else "skipped"
        return {"status": status, "message": f"{status} here"} if (repeat, rank) == (0, 0) else None

    found = harness(Arm([one(send_shift=k) for k in range(5)], details))
    assert [(row["kind"], row["verdict"], row["measure"]["trials"]) for row in found] == [
        ("crash", "FAIL", 2),
        ("not_run", "INCONCLUSIVE", 3),
    ]
    assert "nothing can be said of 3 trials: skipped here" in found[1]["claim"]


def test_a_stated_path_that_was_not_taken_fails() -> None:
    paths = {1: "TREE/LL/2", 2: "RING/SIMPLE/8", 3: "TREE/LL/2"}
    trials = [one(count=count) for count in paths]
    (found,) = harness(Arm(trials, lambda trial, repeat, rank: {"path": paths[trial.call.count]}, path="RING"))
    assert (found["kind"], found["verdict"]) == ("path_not_taken", "FAIL")
    assert "12 of 18 calls take TREE/LL/2, not the stated path RING" in found["claim"]
    assert found["scope"]["count"] == [1, 3]
    assert (found["evidence"][0]["observed"], found["evidence"][0]["expected"]) == ("TREE/LL/2", "RING")


def test_a_stated_path_that_was_taken_passes_and_one_that_cannot_be_told_is_inconclusive() -> None:
    (taken,) = harness(Arm([one()], lambda *_: {"path": "RING/SIMPLE"}, path="RING"))
    assert (taken["kind"], taken["verdict"], taken["evidence"]) == ("path_not_taken", "PASS", [])
    (untold,) = harness(Arm([one()], path="RING"))
    assert (untold["kind"], untold["verdict"]) == ("path_not_taken", "INCONCLUSIVE")
    (unreported,) = harness(Arm([one()], lambda *_: {"path": "unreported"}, path="RING"))
    assert (unreported["kind"], unreported["verdict"]) == ("path_not_taken", "INCONCLUSIVE")
    assert harness(Arm([one()], lambda *_: {"path": "TREE"})) == []


def test_memory_that_was_wrong_before_the_call_is_not_the_fabric_s() -> None:
    arm = Arm([one(), one(count=3)], lambda trial, repeat, rank: {"send_before": rank != 1 or repeat != 2})
    (found,) = harness(arm)
    assert (found["kind"], found["verdict"]) == ("input_corrupt", "INCONCLUSIVE")
    assert "the send buffer of rank 1 was wrong before 2 calls" in found["claim"]
    assert (found["measure"]["ranks"], found["measure"]["repeats"]) == ([1], [2])


def test_an_interrupted_arm_says_how_much_is_missing() -> None:
    def details(trial: Any, repeat: int, rank: int) -> dict[str, Any] | None:
        reached = trial.call.count == 1 or (trial.call.count == 2 and (repeat, rank) != (2, 1))
        return {} if reached else None

    (found,) = harness(Arm([one(count=count) for count in (1, 2, 3, 4)], details))
    assert (found["kind"], found["verdict"]) == ("not_run", "INCONCLUSIVE")
    assert "2 of 4 planned trials were not reached and 1 trial ended short of repeats or ranks" in found["claim"]
    assert found["scope"]["count"] == [2, 3, 4]
    assert found["measure"] == {"trials": 3, "not_reached": 2, "cut_short": 1, "planned": 4}


def test_a_trial_that_ended_in_an_error_is_not_called_interrupted() -> None:
    arm = Arm([one()], lambda trial, repeat, rank: {"status": "error", "message": "e"} if repeat == 0 else None)
    assert [row["kind"] for row in harness(arm)] == ["backend_error"]


@pytest.mark.parametrize(
    ("status", "verdict", "kind", "words"),
    [
        ("unavailable", "WAIVED", "unsupported", "The arm a is not available here: no libnccl; pip install it."),
        ("waived", "WAIVED", "unsupported", "The arm a is waived: no libnccl; pip install it."),
        ("not_run", "WAIVED", "unsupported", "The arm a was not run: no libnccl; pip install it."),
        ("failed", "INCONCLUSIVE", "not_run", "The arm a failed (no libnccl; pip install it)."),
    ],
)
def test_an_arm_that_did_not_run_is_a_finding_with_its_reason(status: str, verdict: str, kind: str, words: str) -> None:
    (found,) = harness(Arm([], status=status, reason="no libnccl; pip install it"))
    assert (found["verdict"], found["kind"], found["claim"]) == (verdict, kind, words)


def test_waivers_are_findings_and_are_said_once() -> None:
    waiver = {"arm": "a", "reason": "mpi does not offer format x", "kind": "unsupported", "scope": {"format": "x"}}
    (found,) = harness(Arm([], status="waived", reason="mpi does not offer format x", waivers=[waiver]))
    assert (found["verdict"], found["claim"], found["scope"]) == (
        "WAIVED",
        "Waived: mpi does not offer format x.",
        {"format": "x"},
    )


# ------------------------------------------------------------------------------------------------------- the whole of a run


def test_findings_have_the_contract_s_shape_and_are_numbered_worst_first() -> None:
    spoilt = Arm(
        [one(probe="tail")], lambda *_: {"status": "crash", "message": "x"}, arm="b", describe={"version": "5"}
    )
    content = analyze(Run(Arm([one(probe="tail")]), spoilt), known={"tail": probe(Verdict.PASS, Verdict.INFORMATION)})
    assert list(content) == ["schema", "run_id", "verdict", "exit_code", "arms", "findings"]
    assert (content["schema"], content["run_id"], content["verdict"], content["exit_code"]) == (SCHEMA, "r1", "FAIL", 1)
    assert content["arms"][1] == {
        "name": "b",
        "backend": "fake",
        "rank_n": 2,
        "status": "ok",
        "describe": {"version": "5"},
    }
    assert [(row["id"], row["arm"], row["kind"], row["verdict"]) for row in content["findings"]] == [
        ("F1", "b", "crash", "FAIL"),
        ("F2", "a", "foreign_read", "INFORMATION"),
        ("F3", "b", "foreign_read", "INFORMATION"),
        ("F4", "a", "foreign_read", "PASS"),
        ("F5", "b", "foreign_read", "PASS"),
    ]
    assert set(content["findings"][0]) == {
        *("id", "arm", "probe", "kind", "verdict", "claim", "measure", "scope", "evidence", "limits", "reproduce")
    }
    assert all(row["kind"] in KINDS for row in content["findings"])
    json.dumps(content, allow_nan=False)


def test_only_probes_that_were_asked_speak() -> None:
    asked = analyze(Run(Arm([one(probe="tail")])), known={"tail": probe(Verdict.PASS), "order": probe(Verdict.FAIL)})
    assert rows(asked) == [("tail", "foreign_read", "PASS")]


@pytest.mark.parametrize(
    ("error", "words"),
    [(ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"), (EvidenceError("rank 3 is torn"), "rank 3 is torn")],
)
def test_a_probe_that_fails_does_not_stop_the_others(error: Exception, words: str) -> None:
    known = {"tail": probe(Verdict.PASS, fails=error), "order": probe(Verdict.PASS, kind="summation_tree")}
    trials = [replace(one(), probes=("tail", "order"))]
    content = analyze(Run(Arm(trials)), known=known)
    assert rows(content) == [
        ("tail", "foreign_read", "INCONCLUSIVE"),
        ("tail", "foreign_read", "PASS"),
        ("tail", "summation_tree", "PASS"),
    ]
    assert content["findings"][0]["claim"] == f"Nothing more can be said about tail: its analysis failed with {words}"
    assert content["exit_code"] == 3


def test_a_run_with_a_probe_of_another_version_says_so() -> None:
    content = analyze(Run(Arm([one(probe="oracle")])), known={"tail": probe(Verdict.PASS)})
    assert rows(content) == [("harness", "unsupported", "WAIVED")]
    assert content["exit_code"] == 5


def test_arms_that_were_not_asked_for_count_as_waived() -> None:
    content = analyze(Run(Arm([], status="not_run", reason="another arm was")), known={})
    assert (content["arms"][0]["status"], content["verdict"], content["exit_code"]) == ("waived", "WAIVED", 5)


def test_numbers_of_numpy_become_json() -> None:
    def analyze_arm(view: Any) -> Iterator[Finding]:
        measure = {"a": np.int64(3), "b": np.array([1, 2]), "c": float("nan"), "d": (np.float32(0.5),)}
        yield Finding(arm="a", probe="tail", kind="foreign_read", verdict=Verdict.PASS, claim="x", measure=measure)

    known = {"tail": SimpleNamespace(KINDS=("foreign_read",), analyze=analyze_arm)}
    content = analyze(Run(Arm([one(probe="tail")])), known=known)
    assert content["findings"][0]["measure"] == {"a": 3, "b": [1, 2], "c": None, "d": [0.5]}


def test_analysis_repeats_itself() -> None:
    run = Run(Arm([one(probe="tail")], lambda *_: {"status": "hang", "message": "m"}))
    assert analyze(run, known={"tail": probe(Verdict.PASS)}) == analyze(run, known={"tail": probe(Verdict.PASS)})


# ------------------------------------------------------------------------------------------------------------- exit codes


def found(*verdicts: Verdict) -> list[Finding]:
    return [Finding(arm="a", probe="p", kind="nan", verdict=verdict, claim="") for verdict in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "status", "flags", "code"),
    [
        ((Verdict.PASS,), "ok", {}, 0),
        ((Verdict.INFORMATION, Verdict.INCONCLUSIVE, Verdict.WAIVED), "ok", {}, 0),
        ((Verdict.FAIL, Verdict.PASS), "ok", {}, 1),
        ((Verdict.FAIL,), "unavailable", {"machinery_failed": True}, 1),
        ((Verdict.PASS,), "unavailable", {}, 3),
        ((Verdict.PASS,), "failed", {}, 3),
        ((Verdict.PASS,), "ok", {"machinery_failed": True}, 3),
        ((Verdict.WAIVED,), "unavailable", {}, 3),
        ((Verdict.PASS,), "waived", {}, 0),
        ((Verdict.INCONCLUSIVE, Verdict.WAIVED), "ok", {}, 5),
        ((), "ok", {}, 5),
        ((Verdict.WAIVED,), "waived", {}, 5),
        ((Verdict.FAIL,), "failed", {"interrupted": True, "machinery_failed": True}, 130),
    ],
)
def test_the_first_that_applies(verdicts: Any, status: str, flags: dict[str, bool], code: int) -> None:
    assert exit_code(found(*verdicts), [{"status": status}], **flags) == code


# -------------------------------------------------------------------------------------------------------------- reproduce


def a_finding(verdict: Verdict = Verdict.FAIL, probe: str = "tail", **scope: Any) -> Finding:
    return Finding(arm="b 300", probe=probe, kind="foreign_read", verdict=verdict, claim="", scope=scope)


def test_the_command_narrows_the_sweep_to_the_scope() -> None:
    scope = {"count": 1026, "format": "bfloat16", "send_shift": 1, "recv_shift": 1, "tail": ["nan", "random:3"]}
    text = command({"config": "my configs/b300.toml"}, a_finding(**scope), [one(repeats=7, probe="tail", count=1026)])
    assert text == (
        "auditor run 'my configs/b300.toml' --arm 'b 300' --set 'sweep.format=[\"bfloat16\"]' --set 'sweep.count=[1026]' "
        "--set 'sweep.shift=[1]' --set 'probes.run=[\"tail\"]'"
    )


def test_only_a_part_of_an_axis_is_narrowed() -> None:
    """A whole axis is left alone; so is a count that the probe made itself, which another count might not lead to."""
    sweep = {"format": ["bfloat16"], "count": [3, 1026], "send_shift": [0, 1], "recv_shift": [0, 1], "repeats": 5}
    scope = {"format": "bfloat16", "count": 1024, "send_shift": 1, "recv_shift": [0, 1], "in_place": False}
    text = command({"sweep": {**sweep, "in_place": [False, True]}}, a_finding(**scope), [])
    assert shlex.split(text)[4:] == [
        *("--set", "sweep.in_place=[false]", "--set", "sweep.send_shift=[1]", "--set", "sweep.recv_shift=[0, 1]"),
        *("--set", 'probes.run=["tail"]'),
    ]
    for repeat, said in ((4, False), (19, True)):
        shown = replace(a_finding(), evidence=(Evidence(trial="x", repeat=repeat), Evidence(trial="y")))
        assert (f"sweep.repeats={repeat + 1}" in command({"sweep": sweep}, shown, [])) == said


def test_the_built_in_config_has_no_path_and_the_run_s_own_arguments_are_kept() -> None:
    arguments = ["--set", "sweep.seed=0", "--set", "sweep.count=[5]", "--set", "sweep.send_shift=[1]", "--ranks", "4"]
    plan = {"config": BUILT_IN, "arguments": arguments}
    text = command(plan, a_finding(count=[1, 2], send_shift=1, recv_shift=2), [])
    assert shlex.split(text) == [
        *("auditor", "run", "--set", "sweep.seed=0", "--ranks", "4", "--arm", "b 300", "--set", "sweep.count=[1, 2]"),
        *("--set", "sweep.send_shift=[1]", "--set", "sweep.recv_shift=[2]", "--set", 'probes.run=["tail"]'),
    ]


def test_an_arm_made_by_backend_is_not_named_again() -> None:
    text = command({"arguments": ["--backend", "m:K"]}, a_finding(), [])
    assert shlex.split(text)[:4] == ["auditor", "run", "--backend", "m:K"]
    assert "--arm" not in text


def test_groups_become_lists_of_lists() -> None:
    assert "'sweep.group=[\"all\"]'" in command({}, a_finding(group=None), [])
    assert "'sweep.group=[[0, 1]]'" in command({}, a_finding(group=[0, 1]), [])
    assert "'sweep.group=[\"all\", [0, 1]]'" in command({}, a_finding(group=[None, [0, 1]]), [])


def test_a_waiver_is_said_again_by_plan() -> None:
    assert (
        command({"config": "c.toml"}, a_finding(Verdict.WAIVED, format="x"), []) == "auditor plan c.toml --arm 'b 300'"
    )


def test_the_harness_names_the_probes_whose_trials_are_concerned() -> None:
    trials = [one(repeats=9, probe="tail", count=5), one(repeats=2, probe="order", count=6)]
    text = command({}, a_finding(probe="harness", count=5), trials)
    assert "--set 'probes.run=[\"tail\"]'" in text


def test_the_command_plans_the_trials_of_the_finding_again(tmp_path: Path) -> None:
    """Taken apart as the command line would, the overrides give a plan that holds the trial with its repeats."""
    path = tmp_path / "c.toml"
    path.write_text(
        '[[arm]]\nname="b 3"\nbackend="x"\nranks=2\n[[arm]]\nname="c"\nbackend="x"\nranks=2\n'
        "[sweep]\ncount=[1,2]\nshift=[0,1]\n".replace("b 3", "b")
    )

    def points(scope: Scope) -> Iterator[tuple[Any, int]]:
        yield from ((trial.with_(tail="nan"), scope.sweep.repeats) for trial in scope.points())

    from test_plan import ALL

    def plan_of(overrides: list[str]) -> Any:
        config = load(path, overrides)
        return build(config, {"b": ALL, "c": ALL}, probes={"tail": points}, environ={}, memory=1 << 40)

    first = plan_of(["sweep.seed=3"])
    target = first.arms[0].trials[4]
    scope = {key: value for key, value in target.trial.to_json().items() if key != "rank_n"}
    rows = (Evidence(trial=target.trial.trial_id, repeat=target.repeats - 1),)
    finding = replace(a_finding(**scope), arm="b", evidence=rows)
    words = shlex.split(command(first.to_json(), finding, first.arms[0].trials))
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    again = plan_of(overrides).arms[0]
    assert [p.trial for p in again.trials] == [target.trial]
    assert again.trials[0].repeats == target.repeats
    assert again.trials[0].probes == ("tail",)


# ------------------------------------------------------------------------------------------------------------------- files


EMPTY: dict[str, Any] = {
    "schema": SCHEMA,
    "run_id": "r1",
    "verdict": "WAIVED",
    "exit_code": 5,
    "arms": [],
    "findings": [],
}


def test_findings_survive_their_file(tmp_path: Path) -> None:
    content = analyze(Run(Arm([one(probe="tail")])), known={"tail": probe(Verdict.PASS)})
    path = write_findings(tmp_path, content)
    assert path == tmp_path / "findings.json"
    assert read_findings(tmp_path) == content
    assert [p.name for p in tmp_path.iterdir()] == ["findings.json"]
    row = Finding.from_json(content["findings"][0])
    assert (row.verdict, row.id) == (Verdict.PASS, "F1")


def test_a_half_written_file_never_replaces_a_whole_one(tmp_path: Path) -> None:
    write_findings(tmp_path, EMPTY)
    with pytest.raises(TypeError):
        write_findings(tmp_path, {**EMPTY, "run_id": object()})
    assert read_findings(tmp_path) == EMPTY


def test_a_directory_that_cannot_be_written_or_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"findings\.json: cannot be written: No such file or directory"):
        write_findings(tmp_path / "nowhere", {"schema": SCHEMA})
    with pytest.raises(
        EvidenceError, match=r"cannot be read: No such file or directory; make it with: auditor analyze"
    ):
        read_findings(tmp_path)
    (tmp_path / "findings.json").write_text('{"schema"')
    with pytest.raises(EvidenceError, match="is not JSON"):
        read_findings(tmp_path)
    (tmp_path / "findings.json").write_text('{"schema": "auditor-findings/9"}')
    with pytest.raises(
        EvidenceError, match="its schema is 'auditor-findings/9', this version reads 'auditor-findings/1'"
    ):
        read_findings(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": None}, "exit_code = None is not a whole number"),
        ({"exit_code": True}, "exit_code = True is not a whole number"),
        ({"verdict": 3}, "verdict = 3 is not a word"),
        ({"arms": {}}, "arms is not a list"),
        ({"findings": None}, "findings is not a list"),
        ({"findings": [{}, None]}, r"findings\[1\] is not an object"),
    ],
)
def test_findings_of_another_shape_are_told_by_their_part(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_findings(tmp_path, {**EMPTY, **changes})
    with pytest.raises(EvidenceError, match=rf"findings\.json: {words}; make it again with: auditor analyze"):
        read_findings(tmp_path)


def test_a_run_that_is_no_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="nowhere: there is no such directory; name a run directory"):
        read_findings(tmp_path / "nowhere")
    (tmp_path / "run.h5").touch()
    with pytest.raises(EvidenceError, match=r"run\.h5: is a file; name a run directory"):
        read_findings(tmp_path / "run.h5")


def test_evidence_keeps_its_fields() -> None:
    row = Evidence(trial=a_trial().trial_id, rank=1, repeat=2, index=3, inputs=("0x1",), observed="0x2", expected="0x3")
    assert Evidence(**{**row.to_json(), "inputs": tuple(row.to_json()["inputs"])}) == row
