"""Is every element of the sum written, with every term once and of this call, and is nothing else written?

Inputs are exact in every order (rank-coded: each rank one bit of the sum), so one output is right and a wrong one tells
what happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.model import PREFILLS, ArmView, Evidence, Family, Finding, Observation, Planned, Trial, Verdict
from auditor.probes import explain, legal
from auditor.probes.common import (
    MAX_ROWS,
    Case,
    cell,
    evidence_rows,
    finding,
    hex_code,
    listed,
    no_data_reason,
    plural,
    receiving,
    trials_of,
    usable,
    verdict_for,
    where,
)
from auditor.probes.expected import blocks, nearest_code, nearest_digest, own_codes
from auditor.probes.statistics import clopper_pearson
from auditor.probes.unwritten import prefill_of, proved, unwritten_mask

NAME = "coverage"
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
TELLING = 4  # counts and shifts at which position-coded data are asked for
NAMED_AT_MOST = 64  # wrong observations of a cell to which hypotheses are put

Cell = tuple[str, str, str]
Indices = npt.NDArray[np.int64]


# -------------------------------------------------------------------------------------------------------------- plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """Every point with all three prefills (in place: none), every pass; position-coded data at a few telling points."""
    repeats = max(2, scope.sweep.repeats)
    counts, shifts = scope.telling_counts(TELLING), scope.telling_shifts(TELLING)
    for point in scope.points():
        families = _families(point)
        for family in families:
            yield point.with_(family=family, inputs="alternate"), repeats
        for prefill in PREFILLS[1:] if not point.in_place else ():
            yield point.with_(family=families[0], inputs="alternate", prefill=prefill), 2
        if point.call.op == "sum" and point.call.count in counts and (point.send_shift, point.recv_shift) in shifts:
            position = Family("position_coded")
            if _takes(point, position):
                yield point.with_(family=position, inputs="alternate"), 2


def _families(point: Trial) -> list[Family]:
    if point.call.op != "sum":
        return [Family("order_exact")]
    passes = inputs.rank_coded_passes(point.call.fmt, len(point.members))
    return [Family("rank_coded", (("pass", k),) if k else ()) for k in range(passes)]


def _takes(point: Trial, family: Family) -> bool:
    try:
        inputs.check(family, point.call.fmt, len(point.members))
    except ConfigError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------ analyze


@dataclass(slots=True)
class _Cell:
    """What one (collective, op, format) showed."""

    planned: list[Planned] = field(default_factory=list)
    others: list[Planned] = field(default_factory=list)  # trials of other probes, looked at by the bound
    cases: dict[str, Case] = field(default_factory=dict)
    claims: dict[str, list[str]] = field(default_factory=dict)
    observations: int = 0
    elements: int = 0
    looked: set[str] = field(default_factory=set)  # kinds that this data could have shown

    def case(self, kind: str) -> Case:
        return self.cases.setdefault(kind, Case())


def analyze(view: ArmView) -> Iterator[Finding]:
    """Findings by cell for what is wrong; one PASS a kind for all cells where it was looked for and not found."""
    cells = _cells(view)
    for state in cells.values():
        _writes(view, state)
        _values(view, state)
        yield from _wrong_findings(view, state)
    yield from _passes(view, list(cells.values()))
    yield from _silent(view, list(cells.values()))


def _cells(view: ArmView) -> dict[Cell, _Cell]:
    cells: dict[Cell, _Cell] = {}
    for planned in trials_of(view, NAME):
        cells.setdefault(cell(planned.trial), _Cell()).planned.append(planned)
    for planned in view.planned:
        trial = planned.trial
        # Other fills may be read: that is the tail probe's to say, and would be wrong values here.
        if NAME not in planned.probes and trial.head == trial.tail == "zero" and trial.call.op == "sum":
            cells.setdefault(cell(trial), _Cell()).others.append(planned)
    return cells


# ---------------------------------------------------------------------------------------- what was written elsewhere


def _writes(view: ArmView, state: _Cell) -> None:
    """Guards, send buffers, and the receive ranges of ranks that receive nothing."""
    for planned in [*state.planned, *state.others]:
        trial = planned.trial
        receivers = trial.call.receivers(trial.rank_n)
        for seen in usable(view, trial):
            state.looked.add("overrun")
            if not trial.in_place:
                state.looked.add("send_modified")
            _outside(state, trial, seen)
            if not seen.send_after and not trial.in_place:
                state.case("send_modified").add(trial, seen, trial.send_count)
            if seen.rank not in receivers and seen.digest:
                _bystander(view, state, trial, seen)


def _outside(state: _Cell, trial: Trial, seen: Observation) -> None:
    """Bytes outside the ranges. In place, the rest of a reduce_scatter's own send range is the caller's to give: scratch."""
    if not seen.outside_total:
        return
    scratch = [b for b in seen.outside if _is_own_input(trial, seen.rank, b.offset) and b.buffer == "send"]
    strange = [b for b in seen.outside if b not in scratch]
    if strange:
        case = state.case("overrun")
        rows = [_byte_row(trial, seen, b.buffer, b.offset, b.expected, b.found) for b in strange[: case.room]]
        case.add(trial, seen, seen.outside_total - len(scratch), rows, offset=[b.offset for b in strange], buffer="")
        case.notes["buffer"] = sorted({*case.notes["buffer"], *(b.buffer for b in strange)} - {""})
    elif scratch:
        state.case("scratch").add(trial, seen, seen.outside_total)


def _is_own_input(trial: Trial, rank: int, offset: int) -> bool:
    if not (trial.in_place and trial.call.collective == "reduce_scatter"):
        return False
    position = offset + inputs.receiver_range(trial, rank)[0] * trial.call.fmt.itemsize
    return 0 <= position < trial.send_count * trial.call.fmt.itemsize


def _byte_row(trial: Trial, seen: Observation, buffer: str, offset: int, expected: int, found: int) -> Evidence:
    return Evidence(
        trial=trial.trial_id,
        rank=seen.rank,
        repeat=seen.repeat,
        index=offset // trial.call.fmt.itemsize,
        observed=f"0x{found:02x} at byte {offset:+d} of {buffer}",
        expected=f"0x{expected:02x}",
    )


def _bystander(view: ArmView, state: _Cell, trial: Trial, seen: Observation) -> None:
    """A rank that receives nothing must keep what its receive range held."""
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    if trial.in_place:
        changed = np.flatnonzero(output != own_codes(trial, seen.repeat, seen.rank))
    else:
        changed = np.flatnonzero(output != output.dtype.type(prefill_of(trial)))
    if changed.size:
        case = state.case("overrun")
        kept = "its input" if trial.in_place else hex_code(trial.call.fmt, prefill_of(trial))
        rows = evidence_rows(trial, seen, changed, output, kept, case.room)
        case.add(trial, seen, changed.size * trial.call.fmt.itemsize, rows, bystander=seen.rank)


# --------------------------------------------------------------------------------------------------------- the values


def _values(view: ArmView, state: _Cell) -> None:
    bads: list[explain.Bad] = []
    for planned in state.planned:
        bads.extend(_look(view, state, planned.trial))
    beyond: list[explain.Bad] = []
    for planned in state.others:
        beyond.extend(_look(view, state, planned.trial))
    # What the exact data named explains the other probes' trials too: one kind a fault.
    _name(view, state, bads or beyond)


def _look(view: ArmView, state: _Cell, trial: Trial) -> list[explain.Bad]:
    """Wrong elements of a trial, one record an observation; those proved unwritten go to their own case."""
    bads, known = [], {}
    seen_all = receiving(view, trial)
    _can_show(view, state, trial, seen_all)
    for seen in seen_all:
        state.observations += 1
        state.elements += trial.call.count
        if trial.call.op == "sum" and seen.digest == nearest_digest(trial, seen.repeat, seen.rank):
            continue
        key = (trial.seed_of(seen.repeat), seen.digest, inputs.receiver_range(trial, seen.rank))
        if key not in known:
            known[key] = _wrong_indices(view, trial, seen)
        wrong = _drop_unwritten(view, state, trial, seen, known[key])
        if wrong.size:
            bads.append(explain.sample_of(view, trial, seen, wrong))
    return bads


def _can_show(view: ArmView, state: _Cell, trial: Trial, seen: list[Observation]) -> None:
    if not seen or not trial.call.count or not any(p.trial is trial for p in state.planned):
        return
    siblings = [trial.with_(prefill=name) for name in PREFILLS]
    if trial.in_place or all(receiving(view, sibling) for sibling in siblings):
        state.looked.add("unwritten")
        if not trial.in_place:
            state.looked.add("prefill_leak")
    state.looked.add("wrong_value")
    if trial.call.op == "sum":
        if len(trial.members) > 1:
            state.looked |= {"missing_term", "duplicate_term"}
        if len({o.repeat for o in seen}) > 1 and trial.inputs == "alternate":
            state.looked.add("stale_term")


def _wrong_indices(view: ArmView, trial: Trial, seen: Observation) -> Indices:
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    found = []
    for part, data in blocks(trial, seen.repeat, seen.rank):
        exact, beyond = legal.wrong(trial, data, output[part])
        found.append(np.flatnonzero(exact | beyond) + part.start)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _drop_unwritten(view: ArmView, state: _Cell, trial: Trial, seen: Observation, wrong: Indices) -> Indices:
    if not wrong.size:
        return wrong
    if NAME not in next(p.probes for p in view.planned if p.trial == trial):
        return np.asarray(wrong[~unwritten_mask(view, trial, seen.rank)[wrong]])
    # In place, "never written" is one of the hypotheses: with two ranks a missing term gives the same bits.
    mask = None if trial.in_place else proved(view, trial, seen.rank)
    if mask is None:
        return wrong
    case, gone = state.case("unwritten"), wrong[mask[wrong]]
    if gone.size:
        output = view.output(trial.trial_id, seen.repeat, seen.rank)
        rows = evidence_rows(trial, seen, gone, output, _nearest(trial, seen), case.room)
        case.add(trial, seen, gone.size, rows, first=int(gone[0]), last=int(gone[-1]), how="proved")
    return np.asarray(wrong[~mask[wrong]])


def _nearest(trial: Trial, seen: Observation) -> Any:
    parts = [nearest_code(trial, data) for _, data in blocks(trial, seen.repeat, seen.rank)]
    return np.concatenate(parts) if trial.call.op == "sum" else f"the {trial.call.op} of the inputs"


def _name(view: ArmView, state: _Cell, bads: list[explain.Bad]) -> None:
    """Put the hypotheses to a spread sample of the wrong observations; the rest follow where one kind explains the sample."""
    chosen = bads
    if len(bads) > NAMED_AT_MOST:
        chosen = [bads[i] for i in np.linspace(0, len(bads) - 1, NAMED_AT_MOST).astype(int)]
    for bad in chosen:
        explain.explain(view, bad)
    kinds = explain.resolve(chosen)
    only = next(iter(set(kinds.values()))) if len(set(kinds.values())) == 1 else None
    for number, bad in enumerate(chosen):
        _file(state, bad, kinds[number])
    if only and len(bads) > len(chosen):
        sampled = {id(b) for b in chosen}
        for bad in (b for b in bads if id(b) not in sampled):
            _file(state, bad, only)


def _file(state: _Cell, bad: explain.Bad, kind: str) -> None:
    case, trial = state.case(kind), bad.trial
    rows: list[Evidence] = []
    if case.room:
        expected: Any = f"the {trial.call.op} of the inputs"
        if trial.call.op == "sum":
            expected = _expected_at(bad)
        rows = evidence_rows(trial, bad.seen, bad.index[: case.room], bad.codes[: case.room], expected, case.room)
    why = bad.reasons.get(kind, "")
    case.add(trial, bad.seen, bad.total, rows, first=int(bad.index[0]), last=int(bad.index[-1]), how=why)
    if kind == "wrong_value" and not why and len(case.observations) == 1:
        moved = explain.displaced(bad)
        if moved is not None:
            case.notes["displaced"] = [moved]


def _expected_at(bad: explain.Bad) -> Any:
    some = []
    for i in bad.index[:MAX_ROWS]:
        for part, data in blocks(bad.trial, bad.seen.repeat, bad.seen.rank):
            if part.start <= i < part.stop:
                some.append(nearest_code(bad.trial, data)[i - part.start])
    return np.array(some, bad.codes.dtype)


# ----------------------------------------------------------------------------------------------------------- findings

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


def _wrong_findings(view: ArmView, state: _Cell) -> Iterator[Finding]:
    for kind in KINDS:
        case = state.cases.get(kind)
        if case is not None:
            yield _wrong_finding(view, kind, case)
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
            NAME,
            "send_modified",
            Verdict.INFORMATION,
            claim,
            trials=trials,
            measure=case.measure(),
            limits=limits,
        )


def _wrong_finding(view: ArmView, kind: str, case: Case) -> Finding:
    trials = list(case.trials.values())
    all_seen = sum(len(receiving(view, t)) for t in trials)
    rate = clopper_pearson(min(len(case.observations), all_seen), all_seen)
    numbers = {k: v for k, v in _numbers(kind, case).items() if v not in (None, [])}
    measure = case.measure(observations_looked_at=all_seen, rate_95=[rate[0], rate[1]], **numbers)
    return finding(
        view,
        NAME,
        kind,
        verdict_for(view, kind, True),
        _claim(kind, case, trials, all_seen),
        trials=trials,
        measure=measure,
        evidence=case.rows,
        limits=_LIMITS[kind],
    )


def _numbers(kind: str, case: Case) -> dict[str, Any]:
    notes = case.notes
    if kind == "overrun":
        offsets = [o for group in notes.get("offset", []) for o in group]
        ends = [min(offsets), max(offsets)] if offsets else []
        return {"bytes": case.elements, "offsets": ends, "bystanders": sorted(notes.get("bystander", []))}
    how = [text for text in notes.get("how", []) if text]
    return {
        "how": how[:MAX_ROWS],
        "first_index": min(notes["first"]) if "first" in notes else None,
        "last_index": max(notes["last"]) if "last" in notes else None,
        "displaced_by": notes.get("displaced", [None])[0],
    }


def _claim(kind: str, case: Case, trials: list[Trial], all_seen: int) -> str:
    how = [text for text in case.notes.get("how", []) if text and text != "proved"]
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


def _passes(view: ArmView, cells: list[_Cell]) -> Iterator[Finding]:
    for kind in KINDS:
        clean = [s for s in cells if kind in s.looked and not _PRECLUDES[kind] & set(s.cases)]
        if clean:
            yield _pass(view, kind, clean)


def _pass(view: ArmView, kind: str, clean: Iterable[_Cell]) -> Finding:
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
        NAME,
        kind,
        Verdict.PASS,
        claim,
        trials=trials,
        measure=measure,
        limits="Holds for the calls in scope; rate_95 bounds how often another such call could differ unseen.",
    )


def _silent(view: ArmView, cells: list[_Cell]) -> Iterator[Finding]:
    """One finding for the cells of which nothing can be said."""
    mute = [s for s in cells if s.planned and "wrong_value" not in s.looked and not s.cases]
    trials = [p.trial for s in mute for p in s.planned]
    if trials:
        empty = all(t.call.count == 0 for t in trials)
        reason = "every count is 0" if empty else no_data_reason(view, trials)
        claim = f"Nothing can be said about the values of {where(trials)}: {reason}."
        yield finding(view, NAME, "wrong_value", Verdict.INCONCLUSIVE, claim, trials=trials)
