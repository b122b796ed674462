"""The page and the text of a record: what they say, that nothing of it is markup, and the figure's numbers."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from auditor import calibrate
from auditor.calibrate.local import LocalOptions, LocalReduction
from auditor.calibrate.matmul import Matmul, MatmulOptions
from auditor.report import calibrate_page, calibrate_text, curves

BINS, ORDERS = 4096, 3


def made(work: Any, held_out: int = 10) -> dict[str, Any]:
    request = calibrate.request_of("histogram", {"seed": 7}, {"margin": "4"})
    law = calibrate.Law.parse("normal:0.03")
    return calibrate.calibrated(work, request, margin=4, law=law, seed=7, orders_held_out=held_out)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Of the study's shape, with few weights a bin."""
    return made(LocalReduction(LocalOptions(n=BINS, terms=200, orders=ORDERS, seed=7)))


class Checked(HTMLParser):
    """Balanced elements, no links out, no scripts."""

    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("script", "link", "iframe", "img"):
            self.wrong.append(tag)
        self.wrong += [f"{k}={v}" for k, v in attrs if k in ("href", "src") and not str(v).startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(record: dict[str, Any], tmp_path: Path) -> tuple[str, str]:
    """(the page, its text with single spaces)."""
    path = calibrate_page.write(tmp_path / "bound.json", record)
    page = path.read_text(encoding="utf-8")
    checked = Checked()
    checked.feed(page)
    assert checked.wrong == []
    assert checked.open == []
    assert "http" not in page.replace("http-equiv", "")
    return page, re.sub(r"\s+", " ", " ".join(checked.text))


def test_the_page_says_what_the_record_holds(record: dict[str, Any], tmp_path: Path) -> None:
    page, text = page_of(record, tmp_path)
    bound, accepted = record["bound"], record["law"]["accepted"]
    worst = bound["worst"]
    assert f"bound {bound['ulp_steps']} steps, 4 times the worst of 3 orders ({worst['ulp_steps']} steps" in text
    for rule in record["rules"]:
        assert rule["label"] in text
        assert calibrate_text.share_text(accepted[rule["name"]]) in text
        assert rule["says"] in text
    for one in record["assumptions"]:
        assert one["says"] in text
    for gate in record["gates"]:
        assert gate["says"] in text
    assert "auditor check --bound bound.json" in text
    assert record["request"]["command"] in text
    assert record["digest"] in text
    assert record["planted"]["draws_sha256"] in text
    for row in record["orders"]:
        assert row["digest"] in page


def test_the_page_says_what_of_the_study_can_be_had_again(record: dict[str, Any], tmp_path: Path) -> None:
    _, text = page_of(record, tmp_path)
    for words in (
        "Kernelwitness histogram study",
        "worst correct order 108 ULP",
        "1 % accepts 1,091 of 4,096 wrong bins",
        "the measured rule accepts 4 of 4,096",
        "What could not be reproduced.",
        "evidence-example.json, is named in the text and was not at hand",
        "the random generator",
        "Both of its counts follow from one assumption",
    ):
        assert words in text
    claims = {row["text"]: row["agrees"] for row in record["study"]["claims"]}
    assert (
        claims["4,096 bins, float32, float64 reference, three orders, seed 7"] is False
        or record["conditions"]["seed"] == 7
    )
    assert claims["worst correct order 108 ULP"] is False, "200 weights a bin do not drift as far"
    assert claims["1 % accepts 1,091 of 4,096 wrong bins"] is True
    other = made(LocalReduction(LocalOptions(n=64, terms=30, seed=7)), 0)
    assert other["study"] is None
    assert "Kernelwitness" not in page_of(other, tmp_path)[1]


def test_the_page_of_an_absolute_bound_has_its_checks(tmp_path: Path) -> None:
    found = made(Matmul(MatmulOptions(size=48, checks=2, seed=7)))
    _, text = page_of(found, tmp_path)
    assert "Checks on fresh inputs" in text
    for row in found["checks"]:
        assert f"{row['max_abs_error_float64']:.3g}" in text
        assert f"{row['max_abs_difference_unchunked']:.3g}" in text
    lines = list(calibrate_text.lines(found))
    assert lines[0].startswith("PASS  matmul: absolute bound 0.001; over 2 checks the largest error is")


def test_what_a_person_named_is_never_markup(record: dict[str, Any], tmp_path: Path) -> None:
    evil = copy.deepcopy(record)
    evil["workload"] = "user:<script>alert(1)</script>"
    evil["orders"][0]["order"] = "<b>x</b>"
    evil["gates"][0]["says"] = "</li><img src=x>"
    evil["conditions"]["device"] = "\u202e\x00<i>"
    evil["rules"][0]["label"] = "<u>1 %</u>"
    page, text = page_of(evil, tmp_path)
    assert "<script>" not in page
    assert "<b>x</b>" in text
    assert "\x00" not in page


def test_the_figure_draws_the_counts(record: dict[str, Any]) -> None:
    steps, percent = curves.panels(record)
    assert [row[0] for row in steps.rows][:4] == ["1", "2", "4", "8"]
    assert steps.rows[-1][0] == "2^20"
    assert [row[0] for row in percent.rows] == ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]
    names = [rule["name"] for rule in record["rules"]]
    assert len(steps.head) == len(names) + 1
    circles = re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)" r="3" class="rule r-measured">', steps.drawing)
    assert len(circles) == 21
    curve = record["curves"]["steps"]["rules"]["measured"]
    for (_, y), count in zip(circles, curve["toward"]["count"], strict=True):
        share = (curves.BASE - float(y)) / (curves.BASE - curves.TOP)
        assert share == pytest.approx(count / record["curves"]["of"], abs=0.003)
    places = [float(x) for x, _ in circles]
    assert places == sorted(places)
    assert places[1] - places[0] == pytest.approx(places[20] - places[19], abs=0.01), (
        "powers of two stand equally far apart"
    )
    bars = re.findall(r'class="rule r-one_percent bar"', percent.drawing)
    assert len(bars) == sum(0 < k < BINS for k in record["curves"]["percent"]["rules"]["one_percent"]["away"]["count"])


def test_the_text_is_a_line_a_rule(record: dict[str, Any]) -> None:
    lines = list(calibrate_text.lines(record))
    head = next(line for line in lines if line.startswith("rule "))
    table = lines[lines.index(head) + 1 :][: len(record["rules"])]
    assert [line.split("  ")[0] for line in table] == [rule["label"] for rule in record["rules"]]
    assert any("does not hold: coverage of margin x worst" in line for line in lines)
    failed = copy.deepcopy(record)
    failed["gates"][0] |= {"verdict": "FAIL", "says": "Nothing is written."}
    assert "FAIL unwritten: Nothing is written." in list(calibrate_text.lines(failed))


def test_blindness_is_the_largest_error_that_mostly_passes(record: dict[str, Any]) -> None:
    assert calibrate_text.blind_text(record["curves"], "one_percent").endswith("1 %") or calibrate_text.blind_text(
        record["curves"], "one_percent"
    ).endswith("0.5 %")
    assert calibrate_text.blind_text(record["curves"], "replay") == "nothing"
    one = {"sizes": [1, 2, 4], "rules": {"r": {"away": {"count": [9, 2, 0]}, "toward": {"count": [9, 6, 1]}}}}
    none = {"sizes": [1], "rules": {"r": {"away": {"count": [0]}, "toward": {"count": [0]}}}}
    assert calibrate_text.blind_text({"of": 10, "steps": one, "percent": none}, "r") == "2 steps"
    one["rules"]["r"] = {"away": {"count": [6, 0, 0]}, "toward": {"count": [0, 0, 0]}}
    assert calibrate_text.blind_text({"of": 10, "steps": one, "percent": none}, "r") == "1 step"
