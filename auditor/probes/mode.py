"""Which rounding rule a trial's outputs follow: elimination by what repeats itself, and the fit of stochastic rounding.

Two ranks are active, so each sum is one addition and hops cannot hide the rule. Vocabulary: NUMERICS §0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from auditor.kernels import RoundingTable, tabulate
from auditor.model import ArmView, Codes, Observation, Trial
from auditor.numerics.formats import Format
from auditor.numerics.rounding import MODES, Split, up_by_mode
from auditor.probes.common import receiving
from auditor.probes.expected import Block, Mask, blocks
from auditor.probes.statistics import binomial_two_sided, holm_rejects
from auditor.probes.unwritten import unwritten_mask

UNSTABLE_SHARE = 0.01  # more than this: the subject chooses anew in each call, and what is stable is a biased choice
OUTSIDE_SHARE = 0.02  # more than this outside the neighbours: something else than rounding is at work
ALPHA = 1e-3  # family-wise
STOCHASTIC_MIN = 1 << 14  # inexact sums below which a fit would accept too much
NOISE_BITS = (*range(1, 11), 12, 16, 24, 48)
BINS = 64
KNOWN_PRECISIONS = (8, 11, 24, 53, 64)
NATURAL_PRECISION = {
    "binary32": 53,
    "bfloat16": 24,
    "binary16": 24,
    "float8_e4m3fn": 11,
    "float8_e5m2": 11,
}  # of a wider accumulator


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One receiver's outputs of one trial: counts of the first usable repeat, and of its elements that never changed."""

    trial: Trial
    seen: Observation
    table: RoundingTable
    stable: RoundingTable  # of the elements that never changed
    held: RoundingTable  # of those whose exact sum a natural accumulator holds
    repeats: int
    left_out: int  # unwritten, or special's: subnormal terms or sums, the last gap below the maximum
    unstable: int

    @property
    def deciding(self) -> RoundingTable:
        """The counts that eliminate modes: a subject that rounds what binary32 holds toward zero rounds toward zero; what
        it does to sums that binary32 cannot hold is double_rounding's.
        """
        return self.table if self.unstable > UNSTABLE_SHARE * max(1, self.table.elements) else self.held

    @property
    def surviving(self) -> tuple[str, ...]:
        """Modes that every deciding sum which went to a neighbour agrees with; what went elsewhere is not_faithful's."""
        return _agreeing(self.deciding)

    @property
    def surviving_all(self) -> tuple[str, ...]:
        """Modes that every stable sum agrees with, those that no natural accumulator holds included."""
        return _agreeing(self.stable)

    @property
    def foreign(self) -> bool:
        """Too much lies outside the neighbours to speak of rounding."""
        off = self.table.outside + self.table.exact_wrong
        return off > OUTSIDE_SHARE * max(1, self.table.elements)


def _agreeing(counts: RoundingTable) -> tuple[str, ...]:
    return tuple(m for m in MODES if counts.mismatches(m) == counts.outside + counts.exact_wrong)


def held(fmt: Format, split: Split) -> Mask:
    """Whether a natural accumulator holds the exact sum (normal sums): rem ends within its extra bits."""
    wide = NATURAL_PRECISION.get(fmt.name)
    if wide is None:
        return np.ones(len(split.lo), np.bool_)
    below = np.uint64((1 << (64 - (wide - fmt.precision))) - 1)
    return np.asarray(~split.sticky & ((split.rem & below) == 0), np.bool_)


def take(split: Split, mask: Mask) -> Split:
    return split if mask.all() else Split(**{f.name: getattr(split, f.name)[mask] for f in fields(Split)})


def ordinary(trial: Trial, data: Block) -> Mask:
    """Sums that rounding alone decides: no subnormal term or sum (flushing), not in the gap next to the maximum or past it."""
    fmt, split = trial.call.fmt, data.split
    kind = fmt.dtype.type
    least = kind(1 << fmt.mantissa_bits)
    usable = split.finite & ~split.past_max & ((split.lo != kind(fmt.max_code)) | ~split.inexact)
    usable &= (split.zero != 0) | (split.lo >= least)
    for term in data.terms:
        magnitude = term & kind(fmt.magnitude_mask)
        usable &= (magnitude == 0) | (magnitude >= least)
    return np.asarray(usable, np.bool_)


def look(view: ArmView, trial: Trial) -> Look | None:
    """Counts of the first receiving rank that has a usable output; None where there is none."""
    seen_all = receiving(view, trial)
    if not seen_all:
        return None
    first = seen_all[0]
    output = view.output(trial.trial_id, first.repeat, first.rank)
    mine = [o for o in seen_all if o.rank == first.rank]
    same = stable_mask(view, trial, mine, output)
    skip = unwritten_mask(view, trial, first.rank)
    table, stable, fitting = RoundingTable(), RoundingTable(), RoundingTable()
    left_out = unstable = 0
    for part, data in blocks(trial, first.repeat, first.rank):
        keep = ordinary(trial, data) & ~skip[part]
        left_out += int((~keep).sum())
        counted = _counted(trial, data, output[part], keep)
        table += counted
        if same is not None:
            unstable += int((keep & ~same[part]).sum())
            counted = _counted(trial, data, output[part], keep & same[part])
            keep &= same[part]
        stable += counted
        fits = keep & held(trial.call.fmt, data.split)
        fitting += counted if int(fits.sum()) == int(keep.sum()) else _counted(trial, data, output[part], fits)
    return Look(trial, first, table, stable, fitting, len(mine), left_out, unstable)


def _counted(trial: Trial, data: Block, output: Codes, keep: Mask) -> RoundingTable:
    return tabulate(trial.call.fmt, take(data.split, keep), output[keep])


def stable_mask(view: ArmView, trial: Trial, seen: list[Observation], output: Codes) -> Mask | None:
    """Elements that are the same in all observations of the same inputs; None where everything is."""
    mask: Mask = np.ones(len(output), np.bool_)
    digests = {o.digest: o for o in seen if trial.seed_of(o.repeat) == trial.seed_of(seen[0].repeat)}
    for other in digests.values():
        if other.digest != seen[0].digest:
            mask &= view.output(trial.trial_id, other.repeat, other.rank) == output
    return None if mask.all() else mask


# --------------------------------------------------------------------------------------------------------- stochastic


@dataclass(frozen=True, slots=True)
class Fit:
    """A stochastic rounding that P(up | rem) agrees with. ``bits`` of noise; 48 stands for no visible limit."""

    form: str
    bits: int


def chance(form: str, bits: int, rem: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """P(up | rem), rem in [0, 1), with ``bits`` of noise (NUMERICS §7.1): SRFF adds and truncates, SRF with half a unit of
    offset, SRC rounds rem to ``bits`` bits first.
    """
    steps = rem * 2.0**bits
    whole = {"SRFF": np.floor(steps), "SRF": np.floor(steps + 0.5), "SRC": np.rint(steps)}[form]
    return np.asarray(whole / 2.0**bits, np.float64)


def _inexact_choices(view: ArmView, found: Look) -> Iterator[tuple[Split, Mask]]:
    """(split, up) of the inexact sums that went to a neighbour, block by block."""
    trial, seen = found.trial, found.seen
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    skip = unwritten_mask(view, trial, seen.rank)
    kind = trial.call.fmt.dtype.type
    for part, data in blocks(trial, seen.repeat, seen.rank):
        magnitude = output[part] & kind(trial.call.fmt.magnitude_mask)
        up = magnitude == data.split.lo + kind(1)
        keep = ordinary(trial, data) & ~skip[part] & data.split.inexact & (up | (magnitude == data.split.lo))
        yield take(data.split, keep), up[keep]


def stochastic_fit(view: ArmView, found: Look) -> Fit | None:
    """The best of the forms of stochastic rounding that survive; None where none does or the data are too few.

    Exact binomial tests in 64 bins of rem x parity of lo x sign, by Holm, and one over all elements. A bin's chances differ a
    little, which makes the binomial test accept slightly more, never less.
    """
    if found.table.inexact < STOCHASTIC_MIN:
        return None
    cells = 4 * BINS
    count, ups = np.zeros(cells), np.zeros(cells)
    forms = [Fit(form, bits) for bits in reversed(NOISE_BITS) for form in ("SRFF", "SRC", "SRF")]
    means = {fit: np.zeros(cells) for fit in forms}
    spread = dict.fromkeys(forms, 0.0)
    for split, up in _inexact_choices(view, found):
        odd = (split.lo & split.lo.dtype.type(1)).astype(np.int64)
        cell = (split.rem >> np.uint64(58)).astype(np.int64) * 4 + odd * 2 + split.negative
        count += np.bincount(cell, minlength=cells)
        ups += np.bincount(cell[up], minlength=cells)
        rem = split.rem.astype(np.float64) * 2.0**-64
        for fit in forms:
            p = np.minimum(chance(fit.form, fit.bits, rem), 1.0)
            means[fit] += np.bincount(cell, weights=p, minlength=cells)
            spread[fit] += float((p * (1 - p)).sum())
    fits = [f for f in forms if _agrees(count, ups, means[f], spread[f])]
    return min(fits, key=lambda f: _misfit(count, ups, means[f]), default=None)


def _misfit(count: npt.NDArray[np.float64], ups: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]) -> float:
    """Chi-square over the bins, to choose among the forms that survive; equals keep the order (most bits first)."""
    variance = mean * (1 - mean / np.maximum(count, 1))
    usable = variance > 1
    return round(float(((ups - mean)[usable] ** 2 / variance[usable]).sum()), 6)


def _agrees(
    count: npt.NDArray[np.float64], ups: npt.NDArray[np.float64], mean: npt.NDArray[np.float64], spread: float
) -> bool:
    # 3.5 standard deviations: two-sided 4.7e-4. A rule keyed by neighbours is off by a tenth of all choices.
    if spread <= 0 or abs(float(ups.sum() - mean.sum())) > 3.5 * spread**0.5:
        return False
    p_values = [
        binomial_two_sided(int(k), int(n), float(np.clip(m / n, 0.0, 1.0)))
        for k, n, m in zip(ups, count, mean, strict=True)
        if n
    ]
    return not holm_rejects(p_values, ALPHA / 2)


# ----------------------------------------------------------------------------------------------------- double rounding


def twice(split: Split, extra: int, *, to_even: bool) -> Mask:
    """Whether |x| goes up when it is rounded to ``extra`` bits more than the format has, then to the format, ties to even or
    away both times. 1 <= extra <= 63; subnormal sums are not for it.
    """
    half = np.uint64(1 << 63)
    kept = split.rem >> np.uint64(64 - extra)
    rest = split.rem << np.uint64(extra)
    odd = (kept & np.uint64(1)) != 0
    first = (rest > half) | ((rest == half) & (split.sticky | odd | (not to_even)))
    rounded = kept + first
    middle = np.uint64(1 << (extra - 1))
    lo_odd = (split.lo & split.lo.dtype.type(1)) != 0
    return np.asarray((rounded > middle) | ((rounded == middle) & (lo_odd | (not to_even))), np.bool_)


@dataclass(frozen=True, slots=True)
class Twice:
    """``bits``: precisions of a first rounding that would show; ``followed``: those that all outputs follow."""

    bits: tuple[int, ...]
    followed: tuple[int, ...]
    told_apart: int  # elements where that (or any) first rounding gives other bits
    to_even: bool

    @property
    def seen(self) -> int | None:
        """The likeliest of ``followed``: the precision of a format that exists (64: the x87's), else the most bits."""
        known = [b for b in self.followed if b in KNOWN_PRECISIONS]
        return (known or list(self.followed))[-1] if self.followed else None


def double_rounding(view: ArmView, looks: list[Look], *, to_even: bool) -> Twice:
    """Look for a first rounding to p + 1 .. 2p + 1 bits. From 2p + 2 on rounding twice gives the sum of two p-bit terms the
    same bits as rounding once (Figueroa 1995), so two active ranks cannot show it.
    """
    p = looks[0].trial.call.fmt.precision
    extras = list(range(1, min(p + 1, 62) + 1))
    differs, agrees = dict.fromkeys(extras, 0), dict.fromkeys(extras, True)
    for found in looks:
        for split, up in _inexact_choices(view, found):
            once = _nearest_up(split, to_even=to_even)
            for extra in extras:
                other = twice(split, extra, to_even=to_even)
                differs[extra] += int((other != once).sum())
                agrees[extra] = agrees[extra] and bool((other == up).all())
    resolved = [e for e in extras if differs[e]]
    followed = [e for e in resolved if agrees[e]]
    told = max((differs[e] for e in followed or resolved), default=0)
    return Twice(tuple(p + e for e in resolved), tuple(p + e for e in followed), told, to_even)


def first_rounding_in_directed(view: ArmView, looks: list[Look], mode: str) -> tuple[int, int]:
    """(sums that a natural accumulator does not hold and whose output ``mode`` does not give, those among them that a first
    rounding to the accumulator, to nearest, explains).
    """
    wrong = explained = 0
    fmt = looks[0].trial.call.fmt
    extra = NATURAL_PRECISION[fmt.name] - fmt.precision
    for found in looks:
        for split, up in _inexact_choices(view, found):
            odd = (up != up_by_mode(mode, split)) & ~held(fmt, split)
            wrong += int(odd.sum())
            explained += int((odd & (up == _directed_after(split, extra, mode))).sum())
    return wrong, explained


def _directed_after(split: Split, extra: int, mode: str) -> Mask:
    """Whether |x| goes up when rounded to nearest in ``extra`` more bits first, then by the directed ``mode``."""
    half = np.uint64(1 << 63)
    kept = split.rem >> np.uint64(64 - extra)
    rest = split.rem << np.uint64(extra)
    first = kept + ((rest > half) | ((rest == half) & (split.sticky | ((kept & np.uint64(1)) != 0))))
    away = {"toward_zero": np.False_, "away_from_zero": np.True_}.get(mode)
    outward = away if away is not None else split.negative == (mode == "toward_negative")
    return np.asarray((first == np.uint64(1 << extra)) | ((first != 0) & outward), np.bool_)


def _nearest_up(split: Split, *, to_even: bool) -> Mask:
    half = np.uint64(1 << 63)
    odd = (split.lo & split.lo.dtype.type(1)) != 0
    return np.asarray((split.rem > half) | ((split.rem == half) & (split.sticky | odd | (not to_even))), np.bool_)
