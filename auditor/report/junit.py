"""findings.json as JUnit XML: one test suite an arm, one test case a finding, so that a CI system shows and follows them.

FAIL is a failure; INCONCLUSIVE and WAIVED are skipped, with the reason; PASS and INFORMATION pass, and what INFORMATION found
stands in the suite's system-out. What the machinery could not do is an error. A file has a failure or an error if and only if
the exit code is not 0, so that a system which reads the file alone decides as one that reads the exit code.

The form is what the schemas of Apache Ant's JUnitReport (windyroad JUnit.xsd) and of Jenkins (xunit-plugin, junit-10.xsd) both
allow. ``time`` of a test case is 0, because findings share trials; a suite's is not measured either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from auditor.model import Verdict
from auditor.report.advice import code_words
from auditor.report.cards import evidence
from auditor.report.identity import cell, numbered
from auditor.report.kinds import about
from auditor.report.source import RunFacts
from auditor.report.words import Row, bare_claim, clean, listed, one_line, part, verdict_of

EVIDENCE, INPUTS = 16, 8  # rows of a failure, and inputs of a row, that are shown
SKIPPED = (Verdict.INCONCLUSIVE, Verdict.WAIVED)
OWN = "auditor"  # the suite of the run as a whole


def text(run: RunFacts) -> str:
    """The document. Characters that XML cannot hold are replaced by U+FFFD."""
    root = ElementTree.Element("testsuites")
    known = {one_line(arm.get("name", "")) for arm in run.arms}
    others = dict.fromkeys(name for row in run.rows if (name := one_line(row.get("arm", ""))) not in known)
    arms = [*run.arms, *({"name": name} for name in others)]
    for number, suite in enumerate([_run_suite(run), *(_arm_suite(run, arm) for arm in arms)]):
        suite.set("id", str(number))
        root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _run_suite(run: RunFacts) -> ElementTree.Element:
    """One case: whether the run came to a conclusion; an error where its exit code says that it did not."""
    case = _case(OWN, "the run came to a conclusion")
    if run.exit_code not in (0, 1):
        words = f"exit code {run.exit_code} ({code_words(run.exit_code) or 'unknown'})"
        told = "\n".join(f"{step.words}\n{step.command}".strip() for step in run.steps)
        _add(case, "error", words, "inconclusive run", told)
    elif run.exit_code == 1 and not any(verdict_of(row) is Verdict.FAIL for row in run.rows):
        _add(
            case,
            "error",
            "exit code 1, and no finding says why",
            "findings.json",
            "Make it again with auditor analyze.",
        )
    properties = {
        "run_id": run.run_id,
        "plan_id": run.plan.get("plan_id"),
        "title": run.title,
        "verdict": run.verdict,
        "exit_code": run.exit_code,
        "hosts": listed(run.hosts, 16),
        **{f"sha256 {name}": run.digest(name) for name in ("run.h5", "findings.json", "plan.json")},
    }
    return _suite(run, OWN, properties, [case], [*run.notices])


def _arm_suite(run: RunFacts, arm: Mapping[str, Any]) -> ElementTree.Element:
    name = one_line(arm.get("name", ""))
    mine = [row for row in run.rows if one_line(row.get("arm", "")) == name]
    cases = [_finding(row, number) for row, number in numbered(mine)]
    status = str(arm.get("status", ""))
    if status in ("failed", "unavailable"):
        case = _case(name, "the arm runs")
        _add(case, "error", f"{status}: {run.reasons.get(name) or 'no reason is recorded'}", status, "")
        cases.insert(0, case)
    properties = {
        **{key: arm.get(key) for key in ("backend", "rank_n", "status")},
        **{f"describe {one_line(key)}": value for key, value in part(arm, "describe").items()},
    }
    said = [
        f"{row.get('id', '')} {row.get('kind', '')}: {row.get('claim', '')}"
        for row in mine
        if verdict_of(row) is Verdict.INFORMATION
    ]
    return _suite(run, name, properties, cases, said)


def _suite(
    run: RunFacts, name: str, properties: Mapping[str, Any], cases: Sequence[ElementTree.Element], said: Sequence[str]
) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite", name=_token(name), package=OWN, hostname=_token((run.hosts or [""])[0]) or "unknown"
    )
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    told = {"tests": len(cases), "failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
    for key, value in {**told, "time": 0, "timestamp": run.started}.items():
        if value != "":
            suite.set(key, str(value))
    held = ElementTree.SubElement(suite, "properties")
    for key, value in properties.items():
        if value not in (None, ""):
            ElementTree.SubElement(held, "property", name=_token(key), value=one_line(value))
    suite.extend(cases)
    ElementTree.SubElement(suite, "system-out").text = "\n".join(one_line(line) for line in said)
    ElementTree.SubElement(suite, "system-err").text = ""
    return suite


def _finding(row: Row, number: int) -> ElementTree.Element:
    """``number``: which of several findings of one identity this is."""
    kind, where = one_line(row.get("kind", "")) or "finding", cell(row)
    again = f" ({number})" if number > 1 else ""
    case = _case(f"{row.get('arm', '')}.{row.get('probe', '')}", f"{kind}{': ' if where else ''}{where}{again}")
    verdict, name = verdict_of(row), one_line(row.get("id", ""))
    if verdict is Verdict.FAIL:
        _add(case, "failure", f"{name}: {bare_claim(row)}", kind, _details(row))
    elif verdict in SKIPPED:
        _add(case, "skipped", f"{verdict}: {name}: {bare_claim(row)}", str(verdict), "")
    return case


def _details(row: Row) -> str:
    """What a person reads of a failure: claim, what to look at, evidence, limits, command."""
    rows = evidence(row)
    parts = [one_line(row.get("claim", "")), about(str(row.get("kind", ""))).look_at]
    parts += [_evidence_line(one) for one in rows[:EVIDENCE]]
    parts += [f"... {len(rows) - EVIDENCE} more rows in findings.json"] if len(rows) > EVIDENCE else []
    limits, command = one_line(row.get("limits", "")), one_line(row.get("reproduce", ""))
    parts += [f"What this does not show: {limits}"] if limits else []
    parts += [f"Reproduce: {command}"] if command else []
    return "\n".join(part for part in parts if part)


def _evidence_line(one: Mapping[str, Any]) -> str:
    """``trial 2e0c986afa66 rank 0 repeat 0 index 0 inputs 0xadaf 0xcd38 observed 0xcd3e expected 0xcd3d``."""
    words = []
    for key in ("trial", "rank", "repeat", "index", "inputs", "observed", "expected"):
        value = one.get(key)
        if isinstance(value, list):
            more = f" ... ({len(value)} in all)" if len(value) > INPUTS else ""
            value = " ".join(str(item) for item in value[:INPUTS]) + more
        if value not in (None, ""):
            words.append(f"{key} {value}")
    return one_line(" ".join(words))


def _case(classname: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_token(classname), name=_token(name), time="0")


def _add(case: ElementTree.Element, tag: str, message: str, type_: str, body: str) -> None:
    ElementTree.SubElement(case, tag, message=one_line(message), type=_token(type_)).text = clean(body)


def _token(text: Any) -> str:
    """One line, never empty: what schemas call a token."""
    return one_line(text) or "unnamed"
