"""Starting, watching and stopping the processes of one arm: a forking server, or one process a rank, under mpiexec or not."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from auditor.environment import memory_bytes
from auditor.errors import AuditError, ConfigError, Unavailable
from auditor.multicast import with_settings
from auditor.socket_control import star
from auditor.worker import JobFile, die_with_parent, read_mark

BANNERS = (
    *("=", "YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ"),  # MPICH's mpiexec
    # and Open MPI's
    *("-----", "mpirun detected", "mpirun noticed", "the job to be terminated", "  Process name:", "  Exit code:"),
    *("Primary job", "a non-zero exit code"),
)
STACK = re.compile(r"\[[^\s\]]+:\d+\] (\*\*\*|\[ ?\d+\]|Signal)")  # Open MPI's account of a signal: [host:pid] [ 3] ...
KILL_GRACE = 2.0  # seconds between asking and forcing
RANKS_A_CORE = 16  # MPI ranks poll; more than so many on a core make no progress
RANK_MEMORY = 200 << 20  # bytes of one rank's process beside its arenas


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended: exit status by rank (negative: signal) for the ranks whose end is known, the culprit first."""

    by_rank: tuple[tuple[int, int], ...]
    log: Path

    def last_words(self, lines: int = 6) -> str:
        """The end of what the processes printed, without the banner of the launcher."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines_said = (line for line in text.splitlines() if line.strip() and not line.startswith(BANNERS))
        said = [line for line in lines_said if not STACK.match(line)]
        return " | ".join(said[-lines:])


class Running(Protocol):
    """A job in flight."""

    def ended(self) -> Ending | None: ...
    def kill(self) -> None: ...


def arm_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The auditor's environment with the arm's on top; a root user may start Open MPI, and ranks may share cores."""
    defaults = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return with_settings({**defaults, **os.environ}, env)


class Server:
    """A ``worker serve`` process in one arm's environment; forks a child for every question and every job."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "auditor.worker", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=arm_environment(env),
            start_new_session=True,
        )

    def ask(self, question: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """One answer; raises AuditError when the server is gone or does not answer in time."""
        self.tell(question)
        answer = self.answer(timeout)
        if answer is None:
            raise AuditError(f"no answer within {timeout:.0f} s; see {self.log}")
        return answer

    def prepare(self, backend: str, options: Mapping[str, Any]) -> None:
        """Let the next job's process be forked now, and load the backend's libraries while another job still runs."""
        self.tell({"prepare": backend, "options": dict(options)})

    def tell(self, question: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(question) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise AuditError(f"the worker server ended unexpectedly; see {self.log}") from error

    def answer(self, timeout: float) -> dict[str, Any] | None:
        stream = self._process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], timeout)
        if not ready:
            return None
        line = _read_line(stream)
        if not line:
            raise AuditError(f"the worker server ended unexpectedly; see {self.log}")
        parsed: dict[str, Any] = json.loads(line)
        return parsed

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(KILL_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def _read_line(stream: IO[bytes]) -> bytes:
    """One line byte by byte: a buffered read would hide further lines from select."""
    parts = []
    while (byte := os.read(stream.fileno(), 1)) not in (b"", b"\n"):
        parts.append(byte)
    return b"".join(parts)


class ServedJob:
    """A job in a child of a Server: one process drives every rank."""

    def __init__(self, server: Server, job: JobFile, rank_n: int) -> None:
        self._server = server
        started = server.ask({"job": str(job.save()), "rank_n": rank_n}, timeout=30)
        self._pid: int = started["pid"]

    def ended(self) -> Ending | None:
        answer = self._server.answer(0.0)
        return None if answer is None else Ending(((0, answer["status"]),), self._server.log)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._server.answer(KILL_GRACE * 5)


class MpiJob:
    """A job under mpiexec: one process a rank, each below a shim that notes how it ended."""

    def __init__(self, env: Mapping[str, str], job: JobFile, rank_n: int, log: Path) -> None:
        self._job, self._rank_n, self.log = job, rank_n, log
        path = job.save()
        self._log = log.open("ab")
        worker = [sys.executable, "-m", "auditor.worker", "shim", str(path)]
        self._process = subprocess.Popen(
            [*mpiexec(env), "-n", str(rank_n), *worker],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=arm_environment(env),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # the launcher then takes its ranks with it
        )

    def ended(self) -> Ending | None:
        status = self._process.poll()
        if status is None:
            return None
        self._log.close()
        noted = self._noted()
        return Ending(noted or ((-1, status),) if status else noted, self.log)

    def _noted(self) -> tuple[tuple[int, int], ...]:
        """(rank, status) in the order in which the shims wrote them; the launcher tears the others down afterwards."""
        paths = [(rank, self._job.side(rank, "exit")) for rank in range(self._rank_n)]
        found = sorted((path.stat().st_mtime_ns, rank, path) for rank, path in paths if path.exists())
        return tuple((rank, int(path.read_text() or 1)) for _, rank, path in found)

    def kill(self) -> None:
        """Ask the launcher, then force the whole process group; shims and ranks die with their parents."""
        self._process.terminate()
        try:
            self._process.wait(KILL_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
        time.sleep(0.05)  # the kernel's parent-death signals reach the ranks


class SpawnedJob:
    """A job of one process a rank that needs no MPI: started here, with sockets between them for what control carries."""

    def __init__(self, env: Mapping[str, str], job: JobFile, rank_n: int, log: Path) -> None:
        self._job, self.log = job, log
        path = str(job.save())
        self._log = log.open("ab")
        ends, every = star(rank_n)
        self._ranks = [self._start(env, path, rank, rank_n, mine) for rank, mine in enumerate(ends)]
        for end in every:
            end.close()
        self._ended: dict[int, int] = {}  # rank -> status, in the order in which they were seen to end
        self._broken: float | None = None  # since when a rank is gone that others wait for

    def _start(
        self, env: Mapping[str, str], path: str, rank: int, rank_n: int, ends: Sequence[socket.socket]
    ) -> subprocess.Popen[bytes]:
        numbers = [end.fileno() for end in ends]
        worker = ["-m", "auditor.worker", "spawned", path, str(rank), str(rank_n), *map(str, numbers)]
        return subprocess.Popen(
            [sys.executable, *worker],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=arm_environment(env),
            pass_fds=numbers,
            start_new_session=True,
        )

    def ended(self) -> Ending | None:
        """As soon as all are, or a while after one that left too early: the others wait for it in vain and are ended."""
        for rank, process in enumerate(self._ranks):
            if rank not in self._ended and (status := process.poll()) is not None:
                self._ended[rank] = status
                if status or not self._is_done(rank):
                    self._broken = self._broken or time.monotonic()
        if self._broken is not None and time.monotonic() - self._broken > KILL_GRACE:
            self.kill()
        elif len(self._ended) < len(self._ranks):
            return None
        self._log.close()
        return Ending(tuple(self._ended.items()), self.log)

    def _is_done(self, rank: int) -> bool:
        mark = read_mark(self._job.side(rank, "progress"))
        return mark is not None and mark.state == "D"

    def kill(self) -> None:
        for process in self._ranks:
            if process.poll() is None:
                process.kill()
        for process in self._ranks:
            process.wait()
        self._log.close()


def check_room(arm: str, rank_n: int) -> None:
    """Refuse to start more processes than this machine can bear. Raises ConfigError."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = memory_bytes()
    most = min(cores * RANKS_A_CORE, (memory or RANK_MEMORY << 20) // (2 * RANK_MEMORY))
    if rank_n > most:
        raise ConfigError(
            f"arm {arm}: {rank_n} ranks are more processes than this machine bears ({cores} cores: at most {most}); "
            f"ask for fewer with --ranks, or start under mpirun or srun over several nodes"
        )


def mpiexec(env: Mapping[str, str]) -> list[str]:
    """The launcher that belongs to the MPI library in use. Raises Unavailable where there is none."""
    chosen = {**os.environ, **env}
    if chosen.get("AUDITOR_MPIEXEC"):
        return chosen["AUDITOR_MPIEXEC"].split()
    library = chosen.get("MPI4PY_LIBMPI")
    homes = [Path(library).resolve().parent.parent / "bin"] if library else [Path(sys.executable).parent]
    for home in homes:
        if (home / "mpiexec").exists():
            return [str(home / "mpiexec")]
    found = shutil.which("mpiexec", path=chosen.get("PATH"))
    if not found:
        raise Unavailable(
            "no mpiexec found to start one process a rank",
            "install one (pip install 'collective-rounding-auditor[mpi]') or set AUDITOR_MPIEXEC",
        )
    return [found]
