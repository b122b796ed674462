"""The hot loops on host memory: fills, class counts and comparisons, in blocks and on several threads.

Each function takes the twin to use (``ops``: ``numpy_ops`` or ``numba_ops``); both give the same results. A device
twin offers the same functions on device arrays. The fast way works on blocks whose exact sums all fit a binary32
word, which it checks by itself (the error term of each addition); a block that does not pass goes through
``numerics.exact``, so the results never depend on which way was taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from auditor.kernels.numpy_ops import COUNTS, EXACT_RIGHT, EXACT_WRONG, REM_SUM, SKIPPED, UNFIT, Counts
from auditor.kernels.table import BINS, CELLS, Dose, RoundingTable, dose_response, tabulate
from auditor.model import Bytes, Codes
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import U32
from auditor.numerics.recipes import Recipe
from auditor.numerics.rounding import Split, split

BLOCK = 1 << 17  # elements a step: with its scratch (4 bytes and a code for each contributor) in the second-level cache
SERIAL = 1 << 18  # below this many elements threads cost more than they save
LONG = 1 << 22  # elements counted in one call where nothing is generated: its own cost does not show
SMALLEST = 1 << 10  # elements that go the slow way together
BYTES = 1 << 20  # bytes a step of a comparison

T = TypeVar("T")
Terms = Callable[[int, int], Sequence[Codes]]  # the codes of every contributor at [start, stop)


class Ops(Protocol):
    """What a twin offers, on blocks: see ``numpy_ops``."""

    def fill(self, recipe: Recipe, start: int, out: Codes) -> None: ...
    def load(self, fmt: Format, codes: Codes, words: U32) -> None: ...
    def add(self, fmt: Format, codes: Codes, words: U32) -> bool: ...
    def count_words(self, fmt: Format, words: U32, out: Codes, counts: Counts) -> None: ...
    def count_recipes(self, recipes: Sequence[Recipe], start: int, out: Codes, counts: Counts) -> int: ...
    def dose_words(self, fmt: Format, words: U32, out: Codes, dose: Dose) -> None: ...


# --- threads ----------------------------------------------------------------------------------------


def thread_n() -> int:
    """Threads to use: AUDITOR_THREADS, else the processors that this process may run on."""
    asked = os.environ.get("AUDITOR_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else len(os.sched_getaffinity(0))


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="auditor-kernel")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has none of its parent's threads


def _in_parts(n: int, work: Callable[[int, int], T]) -> list[T]:
    """``work`` over [0, n) cut into one part a thread, at block borders; results in order."""
    workers = thread_n() if n >= SERIAL else 1
    if workers == 1:
        return [work(0, n)]
    step = -(-n // (workers * BLOCK)) * BLOCK
    return list(_pool(workers).map(lambda start: work(start, min(start + step, n)), range(0, n, step)))


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((low, min(low + BLOCK, stop)) for low in range(start, stop, BLOCK))


# --- fills ------------------------------------------------------------------------------------------


def fill(ops: Ops, recipe: Recipe, start: int, out: Codes) -> None:
    """Writes the codes of the indices from ``start`` on into ``out``, shape (n,)."""

    def part(low: int, high: int) -> None:
        for a, b in _blocks(low, high):
            ops.fill(recipe, start + a, out[a:b])

    _in_parts(len(out), part)


# --- class counts -----------------------------------------------------------------------------------


def _has_words(fmt: Format) -> bool:
    return fmt.bits <= 16


def _ieee() -> bool:
    """Whether this thread keeps subnormals: a library may have told the processor to flush them, and then no float
    sum is trusted.
    """
    smallest = np.array([1], np.uint32).view(np.float32)
    return int((smallest + smallest).view(np.uint32)[0]) == 2


def _summed(ops: Ops, fmt: Format, terms: Sequence[Codes], words: U32) -> Iterator[tuple[slice, bool]]:
    """Writes the binary32 codes of the sums into ``words``: parts of the block, and whether every addition in a part
    was exact.

    A block with an addition that is not is halved, so that a few such elements do not send all others the slow way.
    """
    if not (_has_words(fmt) and _ieee()):
        yield slice(0, len(words)), False
        return
    todo = [slice(0, len(words))]
    while todo:
        part = todo.pop()
        ops.load(fmt, terms[0][part], words[part])
        exact = all(ops.add(fmt, codes[part], words[part]) for codes in terms[1:])
        if exact or part.stop - part.start <= SMALLEST:
            yield part, exact
        else:
            middle = (part.start + part.stop) // 2
            todo += [slice(part.start, middle), slice(middle, part.stop)]


def _table(counts: Counts, elements: int) -> RoundingTable:
    cells = tuple(int(c) for c in counts[:CELLS])
    right, wrong, skipped = (int(counts[k]) for k in (EXACT_RIGHT, EXACT_WRONG, SKIPPED))
    return RoundingTable(
        elements=elements,
        skipped=skipped,
        exact_right=right,
        exact_wrong=wrong,
        outside=elements - skipped - right - wrong - sum(cells),
        cells=cells,
        rem_sum=int(counts[REM_SUM]) << 32,
    )


def _general(fmt: Format, words: U32, out: Codes) -> RoundingTable:
    """The reference on sums given as binary32 codes, block by block: it takes about 60 bytes an element."""
    table = RoundingTable()
    for a, b in _blocks(0, len(out)):
        table += tabulate(fmt, split(fmt, exact_sums(FORMATS["binary32"], [words[a:b]])), out[a:b])
    return table


def tabulate_words(ops: Ops, fmt: Format, words: U32, out: Codes) -> RoundingTable:
    """Counts for outputs against exact sums given as binary32 codes, shape (n,) each; formats of 16 bits or fewer.
    Raises ValueError.
    """
    _check(fmt, len(words), out)

    def work(low: int, high: int) -> RoundingTable:
        table = RoundingTable()
        for a in range(low, high, LONG):
            some, got, counts = words[a : min(a + LONG, high)], out[a : min(a + LONG, high)], np.zeros(COUNTS, np.int64)
            ops.count_words(fmt, some, got, counts)
            table += _general(fmt, some, got) if counts[UNFIT] else _table(counts, len(got))
        return table

    return sum(_in_parts(len(out), work), RoundingTable())


def _exact_split(fmt: Format, terms: Sequence[Codes], part: slice) -> Split:
    return split(fmt, exact_sums(fmt, [codes[part] for codes in terms]))


def _count_terms(
    ops: Ops, fmt: Format, columns: Sequence[Codes], words: U32, out: Codes, counts: Counts
) -> RoundingTable:
    """Adds one block to ``counts``; what of it went the slow way is returned instead.

    Sums of values of the format are whole multiples of its smallest subnormal, so binary32 words of theirs are never
    unfit.
    """
    slow = RoundingTable()
    for part, exact in _summed(ops, fmt, columns, words):
        if exact:
            ops.count_words(fmt, words[part], out[part], counts)
        else:
            slow += tabulate(fmt, _exact_split(fmt, columns, part), out[part])
    return slow


def tabulate_terms(ops: Ops, fmt: Format, terms: Terms, out: Codes) -> RoundingTable:
    """Counts for outputs, shape (n,), against the exact sums of what ``terms(start, stop)`` gives; every format."""

    def work(low: int, high: int) -> RoundingTable:
        words, counts, slow = np.empty(BLOCK, np.uint32), np.zeros(COUNTS, np.int64), RoundingTable()
        for a, b in _blocks(low, high):
            slow += _count_terms(ops, fmt, terms(a, b), words[: b - a], out[a:b], counts)
        return _table(counts, high - low - slow.elements) + slow

    return sum(_in_parts(len(out), work), RoundingTable())


def tabulate_recipes(ops: Ops, recipes: Sequence[Recipe], start: int, out: Codes) -> RoundingTable:
    """As ``tabulate_terms``, the inputs regenerated block by block, or in a fused loop where the twin has one."""
    fmt, terms = recipes[0].fmt, from_recipes(ops, recipes, start)

    def work(low: int, high: int) -> RoundingTable:
        words, counts, slow = np.empty(BLOCK, np.uint32), np.zeros(COUNTS, np.int64), RoundingTable()
        for a, b in _blocks(low, high):
            done = a + (ops.count_recipes(recipes, start + a, out[a:b], counts) if _ieee() else 0)
            if done < b:
                slow += _count_terms(ops, fmt, terms(done, b), words[: b - done], out[done:b], counts)
        return _table(counts, high - low - slow.elements) + slow

    return sum(_in_parts(len(out), work), RoundingTable())


def dose_terms(ops: Ops, fmt: Format, terms: Terms, out: Codes) -> Dose:
    """Counts [bin of rem, lo odd, up], int64 of shape (64, 2, 2): see ``table.dose_response``."""

    def work(low: int, high: int) -> Dose:
        words, dose = np.empty(BLOCK, np.uint32), np.zeros((BINS, 2, 2), np.int64)
        for a, b in _blocks(low, high):
            columns, block, got = terms(a, b), words[: b - a], out[a:b]
            for part, exact in _summed(ops, fmt, columns, block):
                if exact:
                    ops.dose_words(fmt, block[part], got[part], dose)
                else:
                    dose += dose_response(fmt, _exact_split(fmt, columns, part), got[part])
        return dose

    return sum(_in_parts(len(out), work), np.zeros((BINS, 2, 2), np.int64))


def from_recipes(ops: Ops, recipes: Sequence[Recipe], start: int) -> Terms:
    """Terms regenerated block by block from the recipes of all contributors; the arrays are overwritten by the
    thread's next call.
    """
    scratch = _Scratch()

    def terms(low: int, high: int) -> Sequence[Codes]:
        columns = [scratch.row(k, recipe.fmt)[: high - low] for k, recipe in enumerate(recipes)]
        for recipe, column in zip(recipes, columns, strict=True):
            ops.fill(recipe, start + low, column)
        return columns

    return terms


class _Scratch:
    """One array of BLOCK codes for each thread and contributor, so that no block allocates."""

    def __init__(self) -> None:

        self._local: Any = threading.local()

    def row(self, k: int, fmt: Format) -> Codes:
        rows = self._local.__dict__.setdefault("rows", {})
        if k not in rows:
            rows[k] = np.empty(BLOCK, fmt.dtype)
        found: Codes = rows[k]
        return found


def _check(fmt: Format, words: int, out: Codes) -> None:
    if not _has_words(fmt):
        raise ValueError(f"{fmt.name} sums do not fit binary32 words; use tabulate or tabulate_terms")
    if words != len(out):
        raise ValueError(f"{len(out)} outputs for {words} sums")


# --- comparisons ------------------------------------------------------------------------------------


def equal(a: Bytes, b: Bytes) -> bool:
    """Whether two byte ranges of one length are equal; stops at the first step that differs. Raises ValueError on
    unequal lengths.
    """
    _paired(a, b)
    return all(np.array_equal(x, y) for x, y in _steps(a, b))


def differences(a: npt.NDArray[Any], b: npt.NDArray[Any], limit: int) -> tuple[int, npt.NDArray[np.int64]]:
    """(how many elements differ, the first ``limit`` of their indices, int64). Raises ValueError on unequal lengths
    or dtypes.
    """
    _paired(a, b)
    count, first, step = 0, [np.empty(0, np.int64)], max(1, BYTES // max(1, a.dtype.itemsize))
    room = limit
    for start in range(0, len(a), step):
        x, y = a[start : start + step], b[start : start + step]
        if np.array_equal(x, y):  # the common case costs no index array
            continue
        where = np.flatnonzero(x != y)
        count += len(where)
        first.append(where[:room].astype(np.int64) + start)
        room = max(0, room - len(where))
    return count, np.concatenate(first)


def _steps(a: Bytes, b: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
    """Pairs of slices of at most BYTES bytes, as 64-bit words where the length allows."""
    wide = len(a) // 8 * 8 if a.flags.c_contiguous and b.flags.c_contiguous else 0
    for low in range(0, wide, BYTES):
        high = min(low + BYTES, wide)
        yield a[low:high].view(np.uint64), b[low:high].view(np.uint64)
    for low in range(wide, len(a), BYTES):
        yield a[low : low + BYTES], b[low : low + BYTES]


def _paired(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(f"cannot compare {a.dtype} {a.shape} with {b.dtype} {b.shape}")
