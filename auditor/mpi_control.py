"""MPI as seen by the launcher: who started this process, starting and ending the library, and a control channel.

mpi4py is imported inside functions only, and always with ``rc.initialize = False``: importing it must not start MPI, because a
process that only asks what is installed would then be a rank. :func:`start_mpi` is the one place where MPI begins.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from auditor.errors import ConfigError, Unavailable

LAST_WORDS = 0.2  # seconds between the last line printed and the end of the job: a launcher told to end reads no more
REMEDY = "install one (pip install mpi4py mpich) or set MPI4PY_LIBMPI=/path/to/libmpi.so.12 (or .so.40)"


class Launched(NamedTuple):
    """What a launcher's variables say of this process."""

    rank: int
    size: int
    launcher: str


# (rank variable, size variable, launcher). Order matters: an mpiexec inside a Slurm job has both sets of variables, and there the
# Slurm ones belong to the node daemon that srun started for it, not to this process.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI mpirun"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI mpirun"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH mpirun"),
    ("PMI_RANK", "PMI_SIZE", "mpiexec (PMI)"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "jsrun"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "flux run"),
)
# Slurm numbers its own steps (batch script, extern, interactive shell) from here on; there is one process in each, whatever
# NTASKS says.
SLURM_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def launcher_rank_and_size(environ: Mapping[str, str] | None = None) -> Launched | None:
    """(rank, size, launcher) from the launcher's variables, or None where no launcher started this process. Imports no MPI."""
    return next(_claims(os.environ if environ is None else environ), None)


def _claims(environ: Mapping[str, str]) -> Iterator[Launched]:
    for rank_name, size_name, launcher in LAUNCHERS:
        rank, size = _number(environ, rank_name), _number(environ, size_name)
        if rank is not None and size is not None:
            yield Launched(rank, size, launcher)
    rank = _number(environ, "SLURM_PROCID")
    size = _number(environ, "SLURM_STEP_NUM_TASKS")
    size = _number(environ, "SLURM_NTASKS") if size is None else size
    step = _number(environ, "SLURM_STEP_ID")
    if rank is not None and size is not None and step is not None and step < SLURM_FIRST_SPECIAL_STEP:
        yield Launched(rank, size, "srun")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def check_world(size: int, library: str, environ: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError where the library's world size is not the one that the launcher's variables promise.

    The usual cause: a Python whose mpi4py loads one MPI, started by the mpiexec of another. Each process is then rank 0 of 1.
    """
    environ = os.environ if environ is None else environ
    claims = list(_claims(environ))
    if not claims or any(claim.size == size for claim in claims):
        return
    claim = claims[0]
    each = f"; all {claim.size} processes believe to be rank 0 of 1" if size == 1 else ""
    raise ConfigError(
        f"launcher mismatch: {claim.launcher} started {claim.size} processes, but {library} sees a world of {size}{each}; "
        "start with the mpiexec that belongs to that library, or set MPI4PY_LIBMPI to the launcher's libmpi "
        f"(now {environ.get('MPI4PY_LIBMPI') or 'not set'})"
    )


def load_mpi() -> Any:
    """The ``mpi4py.MPI`` module, loaded but not started. Raises Unavailable where mpi4py or the library is missing."""
    try:
        import mpi4py
    except ImportError as error:
        raise Unavailable(f"mpi4py cannot be imported ({_first_line(error)})", "pip install mpi4py mpich") from error
    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        raise Unavailable(f"mpi4py found no MPI library that loads ({_first_line(error)})", REMEDY) from error
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before
    return MPI


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def start_mpi() -> Any:
    """The ``mpi4py.MPI`` module, started. Who starts MPI here also ends it, at interpreter exit.

    Raises Unavailable (see :func:`load_mpi`) and ConfigError where MPI was already finalised: it cannot start twice in a process.
    """
    mpi = load_mpi()
    if mpi.Is_finalized():
        raise ConfigError("MPI was already finalised in this process and cannot start again; use a fresh process")
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)  # so that a watchdog thread may call Abort
        atexit.register(_end_mpi, mpi)
    mpi.COMM_WORLD.Set_errhandler(mpi.ERRORS_RETURN)
    return mpi


def _end_mpi(mpi: Any) -> None:
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def abort_job_on_uncaught_exception(mpi: Any) -> None:
    """From now on an uncaught exception, in any thread, ends every process of the job instead of leaving the others waiting."""
    main_hook, thread_hook = sys.excepthook, threading.excepthook

    def in_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        main_hook(kind, error, trace)
        _abort(mpi, 130 if issubclass(kind, KeyboardInterrupt) else getattr(error, "exit_code", 3))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        thread_hook(args)
        _abort(mpi, 3)

    sys.excepthook, threading.excepthook = in_main, in_thread


def _abort(mpi: Any, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if mpi.Is_initialized() and not mpi.Is_finalized():
        time.sleep(LAST_WORDS)
        mpi.COMM_WORLD.Abort(code)


class MpiControl:
    """``model.Control`` over a private duplicate of COMM_WORLD: carries ids and digests between the processes of an arm.

    Raises Unavailable, and ConfigError where the processes are N singletons (:func:`check_world`). With more than one process it
    also makes an uncaught exception end the whole job.
    """

    def __init__(self) -> None:
        self.mpi = start_mpi()
        world = self.mpi.COMM_WORLD
        self.rank: int = world.Get_rank()
        self.size: int = world.Get_size()
        check_world(self.size, _short_name(self.mpi.Get_library_version()))
        self._comm = world.Dup()
        if self.size > 1:
            abort_job_on_uncaught_exception(self.mpi)

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """``data`` of process ``root``, on every process."""
        return bytes(self._comm.bcast(data, root))

    def all_gather(self, data: bytes) -> list[bytes]:
        """Every process's ``data``, in rank order; lengths may differ."""
        return list(self._comm.allgather(data))

    def barrier(self) -> None:
        """Returns when every process has called it."""
        self._comm.Barrier()

    def abort(self, code: int) -> None:
        """Ends every process of the job with ``code``."""
        _abort(self.mpi, code)

    def close(self) -> None:
        """Frees the communicator; idempotent. MPI itself ends at interpreter exit."""
        if self._comm != self.mpi.COMM_NULL and not self.mpi.Is_finalized():
            self._comm.Free()


def _short_name(text: str) -> str:
    first = text.strip("\0 \n").partition("\n")[0]
    return first.partition(",")[0].strip() or "MPI"  # Open MPI goes on with who built it
