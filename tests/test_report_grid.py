"""The grid of counts and shifts: the worst that is said of each point, what was not run, and which columns are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from report_runs import TRIALS, finding, row, trial_at

from auditor.model import Finding, Planned, Trial, Verdict
from auditor.report import grid


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
