"""NCCL under audit, through ``cupy.cuda.nccl`` (DESIGN §4).

:class:`Nccl` drives all of its GPUs from one process, without MPI; :class:`NcclOne` is one process a GPU, under mpiexec or srun.
``options.process_model`` picks between them; without a word it is the first, or the second under a launcher of several processes.
Algorithm and protocol of a whole arm are the library's own variables (``env = { NCCL_ALGO = "Ring", NCCL_PROTO = "LL" }``): NCCL
reads them once a process. ``path()`` says what really ran, from NCCL's debug output (nccl_path).

Options
    process_model  "all" or "one".
    buffers        "plain" (default): cudaMalloc. "registered": the same, registered with every communicator. "window": memory of
                   ncclMemAlloc in symmetric windows, on which NCCL may run its symmetric kernels. The last two need nccl4py.
    algorithm      a selection for each call, such as "ring", "tree,ring" or "^symk" (NCCL 2.31, nccl4py). A refusal is recorded
                   as unsupported, in NCCL's words.
    collectives    those to offer; NCCL_ALGO = "Tree" in the arm's env leaves all_reduce alone. Default: all three.
    devices        GPU numbers for this node's ranks, in order. Default: all. A number may come several times: [0, 0, 0, 0] are
                   four ranks on one GPU, which NCCL serves from 2.30 on with NCCL_MULTI_RANK_GPU_ENABLE = "1" in the arm's env.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from auditor.backends.cuda_device import (
    Lanes,
    choose_devices,
    describe_devices,
    device_count,
    installed_version,
    load_cupy,
)
from auditor.backends.gpu_sharing import described, gpus_of_ranks, most_on_one, widen_queues
from auditor.backends.nccl_comms import CommSet, Communicators, Errors, Range, grouped
from auditor.backends.nccl_extra import Extra, load_bindings
from auditor.backends.nccl_options import (
    FLOAT8,
    check_options,
    check_sharing,
    dotted,
    load_nccl,
    numbers,
    offered_formats,
    process_model,
)
from auditor.backends.nccl_path import UNREPORTED, Trace, taken, trace, why_silent
from auditor.model import OPS, Call, Capabilities, Window, World
from auditor.mpi_control import launcher_rank_and_size

FEATURES = frozenset({"groups", "history", "recreate", "graph", "queue", "timing"})
Windows = Mapping[int, Window]


class Nccl:
    """NCCL with all of the ranks' GPUs in this one process."""

    name: ClassVar[str] = "nccl"
    process_model: ClassVar[str] = "all"

    @classmethod
    def for_options(cls, options: Mapping[str, Any]) -> type[Nccl]:
        """The class that the options ask for. Raises ConfigError on a wrong option."""
        return NcclOne if process_model(options) == "one" else Nccl

    @classmethod
    def preload(cls, options: Mapping[str, Any]) -> None:
        """Load CuPy, NCCL and the driver, which takes seconds; makes no context. Raises Unavailable."""
        _before_loading(check_options(options))
        cupy = load_cupy()
        load_nccl(cupy)
        device_count(cupy)

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Loads CuPy and NCCL, makes no context. Raises Unavailable, or ConfigError on a wrong option."""
        chosen = check_options(options)
        cupy = load_cupy()
        nccl, gpu_n = load_nccl(cupy), device_count(cupy)
        check_sharing(nccl.get_version(), most_on_one(chosen["devices"]), os.environ)
        if wanted := _needs_bindings(chosen):
            load_bindings(wanted)
        return Capabilities(
            collectives=frozenset(chosen["collectives"]),
            ops=frozenset(OPS),
            formats=offered_formats(cupy, nccl.get_version()),
            rank_n_max=cls._rank_n_max(len(chosen["devices"]) or gpu_n),
            memory="cuda",
            features=FEATURES | _more_features(chosen),
        )

    @classmethod
    def _rank_n_max(cls, gpu_n: int) -> int | None:
        return gpu_n

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self._options = check_options(options)
        self._trace = _before_loading(self._options)
        cupy = load_cupy()
        self._nccl = load_nccl(cupy)
        self.version = dotted(self._nccl.get_version())
        wanted, algorithm = _needs_bindings(self._options), self._options["algorithm"]
        self._devices = choose_devices(world, self._options["devices"], device_count(cupy))
        self._sharing = most_on_one(gpus_of_ranks(cupy, world, self._devices).values())
        check_sharing(self._nccl.get_version(), self._sharing, os.environ)
        self._lanes = Lanes(cupy, self._devices)
        self._errors = Errors(self._nccl, self._trace, self._lanes, Extra(wanted) if wanted else None)
        self._told = self._errors.told
        self._comms = Communicators(self._nccl, world, self._lanes, self._errors)
        self._config = self._errors.bindings.config(algorithm) if algorithm else None
        self._own: list[tuple[int, int]] = []  # (rank, address) of ncclMemAlloc
        self._verb_ranges: list[Range] = []
        self._path, self._mark = "", 0
        self._timed: tuple[int, ...] = ()
        self._queue: list[CommSet] = []
        self._comms.get(None)
        self._trace.open()
        self._open = True

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """Local rank -> 1-D uint8 CuPy array of ``nbytes`` on its own GPU, 512-byte aligned. Collective over all ranks."""
        kind = self._options["buffers"]
        arrays = self._allocate_by_nccl(nbytes) if kind == "window" else self._lanes.allocate(nbytes)
        if kind != "plain":
            self._comms.ranges += [
                Range(rank, Window(array, 0, nbytes).address, nbytes, kind == "window")
                for rank, array in arrays.items()
            ]
        return arrays

    def _allocate_by_nccl(self, nbytes: int) -> dict[int, Any]:
        arrays = {}
        for rank in self._lanes:
            lane = self._lanes[rank]
            with lane.device, self._told(f"ncclMemAlloc of {nbytes} bytes"):
                address = self._errors.bindings.allocate(nbytes)
            self._own.append((rank, address))
            arrays[rank] = self._lanes.view(lane, address, nbytes, self)
        return arrays

    def run(self, call: Call, send: Windows, recv: Windows) -> None:
        """Perform the call. Raises Unsupported, or BackendError with NCCL's words; a lost CUDA context ends the process."""
        self.enqueue(call, send, recv)
        self.wait()

    def enqueue(self, call: Call, send: Windows, recv: Windows) -> None:
        """Issue the call and return; the windows are NCCL's until :meth:`wait`."""
        self._path, datatype_op = "", numbers(call, self.version)
        if not send:
            return
        comms = self._comms.get(call.group)
        ranks = list(comms.of)
        if not self._queue:
            self._lanes.settle(ranks)
            self._mark = self._trace.mark()
        self._queue.append(comms)
        self._lanes.begin(ranks)
        try:
            self._issue(call, comms, datatype_op, send, recv)
        except Exception:
            self._queue.pop()
            raise
        self._lanes.end(ranks)
        self._timed = tuple(ranks)

    def wait(self) -> None:
        """Return when every enqueued call is done."""
        queue, self._queue = self._queue, []
        for comms in {id(comms): comms for comms in queue}.values():
            self._wait(comms)
        if queue:
            self._path = taken(self._trace.since(self._mark)) or UNREPORTED

    def _wait(self, comms: CommSet) -> None:
        with self._told("NCCL"):
            self._lanes.wait(comms.of, lambda: self._comms.poll(comms))

    def _issue(self, call: Call, comms: CommSet, datatype_op: tuple[int, int], send: Windows, recv: Windows) -> None:
        what = f"NCCL {self.version}: {call.collective} {call.op} of {call.count} {call.format}"
        refusable = self._config is not None or call.format in FLOAT8
        with self._told(what, refusable=refusable), grouped(self._nccl, len(comms.of) > 1):
            for rank, comm in comms.of.items():
                lane = self._lanes[rank]
                with lane.device, self._lanes.speaking(what):
                    addresses = send[rank].address, recv[rank].address
                    self._one(comm, call, addresses, datatype_op, lane.stream.ptr)

    def _one(
        self, comm: Any, call: Call, addresses: tuple[int, int], datatype_op: tuple[int, int], stream: int
    ) -> None:
        if self._config is not None:
            self._errors.bindings.call(comm, call, addresses, datatype_op, stream, self._config)
        elif call.collective == "all_reduce":
            comm.allReduce(*addresses, call.count, *datatype_op, stream)
        elif call.collective == "reduce_scatter":
            comm.reduceScatter(*addresses, call.count, *datatype_op, stream)
        else:
            comm.reduce(*addresses, call.count, *datatype_op, call.root, stream)

    def capture(self, call: Call, send: Windows, recv: Windows) -> Callable[[], None]:
        """The call as a CUDA graph, one a rank; what is returned launches them and waits. Nothing runs before."""
        datatype_op = numbers(call, self.version)
        if not send:
            return lambda: None
        comms = self._comms.get(call.group)
        ranks = list(comms.of)
        self._lanes.settle(ranks)
        mark = self._trace.mark()
        graphs = self._lanes.capture(ranks, lambda: self._issue(call, comms, datatype_op, send, recv))
        path = taken(self._trace.since(mark)) or UNREPORTED

        def replay() -> None:
            self._lanes.settle(ranks)
            self._lanes.begin(ranks)
            self._lanes.replay(graphs)
            self._lanes.end(ranks)
            self._timed = tuple(ranks)
            self._wait(comms)
            self._path = path

        return replay

    def register(self, window: Window) -> None:
        """Register the window's range with every communicator that is used from now on; :meth:`deregister` ends it."""
        if window.nbytes:
            new = Range(self._lanes.owner(window.buffer), window.address, window.nbytes, window=False)
            if new not in self._comms.ranges:
                self._comms.ranges.append(new)
                self._verb_ranges.append(new)

    def deregister(self) -> None:
        """End what :meth:`register` began, so that later calls on the same memory are plain ones."""
        self._comms.forget(self._verb_ranges)
        self._verb_ranges = []

    def path(self) -> str:
        """``RING/LL/1``, ``SYMK/AllReduce_AGxLL_R/2``, or ``unreported`` where NCCL does not say (see nccl_path)."""
        return self._path

    def last_seconds(self) -> float:
        """Seconds between CUDA events around the last call, the longest of this process's ranks."""
        return self._lanes.seconds(self._timed)

    def perturb(self, side_communicators: int) -> None:
        """That many further communicators of all ranks alive from now on. Collective over all ranks."""
        self._comms.side(side_communicators)

    def recreate(self) -> None:
        """New communicators in place of the old ones. Collective over all ranks; arrays stay valid."""
        self._comms.renew()

    def describe(self) -> Mapping[str, Any]:
        """Versions of NCCL and its bindings, driver, GPUs, and how this arm drives them."""
        silent = self._trace.silent
        kept = "" if self._trace.ours else str(self._trace.file)
        return {
            "nccl": self.version,
            "nccl_cupy_built_for": dotted(self._nccl.get_build_version()),
            "nccl4py": installed_version("nccl4py"),
            **describe_devices(self._lanes.cupy, self._devices.values()),
            "process_model": self.process_model,
            **described(self._sharing, self.process_model, os.environ),
            "buffers": self._options["buffers"],
            **({"algorithm": self._options["algorithm"]} if self._config is not None else {}),
            "path_from": f"nowhere: {silent}" if silent else kept or "NCCL's debug output",
        }

    def close(self) -> None:
        """Ends communicators and frees what allocate gave; idempotent."""
        if not self._open:
            return
        self._open = False
        self._comms.close()
        for rank, address in self._own:
            with self._lanes[rank].device, self._told("ncclMemFree"):
                self._errors.bindings.free(address)
        self._own.clear()
        self._lanes.close()


class NcclOne(Nccl):
    """NCCL with one process a GPU: every process drives one rank."""

    process_model: ClassVar[str] = "one"

    @classmethod
    def _rank_n_max(cls, gpu_n: int) -> int | None:
        """Without a launcher all processes are started on this node; with one, other nodes may have more."""
        return gpu_n if launcher_rank_and_size() is None else None


def _before_loading(options: Mapping[str, Any]) -> Trace:
    """Sets the variables that NCCL and CUDA read once; gives the trace of what NCCL says in this process."""
    if most_on_one(options["devices"]) > 1:
        widen_queues(os.environ)
    return trace()


def _needs_bindings(options: Mapping[str, Any]) -> str:
    """Which option needs nccl4py; "" where none does."""
    if options["buffers"] != "plain":
        return f'options.buffers = "{options["buffers"]}"'
    return f'options.algorithm = "{options["algorithm"]}"' if options["algorithm"] else ""


def _has_bindings() -> bool:
    from importlib.util import find_spec

    return find_spec("nccl") is not None and find_spec("nccl.bindings") is not None


def _more_features(options: Mapping[str, Any]) -> frozenset[str]:
    """A path where the debug variables let NCCL tell it; registration through nccl4py, unless all memory is registered anyway."""
    found = set() if why_silent(os.environ) else {"path"}
    if _has_bindings() and options["buffers"] == "plain":
        found.add("registration")
    return frozenset(found)
