"""How one addition is rounded: two active ranks (from three up, all pairs of ranks, packed by index)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.model import ArmView, Evidence, Family, Finding, Trial, Verdict
from auditor.probes.common import (
    MAX_ROWS,
    cell,
    evidence_rows,
    finding,
    inconclusive,
    listed,
    no_data_reason,
    plural,
    trials_of,
    verdict_for,
    verdict_for_value,
    where,
)
from auditor.probes.dose import described, uncovered
from auditor.probes.expected import blocks, nearest_code
from auditor.probes.faithful import faithful
from auditor.probes.mode import (
    NATURAL_PRECISION,
    Fit,
    Look,
    double_rounding,
    first_rounding_in_directed,
    look,
    ordinary,
    stochastic_fit,
)
from auditor.probes.statistics import clopper_pearson

NAME = "rounding"
KINDS = ("rounding_mode", "not_faithful", "double_rounding")
MAIN_COUNT = 1 << 20
NARROWING = ("ties", "exhaustive")
NEAREST = ("ties_to_even", "ties_to_away")

Indices = npt.NDArray[np.int64]


# -------------------------------------------------------------------------------------------------------------- plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """One point a cell: the main trial of each family, and trials that only narrow what it leaves."""
    for point in _points(scope):
        active = "all" if len(point.members) == 2 else "pairs"
        for family in scope.families("report132"):
            if _takes(point, family):
                yield point.with_(family=family, active=active), max(2, scope.sweep.repeats)
        for name in NARROWING if point.call.fmt.bits == 8 else NARROWING[:1]:
            if _takes(point, Family(name)):
                yield point.with_(family=Family(name), active=active), 2


def _points(scope: Scope) -> Iterator[Trial]:
    """The best point of each (collective, format, group): out of place, the largest count up to 2**20, least shifted."""
    best: dict[tuple[Any, ...], Trial] = {}
    for point in scope.points():
        if point.call.op != "sum" or point.call.count == 0 or len(point.members) < 2:
            continue
        key = (*cell(point), point.call.group)
        if key not in best or _rank(point) < _rank(best[key]):
            best[key] = point
    yield from best.values()


def _rank(point: Trial) -> tuple[Any, ...]:
    """Smaller is better; the plan's order decides between equals (first root, first seed)."""
    count = point.call.count
    size = (0, -count) if count <= MAIN_COUNT else (1, count)
    return point.in_place, size, point.send_shift + point.recv_shift


def _takes(point: Trial, family: Family) -> bool:
    try:
        inputs.check(family, point.call.fmt, 2)
    except ConfigError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------ analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """Per cell and family: the mode; per cell: faithfulness and double rounding."""
    cells: dict[tuple[Any, ...], list[Trial]] = {}
    for planned in trials_of(view, NAME):
        trial = planned.trial
        cells.setdefault((*cell(trial), trial.call.group), []).append(trial)
    for trials in cells.values():
        yield from _cell(view, trials)


def _cell(view: ArmView, trials: list[Trial]) -> Iterator[Finding]:
    mains = [t for t in trials if t.family.name not in NARROWING] or trials[:1]
    looks = {t.trial_id: found for t in trials if (found := look(view, t)) is not None}
    for trial in mains:
        if trial.trial_id in looks:
            yield _mode(view, looks[trial.trial_id], [f for i, f in looks.items() if i != trial.trial_id])
        else:
            yield inconclusive(view, NAME, "rounding_mode", [trial], no_data_reason(view, [trial]))
    if looks:
        yield faithful(view, [f.trial for f in looks.values()])
        yield _double(view, list(looks.values()))


# --------------------------------------------------------------------------------------------------------------- mode


def _mode(view: ArmView, main: Look, others: Sequence[Look]) -> Finding:
    narrowing = [f for f in others if not f.foreign and f.table.inexact]
    consistent = [m for m in main.surviving if all(m in f.surviving for f in narrowing)]
    if reason := _unusable(main):
        return inconclusive_with(view, main, consistent, reason)
    fit = stochastic_fit(view, main) if not consistent else None
    name = consistent[0] if len(consistent) == 1 else "undetermined" if consistent else "stochastic" if fit else "mixed"
    rows, total = _not_nearest(view, main)
    measure = {**_counts(main, name, consistent), **_shares(main), "evidence_total": total}
    measure["narrowed_by"] = [f.trial.trial_id for f in narrowing]
    measure |= described(view, main, [main, *narrowing])
    if fit is not None:
        measure["stochastic"] = {"form": fit.form, "noise_bits": fit.bits}
    return finding(
        view,
        NAME,
        "rounding_mode",
        verdict_for_value(view, "rounding_mode", name, consistent),
        _mode_claim(main, name, consistent, fit),
        trials=[main.trial],
        measure=measure,
        evidence=rows,
        limits=_mode_limits(main, name, measure["coverage"]),
    )


def _unusable(main: Look) -> str:
    table = main.table
    if main.foreign:
        off = table.outside + table.exact_wrong
        return f"{off:,} of {table.elements:,} outputs are neither the exact sum nor one of its neighbours"
    if not table.inexact:
        return f"no sum among {plural(table.elements, 'element')} has to be rounded"
    return ""


def inconclusive_with(view: ArmView, main: Look, consistent: list[str], reason: str) -> Finding:
    """No mode is named, but the counts are there to look at."""
    return finding(
        view,
        NAME,
        "rounding_mode",
        Verdict.INCONCLUSIVE,
        f"Nothing can be said about the rounding mode of {where([main.trial])}: {reason}.",
        trials=[main.trial],
        measure=_counts(main, "undetermined", consistent),
    )


def _counts(main: Look, name: str, consistent: Sequence[str]) -> dict[str, Any]:
    table = main.table
    return {
        "mode": name,
        "consistent_modes": list(consistent),
        "elements": table.elements,
        "inexact": table.inexact,
        "nearest": table.nearest,
        "toward_zero": table.toward_zero,
        "away": table.away,
        "outside": table.outside,
        "ties": table.ties,
        "mean_signed_error_ulp": table.mean_signed_error_ulp,
        "exact_wrong": table.exact_wrong,
        "left_out": main.left_out,
        "unstable": main.unstable,
        "trial": main.trial.trial_id,
        "rank": main.seen.rank,
        "repeat": main.seen.repeat,
    }


def _shares(main: Look) -> dict[str, Any]:
    """Two-sided 95 % bounds of the three shares of inexact sums."""
    table = main.table
    names = ("nearest", "toward_zero", "away")
    return {f"{name}_95": list(clopper_pearson(getattr(table, name), table.inexact)) for name in names}


def _mode_claim(main: Look, name: str, consistent: Sequence[str], fit: Fit | None) -> str:
    table, start = main.table, f"{where([main.trial])}, two of them active,"
    counted = (
        f"of {table.inexact:,} inexact sums {_percent(table.nearest, table.inexact)} go to nearest-even, "
        f"{_percent(table.toward_zero, table.inexact)} toward zero instead and {_percent(table.away, table.inexact)} away"
    )
    if name == "undetermined":
        return f"{start} rounds by one of {listed(consistent)}: {counted}."
    if name == "mixed":
        return f"{start} rounds by no single IEEE mode: {counted}."
    if name == "stochastic" and fit is not None:
        noise = "" if fit.bits >= 48 else f" with {fit.bits} bits of noise"
        return f"{start} rounds stochastically{noise}: P(up | rem) fits, and {counted}."
    return f"{start} rounds {name}: {counted}."


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if 0 < part < whole else "all" if part else "none"


def _mode_limits(main: Look, name: str, covered: dict[str, Any]) -> str:
    texts = [
        "Counts come from one trial, its first receiving rank and first usable repeat; other trials only narrow the modes."
    ]
    if main.unstable:
        texts.append(f"{plural(main.unstable, 'element')} changed between repeats and eliminated no mode.")
    if name == "mixed":
        texts.append(
            "What decides the direction is not asked here: position, neighbours, path and call are other probes'."
        )
    if name == "undetermined":
        texts.append("More data, or larger counts, would narrow it.")
    texts.append(uncovered(covered))
    return " ".join(texts)


def _not_nearest(view: ArmView, main: Look) -> tuple[list[Evidence], int]:
    """A few elements whose output is not the nearest, with their total."""
    total = main.table.toward_zero + main.table.away
    if not total:
        return [], 0
    trial, seen = main.trial, main.seen
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    for part, data in blocks(trial, seen.repeat, seen.rank):
        want = nearest_code(trial, data)
        odd = np.flatnonzero((output[part] != want) & ordinary(trial, data) & data.split.inexact)[:MAX_ROWS]
        if odd.size:
            return evidence_rows(trial, seen, odd + part.start, output[part][odd], want[odd], MAX_ROWS // 2), total
    return [], total


# ----------------------------------------------------------------------------------------------------- double rounding


def _double(view: ArmView, looks: list[Look]) -> Finding:
    usable = [f for f in looks if not f.foreign and f.table.inexact]
    trials = [f.trial for f in usable or looks]
    if not usable:
        return inconclusive(view, NAME, "double_rounding", trials, "no trial has inexact sums that were merely rounded")
    surviving = set.intersection(*(set(f.surviving) for f in usable))
    directed = surviving - set(NEAREST)
    if len(surviving) == 1 and directed and not set.intersection(*(set(f.surviving_all) for f in usable)) & directed:
        return _twice_directed(view, usable, directed.pop())
    if surviving and not surviving & set(NEAREST):
        claim = f"Every sum of {where(trials)}, two of them active, is what rounding once {listed(sorted(surviving))} gives."
        limits = "In a directed mode rounding twice gives the bits of rounding once: it has no effect to be seen."
        return finding(view, NAME, "double_rounding", Verdict.PASS, claim, trials=trials, limits=limits)
    found = double_rounding(view, usable, to_even="ties_to_away" not in surviving or "ties_to_even" in surviving)
    p = trials[0].call.fmt.precision
    limits = (
        f"Two active ranks cannot show a first rounding to {2 * p + 2} or more bits: it gives the same bits as none."
    )
    measure: dict[str, Any] = {
        "first_rounding_bits": found.seen,
        "followed_bits": list(found.followed),
        "resolved_bits": list(found.bits),
        "told_apart": found.told_apart,
    }
    if not found.bits:
        return inconclusive(
            view, NAME, "double_rounding", trials, f"no sum tells a first rounding apart. {limits}"[:-1]
        )
    if found.seen is not None:
        verdict = verdict_for(view, "double_rounding", True)
        claim = (
            f"{where(trials)}, two of them active, rounds first to {found.seen} bits and then to {p}: all sums agree."
        )
    else:
        verdict = Verdict.PASS
        bits = f"{min(found.bits)} to {max(found.bits)}" if len(found.bits) > 1 else str(found.bits[0])
        claim = f"{where(trials)}, two of them active, shows no first rounding to {bits} bits."
    return finding(
        view,
        NAME,
        "double_rounding",
        verdict,
        claim,
        trials=trials,
        measure=measure,
        limits=limits,
    )


def _twice_directed(view: ArmView, looks: list[Look], mode: str) -> Finding:
    """A directed mode whose subject first rounds what its accumulator cannot hold."""
    trials = [f.trial for f in looks]
    wrong, explained = first_rounding_in_directed(view, looks, mode)
    bits = NATURAL_PRECISION[trials[0].call.fmt.name]
    measure = {"first_rounding_bits": bits if explained == wrong else None, "sums": wrong, "explained": explained}
    if explained == wrong:
        said = f"first rounds to {bits} bits, to nearest: {plural(wrong, 'sum')} that need more bits show it"
    else:
        said = f"rounds {plural(wrong, 'sum')} that need more than {bits} bits otherwise than {mode}"
    claim = f"{where(trials)}, two of them active, rounds {mode} but {said}."
    return finding(
        view, NAME, "double_rounding", verdict_for(view, "double_rounding", True), claim, trials=trials, measure=measure
    )
