"""What the harness does to one rank's arenas: fill them, read them once or twice, and see what changed outside the range."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from auditor import inputs, kernels
from auditor.inputs.programs import contributors, sender
from auditor.kernels import memory
from auditor.kernels.memory import Changed, Kept, Look, Memory, Payload, Staged
from auditor.layout import GUARD, Range, fill_codes, prefill_code, recv_range, send_range
from auditor.model import Codes, Output, OutsideByte, Trial

LARGE = 1 << 22  # elements from which on inputs are made by the fast twin
OUTSIDE_CAP = 64  # outside bytes recorded one by one; the total is always stated


@dataclass(slots=True)
class Rank:
    """One local rank's arenas and what it remembers between repeats."""

    rank: int
    send: Memory
    recv: Memory
    expected: Kept = None  # the fenced send range as generated
    generated_for: tuple[str, int] = ("", -1)  # (trial_id, seed) that ``expected`` holds
    last: Kept = None  # the last output recorded, where the arena lies
    output: Codes | Output | None = None  # the same, on the host or staged
    digest: str = ""

    def keep(self, arena: Memory, trial: Trial, kept: Kept) -> None:
        """Remembers an output, its bytes on the host and its digest."""
        self.last = kept
        self.output, self.digest = _hosted(arena, trial, kept)


@dataclass(frozen=True, slots=True)
class Early:
    """What stood in the receive range when the call returned, and how long the copy of it took."""

    kept: Kept
    copy_seconds: float


@dataclass(frozen=True, slots=True)
class Called:
    send_before: bool
    seconds: float
    subject_seconds: float | None
    path: str
    returned: float  # by the host's clock
    early: Early | None


def _hosted(arena: Memory, trial: Trial, kept: Kept) -> tuple[Codes | Output, str]:
    """(kept bytes as codes on the host, or as staged where they are many, their SHA-256)."""
    if kept.nbytes <= memory.STAGING:
        raw = arena.host(kept)
        return raw.view(trial.call.fmt.dtype), hashlib.sha256(raw.data).hexdigest()
    staged, total = Staged(arena, kept), hashlib.sha256()
    for start in range(0, staged.nbytes, staged.step):
        total.update(staged.read(start, min(start + staged.step, staged.nbytes)).data)
    return staged, total.hexdigest()


def off_nearest(state: Rank, trial: Trial, repeat: int) -> int | None:
    """Wrong outputs of a large sum, counted where it lies: nobody should have to fetch gigabytes to learn that they are right."""
    at, nbytes = place_of(state, trial)
    if nbytes <= memory.STAGING or trial.call.op != "sum" or state.rank not in trial.call.receivers(trial.rank_n):
        return None
    start, period = (
        inputs.receiver_range(trial, state.rank)[0],
        trial.send_count // trial.tiled if trial.tiled > 1 else 0,
    )
    return arena_of(state, trial).off_nearest(at, trial.call.count, contributors(trial, repeat), start, period)


def rooms_of(trial: Trial, mine: Sequence[Rank]) -> dict[int, Kept]:
    """Room for what is read at once; nothing where the trial does not ask for two readings."""
    if trial.variant != "reread":
        return {}
    return {state.rank: arena_of(state, trial).room(*place_of(state, trial)) for state in mine}


def read_at_once(trial: Trial, repeat: int, mine: Sequence[Rank], rooms: dict[int, Kept]) -> dict[int, Early]:
    """Every local rank's receive range as the call left it, another rank first in each repeat."""
    first = repeat % max(len(mine), 1)
    found = {}
    for state in [*mine[first:], *mine[:first]] if rooms else ():
        began = time.perf_counter()
        arena_of(state, trial).snapshot(place_of(state, trial)[0], rooms[state.rank])
        found[state.rank] = Early(rooms[state.rank], time.perf_counter() - began)
    return found


def second_reading(
    state: Rank, arena: Memory, trial: Trial, called: Called
) -> tuple[Codes | Output | None, dict[str, Any]]:
    """(the receive range as it stands now, what the observation says of it)."""
    assert called.early is not None
    at, nbytes = place_of(state, trial)
    after = time.perf_counter() - called.returned
    same = arena.same(at, called.early.kept)
    late, digest = (state.output, state.digest) if same else _hosted(arena, trial, arena.take(at, nbytes))
    return late, {"late_digest": digest, "late_seconds": after, "copy_seconds": called.early.copy_seconds}


def arena_of(state: Rank, trial: Trial) -> Memory:
    return state.send if trial.in_place else state.recv


def place_of(state: Rank, trial: Trial) -> tuple[int, int]:
    target = recv_range(trial, state.rank)
    return target.offset, target.nbytes


def bounds(target: Range) -> tuple[int, int]:
    return target.fenced.start, target.fenced.stop


def settle(states: Sequence[Rank]) -> None:
    """Before the subject touches an arena, and before anything is looked at; once for each device."""
    for arena in {arena.where: arena for state in states for arena in (state.send, state.recv)}.values():
        arena.settle()


def fill(state: Rank, trial: Trial, repeat: int) -> None:
    """Put the repeat's inputs, fills and prefill in place; regenerates only what differs from what is remembered."""
    source, target = send_range(trial), recv_range(trial, state.rank)
    key = (trial.trial_id, trial.seed_of(repeat))
    if state.generated_for != key:
        state.expected = state.send.made(_payload(trial, repeat, state.rank), source.fenced.start)
        state.generated_for = key
        state.digest = ""
    state.send.put(source.fenced.start, state.expected)
    if not trial.in_place:
        fmt = trial.call.fmt
        state.recv.fill(target.offset, target.nbytes, prefill_code(fmt, trial.prefill), fmt.itemsize)


def _payload(trial: Trial, repeat: int, rank: int) -> Payload:
    fmt, position = trial.call.fmt, trial.members.index(rank)
    twin = kernels.evaluate if trial.send_count >= LARGE else None  # loading the fast twin costs half a second
    return Payload(
        head=fill_codes(fmt, trial.head, position, after=False),
        tail=fill_codes(fmt, trial.tail, position, after=True),
        count=trial.send_count,
        codes=lambda start, stop: inputs.send_codes(trial, repeat, rank, start, stop, evaluate=twin),
        sender=lambda: sender(trial, repeat, rank),
    )


@dataclass(frozen=True, slots=True)
class Glance:
    """Whether all is as it should be: the output the last one recorded, the send range intact and nothing changed outside."""

    known: bool
    clean: bool


def glances(trial: Trial, mine: Sequence[Rank], *, scan: bool) -> dict[int, Glance]:
    """By rank; one waiting for each device, since what is asked of a device one by one costs more than small calls."""
    outputs = {state.rank: _output_look(state, trial) for state in mine}
    around = {state.rank: _outside_looks(state, trial, scan=scan) for state in mine}
    asked = [look for rank in around for look in (*outputs[rank], *around[rank])]
    answers = iter(memory.agree(asked))
    found = {}
    for rank in around:
        known = [next(answers) for _ in outputs[rank]]
        clean = [next(answers) for _ in around[rank]]
        found[rank] = Glance(known == [True], all(clean))
    return found


def _output_look(state: Rank, trial: Trial) -> list[Look]:
    """Nothing where there is no output of this trial yet."""
    at, nbytes = place_of(state, trial)
    if not state.digest or state.last is None or state.last.nbytes != nbytes:
        return []
    return [Look(arena_of(state, trial), 0, nbytes, at, state.last)]


def _outside_looks(state: Rank, trial: Trial, *, scan: bool) -> list[Look]:
    """What outside_of looks at."""
    source, target = send_range(trial), recv_range(trial, state.rank)
    first, last = source.fenced.start, source.fenced.stop
    if trial.in_place:
        parts = ((first, target.offset), (target.stop, last))
        looks = [Look(state.send, start - first, stop - first, start, state.expected) for start, stop in parts]
    else:
        looks = [Look(state.send, 0, last - first, first, state.expected)]
        looks += [Look(state.recv, side.start, side.stop) for side in (target.head, target.tail)]
    if scan:
        used = Range(0, 0) if trial.in_place else target
        looks += [Look(state.send, *span) for span in _unused(source, state.send)]
        looks += [Look(state.recv, *span) for span in _unused(used, state.recv)]
    return looks


def _unused(used: Range, arena: Memory) -> tuple[tuple[int, int], tuple[int, int]]:
    """Everything beyond the fences of ``used``."""
    low, high = bounds(used) if used.stop else (0, 0)
    return (0, low), (high, arena.nbytes)


def outside_of(state: Rank, trial: Trial, *, scan: bool) -> tuple[bool, tuple[OutsideByte, ...], int]:
    """(send range intact, changed bytes outside the ranges, their number), byte by byte: for where a glance was not clean."""
    source, target = send_range(trial), recv_range(trial, state.rank)
    found = _Differences()
    intact = True
    if trial.in_place:
        _send_outside(found, state, source, target, target.offset)
    elif not state.send.same(source.fenced.start, state.expected):
        intact = state.send.same(source.offset, state.expected, GUARD, GUARD + source.nbytes)
        _send_outside(found, state, source, source, source.offset)
    if not trial.in_place:
        for side in (target.head, target.tail):
            found.add("recv", state.recv.strayed(side.start, side.stop, found.room), target.offset)
    if scan:
        _scan(found, "send", state.send, source, source.offset)
        _scan(found, "recv", state.recv, Range(0, 0) if trial.in_place else target, target.offset)
    return intact, tuple(found.rows), found.total


def _send_outside(found: _Differences, state: Rank, source: Range, kept: Range, origin: int) -> None:
    """The fenced send range but for ``kept`` still holds what was generated."""
    first, last = source.fenced.start, source.fenced.stop
    for start, stop in ((first, kept.offset), (kept.stop, last)):
        changed = state.send.changed(start, state.expected, start - first, stop - first, found.room)
        found.add("send", changed, origin)


def _scan(found: _Differences, name: str, arena: Memory, used: Range, origin: int) -> None:
    """Everything beyond the fences of ``used`` still holds the background."""
    for start, stop in _unused(used, arena):
        found.add(name, arena.strayed(start, stop, found.room), origin)


class _Differences:
    """Collects changed bytes, capped, with their total."""

    def __init__(self) -> None:
        self.rows: list[OutsideByte] = []
        self.total = 0

    @property
    def room(self) -> int:
        return OUTSIDE_CAP - len(self.rows)

    def add(self, name: str, changed: Changed, origin: int) -> None:
        self.total += changed.total
        for offset, expected, found in zip(changed.offsets, changed.expected, changed.found, strict=True):
            self.rows.append(OutsideByte(buffer=name, offset=offset - origin, expected=expected, found=found))
