"""Is it the same every time? On every repeat, on every rank, in a fresh process, after other communicators came and went.

Four questions that "deterministic" runs together (FAULTS, "What the set says", 2): a subject may pass the first two and fail the
last two. Outputs are compared by digest; bytes are read only where digests differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor.config import Scope
from auditor.model import ArmView, Finding, Observation, Trial
from auditor.probes import common
from auditor.probes.differences import (
    CHANCE,
    WORD,
    Flips,
    Stable,
    Tally,
    base_trials,
    differing,
    flips_reason,
    issued_alike,
    repeats_of,
    same_inputs,
    stable,
    usual,
)
from auditor.probes.ranks import rank_disagreement
from auditor.probes.statistics import clopper_pearson

NAME = "repeatability"
KINDS = ("not_repeatable", "rank_disagreement", "fresh_process", "history_dependence")

MANY = 20  # repeats of the small trials that look for rare changes
ALTERNATE = 6
LARGE = 1 << 20  # bytes of a send range that is repeated so often at one shift only
FRESH = 3  # fresh processes
SIDE_COMMUNICATORS = (1, 2, 3)
RECREATIONS = 2


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """Every point of the sweep repeated; at telling points also alternating inputs, many repeats and other circumstances."""
    repeats = repeats_of(scope)
    for trial in base_trials(scope):
        yield trial, repeats
    for trial in _telling(scope, counts=3, shifts=2):
        yield trial.with_(inputs="alternate"), max(ALTERNATE, repeats)
    for trial in _telling(scope, counts=3, shifts=3, small=True):
        yield trial, max(MANY, repeats)
    for trial in _telling(scope, counts=2, shifts=1):
        yield trial.with_(variant=f"fresh:{FRESH}"), FRESH
        if "history" in scope.capabilities.features:
            for number in SIDE_COMMUNICATORS:
                yield trial.with_(variant=f"history:{number}"), 2
        if "recreate" in scope.capabilities.features:
            yield trial.with_(variant=f"recreate:{RECREATIONS}"), RECREATIONS + 1


def _telling(scope: Scope, *, counts: int, shifts: int, small: bool = False) -> Iterator[Trial]:
    """Base trials at a few counts and shifts, out of place where the sweep has that. ``small``: not the largest count."""
    some = scope.telling_counts(counts)
    some = some[:-1] if small and len(some) > 1 else some
    pairs = scope.telling_shifts(shifts)
    in_place = False not in scope.sweep.in_place
    for trial in base_trials(scope):
        shift = (trial.send_shift, trial.recv_shift)
        large = trial.send_count * trial.call.fmt.itemsize > LARGE
        if trial.call.count in some and shift in (pairs[:1] if large else pairs) and trial.in_place == in_place:
            yield trial


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a kind and cell (collective, op, format), from all trials of the run."""
    flips = Flips(view)
    for trials in _cells(view):
        yield _not_repeatable(view, [trial for trial in trials if issued_alike(trial)])
        if trials[0].call.collective == "all_reduce":
            yield rank_disagreement(view, NAME, trials)
        yield from _circumstance(view, flips, "fresh_process", trials, ("fresh",))
        yield from _circumstance(view, flips, "history_dependence", trials, ("history", "recreate"))


def _cells(view: ArmView) -> list[list[Trial]]:
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in view.planned:
        if planned.trial.call.count:
            cells.setdefault(common.cell(planned.trial), []).append(planned.trial)
    return list(cells.values())


# ---------------------------------------------------------------------------------------------------------- not_repeatable


@dataclass(slots=True)
class _Repeats:
    """Calls of one cell compared with the usual answer to the same inputs. A tally's pair is one call."""

    tally: Tally = field(default_factory=Tally)
    by_base: dict[str, list[int]] = field(default_factory=dict)
    ranks: Counter[int] = field(default_factory=Counter)
    repeats: int = 0  # the most calls with the same inputs
    outcomes: int = 1  # the most different outputs of one rank to the same inputs

    def add(self, view: ArmView, trial: Trial, by_rank: dict[int, list[Observation]]) -> None:
        calls = max(len(seen) for seen in by_rank.values()) - 1
        if calls < 1:
            return
        changed = {o.repeat for seen in by_rank.values() for o in self._odd(view, trial, seen)}
        self.repeats = max(self.repeats, calls + 1)
        flipped = min(len(changed), calls)
        self.tally.pairs += calls
        self.tally.changed_pairs += flipped
        self.tally.at(trial, flipped, calls)
        base = self.by_base.setdefault(_base(trial), [0, 0])
        base[0], base[1] = base[0] + flipped, base[1] + calls
        if changed:
            self.tally.note(trial)

    def _odd(self, view: ArmView, trial: Trial, seen: list[Observation]) -> Iterator[Observation]:
        """The observations that differ from the usual one; counts elements on the way."""
        reference, nothing = usual(seen), np.empty(0, np.int64)
        odd = [one for one in seen if one.digest != reference.digest]
        self.outcomes = max(self.outcomes, len({one.digest for one in seen}))
        self.tally.compared += trial.call.count * (len(seen) - 1)
        self.tally.addresses.add(trial, reference.rank, trial.call.count, nothing, times=len(seen) - 1)
        for one in odd:
            mask = differing(view, (trial, reference), (trial, one))
            if mask.any():
                self.tally.changed += int(mask.sum())
                self.tally.addresses.add(trial, one.rank, 0, np.flatnonzero(mask))
                self.tally.evidence(view, (trial, reference), (trial, one), mask)
                self.ranks[one.rank] += 1
                yield one


def _base(trial: Trial) -> str:
    """Where the ranges begin within a 16-byte word: ``send/receive`` in bytes."""
    size = trial.call.fmt.itemsize
    return f"{trial.send_shift * size % WORD}/{trial.recv_shift * size % WORD}"


def _not_repeatable(view: ArmView, trials: Sequence[Trial]) -> Finding:
    found = _Repeats()
    for trial in trials:
        for by_rank in same_inputs(view, trial):
            found.add(view, trial, by_rank)
    tally = found.tally
    if not tally.pairs:
        reason = common.no_data_reason(view, trials)
        reason = "no trial has two results to compare" if reason == "nothing was recorded" else reason
        return common.inconclusive(view, NAME, "not_repeatable", trials, reason)
    low, high = clopper_pearson(tally.changed_pairs, tally.pairs)
    measure = {
        **tally.measure(),
        "calls_compared": tally.pairs,
        "calls_changed": tally.changed_pairs,
        "rate_per_call": tally.changed_pairs / tally.pairs,
        "rate_per_call_bounds_95": [low, high],
        "most_repeats": found.repeats,
        "most_outcomes": found.outcomes,
        "changed_calls_by_rank": {str(rank): n for rank, n in sorted(found.ranks.items())},
        "by_base_mod_16": {key: {"changed": k, "compared": n} for key, (k, n) in sorted(found.by_base.items())},
    }
    return common.finding(
        view,
        NAME,
        "not_repeatable",
        common.verdict_for(view, "not_repeatable", bool(tally.changed_pairs)),
        _repeat_claim(found, trials, high),
        trials=tally.trials.values() if tally.trials else trials,
        measure=measure,
        evidence=tally.rows,
        limits=(
            f"A change rarer than {high:.2g} per call, or one that needs other data, sizes, load or time than these, is not "
            "excluded. Bounds on elements take them as independent; elements of one call are not. `expected` is the usual "
            "answer to the same inputs, not the right one."
        ),
    )


def _repeat_claim(found: _Repeats, trials: Sequence[Trial], high: float) -> str:
    tally, where = found.tally, common.where(trials)
    if not tally.changed_pairs:
        return (
            f"{where}: the same inputs give the same bits in {common.plural(tally.pairs, 'repeated call')}; the rate of "
            f"change is below {high:.2g} per call (95 %, up to {found.repeats} repeats of one call)."
        )
    only = _only_at(found)
    return (
        f"{where}: {tally.changed_pairs} of {common.plural(tally.pairs, 'repeated call')} with the same inputs give other bits "
        f"on {_ranks(found)}{only}."
    )


def _only_at(found: _Repeats) -> str:
    """Where the ranges begin in all calls that change, if chance would not put them all there."""
    bases = [key for key, (changed, _) in sorted(found.by_base.items()) if changed]
    share = sum(found.by_base[key][1] for key in bases) / found.tally.pairs
    if share**found.tally.changed_pairs >= CHANCE:
        return ""
    return f", only where the send and receive range begin at byte {common.listed(bases)} of a 16-byte word"


def _ranks(found: _Repeats) -> str:
    ranks = sorted(found.ranks)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {common.listed(ranks)}"


# ---------------------------------------------------------------------------------------- fresh_process, history_dependence


@dataclass(slots=True)
class _Circumstance:
    tally: Tally = field(default_factory=Tally)
    by_variant: dict[str, list[int]] = field(default_factory=dict)
    unstable: int = 0  # trials whose plain form does not repeat itself

    def add(self, view: ArmView, flips: Flips, trial: Trial, plain: Stable) -> None:
        by_repeat: dict[int, list[Observation]] = {}
        for seen in common.receiving(view, trial):
            by_repeat.setdefault(seen.repeat, []).append(seen)
        counts = self.by_variant.setdefault(trial.variant, [0, 0, 0])
        for seen_together in by_repeat.values():
            changed = sum(self._elements(view, trial, one, plain) for one in seen_together)
            self.tally.pair(changed, trial.call.count * len(seen_together), flips.rate(trial))
            counts[0] += bool(changed)
            counts[1] += 1
            counts[2] += changed

    def _elements(self, view: ArmView, trial: Trial, one: Observation, plain: Stable) -> int:
        reference = plain.seen[one.rank]
        indices = np.empty(0, np.int64)
        if one.digest != reference.digest:
            mask = differing(view, (plain.trial, reference), (trial, one))
            indices = np.flatnonzero(mask)
            self.tally.evidence(view, (plain.trial, reference), (trial, one), mask)
        self.tally.addresses.add(trial, one.rank, trial.call.count, indices)
        if len(indices):
            self.tally.note(trial, plain.trial)
        return len(indices)


_WORDS = {"fresh_process": "in a fresh process", "history_dependence": "after other communicators or a re-created one"}


def _circumstance(
    view: ArmView, flips: Flips, kind: str, trials: Sequence[Trial], variants: tuple[str, ...]
) -> Iterator[Finding]:
    """The same call under another circumstance against the plain one. Nothing where none was planned: the plan waived it."""
    mine = [trial for trial in trials if trial.variant.partition(":")[0] in variants]
    if not mine:
        return
    found = _Circumstance()
    for trial in mine:
        plain = stable(view, trial.with_(variant="plain"))
        if plain is None:
            found.unstable += 1
        else:
            found.add(view, flips, trial, plain)
    tally = found.tally
    if not tally.pairs:
        reason = "the plain trial does not repeat itself, or was not recorded" if found.unstable else ""
        yield common.inconclusive(view, NAME, kind, mine, reason or common.no_data_reason(view, mine))
        return
    if tally.by_flips:
        yield common.inconclusive(view, NAME, kind, mine, flips_reason(tally))
        return
    yield _circumstance_finding(view, kind, mine, found)


def _circumstance_finding(view: ArmView, kind: str, mine: Sequence[Trial], found: _Circumstance) -> Finding:
    tally, where = found.tally, common.where(mine)
    high = clopper_pearson(tally.changed_pairs, tally.pairs)[1]
    if tally.changed_pairs:
        names = [name for name, (changed, _, _) in found.by_variant.items() if changed]
        claim = (
            f"{where}: {tally.changed_pairs} of {common.plural(tally.pairs, 'call')} {_WORDS[kind]} give other bits than the "
            f"plain call ({common.listed(names)})."
        )
    else:
        claim = (
            f"{where}: {common.plural(tally.pairs, 'call')} {_WORDS[kind]} give the bits of the plain call; the rate "
            f"of change is below {high:.2g} per call (95 %)."
        )
    by_variant: dict[str, Any] = {
        name: {"calls_changed": k, "calls": n, "elements_changed": e} for name, (k, n, e) in found.by_variant.items()
    }
    return common.finding(
        view,
        NAME,
        kind,
        common.verdict_for(view, kind, bool(tally.changed_pairs)),
        claim,
        trials=mine,
        measure=tally.measure(
            calls=tally.pairs, calls_changed=tally.changed_pairs, by_variant=by_variant, trials_left_out=found.unstable
        ),
        evidence=tally.rows,
        limits="One machine and one allocation; another host, another start order or more communicators may show more.",
    )
