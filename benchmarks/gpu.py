"""Speed of the device kernels, and of one checked AllReduce, on the GPUs at hand. Prints Markdown tables, from one run.

python benchmarks/gpu.py [--elements N] [--repeats K] [--checked K] [--ranks N] [--json FILE]

A figure is the median of the repeats, by host clock, the launch and the answer included. Classification makes the inputs
of all ranks again and reads the outputs alone. A checked AllReduce is: make every rank's input, call NCCL (through the
auditor's own backend), compare every element on every rank; amortised over --checked of them, each with other inputs.
More --ranks than GPUs share them (NCCL 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1): one GPU then does the work of several, and the
targets do not apply.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditor import inputs
from auditor.errors import AuditError, Unavailable
from auditor.inputs.programs import program
from auditor.kernels import cuda
from auditor.kernels.engine import Engine
from auditor.kernels.table import RoundingTable
from auditor.layout import PERIOD, Background
from auditor.model import Call, Family, Window, World
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS
from auditor.numerics.programs import Program, Sender
from auditor.numerics.rounding import round_sums

EXACT = "order_exact:format=binary32"
BLOCK = 1 << 20  # outputs that the host makes; the device repeats them
PART = 1 << 26  # outputs that the device makes at a time
CLASS_TARGETS = {("bfloat16", EXACT, 2): 350.0, ("bfloat16", EXACT, 8): 130.0}
FILL_TARGET = 2.3
CHECKED = {1 << 16: 0.8, 1 << 21: 1.0, 1 << 26: 2.0, 1 << 30: 8.0}  # bytes: milliseconds


@dataclass(frozen=True)
class Row:
    table: str
    name: str
    value: float | None
    unit: str
    target: float | None = None
    more_is_better: bool = True
    note: str = ""

    @property
    def met(self) -> str:
        if self.target is None or self.value is None:
            return ""
        return "yes" if (self.value >= self.target) == self.more_is_better or self.value == self.target else "NO"


class Bench:
    """One GPU's kernels, timed."""

    def __init__(self, number: int, elements: int, repeats: int) -> None:
        self.cupy = cuda.cupy()
        self.device = self.cupy.cuda.Device(number)
        self.device.use()
        self.engine: Engine = cuda.engine(number)
        self.n, self.repeats = elements, repeats

    def seconds(self, work: Callable[[], Any]) -> float:
        """Median of the repeats, after one that is not counted (it loads the kernel)."""
        work()
        self.device.synchronize()
        taken = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            work()
            self.device.synchronize()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    def ceilings(self) -> Iterator[Row]:
        nbytes = 2 * self.n
        a, b = (self.cupy.zeros(nbytes, np.uint8) for _ in range(2))
        copy = self.seconds(lambda: b.data.copy_from_device_async(a.data, nbytes, self.cupy.cuda.Stream.null))
        yield Row("ceilings", "copy on the device, read + written", 2 * nbytes / copy / 1e12, "TB/s")
        clear = self.seconds(lambda: a.data.memset_async(0, nbytes, self.cupy.cuda.Stream.null))
        yield Row("ceilings", "memset", nbytes / clear / 1e12, "TB/s")
        part = min(nbytes, 1 << 30)
        pinned = np.frombuffer(self.cupy.cuda.alloc_pinned_memory(part), np.uint8, part)
        down = self.seconds(lambda: a[:part].get(out=pinned))
        yield Row("ceilings", "to page-locked host memory", part / down / 1e9, "GB/s")

    def fills(self) -> Iterator[Row]:
        out = self.cupy.empty(2 * self.n + 64, np.uint8)
        address = int(out.data.ptr)
        for name, text in self._fill_cases():
            fmt = FORMATS[name]
            n = 2 * self.n // fmt.itemsize
            sender = Sender((program(Family.parse(text), fmt, 7, 2, 1),))
            taken = self.seconds(lambda s=sender, n=n: self.engine.fill(s, 0, address, n))
            goal = FILL_TARGET if (name, text) == ("bfloat16", EXACT) else None
            yield Row("fill", f"{name}, {text}", n * fmt.itemsize / taken / 1e12, "TB/s", goal)
        sender = Sender((program(Family.parse(EXACT), FORMATS["bfloat16"], 7, 2, 1),))
        taken = self.seconds(lambda: self.engine.fill(sender, 0, address + 6, self.n))
        yield Row("fill", f"bfloat16, {EXACT}, shift 3", 2 * self.n / taken / 1e12, "TB/s")

    @staticmethod
    def _fill_cases() -> Iterator[tuple[str, str]]:
        for text in (
            EXACT,
            "report132",
            "wide",
            "rank_coded",
            "position_coded",
            "ties",
            "testfloat1",
            "specials",
            "smooth",
        ):
            yield "bfloat16", text
        for name in ("binary16", "float8_e4m3fn", "binary32", "binary64"):
            yield name, "order_exact"

    def outputs(self, programs: list[Program], text: str, n: int) -> tuple[Any, int]:
        """(device array of codes, period of the data indices or 0): what a subject that rounds to nearest returns.

        Where binary32 holds every sum the device adds and rounds, by CuPy's own kernels; elsewhere the host makes one
        block, exactly, and the device repeats it.
        """
        fmt = programs[0].fmt
        if fmt.bits == 16 and text in (EXACT, "report132"):
            out = self.cupy.empty(n, np.uint16)
            for start in range(0, n, PART):
                out[start : start + PART] = self._sums(programs, start, min(PART, n - start))
            return out, 0
        family, period = Family.parse(text), min(BLOCK, n)
        terms = [inputs.generate(family, fmt, 7, len(programs), rank, 0, period) for rank in range(len(programs))]
        block = self.cupy.asarray(round_sums(fmt, exact_sums(fmt, terms), "ties_to_even"))
        return self.cupy.tile(block, n // period), period

    def _sums(self, programs: list[Program], start: int, n: int) -> Any:
        """16-bit codes of the sums, added in binary32 and rounded to nearest, ties to even."""
        brain, total = programs[0].fmt.name == "bfloat16", self.cupy.zeros(n, np.float32)
        codes = self.cupy.empty(n, np.uint16)
        for one in programs:
            self.engine.fill(Sender((one,)), start, int(codes.data.ptr), n)
            if brain:
                total += (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
            else:
                total += codes.view(np.float16).astype(np.float32)
        if not brain:
            return total.astype(np.float16).view(np.uint16)
        word = total.view(np.uint32)
        word += np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
        return (word >> np.uint32(16)).astype(np.uint16)

    def classes(self) -> Iterator[Row]:
        cases = [("bfloat16", EXACT, ranks, self.n) for ranks in (2, 3, 4, 8, 16)]
        cases += [("binary16", EXACT, ranks, self.n) for ranks in (2, 8)]
        cases += [("float8_e4m3fn", EXACT, 2, self.n), ("bfloat16", "report132", 2, self.n >> 2)]
        cases += [("bfloat16", "wide", 2, self.n >> 3), ("binary32", "order_exact", 2, self.n >> 3)]
        cases += [("binary64", "order_exact", 2, self.n >> 4), ("bfloat16", "wide:dist=lognormal", 8, self.n >> 5)]
        for name, text, ranks, n in cases:
            fmt = FORMATS[name]
            programs = [program(Family.parse(text), fmt, 7, ranks, rank) for rank in range(ranks)]
            out, period = self.outputs(programs, text, n)
            address = int(out.data.ptr)
            tables: list[RoundingTable] = []
            taken = self.seconds(
                lambda p=programs, a=address, n=out.size, period=period, t=tables: t.append(
                    self.engine.tabulate(p, 0, a, n, period)
                )
            )
            right = all(table.mismatches("ties_to_even") == 0 and table.elements == out.size for table in tables)
            goal = CLASS_TARGETS.get((name, text, ranks))
            note = ("" if right else "WRONG COUNTS ") + (f"data indices repeat after {period}" if period else "")
            yield Row(
                "classification", f"{name}, {text}, {ranks} ranks", out.size / taken / 1e9, "Gelem/s", goal, note=note
            )
            if text == EXACT and ranks in (2, 8):
                taken = self.seconds(
                    lambda p=programs, a=address, n=out.size, period=period: self.engine.expect(
                        p, 0, a, n, period=period
                    )
                )
                yield Row("comparison with the exact sum", f"{name}, {ranks} ranks", out.size / taken / 1e9, "Gelem/s")
            del out

    def bytes(self) -> Iterator[Row]:
        nbytes = 2 * self.n
        a, b = (self.cupy.zeros(nbytes, np.uint8) for _ in range(2))
        at, there = int(a.data.ptr), int(b.data.ptr)
        taken = self.seconds(lambda: self.engine.equal(at, there, nbytes))
        yield Row("bytes", "equality of two buffers, both read", 2 * nbytes / taken / 1e12, "TB/s")
        taken = self.seconds(lambda: self.engine.compare(at, there, nbytes, 2))
        yield Row("bytes", "differences of two equal buffers", 2 * nbytes / taken / 1e12, "TB/s")
        pattern = self.cupy.asarray(Background(0, "send").bytes(0, 2 * PERIOD))
        where = int(pattern.data.ptr)
        taken = self.seconds(lambda: self.engine.fill_pattern(at, nbytes, where, 0, PERIOD))
        yield Row("bytes", "background laid down", nbytes / taken / 1e12, "TB/s")
        taken = self.seconds(lambda: self.engine.compare(at, where, nbytes, offset=0, period=PERIOD))
        yield Row("bytes", "background scanned", nbytes / taken / 1e12, "TB/s")


def checked(times: int, ranks: int | None) -> Iterator[Row]:
    """One checked bfloat16 AllReduce, by size: of all GPUs, or of ``ranks``, which share them where there are fewer GPUs."""
    from auditor.backends.base import LocalControl
    from auditor.backends.nccl import Nccl

    gpus = int(cuda.cupy().cuda.runtime.getDeviceCount())
    ranks = ranks or gpus
    if ranks < 2:
        yield Row("checked AllReduce", "bfloat16", None, "ms", note="not run: one GPU, and no --ranks to share it")
        return
    options = {"devices": [rank * gpus // ranks for rank in range(ranks)]}
    Nccl.probe(options)  # says what is missing where ranks share a GPU
    world = World(rank_n=ranks, local_ranks=tuple(range(ranks)), control=LocalControl())
    backend = Nccl(world, options)
    try:
        send, recv = backend.allocate(max(CHECKED)), backend.allocate(max(CHECKED))
        engines = [cuda.engine(int(send[rank].device.id)) for rank in range(ranks)]
        with ThreadPoolExecutor(ranks) as pool:
            for nbytes, goal in CHECKED.items():
                target = goal if ranks <= gpus else None
                yield from _checked(backend, engines, send, recv, nbytes, target, times, pool)
    finally:
        backend.close()


def _checked(
    backend: Any,
    engines: list[Engine],
    send: Any,
    recv: Any,
    nbytes: int,
    goal: float | None,
    times: int,
    pool: ThreadPoolExecutor,
) -> Iterator[Row]:
    fmt, n, ranks = FORMATS["bfloat16"], nbytes // 2, len(engines)
    call = Call(collective="all_reduce", op="sum", format=fmt.name, count=n)
    windows = [{rank: Window(side[rank], 0, nbytes) for rank in range(ranks)} for side in (send, recv)]
    programs = [program(Family.parse(EXACT), fmt, 7, ranks, rank) for rank in range(ranks)]
    wrong, inside = 0, 0.0

    def make(rank: int, start: int) -> None:
        engines[rank].fill(Sender((programs[rank],)), start, windows[0][rank].address, n)
        send[rank].device.synchronize()

    def look(rank: int, start: int) -> int:
        return engines[rank].tabulate(programs, start, windows[1][rank].address, n).mismatches("ties_to_even")

    def once(start: int) -> None:
        nonlocal wrong, inside
        list(pool.map(make, range(ranks), [start] * ranks))
        begun = time.perf_counter()
        backend.run(call, *windows)
        inside += time.perf_counter() - begun
        wrong += sum(pool.map(look, range(ranks), [start] * ranks))

    for warm in range(3):
        once(warm * n)
    wrong, inside = 0, 0.0
    begun = time.perf_counter()
    for turn in range(times):
        once(turn * n)
    taken = (time.perf_counter() - begun) / times
    note = f"{inside / times * 1e3:.3f} ms of it in NCCL" + (f"; {wrong} not as ties_to_even" if wrong else "")
    yield Row("checked AllReduce", f"bfloat16, {nbytes >> 10} KiB, {ranks} ranks", taken * 1e3, "ms", goal, False, note)


def environment() -> dict[str, Any]:
    cupy = cuda.cupy()
    runtime = cupy.cuda.runtime
    names = [runtime.getDeviceProperties(k)["name"].decode() for k in range(runtime.getDeviceCount())]
    return {
        "gpus": names,
        "driver_cuda": runtime.driverGetVersion(),
        "runtime_cuda": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "nccl": cupy.cuda.nccl.get_version(),
        "python": platform.python_version(),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


def show(rows: list[Row], where: dict[str, Any]) -> None:
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    for table in dict.fromkeys(row.table for row in rows):
        print(f"\n| {table} | figure | unit | target | met | |\n|---|---|---|---|---|---|")
        for row in (one for one in rows if one.table == table):
            figure = "" if row.value is None else f"{row.value:.4g}"
            goal = "" if row.target is None else f"{'>=' if row.more_is_better else '<='} {row.target:g}"
            print(f"| {row.name} | {figure} | {row.unit} | {goal} | {row.met} | {row.note} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--elements", type=int, default=1 << 31, help="16-bit elements of the large buffers; a power of two"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checked", type=int, default=100, help="AllReduces of each size")
    parser.add_argument("--ranks", type=int, help="of the checked AllReduce; default: one a GPU")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    asked = parser.parse_args()
    try:
        bench = Bench(0, asked.elements, asked.repeats)
    except Unavailable as error:
        print(f"{error.reason}; {error.remedy}", file=sys.stderr)
        return error.exit_code
    rows: list[Row] = []
    for part in (bench.ceilings, bench.fills, bench.classes, bench.bytes, lambda: checked(asked.checked, asked.ranks)):
        try:
            rows += part()
        except AuditError as error:
            rows.append(Row("not run", str(error), None, ""))
        bench.cupy.get_default_memory_pool().free_all_blocks()
    where = environment()
    show(rows, where)
    if asked.json:
        asked.json.write_text(json.dumps({**where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
