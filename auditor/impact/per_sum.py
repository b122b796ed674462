"""Bias and spread of single results, from the recorded outputs of a rounding_mode finding's trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.errors import EvidenceError
from auditor.impact.records import PerSum
from auditor.inputs import FAMILIES
from auditor.model import ArmView, Finding, Trial
from auditor.numerics.exact import Sums
from auditor.numerics.formats import Format
from auditor.numerics.rounding import Split, up_by_mode
from auditor.probes.expected import blocks
from auditor.probes.mode import ordinary
from auditor.probes.statistics import mean_interval
from auditor.probes.unwritten import unwritten_mask

CLUSTER = 16  # consecutive elements that may share what decides their rounding are one draw
Reals = npt.NDArray[np.float64]


def magnitudes(sums: Sums) -> Reals:
    """|x| of exact sums, shape (n,), to 53 bits."""
    return np.asarray(np.ldexp(sums.sig.astype(np.float64), sums.exp), np.float64)


def gaps(fmt: Format, sums: Sums) -> Reals:
    """The distance between a sum's two neighbours (one ulp), shape (n,)."""
    lead = np.maximum(sums.exp.astype(np.int64) + 63, fmt.emin)
    return np.asarray(np.ldexp(1.0, (lead - fmt.mantissa_bits).astype(np.int32)), np.float64)


def remainders(split: Split) -> Reals:
    """How far between its neighbours each sum lies, in [0, 1), shape (n,)."""
    return np.asarray(split.rem.astype(np.float64) * 2.0**-64, np.float64)


@dataclass(slots=True)
class Moments:
    """Count, sum and sum of squares of numbers seen block by block."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Reals) -> None:
        self.n += len(values)
        self.total += float(values.sum())
        self.squares += float((values**2).sum())

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else 0.0

    @property
    def sd(self) -> float:
        return sqrt(max(self.squares / self.n - self.mean**2, 0.0)) if self.n else 0.0


@dataclass(slots=True)
class _Tally:
    """``error``, ``nearest``: of inexact sums; ``every``, ``every_nearest``: of all. Columns: by cluster, for the intervals."""

    error: Moments = field(default_factory=Moments)
    nearest: Moments = field(default_factory=Moments)
    every: Moments = field(default_factory=Moments)
    every_nearest: Moments = field(default_factory=Moments)
    columns: list[tuple[Reals, Reals, Reals, Reals]] = field(default_factory=list)

    def intervals(self) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
        """95 % for the mean error of an inexact sum, and for all errors over all magnitudes."""
        errors, counts, absolute, sizes = (np.concatenate(column) for column in zip(*self.columns, strict=True))
        return mean_interval(errors, counts), mean_interval(absolute, sizes)

    @property
    def relative(self) -> float:
        size = sum(float(sizes.sum()) for *_, sizes in self.columns)
        return sum(float(absolute.sum()) for _, _, absolute, _ in self.columns) / size if size else 0.0


def per_sum(view: ArmView, one: Finding) -> PerSum | None:
    """The finding's trial looked at again; None where it has no inexact sum. Raises EvidenceError where it is not recorded."""
    trial = next((p.trial for p in view.planned if p.trial.trial_id == one.measure.get("trial")), None)
    if trial is None:
        return None
    tally = _tally(view, trial, int(one.measure["repeat"]), int(one.measure["rank"]))
    if not tally.error.n:
        return None
    mean_95, relative_95 = tally.intervals()
    return PerSum(
        finding=one.id,
        arm=view.arm,
        collective=trial.call.collective,
        op=trial.call.op,
        format=trial.call.format,
        ranks=len(trial.members),
        trial=trial.trial_id,
        family=str(trial.family),
        data=_data(trial),
        mode=str(one.measure.get("mode")),
        elements=tally.every.n,
        inexact=tally.error.n,
        mean=tally.error.mean,
        mean_95=mean_95,
        sd=tally.error.sd,
        nearest_mean=tally.nearest.mean,
        nearest_sd=tally.nearest.sd,
        result_mean=tally.every.mean,
        result_sd=tally.every.sd,
        nearest_result_sd=tally.every_nearest.sd,
        relative=tally.relative,
        relative_95=relative_95,
    )


def _data(trial: Trial) -> str:
    pairs = ", every pair of ranks in turn" if trial.active == "pairs" else ""
    said = FAMILIES.get(trial.family.name, "inputs of a kind that this version does not know")
    return f"family {trial.family} ({said}), two contributors{pairs}, seed {trial.seed}"


def _tally(view: ArmView, trial: Trial, repeat: int, rank: int) -> _Tally:
    if not any((seen.repeat, seen.rank) == (repeat, rank) for seen in view.observations(trial.trial_id)):
        raise EvidenceError(f"arm {view.arm}: repeat {repeat} of trial {trial.trial_id} is not recorded; run it again")
    fmt, tally = trial.call.fmt, _Tally()
    output = view.output(trial.trial_id, repeat, rank)
    skip = unwritten_mask(view, trial, rank)
    for part, data in blocks(trial, repeat, rank):
        split = data.split
        magnitude = output[part] & fmt.dtype.type(fmt.magnitude_mask)
        up = magnitude == split.lo + fmt.dtype.type(1)
        keep = ordinary(trial, data) & ~skip[part] & ((magnitude == split.lo) | (up & split.inexact))
        rem, inexact = remainders(split), split.inexact & keep
        error = np.where(inexact, up - rem, 0.0)
        nearest = np.where(inexact, up_by_mode("ties_to_even", split) - rem, 0.0)
        tally.error.add(error[inexact])
        tally.nearest.add(nearest[inexact])
        tally.every.add(error[keep])
        tally.every_nearest.add(nearest[keep])
        sizes = np.where(keep, magnitudes(data.sums), 0.0)
        columns: tuple[Any, ...] = (error, inexact.astype(np.float64), error * gaps(fmt, data.sums), sizes)
        starts = np.arange(0, len(error), CLUSTER)
        e, n, a, s = (np.add.reduceat(column, starts) for column in columns)
        tally.columns.append((e, n, a, s))
    return tally
