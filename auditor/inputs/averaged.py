"""Families for the probe scaling: ``equal`` and ``average_ties``."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from auditor.errors import ConfigError
from auditor.inputs.cases import place
from auditor.model import Codes, Family
from auditor.numerics.formats import Format
from auditor.numerics.recipes import COMMON, Recipe, Stream, scale_word, truncate

EQUAL_STREAM = 0x68
TIES_STREAM = 0x70
ROUND = 4096  # elements of average_ties before it comes round


def equal(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    """The same random value from every contributor, all significand bits used. ``range``: ``mid`` (exponent -4..4) or ``top``
    (the largest binade: the sum of two does not fit, their average does).
    """
    del rank_n, rank
    ranges = {"mid": (8, -4), "top": (0, fmt.emax)}
    name = str(family.get("range", "mid"))
    if name not in ranges:
        raise ConfigError(f"family {family}: range = {name!r} is not one of {', '.join(ranges)}")
    bits = fmt.precision if fmt.has_infinity or name == "mid" else fmt.precision - 1  # e4m3: all ones is its NaN
    return Recipe("scaled", fmt, seed, COMMON, EQUAL_STREAM, (bits, *ranges[name]))


def average_ties(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """Sums next to n times a tie of the format, so that an average tells dividing from multiplying by a rounded 1/n.

    Sum = n * t +- 2**-j: t is half-way between two values, of the sum the first contributor holds the upper bits, the second
    the rest of n * t, the third the 2**-j; the others +0. It is exact in binary32 (binary32: in binary64) in every order. An
    accumulator of that width must round the average, and by which formula decides whether it falls on the tie.
    """
    del family
    table = _ties_table(fmt, seed, rank_n, rank)
    codes: Codes = table[place(ROUND, start, stop)]
    return codes


@lru_cache(maxsize=64)
def _ties_table(fmt: Format, seed: int, rank_n: int, rank: int) -> Codes:
    """One contributor's round: codes, shape (ROUND,), read-only. Raises ConfigError where n * t needs a third term."""
    p = fmt.precision
    if rank_n.bit_length() + 1 > p or rank_n >= 1 << 9:
        raise ConfigError(f"family average_ties: {rank_n} contributors are too many for {fmt.name}")
    codes = np.zeros(ROUND, fmt.dtype)
    if rank < 3:
        high, low, far = (Stream(seed, COMMON, TIES_STREAM).words(0, ROUND, k).astype(np.uint64) for k in range(3))
        fraction = (high << np.uint64(32) | low) & np.uint64((1 << p) - 1)
        whole = (np.uint64(1 << p) | fraction | np.uint64(1)) * np.uint64(rank_n)
        length = sum((whole >> np.uint64(k) != 0).astype(np.int64) for k in range(p, p + 10)) + p
        drop = (length - p).astype(np.uint64)
        top = min(fmt.emax - 2, 20)  # exponent of the sum
        unit = top + 1 - length
        if rank == 0:
            codes = truncate(fmt, np.zeros(ROUND, np.bool_), whole >> drop, unit + drop.astype(np.int64))
        elif rank == 1:
            rest = whole & ((np.uint64(1) << drop) - np.uint64(1))
            codes = truncate(fmt, np.zeros(ROUND, np.bool_), rest, unit)
        else:
            least, most = p + rank_n.bit_length() + 1, min({24: 52, 53: 62}.get(p, 23), top - fmt.emin)
            depth = scale_word(far.astype(np.uint32), max(1, most - least + 1)).astype(np.int64) + least
            codes = truncate(fmt, (far & np.uint64(1)) != 0, np.ones(ROUND, np.uint64), top - depth)
    codes.flags.writeable = False
    return codes
