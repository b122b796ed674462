"""Where in a 16-byte word changed elements lie, and the drawings themselves."""

from __future__ import annotations

import dataclasses
import re

from report_runs import BY_BYTE, TRIALS, finding, row, trial_at

from auditor.model import Finding
from auditor.report import figures, svg, values
from auditor.report.words import Labels


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


def test_svg_escapes_and_keeps_lengths_within_bounds() -> None:
    assert (
        svg.rect("0", "0", "1", "1", 'a"b', "<tip>")
        == '<rect x="0" y="0" width="1" height="1" class="a&quot;b"><title>&lt;tip&gt;</title></rect>'
    )
    assert [svg.pct(share) for share in (-1, 0, 1 / 3, 1, 7)] == ["0%", "0%", "33.333%", "100%", "100%"]
    assert 'viewBox="0 0 1 1"' in svg.element("svg", viewBox="0 0 1 1")
