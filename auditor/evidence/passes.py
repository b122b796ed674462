"""What a shrinker tries, pass by pass, the boldest try of each first. Pure: a case in, smaller ones out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from auditor.evidence import edits
from auditor.evidence.cases import WORD, Case
from auditor.evidence.relations import Sighting
from auditor.layout import ALIGNMENT

SINGLY = 512  # codes up to which they are tried one by one
TIMID = 33  # counts below which each is tried
Candidates = Iterator[Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the subject takes, and what would turn one finding into another.

    ``same_inputs``: codes must not change, only go. ``spill``: what is cut off a range may lie outside it; for what is about the
    bytes there. ``lengths``: two calls may become unequally long; for what is about the count.
    """

    formats: tuple[str, ...] = ()
    rank_n_min: int = 1
    same_inputs: bool = False
    spill: bool = False
    lengths: bool = False


def windows(case: Case, focus: Sighting, limits: Limits) -> Candidates:
    """A few columns around what is looked at, each at its address modulo 16 bytes, then modulo 512."""
    low, high = _span(case, focus)
    count = min(step.call.count for step in case.steps)
    if len({step.call.count for step in case.steps}) > 1:
        return
    lanes = WORD // case.fmt.itemsize
    least = high - low + 1
    bold = [least, *(1 << k for k in range(count.bit_length()))]
    for size in dict.fromkeys([*bold, *range(least, TIMID)]):  # a fault may show at some sizes only
        if not least <= size < count:
            continue
        phase = (case.steps[0].send_shift + low) % lanes
        for first in dict.fromkeys((low - phase, low, high - size + 1)):
            first = max(0, min(first, count - size))
            if first <= low and high < first + size:
                for period in (WORD, ALIGNMENT):
                    for spill in (False, True) if limits.spill else (False,):
                        yield _kept(case, first, first + size, spill=spill, period=period)


def _kept(case: Case, first: int, stop: int, *, spill: bool, period: int) -> Case:
    return edits.on_each(case, lambda step: edits.kept(step, first, stop, spill=spill, period=period))


def _span(case: Case, focus: Sighting) -> tuple[int, int]:
    """The columns that must stay: that of the sighting, and that of the output that it was compared with."""
    some = [focus.index] + ([focus.beside[3]] if focus.beside else [])
    last = min(step.call.count for step in case.steps) - 1
    inside = [min(max(index, 0), max(last, 0)) for index in some]
    return min(inside), max(inside)


def columns(case: Case, _focus: Sighting, _limits: Limits) -> Candidates:
    """Columns taken out: halves, quarters, ... single ones."""
    count = max(step.call.count for step in case.steps)
    size = count // 2
    while size:
        for first in range(0, count, size):
            yield edits.on_each(case, partial(edits.without_columns, first=first, stop=first + size))
        size = size // 2 if count <= SINGLY or size > count // 64 else 0


def counts(case: Case, _focus: Sighting, limits: Limits) -> Candidates:
    """Steps cut short one by one: to a power of two, or by a few elements."""
    if len(case.steps) > 1 and not limits.lengths:
        return
    for number, step in enumerate(case.steps):
        count = step.call.count
        for size in dict.fromkeys([*(1 << k for k in range(count.bit_length())), *range(max(count - 8, 0), count)]):
            if size < count:
                yield _cut(case, number, size)


def _cut(case: Case, number: int, size: int) -> Case:
    steps = list(case.steps)
    steps[number] = edits.without_columns(steps[number], size, steps[number].call.count)
    return case.with_steps(steps)


def shifts(case: Case, _focus: Sighting, _limits: Limits) -> Candidates:
    """All shifts 0; all alike smaller; one step's smaller; out of place instead of in place."""
    yield edits.on_each(case, partial(edits.at_most_shifted, send=0, recv=0))
    yield edits.on_each(case, lambda step: replace(step, in_place=False))
    most = max(max(step.send_shift, step.recv_shift) for step in case.steps)
    for value in edits.smaller_shifts(most, case.fmt):
        for send, recv in ((value, value), (most, value), (value, most)):
            yield edits.on_each(case, partial(edits.at_most_shifted, send=send, recv=recv))
    for number, step in enumerate(case.steps):
        for value in edits.smaller_shifts(max(step.send_shift, step.recv_shift), case.fmt):
            some = list(case.steps)
            some[number] = edits.at_most_shifted(step, send=value, recv=value)
            yield case.with_steps(some)


def ranks(case: Case, focus: Sighting, limits: Limits) -> Candidates:
    """Two members, those that send something first; then one member less."""
    n = len(case.members)
    sent = [int(np.count_nonzero(np.concatenate([s.around()[row] for s in case.steps]))) for row in range(n)]
    here = [any(_column(step, focus)[row] for step in case.steps) for row in range(n)]
    order = sorted(range(n), key=lambda row: (not here[row], -sent[row]))
    for size in range(max(limits.rank_n_min, 1), n):
        yield edits.only_members(case, sorted(order[:size]))
    if n > limits.rank_n_min:
        for row in reversed(order):
            yield edits.only_members(case, [other for other in range(n) if other != row])
    if case.rank_n > n >= limits.rank_n_min:
        yield edits.only_members(case, range(n))


def _column(step: Any, focus: Sighting) -> Any:
    index = min(max(focus.index, 0), step.data.shape[1] - 1)
    return step.data[:, index] if index >= 0 else np.zeros(len(step.data), step.data.dtype)


def formats(case: Case, _focus: Sighting, limits: Limits) -> Candidates:
    """The same values in a narrower format that holds them all."""
    if limits.same_inputs:
        return
    for name in limits.formats:
        if name != case.fmt.name and (other := edits.in_format(case, name)) is not None:
            yield other


def repeats(case: Case, _focus: Sighting, _limits: Limits) -> Candidates:
    """Fewer rounds, then fewer steps."""
    for number in dict.fromkeys((1, 2, case.repeats // 4, case.repeats // 2, case.repeats - 1)):
        if 1 <= number < case.repeats:
            yield replace(case, repeats=number)


def surroundings(case: Case, _focus: Sighting, _limits: Limits) -> Candidates:
    """Nothing outside the range; nothing on one side; only the nearest codes; one member's row gone."""
    widths = {part: max(getattr(step, part).shape[1] for step in case.steps) for part in ("head", "tail")}
    n = len(case.members)
    none = {part: np.zeros((n, width), np.bool_) for part, width in widths.items()}
    yield edits.masked(edits.masked(case, "head", none["head"]), "tail", none["tail"])
    for part, width in widths.items():
        yield edits.masked(case, part, none[part])
        size = 1
        while size < width:
            near = np.arange(width) >= width - size if part == "head" else np.arange(width) < size
            yield edits.masked(case, part, np.broadcast_to(near, (n, width)))
            size *= 2
        for row in range(n):
            yield edits.masked(case, part, np.broadcast_to((np.arange(n) != row)[:, None], (n, width)))


def zeros(case: Case, focus: Sighting, limits: Limits) -> Candidates:
    """All columns but the one looked at (or its 16-byte group) zero; one member's row; halves, quarters, ... of the columns."""
    width = max(step.data.shape[1] for step in case.steps)
    n, at = len(case.members), np.arange(width)
    if not width:
        return
    low, high = _span(case, focus)
    lanes = WORD // case.fmt.itemsize
    for reach in (0, 1, lanes - 1):
        keep = (at >= low - reach) & (at <= high + reach)
        yield edits.masked(case, "data", np.broadcast_to(keep, (n, width)))
    if limits.same_inputs:
        return
    for row in range(n):
        yield edits.masked(case, "data", np.broadcast_to((np.arange(n) != row)[:, None], (n, width)))
    size = width // 2
    while size and size * SINGLY >= width:
        for first in range(0, width, size):
            yield edits.masked(case, "data", np.broadcast_to((at < first) | (at >= first + size), (n, width)))
        size //= 2


def codes(case: Case, _focus: Sighting, limits: Limits) -> Candidates:
    """Every code that is not zero said more simply, alike in all steps that share it; columns rescaled, signs turned."""
    some = edits.spots(case)
    if limits.same_inputs or len(some) > SINGLY:
        return
    for column in sorted({column for part, _, column in some if part == "data"}):
        if all(column < step.data.shape[1] for step in case.steps):
            if (other := edits.rescaled(case, column)) is not None:
                yield other
            yield edits.negated(case, column)
            for sign in (0, case.fmt.sign_mask):
                for pair in edits.telling_pairs(case.fmt):
                    if (other := edits.with_pair(case, column, pair, sign)) is not None:
                        yield other
    yield from _twins(case)
    for spot in some:
        for code, steps in edits.values_at(case, spot).items():
            for value in edits.simpler(case.fmt, code) if code else ():
                yield edits.with_code(case, spot, steps, value)


def _twins(case: Case) -> Candidates:
    """A member's code that stands in several columns said more simply in all of them: they may have to stay alike."""
    for row in range(len(case.members)):
        sent = np.concatenate([step.data[row] for step in case.steps])
        values, times = np.unique(sent[sent != 0], return_counts=True)
        for code in values[times > len(case.steps)].tolist():
            for new in edits.simpler(case.fmt, code):
                yield edits.everywhere(case, row, code, new)


PASSES: Sequence[tuple[str, Callable[[Case, Sighting, Limits], Candidates]]] = (
    ("elements", windows),
    ("elements", counts),
    ("elements", columns),
    ("shift", shifts),
    ("ranks", ranks),
    ("repeats", repeats),
    ("format", formats),
    ("outside", surroundings),
    ("zeros", zeros),
    ("codes", codes),
)
