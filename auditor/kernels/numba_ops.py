"""The hot loops on blocks, compiled by Numba: the same functions as ``numpy_ops``, count for count.

Every loop works on whole slices with 32-bit integers only: one 64-bit index or a mixed sign in the arithmetic keeps
LLVM from vectorising (a factor of six). The loops hold no lock and start no threads: ``host`` runs them from its
own.
"""

# Numba compiles these bodies: each assignment pins a 32-bit width, so what looks like a needless cast is not.
# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import float32, int32, int64, uint32

from auditor.kernels.numba_fill import _scaled16, fill, scaled_words
from auditor.kernels.numba_jit import jit
from auditor.kernels.numpy_ops import (
    BINARY32_INFINITY,
    EXACT_RIGHT,
    EXACT_WRONG,
    REM_SUM,
    SKIPPED,
    UNFIT,
    Counts,
    decode_table,
)
from auditor.kernels.table import BINS, Dose
from auditor.model import Codes
from auditor.numerics.formats import Format
from auditor.numerics.hashing import U32, WEYL
from auditor.numerics.recipes import Recipe

__all__ = ["add", "count_recipes", "count_words", "dose_words", "fill", "load"]

_BLOCK = 1 << 15  # counters stay below 2**16, sums of 16-bit rems below 2**32

STREAM = 1 << 13  # elements between two looks ahead: 8 pages of words, 4 of outputs
PIECE = 1 << 12  # elements whose codes and words (24 KiB) stay in the first-level cache

# --- sums -------------------------------------------------------------------------------------------


@jit
def _load_shift(codes: Any, words: Any) -> None:
    for i in range(len(words)):
        words[i] = uint32(uint32(codes[i]) << uint32(16))


@jit
def _add_shift(codes: Any, words: Any) -> Any:
    """bfloat16: words += codes; how many additions were not exact."""
    wrong = int32(0)
    sums = words.view(np.float32)
    for i in range(len(sums)):
        a, b = sums[i], np.uint32(uint32(codes[i]) << uint32(16)).view(np.float32)
        total = float32(a + b)
        part = float32(total - a)
        error = float32(float32(a - float32(total - part)) + float32(b - part))
        sums[i] = total
        wrong += int32(error != float32(0))
    return wrong


@jit
def _add_table(codes: Any, table: Any, words: Any) -> Any:
    wrong = int32(0)
    sums, values = words.view(np.float32), table.view(np.float32)
    for i in range(len(sums)):
        a, b = sums[i], values[codes[i]]
        total = float32(a + b)
        part = float32(total - a)
        error = float32(float32(a - float32(total - part)) + float32(b - part))
        sums[i] = total
        wrong += int32(error != float32(0))
    return wrong


@jit
def _load_table(codes: Any, table: Any, words: Any) -> None:
    for i in range(len(words)):
        words[i] = table[codes[i]]


def load(fmt: Format, codes: Codes, words: U32) -> None:
    """words = the codes as binary32."""
    if fmt.name == "bfloat16":
        _load_shift(codes, words)
    else:
        _load_table(codes, decode_table(fmt), words)


def add(fmt: Format, codes: Codes, words: U32) -> bool:
    """words += codes; whether every addition was exact."""
    wrong = _add_shift(codes, words) if fmt.name == "bfloat16" else _add_table(codes, decode_table(fmt), words)
    return int(wrong) == 0


# --- classes ----------------------------------------------------------------------------------------


@jit
def _share(packed: Any, sign: Any) -> Any:
    """Positive (0) or negative (1) elements from a sum of 1 for each positive and 1 - 2**16 for each negative one."""
    everything = int64(packed) & int64(0xFFFF)
    negative = ((everything - int64(packed)) >> int64(16)) & int64(0xFFFF)
    return negative if sign else everything - negative


@jit
def _cells(cells: Any, packed: Any, sign: Any, times: Any, exact: Any) -> None:
    """Adds ``times`` the four relations of one sign, from the sums of all, ties, ties with lo odd, and above."""
    tie, odd, above = _share(packed[1], sign), _share(packed[2], sign), _share(packed[3], sign)
    cells[0] += times * (_share(packed[0], sign) - exact - tie - above)
    cells[1] += times * (tie - odd)
    cells[2] += times * odd
    cells[3] += times * above


@jit
def _count_shift(words: Any, out: Any, counts: Any) -> Any:
    """bfloat16, at most _BLOCK elements, int32 words and uint16 outputs. Counts as if each output were lo or hi;
    where that does not hold, or a sum is not finite, nothing is added and the answer is False. Two counters share
    each 32-bit sum: :func:`_share`.
    """
    n_all, n_exact, n_tie, n_odd, n_above = int32(0), int32(0), int32(0), int32(0), int32(0)
    up_all, up_tie, up_odd, up_above = int32(0), int32(0), int32(0), int32(0)
    strange, rems, largest, none = int32(0), int32(0), int32(0), int32(0)
    for i in range(len(out)):
        word, code = int32(words[i]), int32(out[i])
        largest = int32(max(largest, int32(word & int32(0x7FFFFFFF))))
        rem = int32(word & int32(0xFFFF))
        lo = int32(int32(word >> int32(16)) & int32(0xFFFF))  # with its sign
        ahead = int32(code - lo)
        one = int32(int32(int32(word >> int32(31)) << int32(16)) + int32(1))  # 1, or 1 - 2**16
        exact, tie, above = rem == int32(0), rem == int32(0x8000), rem > int32(0x8000)
        odd = int32(lo & int32(1)) != int32(0)
        strange = int32(strange | int32(ahead & int32(-2)))
        strange = int32(strange | (ahead if exact else none))
        up = one if ahead != int32(0) else none
        tied, up_tied = (one if tie else none), (up if tie else none)
        n_all, n_exact, n_tie = int32(n_all + one), int32(n_exact + (one if exact else none)), int32(n_tie + tied)
        n_odd, n_above = int32(n_odd + (tied if odd else none)), int32(n_above + (one if above else none))
        up_all, up_tie = int32(up_all + up), int32(up_tie + up_tied)
        up_odd, up_above = int32(up_odd + (up_tied if odd else none)), int32(up_above + (up if above else none))
        rems = int32(rems + rem)
    if (strange != int32(0)) | (largest >= int32(BINARY32_INFINITY)):
        return False
    up, both = (up_all, up_tie, up_odd, up_above), (n_all, n_tie, n_odd, n_above)
    for sign in range(2):
        exact_n = _share(n_exact, sign)
        _cells(counts[8 * sign + 4 : 8 * sign + 8], up, sign, int64(1), int64(0))
        _cells(counts[8 * sign : 8 * sign + 4], both, sign, int64(1), exact_n)
        _cells(counts[8 * sign : 8 * sign + 4], up, sign, int64(-1), int64(0))
        counts[EXACT_RIGHT] += exact_n
    counts[REM_SUM] += int64(uint32(rems)) << int64(16)
    return True


@jit
def _fields(word: Any, mantissa: Any, emin: Any) -> Any:
    """(lo, rem in units of 2**-32, fit): the scalar of ``numpy_ops``."""
    magnitude = uint32(word & uint32(0x7FFFFFFF))
    field = uint32(magnitude >> uint32(23))
    hidden = uint32(uint32(0x800000) if field > 0 else uint32(0))
    lowest = uint32(emin + 127)
    field = uint32(max(field, uint32(1)))  # subnormals share the lowest exponent
    high = uint32(max(lowest, field))
    drop = uint32(uint32(uint32(23) - uint32(mantissa)) + uint32(high - field))
    fit = (drop <= uint32(32)) | (magnitude == uint32(0))
    significand = uint32(uint32(magnitude & uint32(0x7FFFFF)) | hidden)
    kept = uint32(significand >> uint32(min(drop, uint32(31))))  # 24 bits: nothing is kept from 24 on
    lo = uint32(uint32(uint32(high - lowest) << uint32(mantissa)) + kept)
    rem = uint32(significand << uint32(uint32(32) - min(drop, uint32(32))))
    return lo, rem, fit


@jit
def _class(word: Any, out: Any, lo: Any, fit: Any, bits: Any, past: Any) -> Any:
    """down 0, up 1, elsewhere 2, skipped 3, unfit 4."""
    magnitude = uint32(out & uint32((1 << (bits - 1)) - 1))
    same = (uint32(out >> uint32(bits - 1)) == uint32(word >> uint32(31))) | (magnitude == uint32(0))
    ahead = uint32(magnitude - lo)
    kind = uint32(min(ahead, uint32(2))) if same else uint32(2)
    kind = uint32(3) if (lo >= past) | (uint32(word & uint32(0x7FFFFFFF)) >= uint32(0x7F800000)) else kind
    return kind if fit else uint32(4)


@jit
def _histogram(keys: Any, found: Any) -> None:
    """Four tables in turn: runs of one key do not wait for each other."""
    whole = len(keys) // 4 * 4
    for i in range(0, whole, 4):
        for bank in range(4):
            found[bank, keys[i + bank]] += uint32(1)
    for i in range(whole, len(keys)):
        found[0, keys[i]] += uint32(1)


@jit
def _class_keys(words: Any, out: Any, bits: Any, mantissa: Any, emin: Any, past: Any, keys: Any) -> Any:
    """keys = sign, inexact, class, relation in 1, 1, 3 and 2 bits; the rem of outputs that are neighbours, added, in
    units of 2**-32.
    """
    low, high, half = uint32(0), uint32(0), uint32(0x80000000)
    for i in range(len(out)):
        word = uint32(words[i])
        lo, rem, fit = _fields(word, mantissa, emin)
        kind = _class(word, uint32(out[i]), lo, fit, bits, past)
        tied = uint32(uint32(1) + uint32(lo & uint32(1))) if rem == half else uint32(0)
        relation = uint32(3) if rem > half else tied
        inexact = uint32(1) if rem != uint32(0) else uint32(0)
        upper = uint32(uint32(uint32(word >> uint32(31)) << uint32(6)) | uint32(inexact << uint32(5)))
        keys[i] = uint32(upper | uint32(uint32(kind << uint32(2)) | relation))
        counted = rem if kind < uint32(2) else uint32(0)
        low, high = uint32(low + uint32(counted & uint32(0xFFFF))), uint32(high + uint32(counted >> uint32(16)))
    return (int64(high) << int64(16)) + int64(low)


@jit
def _count_fields(words: Any, out: Any, bits: Any, mantissa: Any, emin: Any, past: Any, keys: Any, counts: Any) -> None:
    """Any format of 16 bits or fewer and any output, at most _BLOCK elements; ``keys``: scratch, uint8."""
    counts[REM_SUM] += _class_keys(words, out, bits, mantissa, emin, past, keys)
    banks = np.zeros((4, 128), np.uint32)
    _histogram(keys, banks)
    for sign in range(2):
        for kind in range(5):
            for relation in range(4):
                exact, inexact = int64(0), int64(0)
                for bank in range(4):
                    exact += int64(banks[bank, sign * 64 + kind * 4 + relation])
                    inexact += int64(banks[bank, sign * 64 + 32 + kind * 4 + relation])
                if kind < 2:
                    counts[sign * 8 + kind * 4 + relation] += inexact
                counts[EXACT_RIGHT] += exact if kind == 0 else 0
                counts[EXACT_WRONG] += exact if (kind == 1) | (kind == 2) else 0
                counts[SKIPPED] += exact + inexact if kind == 3 else 0
                counts[UNFIT] += exact + inexact if kind == 4 else 0


@jit
def _count_stream(words: Any, out: Any, bits: Any, mantissa: Any, emin: Any, past: Any, keys: Any, counts: Any) -> Any:
    """bfloat16, any length. Before each piece a few lines of the next pages are read: the processor's own
    prefetching stops at a page's end, and starting it ahead of time gains a fifth. (The answer means nothing;
    without it the reads would be left out.)
    """
    touched, n = uint32(0), len(out)
    for start in range(0, n, STREAM):
        ahead = start + STREAM // 2
        if ahead + STREAM < n:
            for page in range(ahead, ahead + STREAM, 1024):
                for line in range(8):
                    touched = uint32(touched ^ words[page + 16 * line])
            for page in range(ahead, ahead + STREAM, 2048):
                for line in range(8):
                    touched = uint32(touched ^ uint32(out[page + 32 * line]))
        some, got = words[start : start + STREAM], out[start : start + STREAM]
        if not _count_shift(some.view(np.int32), got, counts):
            _count_fields(some, got, bits, mantissa, emin, past, keys[: len(got)], counts)
    return touched


def _shape(fmt: Format) -> tuple[int, int, int, Any]:
    return fmt.bits, fmt.mantissa_bits, fmt.emin, np.uint32(fmt.max_code + 1)


def count_words(fmt: Format, words: U32, out: Codes, counts: Counts) -> None:
    """Adds the counts of one block to ``counts`` (int64 of COUNTS entries)."""
    keys = np.empty(_BLOCK, np.uint8)
    if fmt.name == "bfloat16":
        _count_stream(words, out, *_shape(fmt), keys, counts)
        return
    for start in range(0, len(words), _BLOCK):
        some, got = words[start : start + _BLOCK], out[start : start + _BLOCK]
        _count_fields(some, got, *_shape(fmt), keys[: len(got)], counts)


@jit
def _count_scaled(
    out: Any, keys: Any, mask: Any, choices: Any, field: Any, base: Any, codes: Any, words: Any, counts: Any
) -> Any:
    """bfloat16 recipes of the rule ``scaled``, which differ in their keys alone: made, added and counted in pieces
    of the first-level cache. Returns the elements counted: fewer than all where a piece has an inexact addition or
    an output that is no neighbour.
    """
    done, size = 0, len(codes)
    while done < len(out):
        n = min(size, len(out) - done)
        step = uint32(uint32(done) * uint32(WEYL))
        wrong = int32(0)
        for k in range(len(keys)):
            _scaled16(codes[:n], uint32(keys[k] + step), mask, choices, field, base)
            if k == 0:
                _load_shift(codes[:n], words[:n])
            else:
                wrong = int32(wrong + _add_shift(codes[:n], words[:n]))
        if wrong != int32(0) or not _count_shift(words[:n].view(np.int32), out[done : done + n], counts):
            return done
        done += n
    return done


def count_recipes(recipes: Sequence[Recipe], start: int, out: Codes, counts: Counts) -> int:
    """Adds the counts of outputs of the indices from ``start`` on; how many of them, from the first on, were counted.

    It stops at the first piece that needs the general way; 0 where the recipes have no fused loop.
    """
    shared = scaled_words(recipes, start, start + len(out))
    if shared is None:
        return 0
    return int(_count_scaled(out, *shared, np.empty(PIECE, np.uint16), np.empty(PIECE, np.uint32), counts))


@jit
def _dose_keys(words: Any, out: Any, bits: Any, mantissa: Any, emin: Any, past: Any, keys: Any) -> None:
    """keys = bin of rem, lo odd, up; 4 * BINS where nothing is counted."""
    for i in range(len(out)):
        word = uint32(words[i])
        lo, rem, fit = _fields(word, mantissa, emin)
        kind = _class(word, uint32(out[i]), lo, fit, bits, past)
        place = uint32(uint32(uint32(rem >> uint32(26)) << uint32(2)) | uint32(uint32(lo & uint32(1)) << uint32(1)))
        keys[i] = uint32(place | kind) if (kind < uint32(2)) & (rem != uint32(0)) else uint32(4 * BINS)


def dose_words(fmt: Format, words: U32, out: Codes, dose: Dose) -> None:
    """Adds one block's counts [bin of rem, lo odd, up] to ``dose``; words that are unfit must not occur."""
    keys, banks = np.empty(len(words), np.uint16), np.zeros((4, 4 * BINS + 1), np.uint32)
    _dose_keys(words, out, *_shape(fmt), keys)
    _histogram(keys, banks)
    dose += banks.sum(axis=0, dtype=np.int64)[: 4 * BINS].reshape(BINS, 2, 2)
