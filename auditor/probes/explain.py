"""Hypotheses that name what went wrong with an exact sum: a term missing, doubled or stale, or the prefill summed in.

Each predicts every wrong element of an observation; it explains the observation where it is right at 99 % of a sample of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.model import PREFILLS, ArmView, Codes, Observation, Trial
from auditor.probes.expected import Mask, gather, own_codes
from auditor.probes.unwritten import prefill_of, trials_at
from auditor.probes.values import F64, to_float64

SHARE = 0.99
SAMPLE = 256
LAGS = 3  # how many calls back a stale result may come from
EXCHANGED = "exchanged"  # one term in the place of another: duplicate_term where nothing simpler explains the cell
KINDS = ("prefill_leak", "unwritten", "missing_term", "duplicate_term", "stale_term")


def _mask(found: Any) -> Mask:
    return np.asarray(found, np.bool_)


@dataclass(slots=True, eq=False)
class Bad:
    """Wrong elements of one observation. ``index``: ascending receive indices, a sample of the ``total``; ``codes`` there.

    ``values``: each member's input there, shape (members, n). ``held``: elements that hold what they held before the call.
    ``reasons``: kind -> how it explains this observation.
    """

    trial: Trial
    seen: Observation
    total: int
    index: npt.NDArray[np.int64]
    codes: Codes
    values: F64
    held: Mask
    reasons: dict[str, str] = field(default_factory=dict)

    out: F64 = field(init=False)

    def __post_init__(self) -> None:
        self.out = to_float64(self.trial.call.fmt, self.codes)

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
    before = own_codes(trial, seen.repeat, seen.rank)[index] if trial.in_place else prefill_of(trial)
    return Bad(trial, seen, len(wrong), index, codes, values, np.asarray(codes == before))


def explain(view: ArmView, bad: Bad) -> None:
    """Fill ``bad.reasons``."""
    if bad.held.mean() >= SHARE:
        bad.reasons["unwritten"] = "the rank's own input" if bad.trial.in_place else "the prefill"
    if leaks(view, bad).mean() >= SHARE:
        bad.reasons["prefill_leak"] = "the prefill takes part in the sum"
    if bad.trial.call.op != "sum":
        return
    for kind, predictions in (("missing_term", _missing(bad)), ("duplicate_term", _duplicate(bad))):
        if label := _best(bad, predictions):
            bad.reasons[kind] = label
    if label := _best(bad, _stale(view, bad)):
        bad.reasons["stale_term"] = label
    if label := _best(bad, _exchanged(bad)):
        bad.reasons[EXCHANGED] = label


# ------------------------------------------------------------------------------------------------------------ prefill


def leaks(view: ArmView, bad: Bad) -> Mask:
    """Wrong elements that follow the prefill: NaN where only a finite prefill gives a number, or sum + prefill."""
    trial, none = bad.trial, np.zeros(len(bad.index), np.bool_)
    if trial.in_place:
        return none
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


def _best(bad: Bad, predictions: Iterator[tuple[str, F64]]) -> str:
    """Label of the prediction that explains the observation; with enough elements, one label for each will do."""
    hits: dict[str, Mask] = {}
    for label, predicted in predictions:
        hits[label] = _equal(bad, predicted)
        if hits[label].mean() >= SHARE:
            return label
    single = [mask for label, mask in hits.items() if label.startswith("rank")]
    if single and len(bad.index) >= 8 and np.logical_or.reduce(single).mean() >= SHARE:
        return "one rank's, which one depends on the element"
    return ""


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
    total = bad.values.sum(axis=0)
    for subset in _subsets(_active(bad)):
        if len(subset) < len(_active(bad)):
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
    order = [p.trial.trial_id for p in view.planned]
    at = order.index(trial.trial_id)
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
    """d where every wrong output is the sum that belongs d elements later; None where there is no such d up to 64."""
    trial = bad.trial
    if trial.call.op != "sum":
        return None
    first, last = inputs.receiver_range(trial, bad.seen.rank)
    for d in sorted(range(-64, 65), key=abs):
        at = bad.index + first + d
        if d and at[0] >= first and at[-1] < last:
            terms: list[Any] = gather(trial, bad.seen.repeat, at)
            if _equal(bad, np.sum([to_float64(trial.call.fmt, t) for t in terms], axis=0)).mean() >= SHARE:
                return d
    return None


def resolve(bads: list[Bad]) -> Mapping[int, str]:
    """Kind of each observation by its number: one kind for the whole cell where one explains all, else one by one.

    A kind that rests on too little data (see ``_credible``) is not named: the observation is plainly wrong.
    """
    if not bads:
        return {}
    _doubt_prefills(bads)
    whole = [k for k in KINDS if all(k in b.reasons for b in bads)]
    # Two mistakes at once, so only where one does not do: bits of neighbouring ranks differ by a factor of 2, so twice the
    # one is nearly always the other.
    if not whole:
        for bad in bads:
            if EXCHANGED in bad.reasons:
                bad.reasons.setdefault("duplicate_term", bad.reasons[EXCHANGED])
        whole = [k for k in KINDS if all(k in b.reasons for b in bads)]
    if kind := _one(whole, bads):
        return dict.fromkeys(range(len(bads)), kind)
    return {i: _alone(bad, bads) for i, bad in enumerate(bads)}


def _doubt_prefills(bads: list[Bad]) -> None:
    """Take back what rests on one prefill alone. "unwritten" takes all three to tell, or a signalling NaN with a payload of
    its own, which arithmetic never returns.
    """
    held = [b for b in bads if "unwritten" in b.reasons and not b.trial.in_place]
    payload = any(b.trial.call.fmt.mantissa_bits >= 4 and b.trial.prefill != "finite" for b in held)
    if not payload and {b.trial.prefill for b in held} != set(PREFILLS):
        for bad in held:
            del bad.reasons["unwritten"]
    leaking = [b for b in bads if "prefill_leak" in b.reasons]
    if all(b.trial.prefill == "finite" for b in leaking):  # a NaN that takes part shows best of all
        for bad in leaking:
            del bad.reasons["prefill_leak"]


def _one(kinds: list[str], bads: list[Bad]) -> str:
    if "unwritten" in kinds:
        # In place, "all other terms missing" predicts the same bits as "never written".
        return "unwritten"
    if len(kinds) != 1:
        return ""
    return kinds[0] if _credible(kinds[0], bads) else ""


def _credible(kind: str, bads: list[Bad]) -> bool:
    """Agreement beyond luck: four different inputs, or two where every repeat shows it."""
    if kind in ("unwritten", "prefill_leak"):
        return True
    points = len(set().union(*(b.data_points for b in bads)))
    return points >= 4 or (points >= 2 and len({b.seen.repeat for b in bads}) >= 2)


def _alone(bad: Bad, bads: list[Bad]) -> str:
    kinds = [k for k in KINDS if k in bad.reasons]
    leaking = any("prefill_leak" in b.reasons and "unwritten" not in b.reasons for b in bads)
    if "prefill_leak" in kinds and (leaking or "unwritten" not in kinds):
        return "prefill_leak"
    if "unwritten" in kinds:
        return "unwritten"
    if len(kinds) == 1:
        same = [b for b in bads if kinds[0] in b.reasons]
        if len(bad.index) >= 4 or len(same) >= 0.9 * len(bads):
            return kinds[0]
    stale = [b for b in bads if "stale_term" in b.reasons and len(b.index) >= 4]
    if not kinds and stale and bad.seen.repeat == 0:
        return "stale_term"  # the data before a trial's first call are those of another call, or of none
    return "wrong_value"
