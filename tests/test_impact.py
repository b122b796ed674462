"""Does it matter: bias and spread against exact enumeration, and the accumulation against the simulator, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from driven_view import DrivenView, drive

from auditor import inputs
from auditor.backends.base import LocalControl
from auditor.backends.simulator import Simulator
from auditor.config import Sweep
from auditor.impact.per_sum import gaps, magnitudes, per_sum
from auditor.impact.replay import Replay, fresh, running, totals
from auditor.impact.rules import by_formula, by_mode, by_noise, formula_of, rule_of
from auditor.model import Call, Codes, Family, Finding, Window, World
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import MODES
from auditor.probes import get
from auditor.probes.neighbours.formula import Formula, listed_weights, regular, text

BF16 = FORMATS["bfloat16"]
REPORT = Family("report132")
B300 = Formula(4, regular(4, "forward", False, 2, "planes", 16), noise_n=6)


def one_finding(options: Mapping[str, Any], count: int) -> tuple[DrivenView, Finding]:
    """The rounding_mode finding of a simulated subject on the report's inputs."""
    sweep = Sweep(format=("bfloat16",), count=(count,), shift=((0, 0),), family=(REPORT,), repeats=2)
    view = drive(Simulator, sweep, [get("rounding")], rank_n=2, options=options)
    return view, next(one for one in get("rounding").analyze(view) if one.kind == "rounding_mode")


def enumerated() -> dict[str, float]:
    """Exact means over NUMERICS §1.1's inputs: all exponent differences, signs and mantissas, neighbours independent.

    ``rule``, ``nearest``: mean error of an inexact sum in ulp, under the B300 rule and under ties to even.
    """
    p, m = 8, np.arange(128, 256, dtype=np.int64)
    weights, sums = [], []
    for d in range(9):
        for sign in (1, -1):
            grid = np.abs((m[:, None] << d) + sign * m[None, :]).ravel()
            sums.append(grid)
            weights.append(np.full(grid.size, 9 if d == 0 else 2 * (9 - d), np.float64))
    size, weight = np.concatenate(sums), np.concatenate(weights)
    lead = np.array([int(s).bit_length() - 1 for s in range(int(size.max()) + 1)])[size]
    drop = np.maximum(lead - p + 1, 0)
    lo = size >> drop
    rem = (size - (lo << drop)) / 2.0**drop
    top = np.where(size > 0, (size << 40) >> np.maximum(lead + 40 - 2, 0), 0) & 3  # the two bits below the leading one
    pairs = np.bincount(top, weights=weight, minlength=4) / weight.sum()
    noise = np.zeros(64)
    for a in range(4):
        for b in range(4):
            for c in range(4):
                high, low = [x >> 1 for x in (a, b, c)], [x & 1 for x in (a, b, c)]
                noise[int("".join(map(str, high + low)), 2)] += pairs[a] * pairs[b] * pairs[c]
    at_least = np.cumsum(noise[::-1])[::-1]  # P(noise >= k / 64)
    needed = np.ceil((1 - rem) * 64).astype(int)
    up = np.where(needed < 64, at_least[np.minimum(needed, 63)], 0.0)
    nearest = (rem > 0.5) | ((rem == 0.5) & (lo % 2 == 1))
    use = weight * (rem > 0)
    return {
        "rule": float((use * (up - rem)).sum() / use.sum()),
        "nearest": float((use * (nearest - rem)).sum() / use.sum()),
    }


# ------------------------------------------------------------------------------------------------------------- single sums


def test_the_bias_is_that_of_exact_enumeration() -> None:
    theory = enumerated()
    assert round(theory["rule"], 3) == -0.051  # NUMERICS §1.3
    view, one = one_finding({"preset": "b300"}, 1 << 18)
    found = per_sum(view, one)
    assert found is not None
    assert found.mean_95 is not None
    assert found.mean_95[0] <= theory["rule"] <= found.mean_95[1]
    assert found.mean_95[1] - found.mean_95[0] < 0.006
    assert not found.unbiased
    assert found.mean == pytest.approx(one.measure["mean_signed_error_ulp"])
    assert list(found.mean_95) == pytest.approx(one.measure["mean_signed_error_95"])
    assert abs(found.nearest_mean - theory["nearest"]) < 5 * found.nearest_sd / sqrt(found.inexact)
    assert found.sd > found.nearest_sd
    assert found.result_mean == pytest.approx(found.mean * found.inexact / found.elements)
    assert "report132" in found.data
    assert found.relative < 0


def test_rounding_to_nearest_has_no_bias_within_its_bound() -> None:
    view, one = one_finding({}, 1 << 15)
    found = per_sum(view, one)
    assert found is not None
    assert found.unbiased
    assert 0 < found.bound < 0.01
    assert (found.sd, found.mean) == (found.nearest_sd, found.nearest_mean)


def test_errors_are_those_of_a_reference_in_fractions() -> None:
    """Rounding toward zero: the error of a sum is -rem, its absolute error -rem gaps."""
    view, one = one_finding({"final": "toward_zero", "accumulator": "exact"}, 512)
    found = per_sum(view, one)
    assert found is not None
    trial = next(p.trial for p in view.planned if p.trial.trial_id == found.trial)
    terms = inputs.terms(trial, 0, 0, 512)
    sums = exact_sums(BF16, terms)
    size = magnitudes(sums)
    rest = np.array([x - np.floor(x / g) * g for x, g in zip(size, gaps(BF16, sums), strict=True)])
    inexact = rest > 0
    assert found.inexact == inexact.sum()
    assert found.mean == pytest.approx(-float((rest / gaps(BF16, sums))[inexact].mean()))
    assert found.relative == pytest.approx(-rest.sum() / size.sum())


def test_few_sums_have_no_interval() -> None:
    view, one = one_finding({}, 64)
    found = per_sum(view, one)
    assert found is not None
    assert found.mean_95 is None
    assert not found.unbiased
    assert found.bound == float("inf")


# -------------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    "formula",
    [
        B300,
        Formula(4, regular(4, "reversed", True, 3, "elements", 16), form="SRC", noise_n=9),
        Formula(8, regular(8, "forward", False, 1, "planes", 16), form="SRF", noise_n=7),
        Formula(4, {(1, 0): 1 << 63, (3, -1): 1 << 62, (2, -2): 1 << 61}, "xor", noise_n=3),
    ],
    ids=lambda formula: text(formula)[:40],
)
def test_a_formula_is_read_back_from_a_finding(formula: Formula) -> None:
    measure = {"weights": listed_weights(formula), "group_elements": formula.group, "forms_left": [formula.form]}
    found = formula_of(BF16, {**measure, "resolution": 2.0**-16})
    assert found is not None
    assert (found.weights, found) == (formula.weights, formula)


@pytest.mark.parametrize(
    "measure",
    [
        {},
        {"weights": [], "group_elements": 4},
        {"weights": [{"neighbour": "r+1", "bit": "b22", "weight": 0.5, "log2": -1}], "group_elements": 4},
        {"weights": [{"neighbour": "q+1", "bit": "x", "weight": 0.5, "log2": -1}], "group_elements": 4},
    ],
)
def test_what_is_no_formula_is_none(measure: dict[str, Any]) -> None:
    assert formula_of(BF16, measure) is None


GOOD = {
    "weights": listed_weights(B300),
    "group_elements": 4,
    "forms_left": ["SRFF"],
    "resolution": 2.0**-16,
    "formula": text(B300),
    "held_out_agreement": 1.0,
    "held_out": {"elements": 1000},
    "groups_begin_by": "address",
}


def test_a_rule_comes_from_the_mode_the_noise_or_the_formula() -> None:
    def name(rounding: dict[str, Any], neighbours: dict[str, Any] | None = None) -> tuple[str | None, str]:
        rule, why = rule_of(BF16, rounding, neighbours or {})
        return (rule.name if rule else None), why

    assert [name({"mode": mode})[0] for mode in MODES] == list(MODES)
    assert name({"mode": "undetermined", "consistent_modes": ["toward_zero", "toward_negative"]})[0] == "toward_zero"
    assert (
        "toward_zero and toward_negative are the same"
        in name({"mode": "undetermined", "consistent_modes": ["toward_zero", "toward_negative"]})[1]
    )
    assert name({"mode": "stochastic", "stochastic": {"form": "SRFF", "noise_bits": 8}})[0] is not None
    assert name({"mode": "mixed"}, GOOD)[0] == text(B300)
    assert "1,000 inexact sums" in name({"mode": "mixed"}, GOOD)[1]
    assert name({"mode": "mixed"}, {**GOOD, "held_out_agreement": 0.98}) == (
        None,
        "the best formula explains 98.00 % of held-out sums, too few for a rule",
    )
    assert name({"mode": "mixed"}) == (None, "no single mode fits, and ask for the probe neighbours")
    assert "keyed by address" in name({"mode": "mixed"}, {"keyed_by": "address"})[1]
    assert name({"mode": "undetermined", "consistent_modes": []})[0] is None


# ------------------------------------------------------------------------------------------------------------------ replay


class Collective:
    """The simulator, called with whatever two ranks hold, at a place in memory."""

    def __init__(self, options: Mapping[str, Any], n: int, place: int) -> None:
        self.backend = Simulator(World(rank_n=2, local_ranks=(0, 1), control=LocalControl()), options)
        self.call = Call(collective="all_reduce", op="sum", format="bfloat16", count=n)
        self.offset, self.nbytes = 512 + 2 * place, 2 * n
        self.send, self.recv = (self.backend.allocate(2048 + 2 * n) for _ in range(2))

    def __call__(self, a: Codes, b: Codes) -> Codes:
        part = slice(self.offset, self.offset + self.nbytes)
        for rank, codes in enumerate((a, b)):
            self.send[rank][part] = codes.view(np.uint8)
        windows = [
            {rank: Window(buffers[rank], self.offset, self.nbytes) for rank in (0, 1)}
            for buffers in (self.send, self.recv)
        ]
        self.backend.run(self.call, *windows)
        return self.recv[0][part].view(np.uint16).copy()


@pytest.mark.parametrize("one_sign", [False, True])
def test_running_totals_are_the_simulators(one_sign: bool) -> None:
    """Every step of the replay, at both places and to nearest, gives the bits of the collective itself."""
    n, steps, shift = 64, 40, 2
    replay = Replay(BF16, by_formula(B300, "b300", "address"), REPORT, 3, steps, shift)
    found = totals(replay, n, one_sign=one_sign)
    assert found is not None
    clear = np.uint16(0x7FFF if one_sign else 0xFFFF)
    made = []
    for options, place in (({"preset": "b300"}, 0), ({"preset": "b300"}, shift), ({}, 0)):
        subject, total = Collective(options, n, place), replay.drawn(0, 0, n) & clear
        for step in range(steps):
            total = subject(total, replay.drawn(step, 1, n) & clear)
        made.append((total.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    inner = slice(2, n - 2)  # the shifted copy cuts the first and the last group
    np.testing.assert_array_equal(found[0], np.stack(made)[:, inner])
    assert (found[0][0] != found[0][1]).any()


def test_independent_errors_predict_what_fresh_data_add_up_to() -> None:
    for rule in (by_mode("toward_zero"), by_noise("SRFF", 16), by_formula(B300, "b300", "address")):
        replay = Replay(BF16, rule, REPORT, 11, 60, 2)
        scenario, curve, mean, sd = fresh(replay)
        first = fresh(replace(replay, steps=1))
        assert curve.steps[-1] == 60
        assert mean == pytest.approx(60 * first[2], abs=4 * 60 * first[3] / sqrt(2048))
        assert sd == pytest.approx(sqrt(60) * first[3], rel=0.12)
        assert curve.rule[-1][1] < mean < curve.rule[-1][2]
        assert scenario.nearest.spread <= scenario.rule.spread


def test_a_shift_moves_only_what_the_place_decides() -> None:
    moved = [
        fresh(Replay(BF16, rule, REPORT, 0, 10, 2))[0].shifted_results
        for rule in (by_mode("ties_to_even"), by_formula(B300, "b300", "index"), by_formula(B300, "b300", "address"))
    ]
    assert moved[:2] == [0.0, 0.0]
    assert moved[2] == pytest.approx(0.1868, abs=0.01)  # NUMERICS §1.2, k = 2


def test_stochastic_rounding_is_unbiased_and_nearest_is_quieter() -> None:
    scenario, _, mean, _ = fresh(Replay(BF16, by_noise("SRC", 16), REPORT, 5, 200, 1))
    assert abs(mean) < 200 * 0.003
    assert scenario.nearest.spread < scenario.rule.spread


def test_totals_that_leave_the_range_are_not_told() -> None:
    assert running(Replay(FORMATS["float8_e4m3fn"], by_mode("ties_to_even"), REPORT, 0, 200, 1), one_sign=True) is None
