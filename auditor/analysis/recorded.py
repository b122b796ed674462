"""What the record itself shows, whatever the probes ask: crashes, hangs, errors, refusals, other paths, spoilt inputs, gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from auditor.model import ArmView, Evidence, Finding, Observation, Planned, Trial, Verdict
from auditor.probes.common import cell, listed, plural, scope_of, verdict_for, where

PROBE = "harness"
ROWS = 16  # evidence rows kept of a finding; measure.evidence_total counts all
Seen = list[tuple[Trial, Observation]]


class RecordedArm(ArmView, Protocol):
    """An arm's view with what the plan says of it."""

    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def plan(self) -> Mapping[str, Any]: ...


def findings(view: RecordedArm) -> Iterator[Finding]:
    """The harness's findings of one arm."""
    yield from _absences(view)
    rows = [(planned.trial, one) for planned in view.planned for one in view.observations(planned.trial.trial_id)]
    for status, words in (("crash", "crashes"), ("hang", "does not return")):
        for group in _cells(row for row in rows if row[1].status == status):
            yield _trouble(view, status, words, group)
    for group in _cells(row for row in rows if row[1].status == "error"):
        yield _trouble(view, "backend_error", "raises an error on a call that its capabilities allow", group)
    for group in _by_message(row for row in rows if row[1].status == "unsupported"):
        yield _make(
            view, "unsupported", Verdict.WAIVED, f"{_where(group)}: the library refuses: {_words(group)}.", group
        )
    known = ("ok", "error", "crash", "hang", "unsupported")
    for group in _by_message(row for row in rows if row[1].status not in known):
        claim = f"{_where(group)}: nothing can be said of {plural(len(_trials(group)), 'trial')}: {_words(group)}."
        yield _make(view, "not_run", Verdict.INCONCLUSIVE, claim, group)
    yield from _paths(view, rows)
    yield from _inputs(view, rows)
    yield from _missing(view)


def _trouble(view: ArmView, kind: str, words: str, group: Seen) -> Finding:
    claim = f"{_where(group)}: the subject {words} in {plural(len(_trials(group)), 'trial')}: {_words(group)}."
    limits = "The trials of a cell that come after two crashes or hangs are not run." if kind != "backend_error" else ""
    return _make(view, kind, verdict_for(view, kind, True), claim, group, limits=limits)


def _absences(view: RecordedArm) -> Iterator[Finding]:
    """Arms that were not to run, and waivers: WAIVED, each with its reason."""
    waivers = view.plan.get("waivers", ())
    words = {"unavailable": "is not available here", "waived": "is waived", "not_run": "was not run"}.get(view.status)
    if words and not waivers:
        claim = f"The arm {view.arm} {words}: {view.reason}."
        yield _bare(view, "unsupported", Verdict.WAIVED, claim, {"rank_n": view.rank_n})
    for waiver in waivers:
        claim = f"Waived: {waiver['reason']}."
        yield _bare(view, waiver.get("kind", "unsupported"), Verdict.WAIVED, claim, waiver.get("scope", {}))


def _missing(view: RecordedArm) -> Iterator[Finding]:
    """Planned trials that were never seen, or not to their end, with nothing that says why."""
    absent: list[Planned] = []
    short: list[Planned] = []
    for planned in view.planned:
        seen = view.observations(planned.trial.trial_id)
        whole = planned.repeats * len(planned.trial.members)
        if not seen:
            absent.append(planned)
        elif len(seen) < whole and all(one.status == "ok" for one in seen):
            short.append(planned)
    failed = view.status == "failed"
    if not absent and not short and not failed:
        return
    parts = [f"{len(absent)} of {plural(len(view.planned), 'planned trial')} were not reached"] if absent else []
    parts += [f"{plural(len(short), 'trial')} ended short of repeats or ranks"] if short else []
    what = f"failed ({view.reason.rstrip('.')})" if failed else "was interrupted before its end"
    claim = f"The arm {view.arm} {what}{': ' if parts else ''}{' and '.join(parts)}."
    trials = [planned.trial for planned in (*absent, *short)]
    measure = {"trials": len(trials), "not_reached": len(absent), "cut_short": len(short), "planned": len(view.planned)}
    yield Finding(
        arm=view.arm,
        probe=PROBE,
        kind="not_run",
        verdict=Verdict.INCONCLUSIVE,
        claim=claim,
        measure=measure,
        scope=scope_of(trials),
        limits="Nothing is said of these trials; go on with --resume." if trials else "",
    )


def _paths(view: RecordedArm, rows: Seen) -> Iterator[Finding]:
    """Where the arm states a path: did every call take it."""
    stated = view.plan.get("path")
    if not stated:
        return
    ok = [row for row in rows if row[1].status == "ok"]
    for group in _cells(ok):
        told = [row for row in group if row[1].path not in ("", "unreported")]
        other = [row for row in told if stated not in row[1].path]
        if other:
            taken = listed(sorted({one.path for _, one in other}))
            claim = f"{_where(other)}: {len(other)} of {len(told)} calls take {taken}, not the stated path {stated}."
            verdict = verdict_for(view, "path_not_taken", True)
            yield _make(view, "path_not_taken", verdict, claim, other, expected=stated)
        elif told:
            claim = f"{_where(group)}: every one of {plural(len(told), 'call')} reports the stated path {stated}."
            limits = "" if len(told) == len(group) else f"{len(group) - len(told)} calls report no path."
            yield _make(view, "path_not_taken", Verdict.PASS, claim, told, limits=limits, rows_kept=0)
        else:
            claim = f"{_where(group)}: the backend reports no path, so nothing shows that {stated} was taken."
            yield _make(view, "path_not_taken", Verdict.INCONCLUSIVE, claim, group, rows_kept=0)


def _inputs(view: ArmView, rows: Seen) -> Iterator[Finding]:
    """Memory that was wrong before the call is not blamed on the fabric."""
    for group in _cells(row for row in rows if not row[1].send_before):
        ranks = sorted({one.rank for _, one in group})
        claim = (
            f"{_where(group)}: the send buffer of rank {listed(ranks)} was wrong before {plural(len(group), 'call')}; "
            "the memory or what wrote to it is to blame, not the fabric."
        )
        limits = "The repeats concerned are left out of every probe."
        yield _make(view, "input_corrupt", Verdict.INCONCLUSIVE, claim, group, limits=limits)


# ------------------------------------------------------------------------------------------------------------- building


def _cells(rows: Iterable[tuple[Trial, Observation]]) -> list[Seen]:
    """Rows by (collective, op, format), in plan order; the counts are listed in the scope."""
    groups: dict[tuple[Any, ...], Seen] = {}
    for trial, one in rows:
        groups.setdefault(cell(trial), []).append((trial, one))
    return list(groups.values())


def _by_message(rows: Iterable[tuple[Trial, Observation]]) -> list[Seen]:
    groups: dict[tuple[Any, ...], Seen] = {}
    for trial, one in rows:
        groups.setdefault((*cell(trial), one.status, one.message), []).append((trial, one))
    return list(groups.values())


def _trials(rows: Seen) -> list[Trial]:
    return list({trial.trial_id: trial for trial, _ in rows}.values())


def _where(rows: Seen) -> str:
    return where(_trials(rows))


def _words(rows: Seen) -> str:
    """What was said, each saying once, with its rank where all sayings are one rank's."""
    said = list(dict.fromkeys(one.message or one.status for _, one in rows))
    ranks = sorted({one.rank for _, one in rows})
    text = "; ".join(said[:3]).rstrip(".") + (f"; and {len(said) - 3} more messages" if len(said) > 3 else "")
    return f"{text} (rank {listed(ranks)})"


def _make(
    view: ArmView,
    kind: str,
    verdict: Verdict,
    claim: str,
    rows: Seen,
    *,
    limits: str = "",
    expected: str = "",
    rows_kept: int = ROWS,
) -> Finding:
    trials = _trials(rows)
    measure = {
        "trials": len(trials),
        "observations": len(rows),
        "ranks": sorted({one.rank for _, one in rows}),
        "repeats": sorted({one.repeat for _, one in rows}),
        "paths": sorted({one.path for _, one in rows if one.path}),
        "messages": list(dict.fromkeys(one.message for _, one in rows if one.message))[:ROWS],
        "evidence_total": len(rows) if rows_kept else 0,
    }
    evidence = tuple(
        Evidence(
            trial=trial.trial_id,
            rank=one.rank,
            repeat=one.repeat,
            observed=one.path if kind == "path_not_taken" else one.message or one.status,
            expected=expected,
        )
        for trial, one in rows[:rows_kept]
    )
    return Finding(
        arm=view.arm,
        probe=PROBE,
        kind=kind,
        verdict=verdict,
        claim=claim,
        measure={key: value for key, value in measure.items() if value not in ([], 0)},
        scope=scope_of(trials),
        evidence=evidence,
        limits=limits,
    )


def _bare(view: ArmView, kind: str, verdict: Verdict, claim: str, scope: Mapping[str, Any] | None = None) -> Finding:
    """A finding without trials."""
    return Finding(
        arm=view.arm, probe=PROBE, kind=kind, verdict=verdict, claim=claim.replace("..", "."), scope=dict(scope or {})
    )
