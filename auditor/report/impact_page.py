"""Does it matter, on one offline page: the paragraph, one figure, the tables behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auditor import __version__
from auditor.impact.records import Curve, Impact
from auditor.report import svg
from auditor.report.impact_text import advice, paragraph, tables
from auditor.report.page import render
from auditor.report.words import number, one_line

HEIGHT = 300
TOP, BOTTOM = 14, 34  # CSS pixels around the plot
INNER = HEIGHT - TOP - BOTTOM
EDGE = 12  # per cent of the width, for the numbers on its left
LEFT = f"{EDGE}%"
Band = tuple[float, float, float]


def page(impact: Impact) -> str:
    """HTML of the whole; needs no network and no scripts."""
    return render(gather(impact), "impact.html.j2")


def gather(impact: Impact) -> dict[str, Any]:
    """All that the template shows."""
    added, found = impact.accumulation, impact.chosen
    return {
        "title": one_line(f"{found.arm}: {found.collective} {found.op} of {found.format}"),
        "run": one_line(impact.run),
        "run_id": one_line(impact.run_id),
        "paragraph": paragraph(impact),
        "advice": advice(impact),
        "steps": number(added.steps),
        "rule": added.rule,
        "why": added.why,
        "figure": drawing(added.curve) if added.curve else "",
        "numbers": _numbers(added.curve) if added.curve else [],
        "tables": list(tables(impact)),
        "limits": impact.limits,
        "auditor_version": __version__,
    }


def _numbers(curve: Curve) -> list[tuple[str, str, str]]:
    """Some points of the curve in figures, for those who do not see it."""
    every = max(1, len(curve.steps) // 5)
    chosen = sorted({*range(every - 1, len(curve.steps), every), len(curve.steps) - 1})
    return [(number(curve.steps[i]), _band(curve.rule[i]), _band(curve.nearest[i])) for i in chosen]


def _band(band: Band) -> str:
    return f"{band[0]:+.3g} ({band[1]:+.3g} to {band[2]:+.3g})"


def drawing(curve: Curve) -> str:
    """Two bands over the steps. The shapes are stretched to the page's width, the words are not."""
    ends = [value for some in (curve.rule, curve.nearest) for band in some for value in band[1:]]
    marks = ticks(min(0.0, *ends), max(0.0, *ends))
    low, high = marks[0], marks[-1]

    def y(value: float) -> float:
        return 100 * (high - value) / (high - low)

    shapes = [_grid(y(mark)) for mark in marks]
    shapes += [
        one for some, name in ((curve.nearest, "even"), (curve.rule, "rule")) for one in _shapes(curve, some, name, y)
    ]
    plot = svg.element(
        "svg",
        *shapes,
        x=LEFT,
        y=TOP,
        width=f"{100 - EDGE}%",
        height=INNER,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        class_="plot",
    )
    last, final, even = number(curve.steps[-1]), _band(curve.rule[-1]), _band(curve.nearest[-1])
    says = f"After {last} steps: measured rule {final} ulp, to nearest {even} ulp"
    return svg.drawing(HEIGHT, says, plot, *_words([(mark, y(mark)) for mark in marks], last))


def _words(marks: list[tuple[float, float]], last: str) -> list[str]:
    """The numbers beside the plot and what its axes are."""
    at_marks = [
        svg.label(f"{mark:+g}" if mark else "0", f"{EDGE - 1}%", f"{TOP + INNER * at / 100 + 4:.1f}", "tick", "end")
        for mark, at in marks
    ]
    return [
        *at_marks,
        svg.label("0", LEFT, str(HEIGHT - 16), "tick"),
        svg.label(f"{last} steps", "100%", str(HEIGHT - 16), "tick", "end"),
        svg.label("errors added up, ulp", LEFT, str(HEIGHT - 2), "tick", "start"),
    ]


def _shapes(curve: Curve, some: tuple[Band, ...], name: str, y: Callable[[float], float]) -> list[str]:
    """A band from the 5th to the 95th percentile and the mean in it, both from the origin on."""
    last = curve.steps[-1]
    xs = [0.0, *(100 * step / last for step in curve.steps)]
    bands = [(0.0, 0.0, 0.0), *some]
    upper = [f"{x:.2f},{y(band[2]):.2f}" for x, band in zip(xs, bands, strict=True)]
    lower = [f"{x:.2f},{y(band[1]):.2f}" for x, band in zip(xs, bands, strict=True)]
    mean = [f"{x:.2f},{y(band[0]):.2f}" for x, band in zip(xs, bands, strict=True)]
    return [
        svg.element("polygon", points=" ".join([*upper, *reversed(lower)]), class_=f"band {name}"),
        svg.element("polyline", points=" ".join(mean), class_=f"mean {name}"),
    ]


def _grid(at: float) -> str:
    return svg.line("0", f"{at:.2f}", "100", f"{at:.2f}", "gridline")


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers that span [low, high], 0 among them where it lies inside."""
    span = max(high - low, 1e-12)
    step = next(
        size for power in range(-12, 13) for size in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if span / size <= 7
    )
    first, last = int(low // step), -int(-high // step)
    return [round(k * step, 12) for k in range(first, last + 1)]
