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
PARTS, REDRAWS = ("sparse", "dense", "constant", "scan", "padded"), ("none", "one", "odd")
TOGGLES = ("none", "bit", "terms")  # of part=scan
SCAN_STREAM = 0x90
SCAN_BLOCK = 64  # elements of one experiment of part=scan
REACH = 16  # elements to either side of the one whose sum is toggled
SIGN = "s"
_ACCUMULATOR, _BIAS = 24, 127  # of binary32

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
    """The sums of one period, as chosen; arrays of shape (PERIOD,). ``kept``: ``Space.bits`` bits; ``rest``: T.

    ``above``: binades above ``Space.low``. ``moved``: ulps that another contributor sends instead of the one with the kept bits,
    where T is 0; the sum is the same.
    """

    negative: npt.NDArray[np.bool_]
    above: npt.NDArray[np.int64]
    kept: U64
    rest: U64
    moved: U64

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
    none = np.zeros(PERIOD, np.uint64)
    if sparse:
        return Chosen(none != 0, none.astype(np.int64), none, rest, none)
    above = _bits(words[3], 30, 1).astype(np.int64)
    return Chosen(_bits(words[3], 31, 1) != 0, above, _bits(words[3], 0, room.bits), rest, none)


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
    out = Chosen(base.negative.copy(), base.above.copy(), base.kept.copy(), base.rest, base.moved)
    for number in range(3):
        on = (much > 0) if number == 0 else (much == 7)
        at = np.arange(blocks) * n + _below(words[1 + 2 * number], n).astype(np.int64)
        what = _below(words[2 + 2 * number], bits + 2).astype(np.int64)
        out.negative[at] |= on & (what == bits)
        out.above[at] |= on & (what == bits + 1)
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
    none = np.zeros(PERIOD, np.uint64)
    return Chosen(none != 0, none.astype(np.int64), kept, rest, none)


# ------------------------------------------------------------------------------------------------------------------ scan


def scanned_bits(fmt: Format) -> tuple[str, ...]:
    """Bits of the sum's binary32 word, from the top, that can be toggled one by one between sums that the format's terms make:
    ``s``, ``e7`` to ``e0``, ``b22`` to ``b0``. Exponents stay normal; the word's last bits may lie below ``Space.depth``.
    Raises ConfigError where the format is as wide as that word.
    """
    if fmt.precision >= _ACCUMULATOR:
        raise ConfigError(f"family neighbours: part=scan is for 8- and 16-bit formats, not for {fmt.name}")
    room = space(fmt)
    field = room.low + _BIAS
    exponents = [k for k in range(7, -1, -1) if fmt.emin <= (field ^ (1 << k)) - _BIAS <= fmt.emax]
    mantissa = range(_ACCUMULATOR - 2, _ACCUMULATOR - 2 - fmt.mantissa_bits - room.depth, -1)
    return (SIGN, *(f"e{k}" for k in exponents), *(f"b{k}" for k in mantissa))


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The experiments of part=scan, an array each of shape (PERIOD / SCAN_BLOCK,). ``at``: the toggled element's index in the
    period; ``which``: its bit, as a position in :func:`scanned_bits`; ``dense``: among random sums, not among quiet ones;
    ``zero``: its T is 0, so that its terms can be changed and its sum kept.
    """

    at: npt.NDArray[np.int64]
    which: npt.NDArray[np.int64]
    dense: npt.NDArray[np.bool_]
    zero: npt.NDArray[np.bool_]


@lru_cache(maxsize=16)
def scan_of(fmt: Format, seed: int) -> Scan:
    """Bits take turns, quiet and random surroundings too; the toggled element has REACH others on either side in its block."""
    n, bits = PERIOD // SCAN_BLOCK, scanned_bits(fmt)
    words = Stream(seed, COMMON, SCAN_STREAM).words(0, n, 0)
    number = np.arange(n)
    which = number % len(bits)
    at = number * SCAN_BLOCK + REACH + _below(words, SCAN_BLOCK - 2 * REACH).astype(np.int64)
    no_rest = np.array([name.startswith("e") for name in bits])[which]  # another binade has no room for T
    of_rest = np.array([_rest_bit(fmt, name) is not None for name in bits])[which]
    return Scan(at, which, (number // len(bits)) % 2 != 0, no_rest | (~of_rest & (_bits(words, 0, 1) != 0)))


def _scanned(fmt: Format, seed: int, toggle: str, fine: int) -> Chosen:
    """Sums of which one a block is toggled: ``bit`` turns one bit of its word, ``terms`` keeps the sum and changes its terms."""
    scan = scan_of(fmt, seed)
    quiet = _drawn(fmt, seed, STREAM, fine, sparse=True)
    dense = np.repeat(scan.dense, SCAN_BLOCK)
    base = quiet.where(dense, _drawn(fmt, seed, OTHER_STREAM, fine, sparse=False))
    out = Chosen(*(getattr(base, f.name).copy() for f in fields(Chosen)))
    out.above[scan.at] = 0
    out.rest[scan.at] = np.where(scan.zero, np.uint64(0), out.rest[scan.at])
    names = np.array(scanned_bits(fmt))[scan.which]
    for name in scanned_bits(fmt):
        _prepare(fmt, seed, out, scan.at[names == name], scan.dense[names == name], name)
        if toggle == "bit":
            _turn(fmt, out, scan.at[names == name], name)
    if toggle == "terms":
        words = Stream(seed, COMMON, SCAN_STREAM + 1).words(0, PERIOD, 0)[scan.at]
        ulps = np.uint64(1) + _below(words, 1 << (fmt.precision - 2))
        out.moved[scan.at] = np.where(scan.zero, ulps, np.uint64(0))
    return out


def _rest_bit(fmt: Format, name: str) -> int | None:
    """Which bit of T a bit of the word is; None where it is none."""
    k = int(name[1:]) if name[0] == "b" else _ACCUMULATOR
    place = k - (_ACCUMULATOR - fmt.precision - space(fmt).depth)
    return place if 0 <= place < space(fmt).depth else None


def _prepare(
    fmt: Format, seed: int, out: Chosen, at: npt.NDArray[np.int64], dense: npt.NDArray[np.bool_], name: str
) -> None:
    """T such that it stays one term when its bit is turned: random bits of one window that holds that bit, or none."""
    place = _rest_bit(fmt, name)
    if place is None:
        return
    low = max(0, min(place, space(fmt).depth - fmt.precision))
    words = Stream(seed, COMMON, SCAN_STREAM + 2).words(0, PERIOD, 0)[at]
    window = _bits(words, 0, min(fmt.precision, space(fmt).depth - low)) << np.uint64(low)
    out.rest[at] = np.where(dense, window & ~(np.uint64(1) << np.uint64(place)), np.uint64(0))


def _turn(fmt: Format, out: Chosen, at: npt.NDArray[np.int64], name: str) -> None:
    place = _rest_bit(fmt, name)
    if name == SIGN:
        out.negative[at] ^= True
    elif name[0] == "e":
        out.above[at] = ((space(fmt).low + _BIAS) ^ (1 << int(name[1:]))) - _BIAS - space(fmt).low
    elif place is not None:
        out.rest[at] ^= np.uint64(1) << np.uint64(place)
    else:
        down = _ACCUMULATOR - 2 - int(name[1:])  # from the top of the kept bits
        out.kept[at] ^= np.uint64(1) << np.uint64(space(fmt).bits - 1 - down)


def alone(fmt: Format, seed: int) -> npt.NDArray[np.bool_]:
    """Which elements of part=padded have a sum: one in each 64 bytes. The others are +0 from every contributor."""
    n = block_elements(fmt)
    return np.asarray(np.arange(PERIOD) % n == np.repeat(picked(fmt, seed), n), np.bool_)


@lru_cache(maxsize=8)
def chosen(fmt: Format, seed: int, part: str, variant: str, fine: int) -> Chosen:
    """The sums of one period. ``fine``: bits of a uniform rem, what the contributors can make. ``variant``: redraw or toggle."""
    if part == "constant":
        return _constant(fmt, seed)
    if part == "scan":
        return _scanned(fmt, seed, variant, fine)
    base = _drawn(fmt, seed, STREAM, fine, sparse=part == "sparse")
    if part == "sparse":
        return _with_sources(fmt, seed, base)
    if variant == "none":
        return base
    mask = (indices(0, PERIOD) & np.uint64(1)) != 0
    if variant == "one":
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
    exponent = room.low + data.above - fmt.mantissa_bits
    significand = np.uint64(1 << (p - 1)) + (data.kept << np.uint64(p - 1 - room.bits)) + taken - data.moved
    small = np.where(taken, whole - data.rest, np.where(added, data.rest, np.uint64(0)))
    small = np.where(role == 1, small, np.uint64(0))
    for k in range(pieces):  # what one term cannot hold: p bits each, from the top
        low = max(room.depth - p * (k + 1), 0)
        part = (data.rest >> np.uint64(low) << np.uint64(low)) & np.uint64((1 << max(room.depth - p * k, 0)) - 1)
        small = np.where(~added & ~taken & (role == k + 1), part, small)
    big, other = role == 0, (role == 1) & (data.moved != 0)
    value = np.where(big, significand, np.where(other, data.moved, small))
    return truncate(
        fmt,
        data.negative ^ (taken & ~big & (small != 0)),
        value,
        np.where(big | other, exponent, exponent - room.depth),
    )


def _arguments(family: Family) -> tuple[str, str, int]:
    """(part, redraw or toggle, turn). Raises ConfigError."""
    part, redraw, turn = family.get("part", "dense"), family.get("redraw", "none"), family.get("turn", 0)
    toggle = family.get("toggle", "none")
    if part not in PARTS:
        raise ConfigError(f"family {family}: part = {part!r} is none of {', '.join(PARTS)}")
    if redraw not in REDRAWS or (redraw != "none" and part != "dense"):
        raise ConfigError(f"family {family}: redraw = {redraw!r}; part=dense takes {', '.join(REDRAWS)}")
    if toggle not in TOGGLES or (toggle != "none" and part != "scan"):
        raise ConfigError(f"family {family}: toggle = {toggle!r}; part=scan takes {', '.join(TOGGLES)}")
    if type(turn) is not int or turn < 0:
        raise ConfigError(f"family {family}: turn = {turn!r} is not a whole number of contributors")
    return part, toggle if part == "scan" else redraw, turn


@lru_cache(maxsize=64)
def table(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Codes:
    """One period of one contributor: codes of shape (PERIOD,), read-only. Raises ConfigError on an unknown argument."""
    part, variant, turn = _arguments(family)
    used = pieces_of(fmt, rank_n) + 1
    fine = min(space(fmt).depth, (used - 1) * fmt.precision)
    data = chosen(fmt, seed, part, variant, fine)
    if rank >= used:
        codes = np.zeros(PERIOD, fmt.dtype)
    else:  # the roles change hands from element to element; ``turn`` moves them on without a change of the sums
        first = _below(Stream(seed, COMMON, STREAM + 9).words(0, PERIOD, 0), used).astype(np.int64)
        codes = _code(fmt, data, (first + rank + turn) % used, rank_n)
        if part == "padded":
            codes[~alone(fmt, seed)] = 0
    codes.setflags(write=False)
    return codes


def neighbours(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """``part=sparse``: no mantissa bits but for a few sources, rem close to 1: shows what one bit of one neighbour weighs.
    ``dense``: everything random; ``redraw`` = one (element of each 64-byte block) or odd (elements) draws those anew and leaves
    the others as they are; ``turn`` hands the terms round the contributors and keeps the sums. ``constant``: runs of equal sums.
    ``scan``: one element in 64, of which ``toggle`` turns one bit of the sum's word (bit), or changes the terms and keeps the sum
    (terms). ``padded``: one element in 64 bytes has a sum, the others are zero.

    The period is counted as the device rule for listed values does: one element on after each 2**34.
    """
    one = table(family, fmt, seed, rank_n, rank)
    index = indices(start, stop)
    codes: Codes = one[((index + (index >> np.uint64(34))) & np.uint64(PERIOD - 1)).astype(np.intp)]
    return codes
