"""CuPy as far as local workloads use it, on host memory, with the device kernels compiled for the host: the plumbing of
``--device cuda`` is tested without a GPU. Nothing here is asynchronous; the GPU tests are for that.
"""

from __future__ import annotations

import time
import types
from typing import Any, ClassVar

import numpy as np
import pytest
from emulated_cuda import Emulated

from auditor.calibrate import device as devices
from auditor.kernels import cuda


class Array(np.ndarray):
    """An array with CuPy's ways in and out, which refuses NumPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream: Any = None) -> np.ndarray:
        assert stream is None or self.flags.c_contiguous, "a strided copy would queue behind the subject's own work"
        return np.array(self)

    def set(self, host: np.ndarray, stream: Any = None) -> None:
        assert host.dtype == self.dtype
        assert host.shape == self.shape
        assert host.flags.c_contiguous
        self[...] = host


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        self.waited: list[Any] = []

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)

    def synchronize(self) -> None: ...


class Event:
    at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...


class Device:
    attributes: ClassVar[dict[str, int]] = {
        "MemoryClockRate": 3_201_000,
        "GlobalMemoryBusWidth": 6144,
        "L2CacheSize": 1000,
    }

    def __init__(self, number: int) -> None: ...
    def use(self) -> None: ...
    def synchronize(self) -> None: ...


def on_device(host: Any) -> Array:
    return np.array(host).view(Array)


def library() -> Any:
    runtime = types.SimpleNamespace(
        getDeviceProperties=lambda number: {"name": b"Stand-in GPU"},
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
    )
    cuda_ = types.SimpleNamespace(
        Device=Device,
        Stream=Stream,
        Event=Event,
        runtime=runtime,
        get_elapsed_time=lambda begin, end: (end.at - begin.at) * 1e3,
        alloc_pinned_memory=lambda nbytes: bytearray(nbytes),
    )
    return types.SimpleNamespace(
        __version__="0.0",
        cuda=cuda_,
        asarray=on_device,
        asnumpy=lambda array: np.array(array).view(np.ndarray),
        empty=lambda shape, dtype: np.empty(shape, dtype).view(Array),
        zeros=lambda shape, dtype: np.zeros(shape, dtype).view(Array),
        matmul=lambda a, b, out: np.matmul(a, b, out=out),
    )


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``--device cuda`` is this stand-in from now on; returns it."""
    made = library()
    monkeypatch.setattr(devices.cuda, "cupy", lambda: made)
    monkeypatch.setattr(cuda, "engine", lambda number: types.SimpleNamespace(runtime=Emulated()))
    return made
