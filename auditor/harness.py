"""The only loop that calls a backend: fill, call, look, record; per trial, per repeat, per local rank.

What is checked on every repeat, byte for byte: the send arena (fills and payload) before and after the call, and the guards
of the receive range; the whole of both arenas after a trial where that costs no more than the trial itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from auditor import inputs, kernels
from auditor.errors import AuditError, Unsupported
from auditor.inputs.programs import sender
from auditor.kernels.memory import Changed, Kept, Memory, Payload, adopt
from auditor.layout import (
    ALIGNMENT,
    GUARD,
    PERIOD,
    Background,
    Range,
    arena_bytes,
    fill_codes,
    prefill_code,
    recv_range,
    send_range,
)
from auditor.model import Bytes, Capabilities, Codes, Observation, OutsideByte, Planned, Trial, Window, World

LARGE = 1 << 22  # elements from which on inputs are made by the fast twin
OUTSIDE_CAP = 64  # outside bytes recorded one by one; the total is always stated
SMALL_ARENA = 1 << 20


class Recorder(Protocol):
    """Where observations go: a shard."""

    def append(self, trial: Trial, observation: Observation, output: Codes | None) -> None: ...
    def flush(self) -> None: ...


class Progress(Protocol):
    """Tells a supervisor what is in flight, so that a hang or a death is laid at the right trial."""

    def begin(self, trial_id: str, repeat: int) -> None: ...
    def end(self) -> None: ...
    def failed(self) -> None: ...


@dataclass(slots=True)
class Job:
    """What one process is asked to do: the trials in order, and whether the repeats come from fresh processes."""

    planned: Sequence[Planned]
    fresh_repeat: int | None = None


@dataclass(slots=True)
class _Rank:
    """One local rank's arenas and what it remembers between repeats."""

    rank: int
    send: Memory
    recv: Memory
    expected: Kept = None  # the fenced send range as generated
    generated_for: tuple[str, int] = ("", -1)  # (trial_id, seed) that ``expected`` holds
    last: Kept = None  # the last output recorded, where the arena lies
    output: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))  # the same, on the host
    digest: str = ""


class Harness:
    """Drives one backend of one arm from one process."""

    def __init__(
        self, backend: Any, world: World, capabilities: Capabilities, job: Job, recorder: Recorder, progress: Progress
    ) -> None:
        self.backend, self.world, self.features = backend, world, capabilities.features
        self.job, self.recorder, self.progress = job, recorder, progress
        self.nbytes = arena_bytes(planned.trial for planned in job.planned)
        send, recv = backend.allocate(self.nbytes), backend.allocate(self.nbytes)
        self.ranks = [self._adopt(rank, send[rank], recv[rank]) for rank in world.local_ranks]

    def _adopt(self, rank: int, send: Any, recv: Any) -> _Rank:
        arenas = {}
        for name, buffer in (("send", send), ("recv", recv)):
            arena = arenas[name] = adopt(buffer, Background(rank, name).bytes(0, 2 * PERIOD))
            if buffer.dtype != np.uint8 or buffer.shape != (self.nbytes,) or arena.address % ALIGNMENT:
                raise AuditError(
                    f"{type(self.backend).__name__}.allocate: the {name} arena of rank {rank} is not a "
                    f"512-byte aligned 1-D uint8 array of {self.nbytes} bytes"
                )
            arena.restore(0, self.nbytes)
            arena.settle()
        return _Rank(rank, arenas["send"], arenas["recv"])

    def run(self) -> None:
        """All trials of the job, in order."""
        for number, planned in enumerate(self.job.planned):
            self.trial(planned, last=number == len(self.job.planned) - 1)
            self.recorder.flush()

    def trial(self, planned: Planned, *, last: bool = False) -> None:
        """All repeats of one trial; stops at the first error of the subject."""
        trial = planned.trial
        fresh = self.job.fresh_repeat
        repeats = range(planned.repeats) if fresh is None else range(fresh, fresh + 1)
        mine = [state for state in self.ranks if state.rank in trial.members]
        try:
            perform = _Variant(self.backend, self.features, trial)
        except Exception as error:
            self._refused(trial, repeats[0], mine, error)
            return
        for repeat in repeats:
            scan = repeat == repeats[-1] and (last or self._scan_is_cheap(trial))
            if not self._repeat(trial, repeat, mine, perform, scan=scan):
                break
        perform.done()
        for state in mine:
            state.send.restore(*_bounds(send_range(trial)))
            state.recv.restore(*_bounds(recv_range(trial, state.rank)))
            state.last, state.output = None, np.empty(0, np.uint8)

    def _scan_is_cheap(self, trial: Trial) -> bool:
        return self.nbytes <= max(SMALL_ARENA, 8 * send_range(trial).nbytes)

    def _repeat(self, trial: Trial, repeat: int, mine: list[_Rank], perform: _Variant, *, scan: bool) -> bool:
        for state in mine:
            _fill(state, trial, repeat)
        first = send_range(trial).fenced.start
        before = {state.rank: state.send.same(first, state.expected) for state in mine}
        _settle(mine)
        send, recv = self._windows(trial, mine)
        self.world.control.barrier()  # one-sided libraries may write into a peer as soon as one rank calls
        self.progress.begin(trial.trial_id, repeat)
        started = time.perf_counter()
        try:
            if mine:
                perform(repeat, send, recv)
        except Exception as error:
            self._refused(trial, repeat, mine, error)
            return False
        seconds = time.perf_counter() - started
        self.progress.end()
        _settle(mine)
        path = str(self.backend.path()) if "path" in self.features and mine else ""
        own = float(self.backend.last_seconds()) if "timing" in self.features and mine else None
        for state in mine:
            self._look(trial, repeat, state, _Called(before[state.rank], seconds, own, path), scan=scan)
        return True

    def _windows(self, trial: Trial, mine: list[_Rank]) -> tuple[Mapping[int, Window], Mapping[int, Window]]:
        source = send_range(trial)
        send = {state.rank: Window(state.send.buffer, source.offset, source.nbytes) for state in mine}
        recv = {}
        for state in mine:
            target = recv_range(trial, state.rank)
            arena = state.send if trial.in_place else state.recv
            recv[state.rank] = Window(arena.buffer, target.offset, target.nbytes)
        return send, recv

    def _refused(self, trial: Trial, repeat: int, mine: list[_Rank], error: Exception) -> None:
        status = "unsupported" if isinstance(error, Unsupported) else "error"
        words = f"{type(error).__name__}: {error}" if status == "error" else str(error)
        for state in mine:
            row = Observation(trial_id=trial.trial_id, repeat=repeat, rank=state.rank, status=status, message=words)
            self.recorder.append(trial, row, None)
        self.recorder.flush()
        self.progress.failed()  # peers may wait for this rank in vain; the supervisor sees it

    def _look(self, trial: Trial, repeat: int, state: _Rank, called: _Called, *, scan: bool) -> None:
        target = recv_range(trial, state.rank)
        arena = state.send if trial.in_place else state.recv
        known = state.digest and state.last is not None and state.last.nbytes == target.nbytes
        if not (known and arena.same(target.offset, state.last)):
            state.last = arena.take(target.offset, target.nbytes)
            state.output = arena.host(state.last)
            state.digest = hashlib.sha256(state.output.data).hexdigest()
        intact, outside, total = _outside(state, trial, scan=scan)
        row = Observation(
            trial_id=trial.trial_id,
            repeat=repeat,
            rank=state.rank,
            status="ok",
            digest=state.digest,
            send_before=called.send_before,
            send_after=intact,
            outside=outside,
            outside_total=total,
            path=called.path,
            seconds=called.seconds,
            subject_seconds=called.subject_seconds,
        )
        self.recorder.append(trial, row, state.output.view(trial.call.fmt.dtype))


@dataclass(frozen=True, slots=True)
class _Called:
    send_before: bool
    seconds: float
    subject_seconds: float | None
    path: str


class _Variant:
    """How one trial's call is issued: plain, registered, as a replayed graph, or after the communicators changed."""

    def __init__(self, backend: Any, features: frozenset[str], trial: Trial) -> None:
        self.backend, self.trial = backend, trial
        self.name, _, argument = trial.variant.partition(":")
        self.k = int(argument or 0)
        self.replay: Callable[[], None] | None = None
        needs = {"history": "history", "recreate": "recreate", "registered": "registration", "graph": "graph"}
        if self.name in needs and needs[self.name] not in features:
            raise Unsupported(f"variant {trial.variant} needs the feature {needs[self.name]!r}")
        if self.name == "history":
            backend.perturb(self.k)

    def __call__(self, repeat: int, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if self.name == "recreate" and 0 < repeat <= self.k:
            self.backend.recreate()
        if self.name == "registered" and repeat == 0:
            for window in (*send.values(), *recv.values()):
                self.backend.register(window)
        if self.name == "graph":
            if self.replay is None:
                self.replay = self.backend.capture(self.trial.call, send, recv)
            self.replay()
            return
        self.backend.run(self.trial.call, send, recv)

    def done(self) -> None:
        if self.name == "history":
            self.backend.perturb(0)


def _bounds(target: Range) -> tuple[int, int]:
    return target.fenced.start, target.fenced.stop


def _settle(states: Sequence[_Rank]) -> None:
    """Before the subject touches an arena, and before anything is looked at."""
    for state in states:
        state.send.settle()
        state.recv.settle()


def _fill(state: _Rank, trial: Trial, repeat: int) -> None:
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


def _outside(state: _Rank, trial: Trial, *, scan: bool) -> tuple[bool, tuple[OutsideByte, ...], int]:
    """(send range intact, changed bytes outside the ranges, their number)."""
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


def _send_outside(found: _Differences, state: _Rank, source: Range, kept: Range, origin: int) -> None:
    """The fenced send range but for ``kept`` still holds what was generated."""
    first, last = source.fenced.start, source.fenced.stop
    for start, stop in ((first, kept.offset), (kept.stop, last)):
        changed = state.send.changed(start, state.expected, start - first, stop - first, found.room)
        found.add("send", changed, origin)


def _scan(found: _Differences, name: str, arena: Memory, used: Range, origin: int) -> None:
    """Everything beyond the fences of ``used`` still holds the background."""
    low, high = _bounds(used) if used.stop else (0, 0)
    for start, stop in ((0, low), (high, arena.nbytes)):
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
