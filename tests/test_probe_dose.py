"""Dose-response, the interval of the mean signed error, and the matrix of cases that a rounding finding has seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_view import FakeView, correct
from test_probe_rounding import b300, by_rule, plan_of, stochastic

from auditor import inputs
from auditor.model import Call, Family, Finding, Planned, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import split
from auditor.probes import dose, rounding
from auditor.probes.expected import Block


def mode_of(output, name: str = "bfloat16", count: int = 1 << 16) -> Finding:
    found = rounding.analyze(FakeView(plan_of(format=(name,), count=(count,)), output))
    return next(f for f in found if f.kind == "rounding_mode")


def rows_of(found: Finding) -> np.ndarray:
    rows = np.array(found.measure["dose_response"])
    assert rows.shape == (64, 4)
    assert rows[:, [0, 2]].sum() == found.measure["inexact"] - found.measure["outside"]
    assert (rows[:, 1] <= rows[:, 0]).all()
    assert (rows[:, 3] <= rows[:, 2]).all()
    return rows


def test_to_nearest_is_a_step_at_one_half() -> None:
    rows = rows_of(mode_of(correct()))
    assert not rows[:32, [1, 3]].any()
    assert (rows[33:, 0] == rows[33:, 1]).all()
    assert (rows[33:, 2] == rows[33:, 3]).all()
    assert 0 < rows[32, 1] < rows[32, 0]  # bin 32 holds the ties: lo even stays, the rest goes up
    assert rows[32, 3] == rows[32, 2]


def test_toward_zero_never_goes_up_and_stochastic_follows_rem() -> None:
    assert not rows_of(mode_of(correct("toward_zero")))[:, [1, 3]].any()
    rows = rows_of(mode_of(stochastic()))
    share = (rows[:, 1] + rows[:, 3]) / np.maximum(1, rows[:, 0] + rows[:, 2])
    assert np.corrcoef(share, np.arange(64))[0, 1] > 0.99


def test_the_interval_of_the_mean_signed_error() -> None:
    for output, sign in ((correct("toward_zero"), -1), (correct("away_from_zero"), 1)):
        low, high = mode_of(output).measure["mean_signed_error_95"]
        assert min(sign * low, sign * high) > 0.4
    low, high = mode_of(correct()).measure["mean_signed_error_95"]
    assert low < 0 < high
    assert high - low < 0.02
    assert mode_of(correct(), count=64).measure["mean_signed_error_95"] is None


def test_the_interval_holds_the_b300_rule_s_known_bias() -> None:
    """NUMERICS §1.3: -.051 ulp; the golden data's own mean lies within the interval too."""
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=1 << 18)
    trial = Trial(call=call, rank_n=2, family=Family("report132"), seed=0)
    view = FakeView([Planned(trial=trial, repeats=1, probes=("rounding",))], by_rule(b300))
    (found,) = (f for f in rounding.analyze(view) if f.kind == "rounding_mode")
    low, high = found.measure["mean_signed_error_95"]
    assert low < -0.051 < high < 0
    assert low < found.measure["mean_signed_error_ulp"] < high


# -------------------------------------------------------------------------------------------------------------- coverage


def test_the_data_name_what_they_leave_out() -> None:
    found = mode_of(correct(), count=1 << 16)
    covered = found.measure["coverage"]
    assert not covered["complete"]  # exponents -4..4 never come near the ends of bfloat16's range
    assert covered["filled"] + covered["thin"] + covered["empty"] == covered["cells"]
    assert any(name.endswith("/ largest") for name in covered["empty_cells"])
    assert covered["by_binade"]["largest"] == 0
    assert covered["by_rem"]["tie, lo odd"] > 0  # the family ties is among the data
    assert covered["by_sign"]["negative"] > 0
    assert len(covered["by_position_in_8_bytes"]) == 4
    assert "empty" in found.limits
    json.dumps(covered)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_all_pairs_of_an_8_bit_format_fill_every_case_that_can_be(name: str) -> None:
    covered = mode_of(correct(), name, count=1 << 16).measure["coverage"]
    assert covered["empty"] == 0
    assert covered["empty_cells"] == []


def _structured(fmt_name: str, n: int) -> Block:
    """Pairs of normal numbers crowded at the ends of the range and of binades."""
    fmt, rng = FORMATS[fmt_name], np.random.default_rng(5)
    low, high, m = 1, fmt.bias + fmt.emax, 1 << fmt.mantissa_bits
    near = [
        low,
        low + 1,
        low + 2,
        *range(fmt.bias - fmt.precision, fmt.bias + 2),
        *range(high - fmt.precision, high + 1),
    ]

    def codes() -> np.ndarray:
        fraction = np.where(rng.random(n) < 0.5, rng.integers(0, m, n), rng.choice([0, 1, m - 1, m - 2, m >> 1], n))
        return (rng.integers(0, 2, n) << (fmt.bits - 1) | rng.choice(near, n) << fmt.mantissa_bits | fraction).astype(
            fmt.dtype
        )

    terms = (codes(), codes())
    sums = exact_sums(fmt, terms)
    return Block(0, n, terms, sums, split(fmt, sums))


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "binary32"])
def test_nothing_that_cannot_be_is_ever_seen(name: str) -> None:
    fmt, data = FORMATS[name], _structured(name, 1 << 18)
    least, top = fmt.dtype.type(1 << fmt.mantissa_bits), fmt.dtype.type(fmt.max_code)
    keep = data.split.finite & ~data.split.past_max & (data.split.zero == 0) & (data.split.lo >= least)
    keep &= (data.split.lo != top) | ~data.split.inexact
    counts, can = dose.tally(fmt, data, keep), dose.feasible(fmt)
    assert counts.sum() == keep.sum()
    assert not (counts[~can]).any()
    assert (counts[can] > 0).mean() > (0.8 if fmt.bits == 16 else 0.5)


def test_single_sums_by_hand() -> None:
    fmt = FORMATS["bfloat16"]
    one, ulp = fmt.power_of_two(0), fmt.power_of_two(-7)
    cases = {
        (one, fmt.power_of_two(-8)): "tie, lo even / same sign / lowest of its binade / middle",
        (one | 1, fmt.power_of_two(-8)): "tie, lo odd / same sign / interior / middle",
        (one | 127, ulp | fmt.sign_mask): "exact / cancel / interior / middle",
        (one | 127, one | 127): "exact / carry / highest of its binade / middle",
        (one, fmt.power_of_two(-9)): "below 1/2 / same sign / lowest of its binade / middle",
        (one, fmt.power_of_two(-8) | 1): "next to 1/2 / same sign / lowest of its binade / middle",
    }
    for pair, name in cases.items():
        terms = tuple(np.array([code], fmt.dtype) for code in pair)
        sums = exact_sums(fmt, terms)
        counts = dose.tally(fmt, Block(0, 1, terms, sums, split(fmt, sums)), np.ones(1, np.bool_))
        assert dose._name(np.argwhere(counts)[0].tolist()) == name


def test_cells_of_real_families_lie_in_the_matrix() -> None:
    fmt = FORMATS["binary64"]
    terms = tuple(inputs.generate(Family("ties"), fmt, 3, 2, rank, 0, 4096) for rank in (0, 1))
    sums = exact_sums(fmt, terms)
    data = Block(0, 4096, terms, sums, split(fmt, sums))
    counts = dose.tally(fmt, data, np.asarray(data.split.zero == 0))
    assert not counts[~dose.feasible(fmt)].any()
