"""What a person sees of a comparison: the terminal, Markdown, one page, JSON, and the command with its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import ENVIRONMENT, Arm, call, finding, make_run, make_trial, offline, one_up, planned

from auditor import compare
from auditor.compare.records import Change, MeasureChange
from auditor.report import compare_page, compare_rows, compare_text, tables

NASTY = "<b>|&\"'`*</b>\x1b[2J\n# title"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` and ``b`` differ in bits, findings and surroundings; ``c`` is as ``a``; ``d`` has other ranks; ``e`` is torn."""
    folder = tmp_path_factory.mktemp("runs")
    trials = planned(*(make_trial(count) for count in (1, 7, 40)))
    scope = {"format": "bfloat16"}
    before = [
        finding("shift_dependence", "PASS", scope=scope, measure={"share": 0.0, "share_bounds_95": [0.0, 0.001]}),
        finding("unwritten", "PASS", probe="placement", claim="All written."),
        finding("path_split", "INFORMATION", measure={"mode": "x"}),
    ]
    after = [
        finding("shift_dependence", "INFORMATION", scope=scope, measure={"share": 0.2, "share_bounds_95": [0.1, 0.3]}),
        finding("unwritten", "FAIL", probe="placement", claim=f"Not written {NASTY}"),
        finding("path_split", "INFORMATION", measure={"mode": NASTY}),
    ]
    odd = {**ENVIRONMENT, "variables": {"NCCL_ALGO": NASTY, "NCCL_DEBUG": "x" * 500}}
    make_run(folder / "a", Arm(planned=trials), findings=before)
    make_run(folder / "b", Arm(planned=trials, output=one_up(3)), findings=after, environment=odd)
    make_run(folder / "c", Arm(planned=trials), findings=before)
    make_run(folder / "d", Arm(planned=planned(make_trial(7, rank_n=4)), rank_n=4))
    (folder / "e").mkdir()
    (folder / "e" / "run.h5").write_bytes(b"no HDF5")
    return folder


@pytest.fixture
def comparison(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(runs)
    return compare.compare(["a", "b"], policy="worse")


def text_of(comparison: Any, width: int | None = None) -> str:
    console = tables.console(width)
    with console.capture() as captured:
        compare_text.show(comparison, console)
    return captured.get()


def test_the_terminal_says_causes_bits_and_findings_in_that_order(comparison: Any) -> None:
    text = text_of(comparison)
    parts = ["Something is worse: 2 of 3 trials give other bits, 3 findings changed, 2 for the worse. exit code 1"]
    parts += [
        "a:ring and b:ring",
        "What differs around them",
        "NCCL_ALGO",
        "The same trials, bit by bit",
        "2 of 48 (4.2 %)",
    ]
    parts += ["indices 3", "First elements that differ", "Findings that changed", "worse: verdict", "PASS F2"]
    at = [text.find(part.replace("indices 3", "index 3")) for part in parts]
    assert at == sorted(at)
    assert at[0] == 0
    assert "share: 0 (0 to 0.001) → 0.2 (0.1 to 0.3)" in " ".join(text.split())
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_keeps_to_its_width(comparison: Any, width: int) -> None:
    lines = text_of(comparison, width).splitlines()
    assert "bfloat16" in "".join(lines)
    plain = [line for line in lines if "\x1b" not in line]
    assert max(map(len, plain)) <= width


def test_colour_is_off_where_it_is_not_wanted(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31mSomething is worse" in text_of(comparison, 100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_of(comparison, 100)


def test_markdown_keeps_its_tables_whatever_the_record_holds(comparison: Any) -> None:
    text = compare_text.markdown(comparison)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    columns = [line.replace("\\|", "").count("|") for line in rows]
    assert set(columns) == {5, 7, 10}
    assert "\x1b" not in text
    assert "<b>" not in text
    assert "\n# title" not in text
    assert "**Something is worse" in text
    assert "Runs: a = a, plan " in text


def test_the_page_is_whole_offline_and_escaped(comparison: Any) -> None:
    html = compare_page.page(comparison)
    page = offline(html)
    assert "\x1b" not in html
    assert "prefers-color-scheme: dark" in html
    assert "Not written <b>" in page.words
    assert "xxx … (500 characters)" in page.words
    for part in ("worse", "What differs around them", "0x", "In their own words", "All written."):
        assert part in page.words


def test_every_verdict_has_its_words(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    for texts, verdict, said in (
        (["a", "c"], "same", "Nothing that was compared changed: 0 of 3 trials give other bits, 0 findings changed."),
        (["a", "d"], "nothing in common", "The runs have nothing in common"),
    ):
        comparison = compare.compare(texts)
        assert comparison.verdict == verdict
        assert said in " ".join(text_of(comparison).split())
        assert offline(compare_page.page(comparison)).words
        assert compare_text.markdown(comparison)
    assert set(compare_page.LOOKS) == set(compare_page.NEXT) == set(compare_rows.VERDICTS) == set(compare_text.STYLES)


@pytest.mark.parametrize(
    ("labels", "arms", "names"),
    [
        (("x/a", "x/b"), ("ring", "ring"), ("a", "b")),
        (("x/a", "y/a"), ("ring", "ring"), ("x/a", "y/a")),
        (("x/a", "x/a"), ("ring", "tree"), ("a:ring", "a:tree")),
        (("a", "b"), ("ring", "tree"), ("a:ring", "b:tree")),
        (("x/a", "x/a"), ("ring", "ring"), ("a:ring", "a:ring")),
    ],
)
def test_columns_are_called_by_as_little_as_tells_them_apart(
    comparison: Any, labels: tuple[str, str], arms: tuple[str, str], names: tuple[str, str]
) -> None:
    (beside,) = comparison.besides
    beside = replace(beside, other=replace(beside.other, label=labels[1]))
    pair = replace(beside.pairs[0], base_arm=arms[0], other_arm=arms[1])
    assert compare_rows.names_of(beside, pair, labels[0]) == names


def test_many_figures_are_cut_and_places_are_said() -> None:
    figures = tuple(MeasureChange(name=f"m{n}", base=[1, 2], other=[3], why="another value") for n in range(9))
    change = Change(what="measure", worse=False, probe="p", kind="k", cell={}, measures=figures, limits="Other trials.")
    words = compare_rows.change_words(change)
    assert words[0] == "m0: 1, 2 → 3"
    assert words[-2:] == ["and 4 more figures", "Other trials"]


# ----------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def run(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command among the runs."""
    monkeypatch.chdir(runs)
    return lambda *arguments: call(capsys, "compare", *arguments)


def test_the_command_writes_what_it_is_asked_for(run: Any, tmp_path: Path) -> None:
    accept = tmp_path / "accept.toml"
    accept.write_text('[[accept]]\nkind = "bits"\nowner = "me"\nreason = "known"\nexpires = 2020-01-01\n')
    page, notes = tmp_path / "c.html", tmp_path / "c.md"
    code, out, err = run(
        "a",
        "b",
        "--json",
        "--fail-on",
        "worse",
        "--accept",
        str(accept),
        "--html",
        str(page),
        "--markdown",
        str(notes),
    )
    content = json.loads(out)
    assert code == content["exit_code"] == 1
    assert (content["schema"], content["verdict"]) == ("auditor-comparison/1", "worse")
    (pair,) = content["besides"][0]["pairs"]
    assert pair["bits"][0]["changed"] == 2
    assert [change["kind"] for change in pair["changes"] if change["worse"]] == ["unwritten", "shift_dependence"]
    assert "EXPIRED on 2020-01-01: 1 change" in err
    assert page.read_text().startswith("<!doctype html>")
    assert "EXPIRED" in page.read_text()
    assert "EXPIRED" in notes.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["a"], 2, "auditor: compare needs two runs"),
        (["a", "b", "--fail-on", "better"], 2, "'better' is not one of"),
        (["a", "a:tree"], 2, "a:tree: the run has no arm 'tree'; it has ring"),
        (["a", "b", "--accept", "none.toml"], 2, "auditor: none.toml: cannot be read"),
        (["a", "b", "--html", "no/such/c.html"], 2, "no/such/c.html: there is no directory no/such"),
        (["a", "nowhere"], 3, "auditor: nowhere: no such run"),
        (["a", "e"], 3, "e/run.h5: not an HDF5 file"),
        (["a", "d"], 5, ""),
        (["a", "c", "--fail-on", "changed"], 0, ""),
        (["a", "b"], 0, ""),
        (["a", "b", "--fail-on", "changed"], 1, ""),
    ],
)
def test_exit_codes(run: Any, arguments: list[str], code: int, said: str) -> None:
    found, out, err = run(*arguments)
    assert (found, "Traceback" in err) == (code, False)
    assert said in err
    assert bool(out) is (code in (0, 1, 5))
