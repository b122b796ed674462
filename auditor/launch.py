"""Runs one arm: starts its processes, watches them, lays a death or a hang at the right trial, and goes on with the rest.

A worker that dies by a fatal signal or leaves early is a crash of the subject; one that is killed from outside is machinery
(DESIGN §5). What each worker has recorded stays in its shard; what only the supervisor can know goes to ``events.jsonl`` there.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditor.errors import AuditError
from auditor.model import Observation, Planned, Trial
from auditor.plan import ArmPlan
from auditor.processes import Ending, MpiJob, Running, ServedJob, Server, SpawnedJob
from auditor.profiling import note
from auditor.store import append_event, events_path, next_attempt, observation_to_json, shard_directory
from auditor.worker import FAILED, JobFile, Mark, read_mark

CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
POLL = 0.02
HANG_AFTER = 10.0  # seconds in one call before it is called a hang; grows with the bytes moved
HANG_AFTER_PRACTICE = 5.0  # the same once the arm has made PRACTICE calls
PRACTICE = 20
SLOWEST_LINK = 50e6  # bytes a second that even a slow subject moves
START_LIMIT = 180.0  # seconds for a constructor (device and communicator set-up)
STUCK_AFTER_ERROR = 3.0  # seconds that peers may wait for a rank that raised
AHEAD = 3  # fresh-process repeats whose libraries are loaded ahead; each holds a process with them in memory
CELL_LIMIT = 2  # crashes or hangs in one (collective, op, format, count) cell


class ArmFailed(AuditError):
    """The machinery of one arm failed; the other arms still run."""

    def __init__(self, message: str, exit_code: int = 3) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(slots=True)
class ArmRunner:
    """One arm of a run. ``tick(done, total)`` is called as trials end."""

    run_dir: Path
    plan: ArmPlan
    process_model: str
    hang_budget: float = 60.0
    tick: Callable[[int, int], None] = lambda _done, _total: None
    needs_mpi: bool = True  # of process model "one": whether mpiexec starts the ranks
    attempt: int = 0
    done: int = 0
    hung: float = 0.0
    calls: int = 0
    troubles: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    server: Server | None = None
    ahead: deque[Server] = field(default_factory=deque)

    @property
    def total(self) -> int:
        """Steps of progress: trials, a fresh-process trial once for every process."""
        return sum(_fresh(planned) or 1 for planned in self.plan.trials)

    def run(self, already: Sequence[str] = ()) -> None:
        """Record every planned trial that is not in ``already``; raises ArmFailed. An interrupt stops the processes first."""
        shard_directory(self.run_dir, self.plan.name).mkdir(parents=True, exist_ok=True)
        todo = [planned for planned in self.plan.trials if planned.trial.trial_id not in set(already)]
        self.done = self.total - sum(_fresh(planned) or 1 for planned in todo)
        self.attempt = next_attempt(self.run_dir, self.plan.name)
        fresh = [planned for planned in todo if _fresh(planned)]
        repeats = range(max((_fresh(planned) for planned in fresh), default=0))
        try:
            self._look_ahead(len(repeats))
            self._through([planned for planned in todo if not _fresh(planned)], None)
            for repeat in repeats:
                self._restart_server()
                self._look_ahead(len(repeats) - repeat - 1)
                self._through([planned for planned in fresh if repeat < _fresh(planned)], repeat)
        finally:
            self._close_server()
            while self.ahead:
                self.ahead.pop().close()

    def _look_ahead(self, wanted: int) -> None:
        """Servers of coming fresh-process repeats load the subject's libraries while this job runs: seconds each, for CuPy."""
        while self.process_model == "all" and len(self.ahead) < min(wanted, AHEAD):
            self.ahead.append(self._new_server())
            self.ahead[-1].prepare(self.plan.backend, self.plan.options)

    def _new_server(self) -> Server:
        return Server(self.plan.env, self.run_dir / ".work" / self.plan.name / "output.log")

    def _restart_server(self) -> None:
        """A fork has its parent's address layout; fresh-process repeats get a new parent."""
        self._close_server()
        self.server = self.ahead.popleft() if self.ahead else None

    def _close_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def _through(self, queue: list[Planned], fresh_repeat: int | None) -> None:
        while queue:
            queue = [planned for planned in queue if not self._skip(planned.trial)]
            if self.hung >= self.hang_budget:
                self._give_up(queue)
                return
            if queue:
                queue = self._attempt(queue, fresh_repeat)

    def _skip(self, trial: Trial) -> bool:
        if self.troubles[_cell(trial)] < CELL_LIMIT:
            return False
        self._event(trial, 0, 0, "skipped", f"not run: its cell had {CELL_LIMIT} crashes or hangs before")
        return True

    def _give_up(self, queue: Sequence[Planned]) -> None:
        for planned in queue:
            words = f"not run: hangs of this arm had used up their {self.hang_budget:g} s (--hang-budget)"
            self._event(planned.trial, 0, 0, "skipped", words)

    def _event(self, trial: Trial, repeat: int, rank: int, status: str, words: str) -> None:
        row = Observation(trial_id=trial.trial_id, repeat=repeat, rank=rank, status=status, message=words)
        append_event(
            events_path(self.run_dir, self.plan.name), observation_to_json(row) | {"attempt": self.attempt - 1}
        )

    def _attempt(self, queue: list[Planned], fresh_repeat: int | None) -> list[Planned]:
        """Run one job over the queue; returns what is left of it."""
        trials = tuple(planned.trial.trial_id for planned in queue)
        job = JobFile(self.run_dir, self.plan.name, self.attempt, trials, fresh_repeat)
        self.attempt += 1
        note("supervisor: job asked for", arm=self.plan.name, attempt=job.attempt, fresh=fresh_repeat)
        running = self._start(job)
        watch = Watch(job, queue, self)
        try:
            ending = watch.until_the_end(running)
        except BaseException:
            running.kill()
            raise
        note("supervisor: job ended", arm=self.plan.name, attempt=job.attempt)
        self.calls += watch.calls
        return watch.settle(ending)

    def _start(self, job: JobFile) -> Running:
        if self.process_model == "one":
            job.work.mkdir(parents=True, exist_ok=True)
            start = MpiJob if self.needs_mpi else SpawnedJob
            return start(self.plan.env, job, self.plan.rank_n, job.work / "output.log")
        if self.server is None:
            self.server = self._new_server()
        return ServedJob(self.server, job, self.plan.rank_n)

    def allowance(self, planned: Planned) -> float:
        """Seconds that one call may take before it is a hang; never more than the rest of the hang budget."""
        trial = planned.trial
        moved = trial.send_count * trial.call.fmt.itemsize * len(trial.members)
        base = HANG_AFTER_PRACTICE if self.calls >= PRACTICE else HANG_AFTER
        return min(base + moved / SLOWEST_LINK, max(self.hang_budget - self.hung, 0.5))


class Watch:
    """Supervision of one job."""

    def __init__(self, job: JobFile, queue: list[Planned], arm: ArmRunner) -> None:
        self.job, self.queue, self.arm = job, queue, arm
        self.index = {planned.trial.trial_id: i for i, planned in enumerate(queue)}
        driving = arm.plan.rank_n if arm.process_model == "one" else 1
        self.paths = [job.side(rank, "progress") for rank in range(driving)]
        self.started = time.monotonic()
        self.hung: list[int] = []
        self.stuck = False
        self.calls = 0
        self.base = arm.done

    def until_the_end(self, running: Running) -> Ending | None:
        """Poll until the job ends by itself (its Ending) or is killed as hung or stuck (None)."""
        while (ending := running.ended()) is None:
            if self.must_end():
                running.kill()
                return None
            time.sleep(POLL)
        self._tell(self._marks())
        return ending

    def must_end(self) -> bool:
        """A rank hangs, or waits for one that raised; ``settle`` then says which."""
        marks = self._marks()
        self._tell(marks)
        return self._hangs(marks) or self._stuck_after_error(marks) or self._never_started(marks)

    def finished(self) -> bool:
        """Every rank has come to its end."""
        marks = self._marks()
        return len(marks) == len(self.paths) and all(mark.state == "D" for mark in marks.values())

    def _marks(self) -> dict[int, Mark]:
        return {rank: mark for rank, path in enumerate(self.paths) if (mark := read_mark(path)) is not None}

    def _tell(self, marks: dict[int, Mark]) -> None:
        self.calls = max((mark.calls for mark in marks.values()), default=0)
        at = len(self.queue) if self.finished() else self._position(marks)
        self.arm.done = self.base + at
        self.arm.tick(self.arm.done, self.arm.total)

    def _position(self, marks: dict[int, Mark]) -> int:
        return max((self.index.get(mark.trial_id, 0) for mark in marks.values()), default=0)

    def _hangs(self, marks: dict[int, Mark]) -> bool:
        now = time.monotonic()
        calling = {rank: mark for rank, mark in marks.items() if mark.state == "C" and mark.trial_id in self.index}
        late = {
            rank: mark
            for rank, mark in calling.items()
            if now - mark.since > self.arm.allowance(self.queue[self.index[mark.trial_id]])
        }
        if not late or any(mark.state == "E" for mark in marks.values()):
            return False
        self.hung = sorted(calling)
        self.arm.hung += now - min(mark.since for mark in late.values())
        return True

    def _stuck_after_error(self, marks: dict[int, Mark]) -> bool:
        """A rank raised and the others wait inside the call; its error is recorded already."""
        now = time.monotonic()
        raised = [mark.since for mark in marks.values() if mark.state == "E"]
        waiting = any(mark.state == "C" for mark in marks.values())
        self.stuck = bool(raised) and waiting and now - max(raised) > STUCK_AFTER_ERROR
        return self.stuck

    def _never_started(self, marks: dict[int, Mark]) -> bool:
        starting = len(marks) < len(self.paths) or any(mark.state == "S" for mark in marks.values())
        if starting and time.monotonic() - self.started > START_LIMIT:
            raise ArmFailed(f"arm {self.job.arm}: not started within {START_LIMIT:.0f} s; see {self.job.work}")
        return False

    def settle(self, ending: Ending | None) -> list[Planned]:
        """Record what happened and return the trials still to run."""
        marks = self._marks()
        at = self._position(marks)
        if ending is not None and self.finished() and all(status == 0 for _, status in ending.by_rank):
            return []
        self._failure()
        if self.stuck:
            return self.queue[at + 1 :]
        if self.hung:
            return self._note(at, [(rank, "hang", self._hang_words(marks[rank])) for rank in self.hung])
        assert ending is not None
        return self._note(at, self._crashes(ending, marks))

    def _failure(self) -> None:
        """A worker's own exception ends the arm: it is not the subject's."""
        for rank in range(len(self.paths)):
            path = self.job.side(rank, "failure")
            if path.exists():
                words = json.loads(path.read_text())
                raise ArmFailed(f"arm {self.job.arm}, rank {rank}: {words['error']}", words["exit_code"])

    def _hang_words(self, mark: Mark) -> str:
        return f"no return from call {mark.calls} after {time.monotonic() - mark.since:.1f} s"

    def _crashes(self, ending: Ending, marks: dict[int, Mark]) -> list[tuple[int, str, str]]:
        """The culprits of a death, or ArmFailed where it came from outside."""
        bad = [(rank, status) for rank, status in ending.by_rank if status or self._left(rank, marks)]
        if not bad:
            bad = [(-1, 1)]
        killers = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
        if bad[0][1] in killers:
            name = signal.Signals(-bad[0][1]).name
            raise ArmFailed(
                f"arm {self.job.arm}: rank {bad[0][0]} was ended by {name} from outside (out of memory?); "
                f"recorded work is kept, run again with --resume"
            )
        if bad[0][1] == FAILED:
            raise ArmFailed(f"arm {self.job.arm}: rank {bad[0][0]} failed without words; see {ending.log}")
        if not marks or all(mark.state == "S" for mark in marks.values()):
            first = _died(bad[0][1])
            self.arm._event(self.queue[0].trial, 0, max(bad[0][0], 0), "crash", f"{first} while starting")
            raise ArmFailed(f"arm {self.job.arm}: the subject {first} while starting: {ending.last_words()}", 1)
        first_only = [(rank, status) for rank, status in bad if -status in CRASH_SIGNALS] or bad[:1]
        said = ending.last_words(2)
        tail = f"; it said: {said}" if said else ""
        return [
            (max(rank, 0), "crash", f"{_died(status)} {self._where(rank, marks)}{tail}") for rank, status in first_only
        ]

    def _left(self, rank: int, marks: dict[int, Mark]) -> bool:
        return rank in marks and marks[rank].state != "D"

    def _where(self, rank: int, marks: dict[int, Mark]) -> str:
        mark = marks.get(max(rank, 0))
        return "inside the call" if mark is not None and mark.state == "C" else "between calls"

    def _note(self, at: int, rows: list[tuple[int, str, str]]) -> list[Planned]:
        trial = self.queue[at].trial
        marks = self._marks()
        for rank, status, words in rows:
            repeat = marks[rank].repeat if rank in marks else 0
            self.arm._event(trial, repeat, rank, status, words)
        self.arm.troubles[_cell(trial)] += 1
        return self.queue[at + 1 :]


def _died(status: int) -> str:
    if status < 0:
        return f"died by {signal.Signals(-status).name}"
    return f"left early with exit status {status}"


def _cell(trial: Trial) -> tuple[str, str, str, int]:
    call = trial.call
    return call.collective, call.op, call.format, call.count


def _fresh(planned: Planned) -> int:
    """How many fresh processes a trial asks for; 0 for every other variant."""
    name, _, argument = planned.trial.variant.partition(":")
    return int(argument or 1) if name == "fresh" else 0
