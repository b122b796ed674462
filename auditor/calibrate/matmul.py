"""A product of square binary32 matrices in row blocks, each block copied in while the one before is multiplied.

Not a reduction whose drift is worth measuring in ulp: rows and columns of both signs cancel. So it has an absolute bound that is
written down beforehand, and checks on fresh inputs that are measured against it: against a binary64 product of the host, and
against the product in one piece on the same device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.calibrate.device import Device, blas, check_memory, open_device
from auditor.calibrate.gates import (
    Gate,
    Right,
    Subject,
    complete_on_return,
    every_element_written,
    honest_time,
    read_again,
)
from auditor.calibrate.held_out import HeldOut
from auditor.calibrate.measured import Measured, Models
from auditor.calibrate.reference import FLOAT64, Reference, sums_of_float64
from auditor.errors import ConfigError
from auditor.model import Codes, Verdict
from auditor.numerics.formats import FORMATS
from auditor.numerics.recipes import COMMON, Stream

MATRIX_STREAM, INNER_STREAM = 0x74, 0x76
BYTES_AN_ELEMENT = 60  # of a product, in all copies that are held at once
SIDE = 64  # rows and columns of the block that errors are planted in and whose inner order is shuffled
Matrix = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]
Multiply = Callable[[Any, Any, Any], float | None]
DISTRIBUTION = "uniform on multiples of 2**-23 in [-1, 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulOptions:
    """``chunks``: row blocks; ``checks``: fresh inputs, with the seeds from ``seed`` on; ``bound``: the absolute one."""

    device: str = "cpu"
    size: int = 4096
    chunks: int = 8
    checks: int = 9
    bound: float = 1e-3
    seed: int = 0


class Matmul:
    """See :class:`~auditor.calibrate.measured.Workload`. Raises ConfigError, and Unavailable without a GPU."""

    def __init__(self, options: MatmulOptions) -> None:
        if options.chunks > options.size:
            raise ConfigError(f"--chunks {options.chunks}: there are only {options.size} rows")
        check_memory(BYTES_AN_ELEMENT * options.size**2)
        self.options, self.fmt = options, FORMATS["binary32"]

    def asked(self) -> dict[str, Any]:
        o = self.options
        return {
            "workload": "matmul",
            "backend": "local",
            "on": o.device,
            "format": self.fmt.name,
            "rank_n": 1,
            "size": {"rows": o.size, "inner": o.size, "columns": o.size},
            "orders": [f"{o.chunks} row blocks, copies under way while the block before is multiplied"],
            "distribution": DISTRIBUTION,
            "reference": FLOAT64,
            "seed": o.seed,
            "checks": o.checks,
        }

    def elements(self) -> int:
        return min(SIDE, self.options.size) ** 2

    @cached_property
    def device(self) -> Device:
        return open_device(self.options.device)

    def measure(self, held_out: int) -> Measured:
        o = self.options
        bench = _Bench(self.device, o)
        checks = [bench.check(o.seed + number) for number in range(o.checks)]
        kept = checks[-1]
        return Measured(
            conditions={**self.asked(), **self._described()},
            reference=kept.reference,
            orders={f"check {o.checks}": kept.output},
            gates=[*bench.gates(), within([check.row for check in checks], o.bound)],
            replay=Models(None, "the order inside the library's product is not known"),
            legal=Models(None, f"A sum of {o.size:,} products has more orders than can be listed"),
            held_out=self._held_out(kept, held_out),
            repeats=bench.repeats(kept),
            absolute=o.bound,
            checks=[check.row for check in checks],
        )

    def _described(self) -> dict[str, Any]:
        told = self.device.describe()
        if self.options.device == "cpu":
            return {**told, "library": {**told["library"], **blas()}}
        return {**told, "library": {**told["library"], "cublas_math": math_mode(self.device)}}

    def _held_out(self, kept: _Check, n: int) -> Iterator[HeldOut]:
        """The block's products with the inner index shuffled: another order of the same sums, by the same library."""
        device, xp = self.device, self.device.xp
        left, right = device.put(kept.left), device.put(kept.right)
        for number in range(n):
            words = Stream(self.options.seed, COMMON, INNER_STREAM + (number << 8)).words(0, self.options.size)
            order = xp.asarray(np.argsort(words, kind="stable"))
            made = device.get(left[:, order] @ right[order])
            yield HeldOut(
                f"inner index shuffled, {len(kept.left)} x {kept.right.shape[1]} block, on the target", _codes(made)
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """One check: its row of the record, and of a block in the corner the output, what it is judged by, and its factors."""

    row: dict[str, Any]
    output: Codes
    reference: Reference
    left: Matrix
    right: Matrix


class _Bench:
    """Buffers that stay where they are, so that each check overwrites the inputs of the one before."""

    def __init__(self, device: Device, options: MatmulOptions) -> None:
        self.device, self.options = device, options
        self.fmt = FORMATS["binary32"]
        shape = (options.size, options.size)
        self.multiply = (
            host_product(options.chunks) if device.kind == "cpu" else GpuProduct(device, options.chunks, shape)
        )
        self.a, self.b = pinned(device, shape), pinned(device, shape)
        self.earlier: tuple[Codes, Right] | None = None
        self._gates: list[Gate] = []

    def check(self, seed: int) -> _Check:
        size = self.options.size
        self.a[...], self.b[...] = matrix(seed, 0, size), matrix(seed, 1, size)
        output = self._subject().result()
        exact = self.a.astype(np.float64) @ self.b.astype(np.float64)
        whole = self._whole()
        row = {
            "seed": seed,
            "max_abs_error_float64": _largest(output, exact),
            "max_abs_difference_unchunked": _largest(output, whole),
            "different_from_unchunked": int(np.count_nonzero(output != _codes(whole))),
            "of": size * size,
        }
        self._stale(output, exact.reshape(-1))
        return self._corner(row, output, exact)

    def repeats(self, kept: _Check) -> bool:
        """Whether the last check's inputs give the same corner again."""
        return bool(np.array_equal(self._cut(self._subject().result()), kept.output))

    def _subject(self) -> Subject:
        size = self.options.size
        nbytes = 3 * size * size * self.fmt.itemsize
        return Subject(self.device, self.fmt, size * size, nbytes, lambda out: self.multiply(self.a, self.b, out))

    def _whole(self) -> Matrix:
        """The product in one piece, on the same device."""
        left, right = (self.device.xp.asarray(side) for side in (self.a, self.b))
        return np.asarray(self.device.get(left @ right))

    def _stale(self, output: Codes, exact: Values) -> None:
        """Between the first two checks, in the same memory."""
        if self.earlier is not None and not self._gates:
            self._gates.append(read_again(self.fmt, *self.earlier, output, Right(exact)))
        self.earlier = (output, Right(exact)) if not self._gates else None

    def _cut(self, output: Codes) -> Codes:
        size, side = self.options.size, min(SIDE, self.options.size)
        return output.reshape(size, size)[:side, :side].reshape(-1).copy()

    def _corner(self, row: dict[str, Any], output: Codes, exact: Values) -> _Check:
        side = min(SIDE, self.options.size)
        left, right = self.a[:side].copy(), np.ascontiguousarray(self.b[:, :side])
        magnitude = np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64)
        block = np.ascontiguousarray(exact[:side, :side]).reshape(-1)
        # A product is rounded once, and each of its sum's additions: size roundings on the way of a term.
        judge = Reference(self.fmt, FLOAT64, sums_of_float64(block), magnitude.reshape(-1), self.options.size)
        return _Check(row, self._cut(output), judge, left, right)

    def gates(self) -> list[Gate]:
        subject = self._subject()
        return [every_element_written(subject), *self._gates, complete_on_return(subject), honest_time(subject)]


def within(rows: Sequence[Mapping[str, Any]], bound: float) -> Gate:
    """The checks against the bound that was written down."""
    names = ("max_abs_error_float64", "max_abs_difference_unchunked")
    over = [row for row in rows if not all(row[name] <= bound for name in names)]
    if over:
        told = ", ".join(f"seed {row['seed']}: {max(row[name] for name in names):.3g}" for row in over)
        return Gate("wrong_value", Verdict.FAIL, f"{len(over)} of {len(rows)} checks exceed {bound:g}: {told}.")
    return Gate("wrong_value", Verdict.PASS, f"All {len(rows)} checks stay within {bound:g}.")


def matrix(seed: int, side: int, size: int) -> Matrix:
    """One factor (``side`` 0 or 1): multiples of 2**-23 on [-1, 1), by the counter hash of the element's index."""
    words = Stream(seed, side, MATRIX_STREAM).words(0, size * size)
    values = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return np.asarray(values.reshape(size, size), np.float32)


def pinned(device: Device, shape: tuple[int, int]) -> Matrix:
    """Room for a factor on the host; page-locked where a GPU copies from it."""
    if device.kind == "cpu":
        return np.empty(shape, np.float32)
    n = shape[0] * shape[1]
    memory = device.xp.cuda.alloc_pinned_memory(n * 4)
    return np.frombuffer(memory, np.float32, n).reshape(shape)


def row_blocks(rows: int, chunks: int) -> list[slice]:
    """The rows in ``chunks`` blocks that differ by one row at most."""
    return [slice(rows * k // chunks, rows * (k + 1) // chunks) for k in range(chunks)]


def host_product(chunks: int) -> Multiply:
    """A second thread copies the next block of rows into one of two staging buffers while this one is multiplied."""

    def multiply(a: Matrix, b: Matrix, out: Any) -> float:
        began = time.perf_counter()
        target = out.reshape(len(a), b.shape[1])
        blocks = row_blocks(len(a), chunks)
        tallest = max(part.stop - part.start for part in blocks)
        staging = [np.empty((tallest, a.shape[1]), a.dtype) for _ in range(2)]

        def fetch(number: int) -> Matrix:
            part = blocks[number]
            room = staging[number % 2][: part.stop - part.start]
            room[...] = a[part]
            return room

        with ThreadPoolExecutor(1) as copier:
            coming = copier.submit(fetch, 0)
            for number, part in enumerate(blocks):
                rows = coming.result()
                if number + 1 < len(blocks):
                    coming = copier.submit(fetch, number + 1)
                np.matmul(rows, b, out=target[part])
        return time.perf_counter() - began

    return multiply


class GpuProduct:
    """Blocks take turns on two streams: copy in, multiply, so that the copy of one runs under the product of the other."""

    def __init__(self, device: Any, chunks: int, shape: tuple[int, int]) -> None:
        self.device, self.chunks = device, chunks
        cupy = device.xp
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        tallest = max(part.stop - part.start for part in row_blocks(shape[0], chunks))
        self.staging = [cupy.empty((tallest, shape[1]), np.float32) for _ in range(2)]
        self.right = cupy.empty(shape, np.float32)

    def __call__(self, a: Matrix, b: Matrix, out: Any) -> float:
        cupy, began = self.device.xp, self.device.xp.cuda.Event()
        target = out.reshape(len(a), b.shape[1])
        began.record()
        self.right.set(b)
        ready = cupy.cuda.Event()
        ready.record()
        for number, part in enumerate(row_blocks(len(a), self.chunks)):
            stream = self.streams[number % 2]
            stream.wait_event(ready)
            with stream:
                rows = self.staging[number % 2][: part.stop - part.start]
                rows.set(a[part], stream)  # the stream's earlier product has read its staging buffer by then
                cupy.matmul(rows, self.right, out=target[part])
        for stream in self.streams:
            stream.synchronize()
        ended = cupy.cuda.Event()
        ended.record()
        ended.synchronize()
        return float(cupy.cuda.get_elapsed_time(began, ended)) * 1e-3


def math_mode(device: Any) -> str:
    """Whether products of binary32 may be done in TF32 here: CuPy asks for that only where CUPY_TF32 is set."""
    return "TF32 allowed" if os.environ.get("CUPY_TF32", "0") not in ("", "0") and device.kind == "cuda" else "binary32"


def _codes(values: Any) -> Codes:
    codes: Codes = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    return codes


def _values(codes: Codes) -> Matrix:
    return codes.view(np.float32)


def _largest(output: Codes, against: npt.NDArray[Any]) -> float:
    """The largest absolute difference; NaN counts as infinite."""
    error = np.abs(_values(output).astype(np.float64) - against.reshape(-1))
    return float(np.max(np.where(np.isnan(error), np.inf, error)))
