"""Roundings that are keyed by something beside the value: other elements of the group (NUMERICS §1), or a generator.

Both make an r-bit noise R for each element and decide as hardware does: add it below the last kept bit and truncate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from auditor.backends.simulator.options import Recipe
from auditor.numerics.exact import NAN, Sums
from auditor.numerics.formats import Format
from auditor.numerics.hashing import counter_hash, stream_key
from auditor.numerics.rounding import Split, up_by_noise

U64 = npt.NDArray[np.uint64]
_NOISE_STREAM = 0x52


def top_bits(word: Format, sums: Sums) -> U64:
    """The mantissa field of each sum's word in ``word``, bit 63 first (binary32: bits 22, 21, ... of the word). Shape (n,).

    Zeros and infinities have an empty field, a NaN the quiet bit. Sums that ``word`` cannot hold are truncated.
    """
    below = np.maximum(word.emin - 1 - (sums.exp.astype(np.int64) + 63), 0).astype(np.uint64)
    normal = (sums.exp.astype(np.int64) + 63) >= word.emin
    # A normal value's leading bit is hidden; a subnormal's stands in the field, ``below`` places from its top.
    field = np.where(normal, sums.sig << np.uint64(1), sums.sig >> below)
    return np.where(sums.kind == NAN, np.uint64(1 << 63), field)


def neighbour_noise(recipe: Recipe, field: U64) -> U64:
    """Noise in units of 2**-64 from the mantissa fields of whole groups; shape (n,), n a multiple of the group.

    One bit plane after the other, from the top down: b22(q+1)/2 + b22(q+2)/4 + b22(q+3)/8 + b21(q+1)/16 + ...; q counts
    modulo the group.
    """
    options, group_n = recipe.options, recipe.group_n
    first = 0 if options.keyed_by == "self_and_neighbours" else 1
    way = 1 if options.neighbour_order == "forward" else -1
    rows = field.reshape(-1, group_n)
    noise = np.zeros(rows.shape, np.uint64)
    weight = 63
    for bit in range(options.noise_bits):
        plane = (rows >> np.uint64(63 - bit)) & np.uint64(1)
        for distance in range(first, first + group_n - 1):
            # Columns one by one: NumPy's roll costs more than the few strided passes it would save.
            for q in range(group_n):
                noise[:, q] |= plane[:, (q + way * distance) % group_n] << np.uint64(weight)
            weight -= 1
    return noise.reshape(-1)


def generator_noise(recipe: Recipe, call_number: int, start: int, sums: Sums, place: int) -> U64:
    """Noise in units of 2**-64 of the elements from send index ``start`` on, whose sums these are: a hash of (seed, index), and
    of the call's number where so asked; or of (seed, place in the arena), or of the sum. ``place``: element in the arena that
    send index 0 is.
    """
    options = recipe.options
    if options.generator == "value":
        words = _hash_of_values(options.seed, sums)
    else:
        first = start + (place if options.generator == "address" else 0)
        rank = call_number if options.generator == "call" else 0
        words = _hash_of_indices(options.seed, rank, first, first + len(sums))
    return (words >> np.uint64(32 - options.noise_bits)) << np.uint64(64 - options.noise_bits)


def _hash_of_indices(seed: int, rank: int, start: int, stop: int) -> U64:
    index = np.arange(start, stop, dtype=np.int64).astype(np.uint64)  # below 0 where a group begins before the range
    high = index >> np.uint64(32)
    words = np.empty(stop - start, np.uint64)
    for value in np.unique(high):
        part = high == value
        words[part] = counter_hash(stream_key(seed, rank, _NOISE_STREAM, int(value)), index[part].astype(np.uint32))
    return words


def _hash_of_values(seed: int, sums: Sums) -> U64:
    """By sign and exponent, then by the upper and by the lower word of the significand."""
    mixed = np.zeros(len(sums), np.uint32)
    for number, word in enumerate((sums.exp * 2 + sums.negative, sums.sig >> np.uint64(32), sums.sig)):
        mixed = counter_hash(stream_key(seed, 0, _NOISE_STREAM + 1 + number, 0), mixed ^ word.astype(np.uint32))
    return mixed.astype(np.uint64)


def up_by_form(split: Split, noise: U64, noise_n: int, form: str) -> npt.NDArray[np.bool_]:
    """Whether |x| goes up under ``noise_n`` noise bits (NUMERICS §7.1).

    SRFF: floor(rem 2^r) + R >= 2^r. SRF: rem + (R + 1/2) 2^-r >= 1. SRC: rem is first rounded to r bits, ties to even.
    """
    if form == "SRF":
        return up_by_noise(split, noise | np.uint64(1 << (63 - noise_n)))
    if form == "SRFF":
        return up_by_noise(split, noise)
    unit = np.uint64(64 - noise_n)
    kept = split.rem >> unit if noise_n else np.zeros_like(split.rem)
    rest, half = split.rem - (kept << unit), np.uint64(1 << (63 - noise_n))
    kept += (rest > half) | ((rest == half) & (split.sticky | ((kept & np.uint64(1)) != 0)))
    whole = kept == np.uint64(1 << noise_n)  # rounded to a full gap
    up: npt.NDArray[np.bool_] = whole | up_by_noise(replace(split, rem=kept << unit), noise)
    return up
