"""Which trials the tail probe wants of a cell: where its fills are put, and which fills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from auditor.config import Scope
from auditor.model import Family, Trial
from auditor.numerics import triggers
from auditor.probes.differences import FAMILY, WORD, base_trials

RANDOMS = 64  # random fills: together they miss a rule that follows them with p >= 0.27 in < 2e-9
SMALL = 1 << 20  # bytes of a send range that may be sent many times
LARGE_RANDOMS = 8
DRAWS = 8  # random fills of the same data
HIGH, LOW = (Family.parse(f"tail_trigger:rem={rem}") for rem in ("high", "low"))
GRID_FILLS = ("random:1", "nan", "random:2", "huge", "random:3", "finite")


def ground(trial: Trial) -> Trial:
    return trial.with_(head="zero", tail="zero")


def cells_of(scope: Scope) -> list[list[Trial]]:
    """Points by (collective, op, format, root, group), of the first seed and family."""
    cells: dict[Trial, list[Trial]] = {}
    families, seeds = scope.families(FAMILY), scope.sweep.seed
    for trial in base_trials(scope):
        if trial.family == families[0] and trial.seed == seeds[0]:
            key = trial.with_(count=0, send_shift=0, recv_shift=0, in_place=False)
            cells.setdefault(key, []).append(trial)
    return list(cells.values())


def wanted(points: Sequence[Trial], *, deep_randoms: int) -> Iterator[Trial]:
    """Trials of one cell, the most telling first: what the budget cuts off is the end. ``deep_randoms``: random fills that come
    before the grid of all points; others are strewn into it.
    """
    deep = deep_points(points)
    for number, point in enumerate(deep):
        yield point
        yield from _named(point, full=number == 0, sides=number < 2)
        yield point.with_(prefill="snan_b")  # a control: nothing but the prefill differs
    for point in _residues(points):
        yield from _triggered(point)
    if deep_randoms:
        yield from bitwise(deep[0])
    randoms = _randoms(deep, LARGE_RANDOMS if _bytes(deep[0]) > SMALL else RANDOMS)
    yield from islice(randoms, deep_randoms)
    others = [point for point in _ordered(points) if point not in deep]
    for number, point in enumerate(others):
        yield point
        yield _both(point, GRID_FILLS[number % len(GRID_FILLS)])
        if number % 2:
            yield from islice(randoms, 1)
    yield from randoms


def _randoms(deep: Sequence[Trial], n: int) -> Iterator[Trial]:
    """``n`` random fills, in groups that share a point and data: an element whose sum is exact, or whose remainder no noise can
    carry over, would never tell, however many fills it sees.
    """
    for k in range(n):
        group = 1 + k // DRAWS
        point = deep[group % len(deep)]
        yield _both(point, f"random:{k}").with_(seed=point.seed + group)


def _both(trial: Trial, fill: str) -> Trial:
    return trial.with_(head=fill, tail=fill)


def _named(point: Trial, *, full: bool, sides: bool) -> Iterator[Trial]:
    """Named fills, a random one and the trigger; ``sides``: each side by itself as well."""
    for fill in ("nan", "random:0", *(("huge", "finite") if full else ())):
        yield _both(point, fill)
    yield from _triggered(point)
    for fill in ("nan", "random:0")[: sides + full]:
        yield point.with_(tail=fill)
        yield point.with_(head=fill)


def _triggered(point: Trial) -> Iterator[Trial]:
    """NUMERICS §1.5: sums of 1 + 7/8 ulp beside sums of 1.0 or 1.75; the fills of ranks 0 and 1 make those."""
    if {0, 1} <= set(point.members):
        for fill in ("trigger:A", "trigger:B"):
            yield _both(point, fill).with_(family=Family("tail_trigger"))


def bitwise(point: Trial) -> Iterator[Trial]:
    """Fills that differ from one another in a single bit of their sums' word, beside sums that the least noise takes up; and all
    bits at once, beside sums that it takes up and beside sums that hardly any does. A rule that another bit than those of
    NUMERICS §1.5 decides, or that takes a sum down, shows here.
    """
    fmt = point.call.fmt
    if not {0, 1} <= set(point.members) or not triggers.bits(fmt) or _bytes(point) > SMALL:
        return
    for family, names in (
        (HIGH, (triggers.BASE, *triggers.bits(fmt), triggers.ALL)),
        (LOW, (triggers.BASE, triggers.ALL)),
    ):
        if triggers.tipped(fmt, str(family.get("rem", ""))) is not None:
            yield from (_both(point, f"trigger:{name}").with_(family=family) for name in names)


def _bytes(trial: Trial) -> int:
    return trial.send_count * trial.call.fmt.itemsize


def _small(points: Sequence[Trial]) -> list[Trial]:
    least = min(_bytes(point) for point in points)
    return [point for point in points if _bytes(point) <= max(SMALL, least)]


def deep_points(points: Sequence[Trial]) -> list[Trial]:
    """Up to three points for many fills: a range that ends within a word and begins at one; the same moved off its word; and
    another count, in place where the sweep has that.
    """
    some = _small(points)
    apart = [point for point in some if not point.in_place] or some
    first = max(
        apart, key=lambda p: (_bytes(p) > WORD, _bytes(p) % 8 != 0, _bytes(p) % WORD != 0, not _off(p), _bytes(p))
    )
    moved = [p for p in apart if p.call.count == first.call.count and _off(p)]
    other = [p for p in some if _bytes(p) % WORD != _bytes(first) % WORD]
    chosen = [first]
    if moved:
        chosen.append(max(moved, key=lambda p: (_off(p) % 8 != 0, -p.send_shift)))
    if other:
        chosen.append(max(other, key=lambda p: (p.in_place, _bytes(p) % 8 != 0, not _off(p), _bytes(p))))
    return list(dict.fromkeys(chosen))


def _off(trial: Trial) -> int:
    """Bytes from the last word border to the first send element."""
    return trial.send_shift * trial.call.fmt.itemsize % WORD


def _residues(points: Sequence[Trial]) -> list[Trial]:
    """One small point for each way in which a range may begin and end within 8 bytes, at most four."""
    seen: dict[tuple[int, int], Trial] = {}
    for point in sorted(_small(points), key=lambda p: (p.in_place, _off(p), -_bytes(p))):
        seen.setdefault((_off(point) % 8, (_off(point) + _bytes(point)) % 8), point)
    partial = [point for key, point in seen.items() if key != (0, 0)]
    return partial[:4]


def _ordered(points: Sequence[Trial]) -> list[Trial]:
    """All points, those with a new (count, shift) residue within a word first; large ones once."""
    fresh, rest, large = [], [], []
    seen: set[tuple[int, int]] = set()
    for point in points:
        key = (_off(point), _bytes(point) % WORD)
        if _bytes(point) > SMALL:
            large.append(point)
        elif key in seen:
            rest.append(point)
        else:
            seen.add(key)
            fresh.append(point)
    return fresh + large[-1:] + _spread(rest)


def _spread(points: list[Trial]) -> list[Trial]:
    """The same points in strides, so that a cut leaves some of every axis."""
    stride = 7
    return [point for start in range(stride) for point in points[start::stride]]
