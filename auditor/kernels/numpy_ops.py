"""The hot loops on blocks, in NumPy: the reference that every twin must equal count for count.

A twin is a module with these functions and signatures: ``fill``, ``load``, ``add``, ``count_words``,
``count_recipes``, ``dose_words``. Sums travel as *words*: the binary32 codes of exact sums, so that lo and rem are
bit fields and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auditor.kernels.table import BINS, CELLS, Dose
from auditor.model import Codes
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import U32
from auditor.numerics.recipes import Recipe, evaluate

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]  # 16 cells, then the fields below; rem in units of 2**-32
EXACT_RIGHT, EXACT_WRONG, SKIPPED, UNFIT, REM_SUM, COUNTS = range(CELLS, CELLS + 6)

BLOCK = 1 << 17  # elements worked on at once: fewer turns of the interpreter outweigh the second-level cache

BINARY32_INFINITY = 0x7F800000


def fill(recipe: Recipe, start: int, out: Codes) -> None:
    """Writes the codes of the indices from ``start`` on into ``out``."""
    out[:] = evaluate(recipe, start, start + len(out))


@lru_cache(maxsize=8)
def decode_table(fmt: Format) -> U32:
    """Binary32 code of every code of a format of 16 bits or fewer, which binary32 holds exactly; uint32 of shape
    (2**bits,).
    """
    codes = np.arange(1 << fmt.bits, dtype=np.uint32)
    magnitude, sign = codes & np.uint32(fmt.magnitude_mask), (codes >> np.uint32(fmt.bits - 1)) << np.uint32(31)
    wide = FORMATS["binary32"]
    field = magnitude >> np.uint32(fmt.mantissa_bits)
    fraction = (magnitude & np.uint32((1 << fmt.mantissa_bits) - 1)).astype(np.float64)
    scale = np.ldexp(1.0, (np.maximum(field, 1).astype(np.int64) - fmt.bias - fmt.mantissa_bits).astype(np.int32))
    hidden = np.where(field > 0, float(1 << fmt.mantissa_bits), 0.0)
    words = ((fraction + hidden) * scale).astype(np.float32).view(np.uint32)
    words = np.where(magnitude >= fmt.overflow_code, np.uint32(BINARY32_INFINITY), words)
    words = np.where(magnitude > fmt.overflow_code, np.uint32(wide.nan_code), words)
    if not fmt.has_infinity:
        words = np.where(magnitude == fmt.overflow_code, np.uint32(wide.nan_code), words)
    table: U32 = (words | sign).astype(np.uint32)
    table.flags.writeable = False
    return table


def load(fmt: Format, codes: Codes, words: U32) -> None:
    """words = the codes as binary32."""
    if fmt.name == "bfloat16":
        np.left_shift(codes, np.uint32(16), out=words, casting="unsafe", dtype=np.uint32)
    elif fmt.name == "binary16":
        words[:] = codes.view(np.float16).astype(np.float32).view(np.uint32)
    else:
        np.take(decode_table(fmt), codes, out=words)


def add(fmt: Format, codes: Codes, words: U32) -> bool:
    """words += codes; whether every addition was exact, by the error term of Knuth's two-sum (NaN, infinities: not)."""
    parts = [slice(start, start + BLOCK) for start in range(0, len(words), BLOCK)]
    with np.errstate(all="ignore"):
        return all([_add_block(fmt, codes[part], words[part]) for part in parts])  # noqa: C419 - all of them are added


def _add_block(fmt: Format, codes: Codes, words: U32) -> bool:
    term = np.empty_like(words)
    load(fmt, codes, term)
    a, b = words.view(np.float32), term.view(np.float32)
    total = a + b
    part = total - a
    b -= part  # b - part
    part -= total
    a += part  # a - (total - part), which is exact
    a += b
    exact = not bool(np.count_nonzero(a != 0))
    a[:] = total
    return exact


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """One block as ``fmt`` sees it, shape (n,) each: where the output lies, and where the sum lies between its
    neighbours.
    """

    down: Bools  # |out| = lo
    up: Bools  # |out| = lo + 1
    usable: Bools  # finite and below the maximum plus one ulp
    fit: bool  # rem is exact in 32 bits throughout
    rem: U32  # in units of 2**-32
    odd: Bools


def _fields(fmt: Format, magnitude: U32) -> tuple[U32, U32, bool]:
    """(lo, rem in units of 2**-32, fit) of the magnitudes of binary32 words."""
    field = magnitude >> np.uint32(23)
    hidden = np.minimum(field, np.uint32(1)) << np.uint32(23)
    lowest = np.uint32(fmt.emin + 127)
    drop = np.uint32(24 - fmt.precision) + np.maximum(lowest, field) - field
    fit = not bool(((drop > 32) & (magnitude != 0)).any())
    significand = (magnitude & np.uint32(0x7FFFFF)) | hidden
    lo = ((np.maximum(field, lowest) - lowest) << np.uint32(fmt.mantissa_bits)) + (significand >> drop)
    return lo, significand << (np.uint32(32) - np.minimum(drop, np.uint32(32))), fit


def _look(fmt: Format, words: U32, out: Codes) -> _Block:
    dtype = fmt.dtype.type
    magnitude = words & np.uint32(0x7FFFFFFF)
    if fmt.name == "bfloat16":  # a word's upper half is lo with its sign
        lo, rem, fit = magnitude >> np.uint32(16), words << np.uint32(16), True
    else:
        lo, rem, fit = _fields(fmt, magnitude)
    usable = (lo <= np.uint32(fmt.max_code)) & (magnitude < BINARY32_INFINITY)
    sign = (words >> np.uint32(31)).astype(fmt.dtype) << dtype(fmt.bits - 1)
    ahead = (out ^ sign) - lo.astype(fmt.dtype)  # a wrong sign leaves the top bit set, but for a zero
    down, up = ahead == 0, ahead == 1
    zero = (out & dtype(fmt.magnitude_mask)) == 0
    if zero.any():
        down |= zero & (lo == 0)  # the sign of a zero is not rounding's business
        up &= ~zero
    return _Block(down & usable, up & usable, usable, fit, rem, (lo & np.uint32(1)) != 0)


def count_words(fmt: Format, words: U32, out: Codes, counts: Counts) -> None:
    """Adds the counts of one block to ``counts`` (int64 of COUNTS entries); counts[UNFIT] is not 0 where they mean
    nothing.
    """
    for start in range(0, len(words), BLOCK):
        part = slice(start, start + BLOCK)
        _count_block(fmt, words[part], out[part], counts)


def _count_block(fmt: Format, words: U32, out: Codes, counts: Counts) -> None:
    """Counts of boolean masks: several times faster here than a histogram of class numbers."""
    seen, negative = _look(fmt, words, out), words >= np.uint32(1 << 31)
    half, n = np.uint32(1 << 31), np.count_nonzero
    exact, tie, above = seen.rem == 0, seen.rem == half, seen.rem > half
    odd_tie = tie & seen.odd
    for way, where in enumerate((seen.down, seen.up)):
        for sign, part in enumerate((where & ~negative, where & negative)):
            ties, odds, aboves, exacts = (n(part & mask) for mask in (tie, odd_tie, above, exact))
            first = (2 * sign + way) * 4
            counts[first : first + 4] += (n(part) - exacts - ties - aboves, ties - odds, odds, aboves)
            counts[EXACT_RIGHT] += 0 if way else exacts
    counts[EXACT_WRONG] += n(exact & seen.usable & ~seen.down)
    counts[SKIPPED] += len(words) - n(seen.usable)
    counts[UNFIT] += not seen.fit
    counts[REM_SUM] += int((seen.rem * (seen.down | seen.up)).sum(dtype=np.uint64))  # np.where is ten times slower


def count_recipes(recipes: Sequence[Recipe], start: int, out: Codes, counts: Counts) -> int:
    """How many outputs, from the first on, a fused loop has counted: none, there is no such loop here."""
    del recipes, start, out, counts
    return 0


def dose_words(fmt: Format, words: U32, out: Codes, dose: Dose) -> None:
    """Adds one block's counts [bin of rem, lo odd, up] to ``dose``; words that are unfit must not occur."""
    seen = _look(fmt, words, out)
    index = ((seen.rem >> np.uint32(26)) << np.uint32(2)) | (seen.odd.astype(np.uint32) << np.uint32(1)) | seen.up
    dose += np.bincount(index[(seen.down | seen.up) & (seen.rem != 0)], minlength=4 * BINS).reshape(BINS, 2, 2)
