"""Drives a backend that keeps all ranks in one process through a plan, by the real harness, into an in-memory ArmView."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from auditor.backends.base import LocalControl
from auditor.config import ArmSpec, Scope, Sweep
from auditor.harness import Harness, Job
from auditor.model import Codes, Finding, Observation, Planned, Trial, World
from auditor.probes import Probe


class _Memory:
    """A recorder and a progress in one."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Observation]] = {}
        self.outputs: dict[tuple[str, int, int], Codes] = {}

    def append(self, trial: Trial, observation: Observation, output: Codes | None) -> None:
        self.rows.setdefault(trial.trial_id, []).append(observation)
        if output is not None:
            self.outputs[trial.trial_id, observation.repeat, observation.rank] = output.copy()

    def flush(self) -> None: ...
    def begin(self, trial_id: str, repeat: int) -> None: ...
    def end(self) -> None: ...
    def failed(self) -> None: ...


class DrivenView:
    def __init__(self, planned: list[Planned], memory: _Memory, rank_n: int, expect: Mapping[str, Any]) -> None:
        self.planned, self.rank_n, self.expect = planned, rank_n, expect
        self.arm, self.backend = "subject", "driven"
        self._memory = memory

    def observations(self, trial_id: str) -> list[Observation]:
        return sorted(self._memory.rows.get(trial_id, []), key=lambda o: (o.repeat, o.rank))

    def output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        return self._memory.outputs[trial_id, repeat, rank]


def merged(probes: list[Probe], scope: Scope) -> list[Planned]:
    """As the plan does it: one trial a content, the larger repeat count, small counts first, fresh processes last."""
    found: dict[Trial, Planned] = {}
    for probe in probes:
        for trial, repeats in probe.plan(scope):
            known = found.get(trial, Planned(trial=trial, repeats=0, probes=()))
            names = known.probes if probe.NAME in known.probes else (*known.probes, probe.NAME)
            found[trial] = Planned(trial=trial, repeats=max(known.repeats, repeats), probes=names)
    return sorted(found.values(), key=lambda p: (p.trial.variant.startswith("fresh"), p.trial.call.count))


def drive(
    backend: type[Any],
    sweep: Sweep,
    probes: list[Probe],
    *,
    rank_n: int = 4,
    options: Mapping[str, Any] | None = None,
    expect: Mapping[str, Any] | None = None,
) -> DrivenView:
    """Plan, run and record. A "fresh process" is a new backend object."""
    options = options or {}
    offer = backend.probe(options)
    scope = Scope(ArmSpec(name="subject", backend="driven", ranks=rank_n, options=options), offer, sweep)
    planned, memory = merged(probes, scope), _Memory()
    fresh = [p for p in planned if p.trial.variant.startswith("fresh")]
    jobs = [Job([p for p in planned if p not in fresh])]
    jobs += [Job(fresh, fresh_repeat=repeat) for repeat in range(3) if fresh]
    for job in jobs:
        world = World(rank_n=rank_n, local_ranks=tuple(range(rank_n)), control=LocalControl())
        subject = backend(world, options)
        Harness(subject, world, offer, replace(job), memory, memory).run()
        subject.close()
    return DrivenView(planned, memory, rank_n, expect or {})


def verdicts(probe: Probe, view: DrivenView) -> dict[str, set[str]]:
    """The verdicts of each kind."""
    found: dict[str, set[str]] = {}
    for finding in probe.analyze(view):
        found.setdefault(finding.kind, set()).add(str(finding.verdict))
    return found


def of_kind(probe: Probe, view: DrivenView, kind: str) -> list[Finding]:
    return [finding for finding in probe.analyze(view) if finding.kind == kind]
