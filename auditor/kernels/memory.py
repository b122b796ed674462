"""What the harness does to an arena's bytes, wherever they lie: host memory, or a GPU's.

Bytes that are compared again and again are *kept* where the arena lies, so that only first and differing outputs cross to
the host. On host memory keeping costs nothing: what is kept is an array, and ranges are views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from auditor.errors import AuditError
from auditor.model import Bytes, Codes
from auditor.numerics.programs import Program, Sender

Kept = Any  # bytes in the arena's kind of memory; has ``nbytes``
STAGING = 64 << 20  # bytes on the host that an output passes through; larger ones are never there as a whole


@dataclass(frozen=True, slots=True)
class Payload:
    """A send range with its fences: ``head`` and ``tail`` codes around ``count`` elements.

    ``codes(start, stop)`` gives the elements on the host, ``sender()`` says how a device makes the same ones.
    """

    head: Codes
    tail: Codes
    count: int
    codes: Callable[[int, int], Codes]
    sender: Callable[[], Sender]

    @property
    def nbytes(self) -> int:
        return int(self.head.nbytes + self.tail.nbytes + self.count * self.head.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """Bytes that are not as expected: how many, and offset (in the arena), expected and found byte of the first."""

    total: int
    offsets: list[int]
    expected: list[int]
    found: list[int]


NOTHING = Changed(0, [], [], [])


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A question: does ``memory`` hold at offset ``at`` what stands at [start, stop) of ``kept``? Without ``kept``: does
    [start, stop) of the arena hold the background?
    """

    memory: Memory
    start: int
    stop: int
    at: int = 0
    kept: Kept = None


def agree(looks: Sequence[Look]) -> list[bool]:
    """The answers, in order. Looks at one device's memory wait for it once."""
    answers: dict[int, bool] = {}
    for where in dict.fromkeys(look.memory.where for look in looks):
        mine = [number for number, look in enumerate(looks) if look.memory.where == where]
        found = looks[mine[0]].memory.agree([looks[number] for number in mine])
        answers |= zip(mine, found, strict=True)
    return [answers[number] for number in range(len(looks))]


class Memory(Protocol):
    """One arena. Offsets count bytes from its start; ``start`` and ``stop`` of something kept count from the kept's."""

    buffer: Any  # the very array that the backend allocated
    nbytes: int
    address: int
    where: str  # the memory that ``settle`` speaks for

    def made(self, payload: Payload, at: int) -> Kept:
        """The payload's bytes, kept; they belong at offset ``at``."""

    def put(self, at: int, kept: Kept) -> None:
        """Copies what is kept to offset ``at``."""

    def fill(self, at: int, nbytes: int, code: int, itemsize: int) -> None:
        """Writes one code over and over."""

    def restore(self, start: int, stop: int) -> None:
        """Lays the background down; what of the range is outside the arena is left out."""

    def take(self, at: int, nbytes: int) -> Kept:
        """A copy of a range."""

    def room(self, at: int, nbytes: int) -> Kept:
        """Room for a copy of a range, with nothing certain in it. Made before a call: it may wait for the device."""

    def snapshot(self, at: int, room: Kept) -> None:
        """Fills ``room`` with a range as it stands now: waits for the copy and for nothing that a subject left running."""

    def host(self, kept: Kept) -> Bytes:
        """Kept bytes on the host; not to be written to."""

    def part(self, kept: Kept, start: int, stop: int) -> Bytes:
        """kept[start:stop], at most ``STAGING`` bytes, on the host; valid until the next call."""

    def off_nearest(self, at: int, count: int, programs: Sequence[Program], start: int, period: int) -> int | None:
        """How many of the ``count`` codes at offset ``at`` are not the exact sum of what the programs make of the indices from
        ``start`` on, rounded to nearest even; None where counting here has no advantage.
        """

    def same(self, at: int, kept: Kept, start: int = 0, stop: int | None = None) -> bool:
        """Whether kept[start:stop] stands at offset ``at``."""

    def changed(self, at: int, kept: Kept, start: int, stop: int, limit: int) -> Changed:
        """Where what stands at offset ``at`` differs from kept[start:stop]; the first ``limit`` bytes one by one."""

    def strayed(self, start: int, stop: int, limit: int) -> Changed:
        """Where a range differs from the background."""

    def agree(self, looks: Sequence[Look]) -> list[bool]:
        """Answers to looks at this and other memory of the same ``where``."""

    def settle(self) -> None:
        """Waits until everything asked for is done, and anyone may read or write."""


class Staged:
    """Kept bytes as a ``model.Output``: only a part of them is on the host at a time."""

    def __init__(self, memory: Memory, kept: Kept) -> None:
        self._memory, self._kept = memory, kept
        self.nbytes, self.step = int(kept.nbytes), STAGING

    def read(self, start: int, stop: int) -> Bytes:
        return self._memory.part(self._kept, start, stop)


def adopt(buffer: Any, background: Bytes) -> Memory:
    """The memory of an arena that a backend allocated. ``background``: two periods of its pattern, by absolute offset.

    Raises AuditError where it is neither a NumPy array nor a CUDA one.
    """
    if hasattr(buffer, "__cuda_array_interface__"):
        from auditor.kernels.cuda_memory import CudaMemory

        return CudaMemory(buffer, background)
    if isinstance(buffer, np.ndarray):
        from auditor.kernels.host_memory import HostMemory

        return HostMemory(buffer, background)
    raise AuditError(f"an arena of type {type(buffer).__name__} is neither a NumPy array nor a CUDA array")
