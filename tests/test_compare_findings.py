"""Findings of two runs: how they are matched, what counts as a change, and which changes are for the worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import finding, make_trial, planned

from auditor.compare import measures
from auditor.compare.findings import Asked, compared, worse_than
from auditor.model import Finding, Verdict

FORMATS = ["bfloat16", "binary16"]
BOTH = Asked.of(planned(*(make_trial(7, fmt=fmt) for fmt in FORMATS), probes=("placement", "rounding", "coverage")))


def told(base: list[Finding], other: list[Finding], asked: tuple[Asked, Asked] = (BOTH, BOTH)) -> Any:
    rows = [[replace(one, id=f"F{n}") for n, one in enumerate(some, 1)] for some in (base, other)]
    return compared(*rows, asked)


def mode(name: str, fmt: str = "bfloat16", **measure: Any) -> Finding:
    more = {"mode": name, "nearest": 900, "nearest_95": [0.88, 0.92], **measure}
    return finding("rounding_mode", "INFORMATION", probe="rounding", scope={"format": fmt}, measure=more)


# ---------------------------------------------------------------------------------------------------------------- matching


def test_the_same_findings_are_alike() -> None:
    some = [mode("ties_to_even"), mode("ties_to_even", "binary16"), finding("path_split", "PASS")]
    assert told(some, list(reversed(some))).alike == 3
    assert told(some, list(reversed(some))).changes == ()


def test_a_mode_that_changed_is_a_change_of_figures_and_not_for_the_worse() -> None:
    result = told(
        [mode("ties_to_away"), mode("ties_to_even", "binary16")],
        [mode("ties_to_even"), mode("ties_to_even", "binary16")],
    )
    (change,) = result.changes
    assert (change.what, change.worse, change.cell["format"]) == ("measure", False, ("bfloat16",))
    assert [(m.name, m.base, m.other) for m in change.measures] == [("mode", "ties_to_away", "ties_to_even")]
    assert result.alike == 1


def test_a_pass_for_all_formats_is_matched_with_a_fail_for_one() -> None:
    scope = {"format": FORMATS}
    before = finding("wrong_value", "PASS", probe="coverage", scope=scope)
    after = [
        finding("wrong_value", "FAIL", probe="coverage", scope={"format": "bfloat16"}),
        finding("wrong_value", "PASS", probe="coverage", scope={"format": "binary16"}),
    ]
    result = told([before], after)
    (change,) = result.changes
    assert (change.what, change.worse, change.base_verdict, change.other_verdict) == ("verdict", True, "PASS", "FAIL")
    assert result.alike == 1
    (back,) = told(after, [before]).changes
    assert (back.worse, back.base_verdict, back.other_verdict) == (False, "FAIL", "PASS")


def test_families_are_kept_apart() -> None:
    def of(family: str, name: str) -> Finding:
        return replace(mode(name), scope={**mode(name).scope, "family": family, "count": 7})

    moved = [replace(one, scope={**one.scope, "count": 8}) for one in (of("wide", "a"), of("ties", "b"))]
    result = told([of("wide", "a"), of("ties", "b")], moved)
    assert [(one.what, one.base_id, one.other_id) for one in result.changes] == [
        ("extent", "F1", "F1"),
        ("extent", "F2", "F2"),
    ]


def test_a_finding_that_only_one_has_is_new_or_gone() -> None:
    crash = finding("crash", "FAIL", probe="harness", claim="It dies.")
    (new,) = told([], [crash]).changes
    assert (new.what, new.worse, new.other_claim) == ("new", True, "It dies.")
    (gone,) = told([crash], []).changes
    assert (gone.what, gone.worse) == ("gone", False)


def test_what_only_one_plan_asks_for_is_no_change() -> None:
    narrow = Asked.of(planned(make_trial(7), probes=("placement",)))
    result = told(
        [mode("ties_to_even"), finding("path_split", "PASS")], [finding("path_split", "PASS")], (BOTH, narrow)
    )
    assert result.changes == ()
    assert result.unasked == {"rounding": 1}
    sixteen = finding("path_split", "INFORMATION", scope={"format": "binary16"})
    assert told([sixteen], [], (BOTH, narrow)).unasked == {"placement": 1}
    elsewhere = Asked.of(planned(*(make_trial(9, fmt=fmt) for fmt in FORMATS), probes=("placement",)))
    assert told([sixteen], [], (BOTH, elsewhere)).unasked == {"placement": 1}


def test_a_lone_pass_says_nothing_new() -> None:
    assert told([], [finding("path_split", "PASS")]).changes == ()
    assert told([finding("unsupported", "WAIVED", probe="harness")], []).changes == ()


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("PASS", "FAIL", True),
        ("PASS", "INFORMATION", True),
        ("INFORMATION", "INCONCLUSIVE", True),
        ("FAIL", "INCONCLUSIVE", False),
        ("FAIL", "PASS", False),
        ("PASS", "WAIVED", True),
        ("FAIL", "WAIVED", False),
        ("INCONCLUSIVE", "WAIVED", False),
        ("WAIVED", "PASS", False),
        ("WAIVED", "FAIL", True),
    ],
)
def test_what_is_worse(before: str, after: str, worse: bool) -> None:
    assert worse_than(Verdict(before), Verdict(after)) is worse
    (change,) = told([finding("path_split", before)], [finding("path_split", after)]).changes
    assert (change.what, change.worse) == ("verdict", worse)


def test_a_fail_with_more_of_what_is_wrong_is_worse() -> None:
    def fail(n: int) -> Finding:
        return finding("unwritten", "FAIL", probe="coverage", measure={"elements": n})

    (more,) = told([fail(3)], [fail(300)]).changes
    assert (more.what, more.worse) == ("measure", True)
    (less,) = told([fail(300)], [fail(3)]).changes
    assert not less.worse
    assert told([fail(3)], [fail(5)]).changes == ()


def test_a_finding_that_shows_at_other_places_changed_where_the_plans_are_the_same() -> None:
    def at(*counts: int) -> Finding:
        return finding("path_split", "FAIL", scope={"count": list(counts), "send_shift": 1})

    (change,) = told([at(7)], [at(7, 40)]).changes
    assert (change.what, [(d.name, d.base, d.other) for d in change.extent]) == ("extent", [("count", "7", "7, 40")])
    other = Asked.of(planned(make_trial(9), probes=("placement",)))
    assert told([at(7)], [at(7, 40)], (BOTH, other)).changes == ()


def test_figures_from_other_trials_are_said_to_be() -> None:
    other = Asked.of(planned(make_trial(9), probes=("rounding",)))
    (change,) = told([mode("ties_to_away")], [mode("ties_to_even")], (BOTH, other)).changes
    assert change.limits == "The two were not measured on the same trials."


# ---------------------------------------------------------------------------------------------------------------- measures


def named(base: dict[str, Any], other: dict[str, Any], *, same_data: bool = True) -> list[str]:
    return [one.name for one in measures.changes(base, other, same_data=same_data)]


def test_a_change_within_the_intervals_is_no_change() -> None:
    base = {"share": 0.30, "share_bounds_95": [0.28, 0.32]}
    assert named(base, {"share": 0.31, "share_bounds_95": [0.29, 0.33]}) == []
    (apart,) = measures.changes(base, {"share": 0.36, "share_bounds_95": [0.34, 0.38]}, same_data=True)
    assert (apart.name, apart.why, apart.base_95, apart.other_95) == (
        "share",
        "intervals apart",
        (0.28, 0.32),
        (0.34, 0.38),
    )


def test_an_interval_may_stand_alone_or_bound_a_figure_in_ulp() -> None:
    assert named({"rate_95": [0.0, 0.1]}, {"rate_95": [0.2, 0.3]}) == ["rate_95"]
    base = {"mean_signed_error_ulp": -0.05, "mean_signed_error_95": [-0.052, -0.048]}
    other = {"mean_signed_error_ulp": 0.0, "mean_signed_error_95": [-0.001, 0.001]}
    assert named(base, other) == ["mean_signed_error_ulp"]
    assert named(base, {**base, "mean_signed_error_ulp": -0.0501}) == []


def test_bare_counts_are_held_against_chance_and_only_on_the_same_data() -> None:
    assert named({"elements": 10}, {"elements": 16}) == []
    assert named({"elements": 10}, {"elements": 60}) == ["elements"]
    assert named({"elements": 10}, {"elements": 60}, same_data=False) == []
    assert measures.count_changed(0, 11)
    assert not measures.count_changed(0, 10)


def test_words_flags_and_parameters_change_by_being_others() -> None:
    base = {"mode": "a", "complete": True, "noise_bits": 2, "ranks": [0, 1], "formula": None}
    assert named(base, {"mode": "b", "complete": False, "noise_bits": 3, "ranks": [1], "formula": "x"}) == [*base]
    assert named({"ranks": [0, 1]}, {"ranks": [1, 0]}) == []


def test_effort_fine_counts_and_bare_reals_are_not_judged() -> None:
    base = {"observations": 10, "trials": 4, "tolerance": 0.5, "by_point": {"count=1": [1, 2]}, "inner": {"changed": 3}}
    other = {
        "observations": 90,
        "trials": 8,
        "tolerance": 0.7,
        "by_point": {"count=1": [2, 2]},
        "inner": {"changed": 900},
    }
    assert named(base, other) == []


def test_inner_intervals_and_words_are_judged() -> None:
    base = {"influence": {"one": {"rate_95": [0.0, 0.01], "kind": "x"}}}
    other = {"influence": {"one": {"rate_95": [0.1, 0.2], "kind": "y"}}}
    assert named(base, other) == ["influence.one.kind", "influence.one.rate_95"]


def test_a_figure_that_only_one_has_is_left_alone() -> None:
    assert named({"mode": "a", "share": 0.1, "share_bounds_95": [0, 0.2]}, {"mode": "a"}) == []
    assert measures.interval([0.2, 0.1]) is None
    assert measures.interval([True, 1]) is None
