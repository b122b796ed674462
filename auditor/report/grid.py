"""The grid of counts and shifts: at each point of the plan, the worst that any finding says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from auditor.model import Planned, Verdict
from auditor.report.words import SYMBOLS, Row, many, measure, one_line, plural, scope, verdict_of

Point = tuple[int, str]  # count, shift as shift_name gives it
Cell = tuple[str, str, str]  # collective, op, format

COUNTS = 32  # columns of one grid; the page states what is left out
CELLS, QUIET_CELLS = (
    1800,
    500,
)  # squares of a page, and how many of them may be taken before a grid that tells nothing is drawn
PLACELESS = frozenset(
    ("rounding_mode", "accumulator", "hop_rounding", "summation_tree", "average_scaling", "ulp_bound")
)
_POINT = re.compile(r"^count=(\d+) shift=(\S+)$")


@dataclass(frozen=True, slots=True)
class Square:
    """One point. ``sure`` False: only the list of a finding's counts and shifts, not a row of evidence, names this point."""

    symbol: str
    slug: str
    says: str
    finding: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """One arm and cell: ``rows`` of (shift, squares in the order of ``counts``)."""

    arm: str
    label: str
    counts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Square, ...]], ...]
    worst: Verdict
    telling: bool  # something worse than PASS is said of places, not of the calls as such
    left_out: int  # counts that are not shown

    @property
    def cells(self) -> int:
        return len(self.rows) * len(self.counts)


@dataclass(slots=True)
class Known:
    """What is planned and recorded of one (arm, cell)."""

    arm: str
    planned: dict[Point, list[str]] = field(default_factory=dict)
    ran: set[Point] = field(default_factory=set)

    def add(self, planned: Planned, ran: bool) -> None:
        point = planned.trial.call.count, shift_name(planned.trial.send_shift, planned.trial.recv_shift)
        self.planned.setdefault(point, []).append(planned.trial.trial_id)
        if ran:
            self.ran.add(point)


def shift_name(send: int, recv: int) -> str:
    """``3`` where both buffers are shifted alike, else ``send/receive``."""
    return str(send) if send == recv else f"{send}/{recv}"


def grids(known: Mapping[tuple[str, Cell], Known], rows: Sequence[Row]) -> list[Grid]:
    """A grid for every (arm, cell) of the plan, the worst first."""
    made = []
    for (arm, cell), one in known.items():
        mine = [row for row in rows if row.get("arm") == arm and _speaks_of(row, cell)]
        made.append(_grid(cell, one, mine))
    return sorted(made, key=lambda grid: (list(Verdict).index(grid.worst), not grid.telling))


def drawn(some: Sequence[Grid]) -> tuple[list[Grid], list[Grid]]:
    """The grids that a page has room for, those that tell something first, and the others."""
    kept: list[Grid] = []
    for telling, room in ((True, CELLS), (False, QUIET_CELLS)):
        for one in some:
            if one.telling is telling and sum(other.cells for other in kept) + one.cells <= room:
                kept.append(one)
    return kept, [one for one in some if not any(one is other for other in kept)]


def _speaks_of(row: Row, cell: Cell) -> bool:
    told = scope(row)
    return all(
        name in map(str, many(told[axis]))
        for axis, name in zip(("collective", "op", "format"), cell, strict=True)
        if axis in told
    )


def _grid(cell: Cell, known: Known, rows: Sequence[Row]) -> Grid:
    said: dict[Point, list[tuple[Verdict, bool, Row]]] = {}
    for row in rows:
        for point, verdict, sure in _touched(row, known):
            said.setdefault(point, []).append((verdict, sure, row))
    counts, left_out = _columns(known, said)
    shifts = sorted({shift for _, shift in known.planned}, key=lambda name: [int(n) for n in name.split("/")])
    lines = tuple((s, tuple(_square((c, s), known, said.get((c, s), [])) for c in counts)) for s in shifts)
    every = [one for told in said.values() for one in told]
    worst = Verdict.worst([verdict for verdict, _, _ in every])
    telling = any(verdict is not Verdict.PASS and row.get("kind") not in PLACELESS for verdict, _, row in every)
    names = tuple(f"{count:,}" for count in counts)
    return Grid(known.arm, f"{cell[0]} {cell[1]} {cell[2]}", names, lines, worst, telling, left_out)


def _columns(known: Known, said: Mapping[Point, Sequence[tuple[Verdict, bool, Row]]]) -> tuple[list[int], int]:
    """The counts that are shown, in order, and how many are not: those of which the worst is said are kept first."""
    order = list(Verdict)
    worst: dict[int, int] = {}
    for count, shift in known.planned:
        told = [order.index(verdict) for verdict, _, _ in said.get((count, shift), [])]
        worst[count] = min([worst.get(count, len(order)), *told])
    kept = sorted(worst, key=lambda count: (worst[count], count))[:COUNTS]
    return sorted(kept), len(worst) - len(kept)


def _touched(row: Row, known: Known) -> Iterator[tuple[Point, Verdict, bool]]:
    """The points that a finding speaks of, with what it says there, and whether that is sure.

    A measure with ``by_point`` counts each point. Otherwise scope lists counts and shifts apart, so a FAIL at two points names
    four: then only points with a row of evidence are sure, unless there are no others.
    """
    verdict = verdict_of(row)
    if verdict is Verdict.WAIVED:
        return
    told = measure(row).get("by_point")
    if isinstance(told, Mapping) and told:
        for point, changed in _counted(told):
            yield point, verdict if changed or verdict is Verdict.INCONCLUSIVE else Verdict.PASS, True
        return
    listed = [point for point in known.planned if _in_scope(row, point)]
    ids = {str(one.get("trial")) for one in row.get("evidence", ())}
    shown = {point for point in listed if not ids.isdisjoint(known.planned[point])}
    for point in listed:
        yield point, verdict, verdict is not Verdict.FAIL or point in shown or len(listed) == 1


def _counted(told: Mapping[str, object]) -> Iterator[tuple[Point, bool]]:
    for name, value in told.items():
        match = _POINT.match(str(name))
        if match:
            first = many(value)[:1]
            yield (int(match[1]), match[2]), bool(first and first[0])


def _in_scope(row: Row, point: Point) -> bool:
    told = scope(row)
    if "count" not in told:
        return False
    send, _, recv = point[1].partition("/")
    wanted = {"count": point[0], "send_shift": int(send), "recv_shift": int(recv or send)}
    return all(value in many(told.get(name, value)) for name, value in wanted.items())


def _square(point: Point, known: Known, said: Iterable[tuple[Verdict, bool, Row]]) -> Square:
    where = f"count {point[0]:,}, shift {point[1]}"
    if point not in known.planned:
        return Square("", "none", f"{where}: not planned")
    if point not in known.ran:
        return Square("–", "notrun", f"{where}: planned, not run")
    order = list(Verdict)
    ranked = sorted(said, key=lambda one: (order.index(one[0]), not one[1]))
    if not ranked:
        return Square("○", "silent", f"{where}: run; no finding speaks of it")
    verdict, sure, row = ranked[0]
    alike = [one for one in ranked if one[0] is verdict]
    if verdict is Verdict.PASS:
        return Square(SYMBOLS[verdict], "pass", f"{where}: PASS, {plural(len(alike), 'finding')}")
    names = ", ".join(f"{one.get('id', '')} {one_line(one.get('kind', ''))}" for _, _, one in alike[:3])
    more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
    symbol = SYMBOLS[verdict] if sure else SYMBOLS[verdict].lower()
    doubt = "" if sure else " (in its scope, no evidence row here)"
    return Square(
        symbol, str(verdict).lower(), f"{where}: {verdict}{doubt}: {names}{more}", str(row.get("id", "")), sure
    )
