"""report.html: one offline, well-formed page that says what findings.json and the record say, however odd they are."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_runs import NASTY, TRIALS, checked, finding, make_run, row

from auditor import report, store
from auditor.errors import EvidenceError
from auditor.report import page


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path: Path) -> None:
    found, text = checked(make_run(tmp_path))
    assert ("html", "lang", "en") in found.attributes
    assert text.count("<table") == text.count("<caption")
    scopes = [value for tag, name, value in found.attributes if tag == "th" and name == "scope"]
    assert len(scopes) == found.tags["th"]
    assert set(scopes) == {"col", "row"}
    assert "prefers-color-scheme: dark" in text


def test_the_first_screen_says_what_was_audited_the_verdict_and_what_to_do(tmp_path: Path) -> None:
    words = checked(make_run(tmp_path))[0].words
    banner, arms = words[: words.index("What was audited")], words[: words.index("At a glance The worst")]
    for expected in (
        "NVLS on and off",
        "FAIL At least one fault was found. nvls : foreign_read F1: claim about foreign_read.",
        "Audited: simulator 2.29 on 2 ranks (nvls); nccl on 8 ranks (nccl: unavailable). On node7, 2026-01-02 03:04 UTC.",
        "1 FAIL, 1 INCONCLUSIVE, 1 INFORMATION, 1 PASS, 1 WAIVED. Exit code 1 (something FAILs).",
        "What to do next Run F1 again, to see whether it repeats. auditor run c.toml Make the bundle",
        "Know this first nccl: not available here: no GPU.",
    ):
        assert expected in banner
    for expected in ("library version 2.29", "gpus B300", "NCCL_NVLS_ENABLE=1", "unavailable: no GPU"):
        assert expected.replace(" :", ":") in arms.replace(" :", ":")


def test_findings_stand_worst_first_with_evidence_limits_and_command(tmp_path: Path) -> None:
    found, text = checked(make_run(tmp_path))
    places = [
        text.index(f'id="{name}"')
        for name in ("F1", "F2", "F3", "figures", "F4", "absent", "F5", "environment", "digests")
    ]
    assert places == sorted(places)
    words = found.words
    assert "claim about foreign_read." in words
    assert "Evidence: 1 of 1,234" in words
    assert "0x3f80 = 1 0x3c00 = 0.0078125 0x3f81 = 1.0078125 0x3f80 = 1 +1" in words
    assert "count 1,026, shift 0" in words
    assert "<code>observed</code> is not right." in text
    assert '<pre tabindex="0" role="group" aria-label="Command line"><code>auditor run c.toml</code></pre>' in text
    assert "The arm nccl is not available here: no GPU." in words
    assert "Probes that no trial of this run was planned for: coverage, rounding," in words


def test_digests_tie_the_page_to_its_files(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    words = checked(run_dir)[0].words
    assert "SHA-256 of run.h5 there is no such file" in words
    assert "shards shards/nvls/rank0000.0.h5" in words
    store.join(run_dir)
    words = checked(run_dir)[0].words
    for name in ("run.h5", "findings.json", "plan.json"):
        assert f"SHA-256 of {name} {hashlib.sha256((run_dir / name).read_bytes()).hexdigest()}" in words
    assert f"plan {json.loads((run_dir / 'plan.json').read_text())['plan_id']}" in words


def test_the_page_is_the_same_each_time_and_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path)
    first = report.write(run_dir).read_bytes()
    assert report.write(run_dir).read_bytes() == first
    monkeypatch.setattr(page, "render", lambda context: "\ud800")  # cannot be encoded
    with pytest.raises(UnicodeEncodeError):
        report.write(run_dir)
    assert (run_dir / "report.html").read_bytes() == first


def test_names_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    odd = finding(
        "FAIL",
        claim=f"claim {NASTY}",
        limits=f"`{NASTY}`",
        reproduce=f"auditor run '{NASTY}'",
        measure={f"key {NASTY}": NASTY, "by_name": {NASTY: {NASTY: NASTY}}, "list": [NASTY]},
        evidence=(row(observed=NASTY, expected=NASTY, inputs=(NASTY,)),),
        scope={"family": NASTY, NASTY: NASTY},
    )
    waived = finding("WAIVED", "unsupported", claim=f"Waived: {NASTY}.")
    known = {"system": {"host": NASTY, "os": NASTY}, "variables": {f"NCCL_{NASTY}": NASTY}, "packages": {NASTY: NASTY}}
    run_dir = make_run(tmp_path, [odd, finding("PASS", claim=NASTY), waived], title=NASTY, environment=known)
    found, text = checked(run_dir)
    assert "alert(1)" in found.words
    assert not set(text) & {"\x00", "\x1b"}


def test_a_rounding_bar_prints_its_numbers(tmp_path: Path) -> None:
    found, text = checked(make_run(tmp_path))
    words = found.words
    for expected in ("nearest 524,286 (69.5 %)", "toward zero 134,415 (17.8 %)", "away from zero 95,727 (12.7 %)"):
        assert expected in words
    assert "inexact 754,428 of 1,048,576, ties 157,869" in words
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+%" y="0" width="([\d.]+)%"', text)]
    assert sum(widths) == pytest.approx(100, abs=0.01)
    assert widths[0] == pytest.approx(100 * 524286 / 754428, abs=0.01)


def test_a_run_without_findings_or_data_says_so(tmp_path: Path) -> None:
    words = checked(make_run(tmp_path, [], trials=[], ran=[], exit_code=5))[0].words
    for expected in (
        *(
            "The run has no findings.",
            "Nothing was planned, so there is no grid.",
            "Nothing passed.",
            "Nothing was waived.",
        ),
        *("No finding of this run counts rounding classes", "No finding of this run has changed elements"),
        *("Nothing was recorded.", "No variable that steers a library was set."),
    ):
        assert expected in words


def test_odd_shapes_do_not_stop_the_page(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, environment={"system": None, "cpu": [], "gpus": {"models": None}, "variables": 3})
    content = json.loads((run_dir / "findings.json").read_text())
    odd: list[Any] = [
        {},
        {
            "id": "F1",
            "verdict": "MAYBE",
            "measure": [1],
            "scope": "all",
            "evidence": [None, {}, {"trial": 3, "rank": "x", "index": -1}],
        },
        {
            "id": "F1",
            "verdict": "FAIL",
            "arm": None,
            "kind": "rounding_mode",
            "measure": {"inexact": None, "nearest": "many"},
        },
        {
            "verdict": "FAIL",
            "measure": {
                "by_point": {"nonsense": 1, "count=1 shift=0": None},
                "x": {},
                "y": [],
                "z": [{"a": 1}, 2],
                "w": {"k": [1, [2, 3]]},
            },
        },
        {
            "verdict": "FAIL",
            "scope": {"count": None, "collective": ["all_reduce"], "send_shift": "x"},
            "evidence": [{"trial": TRIALS[0].trial_id}],
        },
    ]
    content["findings"] += odd
    content["arms"] += [{}, {"name": "ghost", "describe": None}]
    (run_dir / "findings.json").write_text(json.dumps(content))
    assert "ghost" in checked(run_dir)[0].words


def test_hundreds_of_findings_stay_readable_and_are_counted(tmp_path: Path) -> None:
    rows = tuple(row(index=n) for n in range(16))
    many = [
        finding(
            "FAIL", evidence=rows, measure={"evidence_total": 10**6, "by_part": {str(n): {"a": n} for n in range(99)}}
        )
        for _ in range(300)
    ]
    many += [finding("PASS", "unwritten") for _ in range(900)] + [
        finding("WAIVED", "unsupported", claim=f"Waived: {n}.") for n in range(700)
    ]
    found, text = checked(make_run(tmp_path, many))
    assert len(text) < 1_500_000
    assert "What is wrong: 300 FAIL" in found.words
    assert "220 more, one line each" in found.words
    assert "by part: the first 16 of 99" in found.words
    assert "Looked for and not there: 900 PASS" in found.words
    assert "So are the last 300, which are not listed here." in found.words
    assert "100 more reasons are in findings.json." in found.words


def test_findings_whose_ids_would_clash_are_numbered_anew() -> None:
    rows = [{"id": "F1"}, {"id": "F1"}, {}]
    assert [one["id"] for one in page.identified(rows)] == ["N1", "N2", "N3"]
    assert page.identified([{"id": "F2"}, {"id": "F1"}]) == [{"id": "F2"}, {"id": "F1"}]


def test_a_directory_without_findings_or_record_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"findings\.json: cannot be read: .*; make it with: auditor analyze"):
        report.write(tmp_path)
    run_dir = make_run(tmp_path / "run", ran=[])
    (run_dir / "plan.json").unlink()
    with pytest.raises(EvidenceError) as error:
        report.write(run_dir)
    assert "\n" not in str(error.value)


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    (run_dir / "report.html").mkdir()
    with pytest.raises(EvidenceError, match=r"report\.html: cannot be written: "):
        report.write(run_dir)
    assert not list(run_dir.glob(".report*"))


def test_trouble_with_the_record_is_on_the_page(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    (run_dir / "shards" / "nvls" / "rank0001.0.h5").write_bytes(b"torn")
    assert "Trouble with the record" in checked(run_dir)[0].words


def test_importing_the_report_loads_no_template_engine() -> None:
    program = "import sys, auditor.report, auditor.report.summary; print(sorted({'jinja2', 'h5py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_template_variable_is_an_error() -> None:
    with pytest.raises(Exception, match="undefined"):
        page.render(SimpleNamespace().__dict__)


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(mode: str) -> None:
    text = (files("auditor.report") / "templates" / "report.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", text, re.S)
    ]
    colours = {**blocks[0], **(blocks[1] if mode == "dark" else {})}
    pairs = [(ink, back) for ink in ("ink", "soft", "link") for back in ("page", "card", "faint")]
    pairs += [(name, f"{name}-bg") for name in ("fail", "inconclusive", "information", "pass", "waived")]
    pairs += [("bar-ink", name) for name in ("nearest", "zero", "away", "outside")]
    assert {
        pair: round(contrast(*(colours[name] for name in pair)), 1)
        for pair in pairs
        if contrast(*(colours[n] for n in pair)) < 4.5
    } == {}
