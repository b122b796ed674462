"""The family ``special_cases``: a table of named cases for the probe special.

The table: every case stands at an even index, an ordinary element whose sum is inexact after it. So a result beside a NaN can
be compared with the same result beside something else: ``beside=plain`` and ``beside=other`` put ordinary data in the
cases' places and leave the rest as it is. Kinds are kept apart by ordinary elements, so that no 32-byte group sees two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auditor.errors import ConfigError
from auditor.model import Codes, Family
from auditor.numerics.formats import Format
from auditor.numerics.recipes import Stream, indices, scale_word

CASES_STREAM = 0x58  # ordinary elements; + 4 and + 8: what replaces the cases
MOST_SLOTS = 16  # contributors at which a case is tried, where there are more
APART = 32  # bytes: the widest group of elements that shares anything
PARTS = ("table", "short")
BESIDE = ("cases", "plain", "other")
OUTSIDE_BINARY16 = {"2**16": 16, "2**40": 40, "2**100": 100}  # beyond binary16, within bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """``slot``: the contributor that holds the special value (-1: all alike). ``codes``: one a contributor, shape (rank_n,)."""

    kind: str
    name: str
    slot: int
    codes: npt.NDArray[np.uint64]


def slots(rank_n: int) -> list[int]:
    """The contributors at which each case is tried: all of them, or some that are spread and hold both ends."""
    if rank_n <= MOST_SLOTS:
        return list(range(rank_n))
    return sorted({round(k * (rank_n - 1) / (MOST_SLOTS - 1)) for k in range(MOST_SLOTS)})


def payload_nan(fmt: Format, rank: int, *, quiet: bool = True) -> int:
    """A NaN whose payload tells the contributor, as far as the format has room; never the payload 0."""
    if not fmt.has_infinity:
        return fmt.nan_code
    room = (1 << (fmt.mantissa_bits - 1)) - 1
    return (fmt.nan_code if quiet else fmt.overflow_code) | (rank % room + 1)


def ordinary_values(fmt: Format, rank_n: int) -> npt.NDArray[np.uint64]:
    """2, 4, 6, 8 by contributor: what stands beside one special value; no sum of them is the prefill 1.25. Shape (rank_n,)."""
    two, four, eight = (fmt.power_of_two(e) for e in (1, 2, 3))
    values = np.array([two, four, four | 1 << (fmt.mantissa_bits - 1), eight], np.uint64)
    return values[np.arange(rank_n) % 4]


@lru_cache(maxsize=64)
def cases(fmt: Format, rank_n: int) -> tuple[Case, ...]:
    """All cases of a format, by kind. What a format or a number of contributors cannot have is left out."""
    made = _Maker(fmt, rank_n)
    parts = (made.nan(), made.infinity(), made.negative_zero(), made.subnormal(), made.overflow())
    return tuple(case for part in parts for case in part)


@dataclass(frozen=True, slots=True)
class _Maker:
    fmt: Format
    rank_n: int

    def _at(self, kind: str, name: str, held: tuple[int, ...], rest: npt.NDArray[np.uint64]) -> Iterator[Case]:
        """``held`` at slot, slot + 1, ... (cyclic), ``rest`` elsewhere; once for each slot."""
        if len(held) > self.rank_n:
            return
        for slot in slots(self.rank_n):
            codes = rest.copy()
            for number, code in enumerate(held):
                codes[(slot + number) % self.rank_n] = code
            yield Case(kind, name, slot, codes)

    def _alike(self, kind: str, name: str, codes: npt.NDArray[np.uint64]) -> Case:
        return Case(kind, name, -1, codes)

    def _full(self, code: int) -> npt.NDArray[np.uint64]:
        return np.full(self.rank_n, code, np.uint64)

    def _by_rank(self, *, quiet: bool) -> npt.NDArray[np.uint64]:
        return np.array([payload_nan(self.fmt, rank, quiet=quiet) for rank in range(self.rank_n)], np.uint64)

    def nan(self) -> Iterator[Case]:
        fmt, rest, sign = self.fmt, ordinary_values(self.fmt, self.rank_n), self.fmt.sign_mask
        for slot in slots(self.rank_n):
            for name, quiet, flip in (
                ("quiet NaN", True, 0),
                ("negative NaN", True, sign),
                ("signalling NaN", False, 0),
            ):
                if quiet or fmt.has_infinity:
                    codes = rest.copy()
                    codes[slot] = payload_nan(fmt, slot, quiet=quiet) | flip
                    yield Case("nan", name, slot, codes)
            if self.rank_n > 1:
                codes = rest.copy()
                for rank in (slot, (slot + 1) % self.rank_n):
                    codes[rank] = payload_nan(fmt, rank)
                yield Case("nan", "two NaNs", slot, codes)
        yield self._alike("nan", "NaN in every rank", self._by_rank(quiet=True))
        if fmt.has_infinity and self.rank_n > 1:
            for slot in slots(self.rank_n):
                codes = rest.copy()
                codes[slot], codes[(slot + 1) % self.rank_n] = payload_nan(fmt, slot), fmt.overflow_code
                yield Case("nan", "NaN and infinity", slot, codes)

    def infinity(self) -> Iterator[Case]:
        fmt, rest, kind = self.fmt, ordinary_values(self.fmt, self.rank_n), "infinity"
        if not fmt.has_infinity:
            return
        plus, minus = fmt.overflow_code, fmt.overflow_code | fmt.sign_mask
        yield from self._at(kind, "+inf", (plus,), rest)
        yield from self._at(kind, "-inf", (minus,), rest)
        yield from self._at(kind, "+inf, -inf", (plus, minus), rest)
        yield from self._at(kind, "+inf, -max", (plus, fmt.max_code | fmt.sign_mask), rest)
        yield from self._at(kind, "-inf, max", (minus, fmt.max_code), rest)
        yield self._alike(kind, "+inf in every rank", self._full(plus))
        yield self._alike(kind, "-inf in every rank", self._full(minus))

    def negative_zero(self) -> Iterator[Case]:
        fmt, kind, minus = self.fmt, "negative_zero", self.fmt.sign_mask
        one = fmt.power_of_two(0)
        yield self._alike(kind, "all -0", self._full(minus))
        if self.rank_n > 1:
            yield from self._at(kind, "+0, others -0", (0,), self._full(minus))
            yield from self._at(kind, "-0, others +0", (minus,), self._full(0))
        yield from self._at(kind, "x, -x, others +0", (one, one | minus), self._full(0))
        if self.rank_n > 2:
            yield from self._at(kind, "x, -x, others -0", (one, one | minus), self._full(minus))

    def subnormal(self) -> Iterator[Case]:
        fmt, kind, zero = self.fmt, "subnormal_flush", self._full(0)
        least, normal, minus = 1, 1 << fmt.mantissa_bits, fmt.sign_mask
        largest = normal - 1
        for sign, mark in ((0, ""), (minus, "-")):
            yield from self._at(kind, f"{mark}least", (least | sign,), zero)
            yield from self._at(kind, f"{mark}largest", (largest | sign,), zero)
            yield from self._at(kind, f"{mark}(least + least)", (least | sign, least | sign), zero)
            yield from self._at(kind, f"{mark}(largest + least)", (largest | sign, least | sign), zero)
            yield from self._at(kind, f"{mark}(normal - least)", (normal | sign, least | (minus ^ sign)), zero)
            half_more = normal | 1 << (fmt.mantissa_bits - 1)
            yield from self._at(kind, f"{mark}(1.5 normal - normal)", (half_more | sign, normal | (minus ^ sign)), zero)

    def overflow(self) -> Iterator[Case]:
        fmt, kind, zero = self.fmt, "overflow", self._full(0)
        top, half = fmt.max_code, fmt.power_of_two(fmt.emax - fmt.precision)  # half the last gap
        beside = {
            "ulp/2-": half - 1,
            "ulp/2": half,
            "ulp/2+": half + 1,
            "ulp": half + (1 << fmt.mantissa_bits),
            "max": top,
        }
        for sign, mark in ((0, ""), (fmt.sign_mask, "-")):
            for name, code in beside.items():
                yield from self._at(kind, f"{mark}(max + {name})", (top | sign, code | sign), zero)
            yield self._alike(kind, f"{mark}(n max)", self._full(top | sign))
            opposite = top | (fmt.sign_mask ^ sign)
            yield from self._at(kind, f"{mark}(max + max - max)", (top | sign, top | sign, opposite), zero)
            yield from self._at(kind, f"{mark}(max - max + max)", (top | sign, opposite, top | sign), zero)
        for name, exponent in OUTSIDE_BINARY16.items():
            if fmt.emax > exponent + 1:
                one = self._full(fmt.power_of_two(0))
                yield from self._at(kind, f"{name}, others 1", (fmt.power_of_two(exponent),), one)
        if fmt.emin < -40:
            yield from self._at(kind, "2**-40", (fmt.power_of_two(-40),), zero)


SHORT = (
    *("quiet NaN", "+inf", "+inf, -inf", "all -0", "x, -x, others +0", "least", "(largest + least)"),
    *("(1.5 normal - normal)", "(max + max)", "(max + ulp/2)", "(max + ulp/2-)", "2**40, others 1"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """``number``: which case stands at each place of one round, -1 for an ordinary element; shape (size,)."""

    cases: tuple[Case, ...]
    number: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        return len(self.number)

    def places(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        """Places within a round of the send indices [start, stop): round after round, the rounds slowly turning."""
        return place(self.size, start, stop)

    def numbers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Case numbers at the send indices [start, stop)."""
        return self.number[self.places(start, stop)]


def place(size: int, start: int, stop: int) -> npt.NDArray[np.intp]:
    """As the device's rule for operands has it: the index, plus one for every size**2 elements, mod size."""
    index = indices(start, stop)
    return np.asarray((index + index // np.uint64(size * size)) % np.uint64(size), np.intp)


@lru_cache(maxsize=64)
def layout(fmt: Format, rank_n: int, part: str) -> Layout:
    """Which case stands where. ``short``: a few cases, one after the other, for calls of a handful of elements."""
    every = cases(fmt, rank_n)
    if part == "short":
        few = [k for k, case in enumerate(every) if case.name in SHORT and case.slot in (-1, 0)]
        return Layout(every, np.array(few, np.int64))
    apart = APART // fmt.itemsize
    row: list[int] = []
    for number, case in enumerate(every):
        if number and case.kind != every[number - 1].kind:
            row += [-1] * (apart + -len(row) % apart)
        row += [number, -1]
    return Layout(every, np.array(row + [-1] * (-len(row) % apart), np.int64))


def special_cases(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """The table, round after round. Arguments: ``part`` (table, short) and ``beside`` (cases, plain, other)."""
    table = contributor_table(family, fmt, seed, rank_n, rank)
    codes: Codes = table[place(len(table), start, stop)]
    return codes


@lru_cache(maxsize=256)
def contributor_table(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Codes:
    """One contributor's round: codes, shape (size,), read-only. Raises ConfigError on an unknown argument."""
    part, beside = (str(family.get(key, known[0])) for key, known in (("part", PARTS), ("beside", BESIDE)))
    for key, value, known in (("part", part, PARTS), ("beside", beside, BESIDE)):
        if value not in known:
            raise ConfigError(f"family {family}: {key} = {value!r} is not one of {', '.join(known)}")
    where = layout(fmt, rank_n, part)
    codes = _ordinary(fmt, seed, rank, CASES_STREAM, where.size)
    at = where.number >= 0
    if beside == "cases":
        own = np.array([case.codes[rank] for case in where.cases], np.uint64)
        codes[at] = own[where.number[at]].astype(fmt.dtype)
    else:
        codes[at] = _ordinary(fmt, seed, rank, CASES_STREAM + 4 * BESIDE.index(beside), where.size)[at]
    codes.flags.writeable = False
    return codes


def _ordinary(fmt: Format, seed: int, rank: int, stream: int, n: int) -> Codes:
    """Random sign and significand, exponent -4..0; shape (n,)."""
    source = Stream(seed, rank, stream)
    low, high, scale = (source.words(0, n, k).astype(np.uint64) for k in range(3))
    field = (scale_word(scale.astype(np.uint32), 5) + np.uint64(fmt.bias - 4)) << np.uint64(fmt.mantissa_bits)
    fraction = (low << np.uint64(32) | high) & np.uint64((1 << fmt.mantissa_bits) - 1)
    sign = (scale & np.uint64(1)) << np.uint64(fmt.bits - 1)
    codes: Codes = (sign | field | fraction).astype(fmt.dtype)
    return codes
