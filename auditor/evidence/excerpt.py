"""The recorded run cut down to what a finding needs: a run directory of its own that verifies and can be analysed again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from auditor import analysis, store
from auditor.config import BUILT_IN
from auditor.environment.variables import SECRET
from auditor.evidence.privacy import Privacy
from auditor.model import Finding, Planned
from auditor.plan import ArmPlan, Plan

CROSSING = frozenset(("paths",))  # probes that put the arms of a run beside each other


@dataclass(frozen=True, slots=True)
class Excerpt:
    """``finding``: as this version derives it from the excerpt; None where it derives none of that kind and verdict there.

    ``words``: which trials it holds. ``alike``: the finding says the same, to the word; a run of another version may not.
    """

    directory: Path
    finding: Finding | None
    words: str
    alike: bool


def cut(reader: store.RunReader, finding: Finding, privacy: Privacy, scratch: Path) -> Excerpt:
    """The smallest of a few natural sets of trials from which the same finding follows, written below ``scratch``."""
    whole = Plan.from_json(reader.plan)
    kept: Excerpt | None = None
    for number, (words, arms) in enumerate(_sets(whole, finding)):
        directory = scratch / f"excerpt{number}"
        directory.mkdir(parents=True)
        _write(reader, without_names(replace(whole, arms=tuple(arms)), privacy), directory, privacy)
        found = _same(finding, analysis.findings_of(_analysed(directory), directory))
        part = Excerpt(directory, found, words, found is not None and found.claim == finding.claim)
        if part.alike:
            return part
        if kept is None or kept.finding is None:
            kept = part
    assert kept is not None  # the last set is the whole run
    return kept


def _sets(plan: Plan, finding: Finding) -> Iterator[tuple[str, list[ArmPlan]]]:
    """From the fewest trials to all: (words, arms with their trials)."""
    mine = [arm for arm in plan.arms if arm.name == finding.arm or finding.probe in CROSSING]
    asked = [_with_trials(arm, _asked(arm, finding)) for arm in mine]
    if finding.probe != "harness" and all(arm.trials for arm in asked):
        yield f"the trials of the probe {finding.probe} in the finding's cell", asked
    cell = [_with_trials(arm, [one for one in arm.trials if _in_cell(one, finding)]) for arm in mine]
    if all(arm.trials for arm in cell):
        yield "all trials of the finding's cell", cell
    yield "all trials of the arm", mine
    yield "the whole run", list(plan.arms)


def _with_trials(arm: ArmPlan, trials: Sequence[Planned]) -> ArmPlan:
    """An arm with some trials. What it waived is said of the whole run, not of this part."""
    return replace(arm, trials=tuple(trials), waivers=())


def _asked(arm: ArmPlan, finding: Finding) -> list[Planned]:
    """Trials of the cell that the finding's probe asked for, as if no other had."""
    rows = {row.trial for row in finding.evidence}
    found = []
    for one in arm.trials:
        if _in_cell(one, finding) and (finding.probe in one.probes or one.trial.trial_id in rows):
            found.append(replace(one, probes=(finding.probe,) if finding.probe in one.probes else one.probes))
    return found


def _in_cell(planned: Planned, finding: Finding) -> bool:
    call = planned.trial.call
    for axis in ("collective", "op", "format"):
        value = finding.scope.get(axis)
        if value is not None and getattr(call, axis) not in (value if isinstance(value, list) else [value]):
            return False
    return True


def without_names(plan: Plan, privacy: Privacy) -> Plan:
    """The plan with its free texts rewritten; a config is named by its last two parts."""

    def arm_of(arm: ArmPlan) -> ArmPlan:
        env = {name: value for name, value in arm.env.items() if not SECRET.search(name)}
        return replace(
            arm,
            reason=privacy.text(arm.reason),
            describe=privacy.json(dict(arm.describe)),
            options=privacy.json(dict(arm.options)),
            env=privacy.json(env),
            waivers=tuple(replace(one, reason=privacy.text(one.reason)) for one in arm.waivers),
        )

    source = plan.config if plan.config == BUILT_IN else privacy.text("/".join(PurePath(plan.config).parts[-2:]))
    return replace(
        plan,
        title=privacy.text(plan.title),
        config=source,
        arguments=tuple(privacy.text(word) for word in plan.arguments),
        arms=tuple(arm_of(arm) for arm in plan.arms),
    )


def _write(reader: store.RunReader, plan: Plan, directory: Path, privacy: Privacy) -> None:
    plan.save(directory)
    wanted: Mapping[str, Collection[str]] = {arm.name: [one.trial.trial_id for one in arm.trials] for arm in plan.arms}
    text = (directory / "plan.json").read_bytes()
    store.extract(reader, wanted, text, directory / "run.h5", privacy.json)


def _analysed(directory: Path) -> dict[str, Any]:
    with store.RunReader(directory) as part:
        content = analysis.analyze(part)
    analysis.write_findings(directory, content)
    return content


def _same(finding: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The finding of the same kind, verdict and call; of several the one with the same claim."""
    axes = ("collective", "op", "format", "family")
    some = [one for one in findings if (one.arm, one.kind, one.verdict) == (finding.arm, finding.kind, finding.verdict)]
    exact = [one for one in some if one.claim == finding.claim]
    return next(
        iter(exact or [one for one in some if all(one.scope.get(a) == finding.scope.get(a) for a in axes)]), None
    )
