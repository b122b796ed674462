"""Places on the number line against the steps between codes; the real distance against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.numerics.exact import decode_reference, exact_sum_reference, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import split
from auditor.numerics.ulp_error import err_ulp, from_ordinals, ordinals
from auditor.numerics.ulps import ulp_steps

SMALL = [FORMATS[name] for name in ("binary16", "bfloat16", "float8_e4m3fn", "float8_e5m2")]
ALL = list(FORMATS.values())
names = pytest.mark.parametrize("fmt", ALL, ids=lambda fmt: fmt.name)


def codes_of(fmt: Format, *values: int) -> np.ndarray:
    return np.array(values, fmt.dtype)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_every_code_is_one_step_from_the_next(fmt: Format) -> None:
    """Every code of the format in the order of the number line: each is 1 from the one before, and 0 from itself."""
    up = np.arange(fmt.overflow_code + fmt.has_infinity).astype(fmt.dtype)
    line = np.concatenate([(up[:0:-1] | fmt.dtype.type(fmt.sign_mask)), up])
    assert (ulp_steps(fmt, line[:-1], line[1:]) == 1).all()
    assert (ulp_steps(fmt, line, line) == 0).all()
    assert (np.diff(ordinals(fmt, line)) == 1).all()
    assert (from_ordinals(fmt, ordinals(fmt, line)) == line).all()


@names
def test_places_past_the_ends_stay_there(fmt: Format) -> None:
    far = np.array([(1 << 63) - 1, 1 - (1 << 63), 0])
    assert list(from_ordinals(fmt, far)) == [fmt.overflow_code, fmt.overflow_code | fmt.sign_mask, 0]


def exact_error(fmt: Format, out: int, terms: list[int]) -> float:
    """The definition in rational numbers: Harrison's ulp found by walking the format's own values."""
    numerator, exponent = exact_sum_reference(fmt, terms)
    exact = Fraction(numerator) * Fraction(2) ** exponent
    size, sign = abs(exact), -1 if exact < 0 else 1

    def value(code: int) -> Fraction:
        n, e = decode_reference(fmt, code)
        return Fraction(n) * Fraction(2) ** e

    low, high = 0, fmt.max_code
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if value(middle) <= size else (low, middle - 1)
    above = value(low + 1) - value(low) if low < fmt.max_code else value(low) - value(low - 1)
    below = value(low) - value(low - 1) if low else above
    ulp = above if value(low) != size else min(above, below)
    return float((sign * value(out) - size) / ulp)


@given(st.sampled_from(ALL), st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=4), st.integers(-70, 70))
def test_real_distance_is_that_of_rational_arithmetic(fmt: Format, words: list[int], away: int) -> None:
    def finite(word: int) -> int:
        code = word & ((1 << fmt.bits) - 1)
        return code if (code & fmt.magnitude_mask) <= fmt.max_code else code & fmt.sign_mask

    terms = [finite(word) for word in words]
    sums = exact_sums(fmt, [codes_of(fmt, term) for term in terms])
    seen = split(fmt, sums)
    near = int(ordinals(fmt, seen.lo)[0]) * (-1 if seen.negative[0] else 1) + away
    out = from_ordinals(fmt, np.array([near]))
    if seen.past_max[0] or abs(near) > fmt.max_code:
        return
    found = err_ulp(fmt, out, seen)[0]
    assert math.isclose(found, exact_error(fmt, int(out[0]), terms), rel_tol=1e-12, abs_tol=2.0 ** (fmt.precision - 64))


def test_a_step_below_a_power_of_two_is_half_a_step() -> None:
    """One is exact; its ulp is the smaller gap, below it."""
    fmt = FORMATS["binary32"]
    one = codes_of(fmt, fmt.power_of_two(0))
    seen = split(fmt, exact_sums(fmt, [one]))
    assert list(err_ulp(fmt, np.concatenate([one - 1, one + 1]), _twice(seen))) == [-1.0, 2.0]


def _twice(seen: object) -> object:
    return type(seen)(*(np.repeat(getattr(seen, name), 2) for name in seen.__slots__))


@names
def test_what_is_not_finite_has_no_real_distance(fmt: Format) -> None:
    one, nan = codes_of(fmt, fmt.power_of_two(0)), codes_of(fmt, fmt.nan_code)
    top = codes_of(fmt, fmt.max_code)
    assert math.isnan(err_ulp(fmt, nan, split(fmt, exact_sums(fmt, [one])))[0])
    assert math.isnan(err_ulp(fmt, one, split(fmt, exact_sums(fmt, [nan])))[0])
    assert math.isnan(err_ulp(fmt, top, split(fmt, exact_sums(fmt, [top, top])))[0])
    if fmt.has_infinity:
        infinity = codes_of(fmt, fmt.overflow_code)
        assert math.isnan(err_ulp(fmt, infinity, split(fmt, exact_sums(fmt, [one])))[0])
