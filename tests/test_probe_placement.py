"""Placement: which elements change when the same data stand elsewhere, compared by data index."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import pytest
from driven_view import drive, of_kind, verdicts
from fake_view import FakeView, a_trial, before, correct, one, planned
from outside_subjects import Clean, FlipsEveryTenth, LeavesTail

from auditor import inputs
from auditor.backends.simulator.backend import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Codes, Family, Finding, Planned, Trial, Verdict
from auditor.numerics import trees
from auditor.numerics.formats import FORMATS
from auditor.probes import placement, repeatability
from auditor.probes.placement import tiled_trials
from auditor.probes.splits import body

SWEEP = Sweep(
    collective=("all_reduce", "reduce_scatter"),
    format=("bfloat16",),
    count=(1, 9, 1021, 1026),
    shift=((0, 0), (1, 1), (4, 4)),
    in_place=(False, True),
    repeats=3,
    seed=(7,),
)


def scope(sweep: Sweep = SWEEP, ranks: int = 4) -> Scope:
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), Clean.probe({}), sweep)


def finding(view: FakeView, kind: str) -> Finding:
    (found,) = [f for f in placement.analyze(view) if f.kind == kind]
    return found


def at(repeats: int = 2, **changes: Any) -> Planned:
    return one("wide", repeats, "placement", rank_n=4, **changes)


def summed(trial: Trial, repeat: int, rank: int, tree: trees.Tree) -> Codes:
    """The rank's sums along a tree, rounded to the element format at each hop."""
    terms = inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))
    nearest = "ties_to_even"
    return trees.evaluate(tree, terms, trial.call.fmt, accumulator=trial.call.fmt, hop=nearest, final=nearest)


# ------------------------------------------------------------------------------------------------------------------ plan


def test_plan_shares_its_points_with_repeatability() -> None:
    mine, other = dict(placement.plan(scope())), dict(repeatability.plan(scope()))
    points = {t for t in mine if t.tiled == 1}
    assert points <= set(other)
    assert len(points) == 2 * 4 * 3 * 2
    assert min(mine.values()) == 3


def test_tiles_are_whole_words_whose_number_is_coprime_to_round_periods() -> None:
    tiled = list(tiled_trials(scope()))
    assert {t.call.collective for t in tiled} == {"all_reduce", "reduce_scatter"}
    for trial in tiled:
        assert trial.send_count % trial.tiled == 0
        block = trial.send_count // trial.tiled
        assert block * 2 % 16 == 0
        assert gcd(block * 2 // 16, 210) == 1
        assert trial.tiled == 8
        assert trial.call.count <= 1026
        inputs.send_codes(trial, 0, 0, 0, trial.send_count)


def test_small_counts_are_tiled_in_smaller_blocks_and_one_rank_not_at_all() -> None:
    small = replace(SWEEP, count=(0, 3, 9))
    assert {(t.call.collective, t.call.count, t.tiled) for t in tiled_trials(scope(small))} == {
        ("all_reduce", 8, 8),
        ("reduce_scatter", 2, 8),
        ("reduce_scatter", 8, 8),
    }
    assert not list(tiled_trials(scope(SWEEP, ranks=1)))
    assert not list(placement.plan(scope(replace(SWEEP, count=(0,)))))


# ------------------------------------------------------------------------------------------------------------ whole subjects


def test_a_clean_subject_passes_everywhere() -> None:
    view = drive(Clean, SWEEP, [placement])
    seen = verdicts(placement, view)
    assert set(seen) == set(placement.KINDS)
    assert all(values == {"PASS"} for values in seen.values())


def test_unwritten_elements_are_left_out() -> None:
    view = drive(LeavesTail, SWEEP, [placement])
    assert all(values == {"PASS"} for values in verdicts(placement, view).values())


def test_flips_fail_nothing_even_where_a_dependence_is_forbidden() -> None:
    expect = dict.fromkeys(placement.KINDS, False)
    view = drive(FlipsEveryTenth, replace(SWEEP, repeats=2), [placement], expect=expect)
    assert "FAIL" not in {v for values in verdicts(placement, view).values() for v in values}


def test_the_ring_depends_on_position_and_recursive_doubling_does_not() -> None:
    sweep = replace(SWEEP, collective=("all_reduce",), shift=((0, 0),), in_place=(False,), count=(16, 1026), repeats=2)
    orders = {}
    for order in ("ring", "recursive_doubling"):
        view = drive(Simulator, sweep, [placement], options={"order": order, "accumulator": "same"})
        (found,) = of_kind(placement, view, "position_dependence")
        orders[order] = found.measure["orders"]
        assert found.verdict is (Verdict.INFORMATION if order == "ring" else Verdict.PASS)
    assert orders == {"ring": 4, "recursive_doubling": 1}


def test_the_b300_rule_changes_at_shifts_that_are_no_multiple_of_its_group() -> None:
    shifts = tuple((k, k) for k in (0, 1, 2, 3, 4, 8, 16))
    sweep = Sweep(
        format=("bfloat16", "binary32"),
        count=(1 << 15,),
        shift=shifts,
        repeats=2,
        family=(Family("report132"),),
        seed=(0,),
    )
    view = drive(Simulator, sweep, [placement], rank_n=2, options={"preset": "b300"})
    narrow, wide = of_kind(placement, view, "shift_dependence")
    assert narrow.verdict is Verdict.INFORMATION
    assert narrow.measure["reference_shift"] == [0, 0]
    assert narrow.measure["unchanged_shifts"] == ["4", "8", "16"]
    # NUMERICS §1.2: 15.5, 18.7, 15.5 % of all results; sd over seeds .03 % at 2**20, six times that here
    shares = {k: narrow.measure["changed"][k] / narrow.measure["compared"][k] for k in ("1", "2", "3")}
    assert shares["1"] == pytest.approx(0.1548, abs=0.008)
    assert shares["2"] == pytest.approx(0.1868, abs=0.008)
    assert shares["3"] == pytest.approx(0.1549, abs=0.008)
    assert wide.verdict is Verdict.PASS  # binary32 is rounded plainly
    splits = of_kind(placement, view, "path_split")
    assert [found.verdict for found in splits] == [Verdict.PASS, Verdict.PASS]


# -------------------------------------------------------------------------------------------------------- shift_dependence


def test_shifts_apart_are_named_by_both_and_positions_counted() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        if trial.send_shift != trial.recv_shift:
            codes[6] ^= 1
        return codes

    trials = [at(send_shift=s, recv_shift=r) for s, r in ((0, 0), (2, 2), (0, 1))]
    found = finding(FakeView(trials, subject), "shift_dependence")
    assert found.measure["changed"] == {"0/1": 1, "2": 0}
    assert found.measure["changed_by_address_mod_16"]["14"] == 1  # (1 + 6) * 2 bytes
    assert [row.index for row in found.evidence] == [6]
    assert found.evidence[0].trial == trials[2].trial.trial_id


def test_a_forbidden_dependence_fails_and_its_absence_passes() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("toward_zero" if trial.recv_shift else "ties_to_even")(trial, repeat, rank)

    trials = [at(send_shift=k, recv_shift=k) for k in (0, 1)]
    assert (
        finding(FakeView(trials, subject, expect={"shift_dependence": False}), "shift_dependence").verdict
        is Verdict.FAIL
    )
    assert finding(FakeView(trials, subject), "shift_dependence").verdict is Verdict.INFORMATION
    assert (
        finding(FakeView(trials, correct(), expect={"shift_dependence": False}), "shift_dependence").verdict
        is Verdict.PASS
    )


def test_nothing_is_claimed_where_a_trial_does_not_repeat_itself() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("toward_zero" if trial.recv_shift and repeat else "ties_to_even")(trial, repeat, rank)

    found = finding(FakeView([at(send_shift=k, recv_shift=k) for k in (0, 1)], subject), "shift_dependence")
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_missing_rank_or_a_crash_is_no_basis() -> None:
    trials = [at(send_shift=k, recv_shift=k) for k in (0, 1)]
    crashed = FakeView(trials, correct(), details=lambda t, repeat, rank: {"status": "crash" if t.send_shift else "ok"})
    assert finding(crashed, "shift_dependence").verdict is Verdict.INCONCLUSIVE


def test_every_share_of_a_reduce_scatter_is_compared() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] ^= 1 if trial.recv_shift and rank == 3 else 0
        return codes

    trials = [at(collective="reduce_scatter", send_shift=k, recv_shift=k) for k in (0, 1)]
    found = finding(FakeView(trials, subject), "shift_dependence")
    assert found.measure["changed"] == {"1": 1}
    assert found.measure["compared"] == {"1": 4 * 64}
    assert found.evidence[0].rank == 3


def test_in_an_all_reduce_a_change_on_a_later_rank_is_seen() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] ^= 1 if trial.recv_shift and rank == 3 else 0
        return codes

    found = finding(FakeView([at(send_shift=k, recv_shift=k) for k in (0, 1)], subject), "shift_dependence")
    assert found.measure["changed"] == {"1": 1}


# ------------------------------------------------------------------------------------- count_dependence, in_place_difference


def test_a_switch_of_order_lies_between_the_counts_that_are_named() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return summed(
            trial, repeat, rank, trees.chain(range(4)) if trial.call.count < 200 else trees.recursive_doubling(4)
        )

    trials = [at(count=n) for n in (0, 1, 64, 128, 256, 512)]
    found = finding(FakeView(trials, subject), "count_dependence")
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["changed_between"] == [[128, 256]]
    assert not found.measure["only_in_last_word"]
    assert found.measure["by_step"]["128-256"]["compared"] == 128


def test_a_different_last_element_is_told_from_a_switch() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[-1] ^= 1
        return codes

    found = finding(FakeView([at(count=n) for n in (64, 128)], subject), "count_dependence")
    assert found.measure["only_in_last_word"]
    assert "last 16-byte word" in found.claim


def test_only_the_first_share_is_compared_across_counts() -> None:
    trials = [at(collective="reduce_scatter", count=n) for n in (16, 32)]
    found = finding(FakeView(trials, correct()), "count_dependence")
    assert (found.verdict, found.measure["elements_compared"]) == (Verdict.PASS, 16)


def test_in_place_is_compared_with_out_of_place() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("toward_zero" if trial.in_place else "ties_to_even")(trial, repeat, rank)

    found = finding(FakeView([at(in_place=flag) for flag in (False, True)], subject), "in_place_difference")
    assert found.verdict is Verdict.INFORMATION
    assert found.evidence[0].trial == at(in_place=True).trial.trial_id


def test_what_the_library_refuses_in_place_is_not_a_question_of_this_probe() -> None:
    """The refusal is a finding of its own, with the library's words; here it would only outrank what was measured."""
    planned = [at(in_place=flag) for flag in (False, True)]
    view = FakeView(planned, correct(), details=lambda trial, *_: {"status": "unsupported"} if trial.in_place else {})
    assert "in_place_difference" not in {found.kind for found in placement.analyze(view)}


def test_in_place_terms_left_alone_are_no_difference() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[-2:] = before(trial, repeat, rank)[-2:]
        return codes

    found = finding(FakeView([at(in_place=flag) for flag in (False, True)], subject), "in_place_difference")
    assert found.verdict is Verdict.PASS


def test_questions_that_the_sweep_does_not_ask_are_left_out() -> None:
    assert not list(placement.analyze(FakeView([at()], correct())))


# ----------------------------------------------------------------------------------------------------- position_dependence


def test_tiles_across_shares_tell_the_owner_s_order() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return summed(trial, repeat, rank, trees.chain([(rank + i) % 4 for i in range(4)]))

    trials = [at(collective="reduce_scatter", count=104, tiled=8)]
    found = finding(FakeView(trials, subject), "position_dependence")
    assert (found.verdict, found.measure["orders"]) == (Verdict.INFORMATION, 4)
    assert found.measure["by_tile"]["1"]["changed"] == 0  # the second half of the first share
    assert found.measure["by_tile"]["2"]["changed"] > 0
    assert all(row.observed != row.expected for row in found.evidence)
    assert sum(found.measure["changed_by_address_mod_16"].values()) == found.measure["elements_changed"]
    assert sum(found.measure["compared_by_address_mod_16"].values()) == found.measure["elements_compared"] == 7 * 52


# -------------------------------------------------------------------------------------------------------------- path_split


def edges_differ(word: int) -> Any:
    """Hop by hop where an element stands in a partial word, one rounding elsewhere."""

    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        start, stop = body(trial, rank, word)
        scalar = summed(trial, repeat, rank, trees.chain(range(4)))
        index = np.arange(trial.call.count)
        edge = (index < start) | (index >= stop)
        codes[edge] = scalar[edge]
        return codes

    return subject


@pytest.mark.parametrize("word", [4, 16, 64])
def test_partial_words_summed_by_another_rule_are_a_path_split(word: int) -> None:
    trials = [at(count=n, send_shift=k, recv_shift=k) for n in (9, 1021, 1026) for k in (0, 1, 3, 4)]
    found = finding(FakeView(trials, edges_differ(word)), "path_split")
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["word_bytes"] == word
    assert found.measure["changed_in_head"] > 0
    assert found.measure["changed_in_tail"] > 0 or word == 4  # one element a range, and its sums may agree


def test_a_dependence_all_over_the_range_is_no_path_split() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("toward_zero" if trial.recv_shift == 1 else "ties_to_even")(trial, repeat, rank)

    trials = [at(count=n, send_shift=k, recv_shift=k) for n in (9, 1021) for k in (0, 1, 3, 4)]
    found = finding(FakeView(trials, subject), "path_split")
    assert found.verdict is Verdict.PASS
    assert "not confined" in found.claim


def test_one_change_at_an_edge_may_be_luck() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] ^= 1 if trial.recv_shift else 0
        return codes

    trials = [at(count=20, send_shift=k, recv_shift=k) for k in (0, 1)]
    assert finding(FakeView(trials, subject), "path_split").verdict is Verdict.PASS


def test_results_that_differ_with_the_reported_path_are_named() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("toward_zero" if trial.call.count > 100 else "ties_to_even")(trial, repeat, rank)

    view = FakeView(
        [at(count=n) for n in (64, 128)],
        subject,
        details=lambda t, repeat, rank: {"path": "RING" if t.call.count > 100 else "TREE"},
    )
    found = finding(view, "path_split")
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["reported_paths"] == [{"paths": ["TREE", "RING"], "pairs": 1}]


def test_body_of_a_range() -> None:
    trial = a_trial("wide", count=20, send_shift=3, recv_shift=3)
    assert body(trial, 0, 16) == (5, 13)  # elements 3..22 by address: full words 8..15 and 16..23, the second cut
    assert body(trial.with_(count=4), 0, 16) == (0, 0)
    assert body(trial.with_(send_shift=0, recv_shift=0), 0, 16) == (0, 16)
    assert FORMATS["bfloat16"].itemsize == 2


def test_planned_merges_by_content() -> None:
    trials = planned(placement.plan(scope()), "placement")
    assert len({p.trial.trial_id for p in trials}) == len(trials)
