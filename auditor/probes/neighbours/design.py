"""Which trials show by what a rounding is keyed: all laid out before anything runs, at one point a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from auditor import inputs
from auditor.config import Scope
from auditor.errors import ConfigError
from auditor.inputs.contexts import PERIOD, TOGGLES, block_elements, pieces_of
from auditor.model import COLLECTIVES, Call, Family, Trial

LEAST_COUNT = 1 << 15  # of the sweep's largest: below, no large call is asked for
LIGHT_COUNT = 1 << 16
REPEATS = 3
FULL_BITS = 16  # formats that get the whole set of trials, in the first collective; other cells get the light one

SPARSE, DENSE, CONSTANT = (Family.parse(f"neighbours:part={part}") for part in ("sparse", "dense", "constant"))
ONE, ODD = (Family.parse(f"neighbours:part=dense,redraw={which}") for which in ("one", "odd"))
TURNED = Family.parse("neighbours:part=dense,turn=1")
SCANS = {name: Family.parse(f"neighbours:part=scan,toggle={name}") for name in TOGGLES}
PADDED = Family.parse("neighbours:part=padded")
SCAN_SEEDS = 4
NATURAL = (Family("smooth"), Family("wide"))


def wanted(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """At most 26 trials of the cell that is looked at in full, 5 of another."""
    full: set[str] = set()
    if max(scope.sweep.count) < LEAST_COUNT:
        return
    for call in _calls(scope):
        count = _count(scope, call, light=call.format in full or call.fmt.bits != FULL_BITS)
        base = Trial(
            call=replace(call, count=count),
            rank_n=scope.arm.ranks,
            family=DENSE,
            seed=min(scope.sweep.seed),
            active="all" if len(call.members(scope.arm.ranks)) == 2 else "0,1",
        )
        if scope.excluded(base) is not None or not _takes(base):
            continue
        whole = call.fmt.bits == FULL_BITS and call.format not in full
        full.add(call.format)
        yield from ((t, n) for t, n in (_full(base) if whole else _light(base)) if scope.excluded(t) is None)


def _calls(scope: Scope) -> list[Call]:
    """Sums of two members or more, all_reduce first; one root and one group a cell."""
    cells: dict[tuple[str, str], Call] = {}
    for call in scope.calls():
        if call.op == "sum" and len(call.members(scope.arm.ranks)) > 1:
            cells.setdefault((call.collective, call.format), call)
    return sorted(cells.values(), key=lambda call: COLLECTIVES.index(call.collective))


def _count(scope: Scope, call: Call, *, light: bool) -> int:
    """Elements a receiver, whole blocks of them where there are that many; no more than a period is sent."""
    most = max(scope.sweep.count)
    if most < LEAST_COUNT:
        return most
    total = min(most, LIGHT_COUNT if light else PERIOD)
    if call.collective == "reduce_scatter":
        total //= len(call.members(scope.arm.ranks))
    return total // block_elements(call.fmt) * block_elements(call.fmt)


def _takes(trial: Trial) -> bool:
    try:
        inputs.check(trial.family, trial.call.fmt, 2)
    except ConfigError:
        return False
    return True


def _light(base: Trial) -> Iterator[tuple[Trial, int]]:
    yield base.with_(family=SPARSE), 2
    yield base, 1
    yield base.with_(family=ONE), 1
    yield base.with_(family=ODD), 1
    yield base.with_(seed=base.seed + 1), 1


def _full(base: Trial) -> Iterator[tuple[Trial, int]]:
    yield base.with_(family=SPARSE), REPEATS
    yield base, 2
    yield base.with_(family=ONE), 1
    yield base.with_(family=ODD), 1
    yield base.with_(family=TURNED), 1
    yield base.with_(seed=base.seed + 1), 1
    yield base.with_(send_shift=1, recv_shift=1), 1
    yield base.with_(family=CONSTANT), 1
    yield base.with_(family=CONSTANT, send_shift=1, recv_shift=1), 1
    yield base.with_(family=CONSTANT, send_shift=1), 1
    for family in NATURAL:
        yield base.with_(family=family), 1
    yield base.with_(family=PADDED), REPEATS
    for number in range(SCAN_SEEDS):
        for toggle in TOGGLES if number == 0 else TOGGLES[:2]:
            yield base.with_(family=SCANS[toggle], seed=base.seed + number), 1
    if (fine := fine_positions(base)) is not None:
        yield base.with_(seed=base.seed + 2, active=fine), 1


def fine_positions(trial: Trial) -> str | None:
    """``active`` of as many contributors as make rem fine, where that is more than two."""
    n = 1 + pieces_of(trial.call.fmt, len(trial.members))
    if n < 3:
        return None
    return "all" if n == len(trial.members) else ",".join(str(position) for position in range(n))


def role(trial: Trial, first: Trial) -> str:
    """What a planned trial is for. ``first``: the cell's plain dense trial of the lowest seed."""
    names = {SPARSE: "sparse", ONE: "one", ODD: "odd", TURNED: "turned", CONSTANT: "constant", PADDED: "padded"}
    names |= {family: f"scan_{toggle}_{trial.seed}" for toggle, family in SCANS.items()}
    name = names.get(trial.family, trial.family.name)
    if name == "constant" and trial.send_shift:
        return "constant_shifted" if trial.recv_shift else "constant_moved"
    if name != "neighbours":
        return name
    if trial.active != first.active:
        return "fine"
    if trial.seed != first.seed:
        return "held_out"
    return "shifted" if trial.send_shift else "dense"
