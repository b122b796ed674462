"""The formats table against NumPy's and ml_dtypes' own tables, and against the values of every narrow code."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from golden_data import NARROW

from auditor.numerics.exact import decode_reference
from auditor.numerics.formats import FORMATS, Format

OTHERS = {
    "binary64": np.float64,
    "binary32": np.float32,
    "binary16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
EVERY = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))


def value(fmt: Format, code: int) -> Fraction:
    numerator, exponent = decode_reference(fmt, code)
    return Fraction(numerator) * Fraction(2) ** exponent


@EVERY
def test_limits_agree_with_the_other_table(fmt: Format) -> None:
    info = ml_dtypes.finfo(OTHERS[fmt.name])
    assert value(fmt, fmt.max_code) == Fraction(float(info.max))
    assert value(fmt, 1) == Fraction(float(info.smallest_subnormal))
    assert value(fmt, fmt.power_of_two(fmt.emin)) == Fraction(float(info.smallest_normal))
    assert fmt.mantissa_bits == info.nmant
    assert (fmt.itemsize, fmt.dtype.itemsize * 8) == (info.bits // 8, fmt.bits)


@EVERY
def test_special_codes(fmt: Format) -> None:
    other = OTHERS[fmt.name]
    codes = np.array([fmt.overflow_code, fmt.nan_code, fmt.overflow_code | fmt.sign_mask], fmt.dtype)
    values = codes.view(other).astype(np.float64)
    assert np.isnan(values[1])
    if fmt.has_infinity:
        assert values[[0, 2]].tolist() == [np.inf, -np.inf]
    else:
        assert np.isnan(values).all()


@pytest.mark.parametrize("fmt", NARROW, ids=lambda fmt: fmt.name)
def test_every_code_of_a_narrow_format_has_the_value_that_others_give_it(fmt: Format) -> None:
    codes = np.arange(1 << fmt.bits).astype(fmt.dtype)
    finite = codes[(codes & fmt.dtype.type(fmt.magnitude_mask)) <= fmt.max_code]
    others = finite.view(OTHERS[fmt.name]).astype(np.float64)
    ours = [np.ldexp(float(n), e) for n, e in (decode_reference(fmt, int(code)) for code in finite)]
    assert others.tolist() == ours


@EVERY
def test_power_of_two(fmt: Format) -> None:
    for exponent in {fmt.lsb, fmt.emin - 1, fmt.emin, 0, fmt.emax}:
        assert value(fmt, fmt.power_of_two(exponent)) == Fraction(2) ** exponent
    for exponent in (fmt.lsb - 1, fmt.emax + 1):
        with pytest.raises(ValueError, match="outside"):
            fmt.power_of_two(exponent)


@EVERY
def test_infinity_and_nan_have_no_value(fmt: Format) -> None:
    for code in (fmt.overflow_code, fmt.nan_code, fmt.nan_code | fmt.sign_mask):
        with pytest.raises(ValueError, match="not finite"):
            decode_reference(fmt, code)
