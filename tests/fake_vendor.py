"""CuPy, NCCL, NVSHMEM, cuda.core and mpi4py as far as reproduce.py uses them, on host memory; ranks of mpiexec are threads.

Addresses are real, so that a wrong pointer, offset or count shows. Sums are made in binary64 and rounded once by ml_dtypes.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from typing import Any

import ml_dtypes
import numpy as np

NCCL_TYPES = {6: np.float16, 7: np.float32, 8: np.float64, 9: ml_dtypes.bfloat16}
NVSHMEM_TYPES = {"half": np.float16, "float": np.float32, "double": np.float64, "bfloat16": ml_dtypes.bfloat16}


class Array(np.ndarray):
    """A device array, on the host."""

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def set(self, image: Any) -> None:
        self[:] = image


def view(address: int, nbytes: int, dtype: Any) -> Any:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8).view(dtype)


class Meeting:
    """What every rank brings, once all have come."""

    def __init__(self, n: int) -> None:
        self.n, self.barrier, self.rows = n, threading.Barrier(n, timeout=20), {}
        self.rank = threading.local()

    def all(self, value: Any) -> list[Any]:
        self.rows[self.rank.value] = value
        self.barrier.wait()
        seen = [self.rows[rank] for rank in range(self.n)]
        self.barrier.wait()
        return seen


class World:
    """COMM_WORLD."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def Get_rank(self) -> int:
        return int(self.meeting.rank.value)

    def Get_size(self) -> int:
        return self.meeting.n

    def bcast(self, value: Any) -> Any:
        return self.meeting.all(value)[0]

    def gather(self, value: Any) -> Any:
        seen = self.meeting.all(value)
        return seen if self.Get_rank() == 0 else None

    def Barrier(self) -> None:
        self.meeting.all(None)


class Machine:
    """One fake machine: ``spoil`` is applied to every result (a float64 array) before it is rounded."""

    def __init__(self, ranks: int, gpus: int, spoil: Any) -> None:
        self.gpus, self.spoil = gpus, spoil
        self.meeting = Meeting(ranks)
        self.meeting.rank.value = 0
        self.posted: list[Any] = []
        self.calls: list[str] = []
        self.heap: list[Any] = []

    # ------------------------------------------------------------------------------------------------------------ NCCL

    def communicator(self, size: int, _uid: Any, rank: int) -> Any:
        def post(name: str) -> Any:
            return lambda *call: self.post(size, rank, name, call)

        return types.SimpleNamespace(
            allReduce=post("allReduce"), reduceScatter=post("reduceScatter"), reduce=post("reduce")
        )

    def post(self, size: int, rank: int, name: str, call: Any) -> None:
        self.posted.append((rank, name, call))
        if len(self.posted) == size:
            posted, self.posted = sorted(self.posted, key=lambda one: one[0]), []
            self.calls.append(name)
            self.perform(name, [one[2] for one in posted])

    def group_end(self) -> None:
        if self.meeting.n > 1:
            self.meeting.all(None)  # every rank's call has been posted

    def perform(self, name: str, calls: list[Any]) -> None:
        count, number = calls[0][2], calls[0][3]
        dtype, n = np.dtype(NCCL_TYPES[number]), len(calls)
        length = count * (n if name == "reduceScatter" else 1)
        result = self.summed([view(call[0], length * dtype.itemsize, dtype) for call in calls], dtype)
        for rank, call in enumerate(calls):
            if name == "reduce" and rank != call[5]:
                continue
            part = result[rank * count : (rank + 1) * count] if name == "reduceScatter" else result
            view(call[1], count * dtype.itemsize, dtype)[:] = part

    def summed(self, terms: list[Any], dtype: Any) -> Any:
        return self.spoil(np.sum([term.astype(np.float64) for term in terms], axis=0)).astype(dtype)

    # --------------------------------------------------------------------------------------------------------- NVSHMEM

    def nvshmem(self, name: str, target: int, source: int, count: int) -> None:
        kind, _, verb = name.partition("_sum_")
        dtype, scatter = np.dtype(NVSHMEM_TYPES[kind]), verb == "reducescatter"
        length = count * (self.meeting.n if scatter else 1)
        terms = self.meeting.all(view(source, length * dtype.itemsize, dtype))
        result = self.summed(terms, dtype)
        self.meeting.barrier.wait()
        rank = self.meeting.rank.value
        part = result[rank * count : (rank + 1) * count] if scatter else result
        view(target, count * dtype.itemsize, dtype)[:] = part
        if rank == 0:
            self.calls.append(name)

    def malloc(self, nbytes: int) -> int:
        block = np.zeros(nbytes, np.uint8)
        self.heap.append(block)
        return int(block.ctypes.data)


class Device:
    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def use(self) -> None:
        return None

    set_current = use


def install(monkeypatch: Any, machine: Machine) -> None:
    """Put the fakes where a script's imports find them."""
    stream = types.SimpleNamespace(ptr=1, synchronize=lambda: None)
    nccl = module(
        "cupy.cuda.nccl",
        get_version=lambda: 22809,
        get_unique_id=lambda: b"id",
        groupStart=lambda: None,
        groupEnd=machine.group_end,
    )
    nccl.NcclCommunicator = type(
        "NcclCommunicator",
        (),
        {
            "__new__": lambda _cls, *call: machine.communicator(*call),
            "initAll": classmethod(lambda _cls, ids: [machine.communicator(len(ids), b"", r) for r in range(len(ids))]),
        },
    )
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: machine.gpus,
        getDeviceProperties=lambda _number: {"name": b"Fake GPU"},
        deviceSynchronize=lambda: None,
    )
    cuda = module("cupy.cuda", nccl=nccl, runtime=runtime, Device=Device, Stream=lambda non_blocking: stream)
    cuda.UnownedMemory = lambda address, nbytes, owner, gpu: types.SimpleNamespace(ptr=address)
    cuda.MemoryPointer = lambda memory, offset: types.SimpleNamespace(ptr=memory.ptr + offset)
    cupy = module("cupy", cuda=cuda, asarray=lambda a: aligned(a), asnumpy=lambda a: np.array(a, subok=False))
    cupy.ndarray = lambda shape, dtype, pointer: view(pointer.ptr, shape[0], dtype).view(Array)
    core = module("nvshmem.core", init=lambda **_kw: None, finalize=lambda: None)
    core.get_unique_id = lambda empty: types.SimpleNamespace(_data=np.zeros(128, np.int8))
    core.get_version = lambda: types.SimpleNamespace(libnvshmem_version="3.4.5")
    bindings = module("nvshmem.bindings", malloc=machine.malloc)
    for kind in NVSHMEM_TYPES:
        for verb in ("reduce", "reducescatter"):
            name = f"{kind}_sum_{verb}"
            call = lambda team, t, s, n, stream, name=name: machine.nvshmem(name, t, s, n)  # noqa: E731
            setattr(bindings, f"{name}_on_stream", call)
    mpi = module("mpi4py.MPI", COMM_WORLD=World(machine.meeting))
    for one in (
        cupy,
        cuda,
        nccl,
        module("nvshmem", core=core, bindings=bindings),
        core,
        bindings,
        module("cuda", core=module("cuda.core", Device=Device)),
        module("cuda.core", Device=Device),
        module("mpi4py", MPI=mpi),
        mpi,
    ):
        monkeypatch.setitem(sys.modules, one.__name__, one)


def module(name: str, **members: Any) -> Any:
    made: Any = types.ModuleType(name)
    vars(made).update(members)
    return made


def aligned(image: Any) -> Any:
    whole = np.empty(len(image) + 512, np.uint8)
    part = whole[-whole.ctypes.data % 512 :][: len(image)].view(Array)
    part[:] = image
    return part


def run(machine: Machine, text: str) -> list[dict[str, Any]]:
    """The script's namespaces after running it, one for each rank of the meeting (one where there is one process)."""
    spaces: list[dict[str, Any]] = [
        {"__name__": "__main__", "__file__": "reproduce.py"} for _ in range(machine.meeting.n)
    ]
    failed: list[BaseException] = []

    def one(rank: int) -> None:
        machine.meeting.rank.value = rank
        try:
            exec(compile(text, "reproduce.py", "exec"), spaces[rank])
        except BaseException as error:  # a SystemExit too: the script refuses by it
            failed.append(error)
            machine.meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(machine.meeting.n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failed:
        raise failed[0]
    return spaces
