"""findings.json as SARIF 2.1.0 (OASIS), for code-scanning pages and viewers.

A result's ``kind`` and ``level`` follow the standard's §3.27.9 and §3.27.10, by which only a ``fail`` may have a level: FAIL is
``fail`` with level ``error``, INCONCLUSIVE ``open`` and INFORMATION ``informational``, both with level ``none``. PASS findings
are rules without a result, because code-scanning pages show every result as an alert; WAIVED ones, and arms that did not run,
are notifications of the invocation. ``ruleId`` is ``probe/kind``. Every result has a place: its line in findings.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from auditor import __version__
from auditor.model import Verdict
from auditor.probes.common import FAIL_KINDS
from auditor.report.advice import code_words
from auditor.report.identity import cell, fingerprint, numbered
from auditor.report.kinds import about
from auditor.report.source import RunFacts
from auditor.report.words import Row, bare_claim, clean, one_line, part, verdict_of

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "RUN"  # the base of all locations: the run directory, wherever it lies
FINGERPRINT = "auditorFinding/v1"
KINDS = {
    Verdict.FAIL: ("fail", "error"),
    Verdict.INCONCLUSIVE: ("open", "none"),
    Verdict.INFORMATION: ("informational", "none"),
}
_LINE = re.compile(r'^   "id": ("(?:[^"\\]|\\.)*")', re.MULTILINE)  # as write_findings indents it


def text(run: RunFacts) -> str:
    """The document, with a last line feed."""
    rules = _rules(run.rows)
    places = _places(run)
    results = [
        _result(row, number, list(rules), places) for row, number in numbered(run.rows) if verdict_of(row) in KINDS
    ]
    driver = {"name": "auditor", "version": __version__, "rules": list(rules.values())}
    one = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"auditor/{_slug(run.title)}/{run.run_id}"},
        "invocations": [_invocation(run)],
        "originalUriBaseIds": {ROOT: {"description": {"text": "The run directory that the report was made from."}}},
        "artifacts": _artifacts(run),
        "results": results,
        "properties": {
            "verdict": str(run.verdict),
            "title": run.title,
            "planId": one_line(run.plan.get("plan_id") or ""),
        },
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [one]}, indent=1, ensure_ascii=False) + "\n"


def rule_id(row: Row) -> str:
    """``probe/kind``; a slash within either would make a third level of it."""
    probe, kind = (one_line(row.get(key, "")).replace("/", "-") or "unknown" for key in ("probe", "kind"))
    return f"{probe}/{kind}"


def _rules(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Every question that the run asked, by its id, those with an answer or without."""
    rules: dict[str, dict[str, Any]] = {}
    for row in rows:
        if rule_id(row) not in rules and verdict_of(row) is not Verdict.WAIVED:
            rules[rule_id(row)] = _rule(rule_id(row), one_line(row.get("kind", "")))
    return rules


def _rule(id_: str, kind: str) -> dict[str, Any]:
    known = about(kind)
    whole = f"{known.looks_for} {known.look_at}".strip()
    return {
        "id": id_,
        "name": "".join(word.capitalize() for word in re.findall("[A-Za-z0-9]+", kind)) or "Unknown",
        "shortDescription": _message(known.looks_for),
        "fullDescription": _message(whole),
        "help": _message(whole),
        "defaultConfiguration": {"level": "error" if kind in FAIL_KINDS else "note"},
        "properties": {"tags": ["collective", id_.partition("/")[0]]},
    }


def _result(row: Row, number: int, rules: Sequence[str], places: Mapping[str, int]) -> dict[str, Any]:
    kind, level = KINDS[verdict_of(row)]
    arm, id_ = one_line(row.get("arm", "")) or "unknown", one_line(row.get("id", ""))
    physical = {
        "artifactLocation": {"uri": "findings.json", "uriBaseId": ROOT, "index": 0},
        "region": {"startLine": places.get(id_, 1)},
    }
    logical = {"name": arm, "fullyQualifiedName": "/".join([arm, *cell(row).split()]), "kind": "arm"}
    told = {"id": id_, "verdict": str(verdict_of(row)), "cell": cell(row)}
    told |= {key: one_line(row.get(key) or "") for key in ("limits", "reproduce")}
    return {
        "ruleId": rule_id(row),
        "ruleIndex": rules.index(rule_id(row)),
        "kind": kind,
        "level": level,
        "message": _message(f"{arm}: {one_line(row.get('claim') or 'a finding without a claim')}"),
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {FINGERPRINT: fingerprint(row, number)},
        "properties": {key: value for key, value in told.items() if value},
    }


def _places(run: RunFacts) -> dict[str, int]:
    """Finding id -> its line in findings.json; of a file that was written by others, as far as it looks alike."""
    written = (run.run_dir / "findings.json").read_text(encoding="utf-8")
    found: dict[str, int] = {}
    for match in _LINE.finditer(written):
        found.setdefault(one_line(json.loads(match[1])), written.count("\n", 0, match.start()) + 1)
    return found


def _artifacts(run: RunFacts) -> list[dict[str, Any]]:
    """findings.json first: results point at it by its index."""
    made = []
    for name in ("findings.json", "run.h5", "plan.json"):
        if digest := run.digest(name):
            made.append({"location": {"uri": name, "uriBaseId": ROOT}, "hashes": {"sha-256": digest}})
    return made


def _invocation(run: RunFacts) -> dict[str, Any]:
    """How the run ended; what it could not do or ask stands in its notifications."""
    variables = {one_line(k): one_line(v) for k, v in part(run.environment, "variables").items()}
    told = {
        "executionSuccessful": run.exit_code in (0, 1, 5),
        "exitCode": run.exit_code,
        "exitCodeDescription": code_words(run.exit_code),
        "startTimeUtc": f"{run.started}Z" if run.started else "",
        "machine": run.hosts[0] if run.hosts else "",
        "environmentVariables": variables,
        "toolExecutionNotifications": _execution(run),
        "toolConfigurationNotifications": _configuration(run),
    }
    return {key: value for key, value in told.items() if value not in ("", [], {})}


def _execution(run: RunFacts) -> list[dict[str, Any]]:
    """What the machinery could not do, and trouble with the record."""
    failed = [arm for arm in run.arms if arm.get("status") in ("failed", "unavailable")]
    names = [(one_line(arm.get("name", "")), one_line(arm.get("status", ""))) for arm in failed]
    told = [_notification("error", f"arm {name} {status}: {run.reasons.get(name, '')}") for name, status in names]
    if run.exit_code == 130:
        told.append(_notification("error", "The run was interrupted."))
    return told + [_notification("warning", problem) for problem in run.problems]


def _configuration(run: RunFacts) -> list[dict[str, Any]]:
    """What was waived, once each, and what must be known before a verdict is believed."""
    waived = [f"{row.get('arm', '')}: {bare_claim(row)}" for row in run.rows if verdict_of(row) is Verdict.WAIVED]
    return [_notification("note", words) for words in dict.fromkeys([*waived, *run.notices])]


def _notification(level: str, words: str) -> dict[str, Any]:
    return {"level": level, "message": _message(words)}


def _message(words: str) -> dict[str, str]:
    """A message's text as the standard wants it: braces doubled (§3.11.5), and brackets escaped where they could make a link
    (§3.11.6).
    """
    told = clean(words).replace("{", "{{").replace("}", "}}")
    return {"text": re.sub(r"([\\\[\]])", r"\\\1", told) if "](" in told else told}


def _slug(title: str) -> str:
    """Lower-case words joined by hyphens: what may stand in an id of several parts."""
    return "-".join(re.findall("[a-z0-9]+", title.lower()))[:60].strip("-") or "run"
