"""The loop itself: fill, call, look, record; per trial, per repeat, per local rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from auditor.errors import AuditError, Unsupported
from auditor.harness.issue import Variant
from auditor.harness.look import (
    Called,
    Glance,
    Rank,
    arena_of,
    bounds,
    fill,
    glances,
    off_nearest,
    outside_of,
    read_at_once,
    rooms_of,
    second_reading,
    settle,
)
from auditor.kernels.memory import Look, adopt, agree
from auditor.layout import ALIGNMENT, PERIOD, Background, arena_bytes, recv_range, send_range
from auditor.model import Capabilities, Codes, Observation, Output, Planned, Trial, Window, World

SMALL_ARENA = 1 << 20
REREAD_AFTER = (0.002, 0.02, 0.08)  # seconds between the two readings of a ``reread``, in turn by repeat


class Recorder(Protocol):
    """Where observations go: a shard."""

    def append(
        self,
        trial: Trial,
        observation: Observation,
        output: Codes | Output | None,
        late: Codes | Output | None = None,
    ) -> None: ...
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

    def _adopt(self, rank: int, send: Any, recv: Any) -> Rank:
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
        return Rank(rank, arenas["send"], arenas["recv"])

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
            perform = Variant(self.backend, self.features, trial)
        except Exception as error:
            self._refused(trial, repeats[0], mine, error)
            return
        for repeat in repeats:
            scan = repeat == repeats[-1] and (last or self._scan_is_cheap(trial))
            if not self._repeat(trial, repeat, mine, perform, scan=scan):
                break
        perform.done()
        for state in mine:
            state.send.restore(*bounds(send_range(trial)))
            state.recv.restore(*bounds(recv_range(trial, state.rank)))
            state.last = state.output = None

    def _scan_is_cheap(self, trial: Trial) -> bool:
        return self.nbytes <= max(SMALL_ARENA, 8 * send_range(trial).nbytes)

    def _repeat(self, trial: Trial, repeat: int, mine: list[Rank], perform: Variant, *, scan: bool) -> bool:
        for state in mine:
            fill(state, trial, repeat)
        first = send_range(trial).fenced.start
        whole = [Look(state.send, 0, state.expected.nbytes, first, state.expected) for state in mine]
        before = dict(zip((state.rank for state in mine), agree(whole), strict=True))
        settle(self.ranks)  # of ranks that take no part, too: the trial before may still be cleared away there
        send, recv = self._windows(trial, mine)
        rooms = rooms_of(trial, mine)
        self.world.control.barrier()  # one-sided libraries may write into a peer as soon as one rank calls
        self.progress.begin(trial.trial_id, repeat)
        started = time.perf_counter()
        try:
            if mine:
                perform(repeat, send, recv)
        except Exception as error:
            self._refused(trial, repeat, mine, error)
            return False
        returned = time.perf_counter()
        early = read_at_once(trial, repeat, mine, rooms)
        self.progress.end()
        if early:
            time.sleep(REREAD_AFTER[repeat % len(REREAD_AFTER)])
        settle(mine)
        path = str(self.backend.path()) if "path" in self.features and mine else ""
        own = perform.subject_seconds() if mine else None
        seen = glances(trial, mine, scan=scan)
        for state in mine:
            called = Called(before[state.rank], returned - started, own, path, returned, early.get(state.rank))
            self._look(trial, repeat, state, called, seen[state.rank], scan=scan)
        return True

    def _windows(self, trial: Trial, mine: list[Rank]) -> tuple[Mapping[int, Window], Mapping[int, Window]]:
        source = send_range(trial)
        send = {state.rank: Window(state.send.buffer, source.offset, source.nbytes) for state in mine}
        recv = {}
        for state in mine:
            target = recv_range(trial, state.rank)
            arena = arena_of(state, trial)
            recv[state.rank] = Window(arena.buffer, target.offset, target.nbytes)
        return send, recv

    def _refused(self, trial: Trial, repeat: int, mine: list[Rank], error: Exception) -> None:
        status = "unsupported" if isinstance(error, Unsupported) else "error"
        words = f"{type(error).__name__}: {error}" if status == "error" else str(error)
        for state in mine:
            row = Observation(trial_id=trial.trial_id, repeat=repeat, rank=state.rank, status=status, message=words)
            self.recorder.append(trial, row, None)
        self.recorder.flush()
        self.progress.failed()  # peers may wait for this rank in vain; the supervisor sees it

    def _look(self, trial: Trial, repeat: int, state: Rank, called: Called, seen: Glance, *, scan: bool) -> None:
        target = recv_range(trial, state.rank)
        arena = arena_of(state, trial)
        early, late = called.early, None
        more: dict[str, Any] = {}
        if early is None:
            if not seen.known:
                state.keep(arena, trial, arena.take(target.offset, target.nbytes))
        else:
            state.keep(arena, trial, early.kept)
            late, more = second_reading(state, arena, trial, called)
        off = off_nearest(state, trial, repeat) if early is None else None
        intact, outside, total = (True, (), 0) if seen.clean else outside_of(state, trial, scan=scan)
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
            off_nearest=off,
            **more,
        )
        self.recorder.append(trial, row, state.output, *(() if late is None else (late,)))
