"""Scaling: formulas of subjects written outside the package by their names; the bank against rational arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from driven_view import DrivenView, drive
from outside_subjects import DTYPES, Clean

from auditor import inputs
from auditor.backends.simulator import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Call, Capabilities, Family, Finding, Observation, Verdict, Window
from auditor.numerics.exact import exact_sum_reference, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_reference
from auditor.probes import averages, coverage, scaling
from auditor.probes.averages import Model
from auditor.probes.values import to_float64

CHOICES = ("divide_after", "multiply_after", "multiply_before")


class Mean(Clean):
    """Averages in binary32 or in the element's format; ``groups`` lets three of four ranks take part."""

    formula: ClassVar[str] = "divide_after"
    narrow: ClassVar[bool] = False

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        return Capabilities(
            collectives=frozenset({"all_reduce", "reduce_scatter"}),
            ops=frozenset({"avg"}),
            formats=frozenset(DTYPES),
            features=frozenset({"groups"}),
        )

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        self.call, self.dtype = call, DTYPES[call.format]
        super().run(call, send, recv)

    def hold(self, values: Any) -> Any:
        with np.errstate(all="ignore"):
            return values.astype(self.dtype).astype(np.float32) if self.narrow else values.astype(np.float32)

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        n = np.float32(self.divisor(len(terms)))
        factor = self.hold(np.float32([1]) / n)[0]
        with np.errstate(all="ignore"):
            values = [self.hold(t * factor) if self.formula == "multiply_before" else t for t in terms.values()]
            total = values[0]
            for value in values[1:]:
                total = self.hold(total + value)
            if self.formula == "divide_after":
                return self.hold(total / n)
            return self.hold(total * factor) if self.formula == "multiply_after" else total

    def divisor(self, n: int) -> int:
        return n


class MultipliesAfter(Mean):
    formula = "multiply_after"


class MultipliesBefore(Mean):
    formula = "multiply_before"


class NarrowDivides(Mean):
    narrow = True


class NarrowBefore(MultipliesBefore):
    narrow = True


class ByCount(Mean):
    """F4: the number of elements in the place of the number of ranks."""

    def divisor(self, n: int) -> int:
        return self.call.count


class TwiceTooSmall(Mean):
    """F2: a factor of two."""

    def divisor(self, n: int) -> int:
        return 2 * n


def view_of(subject: type[Any], *, rank_n: int = 4, options: Any = None, expect: Any = None, **axes: Any) -> DrivenView:
    sweep = {"op": ("avg",), "format": ("bfloat16",), "count": (5, 1026), "repeats": 2, **axes}
    return drive(subject, Sweep(**sweep), [scaling, coverage], rank_n=rank_n, options=options, expect=expect)


def one(view: DrivenView) -> Finding:
    (found,) = scaling.analyze(view)
    return found


# ------------------------------------------------------------------------------------------------------------- subjects


@pytest.mark.parametrize("rank_n", [3, 4])
@pytest.mark.parametrize(
    ("subject", "formula", "width"),
    [
        (Mean, "divide_after", "binary32"),
        (MultipliesAfter, "multiply_after", "binary32"),
        (MultipliesBefore, "multiply_before", "binary32"),
        (NarrowDivides, "divide_after", "bfloat16"),
        (NarrowBefore, "multiply_before", "bfloat16"),
    ],
)
def test_outside_subjects_by_name(subject: type[Any], formula: str, width: str, rank_n: int) -> None:
    found = one(view_of(subject, rank_n=rank_n))
    assert found.measure["formula"] == formula
    assert width in found.measure["widths_of_sum"]
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["inexact"] >= 1 << 12
    assert found.measure["divides_by"]["3"] == 3


@pytest.mark.parametrize("average", CHOICES)
@pytest.mark.parametrize("accumulator", ["auto", "same"])
@pytest.mark.parametrize("name", ["binary16", "binary64"])
def test_the_simulator_by_name(average: str, accumulator: str, name: str) -> None:
    found = one(view_of(Simulator, rank_n=3, options={"average": average, "accumulator": accumulator}, format=(name,)))
    assert found.measure["formula"] == average


@pytest.mark.parametrize("average", CHOICES)
def test_a_power_of_two_alone_tells_nothing(average: str) -> None:
    found = one(view_of(Simulator, options={"average": average}, group=((0, 1),)))
    assert found.measure["formula"] == "undetermined"
    assert found.measure["consistent_formulas"] == list(CHOICES)
    assert "no power of two" in found.limits


def test_another_rounding_of_the_result_is_found() -> None:
    found = one(view_of(Simulator, rank_n=3, options={"final": "toward_zero"}, format=("binary32",)))
    assert found.measure["formula"] == "divide_after"
    assert {m["final"] for m in found.measure["consistent_models"]} == {"toward_zero"}


def test_no_formula_fits_a_keyed_rounding() -> None:
    found = one(view_of(Simulator, rank_n=3, options={"preset": "b300"}))
    assert found.measure["formula"] == "unknown"
    assert 0 < found.measure["nearest_model"]["3"]["agreeing"] < found.measure["elements"]
    assert found.evidence
    assert "none of the formulas" in found.claim


# ------------------------------------------------------------------------------------------------------ wrong divisors


@pytest.mark.parametrize(("subject", "words"), [(ByCount, "(the count)"), (TwiceTooSmall, "divides by 6")])
def test_a_wrong_divisor_is_named_and_is_a_wrong_value(subject: type[Any], words: str) -> None:
    view = view_of(subject, rank_n=3)
    found = one(view)
    assert words in found.claim
    assert found.measure["divides_by"]["3"] != 3
    assert {f.kind for f in coverage.analyze(view) if f.verdict is Verdict.FAIL} == {"wrong_value"}


# --------------------------------------------------------------------------------------------------------- equal inputs


def test_equal_inputs_are_a_fixed_point_or_not() -> None:
    wide, narrow = one(view_of(Mean, rank_n=3)), one(view_of(NarrowDivides, rank_n=3))
    assert wide.measure["equal_inputs"]["3"]["changed"] == 0
    assert "equal inputs are that input" in wide.claim
    assert narrow.measure["equal_inputs"]["3"]["changed"] > 0
    assert narrow.measure["equal_inputs"]["3"]["most_steps"] == 1


def test_overflow_before_dividing() -> None:
    assert one(view_of(Mean, rank_n=3)).measure["overflows_near_maximum"]
    assert not one(view_of(MultipliesBefore, rank_n=3)).measure["overflows_near_maximum"]
    assert not one(view_of(Mean, rank_n=3, format=("binary16",))).measure["overflows_near_maximum"]


# --------------------------------------------------------------------------------------------------------------- expect


def test_expect_names_the_formula() -> None:
    assert one(view_of(Mean, rank_n=3, expect={"average_scaling": "divide_after"})).verdict is Verdict.PASS
    assert one(view_of(Mean, rank_n=3, expect={"average_scaling": "multiply_before"})).verdict is Verdict.FAIL


# ----------------------------------------------------------------------------------------------------------------- plan


def scope_of(ranks: int, ops: frozenset[str], features: frozenset[str] = frozenset({"groups"})) -> Scope:
    offer = Capabilities(
        collectives=frozenset({"all_reduce"}), ops=ops, formats=frozenset({"bfloat16"}), features=features
    )
    sweep = Sweep(op=("sum", "avg"), format=("bfloat16",), count=(0, 7), repeats=2)
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), offer, sweep)


def test_the_plan_asks_for_averages_alone_and_for_three_ranks() -> None:
    both = frozenset({"sum", "avg"})
    plan = [t for t, _ in scaling.plan(scope_of(4, both))]
    assert {t.call.op for t in plan} == {"avg"}
    assert {t.call.group for t in plan} == {None, (0, 1, 2)}
    assert len(plan) == 7
    assert {t.call.group for t, _ in scaling.plan(scope_of(4, both, frozenset()))} == {None}
    assert {t.call.group for t, _ in scaling.plan(scope_of(3, both))} == {None}
    assert {str(t.family) for t, _ in scaling.plan(scope_of(1, both))} == {"equal", "equal:range=top"}
    assert not list(scaling.plan(scope_of(4, frozenset({"sum"}))))


def test_where_nothing_came_back() -> None:
    class Silent(DrivenView):
        def observations(self, trial_id: str) -> list[Observation]:
            return [Observation(trial_id=trial_id, repeat=0, rank=0, status="crash")]

    view = view_of(Mean, rank_n=3)
    view.__class__ = Silent
    found = one(view)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "crash" in found.claim


# ------------------------------------------------------------------------------------------------------------- the bank


def _rounded(name: str | None, value: Fraction, mode: str) -> Fraction:
    """A rational rounded once, by the scalar reference: cut far below any bit that a format sees, the rest as one sticky bit."""
    if name is None:
        return value
    fmt = FORMATS[name]
    scale = 1 << 2400
    scaled, rest = divmod(abs(value.numerator) * scale, value.denominator)
    whole = (scaled << 1) | (rest != 0)
    code = round_reference(fmt, -whole if value < 0 else whole, -2401, mode)
    numerator, exponent = exact_sum_reference(fmt, [code])
    return numerator * Fraction(2) ** exponent


def _reference(model: Model, fmt: Format, codes: tuple[int, int], n: int) -> Fraction:
    terms = [Fraction(m) * Fraction(2) ** e for m, e in (exact_sum_reference(fmt, [c]) for c in codes)]
    factor = _rounded(model.factor_in, Fraction(1, n), "ties_to_even") if model.factor_in else None
    if model.formula == "multiply_before":
        assert factor is not None
        total = sum(_rounded(model.scaled_in, t * factor, model.hop) for t in terms)
        return _rounded(fmt.name, _rounded(model.sum_in, Fraction(total), model.hop), model.final)
    total = _rounded(model.sum_in, Fraction(sum(terms)), model.hop)
    scaled = total / n if factor is None else total * factor
    return _rounded(fmt.name, _rounded(model.scaled_in, scaled, model.hop), model.final)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "binary32"])
@pytest.mark.parametrize("n", [3, 10])
def test_the_bank_against_rational_arithmetic(name: str, n: int) -> None:
    fmt = FORMATS[name]
    terms = [inputs.generate(Family("report132"), fmt, 1, 2, rank, 0, 12) for rank in (0, 1)]
    models = [*averages.bank(fmt)[::3], *averages.bank(fmt, "toward_zero", "toward_positive")[::11]]
    for model in models:
        got = averages.evaluate(model, fmt, terms, n)
        for code, a, b in zip(got.tolist(), *(t.tolist() for t in terms), strict=True):
            numerator, exponent = exact_sum_reference(fmt, [code])
            assert numerator * Fraction(2) ** exponent == _reference(model, fmt, (a, b), n), (model, hex(a), hex(b))


def test_products_and_quotients_of_64_bits() -> None:
    fmt, rng = FORMATS["binary64"], np.random.default_rng(3)
    codes = (rng.integers(1, 1 << 52, 50) | (1023 + rng.integers(-30, 30, 50)) << 52).astype(np.uint64)
    sums = exact_sums(fmt, [codes])
    for n in (1, 2, 3, 7, 1000, (1 << 31) - 1):
        for sig, exp, sticky, code in zip(*_columns(averages.over(sums, n)), codes.tolist(), strict=True):
            m, e = exact_sum_reference(fmt, [code])
            _check(sig, exp, sticky, Fraction(m) * Fraction(2) ** e / n)
    for factor in (1, 3, (1 << 53) - 1, (1 << 63) + 12345):
        for sig, exp, sticky, code in zip(*_columns(averages.times(sums, factor, -40)), codes.tolist(), strict=True):
            m, e = exact_sum_reference(fmt, [code])
            _check(sig, exp, sticky, Fraction(m) * Fraction(2) ** (e - 40) * factor)
    assert (averages.times(sums, 0, 0).sig == 0).all()


def _columns(sums: Any) -> tuple[list[int], list[int], list[bool]]:
    return sums.sig.tolist(), sums.exp.tolist(), sums.sticky.tolist()


def _check(sig: int, exp: int, sticky: bool, want: Fraction) -> None:
    low = Fraction(sig) * Fraction(2) ** exp
    assert sig >> 63 == 1
    assert low == want if not sticky else low < want < low + Fraction(2) ** exp


def test_sums_of_average_ties_are_exact_in_binary32_in_every_order() -> None:
    for name, wide in (("bfloat16", "binary32"), ("binary16", "binary32"), ("binary32", "binary64")):
        fmt, accumulator = FORMATS[name], np.float32 if wide == "binary32" else np.float64
        terms = [inputs.generate(Family("average_ties"), fmt, 2, 3, rank, 0, 500) for rank in range(3)]
        values = [to_float64(fmt, term) for term in terms]
        for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
            got = (values[a].astype(accumulator) + values[b].astype(accumulator)) + values[c].astype(accumulator)
            want = [sum((Fraction(float(v[k])) for v in values), Fraction(0)) for k in range(500)]
            assert [Fraction(float(x)) for x in got] == want
