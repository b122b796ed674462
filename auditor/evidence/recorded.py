"""From a recorded run to a first case: the smallest recorded calls that show a finding, spelled out as bytes.

Nothing is run here: the inputs are made again from their family and seed, the outputs are the recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from auditor import inputs
from auditor.analysis.reproduce import within
from auditor.evidence.cases import Case, Outcome, Place, Seen, Step
from auditor.evidence.relations import Relation, Sighting
from auditor.layout import fill_codes
from auditor.model import PREFILLS, ArmView, Family, Finding, Observation, Trial
from auditor.probes.common import usable

# What two calls of one data set differ in, by kind: the fields, and the value that makes calls of one group equal.
PAIRS: dict[str, dict[str, Any]] = {
    "foreign_read": {"head": "zero", "tail": "zero"},
    "prefill_leak": {"prefill": "snan_a"},
    "shift_dependence": {"send_shift": 0, "recv_shift": 0},
    "count_dependence": {"count": 0},
    "in_place_difference": {"in_place": False},
    "neighbour_dependence": {"family": Family("neighbours")},
}
MOST_CODES = 1 << 23  # of a case, all members together: what is larger is not spelled out


@dataclass(frozen=True, slots=True)
class Calls:
    """Recorded calls that make one case: (trial, its repeats in order of rounds) for each step."""

    steps: tuple[tuple[Trial, tuple[int, ...]], ...]

    @property
    def size(self) -> tuple[int, ...]:
        trials = [trial for trial, _ in self.steps]
        return (
            max(trial.send_count * len(trial.members) for trial in trials),
            max(trial.send_shift + trial.recv_shift for trial in trials),
            sum(trial.in_place for trial in trials),
            sum(trial.family.name == "tail_trigger" for trial in trials),
            max(_odd(fill) for trial in trials for fill in (trial.head, trial.tail)),
        )


def _odd(fill: str) -> int:
    """The plainer fills first: of calls that are alike otherwise, one without NaN is read more easily."""
    order = ("zero", "finite", "trigger", "huge", "random", "nan")
    name = fill.partition(":")[0]
    return order.index(name) if name in order else len(order)


@dataclass(frozen=True, slots=True)
class Start:
    """The first case, and where the record shows it. ``calls``: the trials and repeats that it is made of."""

    case: Case
    outcome: Outcome
    sightings: tuple[Sighting, ...]
    calls: Calls


def find_start(view: ArmView, finding: Finding, relation: Relation) -> Start | None:
    """The smallest recorded calls that show the finding; None where no plain call does (see :func:`why_none`)."""
    found = sorted(_candidates(view, finding, relation), key=lambda calls: calls.size)
    for calls in found:
        if calls.size[0] > MOST_CODES:
            continue
        case, outcome = spelled_out(view, calls)
        if sightings := relation.look(case, outcome):
            return Start(case, outcome, tuple(sightings), calls)
    return None


def why_none(view: ArmView, finding: Finding) -> str:
    """Why there is no first case, for people."""
    trials = trials_of(view, finding)
    if not trials:
        return "no recorded trial lies in the finding's scope"
    if all(trial.variant != "plain" for trial in trials):
        return f"it was seen in calls of variant {trials[0].variant}, which a single plain call cannot stand for"
    if all(trial.send_count * len(trial.members) > MOST_CODES for trial in trials):
        return f"its calls are larger than {MOST_CODES:,} codes, more than is spelled out"
    return "no single recorded call, or pair of calls, shows it by itself"


def trials_of(view: ArmView, finding: Finding) -> list[Trial]:
    """The recorded trials in the finding's scope; those that its evidence names first."""
    named = [row.trial for row in finding.evidence]
    some = [planned.trial for planned in view.planned if within(planned, finding)]
    some += [p.trial for p in view.planned if p.trial.trial_id in named and p.trial not in some]
    return sorted(some, key=lambda trial: trial.trial_id not in named)


# ------------------------------------------------------------------------------------------------------------ candidates


def _candidates(view: ArmView, finding: Finding, relation: Relation) -> Iterator[Calls]:
    trials = [trial for trial in trials_of(view, finding) if trial.variant == "plain"]
    if relation.name == "steps_differ":
        yield from _pairs(view, finding, trials)
    elif relation.name == "unwritten":
        yield from _prefills(view, trials)
    elif relation.name == "ends":
        yield from (Calls(((trial, (0,)),)) for trial in trials)
    elif relation.repeats > 1:
        yield from _rounds(view, trials)
    else:
        yield from _singles(view, trials)


def _repeats(view: ArmView, trial: Trial) -> list[int]:
    """Repeats in which every receiver's output was recorded."""
    receivers = set(trial.call.receivers(trial.rank_n))
    got: dict[int, set[int]] = {}
    for seen in usable(view, trial):
        if seen.digest or not trial.call.count:
            got.setdefault(seen.repeat, set()).add(seen.rank)
    return sorted(repeat for repeat, ranks in got.items() if receivers <= ranks)


def _singles(view: ArmView, trials: Sequence[Trial]) -> Iterator[Calls]:
    """One call: each repeat whose outputs were not seen before."""
    for trial in trials:
        seen: set[Any] = set()
        rows = {(o.repeat, o.rank): o for o in view.observations(trial.trial_id)}
        for repeat in _repeats(view, trial):
            key = tuple((one.digest, one.outside_total, one.send_after) for (r, _), one in rows.items() if r == repeat)
            if (key, trial.seed_of(repeat)) not in seen:
                seen.add((key, trial.seed_of(repeat)))
                yield Calls(((trial, (repeat,)),))


def _rounds(view: ArmView, trials: Sequence[Trial]) -> Iterator[Calls]:
    """All repeats of a trial; where its inputs alternate, two steps."""
    for trial in trials:
        repeats = _repeats(view, trial)
        if trial.inputs == "same":
            yield Calls(((trial, tuple(repeats)),))
        elif {0, 1} <= set(repeats):
            n = min(len(repeats) // 2, sum(r % 2 for r in repeats))
            parts = [tuple(r for r in repeats if r % 2 == k)[:n] for k in (0, 1)]
            yield Calls(((trial, parts[0]), (trial, parts[1])))


def _prefills(view: ArmView, trials: Sequence[Trial]) -> Iterator[Calls]:
    """The same call over each prefill; in place there is none."""
    known = {planned.trial for planned in view.planned}
    for trial in trials:
        if trial.in_place:
            yield from _singles(view, [trial])
            continue
        some = [trial.with_(prefill=name) for name in PREFILLS]
        if all(one in known for one in some):
            repeats = [_repeats(view, one) for one in some]
            if all(repeats):
                yield Calls(tuple((one, (row[0],)) for one, row in zip(some, repeats, strict=True)))


def _pairs(view: ArmView, finding: Finding, trials: Sequence[Trial]) -> Iterator[Calls]:
    """Two calls that differ in the fields of the kind alone, the plainer first."""
    fields = PAIRS[finding.kind]
    groups: dict[Trial, list[Trial]] = {}
    for planned in view.planned:
        trial = planned.trial
        if trial.variant == "plain" and _neutral_trial(trial, fields) is not None:
            groups.setdefault(_neutral(trial, fields), []).append(trial)
    wanted = {_neutral(trial, fields) for trial in trials}
    for key, group in groups.items():
        if key in wanted and len(group) > 1:
            ordered = sorted(group, key=_plainness(fields))
            couples = (
                pairwise(ordered) if finding.kind == "count_dependence" else ((ordered[0], o) for o in ordered[1:])
            )
            for couple in couples:
                repeats = [[r for r in _repeats(view, one) if one.seed_of(r) == one.seed][:2] for one in couple]
                rounds = min(map(len, repeats))
                if rounds == 2 or (rounds and couple[0].inputs == "alternate"):  # those were repeated with other inputs
                    yield Calls(tuple((one, tuple(row[:rounds])) for one, row in zip(couple, repeats, strict=True)))


def _neutral_trial(trial: Trial, fields: dict[str, Any]) -> Trial | None:
    """None for a trial that the kind has nothing to do with (another family)."""
    family = fields.get("family")
    return None if family is not None and family.name != trial.family.name else _neutral(trial, fields)


def _neutral(trial: Trial, fields: dict[str, Any]) -> Trial:
    return trial.with_(**fields)


def _plainness(fields: dict[str, Any]) -> Callable[[Trial], Any]:
    def key(trial: Trial) -> Any:
        raw = trial.to_json()
        values = [raw[name] for name in fields]
        away = sum(value != neutral for value, neutral in zip(values, fields.values(), strict=True))
        return away, [value if isinstance(value, int) else 0 for value in values]

    return key


# ----------------------------------------------------------------------------------------------------------- spelled out


def spelled_out(view: ArmView, calls: Calls) -> tuple[Case, Outcome]:
    """The case that the calls are, and the recorded outcome."""
    rank_n = calls.steps[0][0].rank_n
    steps = tuple(step_of(trial, repeats[0] if repeats else 0) for trial, repeats in calls.steps)
    rounds = max((len(repeats) for _, repeats in calls.steps), default=1)
    seen: dict[Place, Seen] = {}
    ended, words = "", ""
    for index, (trial, repeats) in enumerate(calls.steps):
        rows = view.observations(trial.trial_id)
        bad = next((one for one in rows if one.status in ("crash", "hang", "error")), None)
        if bad is not None and not ended:
            ended, words = bad.status, bad.message
        for number, repeat in enumerate(repeats):
            for one in rows:
                if one.repeat == repeat and one.status == "ok":
                    seen[number, index, one.rank] = _seen(view, trial, one)
    return Case(rank_n=rank_n, steps=steps, repeats=max(rounds, 1)), Outcome(seen=seen, ended=ended, words=words)


def step_of(trial: Trial, repeat: int) -> Step:
    """A trial's call with every code that it may read."""
    fmt, n = trial.call.fmt, len(trial.members)
    data = np.stack(inputs.terms(trial, repeat, 0, trial.send_count))
    sides = {
        name: np.stack([fill_codes(fmt, fill, row, after=name == "tail") for row in range(n)])
        for name, fill in (("head", trial.head), ("tail", trial.tail))
    }
    return Step(
        call=trial.call,
        data=data,
        head=sides["head"],
        tail=sides["tail"],
        send_shift=trial.send_shift,
        recv_shift=trial.recv_shift,
        in_place=trial.in_place,
        prefill=trial.prefill,
    )


def _seen(view: ArmView, trial: Trial, one: Observation) -> Seen:
    receives = one.rank in trial.call.receivers(trial.rank_n)
    output = view.output(trial.trial_id, one.repeat, one.rank) if receives and one.digest else None
    return Seen(
        output=output,
        outside=one.outside,
        outside_total=one.outside_total,
        send_after=one.send_after,
        path=one.path,
    )
