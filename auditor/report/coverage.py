"""Figure: the cases that the data behind a named rounding mode hold, and those that they leave out (NUMERICS §6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.report.figures import whole
from auditor.report.words import Labels, Row, measure, number, one_line

# What a character of the measure's matrix stands for: class, symbol, words.
SQUARES = {
    "#": ("c-full", "#", "1,000 sums or more"),
    "+": ("c-thin", "+", "fewer"),
    "0": ("c-empty", "0", "none"),
    "-": ("c-never", "", "cannot be"),
}
BINADES = ("least normal", "middle", "largest")
PLACES = ("lowest of its binade", "interior", "highest of its binade")
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Matrix:
    """Findings whose data fill the same cases. ``rows``: rem, how the terms met, and (class, symbol, words) of nine squares."""

    of: str
    says: str
    rows: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...]
    named: tuple[str, ...]  # empty cases, then thin ones
    named_total: int


def context(rows: Sequence[Row], labels: Labels) -> Mapping[str, Any]:
    """For the template."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        covered = _covered(row)
        if row.get("kind") == "rounding_mode" and covered:
            key = f"{covered.get('matrix')}{covered.get('empty_cells')}{covered.get('thin_cells')}"
            groups.setdefault(key, []).append(row)
    made = [_matrix(some, labels) for some in groups.values()]
    return {
        "matrices": made[:SHOWN],
        "matrices_total": len(made),
        "squares": list(SQUARES.values()),
        "binades": BINADES,
    }


def _covered(row: Row) -> Mapping[str, Any]:
    found = measure(row).get("coverage")
    return found if isinstance(found, Mapping) and isinstance(found.get("matrix"), Mapping) else {}


def _matrix(some: Sequence[Row], labels: Labels) -> Matrix:
    covered = _covered(some[0])
    names = [f"{one_line(row.get('arm', ''))} {labels.of(row)}".strip() for row in some]
    filled, cells = whole(covered.get("filled")), whole(covered.get("cells"))
    thin, empty = number(covered.get("thin")), number(covered.get("empty"))
    says = f"{number(filled)} of {number(cells)} cases filled, {thin} thin, {empty} empty"
    lists = [[one_line(name) for name in covered.get(key) or ()] for key in ("empty_cells", "thin_cells")]
    named = (*(f"empty: {name}" for name in lists[0]), *(f"thin: {name}" for name in lists[1]))
    return Matrix(
        of=", ".join(names),
        says=says,
        rows=tuple(_row(str(name), str(text)) for name, text in covered["matrix"].items()),
        named=named,
        named_total=whole(covered.get("empty")) + whole(covered.get("thin")),
    )


def _row(name: str, text: str) -> tuple[str, str, tuple[tuple[str, str, str], ...]]:
    rem, _, meets = name.partition(" / ")
    squares = []
    for binade, three in zip(BINADES, text.split(" "), strict=False):
        for place, character in zip(PLACES, three, strict=False):
            slug, symbol, words = SQUARES.get(character, SQUARES["-"])
            squares.append((slug, symbol, f"{rem}, {meets}, {place}, {binade} binade: {words}"))
    return one_line(rem), one_line(meets), tuple(squares)
