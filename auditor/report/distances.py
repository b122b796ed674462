"""Figure: how far apart two arms' results of the same data lie, where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.report import svg
from auditor.report.figures import whole
from auditor.report.words import Labels, Row, listed, many, measure, number, one_line, percent

ROW = 18  # CSS pixels
LEFT, RIGHT = 0.26, 0.78  # of the drawing's width: where bars begin, and end
PANELS = 12


@dataclass(frozen=True, slots=True)
class Distance:
    finding: str
    arm: str
    beside: str
    label: str
    says: str
    agrees: str
    drawing: str


def context(rows: Sequence[Row], labels: Labels) -> Mapping[str, Any]:
    """For the template: a histogram for each finding that tells distances, a line for arms that agree."""
    told = [row for row in rows if row.get("kind") == "path_difference" and _histogram(row)]
    equal = [
        row for row in rows if row.get("kind") == "path_difference" and not whole(measure(row).get("elements_changed"))
    ]
    alike = [_alike(row, labels) for row in equal if measure(row).get("same_as")]
    made = [_panel(row, labels) for row in told]
    return {"distances": made[:PANELS], "distances_total": len(made), "alike": alike}


def _histogram(row: Row) -> dict[str, int]:
    apart = measure(row).get("ulps_apart")
    found = apart.get("histogram") if isinstance(apart, Mapping) else None
    bars = {one_line(name): whole(n) for name, n in found.items()} if isinstance(found, Mapping) else {}
    nan = whole(apart.get("nan")) if isinstance(apart, Mapping) else 0
    return {**bars, **({"NaN": nan} if nan else {})}


def _panel(row: Row, labels: Labels) -> Distance:
    bars, found = _histogram(row), measure(row)
    apart = found.get("ulps_apart")
    told: Mapping[str, Any] = apart if isinstance(apart, Mapping) else {}
    changed, compared = whole(found.get("elements_changed")), whole(found.get("elements_compared"))
    share = f" ({percent(changed / compared)})" if compared else ""
    arm, beside = one_line(row.get("arm", "")), one_line(found.get("compared_with", ""))
    says = f"{arm} beside {beside}: " + ", ".join(f"{name} ulp {number(n)}" for name, n in bars.items())
    return Distance(
        finding=str(row.get("id", "")),
        arm=arm,
        beside=beside,
        label=labels.of(row),
        says=f"{number(changed)} of {number(compared)} results differ{share}; median {number(told.get('median'))} ulp, at most "
        f"{number(told.get('max'))}",
        agrees=listed([one_line(name) for name in many(found.get("same_as") or [])]),
        drawing=svg.drawing(ROW * len(bars) + 4, says, *_bars(bars)),
    )


def _bars(bars: Mapping[str, int]) -> Iterator[str]:
    """Lengths are logarithmic: one of a million is seen beside the million."""
    most = math.log1p(max(bars.values()))
    for k, (name, n) in enumerate(bars.items()):
        y = k * ROW + 2
        yield svg.label(name, svg.pct(LEFT - 0.02), str(y + 13), "tick", "end")
        if n:
            width = (RIGHT - LEFT) * math.log1p(n) / most
            yield svg.rect(svg.pct(LEFT), str(y + 2), svg.pct(width), str(ROW - 5), "col", f"{name} ulp: {number(n)}")
            yield svg.label(number(n), svg.pct(LEFT + width + 0.015), str(y + 13), "tick", "start")
    yield svg.line(svg.pct(LEFT), "0", svg.pct(LEFT), str(ROW * len(bars) + 4), "axis")


def _alike(row: Row, labels: Labels) -> str:
    others = listed([one_line(name) for name in many(measure(row).get("same_as") or [])])
    cell = labels.of(row)
    return f"{one_line(row.get('arm', ''))} = {others}{f' ({cell})' if cell else ''}"
