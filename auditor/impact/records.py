"""What a measured rounding does to results: plain records, for JSON and for the page."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = "auditor-impact/1"
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerSum:
    """One rounding_mode finding, looked at again in its recorded outputs.

    Errors are (|result| - |exact sum|) / ulp: negative is toward zero; one ulp is the gap between the sum's neighbours. ``mean``,
    ``mean_95`` and ``sd`` are over inexact sums, ``result_mean`` and ``result_sd`` over all of them, those without error
    included. ``nearest_*``: what rounding to nearest, ties to even, does to the same sums. ``relative``: the sum of all errors
    over the sum of all magnitudes. ``data``: the inputs that all of this holds for.
    """

    finding: str
    arm: str
    collective: str
    op: str
    format: str
    ranks: int
    trial: str
    family: str
    data: str
    mode: str
    elements: int
    inexact: int
    mean: float
    mean_95: Interval | None
    sd: float
    nearest_mean: float
    nearest_sd: float
    result_mean: float
    result_sd: float
    nearest_result_sd: float
    relative: float
    relative_95: Interval | None

    @property
    def unbiased(self) -> bool:
        """Whether no bias was seen: the interval holds 0."""
        return self.mean_95 is not None and self.mean_95[0] <= 0.0 <= self.mean_95[1]

    @property
    def bound(self) -> float:
        """No bias larger than this, in ulp, agrees with the data (95 %)."""
        return max(map(abs, self.mean_95)) if self.mean_95 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Another figure of the run that bears on the question: bias on other data, a share that a shift changes."""

    finding: str
    name: str
    value: float
    value_95: Interval | None
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Totals after all steps beside the exact ones. ``bias``: errors in the direction of the total, over all magnitudes.
    ``spread``: root mean square of the errors over that of the totals.
    """

    bias: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A replay of many steps. ``shifted_results``: share of single results that the shift changes (None where every step starts
    from other totals); ``shifted_totals``: of final totals; ``shifted_spread``: root mean square of that change over that of the
    totals.
    """

    name: str
    says: str
    elements: int
    rule: Side
    nearest: Side
    shifted_results: float | None
    shifted_totals: float
    shifted_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Errors in ulp added up over the steps of the first scenario: (mean, 5th and 95th percentile over elements)."""

    steps: tuple[int, ...]
    rule: tuple[tuple[float, float, float], ...]
    nearest: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """``independent_mean``, ``independent_sd``: what independent errors of the measured mean and spread add up to, in ulp.
    ``replayed_*``: what the replay gave; None, with ``why``, where no rule is known that could be replayed.
    """

    steps: int
    independent_mean: float
    independent_sd: float
    rule: str
    why: str
    replayed_mean: float | None = None
    replayed_sd: float | None = None
    shift: int = 0
    scenarios: tuple[Scenario, ...] = ()
    curve: Curve | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """``chosen``: the finding that the paragraph is about; ``others``: the run's other rounding findings."""

    run: str
    run_id: str
    chosen: PerSum
    others: tuple[PerSum, ...]
    accumulation: Accumulation
    other_data: tuple[Measured, ...]
    shifts: tuple[Measured, ...]
    limits: tuple[str, ...]
