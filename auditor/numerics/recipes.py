"""Input streams reduced to integers: what a host loop and a device kernel must repeat bit by bit.

A :class:`Recipe` is a family with everything resolved: the format, the seed, the contributor, and a few small
integers. ``evaluate`` is the NumPy reference; ``kernels`` holds the fast twins. Integer arithmetic only, but for
conversions of integers below 2**53 to binary64, which are exact everywhere. The index is 64 bits wide: its low word
is hashed, its high word is part of the key (``hashing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import Format
from auditor.numerics.hashing import MASK32, MASK64, U32, U64, counter_hash, splitmix64, stream_key

Codes = npt.NDArray[np.unsignedinteger[Any]]

COMMON = MASK32  # the "rank" of a stream that all contributors share
CLT_CENTRE = 4 * 0xFFFF // 2  # mean of the sum of four 16-bit words


@dataclass(frozen=True, slots=True)
class Stream:
    """A hash stream: the value at index i is counter_hash(stream_key(seed, rank, number, i >> 32), i & 0xFFFFFFFF)."""

    seed: int
    rank: int
    number: int

    def words(self, start: int, stop: int, offset: int = 0) -> U32:
        """uint32 hashes of the indices [start, stop) of stream number + offset."""
        parts = [
            counter_hash(stream_key(self.seed, self.rank, self.number + offset, high), low)
            for high, low in split_index(start, stop)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One contributor's data as integers. ``kind`` names the rule; ``params`` are its integers, in the order that
    the rule documents.

    ``scaled`` (bits, span, low): +-significand of ``bits`` bits, top bit set, times 2**(e - bits + 1), e uniform on
    low..low+span.
    ``sparse`` (bits, span, low, active, contributors): the same, but only ``active`` contributors at each index;
    the others +0.
    ``report132`` (): NUMERICS §1.4.
    ``normal`` (top,): four 16-bit words summed, |x| < 2**(top+1), standard deviation 0.289 of that.
    ``lognormal`` (shift, centre): log2|x| = centre + that sum / 2**shift, linear within a binade; random sign.
    ``rank_coded`` (bit, size, slots, low): see :func:`rank_code`; bit -1: +0.
    ``zero`` (): +0.
    """

    kind: str
    fmt: Format
    seed: int
    rank: int
    stream: int
    params: tuple[int, ...] = ()

    @property
    def source(self) -> Stream:
        return Stream(self.seed, self.rank, self.stream)


def split_index(start: int, stop: int) -> Iterator[tuple[int, U32]]:
    """(high word, low words) for the indices [start, stop), cut where the high word changes."""
    while start < stop:
        end = min(stop, ((start >> 32) + 1) << 32)
        first = np.uint32(start & MASK32)
        yield start >> 32, np.arange(end - start, dtype=np.uint32) + first
        start = end


def indices(start: int, stop: int) -> U64:
    """uint64 indices [start, stop)."""
    return np.arange(stop - start, dtype=np.uint64) + np.uint64(start & MASK64)


def scale_word(words: U32, choices: int) -> npt.NDArray[np.uint64]:
    """Uniform integers below ``choices`` from the whole 32-bit words: floor(word * choices / 2**32), uint64."""
    return (words.astype(np.uint64) * np.uint64(choices)) >> np.uint64(32)


def truncate(fmt: Format, negative: npt.NDArray[np.bool_], magnitude: U64, exponent: npt.NDArray[Any] | int) -> Codes:
    """Codes of +-magnitude * 2**exponent cut toward zero to the format's precision; magnitude below 2**53, result
    in range.

    The conversion to binary64 is exact, so its exponent field is the bit length: no search for the leading bit.
    """
    word = magnitude.astype(np.float64).view(np.uint64)
    top = (word >> np.uint64(52)).astype(np.int64) - 1023 + exponent  # exponent of the leading bit
    fraction = word & np.uint64((1 << 52) - 1)
    significand = (fraction | np.uint64(1 << 52)) >> np.uint64(52 - fmt.mantissa_bits)
    below = np.clip(fmt.emin - top, 0, 63).astype(np.uint64)
    field = (np.maximum(top, fmt.emin) - fmt.emin).astype(np.uint64) << np.uint64(fmt.mantissa_bits)
    code = np.where(magnitude == 0, np.uint64(0), field + (significand >> below))
    codes: Codes = (code | (negative.astype(np.uint64) << np.uint64(fmt.bits - 1))).astype(fmt.dtype)
    return codes


def evaluate(recipe: Recipe, start: int, stop: int) -> Codes:
    """Codes of the indices [start, stop), shape (stop - start,), the format's code dtype."""
    return _RULES[recipe.kind](recipe, start, stop)


def _zero(recipe: Recipe, start: int, stop: int) -> Codes:
    return np.zeros(stop - start, recipe.fmt.dtype)


def _fraction(recipe: Recipe, first: U32, start: int, stop: int) -> Codes:
    """Random mantissa bits, in place, in the code dtype: the low half of the first word, or further words."""
    fmt, source = recipe.fmt, recipe.source
    if fmt.bits <= 16:
        return first.astype(fmt.dtype)
    second = source.words(start, stop, 1)
    if fmt.bits == 32:
        return second
    return second.astype(np.uint64) | (source.words(start, stop, 2).astype(np.uint64) << np.uint64(32))


def mantissa_mask(recipe: Recipe) -> int:
    """The mantissa bits that a recipe of the rule ``scaled`` draws: the upper ``bits`` - 1, in place."""
    bits = recipe.params[0]
    return ((1 << (bits - 1)) - 1) << (recipe.fmt.precision - bits)


def _scaled(recipe: Recipe, start: int, stop: int) -> Codes:
    _, span, low = recipe.params
    fmt, dtype = recipe.fmt, recipe.fmt.dtype.type
    word = recipe.source.words(start, stop)
    code = _fraction(recipe, word, start, stop)
    code &= dtype(mantissa_mask(recipe))
    exponent = (((word >> np.uint32(16)) & np.uint32(0x7FFF)) * np.uint32(span + 1)) >> np.uint32(15)
    exponent += np.uint32(low + fmt.bias)
    code |= exponent.astype(fmt.dtype) << dtype(fmt.mantissa_bits)
    code |= (word >> np.uint32(31)).astype(fmt.dtype) << dtype(fmt.bits - 1)
    return code


def _sparse(recipe: Recipe, start: int, stop: int) -> Codes:
    """More contributors than the format can hold at once: a hash that all share turns the choice from index to
    index.
    """
    active, contributors = recipe.params[3:]
    turn = scale_word(Stream(recipe.seed, COMMON, recipe.stream + 8).words(start, stop), contributors)
    chosen = (turn + np.uint64(recipe.rank)) % np.uint64(contributors) < active
    dense = replace(recipe, kind="scaled", params=recipe.params[:3])
    return np.where(chosen, _scaled(dense, start, stop), recipe.fmt.dtype.type(0))


def _report132(recipe: Recipe, start: int, stop: int) -> Codes:
    fmt = recipe.fmt
    state = indices(start, stop) ^ np.uint64(((recipe.seed << 40) ^ (recipe.rank << 32)) & MASK64)
    word = splitmix64(state)
    exponent = (word >> np.uint64(32)) % np.uint64(9) + np.uint64(fmt.bias - 4)
    code = (word & np.uint64((1 << fmt.mantissa_bits) - 1)) | (exponent << np.uint64(fmt.mantissa_bits))
    codes: Codes = (code | ((word >> np.uint64(63)) << np.uint64(fmt.bits - 1))).astype(fmt.dtype)
    return codes


def _clt(recipe: Recipe, start: int, stop: int) -> tuple[npt.NDArray[np.int64], U32, U64, int]:
    """(sum of four 16-bit words less its mean, sign word, random low bits, how many of them)."""
    source = recipe.source
    first, second, third = (source.words(start, stop, offset) for offset in range(3))
    half = np.uint32(0xFFFF)
    total = (first & half) + (first >> np.uint32(16)) + (second & half) + (second >> np.uint32(16))
    extra, width = third.astype(np.uint64) & np.uint64(0x3F), 6
    if recipe.fmt.bits > 16:
        fourth = source.words(start, stop, 3).astype(np.uint64) >> np.uint64(28)
        extra, width = ((third.astype(np.uint64) & np.uint64(0x7FFFFFFF)) << np.uint64(4)) | fourth, 35
    return total.astype(np.int64) - CLT_CENTRE, third, extra, width


def _normal(recipe: Recipe, start: int, stop: int) -> Codes:
    (top,) = recipe.params
    value, _, extra, width = _clt(recipe, start, stop)
    magnitude = (np.abs(value).astype(np.uint64) << np.uint64(width)) | extra | np.uint64(1)
    return truncate(recipe.fmt, value < 0, magnitude, top - 16 - width)


def _lognormal(recipe: Recipe, start: int, stop: int) -> Codes:
    shift, centre = recipe.params
    value, sign, extra, width = _clt(recipe, start, stop)
    within = (value & ((1 << shift) - 1)).astype(np.uint64)
    magnitude = ((within | np.uint64(1 << shift)) << np.uint64(width)) | extra
    return truncate(recipe.fmt, sign >= np.uint32(1 << 31), magnitude, (value >> shift) + centre - shift - width)


@dataclass(frozen=True, slots=True, eq=False)
class RankCode:
    """How the contributors of one pass are laid out at each index. Contributor r of the pass holds the bit (r +
    rotation) mod size, and sends +-2**(unit + bit). ``rotation`` uint32 and ``unit`` int32 of shape (n,),
    ``negative`` bool: the sign that all share.
    """

    rotation: U32
    unit: npt.NDArray[np.int32]
    negative: npt.NDArray[np.bool_]
    size: int

    def bits(self, position: int) -> npt.NDArray[np.int32]:
        """Bit number of the pass's contributor ``position`` at each index."""
        return ((self.rotation + np.uint32(position)) % np.uint32(self.size)).astype(np.int32)


def rank_code(seed: int, stream: int, size: int, slots: int, low: int, start: int, stop: int) -> RankCode:
    """Layout at the indices [start, stop). Both rotation and unit advance by one with the seed, so that seeds s and
    s + 1 differ in the sum at every index, whatever the number of contributors; the sign comes from a hash keyed by
    the seed.
    """
    place = Stream(0, COMMON, stream).words(start, stop)
    rotation = (((place & np.uint32(0xFFFF)) * np.uint32(size)) >> np.uint32(16)) + np.uint32(seed % size)
    unit = (((place >> np.uint32(16)) * np.uint32(slots)) >> np.uint32(16)) + np.uint32(seed % slots)
    negative = Stream(seed, COMMON, stream + 1).words(start, stop) >= np.uint32(1 << 31)
    unit %= np.uint32(slots)
    return RankCode(rotation % np.uint32(size), unit.astype(np.int32) + np.int32(low), negative, size)


def _rank_coded(recipe: Recipe, start: int, stop: int) -> Codes:
    bit, size, slots, low = recipe.params
    layout = rank_code(recipe.seed, recipe.stream, size, slots, low, start, stop)
    exponent = (layout.bits(bit) + layout.unit + np.int32(recipe.fmt.bias)).astype(recipe.fmt.dtype)
    dtype = recipe.fmt.dtype.type
    sign = layout.negative.astype(recipe.fmt.dtype) << dtype(recipe.fmt.bits - 1)
    codes: Codes = (exponent << dtype(recipe.fmt.mantissa_bits)) | sign
    return codes


_RULES = {
    "zero": _zero,
    "scaled": _scaled,
    "sparse": _sparse,
    "report132": _report132,
    "normal": _normal,
    "lognormal": _lognormal,
    "rank_coded": _rank_coded,
}
