"""``torch.distributed`` under audit: the process groups that training jobs use (DESIGN §4).

One process drives one rank. No MPI is needed: the auditor starts the ranks, and torch's own store, whose address
``world.control`` carries, brings them together. Under mpiexec or srun the launcher's ranks are used. torch brings its own NCCL
and NVSHMEM: give it an environment of its own.

torch's all_reduce and reduce work in place alone. Out of place the send range is copied to the receive range first, as a training
job would; a rank of ``reduce`` that is not the root hands torch a copy, since torch uses its tensor as scratch. Copies have the
receive range's shift.

A group's ranks are sorted by torch. Where a reduce_scatter's group is not in ascending order its shares are handed over one by
one, as torch's ``reduce_scatter`` takes them.

Options
    process_group  "gloo" (default): on the host. "nccl": one GPU a rank.
    operation      with "nccl": an operation on symmetric memory in place of the process group's all_reduce. By loads from the
                   peers: "one_shot_all_reduce", "two_shot_all_reduce_". By sums in the switch (WAIVED where multicast is
                   forbidden, before any CUDA call): "multimem_one_shot_all_reduce", "multimem_all_reduce_".
    devices        with "nccl": GPU numbers for this node's ranks, in order. Default: all.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from auditor.backends.nccl_path import UNREPORTED, taken, trace, why_silent
from auditor.backends.torch_device import CudaPlace, HostPlace
from auditor.backends.torch_options import check_options, forbid_multicast, load_torch
from auditor.backends.torch_symmetric import Symmetric
from auditor.errors import BackendError, Unsupported
from auditor.model import COLLECTIVES, OPS, Call, Capabilities, Window, World
from auditor.mpi_control import launcher_rank_and_size

DTYPES = {"bfloat16": "bfloat16", "binary16": "float16", "binary32": "float32", "binary64": "float64"}
PATIENCE = timedelta(hours=1)  # the auditor's own watch is stricter
Windows = Mapping[int, Window]


class TorchBackend:
    """One rank of a torch process group."""

    name: ClassVar[str] = "torch"
    process_model: ClassVar[str] = "one"
    needs_mpi: ClassVar[bool] = False

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Loads torch, starts nothing. Raises Unavailable, or ConfigError on a wrong option."""
        chosen = check_options(options)
        forbid_multicast(chosen["operation"])
        torch, _ = load_torch(chosen["process_group"])
        cuda = chosen["process_group"] == "nccl"
        features = {"history", "timing", "path"} if not cuda or not why_silent(os.environ) else {"history", "timing"}
        features |= {"queue"} if cuda else set()
        alone = launcher_rank_and_size() is None
        if chosen["operation"]:
            return Symmetric.capabilities(
                chosen["operation"], CudaPlace.count(torch, chosen["devices"]) if alone else None
            )
        return Capabilities(
            collectives=frozenset(COLLECTIVES),
            ops=frozenset(OPS),
            formats=frozenset(DTYPES),
            rank_n_max=CudaPlace.count(torch, chosen["devices"]) if cuda and alone else None,
            memory="cuda" if cuda else "host",
            features=frozenset(features | {"groups", "recreate"}),
        )

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self._options = check_options(options)
        forbid_multicast(self._options["operation"])
        self._cuda = self._options["process_group"] == "nccl"
        self._trace = trace() if self._cuda else None  # before NCCL writes its first line
        self._torch, self._dist = load_torch(self._options["process_group"])
        if self._dist.is_initialized():
            raise BackendError("torch.distributed has a process group in this process already")
        self._world, self._rank = world, world.local_ranks[0]
        self._place: HostPlace | CudaPlace = HostPlace(self._torch)
        if self._cuda:
            self._place = CudaPlace(self._torch, world, self._options["devices"])
        self._hosts = [host.decode() for host in world.control.all_gather(socket.gethostname().encode())]
        self._store = self._meet()
        self._generation = 0
        self._groups: dict[tuple[int, ...], Any] = {}
        self._side: list[Any] = []
        self._join()
        self._symmetric = Symmetric(self._torch, self._options["operation"]) if self._options["operation"] else None
        self._path, self._mark, self._open = "", 0, True
        if self._trace is not None:
            self._trace.open()

    def _meet(self) -> Any:
        """torch's store on rank 0's node: a port that is free, told to the others by control."""
        make, rank_n = self._dist.TCPStore, self._world.rank_n
        here = "127.0.0.1" if len(set(self._hosts)) == 1 else self._hosts[0]
        common = {"world_size": rank_n, "timeout": PATIENCE, "wait_for_workers": False}
        with self._told("the rendezvous"):
            if self._rank == 0:
                store = make(here, 0, is_master=True, **common)
                self._world.control.broadcast(str(store.port).encode())
                return store
            return make(here, int(self._world.control.broadcast(b"")), is_master=False, **common)

    def _join(self) -> None:
        """The process group of all ranks; each generation under a prefix of its own in the store."""
        store = self._dist.PrefixStore(f"auditor{self._generation}", self._store)
        more = {"device_id": self._place.device} if self._cuda else {}
        with self._told("init_process_group"):
            self._dist.init_process_group(
                self._options["process_group"],
                store=store,
                rank=self._rank,
                world_size=self._world.rank_n,
                timeout=PATIENCE,
                **more,
            )

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """torch's refusals, which are RuntimeErrors of all kinds, in its own words on one line."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError) as error:
            words = " ".join(str(error).split())
            raise BackendError(f"torch {self._torch.__version__}, {what}: {words[:400]}") from error

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """This rank's array of ``nbytes``, 512-byte aligned: NumPy's over a torch tensor, or CuPy's."""
        with self._told(f"allocation of {nbytes} bytes"):
            if self._symmetric is not None:
                return {self._rank: self._place.adopt(self._symmetric.allocate(nbytes, self._place.device), nbytes)}
            return {self._rank: self._place.allocate(nbytes)}

    def run(self, call: Call, send: Windows, recv: Windows) -> None:
        """Perform the call; a rank outside the group does nothing. Raises Unsupported, or BackendError with torch's words."""
        self.enqueue(call, send, recv)
        self.wait()

    def enqueue(self, call: Call, send: Windows, recv: Windows) -> None:
        """Issue the call; with nccl it goes on after the return, until :meth:`wait`."""
        self._path = ""
        if self._rank not in send:
            return
        if call.format not in DTYPES or call.op not in OPS or call.collective not in COLLECTIVES:
            raise Unsupported(f"torch: {call.collective} {call.op} of {call.format} is not offered")
        members = call.members(self._world.rank_n)
        group = self._group(members)
        dtype = getattr(self._torch, DTYPES[call.format])
        source, target = (self._place.tensor(window[self._rank], dtype) for window in (send, recv))
        self._mark = self._trace.mark() if self._trace is not None else 0
        with self._told(f"{call.collective} {call.op} of {call.count} {call.format}"):
            self._place.begin()
            self._issue(call, members, group, source, target)
            self._place.end()

    def _issue(self, call: Call, members: tuple[int, ...], group: Any, source: Any, target: Any) -> None:
        op = getattr(self._dist.ReduceOp, call.op.upper())
        if self._symmetric is not None:
            self._symmetric.all_reduce(call, group, source, target)
        elif call.collective == "all_reduce":
            self._place.copy(source, target)
            self._dist.all_reduce(target, op, group)
        elif call.collective == "reduce":
            root = members[call.root]
            mine = target if self._rank == root else self._place.scratch(source)
            self._place.copy(source, mine)
            self._dist.reduce(mine, root, op, group)
        elif list(members) == sorted(members):
            self._reduce_scatter(target, source, op, group)
        else:
            share = {rank: source[i * call.count : (i + 1) * call.count] for i, rank in enumerate(members)}
            self._dist.reduce_scatter(target, [share[rank] for rank in sorted(members)], op, group)

    @property
    def _reduce_scatter(self) -> Any:
        """By its name of torch 2.13, or by the one before."""
        return getattr(self._dist, "reduce_scatter_single", None) or self._dist.reduce_scatter_tensor

    def wait(self) -> None:
        """Return when every call is done."""
        with self._told("the end of a call"):
            self._place.wait()
        self._path = self._told_path()

    def _told_path(self) -> str:
        if self._symmetric is not None:
            return f"symm_mem/{self._options['operation']}"
        if self._trace is None:
            return "gloo"
        return taken(self._trace.since(self._mark)) or UNREPORTED

    def path(self) -> str:
        """``gloo``, which does not say more; NCCL's ``RING/LL/1``; ``symm_mem/OPERATION``."""
        return self._path

    def last_seconds(self) -> float:
        """Seconds of the last call: between CUDA events, or by the host's clock around torch's verbs."""
        return self._place.seconds()

    def _group(self, members: tuple[int, ...]) -> Any:
        """The process group of these ranks; None, which is the whole world's, where those are all."""
        key = tuple(sorted(members))
        if len(key) == self._world.rank_n:
            return None
        if key not in self._groups:
            with self._told(f"new_group of ranks {list(key)}"):
                self._groups[key] = self._dist.new_group(list(key), timeout=PATIENCE, use_local_synchronization=True)
        return self._groups[key]

    def perturb(self, side_communicators: int) -> None:
        """That many further groups of all ranks alive from now on. Collective over all ranks."""
        with self._told("side groups"):
            while len(self._side) > side_communicators:
                self._dist.destroy_process_group(self._side.pop())
            while len(self._side) < side_communicators:
                self._side.append(self._dist.new_group(timeout=PATIENCE))

    def recreate(self) -> None:
        """New process groups in place of the old ones. Collective over all ranks; arrays stay valid."""
        self._leave()
        self._generation += 1
        self._join()

    def _leave(self) -> None:
        with self._told("destroy_process_group"):
            self._place.wait()
            self._dist.destroy_process_group()
        self._groups.clear()
        self._side.clear()

    def describe(self) -> Mapping[str, Any]:
        """Versions of torch and of what it brings, devices, hosts."""
        operation = {"operation": self._options["operation"]} if self._options["operation"] else {}
        return {
            "torch": str(self._torch.__version__),
            "process_group": self._options["process_group"],
            "numpy": np.__version__,
            **operation,
            **self._place.describe(),
            "hosts": " ".join(dict.fromkeys(self._hosts)),
        }

    def close(self) -> None:
        """Ends the process groups and frees the arrays; idempotent."""
        if not self._open:
            return
        self._open = False
        self._leave()
        self._place.close()
        if self._symmetric is not None:
            self._symmetric.close()
        self._world.control.barrier()  # rank 0 holds the store that the others still talk to while they leave
        self._store = None
