"""SARIF 2.1.0: valid, kinds and levels as the standard pairs them, places that are there, fingerprints that stay."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from report_runs import NASTY, TRIALS, USUAL, finding, make_run, row

from auditor import store
from auditor.report import identity, sarif
from auditor.report.source import read

jsonschema = pytest.importorskip("jsonschema")
OWN = Path(__file__).parent / "schemas" / "sarif-used.json"
SCHEMAS = [
    json.loads(Path(name).read_text(encoding="utf-8"))
    for name in (str(OWN), os.environ.get("AUDITOR_SARIF_SCHEMA", ""))
    if name
]


def document(run_dir: Path) -> Any:
    """The one run of the parsed document, after what must hold of every one."""
    text = sarif.text(read(run_dir))
    whole = json.loads(text)
    for schema in SCHEMAS:
        checker = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
        assert [f"{list(error.path)}: {error.message}" for error in checker.iter_errors(whole)] == []
    (run,) = whole["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    prints = [one["partialFingerprints"][sarif.FINGERPRINT] for one in run["results"]]
    assert len(prints) == len(set(prints))
    lines = (run_dir / "findings.json").read_text(encoding="utf-8").splitlines()
    for one in run["results"]:
        assert rules[one["ruleIndex"]] == one["ruleId"]
        physical = one["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == run["artifacts"][0]["location"]["uri"]
        assert 1 <= physical["region"]["startLine"] <= len(lines)
    return run


def by_id(run: Any) -> dict[str, Any]:
    return {one["properties"]["id"]: one for one in run["results"]}


def fingerprints(run: Any) -> dict[str, str]:
    return {one["ruleId"]: one["partialFingerprints"][sarif.FINGERPRINT] for one in run["results"]}


def test_each_verdict_has_the_standard_s_kind_and_level(tmp_path: Path) -> None:
    run = document(make_run(tmp_path))
    told = {id_: (one["ruleId"], one["kind"], one["level"]) for id_, one in by_id(run).items()}
    assert told == {
        "F1": ("tail/foreign_read", "fail", "error"),
        "F2": ("repeatability/not_repeatable", "open", "none"),
        "F3": ("rounding/rounding_mode", "informational", "none"),
    }
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert set(rules) == {*(one["ruleId"] for one in run["results"]), "coverage/unwritten"}  # asked, and not there
    assert "bytes outside the send range" in rules["tail/foreign_read"]["help"]["text"]
    assert [
        rules[name]["defaultConfiguration"]["level"] for name in ("tail/foreign_read", "rounding/rounding_mode")
    ] == [
        "error",
        "note",
    ]


def test_a_result_leads_to_its_line_and_says_how_to_come_back(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    run = document(run_dir)
    lines = (run_dir / "findings.json").read_text().splitlines()
    for id_, one in by_id(run).items():
        line = one["locations"][0]["physicalLocation"]["region"]["startLine"]
        assert lines[line - 1].strip() == f'"id": "{id_}",'
    first = by_id(run)["F1"]
    assert first["message"]["text"] == "nvls: all_reduce sum of bfloat16 on 2 ranks: claim about foreign_read."
    assert first["properties"]["reproduce"] == "auditor run c.toml"
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "nvls/all_reduce/sum/bfloat16"


def test_what_the_machinery_could_not_do_is_a_notification(tmp_path: Path) -> None:
    (made,) = document(make_run(tmp_path, exit_code=3))["invocations"]
    assert (made["executionSuccessful"], made["exitCode"], made["machine"]) == (False, 3, "node7")
    assert made["startTimeUtc"] == "2026-01-02T03:04:05Z"
    errors = [(one["level"], one["message"]["text"]) for one in made["toolExecutionNotifications"]]
    assert errors == [("error", "arm nccl unavailable: no GPU")]
    notes = {one["message"]["text"] for one in made["toolConfigurationNotifications"]}
    assert "nccl: The arm nccl is not available here: no GPU." in notes
    (made,) = document(make_run(tmp_path / "2", USUAL[3:4], exit_code=0, nccl_status="ok"))["invocations"]
    assert made["executionSuccessful"] is True
    assert "toolExecutionNotifications" not in made
    (made,) = document(make_run(tmp_path / "3", exit_code=130, nccl_status="ok"))["invocations"]
    assert [one["message"]["text"] for one in made["toolExecutionNotifications"]] == ["The run was interrupted."]


def test_a_damaged_record_is_a_warning(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    (run_dir / "shards" / "nvls" / "rank0001.0.h5").write_bytes(b"torn")
    (made,) = document(run_dir)["invocations"]
    assert [one["level"] for one in made["toolExecutionNotifications"]] == ["error", "warning"]


def test_artifacts_have_the_digests_of_the_files(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    store.join(run_dir)
    names = [one["location"]["uri"] for one in document(run_dir)["artifacts"]]
    assert names == ["findings.json", "run.h5", "plan.json"]


def test_the_same_finding_has_the_same_fingerprint_in_the_next_run(tmp_path: Path) -> None:
    first = fingerprints(document(make_run(tmp_path / "1")))
    moved = {"count": [7], "send_shift": 3, "recv_shift": 3, "seed": 9, "tail": ["random:1"]}
    later = [
        finding("FAIL", "overrun", probe="coverage"),
        finding(
            "FAIL", claim="all_reduce sum of bfloat16 on 2 ranks: in 7 of 9.", scope=moved, evidence=(row(TRIALS[1]),)
        ),
    ]
    second = fingerprints(document(make_run(tmp_path / "2", later, run_id="r2")))
    assert first["tail/foreign_read"] == second["tail/foreign_read"]
    assert second["coverage/overrun"] not in first.values()


def test_arms_calls_and_repeats_of_one_question_have_fingerprints_of_their_own() -> None:
    base = finding("FAIL").to_json()
    others = [
        {**base, "arm": "other"},
        {**base, "probe": "other"},
        {**base, "kind": "other"},
        *({**base, "scope": {**base["scope"], **change}} for change in ({"format": "binary16"}, {"probe": "x"})),
    ]
    prints = [identity.fingerprint(one) for one in (base, *others)] + [identity.fingerprint(base, 2)]
    assert len(set(prints)) == len(prints)
    assert identity.fingerprint({**base, "verdict": "INFORMATION", "id": "F99"}) == prints[0]
    assert [number for _, number in identity.numbered([base, others[0], base])] == [1, 1, 2]
    assert identity.fingerprint(base) == "446bccc398794d4ff6b7be792e3199a7"  # on every machine, in every later version


@pytest.mark.parametrize("text", [NASTY, "\ud800", "{0} {{1}} }{", "see [it](1) \\[x]", "a\r\nb", "", " "])
def test_odd_text_stays_valid_and_makes_no_placeholder_or_link(tmp_path: Path, text: str) -> None:
    odd: dict[str, Any] = {"claim": f"claim {text}", "limits": text, "reproduce": text}
    some = [
        finding("FAIL", scope={"x": text}, **odd),
        finding("INCONCLUSIVE", arm=text, probe=text, kind=text, **odd),
        finding("WAIVED", **odd),
    ]
    environment = {"system": {"host": text}, "date": text, "variables": {f"NCCL_{text}": text}}
    run_dir = make_run(tmp_path, [], title=text or "x", environment=environment)
    whole = json.loads((run_dir / "findings.json").read_text())
    whole["findings"] = [{**one.to_json(), "id": f"F{n} {text}"} for n, one in enumerate(some, 1)]
    (run_dir / "findings.json").write_text(json.dumps(whole, indent=1))
    run = document(run_dir)
    assert len(run["results"]) == 2
    message = run["results"][0]["message"]["text"]
    assert not re.search(r"(?<!\\)\[[^\]]*\]\(", message)
    assert not re.search(r"(?<!\{)\{(?:\{\{)*\d", message.replace("{{", ""))


def test_hundreds_of_findings_stay_a_small_file(tmp_path: Path) -> None:
    run = document(make_run(tmp_path, [finding("FAIL") for _ in range(600)] + [finding("PASS") for _ in range(600)]))
    assert len(run["results"]) == 600
    assert len(json.dumps(run)) < 1_500_000
