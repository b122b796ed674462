"""The family ``neighbours``: sums whose remainder and whose neighbours' bits are both chosen (NUMERICS §7.3, §7.4).

Every element's sum is (2**(p-1) + kept + T / 2**W) ulp in one of two binades: ``kept`` are mantissa bits that a rounding keyed by
neighbours may read, T / 2**W is ``rem``. One contributor sends the kept bits and the others +-T, so that the sum is exact in
any order in an accumulator of 24 bits (of which W lie below the format).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auditor.errors import ConfigError
from auditor.model import Codes, Family
from auditor.numerics.formats import Format
from auditor.numerics.hashing import U64
from auditor.numerics.recipes import COMMON, Stream, indices, scale_word, truncate

STREAM, OTHER_STREAM, BLOCK_STREAM = 0x60, 0x70, 0x7C
PERIOD = 1 << 17  # the data repeat after so many elements
BLOCK_BYTES = 64  # one block holds one experiment; aligned with the range's first element
RUN = 512  # elements of one run of part=constant
DEPTH = 16  # bits of rem, at most
BITS = 10  # mantissa bits that are drawn, from the top; the rest are zero
PARTS, REDRAWS = ("sparse", "dense", "constant"), ("none", "one", "odd")
_ACCUMULATOR = 24

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Space:
    """What a format leaves room for: ``depth`` W bits of rem, mantissa bits ``bits`` to choose, binades ``low`` and low + 1."""

    depth: int
    bits: int
    low: int


@lru_cache(maxsize=16)
def space(fmt: Format) -> Space:
    """The lower binade's exponent is odd, so that its field in binary32 ends in 0; the least piece stays normal."""
    # 64: the bits that exact sums carry. The 24 of binary32 hold the sums of narrower formats.
    wanted = min(DEPTH, (_ACCUMULATOR if fmt.precision < _ACCUMULATOR else 64) - fmt.precision)
    low = -1
    while low - fmt.mantissa_bits - fmt.emin < wanted and low + 3 < fmt.emax:
        low += 2
    return Space(min(wanted, low - fmt.mantissa_bits - fmt.emin), min(BITS, fmt.mantissa_bits), low)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The sums of one period, as chosen; arrays of shape (PERIOD,). ``kept``: ``Space.bits`` bits; ``rest``: T."""

    negative: npt.NDArray[np.bool_]
    upper: npt.NDArray[np.bool_]  # the binade above
    kept: U64
    rest: U64

    def where(self, mask: npt.NDArray[np.bool_], other: Chosen) -> Chosen:
        """The other's elements where ``mask``."""
        return Chosen(*(np.where(mask, getattr(other, f.name), getattr(self, f.name)) for f in fields(Chosen)))


def _bits(word: Words | U64, low: int, n: int) -> U64:
    return (word.astype(np.uint64) >> np.uint64(low)) & np.uint64((1 << n) - 1)


def _below(word: Words, choices: int) -> U64:
    return scale_word(word, choices)


def _remainders(fmt: Format, words: list[Words], fine: int, *, sparse: bool) -> U64:
    """T of each element. Distances from 1 or from 0 of every scale (powers of two, three times those, any significand that one
    term holds); for dense data half are uniform, with ``fine`` bits.
    """
    depth = space(fmt).depth
    scale = _below(words[0], depth)
    width = min(fmt.precision, depth)
    digits = np.uint64(1 << (width - 1)) | _bits(words[1], 0, width - 1)
    any_ = (digits << np.uint64(depth)) >> (np.uint64(depth + width - 1) - scale)  # leading bit at ``scale``
    three = np.minimum(np.uint64(3) << np.maximum(scale, np.uint64(1)) - np.uint64(1), np.uint64((1 << depth) - 1))
    if fmt.precision < 2:
        three = np.uint64(1) << scale
    shape = _bits(words[1], 24, 3)
    small = np.select([shape < 3, shape < 4], [np.uint64(1) << scale, three], any_)
    small = np.where(small >> np.uint64(depth) != 0, np.uint64(1) << np.uint64(depth - 1), small)
    near_one = np.uint64(1 << depth) - small
    if sparse:
        return np.where(_bits(words[1], 27, 4) == 0, np.uint64(0), near_one)
    uniform = (_bits(words[2], 0, depth) >> np.uint64(depth - fine)) << np.uint64(depth - fine)
    kind = _bits(words[1], 27, 4)
    return np.select([kind < 8, kind < 12, kind < 15], [uniform, near_one, small], np.uint64(0))


def _drawn(fmt: Format, seed: int, stream: int, fine: int, *, sparse: bool) -> Chosen:
    """Independent elements. Sparse ones have no mantissa bits, one sign and the lower binade."""
    room, source = space(fmt), Stream(seed, COMMON, stream)
    words = [source.words(0, PERIOD, k) for k in range(4)]
    rest = _remainders(fmt, words, fine, sparse=sparse)
    if sparse:
        none = np.zeros(PERIOD, np.bool_)
        return Chosen(none, none, np.zeros(PERIOD, np.uint64), rest)
    return Chosen(_bits(words[3], 31, 1) != 0, _bits(words[3], 30, 1) != 0, _bits(words[3], 0, room.bits), rest)


def block_elements(fmt: Format) -> int:
    return BLOCK_BYTES // fmt.itemsize


def picked(fmt: Format, seed: int) -> npt.NDArray[np.int64]:
    """The element that ``redraw=one`` draws anew in each block, within the block; shape (PERIOD / block,)."""
    n = block_elements(fmt)
    return scale_word(Stream(seed, COMMON, BLOCK_STREAM).words(0, PERIOD // n, 0), n).astype(np.int64)


def _with_sources(fmt: Format, seed: int, base: Chosen) -> Chosen:
    """In each block of a sparse draw no source (1 of 8), one (6 of 8) or three: an element with one mantissa bit set, or with
    the sign or the binade changed.
    """
    n, bits = block_elements(fmt), space(fmt).bits
    blocks = PERIOD // n
    words = [Stream(seed, COMMON, BLOCK_STREAM).words(0, blocks, k) for k in range(1, 8)]
    much = _bits(words[0], 29, 3)
    out = Chosen(base.negative.copy(), base.upper.copy(), base.kept.copy(), base.rest)
    for number in range(3):
        on = (much > 0) if number == 0 else (much == 7)
        at = np.arange(blocks) * n + _below(words[1 + 2 * number], n).astype(np.int64)
        what = _below(words[2 + 2 * number], bits + 2).astype(np.int64)
        out.negative[at] |= on & (what == bits)
        out.upper[at] |= on & (what == bits + 1)
        bit = np.uint64(1) << np.clip(bits - 1 - what, 0, bits).astype(np.uint64)
        out.kept[at] |= np.where(on & (what < bits), bit, np.uint64(0))
    return out


def _constant(fmt: Format, seed: int) -> Chosen:
    """Runs of equal sums. The two top bits and rem take every combination in turn: rem is (2j + 1) / 2**(q+1), on average 1/2."""
    room = space(fmt)
    run = (indices(0, PERIOD) // np.uint64(RUN)).astype(np.int64)
    q, top = min(4, fmt.mantissa_bits), min(2, room.bits)
    j = np.array([int(f"{k:0{q}b}"[::-1], 2) for k in range(1 << q)], np.uint64)[(run >> top) & ((1 << q) - 1)]
    rest = (np.uint64(2) * j + np.uint64(1)) << np.uint64(room.depth - q - 1)
    low = _bits(Stream(seed, COMMON, STREAM + 8).words(0, PERIOD // RUN, 0), 0, room.bits - top)[run]
    kept = (run & ((1 << top) - 1)).astype(np.uint64) << np.uint64(room.bits - top) | low
    return Chosen(np.zeros(PERIOD, np.bool_), np.zeros(PERIOD, np.bool_), kept, rest)


@lru_cache(maxsize=8)
def chosen(fmt: Format, seed: int, part: str, redraw: str, fine: int) -> Chosen:
    """The sums of one period. ``fine``: bits of a uniform rem, what the contributors can make."""
    if part == "constant":
        return _constant(fmt, seed)
    base = _drawn(fmt, seed, STREAM, fine, sparse=part == "sparse")
    if part == "sparse":
        return _with_sources(fmt, seed, base)
    if redraw == "none":
        return base
    mask = (indices(0, PERIOD) & np.uint64(1)) != 0
    if redraw == "one":
        n = block_elements(fmt)
        mask = np.arange(PERIOD) % n == np.repeat(picked(fmt, seed), n)
    return base.where(mask, _drawn(fmt, seed, OTHER_STREAM, fine, sparse=False))


def pieces_of(fmt: Format, rank_n: int) -> int:
    """Contributors beside the one with the kept bits that are put to use."""
    return min(rank_n - 1, -(-space(fmt).depth // fmt.precision))


def _one_term(fmt: Format, value: U64) -> npt.NDArray[np.bool_]:
    """Whether an integer below 2**DEPTH has no more significant bits than the format."""
    lowest = value & (~value + np.uint64(1))
    return value <= lowest * np.uint64((1 << fmt.precision) - 1)


def _code(fmt: Format, data: Chosen, role: npt.NDArray[np.int64], rank_n: int) -> Codes:
    """What the contributor in ``role`` sends: 0 has the kept bits, 1 to ``pieces`` have parts of T, others +0."""
    room, p = space(fmt), fmt.precision
    pieces = pieces_of(fmt, rank_n)
    whole = np.uint64(1 << room.depth)
    added = _one_term(fmt, data.rest)
    taken = ~added & _one_term(fmt, whole - data.rest)  # one term less than the next number of ulps
    exponent = room.low + data.upper.astype(np.int64) - fmt.mantissa_bits
    significand = np.uint64(1 << (p - 1)) + (data.kept << np.uint64(p - 1 - room.bits)) + taken
    small = np.where(taken, whole - data.rest, np.where(added, data.rest, np.uint64(0)))
    small = np.where(role == 1, small, np.uint64(0))
    for k in range(pieces):  # what one term cannot hold: p bits each, from the top
        low = max(room.depth - p * (k + 1), 0)
        part = (data.rest >> np.uint64(low) << np.uint64(low)) & np.uint64((1 << max(room.depth - p * k, 0)) - 1)
        small = np.where(~added & ~taken & (role == k + 1), part, small)
    big = role == 0
    value = np.where(big, significand, small)
    return truncate(
        fmt, data.negative ^ (taken & ~big & (small != 0)), value, np.where(big, exponent, exponent - room.depth)
    )


def _arguments(family: Family) -> tuple[str, str, int]:
    part, redraw, turn = family.get("part", "dense"), family.get("redraw", "none"), family.get("turn", 0)
    if part not in PARTS:
        raise ConfigError(f"family {family}: part = {part!r} is none of {', '.join(PARTS)}")
    if redraw not in REDRAWS or (redraw != "none" and part != "dense"):
        raise ConfigError(f"family {family}: redraw = {redraw!r}; part=dense takes {', '.join(REDRAWS)}")
    if type(turn) is not int or turn < 0:
        raise ConfigError(f"family {family}: turn = {turn!r} is not a whole number of contributors")
    return part, redraw, turn


@lru_cache(maxsize=64)
def table(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Codes:
    """One period of one contributor: codes of shape (PERIOD,), read-only. Raises ConfigError on an unknown argument."""
    part, redraw, turn = _arguments(family)
    used = pieces_of(fmt, rank_n) + 1
    fine = min(space(fmt).depth, (used - 1) * fmt.precision)
    data = chosen(fmt, seed, part, redraw, fine)
    if rank >= used:
        codes = np.zeros(PERIOD, fmt.dtype)
    else:  # the roles change hands from element to element; ``turn`` moves them on without a change of the sums
        first = _below(Stream(seed, COMMON, STREAM + 9).words(0, PERIOD, 0), used).astype(np.int64)
        codes = _code(fmt, data, (first + rank + turn) % used, rank_n)
    codes.setflags(write=False)
    return codes


def neighbours(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """``part=sparse``: no mantissa bits but for a few sources, rem close to 1: shows what one bit of one neighbour weighs.
    ``dense``: everything random; ``redraw`` = one (element of each 64-byte block) or odd (elements) draws those anew and leaves
    the others as they are; ``turn`` hands the terms round the contributors and keeps the sums. ``constant``: runs of equal sums.

    The period is counted as the device rule for listed values does: one element on after each 2**34.
    """
    one = table(family, fmt, seed, rank_n, rank)
    index = indices(start, stop)
    codes: Codes = one[((index + (index >> np.uint64(34))) & np.uint64(PERIOD - 1)).astype(np.intp)]
    return codes
