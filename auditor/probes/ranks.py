"""Whether all receiving ranks of an all_reduce hold the same bits after the same call, and which rank is the odd one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor.model import ArmView, Codes, Finding, Observation, Trial, Verdict
from auditor.probes import common
from auditor.probes.differences import CHANCE, Mask, Tally, differing, faithful
from auditor.probes.expected import own_codes
from auditor.probes.statistics import clopper_pearson


@dataclass(slots=True)
class _Ranks:
    """Calls of one cell in which the receiving ranks are compared with one another. A tally's pair is one call."""

    tally: Tally = field(default_factory=Tally)
    suspects: Counter[int] = field(default_factory=Counter)
    by_data: dict[tuple[Any, ...], set[int]] = field(default_factory=dict)  # odd ranks by what was summed
    undecided: int = 0
    outcomes: int = 1
    payload_only: bool = True
    members: set[int] = field(default_factory=set)
    filled: list[int] = field(
        default_factory=lambda: [0, 0]
    )  # calls with other bytes than zeros around the send range: [differ, all]

    def add(self, view: ArmView, trial: Trial, seen: list[Observation]) -> None:
        classes: dict[str, list[Observation]] = {}
        for one in seen:
            classes.setdefault(one.digest, []).append(one)
        ordered = sorted(classes.values(), key=len, reverse=True)  # stable: the lowest rank's class first among equals
        usual_class, others = list(ordered[0]), []
        union = np.zeros(trial.call.count, np.bool_)
        for one in seen:
            self.members.add(one.rank)
            self.tally.addresses.add(trial, one.rank, trial.call.count, np.empty(0, np.int64))
        for other in ordered[1:]:
            mask = differing(view, (trial, usual_class[0]), (trial, other[0]))
            mask = mask & ~_both_own(view, trial, usual_class[0], other[0], mask)
            if mask.any():
                others.append(other)
                union |= mask
                self._count(view, trial, usual_class[0], other[0], mask)
            else:
                usual_class += other  # they differ in unwritten elements alone
        self.tally.pair(int(union.sum()), trial.call.count)
        if (trial.head, trial.tail) != ("zero", "zero"):
            self.filled = [self.filled[0] + bool(others), self.filled[1] + 1]
        self.outcomes = max(self.outcomes, 1 + len(others))
        if others:
            self.tally.note(trial)
            self._accuse(view, trial, [usual_class, *others], union)

    def _count(self, view: ArmView, trial: Trial, a: Observation, b: Observation, mask: Mask) -> None:
        self.tally.addresses.add(trial, b.rank, 0, np.flatnonzero(mask))
        self.tally.evidence(view, (trial, a), (trial, b), mask)
        both = [_nan(trial, view.output(trial.trial_id, one.repeat, one.rank)[mask]) for one in (a, b)]
        self.payload_only &= bool((both[0] & both[1]).all())

    def _accuse(self, view: ArmView, trial: Trial, classes: list[list[Observation]], mask: Mask) -> None:
        """The odd ranks out: all but a strict majority; of two ranks, the one whose bits no rounding of the one addition gives.

        With more ranks a legal order may round at each hop and end elsewhere, so that accuses nobody.
        """
        total = sum(len(group) for group in classes)
        wrong = classes[1:]
        if 2 * len(classes[0]) <= total:
            right = [group for group in classes if self._right(view, trial, group[0], mask)]
            wrong = [group for group in classes if group not in right] if right and len(trial.members) == 2 else []
        self.undecided += not wrong
        odd = {one.rank for group in wrong for one in group}
        self.suspects.update(odd)
        data = (trial.call.count, str(trial.family), trial.seed_of(classes[0][0].repeat), trial.tiled)
        self.by_data.setdefault(data, set()).update(odd)

    @property
    def by_fills(self) -> bool:
        """Whether ranks differ only where foreign bytes do, and chance would not put all of it there: then each rank read its own
        foreign bytes, and that is the tail probe's finding.
        """
        differ, calls = self.filled
        return 0 < differ == self.tally.changed_pairs and (calls / self.tally.pairs) ** differ < CHANCE

    def accused(self) -> str:
        """The ranks that are odd with most of the data that differ; calls of the same data speak once."""
        votes = Counter(rank for odd in self.by_data.values() for rank in odd)
        often = sorted(rank for rank, n in votes.items() if 2 * n > len(self.by_data))
        if not often:
            return "no rank is the odd one out in most of them"
        return (
            f"rank {often[0]} is the odd one out"
            if len(often) == 1
            else f"ranks {common.listed(often)} are the odd ones out"
        )

    @staticmethod
    def _right(view: ArmView, trial: Trial, seen: Observation, mask: Mask) -> bool:
        codes = view.output(trial.trial_id, seen.repeat, seen.rank)
        return trial.call.op == "sum" and bool(faithful(trial, seen, codes, mask)[mask].all())


def _both_own(view: ArmView, trial: Trial, a: Observation, b: Observation, mask: Mask) -> Mask:
    """In place: elements where both ranks hold exactly what they sent. Neither was written, even where an own term happens to be
    a rounding of the sum, as in 8-bit formats it may.
    """
    if not trial.in_place or not mask.any():
        return np.zeros(len(mask), np.bool_)
    x, y = (view.output(trial.trial_id, o.repeat, o.rank) == own_codes(trial, o.repeat, o.rank) for o in (a, b))
    both: Mask = np.logical_and(x, y)
    return both


def _nan(trial: Trial, codes: Codes) -> Mask:
    fmt = trial.call.fmt
    magnitude = codes & codes.dtype.type(fmt.magnitude_mask)
    return np.asarray(magnitude > fmt.overflow_code - (0 if fmt.has_infinity else 1))


def rank_disagreement(view: ArmView, probe: str, trials: Sequence[Trial]) -> Finding:
    several = [trial for trial in trials if len(trial.members) > 1]
    if not several:
        claim = f"{common.where(trials)}: one rank has no other to disagree with."
        return common.finding(view, probe, "rank_disagreement", Verdict.WAIVED, claim, trials=trials)
    found = _Ranks()
    for trial in several:
        by_repeat: dict[int, list[Observation]] = {}
        for seen in common.receiving(view, trial):
            by_repeat.setdefault(seen.repeat, []).append(seen)
        for together in by_repeat.values():
            if len(together) > 1:
                found.add(view, trial, together)
    if not found.tally.pairs:
        reason = common.no_data_reason(view, several)
        return common.inconclusive(view, probe, "rank_disagreement", several, reason)
    return _finding(view, probe, several, found)


def _judged(view: ArmView, found: _Ranks, where: str, high: float) -> tuple[Verdict, str]:
    tally = found.tally
    verdict = common.verdict_for(view, "rank_disagreement", bool(tally.changed_pairs))
    if not tally.changed_pairs:
        return verdict, (
            f"{where}: ranks {common.listed(sorted(found.members))} hold the same bits after each of "
            f"{common.plural(tally.pairs, 'call')}; the rate of disagreement is below {high:.2g} per call (95 %)."
        )
    claim = f"{where}: in {tally.changed_pairs} of {common.plural(tally.pairs, 'call')} the ranks hold different bits"
    mild = ""
    if found.by_fills:
        mild = ", all of them calls with other bytes than zeros around the send range: see foreign_read."
    elif found.payload_only:  # IEEE 754 leaves the payload open: bits differ, results do not
        mild = ". All elements that differ are NaN on both sides: only payloads or signs of NaN differ."
    if mild and verdict is Verdict.FAIL and "rank_disagreement" not in view.expect:
        verdict = Verdict.INFORMATION
    return verdict, claim + (mild or f"; {found.accused()}.")


def _finding(view: ArmView, probe: str, trials: Sequence[Trial], found: _Ranks) -> Finding:
    tally, where = found.tally, common.where(trials)
    low, high = clopper_pearson(tally.changed_pairs, tally.pairs)
    verdict, claim = _judged(view, found, where, high)
    measure = tally.measure(
        calls=tally.pairs,
        calls_changed=tally.changed_pairs,
        rate_per_call_bounds_95=[low, high],
        suspect_ranks={str(rank): n for rank, n in sorted(found.suspects.items())},
        calls_without_majority=found.undecided,
        most_outcomes=found.outcomes,
        calls_with_fills_changed=found.filled[0],
        calls_with_fills=found.filled[1],
        only_nan_payload=bool(tally.changed_pairs) and found.payload_only,
    )
    return common.finding(
        view,
        probe,
        "rank_disagreement",
        verdict,
        claim,
        trials=tally.trials.values() if tally.trials else trials,
        measure=measure,
        evidence=tally.rows,
        limits=(
            "The odd rank out is the one in the minority (of two ranks: the one whose bits are not a rounding of the exact "
            "sum); its own links, its neighbours' or its memory may be the cause. `expected` is what the majority, or the lowest "
            "rank, holds."
        ),
    )
