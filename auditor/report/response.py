"""Figure: the share of inexact sums that go up, by where between their neighbours they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.probes.statistics import clopper_pearson
from auditor.report import svg
from auditor.report.figures import whole
from auditor.report.words import Labels, Row, measure, mode_text, number, one_line, percent

HEIGHT, TOP, BASE = 190, 10, 158  # CSS pixels; the share runs from BASE up to TOP
LEFT, RIGHT = 0.11, 0.985  # of the drawing's width
PANELS = 24
PARITIES = ("even", "odd")


@dataclass(frozen=True, slots=True)
class Response:
    """One finding's panel. ``numbers``: rem, and for lo even and odd how many of how many went up."""

    finding: str
    arm: str
    label: str
    mode: str
    drawing: str
    numbers: tuple[tuple[str, str, str], ...]


def responses(rows: Iterable[Row], labels: Labels) -> list[Response]:
    """One panel a rounding_mode finding with a dose-response; those that no mode explains first."""
    told = [row for row in rows if row.get("kind") == "rounding_mode" and _bins(row)]
    return [_panel(row, labels) for row in sorted(told, key=lambda row: bool(measure(row).get("consistent_modes")))]


def _bins(row: Row) -> list[list[int]]:
    """By bin of rem: sums with lo even, of these up, sums with lo odd, of these up; empty where the measure holds none."""
    found = measure(row).get("dose_response")
    if not isinstance(found, list) or not all(isinstance(one, list) and len(one) == 4 for one in found):
        return []
    bins = [[whole(n) for n in one] for one in found]
    return bins if any(one[0] + one[2] for one in bins) else []


def _panel(row: Row, labels: Labels) -> Response:
    bins = _bins(row)
    arm, label = one_line(row.get("arm", "")), labels.of(row)
    total = sum(one[0] + one[2] for one in bins)
    up = sum(one[1] + one[3] for one in bins)
    says = f"{arm} {label}: of {number(total)} inexact sums {percent(up / total)} go up; by rem in the table below"
    drawing = svg.drawing(HEIGHT, says, *_frame(), *_points(bins))
    return Response(str(row.get("id", "")), arm, label, mode_text(row), drawing, tuple(_numbers(bins)))


def _x(rem: float) -> str:
    return svg.pct(LEFT + (RIGHT - LEFT) * rem)


def _y(share: float) -> str:
    return f"{BASE - (BASE - TOP) * share:.4g}"


def _frame() -> Iterator[str]:
    """Axes, and what a fair coin weighted by rem would give: the diagonal."""
    for share in (0.0, 0.5, 1.0):
        yield svg.line(_x(0), _y(share), _x(1), _y(share), "axis" if share == 0 else "half")
        yield svg.label(f"{share * 100:.0f} %", svg.pct(LEFT - 0.012), f"{float(_y(share)) + 4:g}", "tick", "end")
    yield svg.line(_x(0.5), _y(0), _x(0.5), _y(1), "word")
    yield svg.line(_x(0), _y(0), _x(1), _y(1), "diagonal")
    for rem, name in ((0.0, "0"), (0.25, "1/4"), (0.5, "1/2"), (0.75, "3/4"), (1.0, "1")):
        yield svg.label(name, _x(rem), str(BASE + 14), "tick", "end" if rem == 1.0 else "middle")
    yield svg.label("rem, from the neighbour toward zero to the other", _x(0.5), str(HEIGHT - 3), "tick")


def _points(bins: Sequence[Sequence[int]]) -> Iterator[str]:
    """A bar of the exact 95 % interval and a mark for each bin: filled for lo even, open for lo odd."""
    for k, one in enumerate(bins):
        for side, parity in enumerate(PARITIES):
            n, up = one[2 * side], one[2 * side + 1]
            if not n:
                continue
            place = _x((k + 0.35 + 0.3 * side) / len(bins))
            low, high = clopper_pearson(min(up, n), n)
            yield svg.line(place, _y(low), place, _y(high), f"interval lo-{parity}")
            tip = f"rem {_range(k, len(bins))}, lo {parity}: {number(up)} of {number(n)} go up ({percent(up / n)})"
            shape = {"cx": place, "cy": _y(up / n), "r": 2.4, "class_": f"lo-{parity}"}
            yield svg.element("circle", svg.title(tip), **shape)


def _range(k: int, n: int) -> str:
    return f"{k}/{n} to {k + 1}/{n}"


def _numbers(bins: Sequence[Sequence[int]]) -> Iterator[tuple[str, str, str]]:
    for k, one in enumerate(bins):
        if one[0] or one[2]:
            yield _range(k, len(bins)), _of(one[1], one[0]), _of(one[3], one[2])


def _of(up: int, n: int) -> str:
    return f"{number(up)} of {number(n)}" if n else ""


def context(rows: Sequence[Row], labels: Labels) -> Mapping[str, Any]:
    """For the template."""
    found = responses(rows, labels)
    return {"responses": found[:PANELS], "responses_total": len(found)}
