"""report, show, analyze and run at the command line: files for CI systems, broken runs, paths that cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_runs import USUAL, make_run

from auditor import cli, report
from auditor.errors import EvidenceError
from auditor.report import exports

Run = Callable[..., tuple[int, str, str]]
CONFIG = """
title = "small"
[[arm]]
name = "sum"
backend = "simulator"
ranks = 2
[sweep]
collective = ["all_reduce"]
format = ["bfloat16"]
count = [7]
repeats = 2
[probes]
run = ["coverage"]
"""


@pytest.fixture
def auditor(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process: exit code, standard output, standard error."""

    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert "internal error" not in said.err
        return int(end.value.code or 0), said.out, said.err

    return command


def test_report_writes_every_form_that_is_asked_for(auditor: Run, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    out = [tmp_path / name for name in ("a.xml", "a.sarif", "a.md")]
    code, said, err = auditor("report", run_dir, "--junit", out[0], "--sarif", out[1], "--markdown", out[2])
    assert (code, said, err) == (0, f"{run_dir / 'report.html'}\n", "")
    assert ElementTree.parse(out[0]).getroot().tag == "testsuites"
    assert json.loads(out[1].read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert out[2].read_text(encoding="utf-8").startswith("## FAIL")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "a.xml", "a.sarif", "a.md"}


def test_a_dash_gives_a_form_alone_on_standard_output(auditor: Run, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    code, said, err = auditor("report", run_dir, "--markdown", "-")
    assert (code, err) == (0, f"{run_dir / 'report.html'}\n")
    assert said.startswith("## FAIL")
    assert said == exports_text(run_dir)


def exports_text(run_dir: Path) -> str:
    from auditor.report import markdown
    from auditor.report.source import read

    return markdown.text(read(run_dir))


def test_a_run_writes_them_too_and_its_exit_code_stays(auditor: Run, tmp_path: Path) -> None:
    config, out = tmp_path / "c.toml", tmp_path / "out"
    config.write_text(CONFIG)
    code, said, err = auditor("run", config, "--out", out, "--junit", tmp_path / "a.xml", "--markdown", "-")
    assert code == 0
    assert said.startswith("## PASS")
    assert "PASS  exit code 0" in err
    assert f"report: {out / 'report.html'}" in err
    assert ElementTree.parse(tmp_path / "a.xml").getroot().find(".//failure") is None
    code, said, err = auditor("analyze", out, "--sarif", tmp_path / "a.sarif")
    assert (code, "PASS  exit code 0" in said, err) == (0, True, "")
    assert json.loads((tmp_path / "a.sarif").read_text())["runs"][0]["results"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--junit", "no/such/a.xml"), "--junit no/such/a.xml: there is no directory no/such; make it first"),
        (("--sarif", "folder"), "--sarif folder: is a directory; name a file"),
        (("--sarif", "x", "--junit", "x"), "--junit x: another report is to go there too; give each a file of its own"),
        (
            ("--markdown", "-", "--sarif", "-"),
            "--sarif -: another report is to go there too; give each a file of its own",
        ),
        (("--junit", "locked"), "--junit locked: may not be written"),
        (("--junit", "closed/a.xml"), "--junit closed/a.xml: the directory closed may not be written"),
    ],
)
@pytest.mark.parametrize("command", ["run", "report", "analyze", "join"])
def test_a_path_that_cannot_be_written_is_told_before_anything_runs(
    auditor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "closed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "locked").touch()
    may = os.access  # root may write everywhere, so permission is played
    shut = {"locked", "closed"}
    monkeypatch.setattr(exports.os, "access", lambda path, mode: Path(path).name not in shut and may(path, mode))
    before = sorted(tmp_path.rglob("*"))
    names = {"run": ["--out", "out"], "join": ["r1", "r2", "--out", "out"]}.get(command, ["r1"])
    assert auditor(command, *names, *words) == (2, "", f"auditor: {told}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_one_rank_of_a_job_says_what_is_wrong_for_all(
    auditor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    for words in (["show"], ["run", "--junit", "no/such/a.xml"]):
        monkeypatch.setenv("PMI_RANK", "0")
        code, _, err = auditor(*words)
        assert (code, bool(err)) == (2, True)
        monkeypatch.setenv("PMI_RANK", "1")
        assert auditor(*words) == (2, "", "")
    assert auditor("show", tmp_path / "nowhere")[2] != ""  # not of the command line: each rank says its own


def test_a_report_that_fails_to_be_written_costs_neither_run_nor_summary(
    auditor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)

    def full(*_: object) -> None:
        raise EvidenceError("a.xml: cannot be written: No space left on device")

    monkeypatch.setattr(exports, "write", full)
    code, said, err = auditor("run", tmp_path / "c.toml", "--out", tmp_path / "out", "--junit", tmp_path / "a.xml")
    assert code == 3
    assert "PASS  exit code 0" in said
    assert "auditor: a.xml: cannot be written: No space left on device" in err.splitlines()
    assert {"run.h5", "findings.json", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}
    run_dir = make_run(tmp_path / "fails", USUAL)
    assert auditor("report", run_dir, "--junit", tmp_path / "a.xml")[0] == 3


def test_a_fail_comes_before_a_report_that_cannot_be_written() -> None:
    from auditor.pipeline import _with_reports

    assert [_with_reports(code, False) for code in (0, 1, 3, 5, 130)] == [3, 1, 3, 3, 130]
    assert [_with_reports(code, True) for code in (0, 5)] == [0, 5]


def test_links_pipes_and_files_in_closed_folders_are_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path / "run")
    (tmp_path / "target.md").write_text("old")
    (tmp_path / "link.md").symlink_to("target.md")
    report.export(run_dir, exports.Exports(markdown=tmp_path / "link.md"))
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "target.md").read_text().startswith("## FAIL")
    may = os.access
    monkeypatch.setattr(exports.os, "access", lambda path, mode: Path(path) != tmp_path and may(path, mode))
    inode = (tmp_path / "target.md").stat().st_ino
    report.export(run_dir, exports.Exports(markdown=tmp_path / "target.md"))
    assert (tmp_path / "target.md").stat().st_ino == inode
    report.export(run_dir, exports.Exports(markdown=Path(os.devnull)))
    assert Path(os.devnull).is_char_device()
    with pytest.raises(EvidenceError, match="cannot be written: Is a directory"):
        exports._put(tmp_path / "run", "x")


# -------------------------------------------------------------------------------------------------------------------- show


def test_show_says_where_the_page_is_or_how_to_make_it(auditor: Run, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    code, said, _ = auditor("show", run_dir)
    assert code == 1
    assert said.splitlines()[-1] == f"report: make it with: auditor report {run_dir}"
    auditor("report", run_dir)
    assert auditor("show", run_dir)[1].splitlines()[-1] == f"report: {run_dir / 'report.html'}"
    content = json.loads((run_dir / "findings.json").read_text())
    (run_dir / "findings.json").write_text(json.dumps({**content, "exit_code": 5}))  # the page is of other findings now
    assert auditor("show", run_dir)[1].splitlines()[-1] == f"report: make it with: auditor report {run_dir}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file or directory; make it with: auditor analyze"),
        ("", "is not JSON"),
        ('{"schema": "auditor-findings/1"', "is not JSON"),
        ("[]", "its schema is None, this version reads 'auditor-findings/1'"),
        (
            '{"schema": "auditor-findings/2"}',
            "its schema is 'auditor-findings/2', this version reads 'auditor-findings/1'",
        ),
        ('{"schema": "auditor-findings/1"}', "exit_code = None is not a whole number"),
        ('{"schema": "auditor-findings/1", "exit_code": 0, "verdict": "PASS", "arms": []}', "findings is not a list"),
    ],
)
@pytest.mark.parametrize("command", ["show", "report"])
def test_a_broken_or_foreign_run_is_told_in_one_line(
    auditor: Run, tmp_path: Path, command: str, text: str | None, told: str
) -> None:
    run_dir = make_run(tmp_path / "run")
    (run_dir / "findings.json").unlink()
    if text is not None:
        (run_dir / "findings.json").write_text(text)
    code, said, err = auditor(command, run_dir)
    assert (code, said, err.count("\n")) == (3, "", 1)
    assert told in err
    assert err.rstrip().endswith(f"auditor analyze {run_dir}")


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_run_that_is_not_there_or_is_a_file_is_told(auditor: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "run.h5").touch()
    for name, told in (("nowhere", "there is no such directory"), ("run.h5", "is a file")):
        code, said, err = auditor(command, tmp_path / name)
        assert (code, said) == (3, "")
        assert err == f"auditor: {tmp_path / name}: {told}; name a run directory, as auditor run prints it\n"


def test_an_old_run_without_arms_fields_is_shown_as_far_as_it_goes(auditor: Run, tmp_path: Path) -> None:
    bare = {"schema": "auditor-findings/1", "verdict": "PASS", "exit_code": 0, "arms": [{}], "findings": [{}]}
    (tmp_path / "findings.json").write_text(json.dumps(bare))
    code, said, _ = auditor("show", tmp_path)
    assert code == 0
    assert said.startswith("PASS  exit code 0 (nothing FAILs): 1 INCONCLUSIVE; run")
