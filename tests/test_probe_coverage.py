"""Coverage: each planted fault is named by its kind and by no other FAIL; clean subjects get none."""

from __future__ import annotations

import numpy as np
import outside_subjects
import pytest
from driven_view import drive
from fake_view import FakeView, a_trial, before, correct, one, planned

from auditor import inputs
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Capabilities, Finding, OutsideByte, Trial, Verdict
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import round_sums
from auditor.probes import common, coverage, legal, rounding, statistics, unwritten
from auditor.probes.expected import block, is_faithful

GOOD = correct()
EVERYTHING = Capabilities(
    collectives=frozenset(("all_reduce", "reduce_scatter", "reduce")),
    ops=frozenset(("sum", "avg", "min", "max")),
    formats=frozenset(("binary64", "binary32", "binary16", "bfloat16", "float8_e4m3fn", "float8_e5m2")),
)


def plan_of(ranks: int = 4, **axes: object) -> list:
    sweep = {
        "format": ("bfloat16",),
        "count": (1, 9, 67),
        "shift": ((0, 0), (1, 1)),
        "repeats": 3,
        "seed": (7,),
        **axes,
    }
    scope = Scope(ArmSpec(name="a", backend="fake", ranks=ranks), EVERYTHING, Sweep(**sweep))
    return planned(coverage.plan(scope), "coverage")


def audit(output, plan=None, **more) -> list[Finding]:
    return list(coverage.analyze(FakeView(plan or plan_of(), output, **more)))


def fails(findings: list[Finding]) -> set[str]:
    return {f.kind for f in findings if f.verdict is Verdict.FAIL}


def sum_of(trial: Trial, terms) -> np.ndarray:
    return round_sums(trial.call.fmt, exact_sums(trial.call.fmt, terms), "ties_to_even")


def receives(trial: Trial, rank: int) -> bool:
    return rank in trial.call.receivers(trial.rank_n)


def terms_of(trial: Trial, repeat: int, rank: int) -> list[np.ndarray]:
    return inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))


# ------------------------------------------------------------------------------------------------------------- clean


@pytest.mark.parametrize(
    ("collective", "mode"),
    [("all_reduce", "toward_zero"), ("reduce_scatter", "ties_to_even"), ("reduce", "toward_negative")],
)
def test_clean_subject_has_no_fail(collective: str, mode: str) -> None:
    plan = plan_of(
        collective=(collective,),
        format=("bfloat16", "float8_e5m2", "binary64"),
        in_place=(False, True),
        count=(0, 1, 9),
        group=(None, (3, 1)),
    )
    found = audit(correct(mode), plan)
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert {f.kind for f in found} == set(coverage.KINDS)
    assert all(f.measure["observations"] > 0 for f in found)


def test_clean_with_more_ranks_than_bits_takes_passes() -> None:
    plan = plan_of(ranks=9, count=(5,))
    assert {str(p.trial.family) for p in plan} >= {"rank_coded", "rank_coded:pass=1"}
    assert not fails(audit(GOOD, plan))


@pytest.mark.parametrize("op", ["min", "max", "avg"])
def test_other_ops_are_checked(op: str) -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        values = np.stack([t.view(np.float32).astype(np.float64) for t in terms_of(trial, repeat, rank)])
        result = {"min": values.min(axis=0), "max": values.max(axis=0), "avg": values.mean(axis=0)}[op]
        return result.astype(np.float32).view(np.uint32)

    plan = plan_of(op=(op,), format=("binary32",))
    assert not fails(audit(output, plan))

    def off(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = output(trial, repeat, rank).copy()
        codes[-1:] ^= 1 << 20
        return codes

    assert fails(audit(off, plan)) == {"wrong_value"}


def test_values_are_off_limits_for_the_sign_of_zero() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank).copy()
        codes[codes == 0] = 0x8000
        return codes

    assert not fails(audit(output, [one("order_exact", inputs="alternate", count=3000)]))


# --------------------------------------------------------------------------------------------------------- unwritten


def unwritten_tail(trial: Trial, repeat: int, rank: int) -> np.ndarray:
    if not receives(trial, rank):
        return before(trial, repeat, rank)
    codes = GOOD(trial, repeat, rank).copy()
    if trial.send_shift % 2:
        codes[-1:] = before(trial, repeat, rank)[-1:]
    return codes


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("all_reduce", "bfloat16"),
        ("all_reduce", "float8_e4m3fn"),
        ("reduce_scatter", "float8_e5m2"),
        ("reduce", "binary32"),
    ],
)
def test_unwritten_tail(collective: str, name: str) -> None:
    plan = plan_of(collective=(collective,), format=(name,), in_place=(False, True))
    found = audit(unwritten_tail, plan)
    assert fails(found) == {"unwritten"}
    (row,) = [f for f in found if f.kind == "unwritten"]
    assert row.scope["send_shift"] == 1
    assert row.evidence
    assert row.evidence[0].inputs


def test_unwritten_mask_serves_other_trials_of_the_same_point() -> None:
    plan = plan_of()
    other = one("wide", probe="placement", count=67, rank_n=4, send_shift=1, recv_shift=1)
    view = FakeView([*plan, other], unwritten_tail)
    assert np.flatnonzero(unwritten.unwritten_mask(view, other.trial, 2)).tolist() == [66]
    still = one("wide", probe="placement", count=67, rank_n=4)
    view = FakeView([*plan, still], unwritten_tail)
    assert not unwritten.unwritten_mask(view, still.trial, 2).any()


def test_suspect_by_its_own_prefill_without_coverage() -> None:
    other = one("wide", probe="placement", count=67, rank_n=4, send_shift=1, recv_shift=1)
    view = FakeView([other], unwritten_tail)
    assert np.flatnonzero(unwritten.unwritten_mask(view, other.trial, 0)).tolist() == [66]


def test_nothing_written_on_every_fifth_call() -> None:
    calls: dict[tuple, int] = {}

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        number = calls.setdefault((trial.trial_id, repeat), len(calls))
        return before(trial, repeat, rank) if number % 5 == 4 else GOOD(trial, repeat, rank)

    assert fails(audit(output)) == {"unwritten"}


def test_a_nan_result_in_eight_bits_is_not_called_unwritten() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return np.full(trial.call.count, 0x7F, np.uint8)

    assert fails(audit(output, plan_of(format=("float8_e4m3fn",)))) == {"wrong_value"}


# ------------------------------------------------------------------------------------------------------------ terms


def without(missing, when=lambda trial, repeat, rank: True):
    """Leaves out the terms of the positions that ``missing(trial, rank)`` gives."""

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        if not receives(trial, rank) or not when(trial, repeat, rank):
            return GOOD(trial, repeat, rank) if receives(trial, rank) else before(trial, repeat, rank)
        terms = [t for i, t in enumerate(terms_of(trial, repeat, rank)) if i not in missing(trial, rank)]
        return sum_of(trial, terms)

    return output


@pytest.mark.parametrize(
    ("collective", "name"),
    [("all_reduce", "bfloat16"), ("all_reduce", "binary64"), ("reduce_scatter", "float8_e5m2"), ("reduce", "binary16")],
)
def test_missing_term(collective: str, name: str) -> None:
    plan = plan_of(collective=(collective,), format=(name,), in_place=(False, True), ranks=3)
    found = audit(without(lambda trial, rank: {2}), plan)
    assert fails(found) == {"missing_term"}
    (row,) = [f for f in found if f.kind == "missing_term"]
    assert any("rank 2" in how for how in row.measure["how"])


def test_missing_with_two_ranks_in_place_is_not_called_unwritten() -> None:
    plan = plan_of(ranks=2, in_place=(False, True))
    assert fails(audit(without(lambda trial, rank: {0}), plan)) == {"missing_term"}


def test_a_rank_that_gets_only_its_own_data() -> None:
    alone = without(lambda trial, rank: {0, 1, 2, 3} - {rank}, lambda trial, repeat, rank: rank == 3)
    found = audit(alone)
    assert fails(found) == {"missing_term"}
    assert [f.measure["ranks"] for f in found if f.kind == "missing_term"] == [[3]]


def test_missing_now_and_then() -> None:
    rare = without(lambda trial, rank: {1}, lambda trial, repeat, rank: repeat == 2)
    found = audit(rare)
    assert fails(found) == {"missing_term"}
    assert [f.measure["repeats"] for f in found if f.kind == "missing_term"] == [[2]]


def test_missing_by_chunk() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        terms = np.stack(terms_of(trial, repeat, rank))
        for i in range(trial.call.count):
            terms[(i // 4) % 4, i] = 0
        return sum_of(trial, list(terms))

    assert fails(audit(output)) == {"missing_term"}


def test_missing_in_the_second_pass_of_many_ranks() -> None:
    assert fails(audit(without(lambda trial, rank: {8}), plan_of(ranks=10, count=(33,)))) == {"missing_term"}


@pytest.mark.parametrize("name", ["bfloat16", "binary32"])
def test_duplicate_term(name: str) -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        terms = terms_of(trial, repeat, rank)
        return sum_of(trial, [*terms, terms[1]])

    assert fails(audit(output, plan_of(format=(name,)))) == {"duplicate_term"}


def test_one_rank_twice_in_another_ones_place() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        terms = terms_of(trial, repeat, rank)
        return sum_of(trial, [terms[0], terms[1], terms[1], terms[3]])

    assert fails(audit(output)) == {"duplicate_term"}


# ------------------------------------------------------------------------------------------------------------ stale


def stale_subject(plan, *, whole: bool, lag: int = 1):
    order = [(p.trial, r) for p in plan for r in range(p.repeats)]
    at = {(t.trial_id, r): i for i, (t, r) in enumerate(order)}

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        good = GOOD(trial, repeat, rank).copy()
        i = at[trial.trial_id, repeat] - lag
        if i < 0:
            return good
        old, old_repeat = order[i]
        n = min(old.call.count, trial.call.count)
        if whole:
            good[:n] = GOOD(old, old_repeat, rank)[:n]
            return good
        terms = [t.copy() for t in terms_of(trial, repeat, rank)]
        terms[1][:n] = inputs.send_codes(old, old_repeat, trial.members[1], 0, old.call.count)[:n]
        return sum_of(trial, terms)

    return output


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("lag", [1, 2])
def test_stale_data_of_an_earlier_call(whole: bool, lag: int) -> None:
    plan = plan_of(count=(9, 67))
    assert fails(audit(stale_subject(plan, whole=whole, lag=lag), plan)) == {"stale_term"}


# ----------------------------------------------------------------------------------------------------------- prefill


@pytest.mark.parametrize("name", ["bfloat16", "binary32", "binary64", "float8_e5m2"])
def test_accumulating_into_the_prefill(name: str) -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        terms = terms_of(trial, repeat, rank)
        if trial.in_place:
            return sum_of(trial, terms)
        return sum_of(trial, [*terms, before(trial, repeat, rank)])  # arithmetic makes a signalling NaN quiet

    plan = plan_of(format=(name,), in_place=(False, True))
    assert fails(audit(output, plan)) == {"prefill_leak"}


def test_prefill_times_zero() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank).copy()
        if trial.prefill != "finite":
            codes[-1:] = trial.call.fmt.nan_code
        return codes

    assert fails(audit(output)) == {"prefill_leak"}


# ------------------------------------------------------------------------------------------------------- wrong values


def test_flipped_bits_are_wrong_values() -> None:
    rng = np.random.default_rng(0)
    flips = {}

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank).copy()
        key = (trial.trial_id, repeat, rank)
        if key not in flips:
            flips[key] = (int(rng.integers(trial.call.count)), int(rng.integers(16)), bool(rng.random() < 0.2))
        index, bit, now = flips[key]
        if now:
            codes[index] ^= 1 << bit
        return codes

    assert fails(audit(output)) == {"wrong_value"}


def test_lowest_bit_flipped_every_tenth_call() -> None:
    calls: dict[tuple, int] = {}

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank).copy()
        if calls.setdefault((trial.trial_id, repeat), len(calls)) % 10 == 9:
            codes[0] ^= 1
        return codes

    assert fails(audit(output, plan_of(count=(1, 2, 9, 67, 80)))) == {"wrong_value"}


def test_displaced_data_are_said_to_be() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank)
        return np.concatenate([codes[1:], codes[-1:]])

    found = audit(output, plan_of(count=(67,)))
    assert fails(found) == {"wrong_value"}
    assert [f.measure["displaced_by"] for f in found if f.kind == "wrong_value"] == [1]


def test_bound_catches_a_narrow_path_on_other_probes_data() -> None:
    def through_binary16(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        sums = GOOD(trial, repeat, rank).view(np.float32)
        return np.where(np.abs(sums) > 16, np.float32(np.inf), sums).view(np.uint32)

    other = one("wide:dist=lognormal", probe="rounding", format="binary32", count=512, rank_n=3)
    assert fails(audit(through_binary16, [other])) == {"wrong_value"}
    assert not fails(audit(GOOD, [other]))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "binary64"])
def test_bound_lets_hop_rounding_pass(name: str) -> None:
    def hops(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        total, *rest = terms_of(trial, repeat, rank)
        for term in rest:
            total = round_sums(trial.call.fmt, exact_sums(trial.call.fmt, [total, term]), "away_from_zero")
        return total

    plan = [
        one(f, probe="rounding", format=name, count=4000, rank_n=8)
        for f in ("wide", "wide:dist=lognormal", "report132")
    ]
    assert not fails(audit(hops, plan))


def test_foreign_fills_are_left_to_the_tail_probe() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = GOOD(trial, repeat, rank).copy()
        if trial.tail == "nan":
            codes[-1] = trial.call.fmt.nan_code
        return codes

    assert not fails(audit(output, [*plan_of(), one("order_exact", probe="tail", tail="nan")]))


# ------------------------------------------------------------------------------------------------- outside the range


def test_overrun_and_send_modified_come_from_the_guards() -> None:
    past = OutsideByte(buffer="recv", offset=134, expected=1, found=2)
    found = audit(GOOD, details=lambda t, j, r: {"outside": (past,), "outside_total": 1} if t.call.count == 67 else {})
    assert fails(found) == {"overrun"}
    (row,) = [f for f in found if f.kind == "overrun"]
    assert row.measure["offsets"] == [134, 134]
    assert row.evidence[0].index == 67
    assert fails(audit(GOOD, details=lambda t, j, r: {"send_after": r != 1})) == {"send_modified"}


def test_rest_of_an_in_place_reduce_scatter_is_scratch() -> None:
    plan = plan_of(collective=("reduce_scatter",), in_place=(True,), count=(9,), shift=((0, 0),))
    inside = OutsideByte(buffer="send", offset=20, expected=1, found=2)
    found = audit(GOOD, plan, details=lambda t, j, r: {"outside": (inside,), "outside_total": 1} if r == 0 else {})
    assert not fails(found)
    assert [f.verdict for f in found if f.kind == "send_modified"] == [Verdict.INFORMATION]
    beyond = OutsideByte(buffer="send", offset=4 * 18, expected=1, found=2)
    assert fails(
        audit(GOOD, plan, details=lambda t, j, r: {"outside": (beyond,), "outside_total": 1} if r == 0 else {})
    ) == {"overrun"}


def test_ranks_that_receive_nothing_must_keep_their_range() -> None:
    def everybody(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return sum_of(trial, inputs.terms(trial, repeat, 0, trial.call.count))

    found = audit(everybody, plan_of(collective=("reduce",)))
    assert fails(found) == {"overrun"}
    assert [f.measure["bystanders"] for f in found if f.kind == "overrun"] == [[1, 2, 3]]


# ------------------------------------------------------------------------------------------- subjects from the outside


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("Clean", set()),
        ("Truncates", set()),
        ("ReadsPast", set()),
        ("LeavesTail", {"unwritten"}),
        ("WritesPast", {"overrun"}),
        ("DropsRank", {"missing_term"}),
        ("CountsTwice", {"duplicate_term"}),
        ("UsesStale", {"stale_term"}),
        ("AddsToPrefill", {"prefill_leak"}),
        ("ScratchesInput", {"send_modified"}),
    ],
)
def test_outside_subjects_through_the_harness(name: str, kinds: set[str]) -> None:
    sweep = Sweep(
        collective=("all_reduce", "reduce_scatter"),
        format=("bfloat16",),
        count=(1, 9, 66),
        shift=((0, 0), (1, 1)),
        in_place=(False, True),
        repeats=3,
    )
    view = drive(getattr(outside_subjects, name), sweep, [coverage, rounding])
    assert fails([*coverage.analyze(view), *rounding.analyze(view)]) == kinds


# ---------------------------------------------------------------------------------------------------- absence of data


def test_no_usable_observation_is_inconclusive() -> None:
    found = audit(GOOD, details=lambda t, j, r: {"status": "crash"})
    assert {f.verdict for f in found} == {Verdict.INCONCLUSIVE}
    assert "crash" in found[0].claim


def test_corrupt_inputs_are_not_the_subjects() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return GOOD(trial, repeat, rank) ^ (1 if repeat == 1 else 0)

    assert not fails(audit(output, details=lambda t, j, r: {"send_before": j != 1}))


def test_expectation_makes_a_kind_legal() -> None:
    found = audit(without(lambda trial, rank: {2}), expect={"missing_term": True})
    assert not fails(found)
    assert [f.verdict for f in found if f.kind == "missing_term"] == [Verdict.INFORMATION]


def test_findings_stay_few_and_rows_capped() -> None:
    found = audit(
        without(lambda trial, rank: {2}), plan_of(count=(1, 2, 3, 9, 67, 300), shift=((0, 0), (1, 1), (3, 3)))
    )
    bad = [f for f in found if f.verdict is Verdict.FAIL]
    assert len(bad) == 1
    assert len(bad[0].evidence) == common.MAX_ROWS < bad[0].measure["evidence_total"]
    assert bad[0].scope["count"] == [1, 2, 3, 9, 67, 300]


# ---------------------------------------------------------------------------------------------------- shared helpers


def test_clopper_pearson_matches_the_printed_figures() -> None:
    assert statistics.clopper_pearson(0, 755_732)[1] == pytest.approx(4.9e-6, rel=0.01)
    low, high = statistics.clopper_pearson(4, 4096)
    assert (100 * low, 100 * high) == (pytest.approx(0.027, abs=5e-4), pytest.approx(0.25, abs=5e-3))
    low, high = statistics.clopper_pearson(1091, 4096)
    assert (100 * low, 100 * high) == (pytest.approx(25.3, abs=0.05), pytest.approx(28.0, abs=0.05))
    low, high = statistics.clopper_pearson(755_732 - 378, 755_732)
    assert 100 * low == pytest.approx(99.9447, abs=1e-4)
    assert 100 * high == pytest.approx(99.9549, abs=1e-4)  # the exact upper bound; 99.9555 in print is off
    assert statistics.clopper_pearson(0, 2)[1] == pytest.approx(0.842, abs=5e-3)
    assert statistics.clopper_pearson(0, 64)[1] == pytest.approx(0.056, abs=5e-4)
    assert statistics.clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="no count"):
        statistics.clopper_pearson(3, 2)


def test_binomial_tails_are_exact_on_a_small_case() -> None:
    # P(X <= 2) of binomial(10, 1/2) is 56/1024.
    assert statistics.binomial_two_sided(2, 10, 0.5) == pytest.approx(2 * 56 / 1024)
    assert statistics.binomial_two_sided(0, 5, 0.0) == 1.0
    assert statistics.binomial_two_sided(1, 5, 0.0) == 0.0


def test_order_exact_elements_are_told_from_the_data() -> None:
    exact = a_trial("order_exact", count=256, rank_n=4)
    assert legal.exact_in_every_order(exact, block(exact, 0, 0, 256)).all()
    loose = a_trial("report132", count=4096, rank_n=4)
    data = block(loose, 0, 0, 4096)
    assert not (legal.exact_in_every_order(loose, data) & data.split.inexact).any()


def test_faithful_is_the_sum_or_a_neighbour() -> None:
    trial = a_trial("report132", count=512)
    data = block(trial, 0, 0, 512)
    for mode in ("toward_zero", "away_from_zero"):
        codes = round_sums(trial.call.fmt, exact_sums(trial.call.fmt, data.terms), mode)
        assert is_faithful(trial, codes, data).all()
        assert not is_faithful(trial, codes + np.uint16(2), data).any()
        assert not is_faithful(trial, codes ^ np.uint16(0x8000), data)[data.split.zero == 0].any()
    with pytest.raises(ValueError, match="iterate"):
        block(trial, 0, 0, 1 << 20)
