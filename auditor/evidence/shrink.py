"""Makes a failing case small: greedily, in passes, until none of them helps any more.

Knows nothing of backends: ``try_case`` says where a case shows what is looked for. The passes go from the coarse to the fine
(elements, shift, ranks, format, codes), the boldest try of each first, because the usual case is small and a bold try that works
saves a hundred timid ones; what a bold try cannot do (a fault that shows at some sizes only) the timid ones that follow may.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from auditor.errors import AuditError
from auditor.evidence import edits
from auditor.evidence.cases import Case, complexity
from auditor.evidence.passes import PASSES, Candidates, Limits
from auditor.evidence.relations import Sighting
from auditor.probes.common import plural

ATTEMPTS = 2000
FIRST_LOOKS = 6  # runs of the start, to see whether it shows every time
HOPELESS = 0.01  # chance to miss a case that shows as often as the start
MOST_TIMES = 30
LOUDER = (1, 20, 100)  # times that a start is gone through where it does not show every time
LOUD_CODES = 1 << 22
CONFIRMING = 3
ANYTHING = Limits()


class GiveUp(AuditError):
    """The subject cannot be tried any further: its time is up, or it does not start again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one run of a case showed; ``trouble``: how it broke off in another way than the one looked for."""

    sightings: tuple[Sighting, ...] = ()
    trouble: str = ""


@dataclass(slots=True)
class Shrunk:
    """The smallest case found. ``shown``: (times it showed, runs) when it was confirmed; ``start_shown`` likewise of the start.

    ``steps``: what was done, a line each; ``stopped``: why it ended early, "" where nothing helped any more.
    """

    case: Case
    sightings: tuple[Sighting, ...]
    attempts: int = 0
    start_shown: tuple[int, int] = (0, 0)
    shown: tuple[int, int] = (0, 0)
    steps: list[str] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    stopped: str = ""


TryCase = Callable[[Case], Attempt]


def shrink(
    start: Case,
    try_case: TryCase,
    limits: Limits = ANYTHING,
    *,
    attempts: int = ATTEMPTS,
    fresh: Callable[[], None] = lambda: None,
) -> Shrunk:
    """The smallest case that ``try_case`` still sees; without sightings where it does not see the start in its first runs.

    A start that shows only sometimes is run as often as it takes to see it with 99 %, and a smaller case is taken only if it
    shows at least a quarter as often. ``try_case`` may raise GiveUp: then what was reached is returned. ``fresh`` is called
    before each run that confirms the result (a subject with a memory is then asked without one).
    """
    return _Shrinker(start, try_case, limits, attempts, fresh).run()


class _Shrinker:
    def __init__(
        self, start: Case, try_case: TryCase, limits: Limits, attempts: int, fresh: Callable[[], None]
    ) -> None:
        self.try_case, self.limits, self.left, self.fresh = try_case, limits, attempts, fresh
        self.best = Shrunk(edits.trimmed(start), ())
        self.history: list[tuple[Case, tuple[Sighting, ...]]] = []
        self.times, self.need, self.steady = 1, 1, True
        self.tried: set[bytes] = set()

    def run(self) -> Shrunk:
        try:
            if self._look_at_start():
                while self._all_passes():
                    pass
        except GiveUp as end:
            self.best.stopped = str(end)
        try:
            self._confirm()
        except GiveUp as end:
            self.best.stopped = self.best.stopped or str(end)
        return self.best

    def _look_at_start(self) -> bool:
        """Whether the start shows at all: in one go, or gone through more often in one process."""
        once = self.best.case
        for rounds in LOUDER:
            louder = replace(once, repeats=once.repeats * rounds)
            if rounds > 1 and louder.repeats * sum(step.data.size for step in louder.steps) > LOUD_CODES:
                break
            runs = [self._attempt(louder) for _ in range(FIRST_LOOKS)]
            shown = [run for run in runs if run.sightings]
            if rounds == 1:
                self.best.start_shown = (len(shown), len(runs))
            if shown:
                self.best.case, self.best.sightings = louder, shown[0].sightings
                self.history.append((louder, shown[0].sightings))
                self._now_and_then(len(shown) / len(runs))
            if len(shown) == len(runs):
                break
        self.steady = self.best.start_shown[0] == self.best.start_shown[1]
        return bool(self.best.sightings)

    def _now_and_then(self, rate: float) -> None:
        """How often a case that shows at that rate is run, and how often it must show."""
        self.times = 1
        while rate < 1 and (1 - rate) ** self.times > HOPELESS and self.times < MOST_TIMES:
            self.times += 1
        self.need = max(1, int(self.times * rate / 4))

    def _all_passes(self) -> bool:
        before = self.best.case.size()
        for name, make in PASSES:
            if self.steady or name != "repeats":  # fewer rounds of what shows now and then would only show less often
                self._one_pass(name, make)
        return self.best.case.size() < before

    def _one_pass(self, name: str, make: Callable[[Case, Sighting, Limits], Candidates]) -> None:
        going_on = True
        while going_on:
            going_on = False
            for candidate in make(self.best.case, self.best.sightings[0], self.limits):
                if self._takes(name, edits.trimmed(candidate)):
                    going_on = True
                    break

    def _takes(self, name: str, candidate: Case) -> bool:
        """Whether the candidate is smaller, new, and shows often enough; it is the best one then."""
        if candidate.size() >= self.best.case.size() or not self._new(candidate):
            return False
        found: list[Attempt] = []
        for number in range(self.times):
            run = self._attempt(candidate)
            found += [run] if run.sightings else []
            if len(found) >= self.need:
                self._take(name, candidate, found[0].sightings)
                return True
            if len(found) + self.times - number - 1 < self.need:
                return False
        return False

    def _new(self, candidate: Case) -> bool:
        key = hashlib.sha256(json.dumps(candidate.to_json()).encode()).digest()
        fresh = key not in self.tried
        self.tried.add(key)
        return fresh

    def _take(self, name: str, case: Case, sightings: tuple[Sighting, ...]) -> None:
        before = described(self.best.case)
        if self.best.steps and self.best.steps[-1].startswith(f"{name}: "):  # several in a row are one line
            before = self.best.steps.pop().removeprefix(f"{name}: ").partition(" -> ")[0]
        self.best.steps.append(f"{name}: {before} -> {described(case)}")
        self.best.case, self.best.sightings = case, sightings
        self.history.append((case, sightings))

    def _attempt(self, case: Case) -> Attempt:
        if not self.left:
            raise GiveUp(f"{self.best.attempts:,} tries were made")
        self.left -= 1
        self.best.attempts += 1
        run = self.try_case(case)
        if run.trouble:
            self.best.troubles[run.trouble] += 1
        return run

    def _confirm(self) -> None:
        """Once more; of a subject that is not steady, back to the last case that shows."""
        self.left += CONFIRMING * len(self.history)
        while self.history:
            case, sightings = self.history.pop()
            runs = [self._afresh(case) for _ in range(CONFIRMING)]
            shown = [run for run in runs if run.sightings]
            if shown or not self.history:
                self.best.case, self.best.sightings = case, shown[0].sightings if shown else sightings
                self.best.shown = (len(shown), len(runs))
                return
            self.best.steps.append(f"back: {described(case)} did not show again")

    def _afresh(self, case: Case) -> Attempt:
        self.fresh()
        return self._attempt(case)


def described(case: Case) -> str:
    """One line for the log."""
    counts = sorted({step.call.count for step in case.steps})
    shifts = sorted({f"{step.send_shift}/{step.recv_shift}" for step in case.steps})
    codes = sum(int(np.count_nonzero(step.around())) for step in case.steps)
    bits = sum(complexity(case.fmt, step.around()) for step in case.steps)
    places = f"count {' and '.join(map(str, counts))}, shift {' and '.join(shifts)}"
    calls = len(case.steps) * case.repeats
    said = f"{plural(case.rank_n, 'rank')}, {places}, {plural(calls, 'call')}"
    return f"{said}, {case.fmt.name}, {plural(codes, 'code')} not zero (complexity {bits})"
