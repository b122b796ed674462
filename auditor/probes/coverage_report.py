"""What the coverage probe says: one finding for each kind in a cell where it is there, one PASS for all cells where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from auditor.model import ArmView, Finding, Planned, Verdict
from auditor.probes.common import Case, finding, listed, no_data_reason, plural, receiving, verdict_for, where
from auditor.probes.statistics import clopper_pearson

PROBE = "coverage"
KINDS = (
    "unwritten",
    "overrun",
    "send_modified",
    "wrong_value",
    "missing_term",
    "duplicate_term",
    "stale_term",
    "prefill_leak",
)


@dataclass(slots=True)
class Seen:
    """What one (collective, op, format) showed."""

    planned: list[Planned] = field(default_factory=list)
    others: list[Planned] = field(default_factory=list)  # trials of other probes, looked at by the bound
    cases: dict[str, Case] = field(default_factory=dict)
    how: dict[str, list[str]] = field(default_factory=dict)  # kind -> how it explains the wrong observations
    observations: int = 0
    elements: int = 0
    looked: set[str] = field(default_factory=set)  # kinds that this data could have shown

    def case(self, kind: str) -> Case:
        return self.cases.setdefault(kind, Case())


_WHAT = {
    "unwritten": "leaves elements of the receive range unwritten",
    "overrun": "changes bytes outside the receive range",
    "send_modified": "changes the send buffer of an out-of-place call",
    "wrong_value": "returns values that no order of exact additions gives",
    "missing_term": "returns sums that lack a rank's term",
    "duplicate_term": "returns sums that hold a term twice",
    "stale_term": "returns sums with data of an earlier call",
    "prefill_leak": "returns results that depend on what the receive buffer held before the call",
}
_LIMITS = {
    "unwritten": "Elements are counted once for each rank and repeat. Proved at the counts and shifts in scope only.",
    "overrun": "Only the arenas that were handed to the subject are watched. Bytes are recorded one by one up to a cap.",
    "send_modified": "Which of the elements changed is not recorded.",
    "wrong_value": "What went wrong is not named: no hypothesis (missing, doubled or stale term, prefill) explains it alone.",
    "missing_term": "Ranks whose terms are zero in these data are not covered.",
    "duplicate_term": "Ranks whose terms are zero in these data are not covered.",
    "stale_term": "Data older than three calls are not recognised; nor are data of an even number of calls ago within a trial.",
    "prefill_leak": "8-bit formats have no NaN payload: there a leak that returns the prefill looks unwritten.",
}


_VALUES = frozenset(("wrong_value", "missing_term", "duplicate_term", "stale_term", "prefill_leak"))
# What was found in a cell that leaves no "looked for and not there" to say of a kind.
_PRECLUDES = {
    "unwritten": frozenset(("unwritten",)),
    "overrun": frozenset(("overrun",)),
    "send_modified": frozenset(("send_modified", "scratch")),
    "wrong_value": _VALUES | {"unwritten"},
    **dict.fromkeys(("missing_term", "duplicate_term", "stale_term", "prefill_leak"), _VALUES),
}


def wrong_findings(view: ArmView, state: Seen) -> Iterator[Finding]:
    for kind in KINDS:
        case = state.cases.get(kind)
        if case is not None:
            yield _wrong_finding(view, kind, case, state.how.get(kind, []))
    if "scratch" in state.cases and "send_modified" not in state.cases:
        case = state.cases["scratch"]
        trials = list(case.trials.values())
        claim = (
            f"{where(trials)} in place changes the rank's own input outside its share in "
            f"{plural(len(case.observations), 'observation')}; the caller gave that buffer away."
        )
        limits = "The rest of an in-place send range counts as scratch."
        yield finding(
            view,
            PROBE,
            "send_modified",
            Verdict.INFORMATION,
            claim,
            trials=trials,
            measure=case.measure(),
            limits=limits,
        )


def _wrong_finding(view: ArmView, kind: str, case: Case, how: list[str]) -> Finding:
    trials = list(case.trials.values())
    all_seen = sum(len(receiving(view, t)) for t in trials)
    rate = clopper_pearson(min(len(case.observations), all_seen), all_seen)
    numbers = {k: v for k, v in _numbers(kind, case, how).items() if v not in (None, [])}
    measure = case.measure(observations_looked_at=all_seen, rate_95=[rate[0], rate[1]], **numbers)
    return finding(
        view,
        PROBE,
        kind,
        verdict_for(view, kind, True),
        _claim(kind, case, how, all_seen),
        trials=trials,
        measure=measure,
        evidence=case.rows,
        limits=_LIMITS[kind],
    )


def _numbers(kind: str, case: Case, how: list[str]) -> dict[str, Any]:
    notes = case.notes
    if kind == "overrun":
        offsets = [o for group in notes.get("offset", []) for o in group]
        ends = [min(offsets), max(offsets)] if offsets else []
        return {"bytes": case.elements, "offsets": ends, "bystanders": sorted(notes.get("bystander", []))}
    return {
        "how": how,
        "first_index": min(notes["first"]) if "first" in notes else None,
        "last_index": max(notes["last"]) if "last" in notes else None,
        "displaced_by": notes.get("displaced", [None])[0],
    }


def _claim(kind: str, case: Case, how: list[str], all_seen: int) -> str:
    trials = list(case.trials.values())
    unit = "byte" if kind == "overrun" else "element"
    amount = "" if kind == "send_modified" else f": {plural(case.elements, unit)}"
    reason = f" ({listed(how, 3)})" if how else ""
    if kind == "overrun" and case.notes.get("bystander"):
        reason = (
            f", the ranges of ranks that receive nothing among them (rank {listed(sorted(case.notes['bystander']))})"
        )
    if kind == "wrong_value" and case.notes.get("displaced"):
        reason = f"; they are the sums that belong {case.notes['displaced'][0]:+d} elements away"
    counts = sorted({t.call.count for t in trials})
    return (
        f"{where(trials)} {_WHAT[kind]}{reason}{amount} in {len(case.observations)} of "
        f"{plural(all_seen, 'observation')} (rank {listed(case.ranks)}; repeat {listed(case.repeats)}; "
        f"count {listed(counts)}; shift {listed(sorted({f'{t.send_shift}/{t.recv_shift}' for t in trials}))})."
    )


def passes(view: ArmView, cells: list[Seen]) -> Iterator[Finding]:
    for kind in KINDS:
        clean = [s for s in cells if kind in s.looked and not _PRECLUDES[kind] & set(s.cases)]
        if clean:
            yield _pass(view, kind, clean)


def _pass(view: ArmView, kind: str, clean: Iterable[Seen]) -> Finding:
    states = list(clean)
    trials = [p.trial for s in states for p in s.planned] or [p.trial for s in states for p in s.others]
    seen = sum(s.observations for s in states)
    claim = f"No call of {where(trials)} {_WHAT[kind]} in {plural(seen, 'observation')}."
    measure = {
        "observations": seen,
        "elements": sum(s.elements for s in states),
        "trials": len(trials),
        "rate_95": [0.0, clopper_pearson(0, seen)[1]],
    }
    return finding(
        view,
        PROBE,
        kind,
        Verdict.PASS,
        claim,
        trials=trials,
        measure=measure,
        limits="Holds for the calls in scope; rate_95 bounds how often another such call could differ unseen.",
    )


def silent(view: ArmView, cells: list[Seen]) -> Iterator[Finding]:
    """One finding for the cells of which nothing can be said."""
    mute = [s for s in cells if s.planned and "wrong_value" not in s.looked and not s.cases]
    trials = [p.trial for s in mute for p in s.planned]
    if trials:
        empty = all(t.call.count == 0 for t in trials)
        reason = "every count is 0" if empty else no_data_reason(view, trials)
        claim = f"Nothing can be said about the values of {where(trials)}: {reason}."
        yield finding(view, PROBE, "wrong_value", Verdict.INCONCLUSIVE, claim, trials=trials)
