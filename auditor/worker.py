"""The process in which a subject lives: one arm, fresh, so that library settings read once a process are this arm's.

``probe``: what a backend offers here. ``serve``: a parent that forks one child a job, for backends that drive every rank from
one process; the subject is first imported in the child, so every child is fresh and a crash costs milliseconds. ``shim``: under
mpiexec, one rank's parent, which notes how the rank ended: the launcher itself reports only that somebody did. ``job``: the rank.
``spawned``: a rank that the auditor starts by itself, for backends that need no MPI.
``case``: plays cases of literal bytes, for whoever looks for a smaller one.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from auditor.backends.base import LocalControl
from auditor.errors import AuditError, Unavailable
from auditor.multicast import switched_off
from auditor.profiling import functions, note

RECORD = 96  # bytes of a progress record, rewritten in place
FAILED = 70  # exit status of a worker whose own machinery failed; its words are in the failure file


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a worker is told: where the run is, which arm, which attempt, which trials, in order."""

    run_dir: Path
    arm: str
    attempt: int
    trials: tuple[str, ...]
    fresh_repeat: int | None = None

    @property
    def work(self) -> Path:
        return self.run_dir / ".work" / self.arm

    def side(self, rank: int, what: str) -> Path:
        """A small file about one rank of this attempt: progress, fault, failure or exit."""
        return self.work / f"rank{rank:04d}.{self.attempt}.{what}"

    def shard(self, rank: int) -> Path:
        return self.run_dir / "shards" / self.arm / f"rank{rank:04d}.{self.attempt}.h5"

    def save(self) -> Path:
        path = self.work / f"job.{self.attempt}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = {"run_dir": str(self.run_dir), "arm": self.arm, "attempt": self.attempt}
        rest = {"trials": self.trials, "fresh_repeat": self.fresh_repeat, "switches": switched_off(os.environ)}
        path.write_text(json.dumps({**raw, **rest}))
        return path

    @staticmethod
    def load(path: Path) -> JobFile:
        raw = json.loads(path.read_text())
        return JobFile(Path(raw["run_dir"]), raw["arm"], raw["attempt"], tuple(raw["trials"]), raw["fresh_repeat"])

    @staticmethod
    def switch_off(path: Path) -> None:
        """Set the multicast switches as they are where the job was made: a launcher need not pass variables to other nodes."""
        os.environ.update(json.loads(path.read_text())["switches"])


@dataclass(frozen=True, slots=True)
class Mark:
    """A progress record as read: state S(tarting) I(dle) C(alling) E(rror seen) D(one), since when, at which trial."""

    state: str
    since: float
    trial_id: str
    repeat: int
    calls: int


class FileProgress:
    """Rewrites one small record at every change of state; readable by the supervisor at any time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        self._trial, self._repeat, self.calls = "-", 0, 0
        self.state("S")

    def state(self, letter: str) -> None:
        text = f"{letter} {time.monotonic():.6f} {self._trial} {self._repeat} {self.calls}"
        os.pwrite(self._fd, text.ljust(RECORD - 1).encode() + b"\n", 0)

    def begin(self, trial_id: str, repeat: int) -> None:
        self._trial, self._repeat = trial_id, repeat
        self.calls += 1
        self.state("C")

    def end(self) -> None:
        self.state("I")
        if self.calls == 1:
            note("worker: first call returned")

    def failed(self) -> None:
        self.state("E")


def read_mark(path: Path) -> Mark | None:
    """The record of one rank, or None before the rank has written one."""
    try:
        letter, since, trial, repeat, calls = path.read_bytes()[:RECORD].split()
    except (FileNotFoundError, ValueError):
        return None
    return Mark(letter.decode(), float(since), trial.decode(), int(repeat), int(calls))


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent ends, so that no rank outlives the audit (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(by))  # PR_SET_PDEATHSIG


def probe(spec: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """JSON of what a backend offers in this process's environment, or why it does not."""
    from auditor.backends.registry import choose

    try:
        backend = choose(spec, options)
        capabilities = backend.probe(options)
        needs_mpi = bool(getattr(backend, "needs_mpi", backend.process_model == "one"))
        model = {"process_model": backend.process_model, "needs_mpi": needs_mpi}
        return {**model, "capabilities": capabilities.to_json()}
    except Unavailable as error:
        return {"unavailable": error.reason, "remedy": error.remedy}
    except AuditError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        return {"error": f"{spec}: probe raised {type(error).__name__}: {error}", "exit_code": 3}


def node_rank(environ: Mapping[str, str]) -> int:
    """This process's number on its node, from the launcher's variables; 0 where none says."""
    names = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), 0)


def run_job(job: JobFile, control: Any, rank_n: int, local_ranks: tuple[int, ...], node_rank: int = 0) -> None:
    """Drive the subject through the job's trials and write this process's shard."""
    from auditor import environment
    from auditor.backends.registry import choose
    from auditor.harness import Harness, Job
    from auditor.model import World
    from auditor.plan import Plan
    from auditor.store import ShardWriter

    plan = Plan.load_part(job.run_dir, job.arm, job.trials)
    arm = plan.arm(job.arm)
    note("worker: plan read")
    question = environment.not_asked_here() if node_rank else environment.ask()  # answered while the subject starts
    progress = FileProgress(job.side(local_ranks[0], "progress"))
    by_id = {planned.trial.trial_id: planned for planned in arm.trials}
    backend_class = choose(arm.backend, arm.options)
    world = World(rank_n=rank_n, local_ranks=local_ranks, node_rank=node_rank, control=control)
    note("worker: class of the backend loaded")
    backend = backend_class(world, arm.options)
    note("worker: backend made")
    meta = {"run_id": plan.run_id, "plan_id": plan.plan_id, "arm": job.arm, "attempt": job.attempt}
    where = {"ranks": list(local_ranks), "environment": environment.collect(gpus=question.answer())}
    note("worker: surroundings known")
    writer = ShardWriter(job.shard(local_ranks[0]), {**meta, **where})
    try:
        assert arm.capabilities is not None
        todo = [by_id[trial_id] for trial_id in job.trials]
        harness = Harness(backend, world, arm.capabilities, Job(todo, job.fresh_repeat), writer, progress)
        if local_ranks[0] == 0:
            (job.work / "describe.json").write_text(json.dumps(dict(backend.describe())))
        progress.state("I")
        note("worker: arenas made", bytes=harness.nbytes)
        with functions(f"{job.arm}.{job.attempt}.rank{local_ranks[0]}"):
            harness.run()
        note("worker: trials done", calls=progress.calls, trials=len(todo))
    finally:
        writer.close()
    note("worker: shard closed")
    backend.close()
    note("worker: backend closed")
    progress.state("D")


def guarded(job: JobFile, rank: int, body: Any) -> int:
    """Run ``body``; leave a fatal signal's or an exception's words where the supervisor looks."""
    with job.side(rank, "fault").open("w") as fault:
        faulthandler.enable(fault, all_threads=False)
        try:
            body()
            return 0
        except Exception as error:
            said = str(error) if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"
            code = error.exit_code if isinstance(error, AuditError) else 3
            words = {"error": said, "exit_code": code, "traceback": traceback.format_exc()}
            job.side(rank, "failure").write_text(json.dumps(words))
            return FAILED
        finally:
            faulthandler.disable()


def _serve() -> int:
    """Fork one child a job; say how it ended. One JSON object a line, in and out.

    ``prepare`` forks the next job's child ahead of its job: it loads the subject's libraries and waits.
    """
    import auditor.harness
    import auditor.store  # noqa: F401  what every child needs is imported once

    note("server: ready")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a subject prints goes to the log, never into the protocol
    waiting: tuple[int, int] | None = None  # a prepared child and the pipe to it
    for line in sys.stdin:
        request = json.loads(line)
        if "probe" in request:
            _answer_from_child(answers, lambda r=request: probe(r["probe"], r["options"]))
            continue
        if "prepare" in request:
            waiting = _prepared(request["prepare"], request["options"])
            continue
        child, pipe = waiting or _prepared()
        waiting = None
        _hand_over(pipe, line)
        print(json.dumps({"pid": child}), file=answers)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), file=answers)
    return 0


def _prepared(spec: str | None = None, options: Mapping[str, Any] | None = None) -> tuple[int, int]:
    """(a child that waits for its job, the pipe that the job goes through). Where there is nothing to load it waits at once."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(reader)
        return child, writer
    status = FAILED
    try:
        os.close(writer)
        die_with_parent()
        if spec is not None:
            _preload(spec, options or {})
        with os.fdopen(reader) as pipe:
            line = pipe.readline()
        request = json.loads(line or "{}")  # nothing comes where the server ends: there is no job any more
        status = _child(JobFile.load(Path(request["job"])), request["rank_n"]) if request else 0
    finally:
        os._exit(status)


def _preload(spec: str, options: Mapping[str, Any]) -> None:
    """What a backend loads ahead, where it has a ``preload``. Errors are told when the backend is made and meets them again."""
    from auditor.backends.registry import choose

    note("worker: begins to load ahead")
    with contextlib.suppress(Exception):
        getattr(choose(spec, options), "preload", lambda _options: None)(options)
    note("worker: loaded ahead")


def _hand_over(pipe: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # it died while it waited, which its exit status says
        os.write(pipe, line.encode())
    os.close(pipe)


def _answer_from_child(answers: IO[str], ask: Any) -> None:
    """Answer one question from a child, so that the asked library stays out of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.write(writer, json.dumps(ask()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        code = os.waitstatus_to_exitcode(status)
        text = json.dumps({"error": f"the probe ended with status {code} and no answer", "exit_code": 3})
    print(text, file=answers)


def _child(job: JobFile, rank_n: int) -> int:
    note("worker: job begins", arm=job.arm, attempt=job.attempt, fresh=job.fresh_repeat)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return guarded(job, 0, lambda: run_job(job, LocalControl(), rank_n, tuple(range(rank_n))))
    except SystemExit as end:  # the subject called sys.exit: it left early
        return end.code if isinstance(end.code, int) else 1


def _shim(job_path: str) -> int:
    """Wait for one rank and note how it ended, before the launcher tears the others down."""
    from auditor.mpi_control import launcher_rank_and_size

    die_with_parent()
    found = launcher_rank_and_size()
    job = JobFile.load(Path(job_path))
    JobFile.switch_off(Path(job_path))
    command = [sys.executable, "-m", "auditor.worker", "job", job_path]
    status = subprocess.run(command, close_fds=False, check=False).returncode
    job.side(found[0] if found else 0, "exit").write_text(str(status))
    return status if status >= 0 else 128 - status


def _rank(job_path: str) -> int:
    from auditor.mpi_control import MpiControl

    die_with_parent()
    job = JobFile.load(Path(job_path))
    JobFile.switch_off(Path(job_path))
    control = MpiControl()
    body = lambda: run_job(job, control, control.size, (control.rank,), node_rank(os.environ))  # noqa: E731
    status = guarded(job, control.rank, body)
    if status:
        control.abort(status)
    return status


def _case(directory: Path, rank_n: str = "", rank: str = "", *descriptors: str) -> int:
    """Play what is put into a directory: all ``rank_n`` ranks in this process; that one rank over sockets; or the launcher's."""
    from auditor.evidence.perform import serve

    die_with_parent()
    if rank:
        from auditor.socket_control import SocketControl

        links = SocketControl.from_descriptors(int(rank), int(rank_n), [int(number) for number in descriptors])
        serve(directory, links, int(rank_n), (int(rank),), int(rank))
        return 0
    if rank_n:
        serve(directory, LocalControl(), int(rank_n), tuple(range(int(rank_n))))
        return 0
    from auditor.mpi_control import MpiControl

    control = MpiControl()
    serve(directory, control, control.size, (control.rank,), node_rank(os.environ))
    return 0


def _spawned(job_path: str, rank: int, size: int, descriptors: list[int]) -> int:
    from auditor.socket_control import SocketControl

    die_with_parent()
    job = JobFile.load(Path(job_path))
    control = SocketControl.from_descriptors(rank, size, descriptors)
    return guarded(job, rank, lambda: run_job(job, control, size, (rank,), rank))


def main(argv: list[str]) -> int:
    """Entry of ``python -m auditor.worker``; not for people."""
    verb, rest = argv[0], argv[1:]
    if verb == "serve":
        die_with_parent()
        return _serve()
    if verb == "shim":
        return _shim(rest[0])
    if verb == "case":
        return _case(Path(rest[0]), *rest[1:])
    if verb == "spawned":
        return _spawned(rest[0], int(rest[1]), int(rest[2]), [int(number) for number in rest[3:]])
    return _rank(rest[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
