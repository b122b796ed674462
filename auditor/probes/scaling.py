"""By which formula an average is made: divided after the sum, or multiplied by a rounded 1/n before or after it, and how wide.

Where n is a power of two every formula gives the same bits but for overflow, so a group of three is asked too where the
backend has groups. That an average is plainly wrong is coverage's to say; by what it was divided is said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.model import ArmView, Family, Finding, Trial
from auditor.probes.averages import FORMULAS, Model, is_plain
from auditor.probes.common import (
    MAX_ROWS,
    cell,
    finding,
    inconclusive,
    listed,
    no_data_reason,
    plural,
    trials_of,
    verdict_for_value,
    where,
)
from auditor.probes.scaling_fit import Fit, equal_inputs, fit_of, narrow

NAME = "scaling"
KINDS = ("average_scaling",)
ELEMENTS = 1 << 13
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


def _cell(view: ArmView, trials: Sequence[Trial]) -> Finding:
    fits = [fit for t in trials if t.family.name == MAIN and (fit := fit_of(view, t)) is not None]
    for fit in fits:
        for trial in trials:
            if trial.family.name == TIES and trial.call == fit.trial.call:
                narrow(view, fit, trial)
    equals = {t: found for t in trials if t.family.name == "equal" and (found := equal_inputs(view, t)) is not None}
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
        "overflows_near_maximum": bool(lost) if top else None,
    }


def _claim(
    trials: Sequence[Trial], fits: Sequence[Fit], measure: dict[str, Any], name: str, formulas: Sequence[str]
) -> str:
    parts = [_formula_text(fits, measure, name, formulas)]
    for fit in fits:
        if fit.divisor != fit.n:
            call = fit.trial.call
            names = {
                fit.trial.rank_n: "all ranks of the arm",
                fit.trial.send_count: "the count sent",
                call.count: "the count",
            }
            what = names.get(fit.divisor, "")
            parts.append(f"it divides by {fit.divisor}{f' ({what})' if what else ''} where {fit.n} ranks send")
    parts += [_equal_text(measure["equal_inputs"])]
    if measure["overflows_near_maximum"]:
        parts.append("averages of equal values near the maximum overflow")
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
