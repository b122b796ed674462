"""By which formula an average is made: divided after the sum, or multiplied by a rounded 1/n before or after it, and how wide.

Where n is a power of two every formula gives the same bits but for overflow, so a group of three is asked too where the
backend has groups. That an average is plainly wrong is coverage's to say; by what it was divided is said here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.model import ArmView, Codes, Evidence, Family, Finding, Observation, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_sums
from auditor.probes.averages import FORMULAS, NEAREST, Model, bank, evaluate, is_plain, other_banks, over
from auditor.probes.common import (
    MAX_ROWS,
    cell,
    evidence_rows,
    finding,
    inconclusive,
    listed,
    no_data_reason,
    plural,
    receiving,
    trials_of,
    verdict_for_value,
    where,
)
from auditor.probes.unwritten import unwritten_mask
from auditor.probes.values import to_float64

NAME = "scaling"
KINDS = ("average_scaling",)
ELEMENTS = 1 << 13
FIRST = 512  # elements on which most models are eliminated
REPEATS = 2
MAIN, TIES, EQUAL, TOP = "report132", "average_ties", "equal", "equal:range=top"
THREE = (0, 1, 2)


# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """At most four trials a cell, and as many in a group of three ranks where its number of members is a power of two."""
    best: dict[tuple[Any, ...], Trial] = {}
    for point in scope.points():
        if point.call.op == "avg" and point.call.count:
            key = (*cell(point), point.call.group)
            if key not in best or _rank(point) < _rank(best[key]):
                best[key] = point
    for point in best.values():
        yield from _trials(point)
        n = len(point.members)
        if n & (n - 1) == 0 and n > len(THREE) and point.call.group is None:
            three = point.with_(group=THREE, root=0)
            if scope.excluded(three) is None:
                yield from _trials(three)


def _rank(point: Trial) -> tuple[Any, ...]:
    return point.in_place, point.send_shift + point.recv_shift


def _trials(point: Trial) -> Iterator[tuple[Trial, int]]:
    n = len(point.members)
    shares = n if point.call.collective == "reduce_scatter" else 1
    at = point.with_(count=-(-ELEMENTS // shares) + 1)  # not the number of ranks, nor a multiple of it
    if n > 1:
        yield at.with_(family=Family(MAIN), active="all" if n == 2 else "pairs"), REPEATS
    if n & (n - 1) and _takes(at, Family(TIES)):
        yield at.with_(family=Family(TIES)), REPEATS
    for text in (EQUAL, TOP):
        yield at.with_(family=Family.parse(text)), REPEATS


def _takes(point: Trial, family: Family) -> bool:
    try:
        inputs.check(family, point.call.fmt, len(point.members))
    except ConfigError:
        return False
    return True


# --------------------------------------------------------------------------------------------------------------- analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a cell (collective, op, format)."""
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in trials_of(view, NAME):
        cells.setdefault(cell(planned.trial), []).append(planned.trial)
    for trials in cells.values():
        yield _cell(view, trials)


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


def _cell(view: ArmView, trials: Sequence[Trial]) -> Finding:
    fits = [fit for t in trials if t.family.name == MAIN and (fit := _fit(view, t)) is not None]
    for fit in fits:
        for trial in trials:
            if trial.family.name == TIES and trial.call == fit.trial.call:
                _narrow(view, fit, trial)
    equals = {t: found for t in trials if t.family.name == "equal" and (found := _equal(view, t)) is not None}
    if not fits and not equals:
        return inconclusive(view, NAME, "average_scaling", trials, no_data_reason(view, trials))
    survivors = _common(fits)
    plain = [model for model in survivors if is_plain(model, trials[0].call.fmt)] or survivors
    formulas = [name for name in FORMULAS if any(model.formula == name for model in plain)]
    name = formulas[0] if len(formulas) == 1 else "undetermined" if formulas or not fits else "unknown"
    measure = _measure(fits, equals, survivors, plain, name, formulas)
    return finding(
        view,
        NAME,
        "average_scaling",
        verdict_for_value(view, "average_scaling", name, formulas),
        _claim(trials, fits, measure, name, formulas),
        trials=[f.trial for f in fits] + list(equals),
        measure=measure,
        evidence=[row for fit in fits for row in fit.rows],
        limits=_limits(fits, name),
    )


def _common(fits: Sequence[Fit]) -> list[Model]:
    """Models that survive for every number of members."""
    if not fits:
        return []
    return [model for model in fits[0].survivors if all(model in fit.survivors for fit in fits[1:])]


# ------------------------------------------------------------------------------------------------------------------- fit


def _fit(view: ArmView, trial: Trial) -> Fit | None:
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
    _explain(view, fit, fmt, terms, output, at)
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


def _narrow(view: ArmView, fit: Fit, trial: Trial) -> None:
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


def _explain(view: ArmView, fit: Fit, fmt: Format, terms: Sequence[Codes], output: Codes, at: Any) -> None:
    """Where none survives: the model that agrees most, and elements where it does not."""
    del view
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


def _equal(view: ArmView, trial: Trial) -> dict[str, Any] | None:
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


# ----------------------------------------------------------------------------------------------------------------- report


def _measure(
    fits: Sequence[Fit],
    equals: dict[Trial, dict[str, Any]],
    survivors: Sequence[Model],
    plain: Sequence[Model],
    name: str,
    formulas: Sequence[str],
) -> dict[str, Any]:
    mid = {str(len(t.members)): found for t, found in equals.items() if str(t.family) == EQUAL}
    top = {str(len(t.members)): found for t, found in equals.items() if str(t.family) == TOP}
    lost = sum(found["overflowed"] + found["saturated"] for found in top.values())
    return {
        "formula": name,
        "consistent_formulas": list(formulas),
        "formulas_of_mixed_width": sorted({model.formula for model in survivors} - set(formulas)),
        "consistent_models": [
            model.to_json() for model in [*plain, *(m for m in survivors if m not in plain)][:MAX_ROWS]
        ],
        "models_left": len(survivors),
        "widths_of_sum": list(dict.fromkeys(model.sum_in or "exact" for model in plain)),
        "elements": sum(fit.elements for fit in fits),
        "inexact": sum(fit.inexact for fit in fits),
        "divides_by": {str(fit.n): fit.divisor for fit in fits},
        "models_left_by_members": {str(fit.n): len(fit.survivors) for fit in fits},
        "nearest_model": {str(f.n): {**f.best.to_json(), "agreeing": f.agreeing} for f in fits if f.best is not None},
        "equal_inputs": mid,
        "equal_inputs_near_maximum": top,
        "overflows_before_dividing": bool(lost) if top else None,
    }


def _claim(
    trials: Sequence[Trial], fits: Sequence[Fit], measure: dict[str, Any], name: str, formulas: Sequence[str]
) -> str:
    parts = [_formula_text(fits, measure, name, formulas)]
    for fit in fits:
        if fit.divisor != fit.n:
            call = fit.trial.call
            names = {
                call.count: "the count",
                fit.trial.send_count: "the count sent",
                fit.trial.rank_n: "all ranks of the arm",
            }
            what = names.get(fit.divisor, "")
            parts.append(f"it divides by {fit.divisor}{f' ({what})' if what else ''} where {fit.n} ranks send")
    parts += [_equal_text(measure["equal_inputs"])]
    if measure["overflows_before_dividing"]:
        parts.append("sums overflow before they are divided")
    return f"{where(trials)} {'; '.join(part for part in parts if part)}."


_VERBS = {
    "divide_after": "divides the sum",
    "multiply_after": "multiplies the sum by a rounded 1/n",
    "multiply_before": "multiplies each term by a rounded 1/n before adding",
}


def _formula_text(fits: Sequence[Fit], measure: dict[str, Any], name: str, formulas: Sequence[str]) -> str:
    if not fits:
        return "takes one term, so that no formula shows"
    counted = f"all {measure['elements']:,} averages of two terms agree"
    if name in _VERBS:
        kept = listed([w if w == "exact" else f"in {w}" for w in measure["widths_of_sum"]]).replace(" and ", " or ")
        return f"{_VERBS[name]}, sums kept {kept} ({counted})"
    if name == "undetermined":
        return f"makes averages by one of {listed(formulas)}, which give the same bits here ({counted})"
    best = max(fits, key=lambda fit: fit.agreeing)
    if best.best is None:
        return "makes averages by no single formula for every number of ranks"
    share = 100 * best.agreeing / max(1, best.elements)
    return f"makes averages by none of the formulas tried; {best.best.formula} agrees on {share:.2f} %"


def _equal_text(mid: dict[str, dict[str, Any]]) -> str:
    texts = []
    for n, found in mid.items():
        if found["changed"]:
            steps = plural(found["most_steps"], "step")
            texts.append(
                f"{found['changed']:,} of {found['elements']:,} averages of {n} equal inputs are another value (up to {steps})"
            )
    return "; ".join(texts) or ("averages of equal inputs are that input" if mid else "")


def _limits(fits: Sequence[Fit], name: str) -> str:
    texts = ["The order of additions is not asked here: few members send data."]
    if name in FORMULAS:
        texts.append(
            "Of the models that agree, those that keep one width throughout are preferred; the measure lists the others."
        )
    if name == "undetermined" and all(fit.n & (fit.n - 1) == 0 for fit in fits):
        texts.append(
            "1/n is exact for these numbers of ranks; a number that is no power of two would tell the formulas apart."
        )
    return " ".join(texts)
