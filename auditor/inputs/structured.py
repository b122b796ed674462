"""Families of chosen cases: ties, testfloat1, testfloat2, specials, exhaustive."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.errors import ConfigError
from auditor.model import Codes, Family
from auditor.numerics.formats import Format
from auditor.numerics.hashing import U64
from auditor.numerics.recipes import COMMON, Stream, indices, scale_word

TIES_STREAM = 0x50

# --- ties -------------------------------------------------------------------------------------------

TIE_KINDS = 5  # half an ulp, just above it, just below it, a quarter, far below (sticky)
TIE_PLACES = 4  # lo random even, random odd, the lowest and the highest significand of a binade
_EXPONENTS = 48  # binades that wide formats use


def ties(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """One contributor holds L ulp, another +-t ulp; the rest +0. So the exact sum is L +- t, whatever the order.

    t = 1/2 (a tie; L even and odd), 1/2 + 2**-p and 1/2 - 2**-(p+1) (the nearest that one p-bit term allows), 1/4,
    and a lone bit far below (only a sticky bit tells it from an exact sum). L is random, the lowest significand of its
    binade (subtracting crosses into the finer binade: t is halved there, so that ties stay ties) or the highest (adding
    carries into the next binade). All with both signs and either of the first two contributors holding L.
    What two terms cannot give: a tie plus a sticky bit, and rem = 1/2 +- anything finer than 2**-(p+1).
    """
    del family, rank_n
    if rank > 1:
        return np.zeros(stop - start, fmt.dtype)
    words = [Stream(seed, COMMON, TIES_STREAM).words(start, stop, n) for n in range(3)]
    case = scale_word(words[0], 8 * TIE_KINDS * TIE_PLACES)
    holder, negative, minus = (case >> np.uint64(bit) & np.uint64(1) for bit in range(3))
    place, kind = np.divmod(case >> np.uint64(3), np.uint64(TIE_KINDS))
    low, high = max(fmt.emin + fmt.precision + 2, -_EXPONENTS // 2), min(fmt.emax - 2, _EXPONENTS // 2)
    exponent = scale_word(words[1], high - low + 1).astype(np.int64) + low
    half = exponent - fmt.precision - ((minus != 0) & (place == 2))
    big = _tie_big(fmt, place, words[2], exponent) | (negative << np.uint64(fmt.bits - 1))
    small = _tie_small(fmt, kind, half, words[2]) | ((negative ^ minus) << np.uint64(fmt.bits - 1))
    codes: Codes = np.where(holder == rank, big, small).astype(fmt.dtype)
    return codes


def _field(fmt: Format, exponent: npt.NDArray[np.int64]) -> U64:
    return (exponent + fmt.bias).astype(np.uint64) << np.uint64(fmt.mantissa_bits)


def _tie_big(fmt: Format, place: U64, word: npt.NDArray[np.uint32], exponent: npt.NDArray[np.int64]) -> U64:
    """Code of L ulp: L is even, odd, the lowest or the highest significand of binade ``exponent``."""
    mask = np.uint64((1 << fmt.mantissa_bits) - 1)
    spread = word.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - fmt.mantissa_bits)
    zero = np.zeros_like(spread)
    fraction = np.choose(place.astype(np.intp), [spread & ~np.uint64(1), spread | np.uint64(1), zero, zero | mask])
    return _field(fmt, exponent) | (fraction & mask)


def _tie_small(fmt: Format, kind: U64, half: npt.NDArray[np.int64], word: npt.NDArray[np.uint32]) -> U64:
    """Code of t ulp where ``half`` is the exponent of half an ulp."""
    deepest = np.maximum(half - 30, fmt.emin)
    depth = ((word & np.uint32(0xFFFF)).astype(np.int64) * (half - deepest)) >> 16
    field = _field(fmt, half)
    quarter, far = _field(fmt, half - 1), _field(fmt, deepest + depth)
    return np.choose(kind.astype(np.intp), [field, field + np.uint64(1), field - np.uint64(1), quarter, far])


# --- testfloat --------------------------------------------------------------------------------------


def significand_lists(fmt: Format) -> tuple[list[int], list[int]]:
    """(P1, P2) of TestFloat 3e for any mantissa width m: P1 = {0, 1, all ones, all ones - 1}; P2 = walking one,
    runs of leading ones, runs of trailing ones, walking zero: 4m - 4 different ones (36 for binary16; bfloat16's
    own table lists one of its 24 twice).
    """
    m = fmt.mantissa_bits
    ones = (1 << m) - 1
    walking = [1 << k for k in range(m)]
    leading = [ones ^ ((1 << (m - k)) - 1) for k in range(1, m + 1)]
    trailing = [(1 << k) - 1 for k in range(1, m)]
    zero = [ones ^ (1 << k) for k in range(m)]
    return sorted({0, 1, ones, ones - 1}), list(dict.fromkeys([0, *walking, *leading, *trailing, *zero]))


@lru_cache(maxsize=32)
def testfloat_operands(fmt: Format, level: int) -> npt.NDArray[np.uint64]:
    """The operands of TestFloat 3e level 1 or 2: exponent list x significand list, both signs (its random operands
    are left out).

    Exponents: subnormal, the least, -p, -2..2, p, the largest, infinity or NaN; bfloat16 has 24 in the place of p.
    Its table for negative bfloat16 has 126 for 127; ours has 127 for both signs.
    """
    wide = 24 if fmt.name == "bfloat16" else fmt.precision
    exponents = sorted({-wide, wide, *range(-2, 3), fmt.emin, fmt.emax} & set(range(fmt.emin, fmt.emax + 1)))
    fields = [0, *(e + fmt.bias for e in exponents), (1 << (fmt.bits - 1 - fmt.mantissa_bits)) - 1]
    significands = significand_lists(fmt)[level - 1]
    magnitudes = [field << fmt.mantissa_bits | s for field in dict.fromkeys(fields) for s in significands]
    return np.array([*magnitudes, *(fmt.sign_mask | m for m in magnitudes)], np.uint64)


def testfloat(level: int) -> Callable[..., Codes]:
    """The family of one level: contributors 0 and 1 hold operand pair number (index + index // pairs) mod pairs;
    the others +0.

    Each further round is turned by one element, so that no pair keeps its place in a 16-byte word.
    """

    def direct(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
        del family, rank_n
        operands = testfloat_operands(fmt, level)
        if rank > 1:
            return np.zeros(stop - start, fmt.dtype)
        n = len(operands)
        case = _turning(start, stop, n * n, seed)
        chosen = case // np.uint64(n) if rank == 0 else case % np.uint64(n)
        return operands[chosen.astype(np.intp)].astype(fmt.dtype)

    return direct


def _turning(start: int, stop: int, cases: int, seed: int) -> U64:
    """Case numbers by index: round after round, each turned by one more element; the seed turns all."""
    index = indices(start, stop)
    return (index + index // np.uint64(cases) + np.uint64(seed % cases)) % np.uint64(cases)


# --- specials ---------------------------------------------------------------------------------------


def special_codes(fmt: Format) -> list[int]:
    """NaNs (quiet, the largest payload, signalling), infinities, zeros, least and largest subnormal, least and
    largest normal; both signs.
    """
    infinity = fmt.overflow_code
    nans = [fmt.nan_code, fmt.magnitude_mask, infinity + 1] if fmt.has_infinity else [fmt.nan_code]
    finite = [0, 1, (1 << fmt.mantissa_bits) - 1, 1 << fmt.mantissa_bits, fmt.max_code]
    magnitudes = dict.fromkeys([*nans, *([infinity] if fmt.has_infinity else []), *finite])
    return [sign | m for m in magnitudes for sign in (0, fmt.sign_mask)]


def specials(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """Every special value at each contributor in turn, by index, each among: all +0; all -0; all 1.0; a second
    special value at the next contributor and +0 elsewhere (each in turn); NaNs everywhere, with a payload by
    contributor.
    """
    del family
    values = np.array(special_codes(fmt), np.uint64)
    k = len(values)
    case = _turning(start, stop, k * rank_n * (k + 4), seed)
    slot, rest = case % np.uint64(rank_n), case // np.uint64(rank_n)
    value, company = values[(rest % np.uint64(k)).astype(np.intp)], (rest // np.uint64(k)).astype(np.int64)
    others = [0, fmt.sign_mask, fmt.power_of_two(0), fmt.nan_code | (rank + 1) % max(1, 1 << (fmt.mantissa_bits - 1))]
    around = np.where(company < 4, np.array(others, np.uint64)[np.minimum(company, 3)], np.uint64(0))
    second = (company >= 4) & (slot == np.uint64((rank - 1) % rank_n))
    around = np.where(second, values[np.maximum(company - 4, 0)], around)
    codes: Codes = np.where(slot == rank, value, around).astype(fmt.dtype)
    return codes


# --- exhaustive -------------------------------------------------------------------------------------

CHUNK_BITS = 20


def exhaustive(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """Every pair of codes at contributors 0 (low half of the pair's number) and 1, NaN and infinities among them;
    the others +0.

    8-bit formats: all 65,536 pairs, by index. 16-bit formats: ``chunk`` = 0..4095 chooses 2**20 of the 2**32. The
    seed plays no part.
    """
    del seed, rank_n
    chunk, chunks = family.get("chunk", 0), 1 << max(0, 2 * fmt.bits - CHUNK_BITS)
    if fmt.bits > 16:
        raise ConfigError(f"family {family}: {fmt.name} has too many pairs; exhaustive is for 8- and 16-bit formats")
    if not isinstance(chunk, int) or not 0 <= chunk < chunks:
        raise ConfigError(f"family {family}: chunk = {chunk!r}; {fmt.name} has chunks 0..{chunks - 1}")
    if rank > 1:
        return np.zeros(stop - start, fmt.dtype)
    size = 1 << min(CHUNK_BITS, 2 * fmt.bits)
    pair: npt.NDArray[Any] = (indices(start, stop) & np.uint64(size - 1)) + np.uint64(chunk * size)
    return (pair >> np.uint64(fmt.bits * rank)).astype(fmt.dtype)
