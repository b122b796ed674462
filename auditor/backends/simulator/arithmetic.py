"""What one share's elements come to before the final rounding: sum, average, minimum, maximum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.backends.simulator.options import Recipe
from auditor.errors import Unsupported
from auditor.model import Codes
from auditor.numerics.exact import FINITE, Sums, exact_sum_reference, exact_sums, exact_sums_of_integers
from auditor.numerics.formats import Format
from auditor.numerics.rounding import round_reference, round_sums
from auditor.numerics.trees import Tree, evaluate_to_sums

U64 = npt.NDArray[np.uint64]
_HALF_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def total(recipe: Recipe, op: str, tree: Tree, terms: Sequence[Codes]) -> Sums:
    """Accumulator values of a sum or an average, shape (n,): exact ones where the accumulator is."""
    n = len(terms)
    if op == "sum" or n == 1:
        return _added(recipe, tree, terms, recipe.fmt)
    work = recipe.accumulator or recipe.fmt
    if recipe.options.average == "multiply_before":
        scaled = [
            round_sums(work, _times_inverse(exact_sums(recipe.fmt, [t]), work, n), recipe.options.hop) for t in terms
        ]
        return _added(recipe, tree, scaled, work)
    added = _added(recipe, tree, terms, recipe.fmt)
    mean = _over(added, n) if recipe.options.average == "divide_after" else _times_inverse(added, work, n)
    if recipe.accumulator is not None:
        return exact_sums(work, [round_sums(work, mean, recipe.options.hop)])
    _mend_long_sums(recipe, mean, added, terms)
    return mean


def extreme(fmt: Format, op: str, terms: Sequence[Codes]) -> Codes:
    """Minimum or maximum of codes, shape (n,): NaN wins, -0 lies below +0 (IEEE 754-2019, 9.6)."""
    stack = np.stack(terms)
    sign = fmt.dtype.type(fmt.sign_mask)
    # Flipping all bits of negative codes and the sign of the others puts codes in the order of their values.
    keys = np.where(stack & sign, ~stack, stack | sign)
    key = keys.min(axis=0) if op == "min" else keys.max(axis=0)
    nan = (
        (stack & fmt.dtype.type(fmt.magnitude_mask)) > (fmt.overflow_code if fmt.has_infinity else fmt.max_code)
    ).any(axis=0)
    codes: Codes = np.where(nan, fmt.dtype.type(fmt.nan_code), np.where(key & sign, key & ~sign, ~key))
    return codes


def _added(recipe: Recipe, tree: Tree, terms: Sequence[Codes], fmt: Format) -> Sums:
    if recipe.accumulator is None:
        return exact_sums(fmt, terms)
    return evaluate_to_sums(tree, terms, fmt, accumulator=recipe.accumulator, hop=recipe.options.hop)


@lru_cache(maxsize=64)
def inverse(fmt: Format, n: int) -> int:
    """Code of 1/n, rounded to nearest, ties to even."""
    # No run of equal bits in the expansion of 1/n is longer than n itself, so that what is cut off this far down cannot decide.
    shift = 2 * fmt.precision - fmt.emin + 2 * n.bit_length()
    return round_reference(fmt, (1 << shift) // n, -shift, "ties_to_even")


def _times_inverse(sums: Sums, fmt: Format, n: int) -> Sums:
    """Sums times 1/n as ``fmt`` holds it; exact where the sums have no more than 64 bits and ``fmt`` too."""
    factor, exponent = exact_sum_reference(fmt, [inverse(fmt, n)])
    if factor == 0:
        raise Unsupported(f"1/{n} is zero in {fmt.name}: no average by multiplication")
    lead = 64 - factor.bit_length()
    high, low = _product(sums.sig, np.uint64(factor << lead) if lead >= 0 else np.uint64(factor >> -lead))
    early = (high >> np.uint64(63)) == 0  # the product of two significands has its top bit at 127 or 126
    sig = np.where(early, (high << np.uint64(1)) | (low >> np.uint64(63)), high)
    rest = np.where(early, low << np.uint64(1), low)
    return _same_kinds(sums, sig, sums.exp + exponent - lead + 64 - early, sums.sticky | (rest != 0))


def _product(a: U64, b: np.uint64) -> tuple[U64, U64]:
    """Upper and lower word of a 64 by 64 bit product."""
    a1, a0, b1, b0 = a >> _HALF_WORD, a & _LOW, b >> _HALF_WORD, b & _LOW
    middle = a1 * b0 + ((a0 * b0) >> _HALF_WORD)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _HALF_WORD) + (other >> _HALF_WORD), (other << _HALF_WORD) | (a0 * b0 & _LOW)


def _over(sums: Sums, n: int) -> Sums:
    """Sums divided by n, to 64 bits and a sticky bit; exact where the sums have no more than 64 bits. n < 2**32."""
    divisor = np.uint64(n)
    quotient, rest = sums.sig // divisor, sums.sig % divisor
    # sig lies in [2**63, 2**64) and n in [2**(b-1), 2**b): the quotient lacks b - 1 or b leading bits.
    shift = np.full(len(sums), n.bit_length() - 1, np.uint64)
    shift += (quotient << shift) < np.uint64(1 << 63)
    quotient = (quotient << shift) | ((rest << shift) // divisor)
    rest = (rest << shift) % divisor
    return _same_kinds(sums, quotient, sums.exp - shift.astype(np.int64), sums.sticky | (rest != 0))


def _same_kinds(sums: Sums, sig: U64, exp: npt.NDArray[Any], sticky: npt.NDArray[np.bool_]) -> Sums:
    number = sums.kind == FINITE
    scaled = np.where(number, exp, 0).astype(np.int32)
    return replace(sums, sig=np.where(number, sig, np.uint64(0)), exp=scaled, sticky=sticky & number)


def _mend_long_sums(recipe: Recipe, mean: Sums, added: Sums, terms: Sequence[Codes]) -> None:
    """Exact averages again, in Python integers, where the sum has more than 64 bits and its sticky bit would be scaled too."""
    n, work = len(terms), recipe.fmt
    for index in np.flatnonzero(added.sticky):
        numerator, exponent = exact_sum_reference(work, [int(term[index]) for term in terms])
        if recipe.options.average == "divide_after":
            numerator, exponent, over = numerator << (64 + n.bit_length()), exponent - 64 - n.bit_length(), n
        else:
            factor, by = exact_sum_reference(work, [inverse(work, n)])
            numerator, exponent, over = numerator * factor, exponent + by, 1
        mean[index : index + 1] = _from_ratio(numerator, over, exponent)


def _from_ratio(numerator: int, over: int, exponent: int) -> Sums:
    """One non-zero number numerator / over * 2**exponent; the quotient must have at least 64 bits."""
    quotient, rest = divmod(abs(numerator), over)
    drop = quotient.bit_length() - 64
    one = exact_sums_of_integers(np.array([-1 if numerator < 0 else 1]), 0)
    one.sig[0] = quotient >> drop
    one.exp[0] = exponent + drop
    one.sticky[0] = rest != 0 or quotient & ((1 << drop) - 1) != 0
    return one
