"""Two or more recorded runs, or arms of one, side by side: what differs around them, in their bits and in their findings.

Pure over the record: nothing is run, and what is not in the files is not claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from auditor.compare import surroundings
from auditor.compare.findings import Asked, Compared, compared
from auditor.compare.operands import Match, Opened, Operand, matches, opened
from auditor.compare.records import POLICIES, SCHEMA, Beside, Comparison, Difference, Pair
from auditor.compare.trials import Comparer, Side, axes, only_in
from auditor.errors import ConfigError
from auditor.store import RecordedArm

__all__ = ["POLICIES", "SCHEMA", "Comparison", "compare", "to_json"]


def compare(texts: Sequence[str], *, policy: str = "", recompute: bool = False) -> Comparison:
    """The first operand is the base; every other one is put beside it. ``texts``: ``RUN`` or ``RUN:ARM``.

    Raises ConfigError on operands that cannot stand side by side, EvidenceError on a record that cannot be read.
    """
    if len(texts) < 2:
        raise ConfigError("compare needs two runs, or two arms of one: auditor compare RUN RUN")
    operands = [Operand.parse(text) for text in texts]
    with ExitStack() as stack:
        runs: list[Opened] = []
        for operand in operands:
            runs.append(opened(operand, recompute=recompute))
            stack.callback(runs[-1].reader.close)
        base, *others = runs
        # Whether arms can be matched is asked of every operand first: a mistake should not cost the time of a comparison.
        plans = [matches(base, other) for other in others]
        besides = [_beside(base, other, some) for other, some in zip(others, plans, strict=True)]
    return Comparison(base=base.run, besides=tuple(besides), policy=policy)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """JSON values; ``schema``, the verdict and the exit code beside the records' own fields."""
    from auditor.analysis.files import plain

    head = {"schema": SCHEMA, "verdict": comparison.verdict, "exit_code": comparison.exit_code}
    return {**head, **plain(asdict(comparison))}


def _beside(base: Opened, other: Opened, some: Sequence[Match]) -> Beside:
    notes = []
    if base.arm is None and other.arm is None:
        for one, names in ((base, [m.base for m in some]), (other, [m.other for m in some])):
            alone = [name for name in one.reader.arm_names if name not in names]
            if alone:
                notes.append(f"Only {one.run.label} has the arm{'s' if len(alone) > 1 else ''} {', '.join(alone)}.")
    if base.run.run_id == other.run.run_id and base.arm == other.arm:
        notes.append("Both operands are the same run: nothing can differ.")
    return Beside(other=other.run, pairs=tuple(_pair(base, other, match) for match in some), notes=tuple(notes))


def _pair(base: Opened, other: Opened, match: Match) -> Pair:
    x, y = base.reader.arm(match.base), other.reader.arm(match.other)
    theirs = {one.trial.trial_id for one in y.planned}
    mine = {one.trial.trial_id for one in x.planned}
    common = [one.trial for one in x.planned if one.trial.trial_id in theirs]
    sides = Side(base.label(match.base), x), Side(other.label(match.other), y)
    told = compared(
        base.findings.get(match.base, []),
        other.findings.get(match.other, []),
        (Asked.of(x.planned), Asked.of(y.planned)),
    )
    return Pair(
        base_arm=match.base,
        other_arm=match.other,
        base_backend=x.backend,
        other_backend=y.backend,
        matched=match.how,
        environment=surroundings.differences((base.reader, x), (other.reader, y)),
        plan=tuple(_plan(x, y)),
        common=len(common),
        only_base=only_in(x.planned, theirs),
        only_other=only_in(y.planned, mine),
        bits=Comparer(*sides).compare(common) if common else (),
        changes=told.changes,
        findings_alike=told.alike,
        notes=tuple(_notes((base, x), (other, y), len(common), told)),
    )


def _plan(x: RecordedArm, y: RecordedArm) -> Iterator[Difference]:
    for name, mine, theirs in axes(x.planned, y.planned):
        yield Difference("plan", name, _values(mine), _values(theirs))


def _values(values: Sequence[str]) -> str:
    return ", ".join(values[:12]) + (f", ... ({len(values)} in all)" if len(values) > 12 else "") if values else "none"


def _notes(
    base: tuple[Opened, RecordedArm], other: tuple[Opened, RecordedArm], common: int, told: Compared
) -> Iterator[str]:
    """What cannot be compared, and why."""
    (a, x), (b, y) = base, other
    if x.backend != y.backend:
        yield (
            f"Different backends, {x.backend} and {y.backend}: whatever differs may be the libraries' own, and is no fault of "
            "either by itself."
        )
    for view, label in ((x, a.label(x.arm)), (y, b.label(y.arm))):
        if view.status != "ok":
            yield f"{label} is {view.status}{f': {view.reason}' if view.reason else ''}."
    if not common and x.planned and y.planned:
        why = f" ({x.rank_n} and {y.rank_n} ranks)" if x.rank_n != y.rank_n else ""
        yield f"No trial is the same in both{why}: no bits can be compared; findings are, by what they say."
    for probe, n in told.unasked.items():
        yield f"{n} finding{'s' if n > 1 else ''} of the probe {probe}: not compared, the plans share no trial of it there."
    if a.run.derived != b.run.derived:
        yield "The findings of one run were derived now, those of the other when it ran: --recompute derives both now."
