"""plan.json: what one run is to do, arm by arm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from auditor.config import BUILT_IN
from auditor.errors import EvidenceError
from auditor.model import Capabilities, Planned, Trial, Waiver

SCHEMA = "auditor-plan/1"
STATUSES = ("ok", "unavailable", "waived", "failed", "not_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """One arm's part. ``status``: ok where it is to run; ``reason`` says why not. ``describe`` is filled by who starts it."""

    name: str
    backend: str
    rank_n: int
    status: str = "ok"
    reason: str = ""
    describe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    capabilities: Capabilities | None = None
    trials: tuple[Planned, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **{key: getattr(self, key) for key in ("name", "backend", "rank_n", "status", "reason", "path")},
            **{key: dict(getattr(self, key)) for key in ("describe", "options", "env")},
            "capabilities": self.capabilities.to_json() if self.capabilities else {},
            "trials": [_planned_to_json(planned) for planned in self.trials],
            "waivers": [
                {"arm": w.arm, "reason": w.reason, "kind": w.kind, "scope": dict(w.scope)} for w in self.waivers
            ],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> ArmPlan:
        """The arm as written; raises EvidenceError where a trial is not the one that its id names."""
        offer = raw["capabilities"]
        rest = {key: raw[key] for key in ("name", "backend", "rank_n", "status", "reason", "path")}
        return ArmPlan(
            **rest,
            **{key: raw[key] for key in ("describe", "options", "env")},
            capabilities=Capabilities.from_json(offer) if offer else None,
            trials=tuple(_planned_from_json(trial) for trial in raw["trials"]),
            waivers=tuple(Waiver(**waiver) for waiver in raw["waivers"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run is to do.

    ``plan_id``: of the config's content, so that the arms of one config can run apart and be joined; nothing of when, where, or
    from which file. ``config``: where it was read from; ``arguments``: what the command line changed in it.

    ``sweep``: the axes' values under the Trial's field names, so that a finding's scope can be told from the whole axis.
    """

    title: str
    arms: tuple[ArmPlan, ...]
    expect: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    config: str = BUILT_IN
    arguments: tuple[str, ...] = ()
    sweep: Mapping[str, Any] = field(default_factory=dict)
    plan_id: str = ""

    @property
    def content_id(self) -> str:
        """Digest of the trials that this very invocation may run: a changed or torn plan.json shows."""
        keys = ("name", "backend", "rank_n", "options", "env", "path", "trials")
        arms = [{key: value for key, value in arm.to_json().items() if key in keys} for arm in self.arms]
        return short_digest({"title": self.title, "expect": dict(self.expect), "arms": arms})

    def arm(self, name: str) -> ArmPlan:
        """The part of one arm. Raises EvidenceError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise EvidenceError(f"plan.json: no arm {name!r}; it has {', '.join(arm.name for arm in self.arms)}")

    def with_run_id(self, run_id: str) -> Plan:
        return replace(self, run_id=run_id)

    def with_status(self, arm: str, status: str, reason: str = "", describe: Mapping[str, Any] | None = None) -> Plan:
        """How one arm ended, and what its backend said of itself."""
        if status not in STATUSES:
            raise ValueError(f"{status!r} is none of {', '.join(STATUSES)}")
        ended = [
            replace(a, status=status, reason=reason, describe=a.describe if describe is None else describe)
            if a.name == arm
            else a
            for a in self.arms
        ]
        return replace(self, arms=tuple(ended))

    def save(self, run_dir: Path) -> None:
        """Write ``plan.json`` whole or not at all."""
        path = run_dir / "plan.json"
        beside = path.with_name(f".plan.{os.getpid()}.tmp")
        beside.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)

    @staticmethod
    def load(run_dir: Path) -> Plan:
        """Read ``plan.json``. Raises EvidenceError where it is missing, torn, foreign or changed."""
        return Plan.from_json(_raw(run_dir))

    @staticmethod
    def load_part(run_dir: Path, arm: str, trial_ids: Iterable[str]) -> Plan:
        """One arm with these trials alone: what a worker needs, in a tenth of the time of a large plan. Errors as ``load``,
        but for trials that are left out.
        """
        raw, wanted = _raw(run_dir), set(trial_ids)
        try:
            arms = [
                {**one, "trials": [trial for trial in one["trials"] if trial["trial_id"] in wanted]}
                for one in raw.get("arms", ())
                if one["name"] == arm
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise _damaged(error) from error
        return Plan._parsed({**raw, "arms": arms})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "plan_id": self.plan_id,
            "content_id": self.content_id,
            "title": self.title,
            "config": self.config,
            "arguments": list(self.arguments),
            "sweep": dict(self.sweep),
            "expect": dict(self.expect),
            "arms": [arm.to_json() for arm in self.arms],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Plan:
        """The plan as written. Raises EvidenceError where it is none, or was changed after it was written."""
        plan = Plan._parsed(raw)
        if raw.get("content_id") != plan.content_id:
            raise EvidenceError(
                f"plan.json: its content gives {plan.content_id}, not {raw.get('content_id')}; restore a copy"
            )
        return plan

    @staticmethod
    def sealed(raw: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON of a plan whose arms were put together from several plans, with the digest of what it now holds.

        Raises EvidenceError where it is no plan.
        """
        return {**raw, "content_id": Plan._parsed(raw).content_id}

    @staticmethod
    def _parsed(raw: Mapping[str, Any]) -> Plan:
        if raw.get("schema") != SCHEMA:
            raise EvidenceError(
                f"plan.json: schema {raw.get('schema')!r} is not {SCHEMA!r}; was it written by another tool?"
            )
        try:
            return Plan(
                title=raw["title"],
                arms=tuple(ArmPlan.from_json(arm) for arm in raw["arms"]),
                expect=raw["expect"],
                run_id=raw["run_id"],
                config=raw.get("config", BUILT_IN),
                arguments=tuple(raw.get("arguments", ())),
                sweep=raw.get("sweep", {}),
                plan_id=raw["plan_id"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(error) from error


def _raw(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "plan.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror}; name a run directory") from error
    except ValueError as error:
        raise EvidenceError(f"{path}: is not JSON ({error}); restore it from a copy") from error
    return raw if isinstance(raw, dict) else {}


def _damaged(error: Exception) -> EvidenceError:
    return EvidenceError(f"plan.json: is damaged ({type(error).__name__}: {error}); restore it from a copy")


def short_digest(content: Mapping[str, Any]) -> str:
    """First 12 hex digits of SHA-256 of the canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]


def _planned_to_json(planned: Planned) -> dict[str, Any]:
    trial = planned.trial
    rest = {"trial_id": trial.trial_id, "repeats": planned.repeats, "probes": list(planned.probes)}
    return {**trial.to_json(), **rest}


def _planned_from_json(raw: Mapping[str, Any]) -> Planned:
    fields = {key: value for key, value in raw.items() if key not in ("trial_id", "repeats", "probes")}
    trial = Trial.from_json(fields)
    if trial.trial_id != raw["trial_id"]:
        raise EvidenceError(
            f"plan.json: trial {raw['trial_id']} has the content of {trial.trial_id}; restore it from a copy"
        )
    return Planned(trial=trial, repeats=raw["repeats"], probes=tuple(raw["probes"]))
