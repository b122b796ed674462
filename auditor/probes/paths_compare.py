"""Two arms on the same data: which of the trials that both ran gave other bits, where, and how far apart.

A trial's id is made of its content alone, so that arms of equal rank count share the trials that both planned. An arm's answer
to a trial counts only where every repeat gave the same bits: nothing is claimed between arms where one does not repeat itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from auditor.model import ArmView, Codes, Observation, Planned, Trial
from auditor.numerics.ulps import Distances, is_nan
from auditor.probes import common
from auditor.probes.differences import Flips, Mask, Stable, Tally, issued_alike, same_inputs, stable
from auditor.probes.expected import nearest_at
from auditor.probes.pairs import Part, changes

PROBE = "paths"
PLACES = 8  # parts of a range by which differing elements are counted
Cell = tuple[str, str, str]


class Arm:
    """One arm with its answers, each found once."""

    def __init__(self, view: ArmView) -> None:
        self.view = view
        self.name = view.arm
        self._answers: dict[str, Stable | None] = {}

    @cached_property
    def trials(self) -> dict[str, Planned]:
        """What may be compared with another arm: several repeats of one input, issued alike."""
        return {
            planned.trial.trial_id: planned
            for planned in self.view.planned
            if planned.repeats > 1 and planned.trial.inputs == "same" and issued_alike(planned.trial)
        }

    @cached_property
    def flips(self) -> Flips:
        return Flips(self.view)

    def answer(self, trial: Trial) -> Stable | None:
        """None where the arm does not repeat itself, or too little came back."""
        if trial.trial_id not in self._answers:
            self._answers[trial.trial_id] = stable(self.view, trial)
        return self._answers[trial.trial_id]

    def wavers(self, trial: Trial) -> bool:
        """Whether the arm gave different bits in identical calls."""
        by_rank = next(iter(same_inputs(self.view, trial)), {})
        return any(len({seen.digest for seen in some}) > 1 for some in by_rank.values())


def shared(a: Arm, b: Arm) -> dict[Cell, list[Trial]]:
    """Trials of both arms by cell (collective, op, format), in b's plan order."""
    found: dict[Cell, list[Trial]] = {}
    for key, planned in b.trials.items():
        if key in a.trials:
            found.setdefault(common.cell(planned.trial), []).append(planned.trial)
    return found


@dataclass(slots=True)
class Comparison:
    """What arm ``b`` gave beside what arm ``a`` gave, over trials of one cell or of several."""

    a: Arm
    b: Arm
    full: bool = False  # where and how far apart as well, with evidence: for the comparison that is told
    tally: Tally = field(default_factory=Tally)
    apart: Distances = field(default_factory=Distances)
    families: dict[str, Part] = field(default_factory=dict)
    cells: dict[str, Part] = field(default_factory=dict)
    places: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(PLACES)])  # changed, compared
    trials: list[Trial] = field(default_factory=list)  # all that were compared
    wavering: dict[str, int] = field(default_factory=dict)  # arm -> trials in which it does not repeat itself
    missing: dict[str, int] = field(default_factory=dict)  # arm -> trials of which too little came back
    nearest: dict[str, int] = field(default_factory=dict)  # whose the correctly rounded sums are, where bits differ
    _sweep: Comparison | None = None

    @property
    def differs(self) -> bool:
        """Bits differ, and not by chance: an arm that flips now and then may look stable in a trial."""
        return bool(self.tally.changed_pairs) and not self.tally.by_flips

    @property
    def equal(self) -> bool:
        """Every shared trial was compared, and none differs."""
        return bool(self.tally.pairs) and not self.tally.changed_pairs and not self.wavering

    def compare(self, trials: list[Trial]) -> Comparison:
        """The smallest trials first, so that the first row of the evidence is the smallest example."""
        for trial in sorted(trials, key=lambda trial: (trial.send_count, trial.send_shift + trial.recv_shift)):
            x, y = self.a.answer(trial), self.b.answer(trial)
            if x is not None and y is not None:
                self._add(x, y)
            else:
                self._leave_out(trial, x, y)
        return self

    @property
    def telling(self) -> Comparison:
        """The part of it that figures are of: where bits differ, the sweep's own data, since other probes' are made to be tipped;
        all of it where those agree.
        """
        if not self.differs:
            return self
        if self._sweep is None:
            own = [trial for trial in self.trials if PROBE in self.b.trials[trial.trial_id].probes]
            part = self.again(own, full=False) if len(own) < len(self.trials) else self
            self._sweep = part if part.differs else self
        return self._sweep

    @property
    def beyond_sweep(self) -> bool:
        """Whether bits differ in what other probes sent alone."""
        return self.differs and not any(
            PROBE in self.b.trials[t.trial_id].probes for t in self.telling.tally.trials.values()
        )

    def again(self, trials: list[Trial], *, full: bool) -> Comparison:
        """Of a part of the trials that were compared; what was left out stays said."""
        made = Comparison(self.a, self.b, full, wavering=self.wavering, missing=self.missing)
        return made.compare(trials)

    def _leave_out(self, trial: Trial, x: Stable | None, y: Stable | None) -> None:
        for arm, answer in ((self.a, x), (self.b, y)):
            if answer is None:
                counts = self.wavering if arm.wavers(trial) else self.missing
                counts[arm.name] = counts.get(arm.name, 0) + 1

    def _add(self, x: Stable, y: Stable) -> None:
        trial = y.trial
        found, ranks, size = changes(self.a.view, x, y, self.b.view)
        changed, compared = sum(int(mask.sum()) for _, _, mask in found), size * len(ranks)
        self.trials.append(trial)
        self.tally.pair(changed, compared, self.a.flips.alike_by_chance(x) + self.b.flips.alike_by_chance(y))
        self.tally.at(trial, bool(changed))
        self.families.setdefault(trial.family.name, Part()).add(changed, compared)
        self.cells.setdefault(" ".join(common.cell(trial)), Part()).add(changed, compared)
        if changed:
            self.tally.note(trial)
        if self.full:
            for rank in ranks:
                self.tally.addresses.add(trial, rank, size, np.empty(0, np.int64))
            self._place(None, size, len(ranks))
            for before, after, mask in found:
                self._locate(trial, before, after, mask)

    def _locate(self, trial: Trial, before: Observation, after: Observation, mask: Mask) -> None:
        at = np.flatnonzero(mask)
        self.tally.addresses.add(trial, after.rank, 0, at)
        self.tally.evidence(self.a.view, (trial, before), (trial, after), mask, self.b.view)
        self._place(at, len(mask), 1)
        x = self.a.view.output(trial.trial_id, before.repeat, before.rank)[at]
        y = self.b.view.output(trial.trial_id, after.repeat, after.rank)[at]
        self.apart.add(trial.call.fmt, x, y)
        if trial.call.op == "sum":
            self._credit(trial, after, at, x, y)

    def _credit(self, trial: Trial, seen: Observation, at: Any, x: Codes, y: Codes) -> None:
        """Whose results are the correctly rounded sums; NaN have none."""
        fmt = trial.call.fmt
        number = ~(is_nan(fmt, x) | is_nan(fmt, y))
        want = nearest_at(trial, seen.repeat, seen.rank, at)
        right = {self.a.name: x == want, self.b.name: y == want, "neither": (x != want) & (y != want)}
        for name, hits in right.items():
            self.nearest[name] = self.nearest.get(name, 0) + int((hits & number).sum())

    def _place(self, changed: Any, size: int, times: int) -> None:
        """Count by which part of the range, from its first element to its last."""
        if size < PLACES:
            return
        if changed is not None:
            for part, n in enumerate(np.bincount(changed * PLACES // size, minlength=PLACES)):
                self.places[part][0] += int(n)
            return
        edges = [-(-part * size // PLACES) for part in range(PLACES + 1)]
        for part in range(PLACES):
            self.places[part][1] += (edges[part + 1] - edges[part]) * times

    def measure(self) -> dict[str, Any]:
        """For a finding; counts over every shared trial that both arms repeat."""
        told: dict[str, Any] = {"compared_with": self.a.name, **self.tally.measure()}
        if self.tally.changed and self.full:
            told["ulps_apart"] = self.apart.measure()
            if self.places[0][1]:
                told["by_part_of_range"] = {
                    f"{part + 1}/{PLACES}": {"changed": k, "compared": n} for part, (k, n) in enumerate(self.places)
                }
            told["by_cell"] = _by_part(self.cells)
        if any(self.nearest.values()):
            told["correctly_rounded"] = self.nearest
        for key, counts in (("trials_that_do_not_repeat", self.wavering), ("trials_without_result", self.missing)):
            if counts:
                told[key] = counts
        return told

    def by_data(self) -> dict[str, Any]:
        """By input family, where bits differ."""
        return {"by_family": _by_part(self.families)} if self.tally.changed else {}


def _by_part(parts: dict[str, Part]) -> dict[str, dict[str, int]]:
    return {
        name: {"changed": p.changed, "compared": p.compared, "changed_trials": p.changed_pairs, "trials": p.pairs}
        for name, p in parts.items()
    }
