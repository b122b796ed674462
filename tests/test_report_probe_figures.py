"""Figures 4 to 7 of the page: dose-response, influence, cases, distances; from real findings, and from odd ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from driven_view import drive
from report_runs import NASTY, checked, finding, make_run
from test_probe_paths import AWAY, ZERO, arm, found

from auditor.analysis.files import plain
from auditor.backends.simulator import Simulator
from auditor.config import Sweep
from auditor.model import Finding
from auditor.probes import neighbours, rounding
from auditor.report import coverage, distances, influence, response
from auditor.report.words import Labels, Row


def real(probe: Any, options: dict[str, Any], kind: str, count: int = 1 << 15) -> Finding:
    sweep = Sweep(format=("bfloat16",), count=(count,), repeats=2, seed=(5,))
    view = drive(Simulator, sweep, [probe], rank_n=2, options=options)
    return next(one for one in probe.analyze(view) if one.kind == kind)


def rows_of(*findings: Finding) -> list[Row]:
    return [{**plain(one.to_json()), "id": f"F{number}"} for number, one in enumerate(findings, 1)]


def shown(part: Any, *findings: Finding) -> dict[str, Any]:
    rows = rows_of(*findings)
    return dict(part.context(rows, Labels(rows)))


@pytest.fixture(scope="module")
def everything() -> list[Finding]:
    keyed, even = {"preset": "b300"}, {"final": "ties_to_even"}
    return [
        real(rounding, even, "rounding_mode"),
        real(rounding, keyed, "rounding_mode"),
        real(neighbours, keyed, "neighbour_dependence"),
        real(neighbours, even, "neighbour_dependence"),
        *found(arm("ring"), arm("ring-simple"), arm("tree", ZERO), arm("nvls", AWAY)),
    ]


# ------------------------------------------------------------------------------------------------------------ whole page


def test_the_page_shows_all_four_and_stays_well_formed(tmp_path: Path, everything: list[Finding]) -> None:
    page, text = checked(make_run(tmp_path, everything, exit_code=0))
    assert page.tags["figure"] == 7
    assert text.count("<table") == text.count("<caption")
    for title in ("4. How often", "5. Which bits", "6. Which cases", "7. How far apart"):
        assert title in page.words
    assert page.words.count("How to read it:") == 7
    assert page.tags["circle"] > 200
    assert "tree beside ring" in page.words
    assert "ring-simple = ring" in page.words


def test_a_run_without_such_data_says_why(tmp_path: Path) -> None:
    words = checked(make_run(tmp_path))[0].words
    for text in (
        "No finding of this run holds sums by rem",
        "No bit was turned in this run",
        "No finding of this run says which cases",
        "No two arms of this run were compared",
    ):
        assert text in words


ODD_MEASURES: list[dict[str, Any]] = [
    {"dose_response": [[1, 2, 3]], "coverage": {"matrix": "none"}, "influence": "none", "ulps_apart": 3},
    {"dose_response": [[0, 0, 0, 0]] * 64, "coverage": {"matrix": {NASTY: "#?-"}}, "influence": [{"offset": "x"}]},
    {"dose_response": [["a", 1, 2, 3]], "influence": [{"offset": 1, "bit": NASTY, "changed": 1}]},
    {"ulps_apart": {"histogram": {NASTY: 2}}, "same_as": NASTY, "compared_with": NASTY},
    {"influence": [{"offset": [1, None], "bit": "b3", "changed": 2, "tested": 1}], "same_as": [NASTY]},
]


@pytest.mark.parametrize("measure", ODD_MEASURES)
def test_odd_measures_do_not_break_the_page(tmp_path: Path, measure: dict[str, Any]) -> None:
    kinds = ("rounding_mode", "neighbour_dependence", "path_difference")
    odd = [finding("INFORMATION", kind, probe="rounding", measure=measure) for kind in kinds]
    _, text = checked(make_run(tmp_path, odd))
    assert "alert(1)" not in re.sub("&lt;script&gt;alert\\(1\\)", "", text)


# --------------------------------------------------------------------------------------------------------- dose-response


def test_points_stand_where_the_shares_say(everything: list[Finding]) -> None:
    context = shown(response, *everything[:2])
    mixed, even = context["responses"]  # what no mode explains comes first
    assert (mixed.finding, even.finding, context["responses_total"]) == ("F2", "F1", 2)
    assert even.mode == "ties_to_even"
    step = [float(y) for y in re.findall(r'cx="[^"]*" cy="([^"]*)" r="2.4" class="lo-odd"', even.drawing)]
    assert step == sorted(step, reverse=True)  # lo odd: a clean step, ties included
    assert set(step) == {response.TOP, response.BASE}
    assert len(set(re.findall(r'cy="([^"]*)"', mixed.drawing))) > 60
    assert "1/64 to 2/64" in dict.fromkeys(one[0] for one in mixed.numbers)
    assert "go up" in mixed.drawing


def test_numbers_beside_the_points(everything: list[Finding]) -> None:
    (even,) = shown(response, everything[0])["responses"]
    told = {rem: (a, b) for rem, a, b in even.numbers}
    assert all(a.startswith("0 of") for rem, (a, _) in told.items() if int(rem.split("/")[0]) < 32 and a)
    assert not any(b.startswith("0 of") for rem, (_, b) in told.items() if int(rem.split("/")[0]) >= 32)


# -------------------------------------------------------------------------------------------------------------- influence


def test_the_map_has_a_square_for_each_bit_that_matters(everything: list[Finding]) -> None:
    context = shown(influence, *everything[2:4])
    (one,) = context["maps"]
    assert one.finding == "F1"
    assert [(offset, bit) for offset, bit, _, _ in one.numbers] == [
        (f"{offset:+d}", bit) for bit in ("b22", "b21") for offset in (-3, -2, -1, 1, 2, 3)
    ]
    squares = re.findall(r'<rect [^>]*class="i[1-4]"><title>([^<]*)</title>', one.drawing)
    assert len(squares) == 12
    assert squares[0].startswith("offset -3, b22: ")
    quiet = sum(row["tested"] for row in everything[3].measure["influence"])
    assert context["maps_quiet"] == [f"subject: {quiet:,} toggles"]
    assert [words for _, words in context["map_steps"]] == ["under 2 %", "2 to 10 %", "10 to 30 %", "30 % and more"]


def test_bits_that_the_format_cannot_turn_are_named() -> None:
    sweep = Sweep(format=("binary16",), count=(1 << 15,), repeats=2, seed=(5,))
    (told,) = neighbours.analyze(drive(Simulator, sweep, [neighbours], rank_n=2, options={"preset": "b300"}))
    (one,) = shown(influence, told)["maps"]
    assert one.untested == "e7, e6, e5, e4"


def test_runs_of_offsets() -> None:
    assert list(influence._runs([3, 1, 2, 7, -1])) == [(-1, -1), (1, 3), (7, 7)]
    assert list(influence._runs([])) == []


# --------------------------------------------------------------------------------------------------------------- coverage


def test_equal_cases_are_drawn_once_and_unfilled_ones_are_named(everything: list[Finding]) -> None:
    context = shown(coverage, *everything[:2])
    (matrix,) = context["matrices"]  # the same data, whatever the subject made of them
    covered = everything[0].measure["coverage"]
    assert matrix.says.startswith(f"{covered['filled']} of {covered['cells']} cases filled")
    assert matrix.named_total == covered["empty"] + covered["thin"]
    assert f"empty: {covered['empty_cells'][0]}" in matrix.named
    squares = [square for _, _, some in matrix.rows for square in some]
    assert len(squares) == 6 * 3 * 9
    assert sum(symbol == "#" for _, symbol, _ in squares) == covered["filled"]
    assert sum(symbol == "0" for _, symbol, _ in squares) == covered["empty"]
    assert squares[0][2] == "exact, same sign, lowest of its binade, least normal binade: cannot be"


# -------------------------------------------------------------------------------------------------------------- distances


def test_bars_are_logarithmic_and_every_count_is_written() -> None:
    apart = {"max": 9, "median": 1, "histogram": {"1": 99999, "2": 0, "3-4": 9}, "nan": 1}
    measure = {"ulps_apart": apart, "compared_with": "ring", "same_as": ["tree-ll"]}
    measure |= {"elements_changed": 100009, "elements_compared": 200000}
    (one,) = shown(distances, finding("INFORMATION", "path_difference", arm="tree", probe="paths", measure=measure))[
        "distances"
    ]
    assert one.says == "100,009 of 200,000 results differ (50.0 %); median 1 ulp, at most 9"
    assert one.agrees == "tree-ll"
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)%"', one.drawing)]
    assert len(widths) == 3  # nothing is drawn of nothing
    assert widths[0] == pytest.approx(52)
    assert widths[1] == pytest.approx(52 / 5, rel=1e-3)  # log 10 of log 100,000
    for text in ("99,999", ">9<", "NaN"):
        assert text in one.drawing


def test_arms_that_agree_are_listed(everything: list[Finding]) -> None:
    context = shown(distances, *everything[4:])
    assert context["alike"] == ["ring-simple = ring (bfloat16, binary16)"]
    assert [(one.arm, one.beside) for one in context["distances"]] == [("tree", "ring"), ("nvls", "ring")]
