"""report.html: one offline, well-formed page that says what findings.json and the record say, however odd they are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditor import report, store
from auditor.analysis import write_findings
from auditor.errors import EvidenceError
from auditor.model import Call, Evidence, Family, Finding, Observation, Planned, Trial, Verdict
from auditor.numerics.formats import FORMATS
from auditor.plan.records import ArmPlan, Plan
from auditor.report import advice, cards, figures, grid, page, svg, values
from auditor.report.words import Labels, clean, number, percent

VOID = {"meta", "br", "img", "link", "input", "hr"}
NASTY = "<b>&\"'</b><script>alert(1)</script>\x1b[2J\x00"


# ----------------------------------------------------------------------------------------------------------- a run to show


def trial_at(count: int = 1026, shift: int = 0, fmt: str = "bfloat16", **changes: Any) -> Trial:
    call = Call(collective="all_reduce", op="sum", format=fmt, count=count)
    base = Trial(call=call, rank_n=2, send_shift=shift, recv_shift=shift, family=Family("wide"), seed=7)
    return base.with_(**changes)


TRIALS = [trial_at(count, shift) for count in (1, 7, 1026) for shift in (0, 1)]


def finding(
    verdict: str, kind: str = "foreign_read", *, arm: str = "nvls", probe: str = "tail", **more: Any
) -> Finding:
    scope = {"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": [1, 7, 1026]}
    scope = {**scope, "send_shift": [0, 1], "recv_shift": [0, 1], **more.pop("scope", {})}
    claim = more.pop("claim", f"all_reduce sum of bfloat16 on 2 ranks: claim about {kind}.")
    return Finding(arm=arm, probe=probe, kind=kind, verdict=Verdict(verdict), claim=claim, scope=scope, **more)


def row(trial: Trial = TRIALS[4], **changes: Any) -> Evidence:
    fixed = {
        "rank": 0,
        "repeat": 1,
        "index": 1025,
        "inputs": ("0x3f80", "0x3c00"),
        "observed": "0x3f81",
        "expected": "0x3f80",
    }
    return Evidence(trial=trial.trial_id, **{**fixed, **changes})


ROUNDING = {
    "mode": "mixed",
    "consistent_modes": [],
    "elements": 1048576,
    "inexact": 754428,
    "nearest": 524286,
    "toward_zero": 134415,
    "away": 95727,
    "outside": 0,
    "ties": 157869,
    "mean_signed_error_ulp": -0.0512,
    "nearest_95": [0.694, 0.696],
}
BY_BYTE = {
    "changed_by_address_mod_16": {"0": 0, "2": 0, "14": 104},
    "compared_by_address_mod_16": {"0": 1000, "2": 1000, "14": 1040},
}
USUAL = [
    finding(
        "FAIL",
        evidence=(row(),),
        measure={"evidence_total": 1234, **BY_BYTE},
        limits="`observed` is not right.",
        reproduce="auditor run c.toml",
    ),
    finding("INCONCLUSIVE", "not_repeatable", probe="repeatability"),
    finding("INFORMATION", "rounding_mode", probe="rounding", measure=ROUNDING),
    finding("PASS", "unwritten", probe="coverage", limits="Other data."),
    finding(
        "WAIVED",
        "unsupported",
        arm="nccl",
        probe="harness",
        claim="The arm nccl is not available here: no GPU.",
        scope={},
    ),
]


def make_run(
    run_dir: Path,
    findings: Iterable[Finding] = USUAL,
    *,
    title: str = "NVLS on and off",
    trials: Iterable[Trial] = TRIALS,
    ran: Iterable[Trial] = TRIALS,
    exit_code: int = 1,
    environment: dict[str, Any] | None = None,
) -> Path:
    planned = tuple(Planned(trial=trial, repeats=2, probes=("tail",)) for trial in trials)
    nvls = ArmPlan(
        name="nvls", backend="simulator", rank_n=2, trials=planned, env={"NCCL_NVLS_ENABLE": "1"}, path="NVLS"
    )
    nccl = ArmPlan(name="nccl", backend="nccl", rank_n=8, status="unavailable", reason="no GPU")
    plan = Plan(title=title, arms=(nvls, nccl), run_id="r1")
    run_dir.mkdir(parents=True, exist_ok=True)
    plan.save(run_dir)
    known = {"system": {"host": "node7"}, "date": "2026-01-02T03:04:05+00:00", "packages": {"numpy": "2.4"}, "gpus": {}}
    meta = {"run_id": "r1", "plan_id": plan.plan_id, "arm": "nvls", "ranks": [0], "attempt": 0}
    ran = list(ran)
    if ran:
        path = store.shard_path(run_dir, "nvls", 0, 0)
        with store.ShardWriter(path, {**meta, "environment": known if environment is None else environment}) as writer:
            for trial in ran:
                codes = np.zeros(trial.call.count, trial.call.fmt.dtype)
                seen = Observation(trial_id=trial.trial_id, repeat=0, rank=0, status="ok", digest=store.digest(codes))
                writer.append(trial, seen, codes)
    rows = [dataclasses.replace(one, id=f"F{n}").to_json() for n, one in enumerate(findings, 1)]
    arms = [
        {
            "name": "nvls",
            "backend": "simulator",
            "rank_n": 2,
            "status": "ok",
            "describe": {"library_version": "2.29", "gpus": ["B300"]},
        },
        {"name": "nccl", "backend": "nccl", "rank_n": 8, "status": "unavailable", "describe": {}},
    ]
    verdict = str(Verdict.worst([Verdict(one["verdict"]) for one in rows]))
    head = {"schema": "auditor-findings/1", "run_id": "r1", "verdict": verdict, "exit_code": exit_code}
    write_findings(run_dir, {**head, "arms": arms, "findings": rows})
    return run_dir


class Page(HTMLParser):
    """Parses a page strictly: tags balanced, ids unique; keeps what tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags["tooltip" if tag == "title" and "svg" in self.open else tag] += 1
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids.update(value for name, value in attrs if name == "id")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def checked(run_dir: Path) -> tuple[Page, str]:
    """The run's page, after what must hold of every page."""
    path = report.write(run_dir)
    assert path == run_dir / "report.html"
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    assert [one for one, n in found.ids.items() if n > 1 or not one] == []
    links = {value for tag, name, value in found.attributes if tag == "a" and name == "href"}
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(found.ids), "a link leads nowhere"
    referred = {value for _, name, value in found.attributes if name == "aria-labelledby"}
    assert referred <= set(found.ids)
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|\bon[a-z]+=", text)
    assert all(value.startswith("#p-") for value in re.findall(r"url\(([^)]*)\)", text))
    assert found.tags["h1"] == found.tags["title"] == found.tags["main"] == 1
    assert found.tags["figcaption"] == found.tags["figure"] == 3
    return found, text


# -------------------------------------------------------------------------------------------------------------- the page


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path: Path) -> None:
    found, text = checked(make_run(tmp_path))
    assert ("html", "lang", "en") in found.attributes
    assert text.count("<table") == text.count("<caption")
    scopes = [value for tag, name, value in found.attributes if tag == "th" and name == "scope"]
    assert len(scopes) == found.tags["th"]
    assert set(scopes) == {"col", "row", "rowgroup"}
    assert "prefers-color-scheme: dark" in text


def test_the_first_screen_says_what_was_audited_the_verdict_and_what_to_do(tmp_path: Path) -> None:
    words = checked(make_run(tmp_path))[0].words
    first = words[: words.index("At a glance The worst")]
    for expected in (
        *(
            "NVLS on and off",
            "FAIL At least one fault was found.",
            "Exit code 1.",
            "node7",
            "2026-01-02T03:04:05+00:00",
        ),
        *("Start with F1: run its command again", "library version 2.29", "gpus B300", "NCCL_NVLS_ENABLE=1"),
        *("unavailable : no GPU", "simulator", "1 FAIL, 1 INCONCLUSIVE, 1 INFORMATION, 1 PASS, 1 WAIVED"),
    ):
        assert expected.replace(" :", ":") in first.replace(" :", ":")


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
    assert '<pre tabindex="0" aria-label="Command line"><code>auditor run c.toml</code></pre>' in text
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


@pytest.mark.parametrize(
    ("exit_code", "findings", "words"),
    [
        (1, USUAL, "Start with F1"),
        (130, USUAL, "The run was interrupted: go on with auditor run, --resume"),
        (0, USUAL[1:], "Read what stayed open, from F1 on"),
        (0, USUAL[2:], "state the ones that you rely on under [expect]"),
        (0, USUAL[3:], "to compare with after the next driver or library upgrade"),
        (5, USUAL[4:], "mend it, and run again"),
        (5, [], "mend it, and run again"),
    ],
)
def test_the_next_step_fits_the_verdict(tmp_path: Path, exit_code: int, findings: list[Finding], words: str) -> None:
    assert words in checked(make_run(tmp_path, findings, exit_code=exit_code))[0].words


def test_every_verdict_has_words() -> None:
    assert set(advice.VERDICT_WORDS) == set(advice.NEXT) == set(Verdict)


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
        *("an unrecorded host", "No variable that steers a library was set."),
    ):
        assert expected in words


def test_odd_shapes_do_not_stop_the_page(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, environment={"system": None, "cpu": [], "gpus": {"models": None}, "variables": 3})
    content = json.loads((run_dir / "findings.json").read_text())
    odd: list[Any] = [
        {},
        None,
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


# -------------------------------------------------------------------------------------------------------------- the grid


def squares(findings: Iterable[Finding], ran: Iterable[Trial] = TRIALS) -> dict[tuple[int, str], grid.Square]:
    known = grid.Known("nvls")
    ran = list(ran)
    for trial in TRIALS:
        known.add(Planned(trial=trial, repeats=1, probes=("tail",)), trial in ran)
    rows = [dataclasses.replace(one, id=f"F{n}").to_json() for n, one in enumerate(findings, 1)]
    (made,) = grid.grids({("nvls", ("all_reduce", "sum", "bfloat16")): known}, rows)
    counts = [int(name.replace(",", "")) for name in made.counts]
    return {(count, shift): square for shift, line in made.rows for count, square in zip(counts, line, strict=True)}


def symbols(found: dict[tuple[int, str], grid.Square]) -> str:
    return "".join(found[count, shift].symbol for shift in ("0", "1") for count in (1, 7, 1026))


def test_a_square_holds_the_worst_that_is_said_of_its_point() -> None:
    shift_1 = {"count": [7, 1026], "send_shift": 1, "recv_shift": 1}
    found = squares([finding("INFORMATION", "shift_dependence", scope=shift_1), finding("PASS")])
    assert symbols(found) == "····II"
    assert found[7, "1"].finding == "F1"
    assert found[7, "1"].says == "count 7, shift 1: INFORMATION: F1 shift_dependence"
    assert found[1, "0"].says == "count 1, shift 0: PASS, 1 finding"


def test_points_that_a_measure_counts_are_taken_from_there() -> None:
    by_point = {"count=1 shift=0": [0, 4], "count=7 shift=1": [2, 4], "count=1026 shift=1": [4, 4]}
    assert symbols(squares([finding("FAIL", measure={"by_point": by_point})])) == "·○○○FF"
    assert symbols(squares([finding("INCONCLUSIVE", measure={"by_point": by_point})])) == "?○○○??"


def test_a_fail_without_counted_points_is_sure_only_where_its_evidence_is() -> None:
    found = squares([finding("FAIL", evidence=(row(TRIALS[3]),)), finding("PASS")])
    assert symbols(found) == "ffffFf"
    assert "no evidence row here" in found[1, "0"].says
    one_point = {"count": 7, "send_shift": 1, "recv_shift": 1}
    assert symbols(squares([finding("FAIL", scope=one_point)])) == "○○○○F○"


def test_what_was_not_run_or_not_planned_is_told_apart() -> None:
    found = squares([finding("PASS")], ran=TRIALS[:1])
    assert symbols(found) == "·–––––"
    assert found[1026, "1"].says == "count 1,026, shift 1: planned, not run"
    known = grid.Known("a")
    for trial in (trial_at(1, 0), trial_at(2, 1)):
        known.add(Planned(trial=trial, repeats=1, probes=()), True)
    (made,) = grid.grids({("a", ("all_reduce", "sum", "bfloat16")): known}, [])
    assert made.rows[0][1][1].says == "count 2, shift 0: not planned"


def test_findings_of_other_arms_cells_and_waivers_leave_no_mark() -> None:
    others = [
        finding("FAIL", arm="x"),
        finding("FAIL", scope={"format": "binary16"}),
        finding("WAIVED"),
        finding("FAIL", scope={"count": []}),
    ]
    assert symbols(squares(others)) == "○" * 6


def test_shifts_apart_are_a_row_of_their_own() -> None:
    assert (grid.shift_name(3, 3), grid.shift_name(1, 2)) == ("3", "1/2")
    known = grid.Known("nvls")
    for send, recv in ((0, 0), (1, 2), (10, 10), (2, 2)):
        known.add(Planned(trial=trial_at(1, 0, send_shift=send, recv_shift=recv), repeats=1, probes=()), True)
    rows = [
        dataclasses.replace(finding("FAIL", scope={"count": 1, "send_shift": 1, "recv_shift": 2}), id="F1").to_json()
    ]
    (made,) = grid.grids({("nvls", ("all_reduce", "sum", "bfloat16")): known}, rows)
    assert [(shift, line[0].symbol) for shift, line in made.rows] == [("0", "○"), ("1/2", "F"), ("2", "○"), ("10", "○")]


def test_wide_grids_keep_the_counts_that_tell_something() -> None:
    known = grid.Known("nvls")
    for count in range(100):
        known.add(Planned(trial=trial_at(count), repeats=1, probes=()), True)
    rows = [
        dataclasses.replace(finding("FAIL", scope={"count": 99, "send_shift": 0, "recv_shift": 0}), id="F1").to_json()
    ]
    (made,) = grid.grids({("nvls", ("all_reduce", "sum", "bfloat16")): known}, rows)
    assert (len(made.counts), made.left_out) == (grid.COUNTS, 100 - grid.COUNTS)
    assert made.counts[-1] == "99"


def test_grids_that_tell_something_come_first_and_room_is_kept() -> None:
    def made(telling: bool, columns: int) -> grid.Grid:
        line = ("0", (grid.Square("·", "pass", ""),) * columns)
        return grid.Grid("a", "", ("1",) * columns, (line,), Verdict.PASS, telling, 0)

    some = [made(False, 300), made(True, 400), made(True, grid.CELLS), made(False, 50)]
    kept, left = grid.drawn(some)
    assert kept == [some[1], some[3]]
    assert left == [some[0], some[2]]


# --------------------------------------------------------------------------------------------------- places within a word


def chart_of(one: Finding) -> list[figures.WordChart]:
    rows = [dataclasses.replace(one, id="F1").to_json()]
    return figures.word_charts(rows, Labels(rows), {trial.trial_id: trial for trial in TRIALS})


def test_changed_elements_are_charted_as_shares_where_both_are_counted() -> None:
    (chart,) = chart_of(finding("INFORMATION", "shift_dependence", measure=BY_BYTE))
    assert chart.numbers == (
        ("byte 0", "0 of 1,000 (0 %)"),
        ("byte 2", "0 of 1,000 (0 %)"),
        ("byte 14", "104 of 1,040 (10.0 %)"),
    )
    assert chart.basis.startswith("% of the elements compared")
    bars = re.findall(r'<rect x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"', chart.drawing)
    assert bars == [("88", "11.5")]  # one bar, over the two bytes of a 2-byte element


def test_send_addresses_have_a_chart_of_their_own() -> None:
    charts = chart_of(finding("FAIL", measure={**BY_BYTE, "changed_by_send_address_mod_16": {"8": 104}}))
    assert [(chart.address, chart.basis) for chart in charts] == [
        ("receive", "% of the elements compared at that byte"),
        ("send", "elements"),
    ]


def test_a_fail_that_counts_no_addresses_is_charted_from_its_evidence() -> None:
    (chart,) = chart_of(finding("FAIL", "unwritten", evidence=(row(index=0), row(index=8), row(index=1))))
    assert chart.numbers == (("byte 0", "2"), ("byte 2", "1"))
    assert "among 3 evidence rows, a sample" in chart.basis
    assert chart_of(finding("INFORMATION", "nan", evidence=(row(index=0),))) == []


def test_nothing_changed_is_said_and_not_drawn() -> None:
    none = {"changed_by_address_mod_16": {"0": 0, "2": 0}, "compared_by_address_mod_16": {"0": 9, "2": 9}}
    one = finding("PASS", "shift_dependence", measure=none)
    assert chart_of(one) == []
    rows = [one.to_json(), finding("PASS", "shift_dependence", measure=none, scope={"format": "binary16"}).to_json()]
    assert figures.unchanged(rows, Labels(rows)) == ["shift_dependence (nvls: bfloat16, binary16)"]


def test_the_byte_of_an_element_follows_from_its_shift() -> None:
    assert [values.byte_in_word(trial_at(9, 3), 0, index) for index in (0, 4, 5)] == [6, 14, 0]
    assert values.byte_in_word(trial_at(9, 3), 7, 0) is None
    assert values.byte_in_word(trial_at(9, 3), 0, 9) is None


# ------------------------------------------------------------------------------------------------------ values and words


@pytest.mark.parametrize("name", ["binary16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_values_of_all_codes_agree_with_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fmt = FORMATS[name]
    dtype = np.float16 if name == "binary16" else getattr(ml_dtypes, name)
    codes = np.arange(1 << fmt.bits, dtype=fmt.dtype)
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtype).astype(np.float64)
    found = np.array([values.value(fmt, int(code)) for code in codes])
    np.testing.assert_array_equal(
        found.view(np.uint64)[~np.isnan(expected)], expected.view(np.uint64)[~np.isnan(expected)]
    )
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("name", ["binary32", "binary64"])
def test_values_of_wide_codes_agree_with_numpy(name: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(0)
    codes = np.concatenate(
        [rng.integers(0, 1 << fmt.bits, 500, dtype=np.uint64, endpoint=False), np.arange(4, dtype=np.uint64)]
    ).astype(fmt.dtype)
    for code, expected in zip(codes, codes.view(np.dtype(f"f{fmt.itemsize}")), strict=True):
        found = values.value(fmt, int(code))
        assert found == float(expected) or (math.isnan(found) and np.isnan(expected))


def test_value_texts_tell_neighbours_apart() -> None:
    for name, code in (
        ("binary32", 0x3F800001),
        ("binary64", 0x3FF0000000000001),
        ("bfloat16", 0x0001),
        ("float8_e5m2", 0x01),
    ):
        fmt = FORMATS[name]
        texts = [values.value_text(fmt, code + step) for step in (-1, 0, 1)]
        assert len(set(texts)) == 3
    assert [values.value_text(FORMATS["binary16"], code) for code in (0x7C00, 0xFC00, 0x7E00, 0x8000)] == [
        "+inf",
        "-inf",
        "NaN",
        "-0",
    ]


def test_distance_counts_codes_across_zero() -> None:
    fmt = FORMATS["bfloat16"]
    assert values.apart(fmt, 0x3F81, 0x3F80) == 1
    assert values.apart(fmt, 0xBF81, 0xBF80) == -1
    assert values.apart(fmt, 0x0001, 0x8001) == 2
    assert values.apart(fmt, 0x0000, 0x8000) == 0
    assert values.apart(fmt, fmt.nan_code, 0x3F80) is None


def test_text_that_is_no_code_is_left_as_it_is() -> None:
    fmt = FORMATS["float8_e5m2"]
    assert [values.code_of(text, fmt) for text in ("0x3c", "0x13c", "RING/LL", "-0x1", "")] == [
        0x3C,
        None,
        None,
        None,
        None,
    ]
    assert cards.code("TREE/LL", fmt) == cards.Code("TREE/LL", "")


def test_figures_of_a_measure_are_readable() -> None:
    found = {
        "elements": 1234567,
        "share": 0.154,
        "share_bounds_95": [0.15, 0.16],
        "ranks": [0, 1],
        "by_point": {"x": 1},
        "changed_between": [[3, 7]],
        "rate_95": [0.0, 1e-5],
        "mean": 1.23456789e-7,
        "ok": True,
        "none": None,
        "empty": [],
        "lonely_bounds_95": [1, 2],
        "long": list(range(99)),
        "evidence_total": 5,
    }
    assert [(fact.name, fact.value, fact.bounds) for fact in cards.facts(found)] == [
        *(("elements", "1,234,567", ""), ("share of elements changed", "15.4 %", "15.0 % to 16.0 % (95 %)")),
        *(("ranks", "0, 1", ""), ("changed between", "3–7", ""), ("rate", "0 % to 0.001 % (95 %)", "")),
        *(
            ("mean", "1.23e-07", ""),
            ("ok", "yes", ""),
            ("none", "none", ""),
            ("empty", "none", ""),
            ("lonely", "1, 2", ""),
        ),
        ("long", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (99 in all)", ""),
    ]


def test_nested_parts_of_a_measure_become_tables() -> None:
    found = {
        "by_shift": {"1": {"changed": 2, "compared": 1000}, "2": {"changed": 0}},
        "by_rank": {"0": 5},
        "rows": [{"a": 1}, {"b": 2}],
    }
    by_shift, by_rank, rows = cards.tables(found)
    assert (by_shift.head, by_shift.rows) == (("shift", "changed", "compared"), (("1", "2", "1,000"), ("2", "0", "")))
    assert (by_rank.caption, by_rank.rows) == ("by rank", (("0", "5"),))
    assert (rows.head, rows.rows) == (("a", "b"), (("1", ""), ("", "2")))


def test_scopes_leave_out_what_goes_without_saying() -> None:
    told = dict(cards.scope_words({**TRIALS[1].to_json(), "count": [1, 1026], "tail": "nan"}))
    assert told == {
        "collective": "all_reduce",
        "op": "sum",
        "format": "bfloat16",
        "ranks": "2",
        "count": "1, 1,026",
        "shift": "1",
        "in place": "no",
        "family": "wide",
        "seed": "7",
        "tail": "nan",
    }
    apart = dict(
        cards.scope_words(
            {"send_shift": 1, "recv_shift": 2, "group": [None, [0, 1]], "collective": "reduce", "root": 0}
        )
    )
    assert apart == {
        "collective": "reduce",
        "send shift": "1",
        "recv shift": "2",
        "group": "all ranks, [0, 1]",
        "root": "0",
    }


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (1e-9, "1e-07 %"),
        (0.00868, "0.87 %"),
        (0.5, "50.0 %"),
        (0.9996, "99.96 %"),
        (0.9999951, "99.99951 %"),
    ],
)
def test_shares_are_never_rounded_to_none_or_all(share: float, text: str) -> None:
    assert percent(share) == text


def test_numbers_and_texts() -> None:
    assert [number(value) for value in (12345, 0.5, 3.0, 1e-9, True, None)] == [
        "12,345",
        "0.5",
        "3",
        "1e-09",
        "yes",
        "none",
    ]
    assert clean("a\x00b\x1b[1m\u202e") == "a\ufffdb\ufffd[1m\ufffd"


def test_svg_escapes_and_keeps_lengths_within_bounds() -> None:
    assert (
        svg.rect("0", "0", "1", "1", 'a"b', "<tip>")
        == '<rect x="0" y="0" width="1" height="1" class="a&quot;b"><title>&lt;tip&gt;</title></rect>'
    )
    assert [svg.pct(share) for share in (-1, 0, 1 / 3, 1, 7)] == ["0%", "0%", "33.333%", "100%", "100%"]
    assert 'viewBox="0 0 1 1"' in svg.element("svg", viewBox="0 0 1 1")


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
