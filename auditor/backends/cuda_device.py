"""What the CUDA backends share: CuPy, devices, plain memory, one stream a rank, waiting, and a context that is lost.

A CUDA error such as an illegal address spoils the context: no later call of this process can succeed, and each would be laid at
an innocent trial. So the process ends by SIGABRT at once: the supervisor records a crash at the very call, the CUDA error stands
in the arm's output, and the rest goes on in a new process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from auditor.errors import BackendError, ConfigError, Unavailable
from auditor.model import World

ALIGNMENT = 512
NOT_READY = 600  # cudaErrorNotReady
# cudaError_t after which the context is of no more use: uncorrectable memory or link, illegal address, time-out, assertion,
# hardware stack, illegal instruction, misaligned address, invalid address space, invalid program counter, launch failure.
LOST = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})
SPIN = 4000  # looks at a stream before naps between looks
NAP = 20e-6
POLL_EVERY = 500  # looks between questions to the library
INSTALL = "pip install 'collective-rounding-auditor[cuda13]' (or [cuda12], for an older driver)"


def load_cupy() -> Any:
    """The ``cupy`` module. Raises Unavailable."""
    try:
        import cupy
    except Exception as error:  # a missing CUDA library shows as anything
        raise Unavailable(f"cupy cannot be imported ({first_line(error)})", INSTALL) from error
    return cupy


def device_count(cupy: Any) -> int:
    """How many GPUs this process sees, at least 1; makes no context. Raises Unavailable."""
    remedy = "this backend needs an NVIDIA GPU and its driver"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"no GPU can be used here ({first_line(error)})", remedy) from error
    if not count:
        raise Unavailable("there is no GPU here, or CUDA_VISIBLE_DEVICES hides them", remedy)
    return count


def first_line(error: BaseException) -> str:
    """An exception's text, cut to one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def check_devices(backend: str, devices: Any) -> None:
    """Raises ConfigError where option ``devices`` is not a list of device numbers. One that comes twice is a GPU of two ranks."""
    fine = isinstance(devices, Sequence) and not isinstance(devices, str)
    if not fine or any(type(one) is not int or one < 0 for one in devices):
        raise ConfigError(f"backend {backend}: options.devices = {devices!r} is not a list of GPU numbers")


def choose_devices(world: World, listed: Sequence[int], count: int) -> dict[int, int]:
    """Local rank -> device number: the listed ones, or all in order. One process a rank counts by its number on the node.

    Raises ConfigError where a listed device is not there, Unavailable where there are too few.
    """
    if gone := [device for device in listed if device >= count]:
        raise ConfigError(f"options.devices names GPU {gone[0]}; there are {count}, counted from 0")
    devices = list(listed) or list(range(count))
    ranks = world.local_ranks
    if len(ranks) > len(devices):
        raise Unavailable(
            f"{len(ranks)} ranks of one process need as many GPUs, and there are {len(devices)}",
            "ask for fewer ranks, or repeat GPU numbers in options.devices where the library serves several ranks on one GPU",
        )
    if len(ranks) == 1 and world.rank_n > 1:
        device = devices[world.node_rank % len(devices)] if world.device is None else world.device
        return {ranks[0]: device}
    return dict(zip(ranks, devices, strict=False))


@dataclass(slots=True)
class Lane:
    """One local rank's device, the non-blocking stream that its calls go through, and the events around a call."""

    rank: int
    device: Any
    stream: Any
    begin: Any
    end: Any
    kept: list[Any] = field(default_factory=list)  # the arrays that allocate gave


class Lanes:
    """The lanes of this process's ranks."""

    def __init__(self, cupy: Any, devices: Mapping[int, int]) -> None:
        self.cupy = cupy
        self._lanes: dict[int, Lane] = {}
        for rank, number in devices.items():
            device = cupy.cuda.Device(number)
            with device:
                stream = cupy.cuda.Stream(non_blocking=True)
                lane = Lane(rank, device, stream, cupy.cuda.Event(), cupy.cuda.Event())
                for event in (lane.begin, lane.end):  # CUDA refuses the time of an event never recorded
                    event.record(stream)
                cupy.cuda.runtime.deviceSynchronize()
                self._lanes[rank] = lane

    def __getitem__(self, rank: int) -> Lane:
        return self._lanes[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._lanes)

    def owner(self, array: Any) -> int:
        """The rank whose lane gave this very array: several ranks may share a device. Raises BackendError where none did."""
        for rank, lane in self._lanes.items():
            if any(kept is array for kept in lane.kept):
                return rank
        raise BackendError("a window lies in memory that allocate did not give")

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """Local rank -> plain device memory as a 1-D uint8 array whose first byte is 512-byte aligned; valid until close."""
        given = {}
        for rank, lane in self._lanes.items():
            with lane.device, self.speaking(f"allocation of {nbytes} bytes"):
                memory = self.cupy.cuda.Memory(nbytes + ALIGNMENT)  # cudaMalloc itself, no pool between
            given[rank] = self.array(lane, self.cupy.cuda.MemoryPointer(memory, -memory.ptr % ALIGNMENT), nbytes)
        return given

    def array(self, lane: Lane, pointer: Any, nbytes: int) -> Any:
        """A uint8 array over a pointer, kept alive with the lane."""
        with lane.device:
            array = self.cupy.ndarray((nbytes,), self.cupy.uint8, pointer)
        lane.kept.append(array)
        return array

    def view(self, lane: Lane, address: int, nbytes: int, owner: Any) -> Any:
        """A uint8 array over memory that a library gave; ``owner`` is kept as long as the array."""
        memory = self.cupy.cuda.UnownedMemory(address, nbytes, owner, lane.device.id)
        return self.array(lane, self.cupy.cuda.MemoryPointer(memory, 0), nbytes)

    def settle(self, ranks: Iterable[int]) -> None:
        """What the caller has put on these devices is done: our streams do not wait for the default one by themselves."""
        for rank in ranks:
            with self._lanes[rank].device, self.speaking("work before the call"):
                self.cupy.cuda.runtime.deviceSynchronize()

    def begin(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            with self._lanes[rank].device:
                self._lanes[rank].begin.record(self._lanes[rank].stream)

    def end(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            with self._lanes[rank].device:
                self._lanes[rank].end.record(self._lanes[rank].stream)

    def wait(self, ranks: Iterable[int], poll: Callable[[], None] = lambda: None) -> None:
        """Return when these streams are empty; asks ``poll`` now and then, which may raise."""
        for rank in ranks:
            lane, looks = self._lanes[rank], 0
            with lane.device, self.speaking("call"):
                while (code := self._look(lane)) == NOT_READY:
                    looks += 1
                    if looks % POLL_EVERY == 0:
                        poll()
                    if looks > SPIN:
                        time.sleep(NAP)
                if code:
                    raise self.cupy.cuda.runtime.CUDARuntimeError(code)
        poll()

    def _look(self, lane: Lane) -> int:
        return int(self.cupy.cuda.runtime.streamQuery(lane.stream.ptr))

    def seconds(self, ranks: Iterable[int]) -> float:
        """Device time between begin and end, the longest of these ranks."""
        return max((self._elapsed(self._lanes[rank]) for rank in ranks), default=0.0)

    def _elapsed(self, lane: Lane) -> float:
        with lane.device, self.speaking("the time of the call"):
            return float(self.cupy.cuda.get_elapsed_time(lane.begin, lane.end)) * 1e-3

    @contextlib.contextmanager
    def speaking(self, what: str) -> Iterator[None]:
        """CUDA's refusals become BackendError; a lost context ends the process."""
        try:
            yield
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status in LOST:
                end_process(f"{what}: {error}")
            raise BackendError(f"{what}: {first_line(error)}") from error
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise BackendError(f"{what}: {first_line(error)}") from error

    def must_be_alive(self, what: str) -> None:
        """Ends the process where a library's error came of a lost context."""
        for lane in self._lanes.values():
            with lane.device:
                if (code := self._look(lane)) in LOST:
                    end_process(f"{what}: {self.cupy.cuda.runtime.CUDARuntimeError(code)}")

    def capture(self, ranks: Sequence[int], issue: Callable[[], None]) -> list[tuple[Lane, Any]]:
        """Record what ``issue`` puts on these streams as one CUDA graph a rank. Nothing runs yet."""
        open_: list[Lane] = []
        try:
            for rank in ranks:
                lane = self._lanes[rank]
                with lane.device, lane.stream:
                    lane.stream.begin_capture()
                open_.append(lane)
            issue()
            return [(lane, self._end_capture(lane)) for lane in [open_.pop(0) for _ in ranks]]
        except BaseException:
            for lane in open_:
                with contextlib.suppress(
                    Exception
                ):  # the capture is spoiled already; the first error is the telling one
                    self._end_capture(lane)
            raise

    def _end_capture(self, lane: Lane) -> Any:
        with lane.device, lane.stream:
            return lane.stream.end_capture()

    def replay(self, graphs: Sequence[tuple[Lane, Any]]) -> None:
        """Launch the graphs, each on its own stream."""
        for lane, graph in graphs:
            with lane.device:
                graph.launch(lane.stream)

    def close(self) -> None:
        """Forget arrays and streams; what holds an array keeps its memory."""
        for lane in self._lanes.values():
            lane.kept.clear()
        self._lanes.clear()


def describe_devices(cupy: Any, devices: Iterable[int]) -> dict[str, Any]:
    """CuPy, driver and runtime versions, and the GPUs by name and PCI address. JSON scalars."""
    runtime = cupy.cuda.runtime
    names = []
    for number in sorted(set(devices)):
        name = runtime.getDeviceProperties(number)["name"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        names.append(f"{number}: {text} ({runtime.deviceGetPCIBusId(number)})")
    return {
        "cupy": cupy.__version__,
        "cuda_driver_api": dotted_cuda(runtime.driverGetVersion()),
        "cuda_runtime": dotted_cuda(runtime.runtimeGetVersion()),
        "gpus": "; ".join(names),
    }


def installed_version(package: str) -> str:
    """A package's version by its metadata; ``not installed`` where there is none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def dotted_cuda(number: int) -> str:
    """CUDA's 13020 as 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def end_process(words: str) -> NoReturn:
    """Die so that the supervisor sees a crash at this call. The words go to the arm's output."""
    sys.stderr.write(f"auditor: the CUDA context is lost, this process ends: {words}\n")
    sys.stderr.flush()
    os.abort()
