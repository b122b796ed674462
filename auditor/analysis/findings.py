"""All findings of a recorded run, numbered, with the run's verdict and exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from auditor import probes
from auditor.analysis import recorded, reproduce
from auditor.analysis.files import SCHEMA, plain
from auditor.errors import EvidenceError
from auditor.model import Finding, Verdict

CONCLUSIVE = (Verdict.FAIL, Verdict.PASS, Verdict.INFORMATION)


class RecordedRun(Protocol):
    """What is read of a run: ``store.RunReader`` has it."""

    @property
    def plan(self) -> Mapping[str, Any]: ...
    @property
    def run_id(self) -> str: ...
    @property
    def arm_names(self) -> Sequence[str]: ...
    def arm(self, name: str) -> recorded.RecordedArm: ...


def analyze(
    reader: RecordedRun,
    *,
    interrupted: bool = False,
    machinery_failed: bool = False,
    known: Mapping[str, probes.Probe] | None = None,
) -> dict[str, Any]:
    """The content of findings.json. ``known``: the probes by name (this version's, where left out).

    A probe that fails leaves an INCONCLUSIVE finding and counts as failed machinery; the others still run.
    """
    asked = {name for arm in reader.arm_names for planned in reader.arm(arm).planned for name in planned.probes}
    chosen = {name: probes.get(name) for name in probes.PROBES if name in asked} if known is None else known
    found: list[Finding] = []
    broken = False
    for name in reader.arm_names:
        view = reader.arm(name)
        mine, failed = _arm(view, chosen)
        broken |= failed
        found += [
            replace(one, reproduce=reproduce.command(reader.plan, one, view.planned), limits=_limits(view, one))
            for one in mine
        ]
    between, failed = _between(reader, chosen)
    found, broken = found + between, broken | failed
    ordered = _numbered(found, list(reader.arm_names), list(chosen))
    arms = [_arm_entry(reader.arm(name)) for name in reader.arm_names]
    content = {
        "schema": SCHEMA,
        "run_id": reader.run_id,
        "verdict": str(Verdict.worst([one.verdict for one in ordered])),
        "exit_code": exit_code(ordered, arms, interrupted=interrupted, machinery_failed=machinery_failed or broken),
        "arms": arms,
        "findings": [one.to_json() for one in ordered],
    }
    result: dict[str, Any] = plain(content)
    return result


def _arm(view: recorded.RecordedArm, chosen: Mapping[str, probes.Probe]) -> tuple[list[Finding], bool]:
    """The findings of one arm, and whether a probe failed."""
    found = list(recorded.findings(view))
    asked = {name for planned in view.planned for name in planned.probes}
    failed = False
    for name, probe in chosen.items():
        if name not in asked:
            continue
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are data here, not accidents
                for one in probe.analyze(view):
                    found.append(one)  # what came before an error is kept
        except Exception as error:  # another probe's findings stay good
            found.append(_failed(view, name, probe.KINDS[0], error))
            failed = True
    unknown = sorted(asked - set(chosen))
    found += [_unknown(view, name) for name in unknown]
    return found, failed


def _limits(view: recorded.RecordedArm, one: Finding) -> str:
    """The finding's own limits, and the arm's: what its subject, as it ran, cannot show (``limits`` of its description)."""
    of_arm = str((view.plan.get("describe") or {}).get("limits", ""))
    return " ".join(text for text in (one.limits, of_arm) if text)


def _between(reader: RecordedRun, chosen: Mapping[str, probes.Probe]) -> tuple[list[Finding], bool]:
    """The findings about several arms, and whether a probe failed."""
    views = {name: reader.arm(name) for name in reader.arm_names}
    found: list[Finding] = []
    failed = False
    for name, probe in chosen.items():
        verb = probes.across(probe)
        if verb is None:
            continue
        try:
            with np.errstate(all="ignore"):
                for one in verb.analyze_run(list(views.values())):
                    view = views[one.arm]
                    words = reproduce.command(reader.plan, one, view.planned, whole_run=True)
                    found.append(replace(one, reproduce=words, limits=_limits(view, one)))
        except Exception as error:
            found.append(_failed(next(iter(views.values())), name, probe.KINDS[0], error))
            failed = True
    return found, failed


def _failed(view: recorded.RecordedArm, name: str, kind: str, error: Exception) -> Finding:
    words = str(error) if isinstance(error, EvidenceError) else f"{type(error).__name__}: {error}"
    claim = f"Nothing more can be said about {name}: its analysis failed with {words}"
    return Finding(arm=view.arm, probe=name, kind=kind, verdict=Verdict.INCONCLUSIVE, claim=claim)


def _unknown(view: recorded.RecordedArm, name: str) -> Finding:
    claim = f"The run has trials for the probe {name}, which is not part of this version."
    return Finding(arm=view.arm, probe=recorded.PROBE, kind="unsupported", verdict=Verdict.WAIVED, claim=claim)


def _numbered(found: Iterable[Finding], arms: list[str], order: list[str]) -> list[Finding]:
    """F1, F2, ...: worst first, then by arm, probe and kind as the plan and the contract list them."""
    verdicts = list(Verdict)

    def key(one: Finding) -> tuple[int, int, int, str]:
        probe = order.index(one.probe) if one.probe in order else -1
        return verdicts.index(one.verdict), arms.index(one.arm), probe, one.kind

    return [replace(one, id=f"F{number}") for number, one in enumerate(sorted(found, key=key), 1)]


def _arm_entry(view: recorded.RecordedArm) -> dict[str, Any]:
    status = "waived" if view.status == "not_run" else view.status
    described = {"name": view.arm, "backend": view.backend, "rank_n": view.rank_n, "status": status}
    return {**described, "describe": dict(view.plan.get("describe") or {})}


def exit_code(
    findings: Sequence[Finding],
    arms: Sequence[Mapping[str, Any]],
    *,
    interrupted: bool = False,
    machinery_failed: bool = False,
) -> int:
    """DESIGN §7: the first that applies of 130 interrupted, 1 a FAIL, 3 failed machinery or an absent backend, 5, 0.

    (2, usage or config, is decided before there is a run.) ``arms``: rows with a ``status``.
    """
    verdicts = [one.verdict for one in findings]
    if interrupted:
        return 130
    if Verdict.FAIL in verdicts:
        return 1
    if machinery_failed or any(arm["status"] in ("unavailable", "failed") for arm in arms):
        return 3
    return 0 if any(verdict in CONCLUSIVE for verdict in verdicts) else 5
