"""The containers that exact sums are made in, and the record of such sums. Chosen among by :mod:`auditor.numerics.exact`.

With W = largest less smallest scale among the terms, p the precision and c = ceil(log2(number of terms)), every partial sum
of every order fits in W + p + c magnitude bits (NUMERICS §2). No float takes part in a sum, so no cast can round one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import Format

Codes = npt.NDArray[np.unsignedinteger[Any]]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FINITE, PLUS_ZERO, MINUS_ZERO, OTHER_ZERO, PLUS_INFINITY, MINUS_INFINITY, NAN = range(7)

CONTAINERS = {"int64": 63, "limbs": 127, "buckets": 1 << 62}  # magnitude bits
BLOCK = 1 << 14  # elements that are worked on at once: the scratch arrays stay in the second-level cache
BUCKET_WORDS = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Exact sums, shape (n,) each. |x| = (sig + [sticky: something in (0, 1)]) * 2**exp.

    ``sig`` has its top bit set unless the sum is zero or not finite (then sig, exp and sticky are 0).
    ``kind``: 0 finite and not zero, 1 every term is +0, 2 every term is -0, 3 an exact zero of another kind, 4 +inf,
    5 -inf, 6 NaN.
    ``sticky`` is set only where the sum has more than 64 significant bits.
    """

    negative: Bools
    sig: U64
    exp: npt.NDArray[np.int32]
    sticky: Bools
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.sig)

    def __getitem__(self, index: Any) -> Sums:
        """The sums at a slice, a mask or an index array."""
        return Sums(self.negative[index], self.sig[index], self.exp[index], self.sticky[index], self.kind[index])

    def __setitem__(self, index: Any, part: Sums) -> None:
        for name in self.__slots__:
            getattr(self, name)[index] = getattr(part, name)

    @staticmethod
    def zeros(n: int) -> Sums:
        """``n`` sums of +0 terms."""
        bools = (np.zeros(n, np.bool_), np.zeros(n, np.bool_))
        kind = np.full(n, PLUS_ZERO, np.uint8)
        return Sums(bools[0], np.zeros(n, np.uint64), np.zeros(n, np.int32), bools[1], kind)


def stacked(terms: Sequence[Codes]) -> Iterator[Codes]:
    """The terms as 2-D arrays (terms, elements); short terms are stacked, so that many stay cheap."""
    rows = max(1, BLOCK // max(1, len(terms[0])))
    for first in range(0, len(terms), rows):
        group = terms[first : first + rows]
        yield np.stack(group) if len(group) > 1 else group[0][None]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The terms of some sums, and the span of their scales: value = significand * 2**(lsb + scale).

    ``low``, ``high``: smallest and largest scale among the non-zero finite terms, for all elements or for each.
    """

    fmt: Format
    terms: Sequence[Codes]
    special: bool
    low: Codes
    high: Codes

    @property
    def bits(self) -> Any:
        """Magnitude bits that every partial sum of every order fits in."""
        return self.high.astype(np.int64) - self.low + (self.fmt.precision + (len(self.terms) - 1).bit_length())

    def chunks(self) -> Iterator[Codes]:
        """Finite codes, 2-D (terms, elements): zero in place of infinities and NaN."""
        for codes in stacked(self.terms):
            if self.special:
                yield np.where(magnitude_of(self.fmt, codes) > self.fmt.max_code, code_of(self.fmt, 0), codes)
            else:
                yield codes

    def at(self, index: Any) -> Block:
        """The elements at ``index``; the span must be given for each element."""
        terms = [term[index] for term in self.terms]
        return Block(self.fmt, terms, self.special, self.low[index], self.high[index])


def scale_of(fmt: Format, magnitude: Codes) -> Codes:
    """Scale s of each magnitude code: its value is a whole number below 2**p times 2**(lsb + s)."""
    scale: Codes = magnitude >> code_of(fmt, fmt.mantissa_bits)
    scale -= scale != 0
    return scale


def magnitude_of(fmt: Format, codes: Codes) -> Codes:
    """Magnitude codes: the sign bit cleared."""
    magnitude: Codes = codes & code_of(fmt, fmt.magnitude_mask)
    return magnitude


def code_of(fmt: Format, value: int) -> Any:
    return fmt.dtype.type(value)


def _scaled(fmt: Format, codes: Codes) -> tuple[npt.NDArray[Any], Codes]:
    """(signed significand, scale): value = significand * 2**(lsb + scale). Same width as the codes.

    With biased exponent e, scale = max(e, 1) - 1 and the significand is magnitude - (scale << mantissa_bits): for e > 0
    that leaves the hidden bit standing, for subnormals scale is 0.
    """
    magnitude = magnitude_of(fmt, codes)
    scale = scale_of(fmt, magnitude)
    magnitude -= scale << code_of(fmt, fmt.mantissa_bits)
    signed = np.dtype(f"i{fmt.itemsize}")
    sign = codes.view(signed) >> signed.type(fmt.bits - 1)  # 0 or -1
    significand = magnitude.view(signed)
    significand ^= sign
    significand -= sign
    return significand, scale


def _int64(block: Block) -> Sums:
    total = np.zeros(len(block.terms[0]), np.uint64)
    for codes in block.chunks():
        significand, scale = _scaled(block.fmt, codes)
        scale -= block.low  # wraps for a zero, which no shift changes
        value = significand.astype(np.int64).view(np.uint64)  # shifting the two's complement pattern multiplies it
        value <<= scale
        total += value.sum(axis=0) if len(value) > 1 else value[0]
    return exact_sums_of_integers(total.view(np.int64), block.fmt.lsb + block.low.astype(np.int64))


def _limbs(block: Block) -> Sums:
    """Signed sums modulo 2**128 in (upper, lower). A negative term is added as its complement, plus 1.

    Two terms always fit: with h the scale of the larger term L, a term t of a scale under h - (126 - p) is replaced by
    one unit of 2**(h - (126 - p)), with its sign. L is a multiple of 2**h and at least 2**(h + p - 1), so the 64 bits of
    ``sig`` reach down to 2**(h + p - 65) at the lowest, and both t (< 2**(h + 2p - 127), p <= 53) and the unit lie
    strictly between 0 and that: sig and sticky come out the same.
    """
    low = block.low.astype(np.uint64)
    pair = len(block.terms) == 2
    if pair:
        room = CONTAINERS["limbs"] - block.fmt.precision - 1
        low = np.maximum(low, np.maximum(block.high.astype(np.int64) - room, 0).astype(np.uint64))
    lower = upper = none = np.zeros(1, np.uint64)
    for codes in block.chunks():
        significand, scale = _scaled(block.fmt, codes)
        flip = (significand.astype(np.int64) >> np.int64(63)).view(np.uint64)
        size = np.abs(significand).astype(np.uint64)
        shift = scale.astype(np.uint64) - low  # wraps for a zero, which no shift changes
        if pair:
            far = (scale < low) & (size != 0)
            size[far], shift[far] = 1, 0
        # NumPy gives 0 for a shift of 64 or more, and the counts wrap to huge ones where a part is empty.
        below = (size << shift) ^ flip
        above = ((size >> (np.uint64(64) - shift)) | (size << (shift - np.uint64(64)))) ^ flip
        lower, upper = _add128(lower, upper, *_column_sums(below, above))
        lower, upper = _add128(lower, upper, (flip & np.uint64(1)).sum(axis=0), none)
    negative = upper.view(np.int64) < 0
    flip = negative.astype(np.uint64) * np.uint64((1 << 64) - 1)
    lower, upper = _add128(lower ^ flip, upper ^ flip, negative.astype(np.uint64), none)
    return _from_words(negative, upper, lower, block.fmt.lsb + low.astype(np.int64))


def _add128(lower: U64, upper: U64, part: U64, above: U64) -> tuple[U64, U64]:
    total = lower + part
    return total, upper + above + (total < part)


def _column_sums(lower: U64, upper: U64) -> tuple[U64, U64]:
    """Sums modulo 2**128 over the first axis, of at most 2**32 rows: 32-bit pieces are summed, then carries move up."""
    if len(lower) == 1:
        return lower[0], upper[0]
    low, half = np.uint64((1 << 32) - 1), np.uint64(32)
    pieces = [part.sum(axis=0) for word in (lower, upper) for part in (word & low, word >> half)]
    for k in (1, 2, 3):
        pieces[k] += pieces[k - 1] >> half
    return (pieces[0] & low) | (pieces[1] << half), (pieces[2] & low) | (pieces[3] << half)


def _from_words(negative: Bools, upper: U64, lower: U64, unit: int | npt.NDArray[Any]) -> Sums:
    """Sums from magnitudes (upper * 2**64 + lower) * 2**unit."""
    alone = upper == 0
    top = np.where(alone, lower, upper)
    rest = np.where(alone, np.uint64(0), lower)
    lead = leading_zeros(top)
    shift = lead.astype(np.uint64)
    sig = (top << shift) | (rest >> (np.uint64(64) - shift))
    zero = sig == 0
    exp = np.where(zero, 0, np.where(alone, unit, unit + 64) - lead).astype(np.int32)
    return Sums(negative & ~zero, sig, exp, (rest << shift) != 0, np.where(zero, OTHER_ZERO, FINITE).astype(np.uint8))


def leading_zeros(words: U64) -> npt.NDArray[np.int64]:
    """Leading zero bits of each 64-bit word; 64 for zero."""
    # Without the bit below each set bit the word is under 1.5 times its leading power of two, so that the conversion to
    # binary64 cannot carry into the next binade: its exponent field is then that of the leading bit.
    field = (words & ~(words >> np.uint64(1))).astype(np.float64).view(np.int64) >> np.int64(52)
    return np.where(words == 0, np.int64(64), np.int64(63 + 1023) - field)


def _buckets(block: Block) -> Sums:
    """Sums over the full range: m * 2**s is added as m << (s % stride) to bucket s // stride; carries move at the end.

    A bucket has room for 2**20 terms: bfloat16 8 + 31 bits, binary16 11 + 31, binary32 24 + 15; binary64 is cut into
    26 and 27 bits, so 27 + 15, and the two pieces of a term may meet in one bucket.
    """
    fmt = block.fmt
    stride = 32 if fmt.precision <= 11 else 16
    spare = 64 // stride  # what 2**63 in the top bucket spills into
    low = int(block.low.min())
    bucket_n = (int(block.high.max()) - low + 26) // stride + 1 + spare
    bucket_n += bucket_n % 2
    n = len(block.terms[0])
    sums = Sums.zeros(n)
    width = max(1, BUCKET_WORDS // bucket_n)
    for start in range(0, n, width):
        part = slice(start, min(start + width, n))
        buckets = np.zeros((bucket_n, part.stop - start), np.int64)
        for codes in Block(fmt, [term[part] for term in block.terms], block.special, block.low, block.high).chunks():
            _add_to_buckets(fmt, buckets, codes, low, stride)
        sums[part] = _from_buckets(buckets, stride, fmt.lsb + low)
    return sums


def _add_to_buckets(fmt: Format, buckets: I64, codes: Codes, low: int, stride: int) -> None:
    significand, scale = _scaled(fmt, codes)
    value = significand.astype(np.int64)
    place = np.maximum(scale.astype(np.int64) - low, 0)  # a zero may lie below
    column = np.broadcast_to(np.arange(codes.shape[1]), codes.shape)
    pieces = [(value, place)]
    if fmt.precision > 32:
        upper = value >> np.int64(26)  # floor, so that the lower piece is not negative
        pieces = [(value - (upper << np.int64(26)), place), (upper, place + 26)]
    for piece, at in pieces:
        index = (at // stride) * buckets.shape[1] + column
        np.add.at(buckets.reshape(-1), index.reshape(-1), (piece << (at % stride)).reshape(-1))


def _carry(buckets: I64, stride: int) -> I64:
    """Digits of ``stride`` bits, not negative, and the sign (0 or -1) in the last row."""
    digits = buckets.copy()
    for row in range(len(digits) - 1):
        digits[row + 1] += digits[row] >> np.int64(stride)
        digits[row] &= np.int64((1 << stride) - 1)
    return digits


def _from_buckets(buckets: I64, stride: int, unit: int) -> Sums:
    negative = _carry(buckets, stride)[-1] < 0
    digits = _carry(np.where(negative, -buckets, buckets), stride).view(np.uint64)
    if stride == 16:
        digits = digits[0::2] | (digits[1::2] << np.uint64(16))
    column = np.arange(digits.shape[1])
    digits = np.concatenate(
        [np.zeros((2, len(column)), np.uint64), digits]
    )  # two rows below, so that the top has neighbours
    used = digits != 0
    top = np.maximum(len(digits) - 1 - used[::-1].argmax(axis=0), 2)
    word = (digits[top, column] << np.uint64(32)) | digits[top - 1, column]
    below = digits[top - 2, column] << np.uint64(32)
    sums = _from_words(negative, word, below, 0)
    exp = np.where(sums.sig == 0, 0, sums.exp + unit + 32 * (top - 3) - 64).astype(np.int32)
    sticky = sums.sticky | (used.argmax(axis=0) < top - 2)
    return Sums(sums.negative, sums.sig, exp, sticky & (sums.sig != 0), sums.kind)


def exact_sums_of_integers(values: I64, unit: int | npt.NDArray[Any]) -> Sums:
    """The numbers values * 2**unit as sums; shape (n,). Zeros get kind 3: an integer does not tell how they arose."""
    magnitude = np.abs(values).view(np.uint64)  # abs(-2**63) wraps to itself: 2**63 when unsigned
    return _from_words(values < 0, magnitude, np.zeros(1, np.uint64), unit - 64)


ADDERS: dict[str, Callable[[Block], Sums]] = {"int64": _int64, "limbs": _limbs, "buckets": _buckets}
