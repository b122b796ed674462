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
from auditor.kernels.host import equal
from auditor.layout import ALIGNMENT, Background, Range, arena_bytes, fill_codes, prefill_code, recv_range, send_range
from auditor.model import Bytes, Capabilities, Codes, Observation, OutsideByte, Planned, Trial, Window, World

BLOCK = 1 << 18  # elements generated at a time
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
    send: Any
    recv: Any
    send_background: Background
    recv_background: Background
    expected: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))  # the fenced send range as generated
    generated_for: tuple[str, int] = ("", -1)  # (trial_id, seed) that ``expected`` holds
    last: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    digest: str = ""


def host_view(buffer: Any) -> Bytes:
    """The arena as a NumPy byte array. Device arenas get their twin with the first device backend."""
    if not isinstance(buffer, np.ndarray):
        raise AuditError(f"an arena of type {type(buffer).__name__} is not host memory")
    return buffer


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
        for name, buffer in (("send", send), ("recv", recv)):
            view = host_view(buffer)
            address = int(view.__array_interface__["data"][0])
            if view.dtype != np.uint8 or view.shape != (self.nbytes,) or address % ALIGNMENT:
                raise AuditError(
                    f"{type(self.backend).__name__}.allocate: the {name} arena of rank {rank} is not a "
                    f"512-byte aligned 1-D uint8 array of {self.nbytes} bytes"
                )
        ready = _Rank(rank, host_view(send), host_view(recv), Background(rank, "send"), Background(rank, "recv"))
        _restore(ready.send, ready.send_background, 0, self.nbytes)
        _restore(ready.recv, ready.recv_background, 0, self.nbytes)
        return ready

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
            _restore(state.send, state.send_background, *_bounds(send_range(trial)))
            _restore(state.recv, state.recv_background, *_bounds(recv_range(trial, state.rank)))
            state.last = np.empty(0, np.uint8)

    def _scan_is_cheap(self, trial: Trial) -> bool:
        return self.nbytes <= max(SMALL_ARENA, 8 * send_range(trial).nbytes)

    def _repeat(self, trial: Trial, repeat: int, mine: list[_Rank], perform: _Variant, *, scan: bool) -> bool:
        for state in mine:
            _fill(state, trial, repeat)
        before = {state.rank: _same(state.send[send_range(trial).fenced], state.expected) for state in mine}
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
        path = str(self.backend.path()) if "path" in self.features and mine else ""
        own = float(self.backend.last_seconds()) if "timing" in self.features and mine else None
        for state in mine:
            self._look(trial, repeat, state, _Called(before[state.rank], seconds, own, path), scan=scan)
        return True

    def _windows(self, trial: Trial, mine: list[_Rank]) -> tuple[Mapping[int, Window], Mapping[int, Window]]:
        source = send_range(trial)
        send = {state.rank: Window(state.send, source.offset, source.nbytes) for state in mine}
        recv = {}
        for state in mine:
            target = recv_range(trial, state.rank)
            recv[state.rank] = Window(state.send if trial.in_place else state.recv, target.offset, target.nbytes)
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
        output = arena[target.body]
        if not state.digest or state.last.nbytes != output.nbytes or not _same(output, state.last):
            state.last, state.digest = output.copy(), hashlib.sha256(output.data).hexdigest()
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
        self.recorder.append(trial, row, state.last.view(trial.call.fmt.dtype))


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


def _restore(arena: Bytes, background: Background, start: int, stop: int) -> None:
    for offset, block in background.blocks(max(start, 0), min(stop, arena.nbytes)):
        arena[offset : offset + block.nbytes] = block


def _same(a: Bytes, b: Bytes) -> bool:
    return a.nbytes == b.nbytes and equal(a, b)


def _fill(state: _Rank, trial: Trial, repeat: int) -> None:
    """Put the repeat's inputs, fills and prefill in place; regenerates only what differs from what is remembered."""
    source, target = send_range(trial), recv_range(trial, state.rank)
    key = (trial.trial_id, trial.seed_of(repeat))
    if state.generated_for != key:
        state.expected = _generate(trial, repeat, state.rank)
        state.generated_for = key
        state.digest = ""
    state.send[source.fenced] = state.expected
    if not trial.in_place:
        state.recv[target.body].view(trial.call.fmt.dtype)[:] = prefill_code(trial.call.fmt, trial.prefill)


def _generate(trial: Trial, repeat: int, rank: int) -> Bytes:
    fmt = trial.call.fmt
    position = trial.members.index(rank)
    head = fill_codes(fmt, trial.head, position, after=False)
    tail = fill_codes(fmt, trial.tail, position, after=True)
    codes = np.empty(head.size + trial.send_count + tail.size, fmt.dtype)
    codes[: head.size], codes[head.size + trial.send_count :] = head, tail
    twin = kernels.evaluate if trial.send_count >= LARGE else None  # loading the fast twin costs half a second
    for start in range(0, trial.send_count, BLOCK):
        stop = min(start + BLOCK, trial.send_count)
        part = inputs.send_codes(trial, repeat, rank, start, stop, evaluate=twin)
        codes[head.size + start : head.size + stop] = part
    return codes.view(np.uint8)


def _outside(state: _Rank, trial: Trial, *, scan: bool) -> tuple[bool, tuple[OutsideByte, ...], int]:
    """(send range intact, changed bytes outside the ranges, their number)."""
    source, target = send_range(trial), recv_range(trial, state.rank)
    found = _Differences()
    now = state.send[source.fenced]
    intact = True
    if trial.in_place:
        inside = slice(target.offset - source.fenced.start, target.stop - source.fenced.start)
        found.compare("send", state.expected[: inside.start], now[: inside.start], source.fenced.start, target.offset)
        found.compare("send", state.expected[inside.stop :], now[inside.stop :], target.stop, target.offset)
    else:
        body = slice(source.offset - source.fenced.start, source.stop - source.fenced.start)
        intact = _same(state.expected[body], now[body])
        found.compare("send", state.expected[: body.start], now[: body.start], source.fenced.start, source.offset)
        found.compare("send", state.expected[body.stop :], now[body.stop :], source.stop, source.offset)
        for side in (target.head, target.tail):
            fence = state.recv_background.bytes(side.start, side.stop)
            found.compare("recv", fence, state.recv[side], side.start, target.offset)
    if scan:
        _scan(found, "send", state.send, state.send_background, source, source.offset)
        kept = Range(0, 0) if trial.in_place else target
        _scan(found, "recv", state.recv, state.recv_background, kept, target.offset)
    return intact, tuple(found.rows), found.total


def _scan(found: _Differences, name: str, arena: Bytes, background: Background, used: Range, origin: int) -> None:
    """Everything beyond the fences of ``used`` still holds the background."""
    low, high = _bounds(used) if used.stop else (0, 0)
    for start, stop in ((0, low), (high, arena.nbytes)):
        for offset, block in background.blocks(max(start, 0), stop):
            found.compare(name, block, arena[offset : offset + block.nbytes], offset, origin)


class _Differences:
    """Collects changed bytes, capped, with their total."""

    def __init__(self) -> None:
        self.rows: list[OutsideByte] = []
        self.total = 0

    def compare(self, name: str, expected: Bytes, found: Bytes, start: int, origin: int) -> None:
        if _same(expected, found):
            return
        changed = np.flatnonzero(expected != found)
        self.total += changed.size
        for i in changed[: max(OUTSIDE_CAP - len(self.rows), 0)]:
            self.rows.append(
                OutsideByte(buffer=name, offset=int(start + i - origin), expected=int(expected[i]), found=int(found[i]))
            )
