"""Ways to make a case smaller, each a pure function of the case: its columns, its ranks, its format, its codes.

A *column* is one sum: the codes of all members at one receive index (a reduce_scatter has one such column in every share).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.evidence.cases import WORD, Case, Step, fence
from auditor.layout import ALIGNMENT
from auditor.model import Codes
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import convert


def on_each(case: Case, edit: Callable[[Step], Step]) -> Case:
    return case.with_steps([edit(step) for step in case.steps])


def trimmed(case: Case) -> Case:
    """The same bytes with heads and tails no longer than their outermost code that is not zero, alike in all steps."""
    head = max(_extent(step.head[:, ::-1]) for step in case.steps)
    tail = max(_extent(step.tail) for step in case.steps)
    return on_each(case, lambda step: replace(step, head=_wide(step.head, head, -1), tail=_wide(step.tail, tail, 1)))


def _extent(codes: Codes) -> int:
    used = np.flatnonzero(codes.any(axis=0))
    return int(used[-1]) + 1 if used.size else 0


def _wide(codes: Codes, width: int, way: int) -> Codes:
    """Cut or zero-padded to a width, on the side that looks away from the range."""
    some = codes[:, ::-1] if way < 0 else codes
    out = np.zeros((len(codes), width), codes.dtype)
    n = min(width, codes.shape[1])
    out[:, :n] = some[:, :n]
    return out[:, ::-1] if way < 0 else out


# --------------------------------------------------------------------------------------------------------------- columns


def kept(step: Step, first: int, stop: int, *, spill: bool, period: int = WORD) -> Step:
    """Only the columns [first, stop), each at the address (modulo ``period`` bytes) that it had. ``spill``: what is cut off lies
    outside the range then (not for a reduce_scatter, whose shares would mix); otherwise it is gone.
    """
    fmt, members, shares = step.fmt, len(step.data), step.shares
    columns = step.data.reshape(members, shares, -1)
    cut = columns[:, :, first:stop].reshape(members, -1)
    head, tail = step.head, step.tail
    if shares == 1:
        room = fence(fmt)
        before, after = columns[:, 0, :first], columns[:, 0, stop:]
        if not spill:
            before, after = np.zeros_like(before), np.zeros_like(after)
        head = np.concatenate([head, before], axis=1)[:, -room:]
        tail = np.concatenate([after, tail], axis=1)[:, :room]
    lanes = period // fmt.itemsize
    shifts = {name: (getattr(step, name) + first) % lanes for name in ("send_shift", "recv_shift")}
    return step.with_(count=stop - first, data=cut, head=head, tail=tail, **shifts)


def without_columns(step: Step, first: int, stop: int) -> Step:
    """The columns [first, stop) taken out of the middle; what follows moves up."""
    members, shares = len(step.data), step.shares
    columns = step.data.reshape(members, shares, -1)
    rest = np.delete(columns, slice(first, min(stop, step.call.count)), axis=2)
    return step.with_(count=rest.shape[2], data=rest.reshape(members, -1))


def at_most_shifted(step: Step, send: int, recv: int) -> Step:
    return replace(step, send_shift=min(step.send_shift, send), recv_shift=min(step.recv_shift, recv))


def smaller_shifts(shift: int, fmt: Format) -> list[int]:
    """Shifts below this one, smallest first; beyond a word only those at the same place in one, or in a line of 512 bytes."""
    lanes = WORD // fmt.itemsize
    some = {*range(min(shift, lanes)), shift % lanes, shift % (ALIGNMENT // fmt.itemsize)}
    return sorted(value for value in some if value < shift)


# ----------------------------------------------------------------------------------------------------------------- ranks


def only_members(case: Case, positions: Sequence[int]) -> Case:
    """The members at these positions, as the ranks 0, 1, ... of a world that has no others. The root stays, or is the first."""

    def edit(step: Step) -> Step:
        rows = list(positions)
        data = step.data[rows]
        if step.shares > 1:
            data = data.reshape(len(rows), step.shares, -1)[:, rows].reshape(len(rows), -1)
        root = rows.index(step.call.root) if step.call.root in rows else 0
        return step.with_(group=None, root=root, data=data, head=step.head[rows], tail=step.tail[rows])

    return replace(on_each(case, edit), rank_n=len(positions))


# ---------------------------------------------------------------------------------------------------------------- format


def in_format(case: Case, name: str) -> Case | None:
    """The same values in another format; None where it does not hold them all, or holds one in several ways (NaN)."""
    source, target = case.fmt, FORMATS[name]
    steps = []
    for step in case.steps:
        codes = {}
        for part in ("head", "data", "tail"):
            flat = np.ascontiguousarray(getattr(step, part)).reshape(-1)
            there = convert(source, flat, target, "ties_to_even") if flat.size else flat.astype(target.dtype)
            back = convert(target, there, source, "ties_to_even") if flat.size else flat
            if not np.array_equal(back, flat):
                return None
            codes[part] = there.reshape(getattr(step, part).shape)
        steps.append(step.with_(format=name, **codes))
    return case.with_steps(steps)


# ----------------------------------------------------------------------------------------------------------------- codes

PARTS = ("head", "data", "tail")
Spot = tuple[str, int, int]  # part, member, index (in a head counted from the range: -1 is next to it)


def spots(case: Case) -> list[Spot]:
    """Where any step has a code that is not zero; the range's own first."""
    found: dict[Spot, None] = {}
    for part in ("data", "tail", "head"):
        for step in case.steps:
            codes = getattr(step, part)
            for row, column in np.argwhere(codes != 0).tolist():
                found[part, row, column - codes.shape[1] if part == "head" else column] = None
    return list(found)


def values_at(case: Case, spot: Spot) -> dict[int, list[int]]:
    """Code -> the steps that have it there."""
    part, row, column = spot
    found: dict[int, list[int]] = {}
    for number, step in enumerate(case.steps):
        codes = getattr(step, part)
        if -codes.shape[1] <= column < codes.shape[1]:
            found.setdefault(int(codes[row, column]), []).append(number)
    return found


def with_code(case: Case, spot: Spot, steps: Sequence[int], code: int) -> Case:
    part, row, column = spot
    changed = list(case.steps)
    for number in steps:
        codes = getattr(changed[number], part).copy()
        codes[row, column] = code
        changed[number] = _put(changed[number], part, codes)
    return case.with_steps(changed)


def _put(step: Step, part: str, codes: Codes) -> Step:
    parts: dict[str, Any] = {part: codes}
    return replace(step, **parts)


def masked(case: Case, part: str, keep: npt.NDArray[np.bool_]) -> Case:
    """Codes of one part set to zero where ``keep`` (broadcast to (members, n), cut to each step's width) is False."""

    def edit(step: Step) -> Step:
        codes = getattr(step, part)
        width = codes.shape[1]
        mask = keep[:, -width:] if part == "head" and width else keep[:, :width]
        return _put(step, part, np.where(mask, codes, codes.dtype.type(0)))

    return on_each(case, edit)


def simpler(fmt: Format, code: int) -> list[int]:
    """Codes that say less than this one, the simplest first: zero, one, fewer bits, an exponent nearer to 0, no sign."""
    size, sign = code & fmt.magnitude_mask, code & fmt.sign_mask
    exponent, mantissa = size >> fmt.mantissa_bits, size & ((1 << fmt.mantissa_bits) - 1)
    one = fmt.power_of_two(0)
    tries = [0, one, one | mantissa, size, exponent << fmt.mantissa_bits]
    top = 1 << (fmt.mantissa_bits - 1) if fmt.mantissa_bits else 0
    lowest = mantissa & -mantissa
    tries += [one | lowest, (exponent << fmt.mantissa_bits) | lowest, size & (size - 1)]
    tries += [(exponent << fmt.mantissa_bits) | (mantissa & (top | top >> 1))]
    step = fmt.bias - exponent
    tries += [((exponent + step // part) << fmt.mantissa_bits) | mantissa for part in (2, 4, 8) if step // part]
    both = [value | mark for value in tries for mark in ({0, sign} if value else {0})]
    return [value for value in dict.fromkeys(both) if value != code and value & fmt.magnitude_mask <= fmt.max_code]


def everywhere(case: Case, row: int, code: int, new: int) -> Case:
    """One code of a member's data replaced wherever it stands, so that equal columns stay equal."""

    def edit(step: Step) -> Step:
        data = step.data.copy()
        data[row][data[row] == code] = new
        return _put(step, "data", data)

    return on_each(case, edit)


def telling_pairs(fmt: Format) -> list[tuple[int, int]]:
    """Two codes whose sum lies between 1 (or its upper neighbour) and the next number: a tie, above it, below it."""
    one, p = fmt.power_of_two(0), fmt.precision
    small = [fmt.power_of_two(-p), fmt.power_of_two(-p) | 1 << max(fmt.mantissa_bits - 1, 0), fmt.power_of_two(-p - 1)]
    return [(large, less) for less in small for large in (one, one + 1)] if -p - 1 >= fmt.emin else []


def with_pair(case: Case, column: int, pair: tuple[int, int], sign: int) -> Case | None:
    """A column that two members fill, filled with that pair; None where another number of members does."""
    rows = sorted({int(row) for step in case.steps for row in np.flatnonzero(step.data[:, column])})
    if len(rows) != 2:
        return None
    codes = {row: code | sign for row, code in zip(rows, pair, strict=True)}

    def edit(step: Step) -> Step:
        data = step.data.copy()
        for row, code in codes.items():
            data[row, column] = code
        return _put(step, "data", data)

    return on_each(case, edit)


def rescaled(case: Case, column: int) -> Case | None:
    """One column of the data times the power of two that makes its largest term's exponent 0; None where that is inexact."""
    fmt = case.fmt
    unit = 1 << fmt.mantissa_bits
    sizes = [step.data[:, column] & fmt.dtype.type(fmt.magnitude_mask) for step in case.steps]
    largest = max(int(size.max()) for size in sizes)
    move = fmt.bias - largest // unit
    smallest = min((int(code) for size in sizes for code in size if code), default=0)
    if not move or not unit <= smallest <= largest <= fmt.max_code or smallest // unit + move < 1:
        return None

    def edit(step: Step) -> Step:
        data = step.data.astype(np.int64)
        data[:, column] += np.where(data[:, column] & fmt.magnitude_mask, move * unit, 0)
        return _put(step, "data", data.astype(fmt.dtype))

    return on_each(case, edit)


def negated(case: Case, column: int) -> Case:
    """One column of the data with every sign turned (zeros stay)."""
    fmt = case.fmt

    def edit(step: Step) -> Step:
        data = step.data.copy()
        codes = data[:, column]
        data[:, column] = np.where(
            codes & fmt.dtype.type(fmt.magnitude_mask), codes ^ fmt.dtype.type(fmt.sign_mask), codes
        )
        return _put(step, "data", data)

    return on_each(case, edit)
