"""Raw bits for people who want to look themselves: whole 16-byte groups of every rank, what lies outside a range included."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from auditor import inputs
from auditor.errors import EvidenceError
from auditor.evidence.cases import WORD, Case, Outcome, Step
from auditor.evidence.relations import Sighting
from auditor.model import ArmView, Finding, Trial
from auditor.numerics.formats import Format
from auditor.probes.failure import FailureRecord
from auditor.probes.values import to_float64

COLUMNS = (
    *("source", "trial", "repeat", "step", "rank", "buffer"),
    *("index", "in_range", "address_mod_16", "code", "value"),
)
GROUPS = 32  # of recorded elements, those of the finding's evidence rows
Row = tuple[Any, ...]


def csv_text(rows: Sequence[Row]) -> str:
    """``bits.csv``. ``index``: elements from the range's first one, negative before it; ``address_mod_16``: of the element."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return out.getvalue()


def code_text(fmt: Format, code: int) -> str:
    return f"0x{code:0{fmt.bits // 4}x}"


def value_text(fmt: Format, code: int) -> str:
    """Decimal digits that tell the code from its neighbours."""
    number = float(to_float64(fmt, np.array([code], fmt.dtype))[0])
    return f"{number:.{17 if fmt.bits == 64 else 9}g}"


def _row(where: Row, fmt: Format, shift: int, index: int, count: int, code: int) -> Row:
    address = (shift + index) * fmt.itemsize % WORD
    return (*where, index, int(0 <= index < count), address, code_text(fmt, code), value_text(fmt, code))


# ---------------------------------------------------------------------------------------------------------- the case


def of_case(case: Case, outcome: Outcome, name: str) -> Iterator[Row]:
    """Every group of a case's ranges, what was sent and, where it is known, what came back in each round."""
    for number, step in enumerate(case.steps):
        trial = step.trial(case.rank_n)
        for row, rank in enumerate(case.members):
            yield from _sent(name, "", "", number, rank, step, row, _groups(step, range(step.data.shape[1])))
            for turn, output in outcome.outputs(number, rank):
                shift = trial.send_shift if step.in_place else trial.recv_shift
                for index, code in enumerate(output.tolist()):
                    where = (name, "", turn, number, rank, "recv")
                    yield _row(where, step.fmt, shift, index, step.call.count, code)


def _groups(step: Step, indices: Any) -> list[int]:
    """Send indices of the aligned 16-byte groups that hold these, ascending; outside the range too."""
    lanes = WORD // step.fmt.itemsize
    found: set[int] = set()
    for index in indices:
        first = index - (index + step.send_shift) % lanes
        found |= set(range(first, first + lanes))
    return sorted(found)


def _sent(
    name: str, trial: str, repeat: Any, number: Any, rank: int, step: Step, row: int, indices: Sequence[int]
) -> Iterator[Row]:
    for index in indices:
        where = (name, trial, repeat, number, rank, "send")
        yield _row(where, step.fmt, step.send_shift, index, step.data.shape[1], sent_at(step, row, index))


def sent_at(step: Step, row: int, index: int) -> int:
    """The code that a member has at a send index; zero beyond what the case sets."""
    if index < 0:
        return int(step.head[row, index]) if -index <= step.head.shape[1] else 0
    if index < step.data.shape[1]:
        return int(step.data[row, index])
    past = index - step.data.shape[1]
    return int(step.tail[row, past]) if past < step.tail.shape[1] else 0


def failure_records(case: Case, outcome: Outcome, sightings: Sequence[Sighting]) -> list[dict[str, Any]]:
    """Each place as a record that stands alone: its group, the exact sum, its neighbours, where between them the output is."""
    found = []
    for one in sightings[:GROUPS]:
        step = case.steps[one.step]
        output = dict(outcome.outputs(one.step, one.rank)).get(one.round)
        if step.call.op != "sum" or output is None or not 0 <= one.index < len(output):
            continue
        first = inputs.receiver_range(step.trial(case.rank_n), one.rank)[0]
        indices = _groups(step, [first + one.index])
        group = tuple(tuple(sent_at(step, row, k) for row in range(len(case.members))) for k in indices)
        inside = [place for place, k in enumerate(indices) if 0 <= k < step.data.shape[1]]
        record = FailureRecord(
            format=step.fmt.name,
            inputs=group,
            start=inside[0],
            stop=inside[-1] + 1,
            place=indices.index(first + one.index),
            out=int(output[one.index]),
            address=(step.send_shift + indices[0]) * step.fmt.itemsize % WORD,
            context={"step": one.step, "round": one.round, "rank": one.rank, "index": one.index},
        )
        found.append(record.to_json())
    return found


# ------------------------------------------------------------------------------------------------------- the record


def of_record(view: ArmView, finding: Finding, steps: Mapping[tuple[str, int], Step]) -> Iterator[Row]:
    """The groups of the finding's evidence rows as recorded. ``steps``: (trial, repeat) -> its call spelled out."""
    trials = {planned.trial.trial_id: planned.trial for planned in view.planned}
    wanted: dict[tuple[str, int], dict[int, list[int]]] = {}
    for row in finding.evidence[:GROUPS]:
        trial = trials.get(row.trial)
        if trial is None or row.index is None or row.repeat is None or row.rank is None:
            continue
        if not 0 <= row.index < trial.call.count or (row.trial, row.repeat) not in steps:
            continue
        wanted.setdefault((row.trial, row.repeat), {}).setdefault(row.rank, []).append(row.index)
    for (trial_id, repeat), by_rank in wanted.items():
        yield from _recorded(view, trials[trial_id], repeat, by_rank, steps[trial_id, repeat])


def _recorded(view: ArmView, trial: Trial, repeat: int, by_rank: Mapping[int, list[int]], step: Step) -> Iterator[Row]:
    sent = {inputs.receiver_range(trial, rank)[0] + index for rank, some in by_rank.items() for index in some}
    groups = _groups(step, sorted(sent))
    for row, rank in enumerate(trial.members):
        yield from _sent("recorded", trial.trial_id, repeat, "", rank, step, row, groups)
    shift = trial.send_shift if trial.in_place else trial.recv_shift
    for rank in trial.call.receivers(trial.rank_n):
        first = inputs.receiver_range(trial, rank)[0]
        try:
            output = view.output(trial.trial_id, repeat, rank)
        except EvidenceError:
            continue  # nothing was recorded of this rank: a crash, an error
        for index in (k - first for k in groups):
            if 0 <= index < trial.call.count:
                where = ("recorded", trial.trial_id, repeat, "", rank, "recv")
                yield _row(where, trial.call.fmt, shift, index, trial.call.count, int(output[index]))
