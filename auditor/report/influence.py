"""Figure: which bit of which neighbour changes how a sum is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from auditor.report import svg
from auditor.report.figures import whole
from auditor.report.words import Labels, Row, listed, many, measure, number, one_line, percent

WORD = ("s", *(f"e{k}" for k in range(7, -1, -1)), *(f"b{k}" for k in range(22, -1, -1)))  # binary32's, from the top
NAMED = ("s", "e4", "b22", "b16", "b8", "b0")
CELL, TOP = 11, 4  # CSS pixels
LEFT = 0.09  # of the drawing's width
STEPS = (0.02, 0.1, 0.3)  # shares from which on a square is darker
MAPS = 12


@dataclass(frozen=True, slots=True)
class Map:
    """One finding's map. ``numbers``: offset, bit, changed of tested with the bounds, how many went up where the bit is set."""

    finding: str
    arm: str
    label: str
    tested: str
    untested: str
    drawing: str
    numbers: tuple[tuple[str, str, str, str], ...]


def context(rows: Sequence[Row], labels: Labels) -> Mapping[str, Any]:
    """For the template: maps where other elements matter, a line each where none does."""
    told = [row for row in rows if row.get("kind") == "neighbour_dependence" and _cells(row)]
    loud = [row for row in told if any(o != 0 for (o, _), one in _cells(row).items() if whole(one.get("changed")))]
    maps = [_map(row, labels) for row in loud]
    return {
        "maps": maps[:MAPS],
        "maps_total": len(maps),
        "maps_quiet": [_quiet(row, labels) for row in told if row not in loud],
        "map_steps": _steps(),
    }


def _steps() -> list[tuple[str, str]]:
    """Class and words of the legend's squares."""
    words = [
        f"under {STEPS[0] * 100:g} %",
        *(f"{a * 100:g} to {b * 100:g} %" for a, b in pairwise(STEPS)),
    ]
    return [(f"i{k}", text) for k, text in enumerate([*words, f"{STEPS[-1] * 100:g} % and more"], 1)]


def _cells(row: Row) -> dict[tuple[int, str], Mapping[str, Any]]:
    """By (offset, bit): the row of the measure that speaks of it."""
    found: dict[tuple[int, str], Mapping[str, Any]] = {}
    for one in measure(row).get("influence") or ():
        if isinstance(one, Mapping):
            found |= {
                (offset, str(one.get("bit"))): one for offset in many(one.get("offset")) if isinstance(offset, int)
            }
    return found


def _map(row: Row, labels: Labels) -> Map:
    cells = _cells(row)
    changed = {key: one for key, one in cells.items() if whole(one.get("changed"))}
    arm, label = one_line(row.get("arm", "")), labels.of(row)
    numbers = tuple(_numbers(changed))
    says = f"{arm} {label}: offsets and bits that matter: " + listed([f"{o} {bit}" for o, bit, _, _ in numbers], 40)
    reach = max(abs(offset) for offset, _ in cells)
    height = TOP + len(WORD) * CELL + 32
    told = measure(row).get("influence_tested")
    tested = told if isinstance(told, Mapping) else {}
    return Map(
        finding=str(row.get("id", "")),
        arm=arm,
        label=label,
        tested=f"{number(tested.get('toggles'))} toggles, {number(tested.get('cells'))} pairs of offset and bit",
        untested=listed(many(tested.get("bits_not_tested") or [])) if tested.get("bits_not_tested") else "",
        drawing=svg.drawing(height, says, *_squares(cells, reach), *_axes(reach)),
        numbers=numbers,
    )


def _numbers(changed: Mapping[tuple[int, str], Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    ordered = sorted(changed, key=lambda key: (WORD.index(key[1]) if key[1] in WORD else len(WORD), key[0]))
    for offset, bit in ordered:
        one = changed[offset, bit]
        yield f"{offset:+d}" if offset else "itself", bit, _share(one), number(one.get("up_where_set"))


def _share(one: Mapping[str, Any]) -> str:
    k, n = whole(one.get("changed")), whole(one.get("tested"))
    bounds = one.get("rate_95")
    told = f"{number(k)} of {number(n)}"
    if n and isinstance(bounds, list) and len(bounds) == 2:
        told += f" ({percent(k / n)}; {percent(bounds[0])} to {percent(bounds[1])})"
    return told


def _x(offset: float, reach: int) -> str:
    return svg.pct(LEFT + (1 - LEFT) * (offset + reach) / (2 * reach + 1))


def _squares(cells: Mapping[tuple[int, str], Mapping[str, Any]], reach: int) -> Iterator[str]:
    """One pale strip a run of offsets that were tried without effect, a square for each that matters; the rest stays hatched."""
    wide = svg.pct((1 - LEFT) / (2 * reach + 1))
    whole_width = svg.pct(1 - LEFT)
    yield svg.rect(_x(-reach, reach), str(TOP), whole_width, str(len(WORD) * CELL), "i-none")
    for number_, bit in enumerate(WORD):
        y = str(TOP + number_ * CELL)
        for first, last in _runs([o for (o, name) in cells if name == bit]):
            width = svg.pct((1 - LEFT) * (last - first + 1) / (2 * reach + 1))
            yield svg.rect(_x(first, reach), y, width, str(CELL - 1), "i-still")
        for (offset, name), one in cells.items():
            if name == bit and whole(one.get("changed")):
                share = whole(one.get("changed")) / max(1, whole(one.get("tested")))
                step = 1 + sum(share >= edge for edge in STEPS)
                where = f"offset {offset:+d}" if offset else "the element itself"
                tip = f"{where}, {bit}: {_share(one)}"
                yield svg.rect(_x(offset, reach), y, wide, str(CELL - 1), f"i{step}", tip)


def _runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets as (first, last) of consecutive ones."""
    ordered = sorted(offsets)
    start = 0
    for k in range(1, len(ordered) + 1):
        if k == len(ordered) or ordered[k] != ordered[k - 1] + 1:
            yield ordered[start], ordered[k - 1]
            start = k


def _axes(reach: int) -> Iterator[str]:
    base = TOP + len(WORD) * CELL
    for bit in NAMED:
        yield svg.label(bit, svg.pct(LEFT - 0.012), f"{TOP + WORD.index(bit) * CELL + 9}", "tick", "end")
    for offset in (-reach, -8, -4, 0, 4, 8, reach):
        anchor = "end" if offset == reach else "middle"
        place = offset + 1 if offset == reach else offset + 0.5
        yield svg.label(f"{offset:+d}" if offset else "0", _x(place, reach), str(base + 12), "tick", anchor)
    yield svg.label("offset of the element whose bit is turned", svg.pct((1 + LEFT) / 2), str(base + 28), "tick")


def _quiet(row: Row, labels: Labels) -> str:
    """``nvls_off bfloat16: 0 of 245,545``."""
    quiet = [one for one in measure(row).get("influence") or () if isinstance(one, Mapping)]
    name = f"{one_line(row.get('arm', ''))} {labels.of(row)}".strip()
    return f"{name}: {number(sum(whole(one.get('tested')) for one in quiet))} toggles"
