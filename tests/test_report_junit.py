"""JUnit XML: valid under both schemas that CI systems use, decides as the exit code does, names that stay from run to run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report_runs import NASTY, USUAL, finding, make_run, row

from auditor.analysis import exit_code
from auditor.model import Finding
from auditor.report import junit
from auditor.report.source import read

xmlschema = pytest.importorskip("xmlschema")
OWN = Path(__file__).parent / "schemas" / "junit-used.xsd"
FILES = [str(OWN), *filter(None, os.environ.get("AUDITOR_JUNIT_XSD", "").split(os.pathsep))]
SCHEMAS = [xmlschema.XMLSchema(name) for name in FILES]


def document(run_dir: Path) -> ElementTree.Element:
    """The parsed document, after what must hold of every one."""
    text = junit.text(read(run_dir))
    for schema in SCHEMAS:
        assert [error.reason for error in schema.iter_errors(text)] == []
    root = ElementTree.fromstring(text)
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    names = [(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")]
    assert len(names) == len(set(names))
    return root


def outcomes(root: ElementTree.Element) -> dict[str, str]:
    """``classname name`` -> the tag of its outcome."""
    return {
        f"{case.attrib['classname']} {case.attrib['name']}": next((child.tag for child in case), "passed")
        for case in root.iter("testcase")
    }


def test_each_verdict_has_its_outcome(tmp_path: Path) -> None:
    root = document(make_run(tmp_path))
    cell = "all_reduce sum bfloat16"
    assert outcomes(root) == {
        "auditor the run came to a conclusion": "passed",
        f"nvls.tail foreign_read: {cell}": "failure",
        f"nvls.repeatability not_repeatable: {cell}": "skipped",
        f"nvls.rounding rounding_mode: {cell}": "passed",
        f"nvls.coverage unwritten: {cell}": "passed",
        "nccl the arm runs": "error",
        f"nccl.harness unsupported: {cell}": "skipped",
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib == {"message": "F1: claim about foreign_read.", "type": "foreign_read"}
    for words in (
        "on 2 ranks: claim about foreign_read.",
        "rank 0 repeat 1 index 1025 inputs 0x3f80 0x3c00 observed 0x3f81 expected 0x3f80",
        "What this does not show: `observed` is not right.",
        "Reproduce: auditor run c.toml",
    ):
        assert words in (failure.text or "")
    error = root.find(".//error")
    assert error is not None
    assert error.attrib["message"] == "unavailable: no GPU"


def test_who_recorded_what_stands_in_the_suites(tmp_path: Path) -> None:
    root = document(make_run(tmp_path))
    own, nvls, _nccl = root
    assert (own.attrib["hostname"], own.attrib["timestamp"], nvls.attrib["id"]) == ("node7", "2026-01-02T03:04:05", "1")
    told = {one.attrib["name"]: one.attrib["value"] for one in root.iter("property")}
    assert told["run_id"] == "r1"
    assert told["describe library_version"] == "2.29"
    assert re.fullmatch("[0-9a-f]{64}", told["sha256 findings.json"])
    assert "F3 rounding_mode: " in (nvls.findtext("system-out") or "")
    assert "nccl: not available here: no GPU." in (own.findtext("system-out") or "")


def verdicts_of(findings: list[Finding], status: str, **more: bool) -> int:
    return exit_code(findings, [{"status": "ok"}, {"status": status}], **more)


@pytest.mark.parametrize("status", ["ok", "waived", "failed", "unavailable"])
@pytest.mark.parametrize("findings", [USUAL, USUAL[1:], USUAL[2:], USUAL[3:], USUAL[4:], USUAL[1:2], []])
@pytest.mark.parametrize("how", [{}, {"interrupted": True}, {"machinery_failed": True}])
def test_a_file_fails_if_and_only_if_the_exit_code_is_not_0(
    tmp_path: Path, status: str, findings: list[Finding], how: dict[str, bool]
) -> None:
    code = verdicts_of(findings, status, **how)
    shape: Any = {"nccl_status": status, "trials": [], "ran": [], "run_id": "20260102T030405Z-r1"}
    found = outcomes(document(make_run(tmp_path, findings, exit_code=code, **shape)))
    assert bool({"failure", "error"} & set(found.values())) is (code != 0)


def test_an_exit_code_that_no_finding_explains_is_an_error(tmp_path: Path) -> None:
    found = outcomes(document(make_run(tmp_path, USUAL[3:4], exit_code=1, nccl_status="ok")))
    assert found["auditor the run came to a conclusion"] == "error"


def test_the_same_question_has_the_same_name_in_the_next_run(tmp_path: Path) -> None:
    other = [finding("PASS", "overrun"), finding("FAIL", claim="Other words.", scope={"count": [7], "send_shift": 3})]
    first, second = outcomes(document(make_run(tmp_path / "1"))), outcomes(document(make_run(tmp_path / "2", other)))
    name = "nvls.tail foreign_read: all_reduce sum bfloat16"
    assert first[name] == second[name] == "failure"


def test_findings_of_one_question_are_numbered_and_strange_arms_are_kept(tmp_path: Path) -> None:
    some = [finding("FAIL"), finding("FAIL"), finding("WAIVED", arm="ghost", scope={"probe": "tail"})]
    found = outcomes(document(make_run(tmp_path, some)))
    assert found["nvls.tail foreign_read: all_reduce sum bfloat16 (2)"] == "failure"
    assert found["ghost.tail foreign_read: all_reduce sum bfloat16 probe tail"] == "skipped"


@pytest.mark.parametrize("text", [NASTY, "]]>", "\ud800 lone", "\ufffe\uffff", "a\r\nb\tc", "\x01" * 9, "", " "])
def test_text_that_xml_cannot_hold_does_not_break_it(tmp_path: Path, text: str) -> None:
    odd: dict[str, Any] = {"claim": f"claim {text}", "limits": text, "reproduce": f"auditor run '{text}'"}
    some = [
        finding("FAIL", evidence=(row(observed=text, inputs=(text,)),), scope={"x": text}, **odd),
        finding("WAIVED", arm=f"arm {text}", probe=text, kind=f"kind {text}", **odd),
        finding("INFORMATION", **odd),
    ]
    known = {"system": {"host": text}, "date": text}
    run_dir = make_run(tmp_path, [], title=f"title {text}", environment=known)
    whole = json.loads((run_dir / "findings.json").read_text())
    whole["findings"] = [one.to_json() for one in some]
    whole["run_id"] = "20260102T030405Z-r1"
    (run_dir / "findings.json").write_text(json.dumps(whole))
    root = document(run_dir)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", ElementTree.tostring(root, "unicode"))
    assert len(root.findall(".//failure")) == 1


def test_hundreds_of_findings_stay_a_small_file(tmp_path: Path) -> None:
    rows = tuple(row(index=n, inputs=("0x3f80",) * 64) for n in range(40))
    run_dir = make_run(tmp_path, [finding("FAIL", evidence=rows) for _ in range(600)])
    text = junit.text(read(run_dir))
    assert len(text) < 2_000_000
    assert "... 24 more rows in findings.json" in text
    assert "0x3f80 ... (64 in all) observed" in text
