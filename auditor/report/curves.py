"""The figure of a measured bound: how many planted errors of one size each rule accepts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.report import svg
from auditor.report.words import number

HEIGHT, TOP, BASE = 330, 14, 296  # CSS pixels; the share runs from BASE up to TOP
LEFT, RIGHT = 0.1, 0.985  # of the drawing's width
THICK = ("measured", "absolute")
KNOWN = (
    *("one_percent", "numpy_allclose", "numpy_assert_allclose", "torch_assert_close", "absolute", "a_priori"),
    *("measured", "faithful", "legal_outputs", "nccl_tests", "replay"),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One half of the figure. ``rows``: size, then for each rule the accepted shares of both signs, as text."""

    title: str
    axis: str
    drawing: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def panels(record: Mapping[str, Any]) -> list[Panel]:
    """By steps and by percent."""
    rules = [(rule["name"], rule["label"]) for rule in record["rules"]]
    curves = record["curves"]
    told = (
        ("steps", "Errors of a whole number of steps", "steps that the output is moved by", _power),
        ("percent", "Relative errors", "percent that the output is moved by", lambda size: f"{size:g}"),
    )
    return [_panel(curves[key], curves["of"], rules, title, axis, name) for key, title, axis, name in told]


def _power(size: Any) -> str:
    return f"2^{int(size).bit_length() - 1}" if size >= 1024 else str(size)


def _panel(
    curve: Mapping[str, Any], of: int, rules: Sequence[tuple[str, str]], title: str, axis: str, name: Any
) -> Panel:
    sizes = curve["sizes"]
    places = _places(sizes)
    parts = [*_frame(sizes, places, axis, name)]
    for rule, label in sorted(rules, key=lambda one: one[0] not in THICK):  # thick ones first, so that none is covered
        parts += _curve(curve["rules"][rule], places, sizes, of, rule, label)
    says = f"{title}: share of {number(of)} outputs accepted by each rule; the numbers are in the table below"
    head = ("size", *(label for _, label in rules))
    rows = tuple((name(size), *(_both(curve["rules"][rule], k) for rule, _ in rules)) for k, size in enumerate(sizes))
    return Panel(title, axis, svg.drawing(HEIGHT, says, *parts), head, rows)


def _places(sizes: Sequence[float]) -> list[float]:
    """Where each size stands between 0 and 1, on a logarithmic scale."""
    low, high = math.log(sizes[0]), math.log(sizes[-1])
    return [(math.log(size) - low) / (high - low) for size in sizes]


def _x(place: float) -> str:
    return svg.pct(LEFT + (RIGHT - LEFT) * place)


def _y(share: float) -> str:
    return f"{BASE - (BASE - TOP) * share:.4g}"


def _frame(sizes: Sequence[Any], places: Sequence[float], axis: str, name: Any) -> Iterator[str]:
    for quarter in range(5):
        share = quarter / 4
        yield svg.line(_x(0), _y(share), _x(1), _y(share), "axis" if quarter == 0 else "rung")
        yield svg.label(f"{share * 100:.0f} %", svg.pct(LEFT - 0.01), f"{float(_y(share)) + 4:g}", "tick", "end")
    every = max(1, len(sizes) // 7)
    for k, (size, place) in enumerate(zip(sizes, places, strict=True)):
        if k % every == 0 or len(sizes) <= 10:
            yield svg.line(_x(place), str(BASE), _x(place), str(BASE + 4), "axis")
            yield svg.label(name(size), _x(place), str(BASE + 17), "tick", "middle" if k < len(sizes) - 1 else "end")
    yield svg.label(axis, _x(0.5), str(HEIGHT - 2), "tick")


def _curve(
    found: Mapping[str, Any], places: Sequence[float], sizes: Sequence[Any], of: int, rule: str, label: str
) -> Iterator[str]:
    """Away from zero: a line with the exact intervals as bars; toward zero: circles."""
    class_ = f"rule r-{rule}" if rule in KNOWN else "rule"
    away, toward = found["away"], found["toward"]
    shares = [count / of for count in away["count"]]
    for k in range(len(shares) - 1):
        yield svg.line(_x(places[k]), _y(shares[k]), _x(places[k + 1]), _y(shares[k + 1]), class_)
    for k, place in enumerate(places):
        low, high = away["low"][k], away["high"][k]
        if 0 < shares[k] < 1:
            yield svg.line(_x(place), _y(low), _x(place), _y(high), f"{class_} bar")
        tip = f"{label}, {number(sizes[k])}: {_both(found, k)}"
        circle = {"cx": _x(place), "cy": _y(toward["count"][k] / of), "r": 3, "class_": class_}
        yield svg.element("circle", svg.title(tip), **circle)


def _both(found: Mapping[str, Any], k: int) -> str:
    """``1,069`` accepted of either sign; both where they differ."""
    away, toward = found["away"]["count"][k], found["toward"]["count"][k]
    return number(away) if away == toward else f"{number(away)} / {number(toward)}"
