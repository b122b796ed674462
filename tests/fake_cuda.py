"""CuPy and NCCL as far as the backends use them, on host memory: what a backend does with them is tested without a GPU.

Addresses are real, so a wrong pointer, count or window shows. NCCL's debug lines are written as NCCL writes them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

NCCL_TYPES = {
    6: np.dtype(np.float16),
    7: np.dtype(np.float32),
    8: np.dtype(np.float64),
    9: np.dtype(ml_dtypes.bfloat16),
    10: np.dtype(ml_dtypes.float8_e4m3fn),
    11: np.dtype(ml_dtypes.float8_e5m2),
}
ELEMENTWISE = {0: np.sum, 2: np.max, 3: np.min, 4: np.mean}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text=""):
        super().__init__(text or f"cudaError{status}: as asked for")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


NCCL_WORDS = {
    1: "UNHANDLED_CUDA_ERROR: unhandled cuda error",
    4: "INVALID_ARGUMENT: invalid argument",
    5: "INVALID_USAGE",
}


class NcclError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"NCCL_ERROR_{NCCL_WORDS.get(status, status)} (run with NCCL_DEBUG=WARN for details)")
        self.status = status


class Array(np.ndarray):
    """A uint8 array that knows its device, as CuPy's do."""

    device = types.SimpleNamespace(id=0)


@dataclass
class World:
    """The state of the fake machine, and what it is told to do wrong."""

    gpu_n: int = 2
    version: int = 22809
    major: int = 9
    stream_code: int = 0
    refuse: int = 0  # NCCL status of the next call
    warning: str = ""
    async_error: int = 0
    log: bool = True
    window_handle: int = 1
    current: int = 0
    group: int = 0
    posted: list = field(default_factory=list)
    alive: int = 0
    events: list = field(default_factory=list)
    local: threading.local = field(default_factory=threading.local)


class Device:
    world: World

    def __init__(self, number):
        self.id = number

    def __enter__(self):
        self.before, self.world.current = self.world.current, self.id
        return self

    def __exit__(self, *_):
        self.world.current = self.before


class Memory:
    def __init__(self, nbytes):
        self.block = (ctypes.c_uint8 * (nbytes + 64))()
        self.ptr = ctypes.addressof(self.block) + 48  # never aligned by luck
        self.ptr -= self.ptr % 16

    device_id = 0


class UnownedMemory:
    def __init__(self, address, nbytes, owner, device_id=-1):
        self.ptr, self.owner, self.device_id = address, owner, device_id


class MemoryPointer:
    def __init__(self, memory, offset):
        self.mem, self.ptr = memory, memory.ptr + offset


class Stream:
    world: World

    def __init__(self, non_blocking=False):
        self.ptr = id(self)
        assert non_blocking

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def begin_capture(self):
        self.world.capturing = []
        self.world.events.append("begin_capture")

    def end_capture(self):
        """The first graph of a capture does the work of all; the others have nothing to do."""
        calls = list(self.world.capturing) if self.world.events[-1] == "begin_capture" else []
        self.world.events.append("end_capture")
        return types.SimpleNamespace(launch=lambda stream: perform_posted(self.world, calls))


class Event:
    def record(self, stream):
        self.at = len(Stream.world.events)


def ndarray(shape, dtype, pointer):
    block = (ctypes.c_uint8 * shape[0]).from_address(pointer.ptr)
    array = np.frombuffer(block, np.uint8).view(Array)
    array.device = types.SimpleNamespace(id=Device.world.current)
    array.kept = pointer
    return array


class Communicator:
    world: World

    def __init__(self, n, uid, rank):
        if len(uid) != 128:
            raise NcclError(4)
        self.size, self.rank, self.key = n, rank, bytes(uid)
        self.device = self.world.current
        self.comm = id(self)
        self.world.alive += 1
        log(self.world, "NCCL version")

    @classmethod
    def initAll(cls, devices):
        if len(set(devices)) < len(devices) and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            raise NcclError(5)
        uid = unique_id(cls.world)
        made = []
        for rank, device in enumerate(devices):
            with Device(device):
                made.append(cls(len(devices), uid, rank))
        return made

    def allReduce(self, send, recv, count, dtype, op, stream):
        self._post("AllReduce", send, recv, count, dtype, op, 0)

    def reduceScatter(self, send, recv, count, dtype, op, stream):
        self._post("ReduceScatter", send, recv, count, dtype, op, 0)

    def reduce(self, send, recv, count, dtype, op, root, stream):
        self._post("Reduce", send, recv, count, dtype, op, root)

    def _post(self, *call):
        world = self.world
        assert world.current == self.device, "the communicator's device is not current"
        if world.refuse:
            status, world.refuse = world.refuse, 0
            log(world, f"NCCL WARN {world.warning}")
            raise NcclError(status)
        world.posted.append((self, call))
        if not world.group:
            finish(world)

    def check_async_error(self):
        if self.world.async_error:
            raise NcclError(self.world.async_error)

    def destroy(self):
        self.world.alive -= 1

    def abort(self):
        self.world.alive -= 1
        self.world.events.append("abort")


def finish(world):
    posted, world.posted = world.posted, []
    if posted and getattr(world, "capturing", None) is not None and world.events[-1:] == ["begin_capture"]:
        world.capturing.extend(posted)
        tell(world, posted)
        return
    perform_posted(world, posted)
    tell(world, posted)


def tell(world, posted):
    for comm, (name, *_rest) in posted:
        if comm.rank == 0 and comm.size > 1:
            count, dtype = _rest[2], NCCL_TYPES[_rest[3]]
            nbytes = count * dtype.itemsize
            log(world, f"{name}: {nbytes} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}")


def perform_posted(world, posted):
    if not posted:
        return
    assert len({comm.key for comm, _ in posted}) == 1
    posted = sorted(posted, key=lambda one: one[0].rank)
    assert [comm.rank for comm, _ in posted] == list(range(posted[0][0].size)), "a rank is missing: this would hang"
    name, _, _, count, number, op, root = posted[0][1]
    dtype, n = NCCL_TYPES[number], len(posted)
    length = count * (n if name == "ReduceScatter" else 1)
    terms = [view(call[1], length, dtype).astype(np.float64) for _, call in posted]
    result = ELEMENTWISE[op](np.stack(terms), axis=0).astype(dtype)
    for rank, (_, call) in enumerate(posted):
        if name == "AllReduce" or (name == "Reduce" and rank == root):
            view(call[2], count, dtype)[:] = result
        elif name == "ReduceScatter":
            view(call[2], count, dtype)[:] = result[rank * count : (rank + 1) * count]


def view(address, count, dtype):
    return np.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address), dtype)


def log(world, text):
    if world.log and "NCCL_DEBUG_FILE" in os.environ:
        path = os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))
        if not hasattr(world, "stream"):
            world.stream = open(path, "w", buffering=1)  # noqa: SIM115  NCCL, too, keeps it open for good
        print(f"host:1:2 [0] NCCL INFO {text}" if "WARN" not in text else f"host:1:2 [0] {text}", file=world.stream)


def unique_id(world):
    world.ids = getattr(world, "ids", 0) + 1
    return world.ids.to_bytes(128, "little")


def install(monkeypatch, **settings):
    """Put the fakes where ``import cupy`` finds them; gives the World."""
    world = World(**settings)
    for cls in (Device, Stream, Communicator):
        monkeypatch.setattr(cls, "world", world, raising=False)

    def properties(number):
        return {"name": b"Fake H200", "major": world.major, "minor": 0}

    def count():
        if world.gpu_n < 0:
            raise CUDARuntimeError(35, "cudaErrorInsufficientDriver: no driver")
        return world.gpu_n

    def group_end():
        world.group -= 1
        if not world.group:
            finish(world)

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=count,
        getDeviceProperties=properties,
        deviceGetPCIBusId=lambda number: f"0000:{number:02x}:00.0",
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13020,
        deviceSynchronize=lambda: None,
        streamQuery=lambda stream: world.stream_code,
    )
    nccl = types.ModuleType("cupy.cuda.nccl")
    vars(nccl).update(
        available=True,
        NcclError=NcclError,
        NcclCommunicator=Communicator,
        get_version=lambda: world.version,
        get_build_version=lambda: 22707,
        get_unique_id=lambda: unique_id(world),
        groupStart=lambda: setattr(world, "group", world.group + 1),
        groupEnd=group_end,
    )
    cuda = types.ModuleType("cupy.cuda")
    vars(cuda).update(
        runtime=runtime,
        nccl=nccl,
        Device=Device,
        Stream=Stream,
        Event=Event,
        Memory=Memory,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        get_elapsed_time=lambda begin, end: 0.001,
    )
    cupy = types.ModuleType("cupy")
    vars(cupy).update(cuda=cuda, uint8=np.uint8, ndarray=ndarray, __version__="14.2.0")
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    return world
