"""What the trials of the probe scaling say: the models that survive, the divisor, and what becomes of equal inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor import inputs
from auditor.model import ArmView, Codes, Evidence, Observation, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_sums
from auditor.probes.averages import NEAREST, Model, bank, evaluate, other_banks, over
from auditor.probes.common import MAX_ROWS, evidence_rows, receiving
from auditor.probes.unwritten import unwritten_mask
from auditor.probes.values import to_float64

FIRST = 512  # elements on which most models are eliminated


@dataclass(slots=True)
class Fit:
    """What the main trial of one number of members says. ``best``: where no model survives, the one that agrees most."""

    trial: Trial
    seen: Observation
    n: int
    divisor: int
    elements: int = 0
    inexact: int = 0
    survivors: list[Model] = field(default_factory=list)
    best: Model | None = None
    agreeing: int = 0
    rows: list[Evidence] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------------------- fit


def fit_of(view: ArmView, trial: Trial) -> Fit | None:
    """Elimination by the first mismatch on the first receiver's repeatable outputs."""
    known = _steady(view, trial)
    if known is None:
        return None
    seen, output, keep = known
    fmt, n = trial.call.fmt, len(trial.members)
    terms = _two_terms(trial, seen)
    keep &= _usual(fmt, terms, n)
    at = np.flatnonzero(keep)
    terms, output = [term[at] for term in terms], output[at]
    fit = Fit(trial, seen, n, _divisor(trial, terms, output), elements=len(at))
    if not len(at):
        return fit
    exact = over(exact_sums(fmt, terms), fit.divisor)
    nearest = round_sums(fmt, exact, NEAREST)
    fit.inexact = int(
        (nearest != round_sums(fmt, exact, "toward_zero")).sum()
        + (nearest != round_sums(fmt, exact, "away_from_zero")).sum()
    )
    _eliminate(fit, fmt, terms, output)
    _explain(fit, fmt, terms, output, at)
    return fit


def _steady(view: ArmView, trial: Trial) -> tuple[Observation, Codes, Any] | None:
    """The first receiver's first output, and which of its elements were written and stay the same in every repeat."""
    seen_all = receiving(view, trial)
    if not seen_all:
        return None
    seen = seen_all[0]
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    keep = ~unwritten_mask(view, trial, seen.rank)
    for other in seen_all:
        if other.rank == seen.rank and other.digest != seen.digest:
            keep &= view.output(trial.trial_id, other.repeat, other.rank) == output
    return seen, output, keep


def narrow(view: ArmView, fit: Fit, trial: Trial) -> None:
    """Take out the models that sums next to n ties contradict, where the model's accumulator holds those sums exactly."""
    known = _steady(view, trial)
    if known is None or fit.divisor != fit.n:
        return
    seen, output, keep = known
    fmt = trial.call.fmt
    terms = [term[keep] for term in inputs.terms(trial, seen.repeat, *inputs.receiver_range(trial, seen.rank))[:3]]
    left = [m for m in fit.survivors if not _holds(m, fmt) or _agrees(evaluate(m, fmt, terms, fit.n), output[keep])]
    if fit.survivors and not left:
        fit.best, fit.agreeing = fit.survivors[0], fit.elements
    fit.survivors = left


def _holds(model: Model, fmt: Format) -> bool:
    """Whether every partial sum of average_ties is exact in the model's accumulator."""
    enough = 53 if fmt.precision > 11 else 24
    return model.formula != "multiply_before" and (
        model.sum_in is None or FORMATS[model.sum_in].precision >= enough > fmt.precision
    )


def _two_terms(trial: Trial, seen: Observation) -> list[Codes]:
    """What the two members that send data send, whichever members they are; shape (count,) each."""
    start, stop = inputs.receiver_range(trial, seen.rank)
    seed = trial.seed_of(seen.repeat)
    return [inputs.generate(trial.family, trial.call.fmt, seed, 2, which, start, stop) for which in (0, 1)]


def _usual(fmt: Format, terms: Sequence[Codes], n: int) -> Any:
    """Averages that are normal numbers with room to spare: flushing and overflow are not asked here."""
    values = to_float64(fmt, terms[0]) + to_float64(fmt, terms[1])
    scaled = np.minimum(np.abs(to_float64(fmt, terms[0])), np.abs(to_float64(fmt, terms[1]))) / n
    least = 2.0**fmt.emin
    return (np.abs(values) >= 2 * n * least) & (scaled >= least)


def _divisor(trial: Trial, terms: Sequence[Codes], output: Codes) -> int:
    """By what the sums were divided: all sums over all averages, roundings cancelling; n where that is no other whole number."""
    fmt, n = trial.call.fmt, len(trial.members)
    sums, found = np.abs(to_float64(fmt, terms[0]) + to_float64(fmt, terms[1])), np.abs(to_float64(fmt, output))
    usable = np.isfinite(found) & (found > 0)
    if not usable.any():
        return n
    ratios = sums[usable] / found[usable]
    middle = float(np.median(ratios))
    near = np.abs(ratios - middle) <= 2.0 ** (2 - fmt.precision) * middle
    estimate = float(sums[usable][near].sum() / found[usable][near].sum())
    # Of large numbers only the likely ones can be told: the roundings do not cancel wholly.
    likely = [k for k in (trial.call.count, trial.send_count) if abs(estimate - k) <= 0.003 * k]
    whole = likely[0] if likely else min(max(1, round(estimate)), (1 << 31) - 1)
    return whole if abs(estimate - whole) <= 0.02 * whole and abs(estimate - n) > 0.02 * n else n


def _eliminate(fit: Fit, fmt: Format, terms: Sequence[Codes], output: Codes) -> None:
    few = [term[:FIRST] for term in terms]
    for models in (bank(fmt), tuple(itertools.chain.from_iterable(other_banks(fmt)))):
        left = [m for m in models if _agrees(evaluate(m, fmt, few, fit.divisor), output[:FIRST])]
        fit.survivors = [m for m in left if _agrees(evaluate(m, fmt, terms, fit.divisor), output)]
        if fit.survivors:
            return  # other roundings are asked for only where to nearest explains nothing


def _agrees(codes: Codes, output: Codes) -> bool:
    return bool(_alike(codes, output).all())


def _alike(codes: Codes, output: Codes) -> Any:
    """Equal, or both a zero."""
    return (codes == output) | ((codes | output) << codes.dtype.type(1) == 0)


def _explain(fit: Fit, fmt: Format, terms: Sequence[Codes], output: Codes, at: Any) -> None:
    """Where none survives: the model that agrees most, and elements where it does not."""
    if fit.survivors:
        return
    few = [term[:FIRST] for term in terms]
    score = {m: int(_alike(evaluate(m, fmt, few, fit.divisor), output[:FIRST]).sum()) for m in bank(fmt)}
    fit.best = max(score, key=lambda m: score[m])
    codes = evaluate(fit.best, fmt, terms, fit.divisor)
    same = _alike(codes, output)
    fit.agreeing = int(same.sum())
    odd = np.flatnonzero(~same)[: MAX_ROWS // 2]
    fit.rows = evidence_rows(fit.trial, fit.seen, at[odd], output[odd], codes[odd], MAX_ROWS // 2)


# ----------------------------------------------------------------------------------------------------------- equal inputs


def equal_inputs(view: ArmView, trial: Trial) -> dict[str, Any] | None:
    """How many averages of equal inputs are not that input, and what they are."""
    seen_all = receiving(view, trial)
    if not seen_all:
        return None
    seen, fmt = seen_all[0], trial.call.fmt
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    want = inputs.send_codes(trial, seen.repeat, seen.rank, *inputs.receiver_range(trial, seen.rank))
    keep = ~unwritten_mask(view, trial, seen.rank)
    output, want = output[keep], want[keep]
    mask = fmt.dtype.type(fmt.magnitude_mask)
    got, size = (output & mask).astype(np.int64), (want & mask).astype(np.int64)
    overflowed = got > fmt.max_code
    saturated = (got == fmt.max_code) & (size != fmt.max_code)
    steps = np.abs(got - size)[~overflowed]
    return {
        "elements": len(want),
        "changed": int((output != want).sum()),
        "most_steps": int(steps.max(initial=0)),
        "overflowed": int(overflowed.sum()),
        "saturated": int(saturated.sum()),
    }
