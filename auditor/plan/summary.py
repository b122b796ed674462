"""What a plan will cost, in lines for a person: ``auditor plan``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from auditor.model import Planned
from auditor.plan.records import ArmPlan, Plan


def size(nbytes: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024 or unit == "TiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def output_bytes(planned: Planned) -> int:
    """Bytes of all outputs of a trial, were none alike (alike ones are stored once)."""
    call = planned.trial.call
    return planned.repeats * len(planned.trial.members) * call.count * call.fmt.itemsize


def fresh_n(planned: Planned) -> int:
    """How many fresh processes a trial asks for; 0 for every variant but ``fresh:k``."""
    name, _, argument = planned.trial.variant.partition(":")
    return int(argument or 1) if name == "fresh" else 0


def summary(plan: Plan) -> list[str]:
    """For ``auditor plan``: per arm what each probe asked for, what it costs, and what is waived."""
    head = f"{plan.title} (plan {plan.plan_id})"
    return [head, *(line for arm in plan.arms for line in _lines(arm)), _total(plan)]


def _lines(arm: ArmPlan) -> Iterator[str]:
    head = f"{arm.name}: {arm.backend}, {arm.rank_n} rank{'s' if arm.rank_n != 1 else ''}"
    if arm.status != "ok":
        yield f"{head}: {arm.status}: {arm.reason}"
    else:
        yield f"{head}: {_cost(arm.trials)}"
    for probe in dict.fromkeys(name for planned in arm.trials for name in planned.probes):
        mine = [planned for planned in arm.trials if probe in planned.probes]
        yield f"  {probe:<14} {_cost(mine)}"
    if fresh := max((fresh_n(planned) for planned in arm.trials), default=0):
        yield f"  fresh processes: the arm is started {fresh} more times"
    for waiver in arm.waivers:
        scope = ", ".join(f"{key} {json.dumps(value)}" for key, value in waiver.scope.items())
        yield f"  waived: {waiver.reason} ({scope})"


def _cost(trials: Sequence[Planned]) -> str:
    calls = sum(planned.repeats for planned in trials)
    return f"{len(trials)} trials, {calls} calls, at most {size(sum(map(output_bytes, trials)))} of outputs"


def _total(plan: Plan) -> str:
    every = [planned for arm in plan.arms for planned in arm.trials]
    shared = sum(len(planned.probes) > 1 for planned in every)
    return f"total: {_cost(every)}; {shared} trials serve several probes and run once"
