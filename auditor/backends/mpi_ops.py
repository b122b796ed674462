"""User-defined MPI sums: the exact sum of two operands, rounded once by a chosen mode, carried by the library's real schedules.

:func:`add_reference` is the definition, from exact integers. :class:`PlantedSum` computes the same codes faster:

* 8-bit formats: a table of all 65,536 pairs, made by the reference.
* binary16, bfloat16, binary32: binary64 arithmetic with *rounding to odd*. TwoSum (Knuth) gives s = RN(a + b) and the exact
  error e, so the truncated sum is s, or the double below it where e points to zero; where e != 0 its last bit is set. A value
  rounded to odd with 53 bits and then once more to p <= 51 bits is the exact value rounded once, in every mode (Boldo and
  Melquiond 2008). These formats' exponents lie well inside binary64's, so s is never subnormal and never overflows. Elements
  whose result is subnormal, zero, at the largest binade's end or not finite go to the reference.
* binary64: the reference.

Rounding ``stochastic`` adds 24 noise bits below the last place and truncates (NUMERICS §7.1, "SRFF"). The noise is a hash of the
seed and of the unordered pair of operands: a sum is repeatable and the same on every rank, whichever operand comes first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import counter_hash, stream_key
from auditor.numerics.rounding import MODES, join, round_sums, split, up_by_noise

Codes = npt.NDArray[np.unsignedinteger[Any]]
U64 = npt.NDArray[np.uint64]

STOCHASTIC = "stochastic"
ROUNDINGS = (*MODES, STOCHASTIC)
NOISE_BITS = 24  # the fast path knows 29 bits of a binary32 sum's remainder, of which the last may be the odd bit
BLOCK = 1 << 13  # elements worked on at once; the scratch arrays stay in the first cache levels
MANTISSA64 = 52
BIAS64 = 1023


def add_reference(fmt: Format, a: Codes, b: Codes, rounding: str, seed: int = 0) -> Codes:
    """Codes of a + b, rounded once; shape (n,). ``seed`` matters to ``stochastic`` alone."""
    sums = exact_sums(fmt, [a, b])
    if rounding != STOCHASTIC:
        return round_sums(fmt, sums, rounding)
    seen = split(fmt, sums)
    return join(fmt, seen, up_by_noise(seen, noise(fmt, a, b, seed) << np.uint64(64 - NOISE_BITS)))


def noise(fmt: Format, a: Codes, b: Codes, seed: int) -> U64:
    """``NOISE_BITS`` hashed bits per pair of codes, the same for (b, a); shape (n,)."""
    smaller, larger = np.minimum(a, b), np.maximum(a, b)
    word = _fold(fmt, smaller, seed, 0)
    if fmt.bits <= 16:
        word = larger.astype(np.uint32) << np.uint32(16) | word
    else:
        word = counter_hash(stream_key(seed, 0, 2, 0), word) ^ _fold(fmt, larger, seed, 1)
    bits = counter_hash(stream_key(seed, 0, 3, 0), word) >> np.uint32(32 - NOISE_BITS)
    return bits.astype(np.uint64)


def _fold(fmt: Format, codes: Codes, seed: int, stream: int) -> npt.NDArray[np.uint32]:
    low = codes.astype(np.uint32)
    if fmt.bits <= 32:
        return low
    return low ^ counter_hash(stream_key(seed, 1, stream, 0), (codes >> np.uint64(32)).astype(np.uint32))


class PlantedSum:
    """An MPI user function (``in``, ``inout``, datatype) whose sum is rounded once to ``fmt``.

    An exception must not leave it: on the rank where it happens MPI would end or hang the job. It is kept in ``failure`` for the
    caller to raise after the collective, and the range is filled with NaN, so that no other rank takes it for a sum.
    """

    def __init__(self, fmt: Format, rounding: str, seed: int = 0) -> None:
        self.fmt, self.rounding, self.seed = fmt, rounding, seed
        self.failure: BaseException | None = None

    def __call__(self, inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
        del datatype  # the carrier; the format is known
        total = np.frombuffer(inoutbuf, self.fmt.dtype)
        try:
            self.add(np.frombuffer(inbuf, self.fmt.dtype), total)
        except BaseException as error:
            self.failure = error
            total.fill(self.fmt.nan_code)

    def add(self, a: Codes, total: Codes) -> None:
        """total = a + total, in place; shape (n,)."""
        if self.fmt.bits == 8:
            table = pair_table(self.fmt.name, self.rounding, self.seed)
            total[:] = table[a.astype(np.uint16) << np.uint16(8) | total]
        elif self.fmt.bits == 64:
            total[:] = add_reference(self.fmt, a, total, self.rounding, self.seed)
        else:
            self._add_by_binary64(a, total)

    def _add_by_binary64(self, a: Codes, total: Codes) -> None:
        left: list[tuple[npt.NDArray[np.intp], Codes]] = []  # where the reference must decide, and what stood there
        for start in range(0, len(total), BLOCK):
            part = slice(start, start + BLOCK)
            codes, hard = self._block(a[part], total[part])
            if len(hard):
                left.append((hard + start, total[part][hard]))
            total[part] = codes
        if left:  # together: a call of the reference costs as much as thousands of elements
            at, before = (np.concatenate(column) for column in zip(*left, strict=True))
            total[at] = add_reference(self.fmt, a[at], before, self.rounding, self.seed)

    def _block(self, a: Codes, b: Codes) -> tuple[Codes, npt.NDArray[np.intp]]:
        """Codes, and the indices at which they are not to be used."""
        word = odd_sum(as_binary64(self.fmt, a), as_binary64(self.fmt, b))
        negative = word >> np.uint64(63)
        word &= np.uint64((1 << 63) - 1)
        # From here on the word counts ulps of binary64 from the format's smallest normal exponent, so that its upper bits are the
        # magnitude code. A smaller value wraps to a huge one.
        word -= np.uint64((BIAS64 - self.fmt.bias) << MANTISSA64)
        drop = MANTISSA64 - self.fmt.mantissa_bits
        easy_from = 1 << MANTISSA64  # the smallest normal number; subnormals have another gap
        easy_to = self.fmt.max_code << drop
        hard = np.flatnonzero(word - np.uint64(easy_from) >= np.uint64(easy_to - easy_from))
        word += self._bump(word, negative, drop, a, b)
        word >>= np.uint64(drop)
        word |= negative << np.uint64(self.fmt.bits - 1)
        return word.astype(self.fmt.dtype), hard

    def _bump(self, word: U64, negative: U64, drop: int, a: Codes, b: Codes) -> Any:
        """What to add before the low ``drop`` bits are cut off; it carries exactly where the magnitude rounds up."""
        low, half = (1 << drop) - 1, 1 << (drop - 1)
        if self.rounding == "ties_to_even":
            return ((word >> np.uint64(drop)) & np.uint64(1)) + np.uint64(half - 1)
        if self.rounding == STOCHASTIC:
            return noise(self.fmt, a, b, self.seed) << np.uint64(drop - NOISE_BITS)
        if self.rounding == "toward_positive":
            return (negative ^ np.uint64(1)) * np.uint64(low)
        if self.rounding == "toward_negative":
            return negative * np.uint64(low)
        return np.uint64({"toward_zero": 0, "ties_to_away": half, "away_from_zero": low}[self.rounding])


def as_binary64(fmt: Format, codes: Codes) -> npt.NDArray[np.float64]:
    """Values of binary16, bfloat16 or binary32 codes; exact, shape (n,)."""
    if fmt.name == "bfloat16":
        codes = codes.astype(np.uint32) << np.uint32(16)
    narrow = codes.view(np.float16 if fmt.name == "binary16" else np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is quieted; NaN goes to the reference anyway
        return narrow.astype(np.float64)


def odd_sum(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> U64:
    """binary64 words of a + b rounded to odd; shape (n,). Not for sums that overflow or are subnormal in binary64."""
    with np.errstate(invalid="ignore"):  # infinities and NaN pass through as something not finite
        total = a + b
        seen = total - a
        error = (a - (total - seen)) + (b - seen)
    word = total.view(np.uint64)
    inexact = error != 0
    if inexact.any():
        toward_zero = inexact & (np.signbit(error) != np.signbit(total))
        word -= toward_zero
        word |= inexact
    return word


@cache
def pair_table(name: str, rounding: str, seed: int) -> Codes:
    """All sums of an 8-bit format: entry a * 256 + b. Shape (65536,), read-only."""
    fmt = FORMATS[name]
    pairs = np.arange(1 << 16, dtype=np.uint16)
    table = add_reference(fmt, (pairs >> 8).astype(np.uint8), (pairs & 255).astype(np.uint8), rounding, seed)
    table.flags.writeable = False
    return table
