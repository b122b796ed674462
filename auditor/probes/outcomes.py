"""What came back for each case of the family special_cases: one record for each different code, with where it was seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.inputs import cases as table
from auditor.inputs.cases import Case
from auditor.model import ArmView, Codes, Observation, Trial
from auditor.probes.common import receiving
from auditor.probes.unwritten import unwritten_mask

Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class Outcome:
    """One code that one case gave. ``trial``, ``seen``, ``index``: where it was seen first; ``places``: every trial that gave it,
    named, with the receivers that got it there.
    """

    code: int
    trial: Trial
    seen: Observation
    index: int
    places: dict[str, set[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Outcomes:
    """``by_case``: case number -> code -> outcome. ``cases``: the table that the numbers refer to."""

    cases: Sequence[Case]
    by_case: dict[int, dict[int, Outcome]] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    left_out: int = 0  # elements that were not written
    observations: int = 0

    def of_kind(self, kind: str) -> Iterator[tuple[Case, list[Outcome]]]:
        """Cases of a kind that came back, in the order of the table, with all that came back."""
        for number in sorted(self.by_case):
            if self.cases[number].kind == kind:
                yield self.cases[number], list(self.by_case[number].values())


def place_name(trial: Trial) -> str:
    """Short name of a trial's place among its cell's trials."""
    return f"count {trial.call.count}, shift {trial.send_shift}/{trial.recv_shift}"


def is_table(trial: Trial) -> bool:
    return trial.family.name == "special_cases" and trial.family.get("beside", "cases") == "cases"


def where_cases(trial: Trial, rank: int) -> npt.NDArray[np.int64]:
    """Case number of each element that the rank receives, -1 for ordinary ones; shape (count,)."""
    part = str(trial.family.get("part", "table"))
    where = table.layout(trial.call.fmt, len(trial.members), part)
    return where.numbers(*inputs.receiver_range(trial, rank))


def gather(view: ArmView, trials: Iterable[Trial]) -> Outcomes:
    """Everything that the cases of these trials gave, over all repeats and receivers."""
    usable = [trial for trial in trials if is_table(trial)]
    first = usable[0]
    found = Outcomes(table.cases(first.call.fmt, len(first.members)))
    for trial in usable:
        seen_all = receiving(view, trial)
        if seen_all:
            found.trials.append(trial)
        known: dict[tuple[str, tuple[int, int]], set[int]] = {}
        for seen in seen_all:
            known.setdefault((seen.digest, inputs.receiver_range(trial, seen.rank)), set()).add(seen.rank)
        done: set[tuple[str, tuple[int, int]]] = set()
        for seen in seen_all:
            key = (seen.digest, inputs.receiver_range(trial, seen.rank))
            if key not in done:
                done.add(key)
                _add(view, found, trial, seen, known[key])
    return found


def _add(view: ArmView, found: Outcomes, trial: Trial, seen: Observation, ranks: set[int]) -> None:
    number = where_cases(trial, seen.rank)
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    skip = unwritten_mask(view, trial, seen.rank)
    found.left_out += int((skip & (number >= 0)).sum())
    found.observations += 1
    at = np.flatnonzero((number >= 0) & ~skip)
    for case, code, index in _distinct(number[at], output[at], at):
        outcome = found.by_case.setdefault(case, {}).setdefault(code, Outcome(code, trial, seen, index))
        outcome.places.setdefault(place_name(trial), set()).update(ranks)


def _distinct(number: Places, codes: Codes, at: Places) -> Iterator[tuple[int, int, int]]:
    """(case, code, an index) for each different pair. Nearly always a case gives one code, and there is nothing to sort."""
    cases, first = np.unique(number, return_index=True)
    usual = np.zeros(int(cases.max(initial=0)) + 1, codes.dtype)
    usual[cases] = codes[first]
    yield from zip(cases.tolist(), codes[first].tolist(), at[first].tolist(), strict=True)
    odd = np.flatnonzero(codes != usual[number])
    yield from {
        (int(number[k]), int(codes[k])): (int(number[k]), int(codes[k]), int(at[k])) for k in odd[::-1]
    }.values()


# ------------------------------------------------------------------------------------------------------- beside ordinary


@dataclass(frozen=True, slots=True)
class Beside:
    """Ordinary elements compared: those that changed when the cases beside them gave way to ordinary data, and those that
    changed when these gave way to other ordinary data (``control``).
    """

    compared: int
    changed: int
    control: int


def beside(view: ArmView, trials: Sequence[Trial], kind: str) -> Beside | None:
    """Ordinary elements next to cases of ``kind``; None where the three trials to compare are not there or do not repeat."""
    three = [_one(view, trials, name) for name in table.BESIDE]
    if any(part is None for part in three):
        return None
    compared = changed = control = 0
    a, b, c = (part for part in three if part is not None)
    for rank, codes in a[1].items():
        near = _near(a[0], rank, kind)
        compared += int(near.sum())
        changed += int((near & (codes != b[1][rank])).sum())
        control += int((near & (b[1][rank] != c[1][rank])).sum())
    return Beside(compared, changed, control)


Outputs = dict[int, Codes]


def _one(view: ArmView, trials: Sequence[Trial], name: str) -> tuple[Trial, Outputs] | None:
    """The trial of one ``beside`` at the point where all three are, and a receiver's codes for each range; None if unstable."""
    points = {_point(t) for t in trials if t.family.get("beside", "cases") == "plain"}
    mine = [t for t in trials if t.family.get("beside", "cases") == name and _point(t) in points]
    if not mine:
        return None
    seen_all = receiving(view, mine[0])
    ranks = sorted({o.rank for o in seen_all})
    if mine[0].call.collective != "reduce_scatter":
        ranks = ranks[:1]
    outputs: Outputs = {}
    for rank in ranks:
        own = [o for o in seen_all if o.rank == rank]
        if len({o.digest for o in own}) > 1:
            return None
        outputs[rank] = view.output(mine[0].trial_id, own[0].repeat, rank)
    return (mine[0], outputs) if outputs else None


def _point(trial: Trial) -> tuple[object, ...]:
    return trial.call, trial.send_shift, trial.recv_shift, trial.family.get("part", "table")


def _near(trial: Trial, rank: int, kind: str) -> npt.NDArray[np.bool_]:
    """Ordinary elements of the stretch of the table that holds cases of ``kind``."""
    where = table.layout(trial.call.fmt, len(trial.members), "table")
    at = np.maximum.accumulate(np.where(where.number >= 0, where.number, 0))
    mine = np.array([case.kind == kind for case in where.cases], np.bool_)[at] & (where.number < 0)
    return np.asarray(mine[where.places(*inputs.receiver_range(trial, rank))], np.bool_)
