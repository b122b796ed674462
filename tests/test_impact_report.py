"""``auditor impact`` on recorded runs of the B300 model and of rounding to nearest: words, figure, page, JSON, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driven_view import DrivenView, drive
from recorded import Arm, call, finding, make_run, offline

from auditor import impact
from auditor.backends.simulator import Simulator
from auditor.config import Sweep
from auditor.errors import ConfigError, EvidenceError
from auditor.impact.records import Impact, Measured
from auditor.model import Family, Finding
from auditor.probes import get
from auditor.report import impact_page, impact_text

STEPS = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``b300``: the model under its rule and with it off; ``plain``: a run without rounding; ``few``: too few sums."""
    folder = tmp_path_factory.mktemp("impact")
    sweep = Sweep(
        format=("bfloat16",), count=(32768,), shift=((0, 0), (2, 2)), family=(Family("report132"),), repeats=2
    )
    arms, found = [], []
    for name, options in (("nvls", {"preset": "b300"}), ("nvls_off", {})):
        probes = ["rounding", "placement", *(["neighbours"] if options else [])]
        view = drive(Simulator, sweep, [get(probe) for probe in probes], rank_n=2, options=options)
        arms.append(Arm(name, list(view.planned), _outputs(view)))
        found += [replace(one, arm=name) for probe in probes for one in get(probe).analyze(view)]
    make_run(folder / "b300", *arms, findings=found)
    make_run(folder / "plain", findings=[finding("foreign_read", "PASS", probe="tail")])
    few = drive(Simulator, replace(sweep, count=(64,), shift=((0, 0),)), [get("rounding")], rank_n=2)
    rows = [replace(one, arm="nvls") for one in get("rounding").analyze(few)]
    make_run(folder / "few", Arm("nvls", list(few.planned), _outputs(few)), findings=rows)
    return folder


def _outputs(view: DrivenView) -> Any:
    return lambda trial, repeat, rank: view.output(trial.trial_id, repeat, rank)


@pytest.fixture(scope="module")
def b300(runs: Path) -> Impact:
    found = impact.assess(runs / "b300", steps=STEPS)
    assert found is not None
    return found


def ids(runs: Path, kind: str) -> list[str]:
    rows = json.loads((runs / "b300" / "findings.json").read_text())["findings"]
    return [row["id"] for row in rows if row["kind"] == kind]


def test_the_finding_with_the_greatest_bias_is_chosen(b300: Impact) -> None:
    assert (b300.chosen.arm, b300.chosen.mode) == ("nvls", "mixed")
    assert b300.chosen.mean_95 is not None
    assert b300.chosen.mean_95[0] < -0.0506 < b300.chosen.mean_95[1]
    assert [(one.arm, one.unbiased) for one in b300.others] == [("nvls_off", True)]
    added = b300.accumulation
    assert added.rule.startswith("up iff rem + b22(q+1)/2 + b22(q+2)/4")
    assert [one.name for one in added.scenarios] == ["fresh", "running", "running, one sign"]
    assert added.shift == 2
    assert added.replayed_mean == pytest.approx(added.independent_mean, abs=6 * added.independent_sd / 2048**0.5)
    assert {one.name for one in b300.other_data} >= {"random sums (family wide)", "slowly varying sums"}
    (shift,) = b300.shifts
    assert (shift.name, round(shift.value, 2)) == ("2", 0.18)


def test_the_paragraph_says_bias_data_steps_and_shift(b300: Impact) -> None:
    text = impact_text.paragraph(b300)
    for part in (
        r"rounds by no single IEEE mode \(F\d+\)",
        r"0\.0\d{3} ulp nearer to zero than the exact sum \(95 %: -0\.0\d+ to -0\.0\d+",
        r"family report132 \(random sign and mantissa, exponent -4\.\.4",
        r"two contributors, seed 0",
        r"Over 40 steps with new data in each, replayed with that rule",
        r"independent errors would: -1\.\d+",
        r"Placing a bucket 2 elements later changes 18\.\d+ % of single results",
        r"in the replay a bucket 2 elements later changes",
    ):
        assert re.search(part, text), part
    assert impact_text.advice(b300).startswith("It matters where many results of one direction add up")


def test_nearest_even_has_no_bias_with_a_bound(runs: Path) -> None:
    off = next(one for one in ids(runs, "rounding_mode") if one != impact_of(runs).chosen.finding)
    found = impact.assess(runs / "b300", off, steps=STEPS)
    assert found is not None
    text = impact_text.paragraph(found)
    assert re.search(
        r"No bias was seen: the mean error is [-+][\d.e-]+ ulp, and none beyond 0\.00\d+ ulp either way", text
    )
    assert "Placing a bucket 2 elements later changes nothing: fewer than" in text
    assert impact_text.advice(found).startswith("Nothing here speaks against it")
    assert found.accumulation.rule == "ties_to_even"


def impact_of(runs: Path) -> Impact:
    found = impact.assess(runs / "b300", steps=1)
    assert found is not None
    return found


def test_a_finding_of_another_probe_leads_to_its_rounding(runs: Path, b300: Impact) -> None:
    for kind in ("neighbour_dependence", "shift_dependence"):
        found = impact.assess(runs / "b300", ids(runs, kind)[0], steps=1)
        assert found is not None
        assert found.chosen.finding == b300.chosen.finding


def test_findings_that_do_not_serve_are_refused(runs: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no finding F99; those that impact can use: F\d"):
        impact.assess(runs / "b300", "F99")
    with pytest.raises(ConfigError, match=r"is of kind not_faithful; those that impact can use: F\d"):
        impact.assess(runs / "b300", ids(runs, "not_faithful")[0])
    with pytest.raises(EvidenceError, match="no such run"):
        impact.assess(runs / "nowhere")


def test_without_a_rule_nothing_is_replayed_and_that_is_said(runs: Path, tmp_path: Path) -> None:
    content = json.loads((runs / "b300" / "findings.json").read_text())
    rows = [Finding.from_json(row) for row in content["findings"] if row["kind"] == "rounding_mode"]
    (tmp_path / "bare").symlink_to(runs / "b300")
    bare = tmp_path / "run"
    bare.mkdir()
    for name in ("plan.json", "shards"):
        (bare / name).symlink_to(runs / "b300" / name)
    kept = [one.to_json() for one in rows]
    (bare / "findings.json").write_text(json.dumps({**content, "findings": kept}))
    found = impact.assess(bare, steps=STEPS)
    assert found is not None
    assert found.accumulation.scenarios == ()
    text = impact_text.paragraph(found)
    assert "nothing was replayed, because no single mode fits, and ask for the probe neighbours" in text
    assert any("Independent errors are an assumption" in line for line in found.limits)
    assert any("did not ask whether a shift changes results" in line for line in found.limits)
    assert "No step was replayed" in offline(impact_page.page(found)).words


def test_too_few_sums_are_said(runs: Path) -> None:
    found = impact.assess(runs / "few", steps=2)
    assert found is not None
    assert "Too few sums were recorded for a bias with its interval" in impact_text.paragraph(found)
    assert impact_text.advice(found) == "Record more elements before deciding anything."


def test_the_page_is_whole_and_its_figure_keeps_inside(b300: Impact) -> None:
    html = impact_page.page(b300)
    page = offline(html)
    points = re.findall(r'points="([^"]+)"', html)
    assert len(points) == 4
    numbers = [float(number) for some in points for pair in some.split() for number in pair.split(",")]
    assert min(numbers) >= 0
    assert max(numbers) <= 100
    assert 'role="img" aria-label="After 40 steps: measured rule -' in html
    for part in (
        "Does it matter?",
        "How to read it",
        "Single sums, as recorded",
        "What this does not show",
        "40 steps",
    ):
        assert part in page.words


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (-55.0, 14.0, [-60.0, -50.0, -40.0, -30.0, -20.0, -10.0, 0.0, 10.0, 20.0]),
        (0.0, 3.0, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]),
        (-0.012, 0.001, [-0.012, -0.01, -0.008, -0.006, -0.004, -0.002, 0.0, 0.002]),
        (0.0, 0.0, None),
    ],
)
def test_marks_are_round_and_span_the_figure(low: float, high: float, marks: list[float] | None) -> None:
    found = impact_page.ticks(low, high)
    assert found[0] <= low <= high <= found[-1]
    if marks is not None:
        assert found == marks


def test_percentages_and_shifts_in_words(b300: Impact) -> None:
    still = replace(b300, shifts=(Measured(finding="F1", name="2", value=0.0, value_95=(0.0, 1e-5), elements=9),))
    assert "changes nothing: fewer than 1e-05 of the results" in impact_text.paragraph(still)
    unmeasured = replace(b300, shifts=())
    assert "In the replay a bucket 2 elements later changes" in impact_text.paragraph(unmeasured)


# ----------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def run(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command among the runs."""
    monkeypatch.chdir(runs)
    return lambda *arguments: call(capsys, "impact", *arguments)


def test_the_command_prints_and_writes(run: Any, tmp_path: Path) -> None:
    code, out, err = run("b300", "--steps", "5", "--html", str(tmp_path / "i.html"))
    assert code == 0
    assert out.startswith("It matters where")
    for part in (
        "Over 5 steps",
        "Single sums, as recorded",
        "Totals, replayed",
        "limit: All figures of single sums hold",
    ):
        assert part in " ".join(out.split())
    assert f"wrote {tmp_path / 'i.html'}" in err
    assert (tmp_path / "i.html").read_text().startswith("<!doctype html>")
    code, out, err = run("b300", "--steps", "5", "--json")
    content = json.loads(out)
    assert (code, content["schema"], content["chosen"]["mode"]) == (0, "auditor-impact/1", "mixed")
    assert content["accumulation"]["curve"]["steps"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["b300", "--steps", "0"], 2, "--steps"),
        (["b300", "--finding", "F99"], 2, "there is no finding F99"),
        (["b300", "--html", "no/such/i.html"], 2, "there is no directory no/such"),
        (["nowhere"], 3, "nowhere: no such run"),
        (["plain"], 5, "plain: no rounding_mode finding with an inexact sum; ask for the probe rounding"),
        ([], 2, "RUN"),
    ],
)
def test_exit_codes(run: Any, arguments: list[str], code: int, said: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
