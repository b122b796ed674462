"""Repeatability: same inputs, same bits? Clean subjects pass; each planted change is named, with its rate, place and rank."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from driven_view import drive, of_kind, verdicts
from fake_view import FakeView, a_trial, before, correct, one, planned
from outside_subjects import Clean, Disagrees, FlipsEveryTenth, LeavesTail

from auditor import inputs
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Capabilities, Codes, Finding, Planned, Trial, Verdict
from auditor.probes import repeatability
from auditor.probes.statistics import clopper_pearson

SWEEP = Sweep(
    collective=("all_reduce", "reduce_scatter"),
    format=("bfloat16",),
    count=(0, 1, 9, 1026),
    shift=((0, 0), (1, 1), (8, 8)),
    in_place=(False, True),
    repeats=4,
    seed=(7,),
)


def scope(features: tuple[str, ...] = (), **changes: Any) -> Scope:
    offer = Capabilities(
        collectives=frozenset({"all_reduce", "reduce_scatter"}),
        ops=frozenset({"sum"}),
        formats=frozenset({"bfloat16", "binary32"}),
        features=frozenset(features),
    )
    sweep = Sweep(**{**{f: getattr(SWEEP, f) for f in SWEEP.__dataclass_fields__}, **changes})
    return Scope(ArmSpec(name="a", backend="fake", ranks=4), offer, sweep)


def finding(view: FakeView, kind: str) -> Finding:
    (found,) = [f for f in repeatability.analyze(view) if f.kind == kind]
    return found


def flipped(codes: Codes, index: int = 0) -> Codes:
    codes = codes.copy()
    codes[index] ^= 1
    return codes


# ------------------------------------------------------------------------------------------------------------------ plan


def test_plan_covers_every_point_and_the_telling_circumstances() -> None:
    trials = dict(repeatability.plan(scope(("history", "recreate"))))
    plain = [t for t in trials if t.variant == "plain" and t.inputs == "same"]
    assert len(plain) == 2 * 3 * 3 * 2  # count 0 has nothing to compare
    assert {str(t.family) for t in trials} == {"wide"}
    assert max(trials[t] for t in plain) == repeatability.MANY
    assert all(n >= repeatability.ALTERNATE for t, n in trials.items() if t.inputs == "alternate")
    assert {t.variant for t in trials} == {"plain", "fresh:3", "history:1", "history:2", "history:3", "recreate:2"}
    assert {n for t, n in trials.items() if t.variant.startswith(("fresh", "recreate"))} == {3}


def test_plan_takes_the_configs_family_and_only_offered_features() -> None:
    trials = list(repeatability.plan(scope(family=(a_trial("report132").family,))))
    assert {str(t.family) for t, _ in trials} == {"report132"}
    assert {t.variant.partition(":")[0] for t, _ in trials} == {"plain", "fresh"}


def test_plan_repeats_at_least_twice() -> None:
    assert min(n for _, n in repeatability.plan(scope(repeats=1))) == 2


# ------------------------------------------------------------------------------------------------------------ whole subjects


def test_a_clean_subject_passes_everywhere_with_a_bound() -> None:
    view = drive(Clean, SWEEP, [repeatability])
    assert {v for seen in verdicts(repeatability, view).values() for v in seen} == {"PASS"}
    for found in of_kind(repeatability, view, "not_repeatable"):
        calls = found.measure["calls_compared"]
        assert found.measure["rate_per_call_bounds_95"] == list(clopper_pearson(0, calls))
        assert found.measure["most_repeats"] == 20
        assert not found.evidence


def test_every_tenth_call_is_not_repeatable_and_nothing_else() -> None:
    view = drive(FlipsEveryTenth, SWEEP, [repeatability])
    seen = verdicts(repeatability, view)
    assert seen["not_repeatable"] == {"FAIL"}
    assert seen["rank_disagreement"] == {"PASS"}  # all ranks flip alike
    for found in of_kind(repeatability, view, "not_repeatable"):
        low, high = found.measure["rate_per_call_bounds_95"]
        assert low < 0.12
        assert high > 0.08
        assert {row.index for row in found.evidence} == {0}
        assert all(int(row.observed, 16) ^ int(row.expected, 16) == 1 for row in found.evidence)


def test_own_term_first_is_rank_disagreement_and_nothing_else() -> None:
    view = drive(Disagrees, SWEEP, [repeatability])
    seen = verdicts(repeatability, view)
    assert seen["rank_disagreement"] == {"FAIL"}
    assert seen["not_repeatable"] == {"PASS"}
    assert "no rank is the odd one out" in of_kind(repeatability, view, "rank_disagreement")[0].claim


def test_elements_left_unwritten_are_not_called_disagreement() -> None:
    view = drive(LeavesTail, SWEEP, [repeatability])  # in place every rank keeps its own term
    assert {v for seen in verdicts(repeatability, view).values() for v in seen} == {"PASS"}


# ---------------------------------------------------------------------------------------------------------- not_repeatable


def test_changes_are_counted_by_address_and_only_at_unaligned_starts() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank)
        return flipped(codes, 3) if trial.recv_shift == 1 and repeat % 2 else codes

    trials = [one("wide", 10, "repeatability", send_shift=k, recv_shift=k) for k in (0, 1, 8)]
    found = finding(FakeView(trials, subject), "not_repeatable")
    assert found.verdict is Verdict.FAIL
    assert found.measure["calls_changed"] == 5
    assert found.measure["calls_compared"] == 27
    assert found.measure["by_base_mod_16"] == {
        "0/0": {"changed": 0, "compared": 18},
        "2/2": {"changed": 5, "compared": 9},
    }
    assert found.measure["changed_by_address_mod_16"]["8"] == 10  # (1 + 3) * 2 bytes, on two ranks
    assert sum(found.measure["changed_by_address_mod_16"].values()) == found.measure["elements_changed"] == 10
    assert sum(found.measure["compared_by_address_mod_16"].values()) == found.measure["elements_compared"]
    assert found.scope["send_shift"] == 1


def test_the_place_of_a_few_changes_is_not_overstated() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank)
        return flipped(codes) if trial.recv_shift == 1 and repeat == 2 else codes

    trials = [one("wide", 10, "repeatability", send_shift=k, recv_shift=k) for k in (0, 1)]
    assert "only where" not in finding(FakeView(trials, subject), "not_repeatable").claim


def test_alternating_inputs_are_compared_with_the_same_inputs() -> None:
    trials = [one("wide", 6, "repeatability", inputs="alternate")]
    assert finding(FakeView(trials, correct()), "not_repeatable").measure["calls_compared"] == 4

    def stale(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct()(trial, repeat - 1 if repeat == 3 else repeat, rank)

    found = finding(FakeView(trials, stale), "not_repeatable")
    assert (found.verdict, found.measure["calls_changed"]) == (Verdict.FAIL, 1)
    assert {row.repeat for row in found.evidence} == {3}


def test_trials_of_other_probes_count_too() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return flipped(correct()(trial, repeat, rank)) if repeat == 1 else correct()(trial, repeat, rank)

    found = finding(FakeView([one("order_exact", 3, "coverage")], subject), "not_repeatable")
    assert found.verdict is Verdict.FAIL


def test_an_element_written_only_sometimes_is_not_repeatable() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        if repeat == 2:
            codes[-1] = before(trial, repeat, rank)[-1]
        return codes

    assert finding(FakeView([one("wide", 5)], subject), "not_repeatable").verdict is Verdict.FAIL


def test_a_repeat_whose_input_was_spoilt_is_left_out() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return flipped(correct()(trial, repeat, rank)) if repeat == 1 else correct()(trial, repeat, rank)

    view = FakeView(
        [one("wide", 4)], subject, details=lambda t, repeat, rank: {"send_before": not (repeat == 1 and rank)}
    )
    found = finding(view, "not_repeatable")
    assert (found.verdict, found.measure["calls_compared"]) == (Verdict.PASS, 2)


def test_expectation_makes_it_legal() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return flipped(correct()(trial, repeat, rank)) if repeat else correct()(trial, repeat, rank)

    view = FakeView([one("wide", 3)], subject, expect={"not_repeatable": True})
    assert finding(view, "not_repeatable").verdict is Verdict.INFORMATION


@pytest.mark.parametrize("status", ["crash", "hang", "error"])
def test_without_results_nothing_is_said(status: str) -> None:
    view = FakeView([one("wide", 3)], correct(), details=lambda *_: {"status": status})
    for kind in ("not_repeatable", "rank_disagreement"):
        found = finding(view, kind)
        assert found.verdict is Verdict.INCONCLUSIVE
        assert status in found.claim


def test_one_repeat_is_inconclusive() -> None:
    assert finding(FakeView([one("wide", 1)], correct()), "not_repeatable").verdict is Verdict.INCONCLUSIVE


# ------------------------------------------------------------------------------------------------------- rank_disagreement


def odd_rank(odd: int, calls: tuple[int, ...] = (0, 1, 2)) -> Any:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank)
        return flipped(codes, 5) if rank == odd and repeat in calls else codes

    return subject


def test_the_odd_rank_out_is_named_by_majority() -> None:
    found = finding(FakeView([one("wide", 3, rank_n=4)], odd_rank(2, (1,))), "rank_disagreement")
    assert found.verdict is Verdict.FAIL
    assert found.measure["suspect_ranks"] == {"2": 1}
    assert found.measure["calls_changed"] == 1
    assert "rank 2 is the odd one out" in found.claim
    assert [(row.rank, row.repeat, row.index) for row in found.evidence] == [(2, 1, 5)]


def test_of_two_ranks_the_one_whose_bits_are_no_rounding_is_named() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[5] ^= 8 if rank == 0 else 0
        return codes

    found = finding(FakeView([one("wide", 3)], subject), "rank_disagreement")
    assert found.measure["suspect_ranks"] == {"0": 3}


def test_two_legal_roundings_name_nobody() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return correct("ties_to_even" if rank else "toward_zero")(trial, repeat, rank)

    found = finding(FakeView([one("wide", 2)], subject), "rank_disagreement")
    assert (found.verdict, found.measure["suspect_ranks"]) == (Verdict.FAIL, {})
    assert found.measure["calls_without_majority"] == 2


def test_nan_payloads_alone_are_legal_and_said_so() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] = 0x7FC0 + rank
        return codes

    found = finding(FakeView([one("wide", 2)], subject), "rank_disagreement")
    assert found.verdict is Verdict.INFORMATION
    assert "payloads" in found.claim
    forbidden = FakeView([one("wide", 2)], subject, expect={"rank_disagreement": False})
    assert finding(forbidden, "rank_disagreement").verdict is Verdict.FAIL


def test_nan_on_one_rank_only_is_disagreement() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] = 0x7FC0 if rank else codes[0]
        return codes

    assert finding(FakeView([one("wide", 2)], subject), "rank_disagreement").verdict is Verdict.FAIL


def test_ranks_that_differ_only_with_foreign_bytes_are_the_tail_probes() -> None:
    def reads_own_tail(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank)
        return flipped(codes, -1) if trial.tail != "zero" and rank else codes

    trials = [one("wide", 2, count=n, tail=fill) for n in range(20, 32) for fill in ("zero", "nan")]
    found = finding(FakeView(trials, reads_own_tail), "rank_disagreement")
    assert found.verdict is Verdict.INFORMATION
    assert "foreign_read" in found.claim


def test_one_rank_has_nobody_to_disagree_with() -> None:
    found = finding(FakeView([one("wide", 2, rank_n=1)], correct()), "rank_disagreement")
    assert found.verdict is Verdict.WAIVED


def test_unwritten_in_place_is_not_disagreement_even_where_own_terms_look_legal() -> None:
    def keeps_own(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[-3:] = before(trial, repeat, rank)[-3:]
        return codes

    trials = [one("wide", 2, in_place=True, format="float8_e4m3fn", seed=seed, count=8) for seed in range(40)]
    assert finding(FakeView(trials, keeps_own), "rank_disagreement").verdict is Verdict.PASS


def test_shares_of_a_reduce_scatter_are_not_compared() -> None:
    kinds = {f.kind for f in repeatability.analyze(FakeView([one("wide", 2, collective="reduce_scatter")], correct()))}
    assert kinds == {"not_repeatable"}


# ---------------------------------------------------------------------------------------- fresh_process, history_dependence


def in_variant(name: str, base: int = 5) -> list[Planned]:
    trial = a_trial("wide")
    return planned([(trial, base), (trial.with_(variant=name), 3)], "repeatability")


def test_a_fresh_process_that_differs_is_information() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank)
        return flipped(codes) if trial.variant == "fresh:3" and repeat == 1 else codes

    view = FakeView(in_variant("fresh:3"), subject)
    found = finding(view, "fresh_process")
    assert (found.verdict, found.measure["calls_changed"], found.measure["calls"]) == (Verdict.INFORMATION, 1, 3)
    assert finding(view, "not_repeatable").verdict is Verdict.PASS
    asked = FakeView(in_variant("fresh:3"), subject, expect={"fresh_process": False})
    assert finding(asked, "fresh_process").verdict is Verdict.FAIL


def test_fresh_processes_that_agree_pass() -> None:
    assert finding(FakeView(in_variant("fresh:3"), correct()), "fresh_process").verdict is Verdict.PASS


def test_a_difference_that_flips_explain_is_not_laid_at_the_process() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        odd = trial.seed == 8 and repeat % 2 if trial.variant == "plain" else repeat == 1
        return flipped(correct()(trial, repeat, rank)) if odd else correct()(trial, repeat, rank)

    noisy = one("wide", 8, "repeatability", seed=8)
    found = finding(FakeView([*in_variant("fresh:3"), noisy], subject), "fresh_process")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "identical calls" in found.claim


def test_without_a_repeatable_plain_call_nothing_is_said() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        return (
            flipped(correct()(trial, repeat, rank), repeat)
            if trial.variant == "plain"
            else correct()(trial, repeat, rank)
        )

    assert finding(FakeView(in_variant("fresh:3"), subject), "fresh_process").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("variant", ["history:1", "recreate:2"])
def test_history_that_decides_the_order_is_information(variant: str) -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        odd = trial.variant == "history:1" or (trial.variant == "recreate:2" and repeat > 0)
        return correct("toward_zero" if odd else "ties_to_even")(trial, repeat, rank)

    view = FakeView(in_variant(variant), subject)
    found = finding(view, "history_dependence")
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["by_variant"][variant]["calls_changed"] == (3 if variant == "history:1" else 2)
    assert finding(view, "not_repeatable").verdict is Verdict.PASS


class OrderByParity(Clean):
    """NCCL issue 2360: the order of the sum follows the parity of the other communicators alive."""

    others = 0

    @classmethod
    def probe(cls, options: Any) -> Capabilities:
        base = super().probe(options)
        return Capabilities(
            collectives=base.collectives, ops=base.ops, formats=base.formats, features=frozenset({"history"})
        )

    def perturb(self, side_communicators: int) -> None:
        self.others = side_communicators

    def total(self, terms: Any, rank: int) -> Any:
        total = None
        for term in list(terms.values())[:: -1 if self.others % 2 else 1]:
            total = term if total is None else (total + term).astype(ml_dtypes.bfloat16).astype(np.float32)
        return total


def test_parity_of_live_communicators() -> None:
    view = drive(OrderByParity, SWEEP, [repeatability])
    for found in of_kind(repeatability, view, "history_dependence"):
        changed = {name: row["elements_changed"] > 0 for name, row in found.measure["by_variant"].items()}
        assert changed == {"history:1": True, "history:2": False, "history:3": True}
        assert found.verdict is Verdict.INFORMATION


def test_evidence_rows_show_every_members_input() -> None:
    found = finding(FakeView([one("wide", 3, rank_n=4)], odd_rank(1)), "rank_disagreement")
    row = found.evidence[0]
    trial = a_trial("wide", rank_n=4)
    wanted = [f"0x{int(inputs.send_codes(trial, 0, r, 5, 6)[0]):04x}" for r in range(4)]
    assert list(row.inputs) == wanted
