"""The Markdown summary: the first screen, a table, what was not audited; no text of a subject becomes markup; bounded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report_runs import USUAL, finding, make_run

from auditor.model import Finding
from auditor.report import markdown
from auditor.report.source import read


def document(run_dir: Path) -> str:
    """The text, after what must hold of every one: fences in pairs, tables of equal width."""
    text = markdown.text(read(run_dir))
    lines = text.splitlines()
    assert sum(line.strip().startswith("```") for line in lines) % 2 == 0
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert len(columns) <= 1
    assert text.endswith("\n")
    return text


def test_it_says_the_verdict_what_was_audited_and_what_to_do(tmp_path: Path) -> None:
    text = document(make_run(tmp_path))
    for words in (
        "## FAIL: NVLS on and off\n",
        "At least one fault was found. 1 FAIL, 1 INCONCLUSIVE, 1 INFORMATION, 1 PASS, 1 WAIVED. Exit code 1 (something FAILs).",
        "- **nvls**: foreign_read F1: claim about foreign_read.\n",
        "**Audited:** simulator 2.29 on 2 ranks (nvls); nccl on 8 ranks (nccl: unavailable). On node7, 2026-01-02 03:04 UTC.",
        "1. Run F1 again, to see whether it repeats.\n   ```sh\n   auditor run c.toml\n   ```\n",
        "**Know this first**\n\n- nccl: not available here: no GPU.\n",
        "| nvls | tail | FAIL | 1 FAIL | foreign_read F1: claim about foreign_read. |",
        "**FAIL F1 foreign_read** on nvls: all_reduce sum of bfloat16 on 2 ranks: claim about foreign_read.",
        "**INCONCLUSIVE F2 not_repeatable** on nvls:",
        "**Not audited, and why**\n\n- nccl: The arm nccl is not available here: no GPU.\n",
        "Run `r1` in `",
    ):
        assert words in text
    assert "| nccl |" not in text  # waived alone: it stands in the list


@pytest.mark.parametrize(
    ("findings", "words"),
    [([], "The run has no findings."), (USUAL[4:], "**Not audited, and why**"), (USUAL[3:4], "| PASS | 1 PASS |")],
)
def test_a_run_with_little_to_tell_says_so(tmp_path: Path, findings: list[Finding], words: str) -> None:
    assert words in document(make_run(tmp_path, findings, exit_code=5))


@pytest.mark.parametrize(
    "text",
    [
        "<b>x</b><script>alert(1)</script>",
        "| a | b |\n|---|---|\n# Title\n- item",
        "[link](javascript:x) ![image](y)",
        "`code` ```\n```sh",
        "@everyone &lt; \\",
        "\x1b[2J\x00\ud800\u202e",
    ],
)
def test_text_of_a_subject_is_never_markup(tmp_path: Path, text: str) -> None:
    odd: dict[str, Any] = {"claim": f"claim {text}", "limits": text, "reproduce": f"auditor run '{text}'"}
    some = [
        finding("FAIL", arm=text, kind=text, **odd),
        finding("WAIVED", arm=text, **odd),
        finding("INCONCLUSIVE", **odd),
    ]
    environment = {"system": {"host": text}, "date": text}
    made = document(make_run(tmp_path, some, title=text, environment=environment))
    outside = re.sub(r"(?ms)^ *(`{3,})sh$.*?^ *\1$", "", made)
    for markup in (r"<[a-z/]", r"(?<!\\)\]\(", r"(?<!&#64;)@", r"[\x00-\x08\x1b\u202e\ud800]"):
        assert not re.search(markup, outside)
    assert sum(line.startswith("#") for line in outside.splitlines()) == 1


def test_hundreds_of_findings_stay_within_what_pages_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        finding("FAIL", arm=f"arm-{n}", claim="|word " * 400, reproduce="auditor run " + "x" * 500) for n in range(300)
    ] + [finding("WAIVED", claim=f"Waived: reason {n}, " + "|word " * 200) for n in range(300)]
    text = document(make_run(tmp_path, some))
    assert len(text) < markdown.LIMIT
    for words in ("252 more rows", "280 more findings", "280 more reasons"):
        assert words in text
    for limit, words in ((12_000, "more parts are in the report."), (60_000, "")):
        monkeypatch.setattr(markdown, "LIMIT", limit)
        shorter = document(tmp_path)
        assert words in shorter
        assert len(shorter) < limit


def test_a_command_too_long_for_a_log_is_left_out_whole(tmp_path: Path) -> None:
    text = document(make_run(tmp_path, [USUAL[3], finding("INCONCLUSIVE", reproduce="auditor run " + "x" * 900)]))
    assert text.count("x" * 900) == 1  # what to do next is always whole
