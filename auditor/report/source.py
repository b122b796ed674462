"""What JUnit, SARIF and Markdown are made of: findings.json, the plan, and who recorded it when and where. Read once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from auditor.analysis import read_findings
from auditor.model import Verdict
from auditor.report.advice import Step, place, steps
from auditor.report.notices import notices
from auditor.report.surroundings import hosts, sha256
from auditor.report.words import Row, one_line, part, verdict_of
from auditor.store import RunReader

DATE = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)$")
RUN_ID = re.compile(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z")


@dataclass(frozen=True)
class RunFacts:
    """A run as the exports see it. ``sources``: its recording processes; ``problems``: what is torn in its record."""

    run_dir: Path
    content: Mapping[str, Any]
    plan: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]
    problems: Sequence[str]

    @property
    def rows(self) -> Sequence[Row]:
        found: Sequence[Row] = self.content["findings"]
        return found

    @property
    def arms(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.content["arms"]
        return found

    @property
    def exit_code(self) -> int:
        return int(self.content["exit_code"])

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.content)

    @property
    def run_id(self) -> str:
        return one_line(self.content.get("run_id", ""))

    @property
    def title(self) -> str:
        return one_line(self.plan.get("title") or "Audit of collective sums")

    @property
    def environment(self) -> Mapping[str, Any]:
        return part(self.sources[0], "environment") if self.sources else {}

    @cached_property
    def hosts(self) -> list[str]:
        return list(hosts(self.sources))

    @cached_property
    def steps(self) -> list[Step]:
        return steps(self.content, self.rows, self.plan, place(self.run_dir))

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Arm -> why it did not run, where the plan says so."""
        planned = self.plan.get("arms")
        told = [arm for arm in planned if isinstance(arm, Mapping)] if isinstance(planned, list) else []
        return {one_line(arm.get("name", "")): one_line(arm.get("reason") or "") for arm in told}

    @cached_property
    def notices(self) -> list[str]:
        return notices(self.content, self.reasons, self.sources, self.problems)

    @property
    def started(self) -> str:
        """``2026-01-02T03:04:05`` in UTC, as the first process noted it or else as the run's id says; or empty."""
        noted = DATE.match(str(self.environment.get("date") or ""))
        if noted:
            return f"{noted[1]}T{noted[2]}"
        named = RUN_ID.match(self.run_id)
        return "{}-{}-{}T{}:{}:{}".format(*named.groups()) if named else ""

    def digest(self, name: str) -> str:
        """SHA-256 of one of the run's files; empty where it is not there."""
        path = self.run_dir / name
        return sha256(path) if path.is_file() else ""


def read(run_dir: Path) -> RunFacts:
    """Raises EvidenceError where findings.json or the record is missing, torn or of another kind."""
    content = read_findings(run_dir)
    with RunReader(run_dir) as reader:
        return RunFacts(Path(run_dir), content, reader.plan, reader.sources(), tuple(reader.problems))
