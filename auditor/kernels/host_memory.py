"""Arenas in host memory: ranges are views, what is kept is an array, nothing is copied but by ``put`` and ``take``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from auditor.kernels.host import equal
from auditor.kernels.memory import NOTHING, Changed, Look, Payload
from auditor.model import Bytes
from auditor.numerics.programs import Program

BLOCK = 1 << 18  # elements made at a time


class HostMemory:
    """See :class:`~auditor.kernels.memory.Memory`."""

    where = "host"

    def __init__(self, buffer: Bytes, background: Bytes) -> None:
        self.buffer, self.nbytes = buffer, buffer.nbytes
        self.address = int(buffer.__array_interface__["data"][0])
        self._twice, self._period = background, background.nbytes // 2

    def made(self, payload: Payload, at: int) -> Bytes:
        del at  # every alignment compares equally fast here
        head, tail = payload.head, payload.tail
        codes = np.empty(payload.nbytes // head.itemsize, head.dtype)
        codes[: head.size], codes[head.size + payload.count :] = head, tail
        for start in range(0, payload.count, BLOCK):
            stop = min(start + BLOCK, payload.count)
            codes[head.size + start : head.size + stop] = payload.codes(start, stop)
        return codes.view(np.uint8)

    def put(self, at: int, kept: Bytes) -> None:
        self.buffer[at : at + kept.nbytes] = kept

    def fill(self, at: int, nbytes: int, code: int, itemsize: int) -> None:
        part = self.buffer[at : at + nbytes]
        if self.address % itemsize or at % itemsize:
            part[:] = np.tile(np.array([code], f"u{itemsize}").view(np.uint8), nbytes // itemsize)
        else:
            part.view(f"u{itemsize}")[:] = code

    def restore(self, start: int, stop: int) -> None:
        for offset, block in self._blocks(start, stop):
            self.buffer[offset : offset + block.nbytes] = block

    def take(self, at: int, nbytes: int) -> Bytes:
        return self.buffer[at : at + nbytes].copy()

    def room(self, at: int, nbytes: int) -> Bytes:
        del at
        return np.zeros(nbytes, np.uint8)  # written once, so that the first copy meets no missing pages

    def snapshot(self, at: int, room: Bytes) -> None:
        room[:] = self.buffer[at : at + room.nbytes]

    def host(self, kept: Bytes) -> Bytes:
        return kept

    def part(self, kept: Bytes, start: int, stop: int) -> Bytes:
        return kept[start:stop]

    def off_nearest(self, at: int, count: int, programs: Sequence[Program], start: int, period: int) -> None:
        del at, count, programs, start, period  # analysis does the same with the same processor

    def same(self, at: int, kept: Bytes, start: int = 0, stop: int | None = None) -> bool:
        part = kept[start:stop]
        return equal(self.buffer[at : at + part.nbytes], part)

    def changed(self, at: int, kept: Bytes, start: int, stop: int, limit: int) -> Changed:
        return self._changed(at, kept[start:stop], limit)

    def strayed(self, start: int, stop: int, limit: int) -> Changed:
        found = NOTHING
        for offset, block in self._blocks(start, stop):
            more = self._changed(offset, block, limit - len(found.offsets))
            if more.total:
                found = Changed(
                    found.total + more.total,
                    found.offsets + more.offsets,
                    found.expected + more.expected,
                    found.found + more.found,
                )
        return found

    def agree(self, looks: Sequence[Look]) -> list[bool]:
        return [
            not look.memory.strayed(look.start, look.stop, 0).total
            if look.kept is None
            else look.memory.same(look.at, look.kept, look.start, look.stop)
            for look in looks
        ]

    def settle(self) -> None:
        return None

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
        """(offset, background there) pieces that cover what of [start, stop) lies in the arena."""
        start, stop = max(start, 0), min(stop, self.nbytes)
        while start < stop:
            phase = start % self._period
            size = min(stop - start, self._period)
            yield start, self._twice[phase : phase + size]
            start += size

    def _changed(self, at: int, expected: Bytes, limit: int) -> Changed:
        now = self.buffer[at : at + expected.nbytes]
        if equal(now, expected):
            return NOTHING
        where = np.flatnonzero(now != expected)
        first = where[: max(limit, 0)]
        return Changed(len(where), (first + at).tolist(), expected[first].tolist(), now[first].tolist())
