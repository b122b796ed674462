"""Paths: arms of one run on the same data, bit by bit; who agrees with whom, and nothing claimed where an arm does not repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_view import FakeView, Output, a_trial, correct, one
from test_analysis import PLAIN, Run

from auditor import analysis, probes
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Capabilities, Finding, Planned, Trial, Verdict
from auditor.numerics.formats import FORMATS
from auditor.probes import paths
from auditor.probes.differences import base_trials

EVEN, ZERO, AWAY = correct(), correct("toward_zero"), correct("away_from_zero")
SOME = [one("wide", probe="paths", count=count, format=name) for name in ("bfloat16", "binary16") for count in (7, 512)]


def arm(name: str, output: Output = EVEN, planned: Sequence[Planned] = SOME, **more: Any) -> FakeView:
    return FakeView(planned, output, arm=name, **more)


def found(*views: FakeView) -> list[Finding]:
    return list(paths.analyze_run(views))


def only(*views: FakeView) -> Finding:
    (finding,) = found(*views)
    return finding


# ------------------------------------------------------------------------------------------------------------------ plan


def test_the_trials_are_those_of_repeatability_and_placement() -> None:
    offer = Capabilities(
        collectives=frozenset(("all_reduce",)), ops=frozenset(("sum",)), formats=frozenset(("bfloat16",))
    )
    scope = Scope(
        ArmSpec(name="a", backend="fake", ranks=2), offer, Sweep(format=("bfloat16",), count=(0, 5), repeats=1)
    )
    plan = list(paths.plan(scope))
    assert [trial for trial, _ in plan] == list(base_trials(scope))
    assert {repeats for _, repeats in plan} == {2}  # one repeat shows nothing of an arm


def test_one_arm_has_no_finding_unless_trials_were_run_for_it() -> None:
    shared = [Planned(trial=p.trial, repeats=p.repeats, probes=("placement", "paths")) for p in SOME]
    single = arm("ring", planned=shared)
    assert found(single) == []
    assert list(paths.analyze(single)) == []
    dead = arm("tree", planned=shared, details=lambda trial, repeat, rank: {"status": "crash"})
    assert found(single, dead) == []  # the crash is the harness's finding
    assert found(single, arm("tree", planned=[one("wide", probe="tail")])) == []  # not asked
    waived = only(arm("ring"))
    assert waived.verdict is Verdict.WAIVED
    assert "the only one with results" in waived.claim


# --------------------------------------------------------------------------------------------------------- equal, different


def test_equal_arms_pass_with_an_exact_bound() -> None:
    finding = only(arm("ring-ll"), arm("ring-simple"))
    assert (finding.verdict, finding.arm, finding.kind) == (Verdict.PASS, "ring-simple", "path_difference")
    assert "ring-simple gives the same bits as ring-ll in all 4 shared trials" in finding.claim
    assert finding.scope["format"] == ["bfloat16", "binary16"]
    measure = finding.measure
    assert (measure["pairs"], measure["elements_compared"], measure["elements_changed"]) == (4, 2 * (7 + 512), 0)
    assert measure["share_bounds_95"][1] == pytest.approx(1 - 0.025 ** (1 / 1038), rel=1e-6)
    assert not finding.evidence


def test_a_difference_is_legal_and_told_with_bits() -> None:
    finding = only(arm("ring"), arm("tree", ZERO))
    assert finding.verdict is Verdict.INFORMATION
    measure = finding.measure
    assert measure["compared_with"] == "ring"
    changed = measure["elements_changed"]
    assert 0.2 < changed / measure["elements_compared"] < 0.6
    assert f"{changed:,} of 1,038 results" in finding.claim
    assert "at most 1 ulp apart, median 1" in finding.claim
    assert measure["ulps_apart"] == {"max": 1, "median": 1, "histogram": {"1": changed}}
    assert measure["correctly_rounded"] == {"ring": changed, "tree": 0, "neither": 0}
    assert sum(row["changed"] for row in measure["by_part_of_range"].values()) <= changed
    assert sum(row["compared"] for row in measure["by_part_of_range"].values()) == 2 * 512  # 7 elements are no 8 parts
    assert sum(measure["changed_by_address_mod_16"].values()) == changed
    assert {name: row["compared"] for name, row in measure["by_cell"].items()} == {
        "all_reduce sum bfloat16": 519,
        "all_reduce sum binary16": 519,
    }
    first = finding.evidence[0]
    trial = next(p.trial for p in SOME if p.trial.trial_id == first.trial)
    assert trial.call.count == 7  # the smallest example comes first
    assert int(first.expected, 16) & 0x7FFF == (int(first.observed, 16) & 0x7FFF) + 1
    assert len(first.inputs) == 2
    assert "`observed` is what tree gave, `expected` what ring gave" in finding.limits


def test_expectations_make_it_pass_or_fail() -> None:
    forbidden = {"path_difference": False}
    assert only(arm("a"), arm("b", ZERO, expect=forbidden)).verdict is Verdict.FAIL
    assert only(arm("a"), arm("b", expect=forbidden)).verdict is Verdict.PASS
    assert only(arm("a"), arm("b", ZERO, expect={"path_difference": True})).verdict is Verdict.INFORMATION


def test_arms_that_agree_are_named_together() -> None:
    arms = [arm("ring-ll"), arm("ring-simple"), arm("tree-ll", ZERO), arm("tree-simple", ZERO), arm("nvls", AWAY)]
    second, third, fourth, fifth = found(*arms)
    assert second.verdict is Verdict.PASS
    assert "tree-ll gives other bits than ring-ll and ring-simple" in third.claim
    assert fourth.measure["same_as"] == ["tree-ll"]
    assert fourth.claim.endswith("; the same bits as tree-ll.")
    assert "; other bits than tree-ll, tree-simple, in " in fifth.claim
    others = fifth.measure["others"]["tree-ll, tree-simple"]
    assert others["compared"] == 1038
    assert others["changed"] > fifth.measure["elements_changed"]  # toward zero and away differ in every inexact sum


def test_formats_that_differ_are_told_from_those_that_do_not() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return (ZERO if trial.call.format == "bfloat16" else EVEN)(trial, repeat, rank)

    findings = found(arm("mpi"), arm("mpi-ring", output))
    assert [(f.verdict, f.scope["format"]) for f in findings] == [
        (Verdict.INFORMATION, "bfloat16"),
        (Verdict.PASS, "binary16"),
    ]


def test_cells_are_merged_only_where_the_scope_lists_every_combination() -> None:
    cells = [("all_reduce", "bfloat16"), ("all_reduce", "binary16"), ("reduce_scatter", "binary16")]
    planned = [one("wide", probe="paths", collective=c, format=f, count=32) for c, f in cells]
    findings = found(arm("a", planned=planned), arm("b", planned=planned))
    assert [(f.scope["collective"], f.scope["format"]) for f in findings] == [
        ("all_reduce", ["bfloat16", "binary16"]),
        ("reduce_scatter", "binary16"),
    ]
    assert findings[1].measure["elements_compared"] == 64  # every member's share


def test_what_other_probes_ran_is_compared_too() -> None:
    """Two arms may agree on the sweep's data and part on ties."""
    planned = [one("wide", probe="paths", count=64), one("ties", probe="rounding", count=512)]

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return (correct("ties_to_away") if trial.family.name == "ties" else EVEN)(trial, repeat, rank)

    finding = only(arm("a", planned=planned), arm("b", output, planned=planned))
    assert finding.verdict is Verdict.INFORMATION
    assert finding.measure["by_family"]["wide"]["changed"] == 0
    assert finding.measure["by_family"]["ties"]["changed"] > 30
    assert finding.scope["family"] == "ties"
    assert "b gives other bits than a from the same data of ties, not from the sweep's, in " in finding.claim


def test_cells_that_differ_in_the_sweep_are_not_lumped_with_those_that_do_not() -> None:
    """bfloat16 differs everywhere, binary16 on ties alone: two findings, so that no figure hides behind the other."""
    names = ("bfloat16", "binary16")
    planned = [one("wide", probe="paths", count=64, format=name) for name in names]
    planned += [one("ties", probe="rounding", count=512, format=name) for name in names]

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        if trial.call.format == "bfloat16":
            return ZERO(trial, repeat, rank)
        return (correct("ties_to_away") if trial.family.name == "ties" else EVEN)(trial, repeat, rank)

    sweep, beyond = found(arm("a", planned=planned), arm("b", output, planned=planned))
    assert (sweep.scope["format"], sweep.scope["family"]) == ("bfloat16", "wide")
    assert sweep.measure["elements_compared"] == 64
    assert sweep.measure["by_family"]["ties"]["changed"] > 0
    assert (beyond.scope["format"], beyond.scope["family"]) == ("binary16", "ties")


def test_more_arms_than_one_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unwritten is worked out once an arm, however often two arms take turns."""
    from auditor.probes import unwritten

    made = []

    class Counted(unwritten._Memo):
        def __init__(self, view: Any) -> None:
            made.append(view.arm)
            super().__init__(view)

    monkeypatch.setattr(unwritten, "_Memo", Counted)
    found(arm("a"), arm("b", ZERO), arm("c", AWAY))
    assert sorted(made) == ["a", "b", "c"]


def test_min_and_nan_and_zeros_of_unlike_sign() -> None:
    planned = [one("wide", probe="paths", count=64, op="min")]

    def with_first(*codes: int) -> Output:
        def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
            result = np.full(trial.call.count, 0x3F80, np.uint16)
            result[: len(codes)] = codes
            return result

        return output

    a, b = with_first(0x7FC0, 0x0000, 0x3F80), with_first(0x7FC1, 0x8000, 0x3F90)
    finding = only(arm("a", a, planned), arm("b", b, planned))
    assert finding.measure["ulps_apart"] == {
        "max": 16,
        "median": 0,
        "histogram": {"0": 1, "1": 0, "2": 0, "3-4": 0, "5-8": 0, "9-16": 1},
        "nan": 1,
    }
    assert "correctly_rounded" not in finding.measure
    assert "1 of them NaN" in finding.claim
    nan = only(arm("a", with_first(0x7FC0), planned), arm("b", with_first(0x7FC1), planned))
    assert "NaN all of them" in nan.claim


# ---------------------------------------------------------------------------------------------------- nothing to be claimed


def wavering(trial: Trial, repeat: int, rank: int) -> np.ndarray:
    return (EVEN if repeat % 2 else ZERO)(trial, repeat, rank)


def test_nothing_is_claimed_beside_an_arm_that_does_not_repeat_itself() -> None:
    planned = [one("wide", probe="paths", count=512)]
    finding = only(arm("steady", planned=planned), arm("wavers", wavering, planned))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "wavers does not repeat itself in 1 trial" in finding.claim
    assert finding.measure["trials_that_do_not_repeat"] == {"wavers": 1}


def test_arms_after_one_that_wavers_are_still_compared_with_each_other() -> None:
    planned = [one("wide", probe="paths", count=512)]
    first, second, third = arm("wavers", wavering, planned), arm("b", planned=planned), arm("c", planned=planned)
    beside, equal = found(first, second, third)
    assert beside.verdict is Verdict.INCONCLUSIVE
    assert equal.verdict is Verdict.PASS
    assert equal.measure["same_as"] == ["b"]
    assert "Nothing is said beside wavers: wavers does not repeat itself in 1 trial." in equal.limits


def test_flips_now_and_then_explain_a_difference() -> None:
    """Of 40 trials a few flip between their two repeats; one that flipped twice looks stable and is laid at nothing."""
    planned = [one("wide", repeats=2, probe="paths", count=64, seed=seed) for seed in range(40)]

    def rarely(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        both, once = trial.seed == 0, trial.seed in range(1, 9) and repeat == 1
        return (ZERO if both or once else EVEN)(trial, repeat, rank)

    finding = only(arm("steady", planned=planned), arm("flips", rarely, planned))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "chance is not excluded" in finding.claim


def test_arms_that_share_nothing_are_waived() -> None:
    four = [one("wide", probe="paths", rank_n=4)]
    views = [arm("mpi", planned=four), arm("mpi-ring", planned=four), arm("model")]
    equal, waived = found(*views)
    assert (equal.arm, equal.verdict) == ("mpi-ring", Verdict.PASS)
    assert (waived.arm, waived.verdict) == ("model", Verdict.WAIVED)
    assert waived.claim == "The arm model shares no trial with another arm: it has 2 ranks, mpi 4 and mpi-ring 4."


def test_trials_that_cannot_be_compared_are_not_shared() -> None:
    single = [one("wide", repeats=1, probe="paths"), one("wide", probe="paths", inputs="alternate")]
    assert [f.verdict for f in found(arm("a", planned=single), arm("b", ZERO, single))] == [Verdict.WAIVED] * 2


def test_a_crash_leaves_the_rest() -> None:
    planned = [one("wide", probe="paths", count=64), one("wide", probe="paths", count=8)]
    details = {"details": lambda trial, repeat, rank: {"status": "crash"} if trial.call.count == 8 else {}}
    finding = only(arm("a", planned=planned), arm("b", planned=planned, **details))
    assert finding.verdict is Verdict.PASS
    assert "in the shared trial" in finding.claim
    assert "too little came back from b in 1 trial" in finding.limits


# --------------------------------------------------------------------------------------------------------- in a whole run


def told(name: str, output: Output = EVEN, **describe: str) -> Any:
    view: Any = arm(name, output)
    view.plan, view.status, view.reason = {**PLAIN, "describe": describe}, "ok", ""
    return view


def test_an_analysis_that_fails_leaves_the_other_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(views: Sequence[Any]) -> Any:
        raise ValueError("no such path")

    monkeypatch.setattr(paths, "analyze_run", fails)
    content = analysis.analyze(Run(told("a"), told("b")), known={"paths": probes.get("paths")})
    (row,) = content["findings"]
    assert (row["verdict"], content["exit_code"]) == ("INCONCLUSIVE", 3)
    assert "no such path" in row["claim"]


def test_a_run_holds_them_under_the_later_arm_and_reruns_all_arms() -> None:
    content = analysis.analyze(Run(told("a"), told("b", ZERO)), known={"paths": probes.get("paths")})
    (row,) = [row for row in content["findings"] if row["probe"] == "paths"]
    assert (row["arm"], row["id"], row["verdict"]) == ("b", "F1", "INFORMATION")
    assert "--arm" not in row["reproduce"]
    assert 'probes.run=["paths"]' in row["reproduce"]


def test_distances_know_both_zeros_infinity_and_the_sign() -> None:
    from auditor.numerics.ulps import Distances, is_nan, ulp_steps

    for fmt in FORMATS.values():
        top, one_, low = fmt.max_code, fmt.power_of_two(0), 1
        a = np.array([0, top, one_, low, one_], fmt.dtype)
        b = np.array([fmt.sign_mask, top - 1, one_ | fmt.sign_mask, low | fmt.sign_mask, one_], fmt.dtype)
        assert ulp_steps(fmt, a, b).tolist() == [0, 1, 2 * one_, 2, 0]
        assert ulp_steps(fmt, b, a).tolist() == [0, 1, 2 * one_, 2, 0]
        assert is_nan(fmt, np.array([fmt.nan_code, top, 0], fmt.dtype)).tolist() == [True, False, False]
        assert is_nan(fmt, np.array([fmt.overflow_code], fmt.dtype)).tolist() == [not fmt.has_infinity]
        counted = Distances()
        counted.add(fmt, a, b)
        counted.add(fmt, a[1:2], b[1:2])
        assert (counted.pairs, counted.most, counted.median) == (6, 2 * one_, 1)
        assert sum(counted.histogram().values()) == 6
    assert (Distances().median, Distances().histogram()) == (0, {})


def test_a_trial_s_smallest_example_is_its_own() -> None:
    trial = a_trial("wide", count=64)
    planned = [Planned(trial=trial, repeats=2, probes=("paths",))]
    finding = only(arm("a", planned=planned), arm("b", ZERO, planned))
    at = [row.index for row in finding.evidence]
    assert at == sorted(at)
    a, b = arm("a", planned=planned), arm("b", ZERO, planned)
    index = finding.evidence[0].index
    assert index is not None
    assert int(finding.evidence[0].expected, 16) == a.output(trial.trial_id, 0, 0)[index]
    assert int(finding.evidence[0].observed, 16) == b.output(trial.trial_id, 0, 0)[index]
