"""Many steps of accumulation with a measured rule: every addition is made exactly and rounded by the rule, step by step.

Two ways to add up 1,000 reductions. ``fresh``: new data in every step, each result rounded once by the collective, the results
added exactly elsewhere (gradients into weights of a wider format). ``running``: the total itself goes through the collective in
every step and is rounded each time. Each is done with the rule, with the rule on data placed some elements later, and with
rounding to nearest, ties to even, on the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.impact.per_sum import Reals, gaps, magnitudes, remainders
from auditor.impact.records import Curve, Scenario, Side
from auditor.impact.rules import Rule, by_mode
from auditor.model import Codes, Family
from auditor.numerics.exact import Sums, exact_sums
from auditor.numerics.formats import Format
from auditor.numerics.rounding import join, split
from auditor.probes.neighbours.formula import Mask, Seen, seen_from

FRESH, RUNNING = 2048, 1024  # elements; multiples of every group
POINTS = 50  # of the curve
NEAREST = "ties_to_even"
Flags = npt.NDArray[np.bool_]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed: the format, the rule, the finding's inputs, and how many elements later the shifted copy lies."""

    fmt: Format
    rule: Rule
    family: Family
    seed: int
    steps: int
    shift: int

    @property
    def rules(self) -> tuple[tuple[Rule, int], ...]:
        """(rule, place): as measured, on shifted data, and rounding to nearest, ties to even."""
        shifted = (self.rule, self.shift if self.rule.placed else 0)
        nearest = self.rule if self.rule.name == NEAREST else by_mode(NEAREST)
        return (self.rule, 0), shifted, (nearest, 0)

    def each(self) -> dict[tuple[str, int], tuple[Rule, int]]:
        """Those of the three that differ from each other, by name and place: what is the same is done once."""
        return {(rule.name, place): (rule, place) for rule, place in self.rules}

    def rows(self, by_name: Mapping[tuple[str, int], T]) -> list[T]:
        """Three of what was made for :meth:`each`."""
        return [by_name[rule.name, place] for rule, place in self.rules]

    def drawn(self, step: int, contributor: int, n: int) -> Codes:
        """New inputs in every step: the same family under another seed."""
        return inputs.generate(self.family, self.fmt, self.seed + 1 + step, 2, contributor, 0, n)

    def seen(self, terms: list[Codes]) -> tuple[Seen, Sums]:
        sums = exact_sums(self.fmt, terms)
        data = split(self.fmt, sums)
        return seen_from(data, sums, np.zeros(len(sums), np.bool_), 0), sums


def usable(seen: Seen) -> Mask:
    """Sums that a format holds: finite and not past its maximum."""
    return np.asarray(seen.split.finite & ~seen.split.past_max, np.bool_)


# ------------------------------------------------------------------------------------------------------------------- fresh


@dataclass(slots=True)
class _Fresh:
    """Sums over the steps so far, by element; the first axis is rule, shifted rule, nearest."""

    ulps: Reals = field(default_factory=lambda: np.zeros((3, FRESH)))
    totals: Reals = field(default_factory=lambda: np.zeros((3, FRESH)))
    exact: Reals = field(default_factory=lambda: np.zeros(FRESH))
    absolute: Reals = field(default_factory=lambda: np.zeros((3, FRESH)))
    sizes: Reals = field(default_factory=lambda: np.zeros(FRESH))
    moved: int = 0
    results: int = 0
    whole: Flags = field(default_factory=lambda: np.ones(FRESH, np.bool_))


def fresh(replay: Replay) -> tuple[Scenario, Curve, float, float]:
    """The scenario, its curve, and mean and standard deviation over elements of the errors in ulp added up over all steps."""
    found = _Fresh()
    points: list[int] = []
    curves: list[list[tuple[float, float, float]]] = [[], []]
    every = max(1, replay.steps // POINTS)
    for step in range(replay.steps):
        _fresh_step(replay, step, found)
        if (step + 1) % every == 0 or step + 1 == replay.steps:
            points.append(step + 1)
            for some, row in zip(curves, (0, 2), strict=True):
                some.append(_band(found.ulps[row][found.whole]))
    keep = found.whole
    errors = (found.totals - found.exact)[:, keep]
    sizes, norm = float(found.sizes[keep].sum()), _rms(found.exact[keep])
    sides = [
        Side(bias=float(found.absolute[row][keep].sum()) / sizes, spread=_rms(errors[row]) / norm) for row in (0, 2)
    ]
    moved = errors[1] != errors[0]
    scenario = Scenario(
        name="fresh",
        says="new data in every step, each result rounded once, the results added exactly elsewhere",
        elements=int(keep.sum()),
        rule=sides[0],
        nearest=sides[1],
        shifted_results=found.moved / found.results,
        shifted_totals=float(moved.mean()),
        shifted_spread=_rms(errors[1] - errors[0]) / norm,
    )
    curve = Curve(steps=tuple(points), rule=tuple(curves[0]), nearest=tuple(curves[1]))
    ulps = found.ulps[0][keep]
    return scenario, curve, float(ulps.mean()), float(ulps.std())


def _fresh_step(replay: Replay, step: int, found: _Fresh) -> None:
    seen, sums = replay.seen([replay.drawn(step, contributor, FRESH) for contributor in (0, 1)])
    gap, rem, good = gaps(replay.fmt, sums), remainders(seen.split), usable(seen)
    sign = np.where(seen.split.negative, -1.0, 1.0)
    size = np.where(good, magnitudes(sums), 0.0)
    decided = {name: rule.decide(seen, place, step) for name, (rule, place) in replay.each().items()}
    ups = [up for up, _ in replay.rows(decided)]
    for row, (up, whole) in enumerate(replay.rows(decided)):
        error = np.where(good & seen.inexact, up - rem, 0.0)
        found.ulps[row] += error
        found.absolute[row] += error * gap
        found.totals[row] += sign * (size + error * gap)
        found.whole &= whole
    found.exact += sign * size
    found.sizes += size
    found.moved += int((ups[0] != ups[1])[found.whole & good].sum())
    found.results += int((found.whole & good).sum())


def _band(values: Reals) -> tuple[float, float, float]:
    low, high = np.percentile(values, (5, 95))
    return float(values.mean()), float(low), float(high)


def _rms(values: Reals) -> float:
    return float(np.sqrt((values**2).mean())) if len(values) else 0.0


# ----------------------------------------------------------------------------------------------------------------- running


def running(replay: Replay, *, one_sign: bool) -> Scenario | None:
    """The total goes through the collective in every step; ``one_sign``: all inputs made positive, so that it grows. None where
    a total leaves the format's range.
    """
    found = totals(replay, RUNNING, one_sign=one_sign)
    return None if found is None else _running(*found, one_sign=one_sign)


def totals(replay: Replay, n: int, *, one_sign: bool) -> tuple[Reals, Reals] | None:
    """Final totals, shape (3, m), by :attr:`Replay.rules`, and the exact ones, shape (m,): of ``n`` elements the m whose groups
    lie in the range. None where a total leaves the format's.
    """
    clear = replay.fmt.dtype.type(
        replay.fmt.magnitude_mask if one_sign else replay.fmt.magnitude_mask | replay.fmt.sign_mask
    )
    start = replay.drawn(0, 0, n) & clear
    states = {name: start.copy() for name in replay.each()}
    exact = _values(replay.fmt, start)
    whole: Mask = np.ones(n, np.bool_)
    for step in range(replay.steps):
        term = replay.drawn(step, 1, n) & clear
        exact += _values(replay.fmt, term)
        for name, (rule, place) in replay.each().items():
            seen, _ = replay.seen([states[name], term])
            if not usable(seen).all():
                return None
            up, inside = rule.decide(seen, place, step)
            whole &= inside
            states[name] = join(replay.fmt, seen.split, up)
    made = np.stack([_values(replay.fmt, state) for state in replay.rows(states)])
    return made[:, whole], exact[whole]


def _running(made: Reals, exact: Reals, *, one_sign: bool) -> Scenario:
    errors = made - exact
    direction, norm = np.sign(exact), _rms(exact)
    sides = [
        Side(bias=float((errors[row] * direction).sum() / np.abs(exact).sum()), spread=_rms(errors[row]) / norm)
        for row in (0, 2)
    ]
    signs = "all of one sign, so that the total grows" if one_sign else "of either sign"
    return Scenario(
        name="running, one sign" if one_sign else "running",
        says=f"the total itself goes through the collective in every step; inputs {signs}",
        elements=len(exact),
        rule=sides[0],
        nearest=sides[1],
        shifted_results=None,
        shifted_totals=float((made[1] != made[0]).mean()),
        shifted_spread=_rms(made[1] - made[0]) / norm,
    )


def _values(fmt: Format, codes: Codes) -> Reals:
    """Finite codes as numbers, shape (n,)."""
    sums = exact_sums(fmt, [codes])
    return np.where(sums.negative, -1.0, 1.0) * magnitudes(sums)
