"""Hypotheses that name what went wrong with an exact sum: a term missing, doubled or stale, or the prefill summed in.

Each predicts every wrong element of an observation; it explains the observation where it is right at 99 % of a sample of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.model import ArmView, Codes, Observation, Trial
from auditor.probes.expected import Mask, gather, own_codes
from auditor.probes.unwritten import number_of, prefill_of, trials_at
from auditor.probes.values import F64, to_float64

SHARE = 0.99
SAMPLE = 256
LAGS = 3  # how many calls back a stale result may come from
EXCHANGED = "exchanged"  # one term in the place of another: duplicate_term where nothing simpler explains the cell


def _mask(found: Any) -> Mask:
    return np.asarray(found, np.bool_)


@dataclass(slots=True, eq=False)
class Bad:
    """Wrong elements of one observation. ``index``: ascending receive indices, a sample of the ``total``; ``codes`` there.

    ``values``: each member's input there, shape (members, n). ``before``: what the range held before the call.
    ``held``: elements that still hold it.
    ``reasons``: kind -> the ways in which it explains this observation.
    """

    trial: Trial
    seen: Observation
    total: int
    index: npt.NDArray[np.int64]
    codes: Codes
    values: F64
    before: Codes
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)

    out: F64 = field(init=False)
    held: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.out = to_float64(self.trial.call.fmt, self.codes)
        self.held = _mask(self.codes == self.before)

    @property
    def data_points(self) -> set[tuple[str, int, int]]:
        """Distinct inputs among the sample: what makes agreement with a prediction more than luck."""
        first = inputs.receiver_range(self.trial, self.seen.rank)[0]
        family, seed = str(self.trial.family), self.trial.seed_of(self.seen.repeat)
        return {(family, seed, first + i) for i in self.index.tolist()}


def sample_of(view: ArmView, trial: Trial, seen: Observation, wrong: npt.NDArray[np.int64]) -> Bad:
    """The record of one observation's wrong elements (ascending receive indices)."""
    index = wrong if len(wrong) <= SAMPLE else wrong[np.linspace(0, len(wrong) - 1, SAMPLE).astype(np.int64)]
    first = inputs.receiver_range(trial, seen.rank)[0]
    codes = view.output(trial.trial_id, seen.repeat, seen.rank)[index]
    terms = gather(trial, seen.repeat, index + first)
    values = np.stack([to_float64(trial.call.fmt, t) for t in terms])
    own = own_codes(trial, seen.repeat, seen.rank)[index] if trial.in_place else None
    before = np.full_like(codes, prefill_of(trial)) if own is None else own
    return Bad(trial, seen, len(wrong), index, codes, values, before)


def explain(view: ArmView, bad: Bad) -> None:
    """Fill ``bad.reasons``."""
    if bad.held.mean() >= SHARE:
        bad.reasons["unwritten"] = ("the rank's own input" if bad.trial.in_place else "the prefill",)
    if leaks(view, bad).mean() >= SHARE:
        bad.reasons["prefill_leak"] = ("what the range held takes part in the sum",)
    if bad.trial.call.op != "sum":
        return
    for kind, predictions in (("missing_term", _missing(bad)), ("duplicate_term", _duplicate(bad))):
        if labels := _fitting(bad, predictions):
            bad.reasons[kind] = labels
    if labels := _fitting(bad, _stale(view, bad)):
        bad.reasons["stale_term"] = labels
    if labels := _fitting(bad, _exchanged(bad)):
        bad.reasons[EXCHANGED] = labels


# ------------------------------------------------------------------------------------------------------------ prefill


def leaks(view: ArmView, bad: Bad) -> Mask:
    """Wrong elements that follow the prefill: NaN where only a finite prefill gives a number, or sum + prefill."""
    trial, none = bad.trial, np.zeros(len(bad.index), np.bool_)
    if trial.in_place:
        return _equal(bad, bad.values.sum(axis=0) + to_float64(trial.call.fmt, bad.before))
    if trial.prefill == "finite":
        fmt = trial.call.fmt
        prefill = to_float64(fmt, np.array([prefill_of(trial)], fmt.dtype))[0]
        with np.errstate(all="ignore"):
            predicted = bad.values.sum(axis=0) + prefill
            # The finite prefill lies next to the maximum, so the sum may pass it.
            over = (np.abs(predicted) > np.abs(prefill)) & ~np.isfinite(bad.out)
            return _mask(over | (_equal(bad, predicted) & np.isfinite(bad.out)))
    siblings = trials_at(view, trial, "finite")
    outputs = [found for sibling in siblings for found in _outputs_at(view, sibling, bad)]
    if not outputs:
        return none
    number = np.logical_and.reduce([~np.isnan(values) for values in outputs])
    if not trial.call.fmt.has_infinity:  # there sum + prefill may pass the maximum, which is NaN too
        number = _mask(np.full(len(bad.index), any((~np.isnan(values)).any() for values in outputs)))
    return _mask(np.isnan(bad.out) & number & ~_held_exactly(bad))


def _outputs_at(view: ArmView, trial: Trial, bad: Bad) -> list[F64]:
    """The same rank's outputs in another trial, at the wrong elements."""
    seen = [o for o in view.observations(trial.trial_id) if o.rank == bad.seen.rank and o.status == "ok" and o.digest]
    codes = [view.output(trial.trial_id, o.repeat, o.rank)[bad.index] for o in seen]
    return [to_float64(trial.call.fmt, c) for c in codes]


def _held_exactly(bad: Bad) -> Mask:
    """Elements that hold a signalling prefill exactly: arithmetic would have made it quiet, so it was never read.

    8-bit formats have one NaN code a sign, which arithmetic may well return: there nothing is known.
    """
    return bad.held & (bad.trial.call.fmt.mantissa_bits >= 4)


# ------------------------------------------------------------------------------------------------------------- terms


def _equal(bad: Bad, predicted: F64) -> Mask:
    """Outputs that are the prediction where the format holds it, else one of its two neighbours."""
    p = bad.trial.call.fmt.precision
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(predicted)
        held = np.ldexp(mantissa, p) == np.rint(np.ldexp(mantissa, p))
        near = np.abs(predicted - bad.out) < np.ldexp(1.0, exponent - p)
        return _mask(np.where(held, predicted == bad.out, near) & np.isfinite(predicted))


def _fitting(bad: Bad, predictions: Iterator[tuple[str, F64]]) -> tuple[str, ...]:
    """Labels of the predictions that explain the observation; with enough elements, one label for each will do."""
    hits = {label: _equal(bad, predicted) for label, predicted in predictions}
    fitting = tuple(label for label, mask in hits.items() if mask.mean() >= SHARE)
    single = [mask for label, mask in hits.items() if label.startswith("rank")]
    if not fitting and single and len(bad.index) >= 8 and np.logical_or.reduce(single).mean() >= SHARE:
        return ("one rank's, which one depends on the element",)
    return fitting


def _active(bad: Bad) -> list[int]:
    """Positions of the members that send something other than zero there."""
    return [int(i) for i in np.flatnonzero((bad.values != 0).any(axis=1))]


def _name(bad: Bad, positions: tuple[int, ...]) -> str:
    ranks = [bad.trial.members[i] for i in positions]
    return f"rank {ranks[0]}" if len(ranks) == 1 else "of ranks " + ", ".join(map(str, ranks))


def _subsets(active: list[int]) -> Iterator[tuple[int, ...]]:
    """Proper subsets: all of a few; of many the singles, aligned runs (nodes), and the complements of both."""
    yield from ((i,) for i in active)
    if len(active) <= 6:
        yield from (s for k in range(2, len(active)) for s in combinations(active, k))
        return
    yield from (tuple(j for j in active if j != i) for i in active)
    width = 2
    while width < len(active):
        for start in range(0, len(active), width):
            run = tuple(active[start : start + width])
            yield run
            yield tuple(i for i in active if i not in run)
        width *= 2


def _missing(bad: Bad) -> Iterator[tuple[str, F64]]:
    total, active = bad.values.sum(axis=0), _active(bad)
    # All terms missing is a zeroed output, not a lost term, unless other members sent nothing that could be lost.
    if len(active) < len(bad.values):
        yield _name(bad, tuple(active)), np.zeros_like(total)
    for subset in _subsets(active):
        if len(subset) < len(active):
            yield _name(bad, subset), total - bad.values[list(subset)].sum(axis=0)


def _duplicate(bad: Bad) -> Iterator[tuple[str, F64]]:
    total, active = bad.values.sum(axis=0), _active(bad)
    for i in active:
        yield _name(bad, (i,)), total + bad.values[i]
    yield "every term", 2 * total


def _exchanged(bad: Bad) -> Iterator[tuple[str, F64]]:
    total, active = bad.values.sum(axis=0), _active(bad)
    for i, j in permutations(active[:16], 2):
        yield f"{_name(bad, (i,))} in the place of {_name(bad, (j,))}", total + bad.values[i] - bad.values[j]


# ------------------------------------------------------------------------------------------------------------- stale


def _before(view: ArmView, trial: Trial, repeat: int) -> Iterator[tuple[Trial, int]]:
    """The calls before this one, latest first, as the plan orders them; none where each repeat has its own process."""
    if trial.variant.startswith("fresh"):
        return
    at = number_of(view, trial)
    for _ in range(LAGS):
        repeat -= 1
        if repeat < 0:
            at -= 1
            if at < 0:
                return
            repeat = view.planned[at].repeats - 1
        yield view.planned[at].trial, repeat


def _stale(view: ArmView, bad: Bad) -> Iterator[tuple[str, F64]]:
    total = bad.values.sum(axis=0)
    for lag, (trial, repeat) in enumerate(_before(view, bad.trial, bad.seen.repeat), 1):
        old = _old_values(bad, trial, repeat)
        if old is None:
            continue
        call = "the call before" if lag == 1 else f"{lag} calls before"
        if trial.call.collective == bad.trial.call.collective:
            yield f"every term from {call}", np.where(np.isnan(old).any(axis=0), np.nan, old.sum(axis=0))
        for i in range(len(old)):
            # A term that was +0 then would be missing now: not a sign of stale data.
            yield f"{_name(bad, (i,))} from {call}", np.where(old[i] == 0, np.nan, total - bad.values[i] + old[i])


def _old_values(bad: Bad, trial: Trial, repeat: int) -> F64 | None:
    """What the same members sent in an earlier call at the same send indices; NaN past its end. None: other types."""
    if trial.call.format != bad.trial.call.format or trial.members != bad.trial.members:
        return None
    at = bad.index + inputs.receiver_range(bad.trial, bad.seen.rank)[0]
    if trial.call.collective == bad.trial.call.collective == "reduce_scatter":
        at = bad.index + inputs.receiver_range(trial, bad.seen.rank)[0]
        at = np.where(bad.index < trial.call.count, at, trial.send_count)
    inside = at < trial.send_count
    old = np.full(bad.values.shape, np.nan)
    terms = gather(trial, repeat, at[inside])
    old[:, inside] = np.stack([to_float64(trial.call.fmt, t) for t in terms])
    return old


def displaced(bad: Bad) -> int | None:
    """d where every wrong output is the sum that belongs d elements later; None where there is no such d up to 64.

    Exact sums take few values: an element agrees by chance with one in about ten displacements, eight elements do not.
    """
    trial = bad.trial
    if trial.call.op != "sum" or bad.index.size < 8:
        return None
    first, last = inputs.receiver_range(trial, bad.seen.rank)
    for d in sorted(range(-64, 65), key=abs):
        at = bad.index + first + d
        if d and at[0] >= first and at[-1] < last:
            terms: list[Any] = gather(trial, bad.seen.repeat, at)
            if _equal(bad, np.sum([to_float64(trial.call.fmt, t) for t in terms], axis=0)).mean() >= SHARE:
                return d
    return None
