"""The terminal's summary: verdict and exit code, one line an (arm, probe), what could not be looked at; nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from auditor.model import Verdict
from auditor.report.summary import FOUND_LINES, LEAST, PAPER, summary_lines

WHERE = "all_reduce sum of bfloat16 on 4 ranks: "


def row(id: str, verdict: str, arm: str = "ring", probe: str = "tail", kind: str = "foreign_read", **more: Any) -> Any:
    scope = {"collective": "all_reduce", "op": "sum", "format": "bfloat16", **more.pop("scope", {})}
    fixed = {"claim": f"{WHERE}claim of {id}.", "measure": {}, "evidence": [], "limits": "", "reproduce": ""}
    return {"id": id, "arm": arm, "probe": probe, "kind": kind, "verdict": verdict, "scope": scope, **fixed, **more}


def content(*rows: Any, verdict: str = "FAIL", code: int = 1, arms: tuple[str, ...] = ("ring", "tree")) -> Any:
    known = [{"name": name, "backend": "mpi", "rank_n": 4, "status": "ok", "describe": {}} for name in arms]
    head = {"schema": "auditor-findings/1", "run_id": "r1", "verdict": verdict, "exit_code": code}
    return {**head, "arms": known, "findings": list(rows)}


SOME = content(
    row("F1", "FAIL"),
    row("F2", "INFORMATION", probe="placement", kind="shift_dependence"),
    row("F3", "PASS", arm="tree"),
    row("F4", "PASS", arm="ring"),
)


def test_the_first_line_says_the_verdict_the_exit_code_and_the_counts() -> None:
    assert summary_lines(SOME, None)[0] == "FAIL  exit code 1 (something FAILs): 1 FAIL, 1 INFORMATION, 2 PASS; run r1"
    assert summary_lines(content(verdict="WAIVED", code=5), None) == [
        "WAIVED  exit code 5 (nothing conclusive): no findings; run r1"
    ]


def test_there_is_one_line_an_arm_and_probe_in_the_run_s_order() -> None:
    lines = summary_lines(SOME, None)[2:]
    assert [line.split()[:3] for line in lines] == [
        ["ring", "placement", "INFORMATION"],
        ["ring", "tail", "FAIL"],
        ["tree", "tail", "PASS"],
    ]
    assert "1 FAIL, 1 PASS" in lines[1]
    assert lines[1].endswith("foreign_read F1: claim of F1.")
    assert lines[2].endswith("not there: foreign_read")


def test_columns_are_aligned() -> None:
    lines = summary_lines(SOME, None)[1:]
    for words in (("verdict", "INFORMATION", "FAIL", "PASS"), ("what was", "shift_dep", "foreign_read", "not there")):
        assert len({line.index(word) for line, word in zip(lines, words, strict=True)}) == 1


def test_modes_are_named_by_format_and_formats_of_one_mode_together() -> None:
    modes = (("binary32", "ties_to_even"), ("binary16", "ties_to_even"), ("bfloat16", "ties_to_away"))
    rows = [
        row(f"F{i}", "INFORMATION", "ring", "rounding", "rounding_mode", measure={"mode": mode}, scope={"format": name})
        for i, (name, mode) in enumerate(modes, 1)
    ]
    (line,) = summary_lines(content(*rows), None)[2:]
    assert line.endswith("rounding_mode F1: binary32, binary16: ties_to_even; bfloat16: ties_to_away")


def test_one_mode_everywhere_needs_no_format() -> None:
    rows = [
        row(
            f"F{c}{f}", "INFORMATION", "ring", "rounding", "rounding_mode", measure={"mode": "toward_zero"}, scope=scope
        )
        for c in ("all_reduce", "reduce")
        for f in ("bfloat16", "binary16")
        for scope in [{"collective": c, "format": f}]
    ]
    (line,) = summary_lines(content(*rows), None)[2:]
    assert line.endswith("rounding_mode Fall_reducebfloat16: toward_zero")
    (line,) = summary_lines(content(*rows[:3]), None)[2:]
    assert line.endswith("bfloat16 all_reduce, binary16 all_reduce, bfloat16 reduce: toward_zero")


def test_a_mixed_or_undetermined_mode_says_what_is_known() -> None:
    mixed = {"mode": "mixed", "inexact": 1000, "nearest": 695, "toward_zero": 178, "away": 127, "outside": 0}
    (line,) = summary_lines(content(row("F1", "FAIL", kind="rounding_mode", measure=mixed)), None)[2:]
    assert line.endswith("mixed, 69.5 % nearest, 17.8 % toward zero, 12.7 % away from zero")
    open_ = {"mode": "undetermined", "consistent_modes": ["ties_to_even", "ties_to_away"]}
    (line,) = summary_lines(content(row("F1", "INFORMATION", kind="rounding_mode", measure=open_)), None)[2:]
    assert line.endswith("undetermined, ties_to_even or ties_to_away")


def test_an_open_question_about_the_mode_is_told_by_its_claim() -> None:
    rows = [row("F1", "INCONCLUSIVE", kind="rounding_mode", measure={"mode": "undetermined"})]
    assert summary_lines(content(*rows), None)[2].endswith("rounding_mode F1: claim of F1.")


def test_findings_that_are_not_told_are_counted_and_their_kinds_named() -> None:
    rows = [
        row("F1", "FAIL"),
        row("F2", "FAIL"),
        row("F3", "FAIL", kind="overrun"),
        row("F4", "PASS", kind="unwritten"),
    ]
    (line,) = summary_lines(content(*rows), None)[2:]
    assert line.endswith("foreign_read F1 and 1 more (also overrun): claim of F1.")


def test_what_could_not_be_looked_at_comes_last_with_its_reason() -> None:
    waived = row("F3", "WAIVED", "nccl", "harness", "unsupported", claim="The arm nccl is not available here: no GPU.")
    rows = [row("F1", "FAIL"), row("F2", "INCONCLUSIVE", claim=f"{WHERE}too little."), waived, waived]
    lines = summary_lines(content(*rows, arms=("ring", "nccl")), None)
    assert lines[-3:] == [
        "not looked at:",
        "  ring, tail: INCONCLUSIVE: too little.",
        "  nccl, harness: WAIVED (2 findings): The arm nccl is not available here: no GPU.",
    ]
    assert len(lines) == 6  # a group of WAIVED findings alone has no line in the table


def test_an_open_question_that_the_table_says_is_not_said_twice() -> None:
    lines = summary_lines(content(row("F1", "INCONCLUSIVE", claim=f"{WHERE}too little.")), None)
    assert len(lines) == 3
    assert lines[2].endswith("foreign_read F1: too little.")


def test_many_reasons_are_cut_to_a_few_lines_with_their_number() -> None:
    rows = [row(f"F{n}", "WAIVED", claim=f"Waived: reason {n}.") for n in range(40)]
    lines = summary_lines(content(*rows), None)
    assert len(lines) == 1 + 1 + 8
    assert lines[-1] == "  and 33 more; the report lists them"


@pytest.mark.parametrize("width", [1, 40, 60, 80, 100, 132, 200])
def test_lines_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [row(f"F{n}", "FAIL", f"arm-with-a-long-name-{n}", claim=WHERE + "word " * 80) for n in range(3)]
    lines = summary_lines(content(*rows, row("F9", "WAIVED", claim="reason " * 60)), width)
    assert max(len(line) for line in lines) <= max(width, LEAST)
    assert "not looked at:" in lines


def test_no_terminal_no_colour_and_160_columns() -> None:
    lines = summary_lines(content(row("F1", "FAIL", claim=WHERE + "word " * 80)), None)
    assert PAPER - 5 < max(len(line) for line in lines) <= PAPER
    assert "\033" not in "".join(lines)


def test_a_fail_is_told_whole_and_a_pass_in_one_line() -> None:
    told = "word " * 30 + "end"
    for width in (60, 80, 132):
        lines = summary_lines(content(row("F1", "FAIL", claim=WHERE + told), row("F2", "PASS", arm="tree")), width)
        text = " ".join(" ".join(lines).split())
        assert told in text
        assert not any(line.endswith("...") for line in lines)
    flood = summary_lines(content(row("F1", "FAIL", claim=WHERE + "word " * 400)), 80)
    assert len(flood) == 2 + FOUND_LINES[Verdict.FAIL]
    assert flood[-1].endswith(" ...")


def test_one_reason_for_several_arms_is_said_once() -> None:
    rows = [row(f"F{n}", "WAIVED", arm, claim="Waived: no GPU.") for n, arm in enumerate(("ring", "tree"))]
    assert summary_lines(content(*rows), None)[-1] == "  ring, tree, tail: WAIVED: no GPU."


def test_what_must_be_known_and_the_next_commands_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = content(row("F1", "FAIL", reproduce="auditor run c.toml --arm ring " + "--set x=1 " * 20))
    some["arms"][0]["describe"] = {"limits": "One GPU served 4 ranks."}
    lines = summary_lines(some, 60, tmp_path / "r1")
    start = lines.index("know this first:")
    assert lines[start : start + 4] == [
        "know this first:",
        "  ring: One GPU served 4 ranks.",
        "next:",
        "  1. Run F1 again, to see whether it repeats.",
    ]
    assert lines[start + 4] == "     " + ("auditor run c.toml --arm ring " + "--set x=1 " * 20).strip()
    assert lines[-1] == "     auditor compare r1 NEW_RUN"


def test_an_interrupted_run_is_gone_on_with_as_its_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = content(row("F1", "INCONCLUSIVE"), code=130)
    assert summary_lines(some, None, tmp_path)[-1].startswith("     auditor run --resume --out ")
    (tmp_path / "plan.json").write_text('{"config": "c.toml", "arguments": ["--ranks", "4"]}')
    assert summary_lines(some, None, tmp_path)[-1].startswith("     auditor run c.toml --ranks 4 --resume --out ")


def test_colour_marks_verdict_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    coloured, plain = summary_lines(SOME, 120), summary_lines(SOME, None)
    assert [re.sub(r"\033\[[0-9;]*m", "", line) for line in coloured][2:] == plain[2:]
    painted = [re.findall(r"\033\[[0-9;]+m(\w+)\033\[0m", line) for line in coloured]
    assert painted == [["FAIL"], [], ["INFORMATION"], ["FAIL"], ["PASS"]]


@pytest.mark.parametrize(
    ("name", "value", "colour"), [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)]
)
def test_colour_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str, colour: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert ("\033" in "".join(summary_lines(SOME, 120))) is colour


def test_a_subject_s_message_cannot_steer_the_terminal() -> None:
    nasty = row("F1", "FAIL", "a\x1b[2Jb", claim=WHERE + "bad\n\nline \x1b]0;title\x07 \u202eend \x9b1m")
    lines = summary_lines(content(nasty, arms=("a\x1b[2Jb",)), None)
    assert len(lines) == 3
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    assert "bad line" in lines[2]


def test_odd_findings_are_shown_as_far_as_they_go() -> None:
    odd: list[Any] = [
        {},
        {"verdict": "MAYBE", "scope": None, "measure": [1], "claim": None},
        row("F1", "PASS", scope={"format": ["x", "y"]}),
    ]
    lines = summary_lines(content(*odd, verdict="INCONCLUSIVE", code=99), None)
    assert lines[0].startswith("INCONCLUSIVE  exit code 99: 2 INCONCLUSIVE, 1 PASS")
    assert len(lines) == 4


def test_the_summary_loads_neither_jinja2_nor_h5py() -> None:
    program = (
        "import sys; from auditor.report.summary import summary_lines; "
        "summary_lines({'findings': [], 'arms': []}, None); "
        "print(sorted({'jinja2', 'h5py', 'numba', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
