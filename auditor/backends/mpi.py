"""Real MPI processes under audit: MPICH, Open MPI, Intel MPI or a site's own, through mpi4py (DESIGN §4).

One process drives one rank. Which library: the one that mpi4py finds, or MPI4PY_LIBMPI. Which algorithm: the arm's ``env``,
since a library reads its settings once, at start. ``path()`` says what was asked for; no MPI says what ran.

Options
    op        "native" (default): the library's own MPI_SUM, MPI_MIN, MPI_MAX on its own datatypes. "user": a user-defined sum
              on an unsigned integer carrier, rounded once per addition by ``rounding``; order and schedule are the library's.
    rounding  with op "user": one of the six modes, or "stochastic". Default "ties_to_even".
    seed      with rounding "stochastic": key of the noise. Default 0.
    commute   with op "user": whether the library may swap operands. Default true.

In place, reduce_scatter: DESIGN's receive window is the rank's own share of the send range; MPI_IN_PLACE takes the input from
the whole range and leaves the result at its *start*. At position 0 the two agree. Elsewhere the share at the start is set
aside, and after the call the result is moved to the rank's own share and the start is put back: the library works in the very
buffer with the very shift, and a result that it failed to write shows as the start's share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from auditor.backends.mpi_library import Library, algorithm_asked, identify, native_formats, native_types
from auditor.backends.mpi_ops import ROUNDINGS, STOCHASTIC, PlantedSum
from auditor.errors import BackendError, ConfigError, Unsupported
from auditor.model import COLLECTIVES, Bytes, Call, Capabilities, Window, World
from auditor.mpi_control import check_world, load_mpi, start_mpi
from auditor.numerics.formats import FORMATS

ALIGNMENT = 512
OPTIONS: dict[str, Any] = {"op": "native", "rounding": "ties_to_even", "seed": 0, "commute": True}
CARRIERS = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T"}
NATIVE_OPS = {"sum": "SUM", "min": "MIN", "max": "MAX"}
# Seen on MPICH 5.0.2: an assertion in op_fns.c ends the process, so the call must not be tried.
ABORTS = {("MPICH", "min", "bfloat16"), ("MPICH", "max", "bfloat16")}
Message = list[Any]  # [view, count, datatype]: mpi4py would sum a bare uint16 view as integers


class MpiBackend:
    """One rank of an MPI library."""

    name: ClassVar[str] = "mpi"
    process_model: ClassVar[str] = "one"

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Loads mpi4py and the library, starts nothing. Raises Unavailable, or ConfigError on a wrong option."""
        chosen = check_options(options)
        mpi = load_mpi()
        user = chosen["op"] == "user"
        return Capabilities(
            collectives=frozenset(COLLECTIVES),
            ops=frozenset({"sum"} if user else NATIVE_OPS),
            formats=frozenset(FORMATS) if user else native_formats(mpi, identify(mpi.Get_library_version())),
            features=frozenset({"groups", "history", "recreate", "path", "timing"}),
        )

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self._options = check_options(options)
        self._mpi = start_mpi()
        self._library = identify(self._mpi.Get_library_version())
        self._environ = dict(os.environ)  # as the library saw it: later changes do not reach it
        _check_ranks(world, self._mpi, self._library)
        self._comm = self._mpi.COMM_WORLD.Dup()
        self._rank: int = self._comm.Get_rank()
        self._groups: dict[tuple[int, ...], Any] = {}
        self._side: list[Any] = []
        self._arrays: list[Bytes] = []
        self._planted: dict[str, tuple[PlantedSum, Any]] = {}
        self._types = self._find_types()
        self._path, self._seconds = "", 0.0
        self._hosts = [host.decode() for host in world.control.all_gather(self._mpi.Get_processor_name().encode())]
        self._open = True

    def _find_types(self) -> dict[str, Any]:
        if self._options["op"] == "native":
            return native_types(self._mpi, self._library)
        return {name: getattr(self._mpi, CARRIERS[fmt.itemsize]) for name, fmt in FORMATS.items()}

    def allocate(self, nbytes: int) -> dict[int, Bytes]:
        """One array of ``nbytes`` for this rank, its first byte 512-byte aligned."""
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        skip = -whole.ctypes.data % ALIGNMENT
        array = whole[skip : skip + nbytes]
        self._arrays.append(array)
        return {self._rank: array}

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        """Perform the call; a rank outside the group does nothing. Raises Unsupported, or BackendError with MPI's words."""
        members = call.members(self._comm.Get_size())
        if self._rank not in members:
            return
        self._path = ""
        datatype, op = self._datatype(call), self._op(call)
        self._path = (
            f"{self._library}/{call.collective}/{algorithm_asked(self._library, call.collective, self._environ)}"
        )
        start = self._mpi.Wtime()
        try:
            self._perform(call, self._communicator(call), datatype, op, send[self._rank], recv[self._rank])
        except self._mpi.Exception as error:
            raise BackendError(
                f"{self._library}: {call.collective} of {call.count} {call.format}: {_words(error)}"
            ) from error
        self._seconds = self._mpi.Wtime() - start
        self._path = (
            f"{self._library}/{call.collective}/{algorithm_asked(self._library, call.collective, self._environ)}"
        )
        self._raise_planted_failure(call)

    def _perform(self, call: Call, comm: Any, datatype: Any, op: Any, send: Window, recv: Window) -> None:
        # mpi4py's count is the received one in all three collectives: for reduce_scatter, too, it is one rank's share.
        source: Message = [_view(send), call.count, datatype]
        target: Message = [_view(recv), call.count, datatype]
        in_place = recv.buffer is send.buffer
        if call.collective == "all_reduce":
            comm.Allreduce(self._mpi.IN_PLACE if in_place else source, target, op)
        elif call.collective == "reduce":
            at_root = comm.Get_rank() == call.root
            comm.Reduce(
                self._mpi.IN_PLACE if in_place and at_root else source, target if at_root else None, op, call.root
            )
        elif not in_place:
            comm.Reduce_scatter_block(source, target, op)
        else:
            self._reduce_scatter_in_place(comm, source, _view(recv), op)

    def _reduce_scatter_in_place(self, comm: Any, whole: Message, own: Bytes, op: Any) -> None:
        first = whole[0][: own.nbytes]
        kept = first.copy()
        comm.Reduce_scatter_block(self._mpi.IN_PLACE, whole, op)
        if comm.Get_rank() != 0:
            own[:] = first
            first[:] = kept

    def _datatype(self, call: Call) -> Any:
        offered = NATIVE_OPS if self._options["op"] == "native" else {"sum": ""}
        if call.collective not in COLLECTIVES or call.op not in offered or call.format not in self._types:
            raise Unsupported(
                f"{self._library} ({self._options['op']} op) has no {call.collective} {call.op} of {call.format}"
            )
        if (self._library.name, call.op, call.format) in ABORTS:
            raise Unsupported(
                f"{self._library} aborts the process in MPI_{NATIVE_OPS[call.op]} of its bfloat16 type; not tried"
            )
        return self._types[call.format]

    def _op(self, call: Call) -> Any:
        if self._options["op"] == "native":
            return getattr(self._mpi, NATIVE_OPS[call.op])
        if call.format not in self._planted:
            planted = PlantedSum(call.fmt, self._options["rounding"], self._options["seed"])
            self._planted[call.format] = planted, self._mpi.Op.Create(planted, self._options["commute"])
        return self._planted[call.format][1]

    def _raise_planted_failure(self, call: Call) -> None:
        """A failure inside the user function, now that every rank is out of the collective."""
        planted = self._planted.get(call.format, (None,))[0]
        if planted is not None and planted.failure is not None:
            failure, planted.failure = planted.failure, None
            raise BackendError(f"user op failed on rank {self._rank}: {type(failure).__name__}: {failure}") from failure

    def _communicator(self, call: Call) -> Any:
        if call.group is None:
            return self._comm
        if call.group not in self._groups:
            group = self._comm.Get_group().Incl(list(call.group))
            self._groups[call.group] = self._comm.Create_group(group)  # collective over the members alone
            group.Free()
        return self._groups[call.group]

    def path(self) -> str:
        """Library, collective and the algorithm *asked for* by the environment, e.g. ``MPICH 5.0.2/all_reduce/ring``."""
        return self._path

    def last_seconds(self) -> float:
        """MPI_Wtime's seconds for the last call."""
        return self._seconds

    def perturb(self, side_communicators: int) -> None:
        """That many duplicates of the communicator alive from now on. Collective over all ranks."""
        while len(self._side) > side_communicators:
            self._guarded(self._side.pop().Free)
        while len(self._side) < side_communicators:
            self._side.append(self._guarded(self._comm.Dup))

    def recreate(self) -> None:
        """A new communicator in place of the old one and of its groups. Collective over all ranks; arrays stay valid."""
        self._free_communicators()
        self._comm = self._guarded(self._mpi.COMM_WORLD.Dup)

    def _guarded(self, verb: Any) -> Any:
        try:
            return verb()
        except self._mpi.Exception as error:
            raise BackendError(f"{self._library}: {_words(error)}") from error

    def _free_communicators(self) -> None:
        for comm in (*self._groups.values(), self._comm):
            self._guarded(comm.Free)
        self._groups.clear()

    def describe(self) -> Mapping[str, Any]:
        """Library, standard, mpi4py, op and the host of every rank."""
        import mpi4py

        user = self._options["op"] == "user"
        return {
            "library": self._library.text,
            "library_version": str(self._library),
            "mpi_standard": "{}.{}".format(*self._mpi.Get_version()),
            "mpi4py": mpi4py.__version__,
            "op": self._options["op"],
            **({key: self._options[key] for key in ("rounding", "commute")} if user else {}),
            **({"seed": self._options["seed"]} if user and self._options["rounding"] == STOCHASTIC else {}),
            "hosts": " ".join(self._hosts),
        }

    def close(self) -> None:
        """Frees communicators, operations and arrays; idempotent. MPI itself ends at interpreter exit."""
        if self._open and not self._mpi.Is_finalized():
            self.perturb(0)
            self._free_communicators()
            for _, op in self._planted.values():
                op.Free()
        self._planted.clear()
        self._arrays.clear()
        self._open = False


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their defaults. Raises ConfigError on an unknown key, a wrong value, or one that op "native" ignores."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"backend mpi: options.{key} is not known; known are {', '.join(OPTIONS)}")
    chosen = {**OPTIONS, **options}
    _one_of("op", chosen["op"], ("native", "user"))
    _one_of("rounding", chosen["rounding"], ROUNDINGS)
    if type(chosen["commute"]) is not bool:
        raise ConfigError(f"backend mpi: options.commute = {chosen['commute']!r} is neither true nor false")
    if type(chosen["seed"]) is not int or chosen["seed"] < 0:
        raise ConfigError(f"backend mpi: options.seed = {chosen['seed']!r} is not a whole number from 0 up")
    ignored = sorted(set(options) - {"op"}) if chosen["op"] == "native" else []
    if ignored:
        raise ConfigError(
            f'backend mpi: options.{ignored[0]} needs options.op = "user"; the library\'s own op takes none'
        )
    return chosen


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"backend mpi: options.{key} = {value!r} is not one of {', '.join(allowed)}")


def _check_ranks(world: World, mpi: Any, library: Library) -> None:
    size, rank = mpi.COMM_WORLD.Get_size(), mpi.COMM_WORLD.Get_rank()
    check_world(size, str(library))
    if world.rank_n != size:
        raise ConfigError(
            f"launcher mismatch: the arm has {world.rank_n} ranks, but {library} started {size} processes; "
            f"start with mpiexec -n {world.rank_n} of that library"
        )
    if world.local_ranks != (rank,):
        raise ConfigError(
            f"launcher mismatch: this process was told ranks {world.local_ranks}, but {library} calls it rank {rank}"
        )


def _view(window: Window) -> Bytes:
    view: Bytes = window.buffer[window.offset : window.offset + window.nbytes]
    return view


def _words(error: Any) -> str:
    """MPI's own words, on one line."""
    return "; ".join(line.strip() for line in error.Get_error_string().splitlines() if line.strip())
