"""Does a call return when it is done, and does the subject's own clock tell the truth?

``early_return``: the receive range is read as soon as ``run`` returns, without waiting for anything else on the device, and again
later; bytes that change in between were not there when the subject said that they were.

``false_time``: the subject's clock against the host's, over several calls in a row (and, where the backend has a queue, over
calls in flight together), so that what surrounds a call weighs little; and against what memory and link can move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from auditor.config import Scope
from auditor.model import ArmView, Evidence, Finding, Observation, Trial, Verdict
from auditor.probes import common
from auditor.probes.statistics import clopper_pearson
from auditor.probes.timing_clock import CALLS, Clock, clock_finding, clock_of

NAME = "timing"
KINDS = ("early_return", "false_time")
NEEDS = "a count, an operation and a format that the backend offers"

FAMILY = "wide"
BYTES = {
    "host": 1 << 17,
    "cuda": 1 << 23,
}  # that each rank sends: long enough to be seen, short enough to be done often
REREADS = 6
BURSTS = 4


# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """One point a collective: read twice; and, where the subject has a clock, some calls in a row of one element and of many."""
    features, memory = scope.capabilities.features, scope.capabilities.memory
    for point in _points(scope):
        members = len(point.members) if point.call.collective == "reduce_scatter" else 1
        large = point.with_(count=max(1, BYTES[memory] // point.call.fmt.itemsize // members))
        yield large.with_(variant="reread"), REREADS
        if "timing" in features:
            names = ("burst", "queued") if "queue" in features else ("burst",)
            for name in names:
                for trial in (point.with_(count=1), large):
                    yield trial.with_(variant=f"{name}:{CALLS[memory]}"), BURSTS


def _points(scope: Scope) -> Iterator[Trial]:
    """The first point of each collective: a sum where the sweep has one, out of place, least shifted."""
    best: dict[str, Trial] = {}
    for point in scope.points():
        known = best.get(point.call.collective)
        if known is None or _rank(point) < _rank(known):
            best[point.call.collective] = point
    for point in best.values():
        yield point.with_(in_place=False, family=scope.families(FAMILY)[0])


def _rank(point: Trial) -> tuple[bool, bool, int]:
    """Smaller is better; the plan's order decides between equals."""
    return point.call.op != "sum", point.in_place, point.send_shift + point.recv_shift


# --------------------------------------------------------------------------------------------------------------- analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a kind and cell (collective, op, format)."""
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in common.trials_of(view, NAME):
        cells.setdefault(common.cell(planned.trial), []).append(planned.trial)
    for trials in cells.values():
        twice = [trial for trial in trials if trial.variant == "reread"]
        timed = [trial for trial in trials if trial.variant != "reread"]
        yield _early_return(view, twice)
        yield _false_time(view, timed) if timed else _no_clock(view, twice)


def _no_clock(view: ArmView, trials: Sequence[Trial]) -> Finding:
    claim = f"{common.where(trials)}: the backend gives no time of its own, so none can be false."
    return common.finding(view, NAME, "false_time", Verdict.WAIVED, claim, trials=trials)


# ---------------------------------------------------------------------------------------------------------- early_return


@dataclass(slots=True)
class _Late:
    """Calls whose receive range was read twice."""

    calls: int = 0
    changed_calls: int = 0
    compared: int = 0
    changed: int = 0
    ranks: set[int] = field(default_factory=set)
    waits: list[float] = field(default_factory=list)  # seconds from the return to the second reading
    seen_after: list[float] = field(default_factory=list)  # the same, of those that changed
    rows: list[Evidence] = field(default_factory=list)

    def add(self, view: ArmView, trial: Trial, together: Sequence[Observation]) -> None:
        """What the ranks saw in one call."""
        self.calls += 1
        self.compared += trial.call.count * len(together)
        self.waits += [seen.late_seconds or 0.0 for seen in together]
        odd = [seen for seen in together if seen.digest != seen.late_digest]
        self.changed_calls += bool(odd)
        for seen in odd:
            self._changed(view, trial, seen)

    def _changed(self, view: ArmView, trial: Trial, seen: Observation) -> None:
        early = view.output(trial.trial_id, seen.repeat, seen.rank)
        late = view.late_output(trial.trial_id, seen.repeat, seen.rank)
        where = np.flatnonzero(early != late)
        self.changed += len(where)
        self.ranks.add(seen.rank)
        self.seen_after.append(seen.late_seconds or 0.0)
        room = min(4, common.MAX_ROWS - len(self.rows))
        self.rows += common.evidence_rows(trial, seen, where[: max(room, 0)], early, late, room)


def _early_return(view: ArmView, trials: Sequence[Trial]) -> Finding:
    found = _Late()
    for trial in trials:
        by_repeat: dict[int, list[Observation]] = {}
        for seen in common.usable(view, trial):
            if seen.late_digest:
                by_repeat.setdefault(seen.repeat, []).append(seen)
        for together in by_repeat.values():
            found.add(view, trial, together)
    if not found.calls:
        return common.inconclusive(view, NAME, "early_return", trials, common.no_data_reason(view, trials))
    low, high = clopper_pearson(found.changed_calls, found.calls)
    return common.finding(
        view,
        NAME,
        "early_return",
        common.verdict_for(view, "early_return", bool(found.changed_calls)),
        f"{common.where(trials)}: {_early_words(found, high)}",
        trials=trials,
        measure={
            "calls": found.calls,
            "calls_changed": found.changed_calls,
            "rate_per_call_bounds_95": [low, high],
            "elements": found.compared,
            "elements_changed": found.changed,
            "ranks": sorted(found.ranks),
            "read_again_after_seconds": [min(found.waits), max(found.waits)],
            "evidence_total": found.changed,
        },
        evidence=found.rows,
        limits=(
            "The first reading begins some microseconds after the return and the second ends the watch: what is written before "
            "the one or after the other does not show. `observed` is the first reading, `expected` the second."
        ),
    )


def _early_words(found: _Late, high: float) -> str:
    calls = common.plural(found.calls, "call")
    if not found.changed_calls:
        longest = max(found.waits) * 1e3
        return (
            f"what the ranks hold when the call returns is what they hold up to {longest:.0f} ms later, in {calls}; fewer than "
            f"{high:.2g} of all calls return early (95 %)."
        )
    first = min(found.seen_after) * 1e3
    who = f"rank {min(found.ranks)}" if len(found.ranks) == 1 else f"ranks {common.listed(sorted(found.ranks))}"
    return (
        f"{found.changed_calls} of {calls} return before the result is there: {common.plural(found.changed, 'element')} on {who} "
        f"changed after the return, seen {first:.1f} ms later."
    )


# ------------------------------------------------------------------------------------------------------------ false_time


def _false_time(view: ArmView, trials: Sequence[Trial]) -> Finding:
    clocks: list[Clock] = []
    for large in (trial for trial in trials if trial.call.count > 1):
        small = large.with_(count=1)
        clocks += clock_of(view, large, small)
    if not clocks:
        return common.inconclusive(view, NAME, "false_time", trials, common.no_data_reason(view, trials))
    return clock_finding(view, NAME, trials, clocks)
