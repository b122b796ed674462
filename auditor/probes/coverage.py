"""Is every element of the sum written, with every term once and of this call, and is nothing else written?

Inputs are exact in every order (rank-coded: each rank one bit of the sum), so one output is right and a wrong one tells
what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.model import PREFILLS, ArmView, Evidence, Family, Finding, Observation, Trial
from auditor.probes import coverage_report, explain, legal, resolve
from auditor.probes.common import (
    cell,
    evidence_rows,
    hex_code,
    receiving,
    trials_of,
    usable,
)
from auditor.probes.coverage_report import Seen
from auditor.probes.expected import blocks, is_nearest, nearest_at, own_codes
from auditor.probes.unwritten import prefill_of, proved, unwritten_mask

NAME = "coverage"
KINDS = coverage_report.KINDS
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


def analyze(view: ArmView) -> Iterator[Finding]:
    """Findings by cell for what is wrong; one PASS a kind for all cells where it was looked for and not found."""
    cells = _cells(view)
    for state in cells.values():
        _writes(view, state)
        _values(view, state)
        yield from coverage_report.wrong_findings(view, state)
    yield from coverage_report.passes(view, list(cells.values()))
    yield from coverage_report.silent(view, list(cells.values()))


def _cells(view: ArmView) -> dict[Cell, Seen]:
    cells: dict[Cell, Seen] = {}
    for planned in trials_of(view, NAME):
        cells.setdefault(cell(planned.trial), Seen()).planned.append(planned)
    for planned in view.planned:
        trial = planned.trial
        # Other fills may be read: that is the tail probe's to say, and would be wrong values here.
        if NAME not in planned.probes and trial.head == trial.tail == "zero" and trial.call.op == "sum":
            cells.setdefault(cell(trial), Seen()).others.append(planned)
    return cells


# ---------------------------------------------------------------------------------------- what was written elsewhere


def _writes(view: ArmView, state: Seen) -> None:
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


def _outside(state: Seen, trial: Trial, seen: Observation) -> None:
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


def _bystander(view: ArmView, state: Seen, trial: Trial, seen: Observation) -> None:
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


def _values(view: ArmView, state: Seen) -> None:
    bads: list[explain.Bad] = []
    for planned in state.planned:
        bads.extend(_look(view, state, planned.trial, asked=True))
    beyond: list[explain.Bad] = []
    for planned in state.others:
        beyond.extend(_look(view, state, planned.trial, asked=False))
    # What the exact data named explains the other probes' trials too: one kind a fault.
    _name(view, state, bads or beyond)


def _look(view: ArmView, state: Seen, trial: Trial, *, asked: bool) -> list[explain.Bad]:
    """Wrong elements of a trial, one record an observation; those proved unwritten go to their own case."""
    bads, known = [], {}
    seen_all = receiving(view, trial)
    if asked and seen_all and trial.call.count:
        _can_show(view, state, trial, seen_all)
    for seen in seen_all:
        state.observations += 1
        state.elements += trial.call.count
        if trial.call.op == "sum" and is_nearest(trial, seen):
            continue
        key = (trial.seed_of(seen.repeat), seen.digest, inputs.receiver_range(trial, seen.rank))
        if key not in known:
            known[key] = _wrong_indices(view, trial, seen)
        wrong = known[key]
        if wrong.size:
            wrong = (
                _drop_unwritten(view, state, trial, seen, wrong) if asked else _drop_suspects(view, trial, seen, wrong)
            )
        if wrong.size:
            bads.append(explain.sample_of(view, trial, seen, wrong))
    return bads


def _can_show(view: ArmView, state: Seen, trial: Trial, seen: list[Observation]) -> None:
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


def _drop_unwritten(view: ArmView, state: Seen, trial: Trial, seen: Observation, wrong: Indices) -> Indices:
    # In place, "never written" is one of the hypotheses: with two ranks a missing term gives the same bits.
    mask = None if trial.in_place else proved(view, trial, seen.rank)
    if mask is None:
        return wrong
    gone = wrong[mask[wrong]]
    if gone.size:
        case = state.case("unwritten")
        state.how["unwritten"] = ["all three prefills survive"]
        some = gone[: case.room]
        output = view.output(trial.trial_id, seen.repeat, seen.rank)
        rows = evidence_rows(trial, seen, some, output[some], _expected(trial, seen, some), case.room)
        case.add(trial, seen, gone.size, rows, first=int(gone[0]), last=int(gone[-1]))
    return np.asarray(wrong[~mask[wrong]])


def _drop_suspects(view: ArmView, trial: Trial, seen: Observation, wrong: Indices) -> Indices:
    return np.asarray(wrong[~unwritten_mask(view, trial, seen.rank)[wrong]])


def _expected(trial: Trial, seen: Observation, index: Indices) -> Any:
    """What evidence rows show as expected at these receive indices."""
    return (
        nearest_at(trial, seen.repeat, seen.rank, index)
        if trial.call.op == "sum"
        else f"the {trial.call.op} of the inputs"
    )


def _name(view: ArmView, state: Seen, bads: list[explain.Bad]) -> None:
    """Put the hypotheses to a spread sample of the wrong observations; the rest follow where one kind explains the sample."""
    chosen = bads
    if len(bads) > NAMED_AT_MOST:
        chosen = [bads[i] for i in np.linspace(0, len(bads) - 1, NAMED_AT_MOST).astype(int)]
    for bad in chosen:
        explain.explain(view, bad)
    kinds = resolve.resolve(chosen)
    for kind in set(kinds):
        state.how[kind] = state.how.get(kind, []) + resolve.ways(
            [b for b, k in zip(chosen, kinds, strict=True) if k == kind], kind
        )
    for bad, kind in zip(chosen, kinds, strict=True):
        _file(state, bad, kind)
    if len(set(kinds)) == 1 and len(bads) > len(chosen):
        sampled = {id(b) for b in chosen}
        for bad in (b for b in bads if id(b) not in sampled):
            _file(state, bad, kinds[0])


def _file(state: Seen, bad: explain.Bad, kind: str) -> None:
    case, trial = state.case(kind), bad.trial
    some = bad.index[: case.room]
    rows = evidence_rows(trial, bad.seen, some, bad.codes[: case.room], _expected(trial, bad.seen, some), case.room)
    case.add(trial, bad.seen, bad.total, rows, first=int(bad.index[0]), last=int(bad.index[-1]))
    if kind == "wrong_value" and len(case.observations) == 1:
        moved = explain.displaced(bad)
        if moved is not None:
            case.notes["displaced"] = [moved]
