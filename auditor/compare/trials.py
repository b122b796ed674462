"""The trials that two arms share, bit by bit. A trial's id is made of its content, so equal ids are equal questions.

Equal bits need no reading: outputs are stored with their digests. Where digests differ both outputs are read in pieces. Nothing
is claimed of a trial that does not repeat itself in both runs, nor where flips between identical calls explain the difference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from auditor.compare.bits import WORD, Apart, Differing, differing
from auditor.compare.records import Bits, Example, OnlyIn
from auditor.model import Observation, Planned, Trial
from auditor.numerics.ulps import is_nan, ulp_steps
from auditor.probes import common
from auditor.probes.differences import Flips, exceeds_chance, first_address, shift_name
from auditor.probes.expected import nearest_at
from auditor.store import RecordedArm

EXAMPLES = 6  # of a cell
TRIALS_NAMED = 32
ROUNDED_OUTPUTS = 32  # differing outputs of a cell whose sample is held against the exact sum
CACHED = 1024
Cell = tuple[str, str, str]
Key = tuple[int, int]  # seed, rank


@dataclass(frozen=True, slots=True)
class Answer:
    """What one receiver gave to one input: the first observation, how many there are, and whether all have the same bits."""

    first: Observation
    repeats: int
    alike: bool

    @property
    def sound(self) -> bool:
        return self.alike and self.repeats > 1


class Side:
    """One arm with its flips."""

    def __init__(self, name: str, view: RecordedArm) -> None:
        self.name = name
        self.view = view
        self.flips = Flips(view)

    def answers(self, trial: Trial) -> dict[Key, Answer]:
        """By input and receiver; empty where nothing usable came back."""
        groups: dict[Key, list[Observation]] = {}
        for seen in common.receiving(self.view, trial):
            groups.setdefault((trial.seed_of(seen.repeat), seen.rank), []).append(seen)
        return {key: Answer(some[0], len(some), len({one.digest for one in some}) == 1) for key, some in groups.items()}

    def by_chance(self, trial: Trial, answers: Mapping[Key, Answer]) -> float:
        """Chance that all repeats of one input flipped alike, so that the trial looks steady and changed."""
        rate = self.flips.rate(trial)
        return max((rate**one.repeats for one in answers.values() if one.sound), default=0.0) if rate else 0.0


@dataclass(slots=True)
class Tally:
    """One cell while it is being counted."""

    equal: int = 0
    changed: list[Trial] = field(default_factory=list)
    silent: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    counted: set[tuple[str, str]] = field(default_factory=set)  # pairs of digests: equal data are counted once
    located: set[tuple[str, str]] = field(default_factory=set)  # those of them whose differing elements were counted
    elements: int = 0
    elements_changed: int = 0
    by_chance: float = 0.0
    ranks: set[int] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    by_address: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(WORD, np.int64))
    apart: Apart = field(default_factory=Apart)
    rounded: dict[str, int] = field(default_factory=dict)
    rounded_outputs: int = 0
    examples: list[Example] = field(default_factory=list)

    def mute(self, reason: str) -> None:
        self.silent[reason] = self.silent.get(reason, 0) + 1

    def count(self, digests: tuple[str, str], elements: int) -> None:
        """Elements of an output pair that was not met before: every rank of an all_reduce holds the same ones."""
        if digests not in self.counted:
            self.counted.add(digests)
            self.elements += elements

    def record(self, cell: Cell) -> Bits:
        n = len(self.changed)
        return Bits(
            collective=cell[0],
            op=cell[1],
            format=cell[2],
            equal=self.equal,
            changed=n,
            silent=dict(self.silent),
            partial=self.partial,
            elements=self.elements,
            elements_changed=self.elements_changed,
            by_chance=self.by_chance,
            claimed=not n or exceeds_chance(n, self.by_chance),
            ranks=tuple(sorted(self.ranks)),
            index_first=self.first,
            index_last=self.last,
            by_address_mod_16={str(i): int(n) for i, n in enumerate(self.by_address) if n},
            ulps=self.apart.measure() if n else {},
            rounded=dict(self.rounded),
            changed_trials=tuple(trial.trial_id for trial in self.changed[:TRIALS_NAMED]),
            counts=tuple(sorted({trial.call.count for trial in self.changed})),
            examples=tuple(self.examples),
        )


class Comparer:
    """Puts the shared trials of two arms side by side."""

    def __init__(self, base: Side, other: Side) -> None:
        self.base, self.other = base, other
        self.cells: dict[Cell, Tally] = {}
        self._known: OrderedDict[tuple[str, str, str], Differing] = OrderedDict()

    def compare(self, trials: Iterable[Trial]) -> tuple[Bits, ...]:
        """The smallest trials first, so that the first example is the smallest."""
        for trial in sorted(trials, key=lambda one: (one.send_count, one.send_shift + one.recv_shift)):
            self._trial(trial, self.cells.setdefault(common.cell(trial), Tally()))
        return tuple(tally.record(cell) for cell, tally in self.cells.items())

    def _trial(self, trial: Trial, tally: Tally) -> None:
        x, y = self.base.answers(trial), self.other.answers(trial)
        keys = sorted({*x} & {*y})
        if reason := self._unusable(trial, x, y, keys):
            tally.mute(reason)
            return
        apart = [key for key in keys if x[key].first.digest != y[key].first.digest]
        sure = [key for key in apart if x[key].sound and y[key].sound]
        if apart and not sure:
            tally.mute("recorded once, and other bits: that may be chance")
            return
        tally.by_chance += self.base.by_chance(trial, x) + self.other.by_chance(trial, y)
        tally.partial += {*x} != {*y}
        for key in keys:
            if x[key].sound and y[key].sound:
                tally.count((x[key].first.digest, y[key].first.digest), trial.call.count)
        if not sure:
            tally.equal += 1
            return
        tally.changed.append(trial)
        for number, key in enumerate(sure):
            self._output(trial, x[key].first, y[key].first, tally, show=not number)

    def _unusable(self, trial: Trial, x: Mapping[Key, Answer], y: Mapping[Key, Answer], keys: list[Key]) -> str:
        """Why nothing is claimed of a trial; empty where something can be."""
        for side, found in ((self.base, x), (self.other, y)):
            if not found:
                return f"{side.name}: {common.no_data_reason(side.view, [trial])}"
            if not all(one.alike for one in found.values()):
                return f"does not repeat itself in {side.name}"
        return "" if keys else "no rank and input was recorded in both"

    def _output(self, trial: Trial, a: Observation, b: Observation, tally: Tally, *, show: bool) -> None:
        new = (a.digest, b.digest) not in tally.located
        tally.located.add((a.digest, b.digest))
        found = self._differing(trial, a, b)
        tally.ranks.add(a.rank)
        tally.first = found.first if tally.first is None else min(tally.first, found.first)
        tally.last = found.last if tally.last is None else max(tally.last, found.last)
        tally.by_address += found.by_address(first_address(trial, a.rank), trial.call.fmt.itemsize)
        nearest = None
        if new:
            tally.elements_changed += found.changed
            tally.apart.merge(found.apart)
            nearest = self._rounded(trial, a, found, tally) if trial.call.op == "sum" else None
        if show and new and len(tally.examples) < EXAMPLES:
            example = _example(trial, a, found, nearest)
            if all(example.inputs != one.inputs for one in tally.examples):
                tally.examples.append(example)

    def _differing(self, trial: Trial, a: Observation, b: Observation) -> Differing:
        """Of two outputs; the same two are read once, whatever trial and rank they stand for."""
        key = (trial.call.format, a.digest, b.digest)
        if key not in self._known:
            pieces = [
                side.view.pieces(seen.trial_id, seen.repeat, seen.rank)
                for side, seen in ((self.base, a), (self.other, b))
            ]
            self._known[key] = differing(trial.call.fmt, *pieces)
            while len(self._known) > CACHED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _rounded(self, trial: Trial, a: Observation, found: Differing, tally: Tally) -> int | None:
        """Hold the sample against the exact sum, rounded once; gives that of the first element, None where it was not made."""
        if tally.rounded_outputs >= ROUNDED_OUTPUTS:
            return None
        tally.rounded_outputs += 1
        want = nearest_at(trial, a.repeat, a.rank, found.at)
        base, other = int((found.a == want).sum()), int((found.b == want).sum())
        for name, n in (("looked", len(want)), ("base", base), ("other", other)):
            tally.rounded[name] = tally.rounded.get(name, 0) + n
        return int(want[0])


def _example(trial: Trial, seen: Observation, found: Differing, nearest: int | None) -> Example:
    fmt, index = trial.call.fmt, int(found.at[0])
    a, b = found.a[:1], found.b[:1]
    number = not (is_nan(fmt, a) | is_nan(fmt, b)).any()
    return Example(
        trial=trial.trial_id,
        count=trial.call.count,
        shift=shift_name(trial),
        rank=seen.rank,
        repeat=seen.repeat,
        index=index,
        inputs=tuple(common.hex_code(fmt, code) for code in common.term_codes(trial, seen.repeat, seen.rank, index)),
        base=common.hex_code(fmt, int(a[0])),
        other=common.hex_code(fmt, int(b[0])),
        nearest="" if nearest is None else common.hex_code(fmt, nearest),
        ulps=int(ulp_steps(fmt, a, b)[0]) if number else None,
    )


# --------------------------------------------------------------------------------------------------------- what only one has


def only_in(planned: Iterable[Planned], ids: set[str]) -> OnlyIn:
    """Of an arm's trials, those whose id the other does not have."""
    alone = [one for one in planned if one.trial.trial_id not in ids]
    by_probe: dict[str, int] = {}
    for one in alone:
        for probe in one.probes:
            by_probe[probe] = by_probe.get(probe, 0) + 1
    return OnlyIn(total=len(alone), by_probe=by_probe, examples=tuple(one.trial.trial_id for one in alone[:4]))


def axes(base: Iterable[Planned], other: Iterable[Planned]) -> Iterator[tuple[str, list[str], list[str]]]:
    """(field, values that only the base's trials have, values that only the other's have), where there are any."""
    x, y = _values(base), _values(other)
    for name in x:
        mine, theirs = (
            [v for v in x[name] if v not in y.get(name, ())],
            [v for v in y.get(name, ()) if v not in x[name]],
        )
        if mine or theirs:
            yield name, mine, theirs


def _values(planned: Iterable[Planned]) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for one in planned:
        for name, value in one.trial.to_json().items():
            found.setdefault(name, {})[str(value)] = None
    return found
