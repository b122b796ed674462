"""NVSHMEM under audit, through nvshmem4py's low-level bindings (DESIGN §4).

One process drives one rank (a PE) and one GPU. The high-level calls of nvshmem4py look a buffer up by its first byte and reduce
all of it, so they can do neither odd counts nor shifts; the bindings take plain addresses on the symmetric heap. NVSHMEM's
``reduce`` leaves the result on every PE: it is an all_reduce, and there is no reduction to a root. NVSHMEM does not say which
algorithm ran, so there is no path; NVSHMEM_REDUCE_ALGO and the like in the arm's ``env`` are read once, at start.

``reduce_scatter`` in place is refused from two members up: NVSHMEM wants the same destination address on every PE, and DESIGN's
in-place windows lie at another offset on each.

Options
    scope    "stream" (default): the host's calls on a stream. "block": sums from a kernel of one block (nvshmem_block).
    team     "world" (default), or "split": a team of all PEs made by team_split_strided, which takes other code paths.
    devices  GPU numbers for this node's ranks, in order. Default: all. A number may come several times where CUDA's Multi-Process
             Service runs; without it NVSHMEM reduces nothing between PEs that share a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from auditor.backends.cuda_device import (
    ALIGNMENT,
    Lanes,
    check_devices,
    choose_devices,
    describe_devices,
    device_count,
    installed_version,
    load_cupy,
)
from auditor.backends.gpu_sharing import described, gpus_of_ranks, most_on_one, mps_runs
from auditor.backends.id_exchange import Exchange
from auditor.backends.nvshmem_block import BlockKernels, headers
from auditor.backends.nvshmem_start import load_nvshmem, start, told
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import Call, Capabilities, Window, World
from auditor.mpi_control import launcher_rank_and_size

TYPES = {"binary64": "double", "binary32": "float", "binary16": "half", "bfloat16": "bfloat16"}
COLLECTIVES = {"all_reduce": "reduce", "reduce_scatter": "reducescatter"}
OPERATIONS = ("sum", "min", "max")
OPTIONS: dict[str, Any] = {"scope": "stream", "team": "world", "devices": []}
TEAM_WORLD = 0
UNIQUE_ID_MASK = 2  # NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID
HEAP = 'set NVSHMEM_SYMMETRIC_SIZE in the arm\'s env, as in NVSHMEM_SYMMETRIC_SIZE = "4G"'
Windows = Mapping[int, Window]


class Nvshmem:
    """One PE of NVSHMEM."""

    name: ClassVar[str] = "nvshmem"
    process_model: ClassVar[str] = "one"

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Loads CuPy and NVSHMEM, starts nothing. Raises Unavailable, or ConfigError on a wrong option."""
        chosen = check_options(options)
        cupy = load_cupy()
        load_nvshmem()
        gpu_n = len(chosen["devices"]) or device_count(cupy)
        check_sharing(most_on_one(chosen["devices"]))
        if chosen["scope"] == "block":
            headers(cupy)
        return Capabilities(
            collectives=frozenset(COLLECTIVES),
            ops=frozenset({"sum"} if chosen["scope"] == "block" else OPERATIONS),
            formats=frozenset(TYPES),
            rank_n_max=gpu_n if launcher_rank_and_size() is None else None,
            memory="cuda",
            features=frozenset({"groups", "history", "queue", "timing"}),
        )

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self._options = check_options(options)
        cupy = load_cupy()
        self._core, self._bindings = load_nvshmem()
        self._world, self._rank = world, world.local_ranks[0]
        self._devices = choose_devices(world, self._options["devices"], device_count(cupy))
        self._sharing = most_on_one(gpus_of_ranks(cupy, world, self._devices).values())
        check_sharing(self._sharing)
        self.version = str(self._core.get_version().libnvshmem_version)
        with self._told("start"):
            start(self._core, world, self._devices[self._rank])
        self._lanes = Lanes(cupy, self._devices)
        self._lane = self._lanes[self._rank]
        self._exchange = Exchange(world.control, self._rank, world.rank_n) if world.rank_n > 1 else None
        self._teams: dict[tuple[int, ...], int] = {}
        self._side: list[int] = []
        self._heap: list[int] = []
        self._timed: tuple[int, ...] = ()
        self._kernels: BlockKernels | None = None
        if self._options["scope"] == "block":
            self._kernels = BlockKernels(cupy, self._bindings, self._lane, self.version)
        self._all = TEAM_WORLD if self._options["team"] == "world" else self._split()
        self._open = True

    def _told(self, what: str) -> AbstractContextManager[None]:
        """NVSHMEM's status codes become the auditor's errors."""
        return told(self._bindings, self.version, what)

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """This rank's array of ``nbytes`` on the symmetric heap, 512-byte aligned. Collective over all ranks."""
        with self._lane.device, self._told(f"allocation of {nbytes} bytes"):
            address = int(self._bindings.malloc(nbytes + ALIGNMENT))
        if not address:
            raise BackendError(f"NVSHMEM {self.version}: the symmetric heap has no {nbytes} bytes; {HEAP}")
        self._heap.append(address)
        aligned = address + -address % ALIGNMENT  # heaps begin alike, so every PE skips the same
        return {self._rank: self._lanes.view(self._lane, aligned, nbytes, self)}

    def run(self, call: Call, send: Windows, recv: Windows) -> None:
        """Perform the call. Raises Unsupported, or BackendError with NVSHMEM's status; a lost CUDA context ends the process."""
        self.enqueue(call, send, recv)
        self.wait()

    def enqueue(self, call: Call, send: Windows, recv: Windows) -> None:
        """Put the call on the stream and return; the windows are NVSHMEM's until :meth:`wait`."""
        name = self._name(call)
        if self._rank not in send:
            return
        source, target = send[self._rank], recv[self._rank]
        members = call.members(self._world.rank_n)
        if call.collective == "reduce_scatter" and target.buffer is source.buffer and len(members) > 1:
            raise Unsupported("NVSHMEM has no reduce_scatter in place with another destination address on each PE")
        team = self._team(call.group)
        if not self._timed:
            self._lanes.settle([self._rank])
        self._timed = (self._rank,)
        what = f"{call.collective} {call.op} of {call.count} {call.format}"
        with self._lane.device, self._told(what), self._lanes.speaking(what):
            self._lanes.begin(self._timed)
            if self._kernels is not None:
                self._kernels.launch(name, team, target.address, source.address, call.count)
            else:
                function = getattr(self._bindings, f"{name}_on_stream")
                function(team, target.address, source.address, call.count, self._lane.stream.ptr)
            self._lanes.end(self._timed)

    def wait(self) -> None:
        """Return when every enqueued call is done."""
        timed, self._timed = self._timed, ()
        self._lanes.wait(timed)
        if timed and self._kernels is not None:
            with self._told("block scope"):
                if status := self._kernels.status():
                    raise self._bindings.NVSHMEMError(status)

    def _name(self, call: Call) -> str:
        """The reduction in NVSHMEM's words, such as ``bfloat16_sum_reduce``. Raises Unsupported where it has none."""
        known = call.collective in COLLECTIVES and call.op in OPERATIONS and call.format in TYPES
        name = f"{TYPES[call.format]}_{call.op}_{COLLECTIVES[call.collective]}" if known else ""
        block = self._kernels is not None
        if not known or (block and call.op != "sum") or not (block or hasattr(self._bindings, f"{name}_on_stream")):
            where = "at block scope " if block else ""
            raise Unsupported(f"NVSHMEM {self.version} has no {call.collective} {call.op} of {call.format} {where}here")
        return name

    def _team(self, group: tuple[int, ...] | None) -> int:
        if group is None:
            return self._all
        if group not in self._teams:
            self._teams[group] = self._new_team(group)
        return self._teams[group]

    def _new_team(self, group: tuple[int, ...]) -> int:
        """A team of these PEs in this order, made by its members alone, which agree on an id of NVSHMEM's."""
        unique = self._bindings.team_uniqueid()

        def make() -> bytes:
            self._bindings.team_get_uniqueid(unique.ptr)
            return int(unique.value).to_bytes(8, "little")  # 64 bits without a sign

        if not hasattr(self._bindings, "team_init"):
            raise Unsupported(f"NVSHMEM {self.version} makes no team by its members alone")
        with self._lane.device, self._told(f"team of PEs {', '.join(map(str, group))}"):
            data = self._exchange.share(group, make) if self._exchange is not None else make()
            config = self._bindings.TeamConfig()
            config.uniqueid = int.from_bytes(data, "little")
            handle, position = ctypes.c_int(-1), group.index(self._rank)
            size = len(group)
            self._bindings.team_init(ctypes.addressof(handle), config.ptr, UNIQUE_ID_MASK, size, position)
        return handle.value

    def _split(self) -> int:
        """A further team of all PEs. Collective over all ranks."""
        handle, config = ctypes.c_int(-1), self._bindings.TeamConfig()
        with self._lane.device, self._told("split of the world"):
            self._bindings.team_split_strided(
                TEAM_WORLD, 0, 1, self._world.rank_n, config.ptr, 0, ctypes.addressof(handle)
            )
        if handle.value < 0:
            raise BackendError(f"NVSHMEM {self.version} gives no further team; set NVSHMEM_MAX_TEAMS in the arm's env")
        return handle.value

    def last_seconds(self) -> float:
        """Seconds between CUDA events around the last call."""
        return self._lanes.seconds([self._rank])

    def perturb(self, side_communicators: int) -> None:
        """That many further teams of all PEs alive from now on. Collective over all ranks."""
        while len(self._side) > side_communicators:
            self._destroy(self._side.pop())
        while len(self._side) < side_communicators:
            self._side.append(self._split())

    def _destroy(self, team: int) -> None:
        with self._lane.device, self._told("end of a team"):
            self._bindings.team_destroy(team)

    def describe(self) -> Mapping[str, Any]:
        """Versions of NVSHMEM and its bindings, driver, GPU, and how this arm calls it."""
        versions = self._core.get_version()
        return {
            "nvshmem": self.version,
            "openshmem_specification": str(versions.openshmem_spec_version),
            "nvshmem4py": str(versions.nvshmem4py_version),
            "cuda_core": installed_version("cuda-core"),
            **describe_devices(self._lanes.cupy, self._devices.values()),
            **described(self._sharing, self.process_model, os.environ),
            "scope": self._options["scope"],
            "team": self._options["team"],
        }

    def close(self) -> None:
        """Ends teams and frees what allocate gave; collective, idempotent. NVSHMEM itself ends with the process."""
        if not self._open:
            return
        self._open = False
        if self._kernels is not None:
            self._kernels.close()
        self.perturb(0)
        for team in self._teams.values():
            self._destroy(team)
        self._teams.clear()
        if self._all != TEAM_WORLD:
            self._destroy(self._all)
        with self._lane.device, self._told("release of the symmetric heap"):
            for address in self._heap:
                self._bindings.free(address)
        self._heap.clear()
        if self._exchange is not None:
            self._exchange.close()
        self._lanes.close()


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their defaults. Raises ConfigError on an unknown key or a wrong value."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"backend nvshmem: options.{key} is not known; known are {', '.join(OPTIONS)}")
    chosen = {**OPTIONS, **options}
    for key, allowed in (("scope", ("stream", "block")), ("team", ("world", "split"))):
        if chosen[key] not in allowed:
            raise ConfigError(f"backend nvshmem: options.{key} = {chosen[key]!r} is not one of {', '.join(allowed)}")
    check_devices("nvshmem", chosen["devices"])
    return chosen


def check_sharing(most: int) -> None:
    """Raises Unavailable where ``most`` PEs share a GPU without MPS: start-up works there, and every reduction is refused."""
    if most > 1 and not mps_runs(os.environ):
        remedy = (
            f"start nvidia-cuda-mps-control -d and set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to at most {100 // most} "
            "for these ranks, or give every rank a GPU of its own"
        )
        raise Unavailable(f"{most} ranks are to share a GPU, which NVSHMEM serves under MPS alone", remedy)
