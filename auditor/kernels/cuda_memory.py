"""Arenas in a GPU's memory, by CuPy and the device kernels. What is kept lies on the same GPU.

Work is issued on CuPy's current stream of the arena's device; ``settle`` waits for the whole device, so a library's own
streams see finished bytes and are finished with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from auditor.errors import AuditError
from auditor.kernels import cuda
from auditor.kernels.engine import Engine, Found
from auditor.kernels.memory import NOTHING, Changed, Look, Payload
from auditor.model import Bytes
from auditor.numerics.programs import Program

MANAGED = 3  # cudaMemoryTypeManaged
DEVICE_TO_DEVICE = 3  # cudaMemcpyKind
ALIGNMENT = 16  # bytes that the kernels read at a time


@lru_cache(maxsize=4096)
def _pattern(device: int, data: bytes) -> Any:
    """A background on a device."""
    return cuda.engine(device).runtime.upload(np.frombuffer(data, np.uint8))


class CudaMemory:
    """See :class:`~auditor.kernels.memory.Memory`."""

    def __init__(self, buffer: Any, background: Bytes) -> None:
        self.cupy = cuda.cupy()
        array = self.cupy.asarray(buffer)  # no copy: the same memory under CuPy's type
        self.buffer, self._array, self.nbytes = buffer, array, int(array.nbytes)
        self.address = int(array.data.ptr)
        self.device = self.cupy.cuda.Device(int(array.device.id))
        self.where = f"cuda:{self.device.id}"
        if self.cupy.cuda.runtime.pointerGetAttributes(self.address).type == MANAGED:
            raise AuditError("an arena is managed memory, which may move under the subject; allocate device memory")
        self._apart: Any = None  # a stream of our own
        self._staging: Bytes = np.empty(0, np.uint8)
        self._period = background.nbytes // 2
        self._background = _pattern(int(self.device.id), background.tobytes())

    @property
    def engine(self) -> Engine:
        return cuda.engine(int(self.device.id))

    def _blank(self, nbytes: int, at: int) -> Any:
        """Room for a copy of the range at offset ``at``, at the same place within 16 bytes, so that whole words meet."""
        with self.device:
            array = self.cupy.empty(nbytes + ALIGNMENT, np.uint8)
        phase = (self.address + at - int(array.data.ptr)) % ALIGNMENT
        return array[phase : phase + nbytes]

    def made(self, payload: Payload, at: int) -> Any:
        kept = self._blank(payload.nbytes, at)
        head, size = payload.head.nbytes, payload.count * payload.head.itemsize
        with self.device:
            kept[:head].set(payload.head.view(np.uint8))
            kept[head + size :].set(payload.tail.view(np.uint8))
        if payload.count:
            self.engine.fill(payload.sender(), 0, int(kept.data.ptr) + head, payload.count)
        return kept

    def put(self, at: int, kept: Any) -> None:
        with self.device:
            self._array[at : at + kept.nbytes] = kept

    def fill(self, at: int, nbytes: int, code: int, itemsize: int) -> None:
        if nbytes:
            self.engine.fill_code(self.address + at, nbytes, code, itemsize)

    def restore(self, start: int, stop: int) -> None:
        start, stop = max(start, 0), min(stop, self.nbytes)
        pattern = int(self._background.data.ptr)
        self.engine.fill_pattern(self.address + start, stop - start, pattern, start, self._period)

    def take(self, at: int, nbytes: int) -> Any:
        kept = self._blank(nbytes, at)
        with self.device:
            kept[:] = self._array[at : at + nbytes]
        return kept

    def room(self, at: int, nbytes: int) -> Any:
        if self._apart is None:
            with self.device:
                self._apart = self.cupy.cuda.Stream(non_blocking=True)
        return self._blank(nbytes, at)

    def snapshot(self, at: int, room: Any) -> None:
        """On a stream that waits for no other one; the default stream would wait for a library's blocking ones."""
        if not room.nbytes:
            return
        with self.device:
            copy = self.cupy.cuda.runtime.memcpyAsync
            copy(int(room.data.ptr), self.address + at, int(room.nbytes), DEVICE_TO_DEVICE, self._apart.ptr)
            self._apart.synchronize()

    def part(self, kept: Any, start: int, stop: int) -> Bytes:
        """Through one page-locked buffer, made once."""
        with self.device:
            if self._staging.nbytes < stop - start:
                pinned = self.cupy.cuda.alloc_pinned_memory(stop - start)
                self._staging = np.frombuffer(pinned, np.uint8, stop - start)
            out: Bytes = self._staging[: stop - start]
            if stop > start:
                kept[start:stop].get(out=out)
        return out

    def host(self, kept: Any) -> Bytes:
        """Through page-locked memory, which a copy engine reads at full speed; it goes back when nobody holds the array."""
        if not kept.nbytes:
            return np.empty(0, np.uint8)
        with self.device:
            staging = self.cupy.cuda.alloc_pinned_memory(int(kept.nbytes))
            out: Bytes = np.frombuffer(staging, np.uint8, int(kept.nbytes))
            kept.get(out=out)
        return out

    def off_nearest(self, at: int, count: int, programs: Sequence[Program], start: int, period: int) -> int:
        return self.engine.expect(programs, start, self.address + at, count, limit=0, period=period)[0]

    def same(self, at: int, kept: Any, start: int = 0, stop: int | None = None) -> bool:
        stop = int(kept.nbytes) if stop is None else stop
        return self.engine.equal(self.address + at, int(kept.data.ptr) + start, stop - start)

    def changed(self, at: int, kept: Any, start: int, stop: int, limit: int) -> Changed:
        there = int(kept.data.ptr) + start
        return _changed(at, self.engine.compare(self.address + at, there, stop - start, limit=max(limit, 0)))

    def strayed(self, start: int, stop: int, limit: int) -> Changed:
        start, stop = max(start, 0), min(stop, self.nbytes)
        pattern = int(self._background.data.ptr)
        at, size = self.address + start, stop - start
        found = self.engine.compare(at, pattern, size, limit=max(limit, 0), offset=start, period=self._period)
        return _changed(start, found)

    def agree(self, looks: Sequence[Look]) -> list[bool]:
        return self.engine.agree([_sides(look) for look in looks])

    def settle(self) -> None:
        self.device.synchronize()


def _sides(look: Look) -> tuple[int, int, int, int, int]:
    """A look as addresses: (this side, the other, bytes, offset and period of the pattern that the other may be)."""
    memory: Any = look.memory
    if look.kept is not None:
        return memory.address + look.at, int(look.kept.data.ptr) + look.start, look.stop - look.start, 0, 0
    start, stop = max(look.start, 0), min(look.stop, memory.nbytes)
    return memory.address + start, int(memory._background.data.ptr), stop - start, start, memory._period


def _changed(at: int, found: Found) -> Changed:
    if not found.count:
        return NOTHING
    offsets = (found.indices.astype(np.int64) + at).tolist()
    return Changed(found.count, offsets, found.wanted.tolist(), found.found.tolist())
