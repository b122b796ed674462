"""Pairs of trials of the same data, put side by side by data index; what placement and tail count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor.model import ArmView, Codes, Finding, Observation, Trial
from auditor.probes import common
from auditor.probes.differences import Flips, Mask, Stable, Tally, differing, flips_reason, left_out, rows_at
from auditor.probes.splits import Change, PathSplit
from auditor.probes.statistics import clopper_pearson


def changes(view: ArmView, a: Stable, b: Stable, other: ArmView | None = None) -> tuple[list[Change], list[int], int]:
    """(what differs, ranks that count, elements compared in each) between two trials of the same data, or two arms' (``other``:
    b's) answers to one trial.

    The ranks of an all_reduce hold the same sums: the first whose bits changed stands for all. Shares of a reduce_scatter count
    one by one; where the counts differ, only the first member's begins with the same data.
    """
    ranks = sorted(a.seen, key=a.trial.members.index)
    every = a.trial.call.collective == "reduce_scatter"
    ranks = ranks[:1] if every and a.trial.call.count != b.trial.call.count else ranks
    size = min(a.trial.call.count, b.trial.call.count)
    found: list[Change] = []
    looked: set[tuple[str, str]] = set()
    for rank in ranks:
        x, y = a.seen[rank], b.seen[rank]
        pair = (x.digest, y.digest)
        if not every and (found or pair in looked):
            continue
        looked.add(pair)
        if x.digest != y.digest or a.trial.call.count != b.trial.call.count:
            mask = differing(view, (a.trial, x), (b.trial, y), size, other)
            if mask.any():
                found.append((x, y, mask))
    return found, ranks if every else ranks[:1], size


@dataclass(slots=True)
class Part:
    """Comparisons of one setting (a shift, a count step): pairs and elements."""

    pairs: int = 0
    changed_pairs: int = 0
    changed: int = 0
    compared: int = 0

    def add(self, changed: int, compared: int) -> None:
        self.pairs += 1
        self.changed_pairs += bool(changed)
        self.changed += changed
        self.compared += compared


@dataclass(slots=True)
class Pairs:
    """A tally of pairs of trials, with its parts by setting."""

    view: ArmView
    flips: Flips
    tally: Tally = field(default_factory=Tally)
    parts: dict[str, Part] = field(default_factory=dict)
    split: PathSplit | None = None

    def add(self, part: str, a: Stable, b: Stable) -> int:
        """Compare b with its reference a; elements changed."""
        found, ranks, size = changes(self.view, a, b)
        compared = size * len(ranks)
        chance = self.flips.alike_by_chance(a) + self.flips.alike_by_chance(b)
        changed = sum(int(mask.sum()) for _, _, mask in found)
        self.tally.pair(changed, compared, chance)
        self.tally.at(b.trial, bool(changed))
        self.parts.setdefault(part, Part()).add(changed, compared)
        for rank in ranks:
            self.tally.addresses.add(b.trial, rank, size, np.empty(0, np.int64))
        if changed:
            self.tally.note(a.trial, b.trial)
        for x, y, mask in found:
            self.tally.addresses.add(b.trial, y.rank, 0, np.flatnonzero(mask))
            self.tally.evidence(self.view, (a.trial, x), (b.trial, y), mask)
        if self.split is not None:
            self.split.add(a, b, found, compared)
        return changed

    def by_part(self) -> dict[str, dict[str, int]]:
        return {
            name: {"changed": p.changed, "compared": p.compared, "changed_pairs": p.changed_pairs, "pairs": p.pairs}
            for name, p in self.parts.items()
        }

    def high(self) -> float:
        return clopper_pearson(self.tally.changed, self.tally.compared)[1]

    def finding(self, probe: str, kind: str, trials: Sequence[Trial], claim: str, limits: str, **more: Any) -> Finding:
        if self.tally.by_flips:
            return common.inconclusive(self.view, probe, kind, trials, flips_reason(self.tally))
        return common.finding(
            self.view,
            probe,
            kind,
            common.verdict_for(self.view, kind, bool(self.tally.changed)),
            claim,
            trials=trials,
            measure=self.tally.measure(**more),
            evidence=self.tally.rows,
            limits=limits,
        )


def too_little(view: ArmView, probe: str, kind: str, trials: Sequence[Trial]) -> Finding:
    """Why there is no pair to compare: nothing came back, or what came back does not repeat itself."""
    reason = common.no_data_reason(view, trials)
    if any(common.receiving(view, trial) for trial in trials):
        reason = "fewer than two of the trials to compare repeat themselves"
    return common.inconclusive(view, probe, kind, trials, reason)


def compare_tiles(found: Pairs, one: Stable) -> int:
    """Compare each tile of every distinct receiver with the first tile of the first; different tile contents."""
    trial, view = one.trial, found.view
    block = trial.send_count // trial.tiled
    ranks = sorted(one.seen, key=trial.members.index)
    ranks = ranks if trial.call.collective == "reduce_scatter" else ranks[:1]
    first = view.output(trial.trial_id, one.seen[ranks[0]].repeat, ranks[0])[:block]
    contents = {first.tobytes()}
    for rank in ranks:
        seen = one.seen[rank]
        codes = view.output(trial.trial_id, seen.repeat, rank)
        for start in range(0, trial.call.count, block):
            if rank == ranks[0] and start == 0:
                continue
            part = slice(start, start + block)
            mask: Mask = np.not_equal(codes[part], first)
            if mask.any():
                mask &= ~left_out(view, trial, rank)[part] & ~left_out(view, trial, ranks[0])[:block]
            found.tally.pair(int(mask.sum()), block, found.flips.alike_by_chance(one))
            found.tally.addresses.add(trial, rank, block, np.flatnonzero(mask) + start, first=start)
            number = (trial.members.index(rank) * trial.call.count if len(ranks) > 1 else 0) + start
            found.parts.setdefault(str(number // block), Part()).add(int(mask.sum()), block)
            if mask.any():
                contents.add(codes[part].tobytes())
                found.tally.note(trial)
                _note_tile(found, trial, seen, start, mask, first)
    return len(contents)


def _note_tile(found: Pairs, trial: Trial, seen: Observation, start: int, mask: Mask, first: Codes) -> None:
    at = np.flatnonzero(mask)
    few = at[: max(0, min(4, common.MAX_ROWS - len(found.tally.rows)))]
    codes = found.view.output(trial.trial_id, seen.repeat, seen.rank)
    found.tally.rows += rows_at(trial, seen, few + start, codes[few + start], first[few])
