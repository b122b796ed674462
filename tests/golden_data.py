"""What the numerics tests share: golden data, code arrays, and the exact record of a sum computed from Python integers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from auditor.numerics import exact
from auditor.numerics.exact import Codes, Sums
from auditor.numerics.formats import FORMATS, Format

GOLDEN = Path(__file__).parent / "golden"
NARROW = tuple(fmt for fmt in FORMATS.values() if fmt.bits <= 16)


@cache
def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def column_arrays(fmt: Format, rows: Sequence[Sequence[int]]) -> list[Codes]:
    """Rows of equally many codes -> one array a term."""
    return [np.array(column, fmt.dtype) for column in zip(*rows, strict=True)]


def is_nan(fmt: Format, code: int) -> bool:
    magnitude = int(code) & fmt.magnitude_mask
    return magnitude > fmt.max_code and not (fmt.has_infinity and magnitude == fmt.overflow_code)


def random_codes(fmt: Format, n: int, seed: int) -> Codes:
    """Uniform codes: every exponent, subnormals, infinities and NaN among them."""
    return np.random.default_rng(seed).integers(0, 1 << fmt.bits, n, dtype=fmt.dtype)


def finite_codes(fmt: Format, n: int, seed: int) -> Codes:
    """Uniform finite codes of both signs."""
    rng = np.random.default_rng(seed)
    magnitude = rng.integers(0, fmt.max_code + 1, n, dtype=fmt.dtype)
    return magnitude | (rng.integers(0, 2, n, dtype=fmt.dtype) << fmt.dtype.type(fmt.bits - 1))


def spread_codes(fmt: Format, n: int, seed: int, *, low: int, span: int) -> Codes:
    """Finite codes whose biased exponents lie in low .. low + span."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << fmt.mantissa_bits, n, dtype=fmt.dtype)
    codes |= rng.integers(low, low + span + 1, n, dtype=fmt.dtype) << fmt.dtype.type(fmt.mantissa_bits)
    return codes | (rng.integers(0, 2, n, dtype=fmt.dtype) << fmt.dtype.type(fmt.bits - 1))


def record_of(numerator: int, exponent: int, zero_kind: int = exact.OTHER_ZERO) -> tuple[int, ...]:
    """(negative, sig, exp, sticky, kind) of numerator * 2**exponent, as Sums must hold it."""
    size = abs(numerator)
    if size == 0:
        return (0, 0, 0, 0, zero_kind)
    drop = size.bit_length() - 64
    sig, rest = (size >> drop, size & ((1 << drop) - 1)) if drop > 0 else (size << -drop, 0)
    return (int(numerator < 0), sig, exponent + drop, int(rest != 0), exact.FINITE)


def record_of_codes(fmt: Format, codes: Sequence[int]) -> tuple[int, ...]:
    kind = exact.kind_reference(fmt, codes)
    if kind >= exact.PLUS_INFINITY:
        return (0, 0, 0, 0, kind)
    return record_of(*exact.exact_sum_reference(fmt, codes), kind)


def records(sums: Sums) -> list[tuple[int, ...]]:
    columns: Iterable[Any] = (sums.negative, sums.sig, sums.exp, sums.sticky, sums.kind)
    return [tuple(int(value) for value in row) for row in zip(*(c.tolist() for c in columns), strict=True)]
