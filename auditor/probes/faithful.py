"""Is every output of one addition the exact sum or one of its two neighbours? And if not, is rounding to blame?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.model import ArmView, Codes, Evidence, Finding, Observation, Trial, Verdict
from auditor.probes import explain, legal
from auditor.probes.common import (
    MAX_ROWS,
    cell,
    evidence_rows,
    finding,
    inconclusive,
    listed,
    plural,
    receiving,
    trials_of,
    verdict_for,
    where,
)
from auditor.probes.expected import Mask, blocks, is_faithful, is_nearest, nearest_at
from auditor.probes.mode import ordinary
from auditor.probes.unwritten import unwritten_mask

PROBE = "rounding"
Indices = npt.NDArray[np.int64]


def faithful(view: ArmView, trials: list[Trial]) -> Finding:
    """FAIL where outputs are neither neighbour (or an exact sum is changed) in every repeat, and it is rounding's doing."""
    looked, total, ranks, others = 0, 0, set(), set()
    shown: list[Trial] = []
    rows: list[Evidence] = []
    for trial in trials:
        for seen, off in _unfaithful(view, trial):
            looked += 1
            if not off.size:
                continue
            if reason := _other_cause(view, trial, seen, off):
                others.add(reason)
                continue
            shown.append(trial)
            ranks.add(seen.rank)
            total += int(off.size)
            if len(rows) < MAX_ROWS:
                rows += _rows(view, trial, seen, off, MAX_ROWS - len(rows))
    if shown:
        return _unfaithful_finding(view, shown, rows, total, sorted(ranks))
    if others:
        reason = f"the outputs are wrong in another way ({listed(sorted(others), 3)}), which coverage names"
        return inconclusive(view, PROBE, "not_faithful", trials, reason)
    claim = f"Every repeatable output of {where(trials)}, two of them active, is the exact sum or one of its two neighbours."
    measure = {"observations": looked, "elements": sum(t.call.count for t in trials)}
    return finding(
        view, PROBE, "not_faithful", Verdict.PASS, claim, trials=trials, measure=measure, limits=_FAITHFUL_LIMITS
    )


_FAITHFUL_LIMITS = "Subnormal terms and sums, and sums next to the maximum or past it, are not judged here."


def _unfaithful_finding(
    view: ArmView, trials: list[Trial], rows: list[Evidence], total: int, ranks: list[int]
) -> Finding:
    claim = (
        f"{where(trials)}, two of them active, returns {plural(total, 'output')} that are neither the exact sum nor one of "
        f"its two neighbours, in every repeat (rank {listed(ranks)})."
    )
    measure = {"elements": total, "ranks": ranks, "trials": len({t.trial_id for t in trials}), "evidence_total": total}
    verdict = verdict_for(view, "not_faithful", True)
    return finding(
        view,
        PROBE,
        "not_faithful",
        verdict,
        claim,
        trials=trials,
        measure=measure,
        evidence=rows,
        limits=_FAITHFUL_LIMITS,
    )


def _unfaithful(view: ArmView, trial: Trial) -> Iterator[tuple[Observation, Indices]]:
    """Per receiving rank: its first usable observation and the elements that are off in all of its repeats, ascending."""
    seen_all = receiving(view, trial)
    known: dict[tuple[Any, ...], Indices] = {}
    for rank in sorted({o.rank for o in seen_all}):
        mine = [o for o in seen_all if o.rank == rank]
        key = (inputs.receiver_range(trial, rank), tuple(sorted({(trial.seed_of(o.repeat), o.digest) for o in mine})))
        if key not in known:
            known[key] = _off(view, trial, mine)
        skip = unwritten_mask(view, trial, rank)
        yield mine[0], np.asarray(known[key][~skip[known[key]]])


def _off(view: ArmView, trial: Trial, mine: list[Observation]) -> Indices:
    off: Mask = np.ones(trial.call.count, np.bool_)
    for seen in {(trial.seed_of(o.repeat), o.digest): o for o in mine}.values():
        output = view.output(trial.trial_id, seen.repeat, seen.rank)
        for part, data in blocks(trial, seen.repeat, seen.rank):
            off[part] &= ordinary(trial, data) & ~is_faithful(trial, output[part], data)
        if not off.any():
            break
    return np.flatnonzero(off)


def _other_cause(view: ArmView, trial: Trial, seen: Observation, off: Indices) -> str:
    """What else than rounding explains the outputs; "" where nothing does.

    A missing, doubled or stale term leaves the neighbours too. So does a damaged value: where most outputs are more than one step
    past the neighbours and exact data come back wrong as well, nothing here is about rounding.
    """
    bad = explain.sample_of(view, trial, seen, off)
    explain.explain(view, bad)
    if len(off) > 1 and bad.reasons:
        return next(iter(bad.reasons)).replace("_", " ")
    if _steps_past(trial, bad, seen) <= 1:
        return ""
    return "exact sums are wrong as well" if _exact_data_wrong(view, trial) else ""


def _steps_past(trial: Trial, bad: explain.Bad, seen: Observation) -> float:
    """Median number of codes between the output and the nearest sum, less one."""
    want = nearest_at(trial, seen.repeat, seen.rank, bad.index)
    mask = want.dtype.type(trial.call.fmt.magnitude_mask)
    a, b = (_ordered(codes, mask) for codes in (bad.codes, want))
    return float(np.median(np.abs(a - b))) - 1


def _ordered(codes: Codes, mask: Any) -> npt.NDArray[np.float64]:
    """Place on the lattice of codes, as float64: near enough to tell 2 from many."""
    magnitude = (codes & mask).astype(np.float64)
    return np.asarray(np.where(codes > mask, -magnitude, magnitude), np.float64)


def _exact_data_wrong(view: ArmView, trial: Trial) -> bool:
    """Whether the coverage probe's data of the same cell come back wrong."""
    for planned in trials_of(view, "coverage"):
        other = planned.trial
        if cell(other) != cell(trial):
            continue
        for seen in receiving(view, other):
            if is_nearest(other, seen):
                continue
            output = view.output(other.trial_id, seen.repeat, seen.rank)
            skip = unwritten_mask(view, other, seen.rank)
            for part, data in blocks(other, seen.repeat, seen.rank):
                if (legal.wrong(other, data, output[part])[0] & ~skip[part]).any():
                    return True
    return False


def _rows(view: ArmView, trial: Trial, seen: Observation, off: Indices, room: int) -> list[Evidence]:
    some = off[:room]
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    return evidence_rows(trial, seen, some, output[some], nearest_at(trial, seen.repeat, seen.rank, some), room)
