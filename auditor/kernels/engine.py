"""The device kernels as functions: fills, class counts, comparisons, on addresses of device memory.

Host side of ``audit.cu`` and ``classes.cu``, for any :class:`Runtime`: ``cuda`` has the one for GPUs. Results equal
the host's functions of the same purpose (``kernels.fill``, ``kernels.tabulate_recipes``, ``kernels.differences``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auditor.kernels.packing import FORMAT_WORDS, format_words, packed, rule_words, sender_words
from auditor.kernels.table import CELLS, RoundingTable
from auditor.model import Bytes
from auditor.numerics.programs import Program, Sender, add_in_binary32
from auditor.numerics.rounding import MODES, check_mode

THREADS = 256  # a block
LAUNCH = 1 << 31  # elements a launch
BLOCKS_MIN = LAUNCH // (THREADS << 15)  # a thread's 16-bit counters hold what it sees of a launch
EIGHT, CHUNK, PAGE = 8, 2048, 4096  # as in the sources
COUNTS = CELLS + 6  # then right, wrong, skipped, outside, rem low and high
ROOM = 1 << 16  # pieces that a fast kernel may leave to the slow one

Wide = npt.NDArray[np.uint64]


class Runtime(Protocol):
    """A device as the engine needs it. Arrays are whatever the runtime makes them; the engine asks for their address."""

    blocks: int  # that fill the device

    def launch(self, kernel: str, blocks: int, arguments: Sequence[int]) -> None: ...
    def upload(self, data: npt.NDArray[Any]) -> Any: ...
    def empty(self, nbytes: int) -> Any: ...
    def zeros(self, nbytes: int) -> Any: ...
    def download(self, array: Any, nbytes: int) -> Bytes: ...
    def address(self, array: Any) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Differences of two ranges: how many items, and of the first of them the item numbers and both sides' codes."""

    count: int
    indices: Wide
    found: Wide
    wanted: Wide


@dataclass(frozen=True, slots=True)
class _Cut:
    """One launch: ``count`` elements from element ``first`` of the range on, at data index ``start`` (before the period)."""

    first: int
    count: int
    start: int
    period: int
    high: int


def cuts(start: int, count: int, period: int = 0) -> Iterator[_Cut]:
    """The range in launches, each with one high word of the data index."""
    first = 0
    while first < count:
        at = start + first
        if period and period <= 1 << 32:
            size = min(count - first, LAUNCH)
            yield _Cut(first, size, at % period, period, 0)
        else:
            at = at % period if period else at
            size = min(count - first, LAUNCH, (((at >> 32) + 1) << 32) - at, period - at if period else LAUNCH)
            yield _Cut(first, size, at, 0, at >> 32)
        first += size


def chosen(counts: npt.NDArray[Any], limit: int) -> tuple[Wide, Wide]:
    """(numbers of the chunks that hold the first ``limit`` hits, how many hits come before each)."""
    some = np.flatnonzero(counts)
    before = np.cumsum(counts[some], dtype=np.uint64) - counts[some]
    kept = before < limit
    return some[kept].astype(np.uint64), before[kept].astype(np.uint64)


class Engine:
    """The kernels on one device."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._table = lru_cache(maxsize=512)(self._upload_bytes)
        self._rest = runtime.empty(4 * ROOM)

    # --- helpers ---

    def _upload_bytes(self, data: bytes) -> Any:
        return self.runtime.upload(np.frombuffer(data, np.uint8))

    def _where(self, data: bytes) -> int:
        return self.runtime.address(self._table(data))

    def _launch(self, kernel: str, pieces: int, *arguments: int) -> None:
        blocks = max(1, min(-(-pieces // THREADS), max(self.runtime.blocks, BLOCKS_MIN)))
        self.runtime.launch(kernel, blocks, arguments)

    def _words(self, array: Any, n: int, dtype: Any = np.uint64) -> npt.NDArray[Any]:
        return self.runtime.download(array, n * np.dtype(dtype).itemsize).view(dtype)

    # --- fills ---

    def fill(self, sender: Sender, start: int, address: int, count: int) -> None:
        """Writes what ``sender`` sends at the send indices [start, start + count) from ``address`` on."""
        fmt = sender.programs[0].fmt
        plain = not sender.roles and not sender.period and sender.programs[0].kind == "scaled"
        kernel = f"fill_{fmt.itemsize}{'_scaled' if plain else ''}"
        for cut in cuts(start, count, sender.period):
            one = Sender(sender.programs, sender.roles, cut.period)
            block = self.runtime.upload(packed([*format_words(fmt), *sender_words(one, cut.high, self._where)]))
            at = self.runtime.address(block)
            target = address + cut.first * fmt.itemsize
            pieces = cut.count * fmt.itemsize // 16 + 1
            self._launch(kernel, pieces, at + 8 * FORMAT_WORDS, at, cut.start, target, cut.count)

    def fill_code(self, address: int, nbytes: int, code: int, itemsize: int) -> None:
        """One code over and over."""
        one = np.array([code], np.uint64).view(np.uint8)[:itemsize]
        pattern = np.roll(np.tile(one, 32 // itemsize), address % itemsize)
        self._launch(
            "fill_pattern", nbytes // 16 + 1, address, nbytes, self._where(pattern.tobytes()), address % 16, 16
        )

    def fill_pattern(self, address: int, nbytes: int, pattern: int, offset: int, period: int) -> None:
        """Bytes of a repeating pattern (two periods of it, a power of two each, lie at ``pattern``), from its byte
        ``offset`` on.
        """
        if nbytes > 0:
            self._launch("fill_pattern", nbytes // 16 + 1, address, nbytes, pattern, offset % period, period)

    # --- class counts ---

    def tabulate(
        self, programs: Sequence[Program], start: int, address: int, count: int, period: int = 0
    ) -> RoundingTable:
        """Counts for ``count`` outputs at ``address`` of the data indices from ``start`` on, all inputs made again."""
        total = RoundingTable()
        fast = add_in_binary32(programs)
        for cut in cuts(start, count, period):
            table = self._tabulate(programs, cut, address, fast)
            total += table if table is not None else self._tabulate(programs, cut, address, False) or RoundingTable()
        return total

    def _rules(self, programs: Sequence[Program], cut: _Cut) -> list[int]:
        return [word for one in programs for word in rule_words(one, cut.high, self._where)]

    def _block(self, programs: Sequence[Program], cut: _Cut, results: int) -> tuple[Any, int, int, int]:
        """(device array, addresses of its format, rules and results): one upload a launch. Results begin as zeros, and
        end with the record of what a fast kernel leaves over.
        """
        rest = [ROOM, 0, self.runtime.address(self._rest)]
        words = [*format_words(programs[0].fmt), *self._rules(programs, cut)]
        block = self.runtime.upload(packed([*[0] * results, *rest, *words]))
        at = self.runtime.address(block)
        return block, at + 8 * (results + 3), at + 8 * (results + 3 + FORMAT_WORDS), at

    def _tabulate(self, programs: Sequence[Program], cut: _Cut, address: int, fast: bool) -> RoundingTable | None:
        """None where the fast kernel left more than there is room for."""
        fmt = programs[0].fmt
        block, where, rules, counts = self._block(programs, cut, COUNTS)
        range_ = (cut.start, cut.period, address + cut.first * fmt.itemsize, cut.count)
        pieces, name, rest = cut.count // EIGHT + 2, f"classify_{fmt.name}", counts + 8 * COUNTS
        if fast:
            self._launch(f"{name}_scaled", pieces, rules, len(programs), where, *range_, counts, rest)
            self._launch("classify_rest", ROOM, rules, len(programs), where, *range_, counts, rest)
        else:
            self._launch(name, pieces, rules, len(programs), where, *range_, counts)
        words = [int(word) for word in self._words(block, COUNTS + 2)]
        if words[COUNTS + 1] > ROOM:
            return None
        right, wrong, skipped, outside, low, high = words[CELLS:COUNTS]
        return RoundingTable(
            elements=cut.count,
            skipped=skipped,
            exact_right=right,
            exact_wrong=wrong,
            outside=outside,
            cells=tuple(words[:CELLS]),
            rem_sum=low + (high << 32),
        )

    # --- comparison with the exact sum ---

    def expect(
        self, programs: Sequence[Program], start: int, address: int, count: int, *, mode: str = "ties_to_even",
        limit: int = 64, period: int = 0,
    ) -> tuple[int, Wide]:  # fmt: skip
        """(how many outputs are not the exact sum rounded once by ``mode``, the numbers of the first ``limit``). Where
        every sum is a value of the format the mode plays no part. Raises ValueError on an unknown mode.
        """
        check_mode(mode)
        total, first = 0, [np.empty(0, np.uint64)]
        for cut in cuts(start, count, period):
            found, numbers = self._expect(programs, cut, address, MODES.index(mode), limit - sum(map(len, first)))
            total += found
            first.append(numbers + np.uint64(cut.first))
        return total, np.concatenate(first)

    def _expect(self, programs: Sequence[Program], cut: _Cut, address: int, mode: int, limit: int) -> tuple[int, Wide]:
        fmt, n = programs[0].fmt, len(programs)
        block, where, rules, flag = self._block(programs, cut, 1)
        chunk_n = -(-cut.count // CHUNK)
        chunks = self.runtime.zeros(4 * chunk_n)
        common = (rules, n, where, cut.start, cut.period, address + cut.first * fmt.itemsize, cut.count)
        pieces, name, counters = cut.count // EIGHT + 2, f"expect_{fmt.name}", self.runtime.address(chunks)
        fast = mode == 0 and add_in_binary32(programs)
        if fast:
            self._launch(f"{name}_scaled", pieces, *common, flag + 8)
            self._launch("expect_rest", ROOM, *common, mode, counters, flag, flag + 8)
            fast = int(self._words(block, 3)[2]) <= ROOM
        if not fast:
            chunks = self.runtime.zeros(4 * chunk_n)
            counters = self.runtime.address(chunks)
            self._launch(name, pieces, *common, mode, counters, flag)
        if not int(self._words(block, 1)[0]):
            return 0, np.empty(0, np.uint64)
        counts = self._words(chunks, chunk_n, np.uint32)
        numbers, places = chosen(counts, max(limit, 0))
        size = min(int(counts.sum(dtype=np.uint64)), max(limit, 0))
        out = self.runtime.empty(8 * max(size, 1))
        ids, before = self.runtime.upload(numbers), self.runtime.upload(places)
        listed = (
            self.runtime.address(ids),
            len(numbers),
            self.runtime.address(before),
            size,
            self.runtime.address(out),
        )
        if size:
            self._launch("list_expect", len(numbers), *common, mode, *listed)
        return int(counts.sum(dtype=np.uint64)), self._words(out, size)

    # --- comparison of bytes ---

    def equal(self, a: int, b: int, nbytes: int) -> bool:
        """Whether two ranges hold the same bytes."""
        if nbytes <= 0:
            return True
        flag = self.runtime.zeros(8)
        self._launch("compare", nbytes // 16 + 2, a, b, nbytes, 1, 0, 0, 0, self.runtime.address(flag))
        return not int(self._words(flag, 1)[0])

    def agree(self, ranges: Sequence[tuple[int, int, int, int, int]]) -> list[bool]:
        """Of each (address, address of the other side, bytes, offset and period as in ``compare``) whether both sides agree.

        One download for all: each costs the host as much as comparing megabytes.
        """
        some = [one for one in ranges if one[2] > 0]
        flags = self.runtime.zeros(8 * max(len(some), 1))
        at = self.runtime.address(flags)
        for number, (a, b, nbytes, offset, period) in enumerate(some):
            beside = offset % period if period else 0
            self._launch("compare", nbytes // 16 + 2, a, b, nbytes, 1, beside, period, 0, at + 8 * number)
        answers = iter(self._words(flags, len(some)).tolist() if some else ())
        return [one[2] <= 0 or not next(answers) for one in ranges]

    def compare(
        self, a: int, b: int, nbytes: int, itemsize: int = 1, *, limit: int = 64, offset: int = 0, period: int = 0
    ) -> Found:
        """Where two ranges differ, in items of ``itemsize`` bytes. With a ``period`` the other side is a pattern, as in
        ``fill_pattern``.
        """
        nothing = np.empty(0, np.uint64)
        if nbytes <= 0:
            return Found(0, nothing, nothing, nothing)
        page_n = -(-nbytes // PAGE)
        pages, flag = self.runtime.zeros(4 * page_n), self.runtime.zeros(8)
        common = (a, b, nbytes, itemsize, offset % period if period else 0, period)
        self._launch("compare", nbytes // 16 + 2, *common, self.runtime.address(pages), self.runtime.address(flag))
        if not int(self._words(flag, 1)[0]):
            return Found(0, nothing, nothing, nothing)
        counts = self._words(pages, page_n, np.uint32)
        numbers, places = chosen(counts, limit)
        total = int(counts.sum(dtype=np.uint64))
        size = min(total, limit)
        out, ids, before = (
            self.runtime.empty(24 * max(size, 1)),
            self.runtime.upload(numbers),
            self.runtime.upload(places),
        )
        at = self.runtime.address(out)
        listed = (
            self.runtime.address(ids),
            len(numbers),
            self.runtime.address(before),
            size,
            at,
            at + 8 * size,
            at + 16 * size,
        )
        if size:
            self._launch("list_compare", len(numbers), *common, *listed)
        words = self._words(out, 3 * size)
        return Found(total, words[:size], words[size : 2 * size], words[2 * size :])
