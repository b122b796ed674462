"""Findings of two runs matched by probe, kind and scope, and what changed between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.compare import measures
from auditor.compare.records import Change, Difference, MeasureChange
from auditor.model import Finding, Planned, Verdict

AXES = ("collective", "op", "format")
EXTENT = (*AXES, "count", "send_shift", "recv_shift", "in_place", "root", "group")
GREW = ("elements", "elements_changed", "share", "changed_pairs", "observations")
Match = tuple[Finding | None, Finding | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What each probe of an arm asked for: (trial id, repeats), and cells (collective, op, format)."""

    trials: Mapping[str, frozenset[tuple[str, int]]]
    cells: Mapping[str, frozenset[tuple[str, str, str]]]

    @staticmethod
    def of(planned: Iterable[Planned]) -> Asked:
        trials: dict[str, set[tuple[str, int]]] = {}
        cells: dict[str, set[tuple[str, str, str]]] = {}
        for one in planned:
            call = one.trial.call
            for probe in (*one.probes, "harness"):
                trials.setdefault(probe, set()).add((one.trial.trial_id, one.repeats))
                cells.setdefault(probe, set()).add((call.collective, call.op, call.format))
        return Asked(
            {name: frozenset(some) for name, some in trials.items()},
            {name: frozenset(some) for name, some in cells.items()},
        )

    def covers(self, one: Finding) -> bool:
        """Whether the finding's probe was asked about any part of its cell."""
        wanted = cell_of(one)
        return any(
            all(not wanted[axis] or value in wanted[axis] for axis, value in zip(AXES, cell, strict=True))
            for cell in self.cells.get(one.probe, ())
        )


def cell_of(one: Finding) -> dict[str, tuple[str, ...]]:
    """The values of collective, op and format that a finding speaks of; () where it does not say."""
    return {axis: tuple(map(str, _many(one.scope[axis]))) if axis in one.scope else () for axis in AXES}


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


# ----------------------------------------------------------------------------------------------------------------- matching


def matched(base: Sequence[Finding], other: Sequence[Finding]) -> list[Match]:
    """Pairs of findings, None where there is no partner. Within a probe and kind: equal scopes first, then the same cell and
    family, then the same cell, then whatever speaks of the cell too (one PASS for all formats, FAIL for one of them).
    """
    left, right = list(base), list(other)
    found: list[Match] = []
    for key in (_whole_scope, _cell_and_family, _cell):
        for x, y in _alone_in(left, right, key):
            found.append((x, y))
            left, right = [row for row in left if row is not x], [row for row in right if row is not y]
    links: list[Match] = [(next((one for one in (*left, *base) if _covers(one, y)), None), y) for y in right]
    links += [(x, next((one for one in (*right, *other) if _covers(one, x)), None)) for x in left]
    linked = {id(one) for pair in links if None not in pair for one in pair}
    return found + [pair for pair in links if None not in pair or not any(id(one) in linked for one in pair)]


def _whole_scope(one: Finding) -> tuple[Any, ...]:
    return one.probe, one.kind, repr(sorted(one.scope.items()))


def _cell_and_family(one: Finding) -> tuple[Any, ...]:
    return (*_cell(one), repr(sorted(map(str, _many(one.scope.get("family"))))))


def _cell(one: Finding) -> tuple[Any, ...]:
    cell = cell_of(one)
    return (one.probe, one.kind, *(tuple(sorted(cell[axis])) for axis in AXES))


def _alone_in(
    left: Sequence[Finding], right: Sequence[Finding], key: Callable[[Finding], tuple[Any, ...]]
) -> Iterator[tuple[Finding, Finding]]:
    """Pairs that share a key which is nobody else's on either side."""
    sides: list[dict[tuple[Any, ...], list[Finding]]] = [{}, {}]
    for side, rows in zip(sides, (left, right), strict=True):
        for row in rows:
            side.setdefault(key(row), []).append(row)
    for name, mine in sides[0].items():
        theirs = sides[1].get(name, [])
        if len(mine) == len(theirs) == 1:
            yield mine[0], theirs[0]


def _covers(wide: Finding, narrow: Finding) -> bool:
    if (wide.probe, wide.kind) != (narrow.probe, narrow.kind):
        return False
    x, y = cell_of(wide), cell_of(narrow)
    return all(not x[axis] or set(y[axis]) <= set(x[axis]) for axis in AXES)


# ------------------------------------------------------------------------------------------------------------------ changes


@dataclass(frozen=True, slots=True)
class Compared:
    """``alike``: findings that are the same in both. ``unasked``: probe -> findings that only one run has, where the plans share
    no trial.
    """

    changes: tuple[Change, ...]
    alike: int
    unasked: Mapping[str, int]


def compared(base: Sequence[Finding], other: Sequence[Finding], asked: tuple[Asked, Asked]) -> Compared:
    """``asked``: what the plans of the base's arm and of the other's asked for."""
    found: list[Change] = []
    alike, unasked = 0, dict[str, int]()
    for x, y in matched(base, other):
        lone = y if x is None else x if y is None else None
        if lone is not None and not (_share(asked, lone.probe) and asked[0 if x is None else 1].covers(lone)):
            unasked[lone.probe] = unasked.get(lone.probe, 0) + 1
        elif (change := _change(x, y, asked)) is not None:
            found.append(change)
        else:
            alike += 1
    return Compared(tuple(sorted(found, key=_rank)), alike, unasked)


def _share(asked: tuple[Asked, Asked], probe: str) -> bool:
    """Whether a probe asked both arms for any trial that is the same."""
    x, y = ({trial for trial, _ in one.trials.get(probe, ())} for one in asked)
    return not x.isdisjoint(y)


def _rank(change: Change) -> tuple[Any, ...]:
    verdict = change.other_verdict or change.base_verdict or Verdict.WAIVED
    return not change.worse, list(Verdict).index(verdict), change.probe, change.kind


def _change(x: Finding | None, y: Finding | None, asked: tuple[Asked, Asked]) -> Change | None:
    if x is None or y is None:
        return _lone(x, y)
    same_plan = asked[0].trials.get(x.probe) == asked[1].trials.get(
        x.probe
    )  # scopes may differ: of a FAIL, where it shows
    waived = Verdict.WAIVED in (x.verdict, y.verdict)
    told = [] if waived else measures.changes(x.measure, y.measure, same_data=same_plan)
    if x.verdict is y.verdict is Verdict.PASS:  # not there in both: how much was looked at is no change, a word may be
        told = [one for one in told if isinstance(one.base, str) or isinstance(one.other, str)]
    there = x.verdict is y.verdict and x.verdict in (Verdict.FAIL, Verdict.INFORMATION)
    extent = _extent(x, y) if same_plan and there else []
    what = "verdict" if x.verdict is not y.verdict else "measure" if told else "extent" if extent else ""
    if not what:
        return None
    limits = "" if same_plan or waived else "The two were not measured on the same trials."
    worse = worse_than(x.verdict, y.verdict) or (x.verdict is y.verdict is Verdict.FAIL and _grew(told))
    return _made(what, worse, x, y, measures=tuple(told), extent=tuple(extent), limits=limits)


def _lone(x: Finding | None, y: Finding | None) -> Change | None:
    """A finding without a partner, though both runs asked. What passed or was waived in one of them alone says nothing new."""
    one = y if x is None else x
    if one is None or one.verdict in (Verdict.PASS, Verdict.WAIVED):
        return None
    worse = x is None and one.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    return _made("new" if x is None else "gone", worse, x, y)


def _made(what: str, worse: bool, x: Finding | None, y: Finding | None, **more: Any) -> Change:
    one = y or x
    assert one is not None
    return Change(
        what=what,
        worse=worse,
        probe=one.probe,
        kind=one.kind,
        cell=cell_of(one),
        base_id=x.id if x else "",
        other_id=y.id if y else "",
        base_verdict=x.verdict if x else None,
        other_verdict=y.verdict if y else None,
        base_claim=x.claim if x else "",
        other_claim=y.claim if y else "",
        measured=y.measure if y else {},
        **more,
    )


def worse_than(before: Verdict, after: Verdict) -> bool:
    """Whether ``after`` is worse in the order FAIL, INCONCLUSIVE, INFORMATION, PASS. What was known and is WAIVED now is worse
    too; what was WAIVED and is open or wrong now as well.
    """
    if after is Verdict.WAIVED:
        return before in (Verdict.INFORMATION, Verdict.PASS)
    if before is Verdict.WAIVED:
        return after in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    return Verdict.worst([before, after]) is after is not before


def _grew(told: Sequence[MeasureChange]) -> bool:
    """Whether a FAIL shows more of what is wrong."""
    for one in told:
        if one.name in GREW:
            x, y = one.base_95, one.other_95
            if y[0] > x[1] if x and y else one.other > one.base:
                return True
    return False


def _extent(x: Finding, y: Finding) -> list[Difference]:
    """The places at which each of two findings of one plan shows."""
    return [
        Difference("extent", axis, _listed(x.scope[axis]), _listed(y.scope[axis]))
        for axis in EXTENT
        if axis in x.scope and axis in y.scope and {*_keys(x.scope[axis])} != {*_keys(y.scope[axis])}
    ]


def _keys(value: Any) -> list[str]:
    return [str(one) for one in _many(value)]


def _listed(value: Any) -> str:
    return ", ".join(_keys(value))
