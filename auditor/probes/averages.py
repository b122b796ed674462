"""The bank of formulas by which an average of two terms can be made, evaluated bit by bit from exact integers.

Two members send data and the others +0, so that the sum is one addition and no order of additions can hide the formula. A
model says what is rounded on the way: the sum (``sum_in``), what scaling gives (``scaled_in``), the factor 1/n
(``factor_in``). None stands for: not rounded there. The last rounding is always to the element format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.exact import FINITE, Sums, exact_sum_reference, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import MODES, round_reference, round_sums

FORMULAS = ("divide_after", "multiply_after", "multiply_before")
WIDER = ("binary16", "binary32", "binary64")
NEAREST = "ties_to_even"
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Model:
    """One way to make an average; ``hop`` rounds everything but the result, ``final`` the result."""

    formula: str
    sum_in: str | None
    scaled_in: str | None
    factor_in: str | None = None
    hop: str = NEAREST
    final: str = NEAREST

    def to_json(self) -> dict[str, Any]:
        named = {"formula": self.formula, "sum_in": self.sum_in or "exact", "scaled_in": self.scaled_in or "exact"}
        factor = {"factor_in": self.factor_in} if self.factor_in else {}
        modes = {"hop": self.hop, "final": self.final} if (self.hop, self.final) != (NEAREST, NEAREST) else {}
        return {**named, **factor, **modes}


def widths(fmt: Format) -> list[str | None]:
    """Formats that a partial result of ``fmt`` can be kept in, and None for exact."""
    wider = [name for name in WIDER if FORMATS[name].precision > fmt.precision and FORMATS[name].emax >= fmt.emax]
    return [fmt.name, *wider, None]


@lru_cache(maxsize=64)
def bank(fmt: Format, hop: str = NEAREST, final: str = NEAREST) -> tuple[Model, ...]:
    """All models of one pair of roundings."""
    wide = widths(fmt)
    models = [Model("divide_after", s, w, None, hop, final) for s in wide for w in wide]
    for w in wide:
        for factor in dict.fromkeys((fmt.name, w or "binary64")):
            models += [Model("multiply_after", s, w, factor, hop, final) for s in wide]
            if w is not None:  # exact products make the same sum as the exact sum, multiplied
                models += [Model("multiply_before", s, w, factor, hop, final) for s in wide]
    return tuple(models)


def is_plain(model: Model, fmt: Format) -> bool:
    """One width throughout: the element format's, the natural accumulator's, or nothing rounded before the result."""
    natural = {"binary32"} if fmt.bits <= 16 else {fmt.name}
    used = {model.sum_in, model.scaled_in, *([model.factor_in] if model.factor_in else [])}
    return used == {None} or (
        len(used) == 1 and used <= {fmt.name, *natural, *(("binary16",) if fmt.bits == 8 else ())}
    )


def other_banks(fmt: Format) -> Iterator[tuple[Model, ...]]:
    """Banks of other roundings: of the result alone, then of every step."""
    for mode in MODES:
        if mode != NEAREST:
            yield bank(fmt, NEAREST, mode)
    for mode in MODES:
        if mode != NEAREST:
            yield bank(fmt, mode, mode)


def evaluate(model: Model, fmt: Format, terms: Sequence[Codes], n: int) -> Codes:
    """What the model gives for two terms (shape (m,) each) and the divisor ``n``; shape (m,)."""
    if model.formula == "multiply_before":
        factor = inverse(FORMATS[model.factor_in or fmt.name], n)
        work = FORMATS[model.scaled_in or fmt.name]
        parts = [round_sums(work, times(exact_sums(fmt, [term]), *factor), model.hop) for term in terms]
        return round_sums(fmt, _kept(exact_sums(work, parts), model.sum_in, model.hop), model.final)
    total = _kept(exact_sums(fmt, list(terms)), model.sum_in, model.hop)
    if model.formula == "divide_after":
        scaled = over(total, n)
    else:
        scaled = times(total, *inverse(FORMATS[model.factor_in or fmt.name], n))
    return round_sums(fmt, _kept(scaled, model.scaled_in, model.hop), model.final)


def _kept(sums: Sums, name: str | None, mode: str) -> Sums:
    return sums if name is None else exact_sums(FORMATS[name], [round_sums(FORMATS[name], sums, mode)])


@lru_cache(maxsize=256)
def inverse(fmt: Format, n: int) -> tuple[int, int]:
    """1/n rounded to ``fmt``, to nearest even, as (odd integer, exponent); (0, 0) where it is zero."""
    shift = 4 * fmt.precision + 2 * n.bit_length() - fmt.emin
    # Cut off far below any bit that a format sees; 1/n is exact or repeats within n bits, so no false tie can arise.
    whole, exponent = exact_sum_reference(fmt, [round_reference(fmt, (1 << shift) // n, -shift, NEAREST)])
    if whole == 0:
        return 0, 0
    zeros = (whole & -whole).bit_length() - 1
    return whole >> zeros, exponent + zeros


def over(sums: Sums, n: int) -> Sums:
    """Sums divided by n < 2**31, cut to 64 bits and a sticky bit; exact for sums of at most 64 bits."""
    by = np.uint64(n)
    whole, rest = sums.sig // by, sums.sig % by
    # The first quotient lacks b - 1 or b of 64 bits, b the bit length of n; rest < 2**31 leaves room to shift by them.
    lack = np.full(len(sums), n.bit_length() - 1, np.uint64)
    lack += ((whole << lack) >> np.uint64(63)) == 0
    whole, rest = whole << lack, rest << lack
    return _scaled(sums, whole + rest // by, sums.exp.astype(np.int64) - lack.astype(np.int64), rest % by != 0)


def times(sums: Sums, factor: int, exponent: int) -> Sums:
    """Sums times factor * 2**exponent, 0 <= factor < 2**64, cut to 64 bits and a sticky bit; exact where a sum has 64 bits."""
    if factor == 0:
        return Sums.zeros(len(sums))
    lead = 64 - factor.bit_length()
    high, low = _product(sums.sig, factor << lead)
    short = (high >> np.uint64(63)) == 0  # two numbers from 2**63 up make a product from 2**126 up
    high = np.where(short, (high << np.uint64(1)) | (low >> np.uint64(63)), high)
    low = np.where(short, low << np.uint64(1), low)
    return _scaled(sums, high, sums.exp.astype(np.int64) + exponent - lead + 64 - short, low != 0)


def _product(a: U64, b: int) -> tuple[U64, U64]:
    """Upper and lower 64 bits of a * b, by halves of 32 bits."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    b1, b0 = np.uint64(b >> 32), np.uint64(b & 0xFFFFFFFF)
    a1, a0 = a >> half, a & mask
    low, middle, high = a0 * b0, a1 * b0, a1 * b1
    middle_low = (middle & mask) + (low >> half) + ((a0 * b1) & mask)
    high = high + (middle >> half) + ((a0 * b1) >> half) + (middle_low >> half)
    return high, (middle_low << half) | (low & mask)


def _scaled(sums: Sums, sig: U64, exp: npt.NDArray[Any], rest: npt.NDArray[np.bool_]) -> Sums:
    """The kinds and signs of ``sums`` with other magnitudes."""
    number = sums.kind == FINITE
    exp = np.where(number, exp, 0).astype(np.int32)
    return replace(sums, sig=np.where(number, sig, np.uint64(0)), exp=exp, sticky=number & (rest | sums.sticky))
