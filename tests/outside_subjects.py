"""Backends from outside the package, as a user would write them: one clean, the others with one fault each.

Sums are made in binary32 by rank order and rounded once to nearest even, by ml_dtypes and NumPy: none of our own numerics.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from auditor.model import Call, Capabilities, Window, World

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "binary16": np.float16, "binary32": np.float32}


class Clean:
    """Every rank in one process; all_reduce and reduce_scatter of sums."""

    name: ClassVar[str] = "clean"
    process_model: ClassVar[str] = "all"

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        return Capabilities(
            collectives=frozenset({"all_reduce", "reduce_scatter"}), ops=frozenset({"sum"}), formats=frozenset(DTYPES)
        )

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self.world, self.calls = world, 0
        self.kept: list[Any] = []

    def allocate(self, nbytes: int) -> dict[int, Any]:
        arenas = {}
        for rank in self.world.local_ranks:
            raw = np.zeros(nbytes + 512, np.uint8)
            start = -raw.ctypes.data % 512
            self.kept.append(raw)
            arenas[rank] = raw[start : start + nbytes]
        return arenas

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        dtype = DTYPES[call.format]
        terms = {rank: self.read(window, dtype) for rank, window in send.items()}
        for position, rank in enumerate(recv):
            total = self.round(self.total(terms, rank), dtype)
            if call.collective == "reduce_scatter":
                total = total[position * call.count : (position + 1) * call.count]
            self.write(recv[rank], total)
        self.calls += 1

    def read(self, window: Window, dtype: Any) -> Any:
        return window.buffer[window.offset : window.offset + window.nbytes].view(dtype).astype(np.float32)

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        total = np.zeros_like(next(iter(terms.values())))
        with np.errstate(all="ignore"):
            for term in terms.values():
                total = total + term
        return total

    def round(self, total: Any, dtype: Any) -> Any:
        with np.errstate(all="ignore"):
            return total.astype(dtype)

    def write(self, window: Window, values: Any) -> None:
        window.buffer[window.offset : window.offset + window.nbytes] = values.view(np.uint8)

    def describe(self) -> Mapping[str, Any]:
        return {"version": "1"}

    def close(self) -> None:
        self.kept.clear()


class Truncates(Clean):
    def round(self, total: Any, dtype: Any) -> Any:
        near = total.astype(dtype)
        over = np.abs(near.astype(np.float32)) > np.abs(total)
        codes = near.view(f"u{near.itemsize}").copy()
        codes[over] -= 1
        return codes.view(dtype)


class LeavesTail(Clean):
    """Whole 8-byte words only."""

    def write(self, window: Window, values: Any) -> None:
        whole = window.nbytes // 8 * 8
        window.buffer[window.offset : window.offset + whole] = values.view(np.uint8)[:whole]


class WritesPast(Clean):
    """Whole 8-byte words, rounded up."""

    def write(self, window: Window, values: Any) -> None:
        super().write(window, values)
        if window.nbytes % 8:
            stop = window.offset + window.nbytes
            window.buffer[stop : stop + 8 - window.nbytes % 8] = 0


class ReadsPast(Clean):
    """The last element's rounding goes up when the element after the end is not zero."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        super().run(call, send, recv)
        item = np.dtype(DTYPES[call.format]).itemsize
        past = [w.buffer[w.offset + w.nbytes : w.offset + w.nbytes + item] for w in send.values()]
        for window in recv.values():
            if window.nbytes and any(p.any() for p in past):
                last = window.buffer[window.offset + window.nbytes - item : window.offset + window.nbytes]
                last.view(f"u{item}")[:] ^= 1


class Disagrees(Clean):
    """Each rank starts at its own term, in the element's own format: legal values, other bits."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        order = [(rank + i) % len(terms) for i in range(len(terms))]
        values = list(terms.values())
        total = values[order[0]]
        with np.errstate(all="ignore"):
            for i in order[1:]:
                total = (total + values[i]).astype(self.dtype).astype(np.float32)
        return total

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        self.dtype = DTYPES[call.format]
        super().run(call, send, recv)


class FlipsEveryTenth(Clean):
    """Every tenth call, the lowest bit of the first element."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        super().run(call, send, recv)
        if self.calls % 10 == 0:
            for window in recv.values():
                if window.nbytes:
                    window.buffer[window.offset] ^= 1


class Aborts(Clean):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 1026:
            os.abort()
        super().run(call, send, recv)


class LeavesEarly(Clean):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 7:
            os._exit(0)
        super().run(call, send, recv)


class KilledFromOutside(Clean):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        super().run(call, send, recv)


class WaitsForever(Clean):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        while call.count == 1021:
            time.sleep(1)
        super().run(call, send, recv)


class Raises(Clean):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 3:
            raise RuntimeError("unhandled status 5: internal error")
        super().run(call, send, recv)


class DropsRank(Clean):
    """Rank 2's term is left out of the second half."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        total = super().total(terms, rank)
        half = total.size // 2
        others = [term for r, term in terms.items() if r != 2]
        total[half:] = sum(others)[half:]
        return total


class CountsTwice(Clean):
    """Rank 1's term twice."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        return super().total(terms, rank) + terms[1]


class UsesStale(Clean):
    """Rank 3's term comes from the call before where that had the same size."""

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        super().__init__(world, options)
        self.before: Any = None

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        now = self.read(send[3], DTYPES[call.format])
        self.stale = self.before if self.before is not None and self.before.size == now.size else now
        super().run(call, send, recv)
        self.before = now

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        return super().total({**terms, 3: self.stale}, rank)


class AddsToPrefill(Clean):
    """Accumulates into the receive range as it finds it."""

    def write(self, window: Window, values: Any) -> None:
        there = window.buffer[window.offset : window.offset + window.nbytes].view(values.dtype)
        with np.errstate(all="ignore"):
            super().write(window, (there.astype(np.float32) + values.astype(np.float32)).astype(values.dtype))


class ScratchesInput(Clean):
    """Uses the send buffer of rank 0 as scratch."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        super().run(call, send, recv)
        window = send[0]
        if window.buffer is not recv[0].buffer and window.nbytes > 8:
            window.buffer[window.offset + 4] ^= 0x10


class SkipsOddStarts(Clean):
    """A range that starts on an odd element is not written at all (NVSHMEM issue 131)."""

    def write(self, window: Window, values: Any) -> None:
        if window.offset // values.itemsize % 2 == 0:
            super().write(window, values)


class FlipsOneBit(Clean):
    """One bit of rank 1's result, always the same."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        super().run(call, send, recv)
        if recv[1].nbytes > 600:
            recv[1].buffer[recv[1].offset + 513] ^= 0x04


class TellsTime(Clean):
    """Has a clock of its own, and it is right."""

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        return replace(super().probe(options), features=frozenset({"timing"}))

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        started = time.perf_counter()
        super().run(call, send, recv)
        self.seconds = time.perf_counter() - started

    def last_seconds(self) -> float:
        return self.seconds


class TellsTooLittle(TellsTime):
    """A tenth of the time."""

    def last_seconds(self) -> float:
        return self.seconds / 10


class TellsTooMuch(TellsTime):
    """Twice the time."""

    def last_seconds(self) -> float:
        return self.seconds * 2


class ReturnsEarly(TellsTime):
    """Of large results the second half is written by a thread, some milliseconds after the return."""

    def write(self, window: Window, values: Any) -> None:
        half = window.nbytes // 2 if window.nbytes > 4096 else window.nbytes
        raw, target = values.view(np.uint8), window.buffer[window.offset : window.offset + window.nbytes]
        target[:half] = raw[:half]
        if half < window.nbytes:
            threading.Timer(0.005, lambda: np.copyto(target[half:], raw[half:])).start()
