"""Counter hashes behind every input: pure functions of (seed, rank, stream, index), the same on host and device.

``counter_hash`` is a multiply-add and a 32-bit finaliser per element (Wellons' "lowbias32" constants), so that it vectorises
and a device fills memory at memory speed. ``splitmix64`` (Steele, Lea, Flood 2014) serves the family ``report132`` alone
(NUMERICS §1.4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
WEYL = 0x9E3779B1
MIX_A = 0x7FEB352D
MIX_B = 0x846CA68B


def mix32(word: int) -> int:
    """The finaliser on one 32-bit word: a bijection of 32-bit integers."""
    word = ((word ^ (word >> 16)) * MIX_A) & MASK32
    word = ((word ^ (word >> 15)) * MIX_B) & MASK32
    return word ^ (word >> 16)


def stream_key(seed: int, rank: int, stream: int, index_high: int) -> int:
    """32-bit key of one stream: what is constant over the elements of one rank whose index has the same high word."""
    key = 0
    for word in (seed & MASK32, (seed >> 32) & MASK32, rank & MASK32, stream & MASK32, index_high & MASK32):
        key = mix32((key + WEYL + word) & MASK32)
    return key


def counter_hash(key: int, index_low: U32) -> U32:
    """Array form: mix32(index_low * WEYL + key) for uint32 ``index_low``; key from :func:`stream_key`."""
    x = index_low * np.uint32(WEYL)
    x += np.uint32(key)
    x ^= x >> np.uint32(16)
    x *= np.uint32(MIX_A)
    x ^= x >> np.uint32(15)
    x *= np.uint32(MIX_B)
    x ^= x >> np.uint32(16)
    return x


def splitmix64(state: npt.NDArray[Any]) -> U64:
    """Output for each 64-bit state, the +0x9E3779B97F4A7C15 increment included."""
    z = state.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
