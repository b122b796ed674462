"""Where a local workload runs: the host, or one GPU through CuPy. Arrays are NumPy's or CuPy's; ``xp`` is their library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auditor.environment.machine import cpu_model, first_line, memory_bytes, usable_cpus
from auditor.errors import ConfigError
from auditor.kernels import cuda
from auditor.plan.summary import size

DEVICES = ("cpu", "cuda")
DRIVER = Path("/proc/driver/nvidia/version")
LIMIT_BYTES = (1 << 20, 1 << 28)  # least and most that a copy is timed with
HOST_HEADROOM = 8.0  # caches are read several times as fast as they are copied, never eight times
HOST_LEAST = 100e9  # bytes a second: a machine that is busy with something else copies slowly, but is no slower machine
CACHED_HEADROOM = 4.0  # a GPU's second-level cache over its memory
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
Array = npt.NDArray[Any]


class Device(Protocol):
    """One device of this process."""

    kind: str
    xp: Any

    def put(self, data: Array) -> Any:
        """A copy on the device; never the array itself."""

    def get(self, array: Any) -> Array:
        """A copy on the host, once everything asked of the device is done."""

    def peek(self, array: Any) -> Array:
        """A copy on the host of what stands there now, whatever is still under way."""

    def settle(self) -> None:
        """Waits until everything asked of the device is done."""

    def overwrite(self, array: Any, data: Array) -> None:
        """New contents for the very same memory; done on return."""

    def limit(self, nbytes: int) -> tuple[float, str]:
        """(bytes a second that nothing here moves faster than, how that is known), for a working set of ``nbytes``."""

    def describe(self) -> dict[str, Any]:
        """``device``: its name; ``library``: versions. JSON."""


class Host:
    """The processor, with NumPy."""

    kind = "cpu"
    xp: Any = np

    def put(self, data: Array) -> Array:
        return data.copy()

    def get(self, array: Array) -> Array:
        return array.copy()

    def peek(self, array: Array) -> Array:
        return array.copy()

    def settle(self) -> None:
        """A call on the host has nothing pending that could be waited for."""

    def overwrite(self, array: Array, data: Array) -> None:
        array[...] = data

    def limit(self, nbytes: int) -> tuple[float, str]:
        copied = min(max(nbytes, LIMIT_BYTES[0]), LIMIT_BYTES[1])
        measured = host_copy_rate(copied)
        if HOST_HEADROOM * measured < HOST_LEAST:
            return HOST_LEAST, "what any host's caches may give; this one copies more slowly now"
        told = f"{measured / 1e9:.3g} GB/s at which all cores together copy {copied:,} bytes here"
        return HOST_HEADROOM * measured, f"{HOST_HEADROOM:g} times the {told}"

    def describe(self) -> dict[str, Any]:
        return {"device": cpu_model(), "library": {"numpy": np.__version__}}


def host_copy_rate(nbytes: int, tries: int = 3) -> float:
    """Bytes read and written a second when every usable core copies its part; the best of some tries."""
    cores = usable_cpus() or 1
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    parts = [slice(nbytes * k // cores, nbytes * (k + 1) // cores) for k in range(cores)]

    def copy(part: slice) -> None:
        target[part] = source[part]

    best = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(tries):
            began = time.perf_counter()
            list(pool.map(copy, parts))
            best = min(best, time.perf_counter() - began)
    return 2 * nbytes / best


class Gpu:
    """One GPU, on CuPy's current stream; ``peek`` reads on a stream that waits for no other."""

    kind = "cuda"

    def __init__(self, number: int = 0) -> None:
        self.xp = cuda.cupy()
        self.number = number
        self.runtime = cuda.engine(number).runtime
        self._device = self.xp.cuda.Device(number)
        self._device.use()
        self._aside = self.xp.cuda.Stream(non_blocking=True)

    def put(self, data: Array) -> Any:
        array = self.xp.asarray(data)
        self.settle()
        return array

    def get(self, array: Any) -> Array:
        self.settle()
        return np.asarray(self.xp.asnumpy(array))

    def peek(self, array: Any) -> Array:
        return np.asarray(array.get(stream=self._aside))

    def settle(self) -> None:
        self._device.synchronize()

    def overwrite(self, array: Any, data: Array) -> None:
        array.set(data)
        self.settle()

    def limit(self, nbytes: int) -> tuple[float, str]:
        known = self._device.attributes
        clock, width = known.get("MemoryClockRate", 0), known.get("GlobalMemoryBusWidth", 0)
        cache = int(known.get("L2CacheSize", 0))
        if clock and width:
            rate, says = clock * 1e3 * 2 * width / 8, f"{clock / 1e3:g} MHz, twice a cycle, {width} bits wide"
        else:
            copied = self._copy_rate()
            rate, says = 2 * copied, f"twice the {copied / 1e9:.4g} GB/s at which it copies its own memory"
        if nbytes > cache:
            return rate, f"the memory's {rate / 1e9:.4g} GB/s: {says}"
        return (
            CACHED_HEADROOM * rate,
            f"{CACHED_HEADROOM:g} times the memory's {rate / 1e9:.4g} GB/s, since it all fits a cache",
        )

    def _copy_rate(self, nbytes: int = LIMIT_BYTES[1], tries: int = 3) -> float:
        source = self.xp.zeros(nbytes, np.uint8)
        best = min(self.timed(source.copy) for _ in range(tries))
        return 2 * nbytes / best

    def timed(self, issue: Callable[[], Any]) -> float:
        """Seconds by the device's own clock between the events before and after ``issue``; waits for the end."""
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        issue()
        end.record()
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) * 1e-3

    def describe(self) -> dict[str, Any]:
        runtime = self.xp.cuda.runtime
        name = runtime.getDeviceProperties(self.number)["name"]
        versions = {
            "numpy": np.__version__,
            "cupy": self.xp.__version__,
            "cuda_driver_api": int(runtime.driverGetVersion()),
            "cuda_runtime": int(runtime.runtimeGetVersion()),
        }
        driver = first_line(DRIVER)
        return {
            "device": name.decode() if isinstance(name, bytes) else str(name),
            "library": {**versions, **({"driver": driver} if driver else {})},
        }


def open_device(kind: str) -> Device:
    """``cpu`` or ``cuda``. Raises ConfigError on another name, Unavailable where there is no GPU."""
    if kind not in DEVICES:
        raise ConfigError(f"--device {kind}: is none of {', '.join(DEVICES)}")
    return Host() if kind == "cpu" else Gpu()


def check_memory(nbytes: int) -> None:
    """Raises ConfigError where a workload would take more than half of this machine's memory."""
    memory = memory_bytes()
    if memory is not None and nbytes > memory / 2:
        raise ConfigError(f"this would take {size(nbytes)} of the {size(memory)} here; ask for a smaller size")


def blas() -> dict[str, Any]:
    """The BLAS that NumPy was built with, and the thread counts asked of it."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    named = " ".join(str(found.get(key, "")) for key in ("name", "version")).strip()
    asked = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    return {"blas": named or "unknown", "threads": asked or "not set", "cores": usable_cpus()}
