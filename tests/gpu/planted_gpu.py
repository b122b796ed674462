"""Reductions on a GPU with one defect each, as a person might have written them with CuPy; all add the rows into ``out``."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import cupy

_kept: dict[int, Any] = {}


def _add(rows: Any, out: Any) -> None:
    """Row after row, one thread a column."""
    _kernels()["column_sums"]((-(-out.size // 256),), (256,), (rows, rows.shape[0], out.size, out))


@cache
def _kernels() -> dict[str, Any]:
    source = """
    extern "C" __global__ void column_sums(const float* rows, long long n, long long columns, float* out) {
        long long c = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (c >= columns) return;
        float sum = 0;
        for (long long k = 0; k < n; k++) sum += rows[k * columns + c];
        out[c] = sum;
    }
    extern "C" __global__ void spin(long long cycles) {
        long long began = clock64();
        while (clock64() - began < cycles) {}
    }
    """
    module = cupy.RawModule(code=source)
    return {name: module.get_function(name) for name in ("column_sums", "spin")}


def _spin() -> None:
    """Some 50 ms at the clocks that GPUs run at."""
    _kernels()["spin"]((1,), (1,), (100_000_000,))


def honest(rows: Any, out: Any) -> float:
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    _add(rows, out)
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3


def early_return(rows: Any, out: Any) -> None:
    """Launches, and does not wait."""
    _spin()
    _add(rows, out)


def early_return_on_a_stream(rows: Any, out: Any) -> None:
    """The same on a stream of its own, after waiting for the wrong one."""
    stream = cupy.cuda.Stream(non_blocking=True)
    _kept[id(stream)] = stream
    with stream:
        _spin()
        _add(rows, out)
    cupy.cuda.Stream.null.synchronize()


def false_time(rows: Any, out: Any) -> float:
    """Times the launch, waits afterwards."""
    began = time.perf_counter()
    _spin()
    _add(rows, out)
    claimed = time.perf_counter() - began
    cupy.cuda.runtime.deviceSynchronize()
    return claimed


def false_time_of_another_stream(rows: Any, out: Any) -> float:
    """Events on a stream that does no work."""
    stream = cupy.cuda.Stream(non_blocking=True)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record(stream)
    end.record(stream)
    _spin()
    _add(rows, out)
    cupy.cuda.runtime.deviceSynchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3


def leaves_a_gap(rows: Any, out: Any) -> None:
    kept = out[3:5].copy()
    _add(rows, out)
    out[3:5] = kept
    cupy.cuda.runtime.deviceSynchronize()


def stale(rows: Any, out: Any) -> None:
    """Keeps the result by the address of its input."""
    if rows.data.ptr not in _kept:
        _kept[rows.data.ptr] = cupy.empty_like(out)
        _add(rows, _kept[rows.data.ptr])
    out[...] = _kept[rows.data.ptr]
    cupy.cuda.runtime.deviceSynchronize()
