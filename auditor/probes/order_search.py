"""Which order of additions gives these very bits: candidates replayed on every element, eliminated by their first mismatch.

Elements are walked in blocks. Of the trees that have replayed a segment from its start those that fail are dropped; where all
have failed, the segment ends where the last one did, and a new one begins with every tree. So a range is cut into the fewest
segments, and an order that changes by chunk shows as chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.schedules import bank, canonical
from auditor.numerics.trees import Tree, evaluate_each, fused

FIRST, LAST = 1 << 8, 1 << 15  # elements of a block: few while there are many trees, then more
SAMPLE = 1 << 9  # elements on which arithmetics are tried
SEGMENT = 32  # elements that a segment must have on average: shorter ones explain anything
PATIENCE = 16  # segments before a search whose segments are that short is given up
Terms = Callable[[int, int], Sequence[Codes]]  # the terms of the elements [start, stop)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How partial sums are kept and rounded. ``exact``: one addition of all terms, rounded once."""

    fmt: Format
    accumulator: str
    hop: str
    final: str
    exact: bool = False

    def trees(self, n: int) -> tuple[Tree, ...]:
        return (canonical(fused(n)),) if self.exact else bank(n)

    def replay(self, trees: Sequence[Tree], terms: Sequence[Codes]) -> list[Codes]:
        accumulator = FORMATS[self.accumulator]
        return evaluate_each(trees, terms, self.fmt, accumulator=accumulator, hop=self.hop, final=self.final)

    def __str__(self) -> str:
        if self.exact:
            return f"one exact sum, rounded once {self.final}"
        if self.accumulator == self.fmt.name:
            return f"rounded to {self.fmt.name} at each hop, {self.hop}"
        return f"added in {self.accumulator}, {self.hop}, and rounded once to {self.fmt.name}, {self.final}"


WIDER = {"binary32": "binary64", "binary16": "binary32", "bfloat16": "binary32"}
ROUNDINGS = ("ties_to_even", "ties_to_away", "toward_zero")


def arithmetics(fmt: Format) -> list[Arithmetic]:
    """Those to try, likely ones first."""
    wide = [WIDER[fmt.name]] if fmt.name in WIDER else ["binary32", "binary16"] if fmt.bits == 8 else []
    found = [Arithmetic(fmt, fmt.name, mode, mode) for mode in ROUNDINGS]
    found += [Arithmetic(fmt, name, "ties_to_even", mode) for name in wide for mode in ROUNDINGS]
    return found + [
        Arithmetic(fmt, "binary64" if fmt.bits == 64 else fmt.name, mode, mode, exact=True) for mode in ROUNDINGS
    ]


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements [start, stop) that each of ``trees`` replays bit for bit."""

    start: int
    stop: int
    trees: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One arithmetic's best account of a range: its segments, and how many of the elements they cover."""

    arithmetic: Arithmetic
    segments: tuple[Segment, ...]
    elements: int

    @property
    def matched(self) -> int:
        return sum(one.stop - one.start for one in self.segments)

    @property
    def holds(self) -> bool:
        """Whether every element is replayed, in segments too long to be had by chance."""
        return bool(self.segments) and self.matched == self.elements >= SEGMENT * len(self.segments)


@dataclass(slots=True)
class Search:
    """Everything tried on one range: accounts that hold, best first, and the share of a sample that each arithmetic explains."""

    accounts: list[Replayed] = field(default_factory=list)
    explained: dict[str, float] = field(default_factory=dict)


def search(fmt: Format, n: int, output: Codes, terms: Terms) -> Search:
    """The accounts of an output, shape (count,), of ``n`` terms an element."""
    found, sample = Search(), _sample(output, terms)
    for arithmetic in arithmetics(fmt):
        results = arithmetic.replay(arithmetic.trees(n), sample[1])
        share = float(np.logical_or.reduce([one == sample[0] for one in results]).mean())
        found.explained[str(arithmetic)] = share
        if share == 1.0:
            account = replay(arithmetic, n, output, terms)
            if account.holds:
                found.accounts.append(account)
    found.accounts.sort(key=lambda one: len(one.segments))  # stable: of equals the likelier
    return found


def _sample(output: Codes, terms: Terms) -> tuple[Codes, list[Codes]]:
    """(output, terms) of some elements from four places."""
    size = max(1, min(SAMPLE, len(output)) // 4)
    starts = sorted({0, len(output) // 3, 2 * len(output) // 3, len(output) - size})
    parts = [terms(start, min(start + size, len(output))) for start in starts]
    some = np.concatenate([output[start : start + size] for start in starts])
    return some, [np.concatenate(column) for column in zip(*parts, strict=True)]


def replay(arithmetic: Arithmetic, n: int, output: Codes, terms: Terms) -> Replayed:
    """The fewest segments of the range, each replayed by trees of the bank; given up where they are too short to tell."""
    segments: list[Segment] = []
    start = at = 0
    alive: tuple[Tree, ...] = arithmetic.trees(n)
    size = FIRST
    while at < len(output) and at >= SEGMENT * (len(segments) - PATIENCE):
        stop = min(at + size, len(output))
        reach = _reach(arithmetic, alive, output[at:stop], terms(at, stop))
        farthest = max(reach)
        kept = tuple(tree for tree, far in zip(alive, reach, strict=True) if far == farthest)
        at += farthest
        alive, size = kept, min(2 * size, LAST)
        if at < stop:
            if at == start:
                break  # no tree replays this element
            segments.append(Segment(start, at, kept))
            start, alive, size = at, arithmetic.trees(n), FIRST
    if at > start:
        segments.append(Segment(start, at, alive))
    return Replayed(arithmetic, tuple(segments), len(output))


def _reach(arithmetic: Arithmetic, trees: Sequence[Tree], output: Codes, terms: Sequence[Codes]) -> list[int]:
    """How many leading elements each tree replays."""
    found = []
    for codes in arithmetic.replay(trees, terms):
        wrong = codes != output
        found.append(int(wrong.argmax()) if wrong.any() else len(output))
    return found


@dataclass(frozen=True, slots=True)
class Eliminated:
    """A tree that does not replay a range: on how many elements, the first of them and what the tree gives there."""

    tree: Tree
    mismatches: int
    first: int
    code: int


def eliminated(account: Replayed, n: int, output: Codes, terms: Terms, limit: int) -> tuple[list[Eliminated], int]:
    """(every other tree of the bank, over the first ``limit`` elements; elements there on which the trees differ)."""
    trees = account.arithmetic.trees(n)
    at, stop = 0, min(limit, len(output))
    wrong = np.zeros(len(trees), np.int64)
    first: list[tuple[int, int] | None] = [None] * len(trees)
    deciding = 0
    for low, high in _blocks(at, stop):
        results = account.arithmetic.replay(trees, terms(low, high))
        differing: npt.NDArray[np.bool_] = np.zeros(high - low, np.bool_)
        for number, codes in enumerate(results):
            mask = codes != output[low:high]
            differing |= codes != results[0]
            wrong[number] += int(mask.sum())
            if first[number] is None and mask.any():
                index = int(mask.argmax())
                first[number] = (low + index, int(codes[index]))
        deciding += int(differing.sum())
    rows = [
        Eliminated(tree, int(count), *where)
        for tree, count, where in zip(trees, wrong, first, strict=True)
        if where is not None
    ]
    return sorted(rows, key=lambda row: row.mismatches), deciding


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((at, min(at + LAST // 4, stop)) for at in range(start, stop, LAST // 4))
