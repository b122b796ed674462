"""Do bytes outside the send range change results inside it?

A library that loads whole words reads past the end, or before the start, of a range that does not fill them. That is harmless
until what it read matters: added to an element, or, as in NVSHMEM issue 132, deciding how a neighbour is rounded. The same data
are sent with different fills around them; two trials that differ in their fills alone must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor import inputs
from auditor.config import Scope
from auditor.layout import GUARD
from auditor.model import ArmView, Finding, Trial
from auditor.numerics import triggers
from auditor.probes import common
from auditor.probes.differences import (
    CHANCE_WORDS,
    WORD,
    Flips,
    Stable,
    exceeds_chance,
    repeats_of,
    stable,
)
from auditor.probes.fills import RANDOMS, bitwise, cells_of, deep_points, ground, wanted
from auditor.probes.neighbours import bits_that_decide
from auditor.probes.pairs import Pairs, changes, too_little
from auditor.probes.splits import Change
from auditor.probes.statistics import clopper_pearson

NAME = "tail"
KINDS = ("foreign_read",)

REPEATS = 2
TRIALS = 300  # aimed at for an arm, shared out among its cells
LEAST, MOST = 24, 100  # of one cell
DEEP_CELLS = 2
SHOWN = 16  # distances listed one by one


# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """Many fills at a few points whose range ends and begins within a word, one fill at as many other points as is affordable."""
    cells = cells_of(scope)
    share = min(MOST, max(LEAST, TRIALS // max(1, len(cells))))
    for number, points in enumerate(cells):
        randoms = RANDOMS if number < DEEP_CELLS else 0
        room = share + randoms + (len(list(bitwise(deep_points(points)[0]))) if randoms else 0)
        chosen: dict[Trial, int] = {}
        for trial in wanted(points, deep_randoms=randoms):
            plain = trial.head == trial.tail == "zero" and trial.prefill == "snan_a"  # shared with repeatability
            if plain or room > 0:
                room -= not plain and trial not in chosen
                chosen[trial] = repeats_of(scope) if plain else REPEATS
        used = {ground(trial) for trial in chosen if trial.head != "zero" or trial.tail != "zero"}
        yield from ((trial, n) for trial, n in chosen.items() if ground(trial) in used or trial.prefill != "snan_a")


# --------------------------------------------------------------------------------------------------------------- analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a cell (collective, op, format)."""
    flips = Flips(view)
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in common.trials_of(view, NAME):
        if planned.trial.call.count:
            cells.setdefault(common.cell(planned.trial), []).append(planned.trial)
    for trials in cells.values():
        yield _foreign_read(view, _Fills(Pairs(view, flips)), trials)


@dataclass(slots=True)
class _Fills:
    """Pairs of trials of one cell that differ in their fills alone."""

    pairs: Pairs
    deviants: int = 0  # trials that do not give their point's usual result
    points: int = 0
    points_changed: int = 0
    left_out: int = 0  # trials that do not repeat themselves
    sides: dict[str, list[int]] = field(default_factory=dict)
    from_end: Counter[int] = field(default_factory=Counter)
    from_start: Counter[int] = field(default_factory=Counter)
    by_send_address: Counter[int] = field(default_factory=Counter)
    near: set[str] = field(
        default_factory=set
    )  # ends of which a changed element lies within a word, nearer than to the other
    most: int = 0  # elements changed in one call
    bits: dict[str, list[int]] = field(
        default_factory=dict
    )  # foreign bit turned -> [elements taken up by it, taken down]
    moved: bool = False  # a control changed as well
    paths: set[str] = field(default_factory=set)

    def add(self, group: Sequence[Stable]) -> None:
        """All trials of one point and one data set."""
        reference = min(group, key=_plainness)
        votes = Counter(one.digests for one in group)
        self.points += 1
        self.paths.update(one.path for one in group)
        before = self.pairs.tally.changed_pairs
        for other in group:
            if other is not reference:
                self._pair(reference, other)
        if self.pairs.tally.changed_pairs > before:
            self.points_changed += 1
            self.deviants += len(group) - max(votes.values())

    def _pair(self, a: Stable, b: Stable) -> None:
        side = _side(a.trial, b.trial)
        changed = self.pairs.add(_fill(b.trial), a, b)
        counts = self.sides.setdefault(side, [0, 0])
        counts[0], counts[1] = counts[0] + bool(changed), counts[1] + 1
        self.most = max(self.most, changed)
        if changed:
            for change in changes(self.pairs.view, a, b)[0]:
                self._locate(b.trial, change)
        if a.trial.tail == f"trigger:{triggers.BASE}" and b.trial.tail != f"trigger:{triggers.ALL}":
            self._by_bit(a, b)

    def _locate(self, trial: Trial, change: Change) -> None:
        first = inputs.receiver_range(trial, change[0].rank)[0]
        at = np.flatnonzero(change[2]) + first
        size = trial.call.fmt.itemsize
        self.by_send_address.update(int(i) for i in (trial.send_shift + at) * size % WORD)
        back = trial.send_count - 1 - at
        if ((at < back) & (at * size < WORD)).any():
            self.near.add("head")
        if ((back < at) & (back * size < WORD)).any():
            self.near.add("tail")
        self.from_end.update(int(i) for i in back[back < at])
        self.from_start.update(int(i) for i in at[back > at])

    def _by_bit(self, a: Stable, b: Stable) -> None:
        """Two trials whose foreign sums differ in one bit: which way it takes the sums within the range."""
        counts = self.bits.setdefault(b.trial.tail.partition(":")[2], [0, 0])
        mask = b.trial.call.fmt.dtype.type(b.trial.call.fmt.magnitude_mask)
        for x, y, changed in changes(self.pairs.view, a, b)[0]:
            pair = ((a.trial, x), (b.trial, y))
            before, after = (self.pairs.view.output(t.trial_id, o.repeat, o.rank)[changed] & mask for t, o in pair)
            counts[0] += int((after > before).sum())
            counts[1] += int((after < before).sum())

    def by_bit(self) -> dict[str, Any]:
        """Nothing where no single bits were tried."""
        if not self.bits:
            return {}
        moved = {name: {"up": up, "down": down} for name, (up, down) in self.bits.items() if up or down}
        return {"foreign_bits_tried": list(self.bits), "foreign_bits_that_matter": moved}

    @property
    def by_flips(self) -> bool:
        return not exceeds_chance(self.deviants, self.pairs.tally.by_chance)

    def where(self) -> str:
        """Which foreign bytes matter: by the trials that fill one side alone, and by the ends that changed elements lie at."""
        found = [side for side in ("head", "tail") if self.sides.get(side, [0])[0] or side in self.near]
        one = {"head": "before the start", "tail": "past the end", "": "outside"}
        return one.get("".join(found), "before the start and past the end")

    def measure(self) -> dict[str, Any]:
        by_side = {side: {"changed_pairs": k, "pairs": n} for side, (k, n) in sorted(self.sides.items())}
        return self.pairs.tally.measure(
            points=self.points,
            points_changed=self.points_changed,
            trials_left_out=self.left_out,
            most_elements_changed_in_a_call=self.most,
            by_fill=self.pairs.by_part(),
            by_side=by_side,
            changed_by_distance_from_end=_counts(self.from_end),
            changed_by_distance_from_start=_counts(self.from_start),
            changed_by_send_address_mod_8=_counts(_fold(self.by_send_address, 8)),
            changed_by_send_address_mod_16=_counts(self.by_send_address),
            paths=sorted(self.paths - {""}),
            **self.by_bit(),
        )


def _plainness(one: Stable) -> tuple[int, bool]:
    """Smallest for the trial that others are compared with: zeros around, or the sum whose bits others turn."""
    filled = (one.trial.head != "zero") + (one.trial.tail != "zero")
    return filled, one.trial.tail != f"trigger:{triggers.BASE}"


def _counts(counter: Counter[int]) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)[:SHOWN]}


def _fold(counter: Counter[int], period: int) -> Counter[int]:
    folded: Counter[int] = Counter()
    for key, n in counter.items():
        folded[key % period] += n
    return folded


def _fill(trial: Trial) -> str:
    """The kind of a trial's fill: that of the side which is filled."""
    fill = trial.tail if trial.tail != "zero" else trial.head
    return fill.partition(":")[0]


def _side(a: Trial, b: Trial) -> str:
    sides = [name for name in ("head", "tail") if getattr(a, name) != getattr(b, name)]
    return sides[0] if len(sides) == 1 else "both"


def _foreign_read(view: ArmView, found: _Fills, trials: Sequence[Trial]) -> Finding:
    groups: dict[Trial, list[Stable]] = {}
    for trial in trials:
        one = stable(view, trial)
        found.left_out += one is None
        if one is not None:
            groups.setdefault(ground(trial), []).append(one)
    for place, group in groups.items():
        if len({(one.trial.head, one.trial.tail) for one in group}) > 1:
            found.add(group)
        control = groups.get(place.with_(prefill="snan_b"))
        if place.prefill == "snan_a" and control:
            plain = next((one for one in group if one.trial == place), None)
            found.moved |= plain is not None and bool(changes(view, plain, control[0])[0])
    if not found.pairs.tally.pairs:
        return too_little(view, NAME, "foreign_read", trials)
    if not found.pairs.tally.changed_pairs:
        return _finding(view, found, trials, _pass_claim(found, trials), _limits(found))
    if found.moved or found.by_flips:
        return common.inconclusive(view, NAME, "foreign_read", trials, _doubt(found))
    return _finding(view, found, trials, _fail_claim(found, trials), _fail_limits(found))


def _finding(view: ArmView, found: _Fills, trials: Sequence[Trial], claim: str, limits: str) -> Finding:
    tally = found.pairs.tally
    return common.finding(
        view,
        NAME,
        "foreign_read",
        common.verdict_for(view, "foreign_read", bool(tally.changed_pairs)),
        claim,
        trials=tally.trials.values() if tally.trials else trials,
        measure=found.measure(),
        evidence=tally.rows,
        limits=limits,
    )


def _doubt(found: _Fills) -> str:
    tally = found.pairs.tally
    seen = f"{tally.changed_pairs} of {common.plural(tally.pairs, 'pair')} of fills differ"
    if found.moved:
        return f"{seen}, but so do trials of the same fills that differ in the prefill of the receive range alone"
    return f"{seen}, but the subject also changes between {CHANCE_WORDS.format(tally.by_chance)}"


def _fail_claim(found: _Fills, trials: Sequence[Trial]) -> str:
    tally = found.pairs.tally
    return (
        f"{common.where(trials)}: bytes {found.where()} of the send range change results inside it, in {tally.changed_pairs} of "
        f"{common.plural(tally.pairs, 'pair')} of trials that differ in those bytes alone (up to "
        f"{common.plural(found.most, 'element')} of a call){_bits_words(found)}."
    )


def _bits_words(found: _Fills) -> str:
    """``; one bit of the foreign sum is enough, b22 and b21 of its word``, and whether these decide within the range as well."""
    single = [name for name, moved in found.bits.items() if any(moved)]
    if not single:
        return ""
    inside = bits_that_decide(found.pairs.view, common.cell(next(iter(found.pairs.tally.trials.values()))))
    same = ", the very bits by which elements inside the range are rounded" if set(single) == set(inside) else ""
    return f"; one bit of the foreign sum is enough, {common.listed(single, 8)} of its word{same}"


def _fail_limits(found: _Fills) -> str:
    return (
        "`observed` is the result with the fill of the trial named, `expected` the result of the same data with the fill that it "
        "is compared with (zeros; trigger:A in trials of trigger:B, trigger:0 in those of the other triggers); neither need be "
        f"the right one. {_path(found)}"
    )


def _pass_claim(found: _Fills, trials: Sequence[Trial]) -> str:
    tally = found.pairs.tally
    fills, high = common.listed(sorted(found.pairs.parts)), clopper_pearson(0, tally.pairs)[1]
    return (
        f"{common.where(trials)}: bytes before and after the send range change nothing inside it, in "
        f"{common.plural(tally.pairs, 'pair')} of trials that differ in those bytes alone, at "
        f"{common.plural(found.points, 'point')} of count and shift (fills: {fills}); the rate is below "
        f"{high:.2g} per pair (95 %)."
    )


def _limits(found: _Fills) -> str:
    return (
        f"{_path(found)} Varied: {GUARD} bytes on each side of every rank's send range; bytes around the receive range, and "
        "bytes further away, keep their values. A read that never reaches a result does not show."
    )


def _path(found: _Fills) -> str:
    paths = sorted(found.paths - {""})
    return (
        f"Path taken, as reported: {common.listed(paths)}."
        if paths
        else "The subject reports no path that the trials took."
    )
