"""Families without draws: position_coded, constant, tail_trigger, smooth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from auditor.errors import ConfigError
from auditor.inputs.scaled import RANK_CODED_SLOTS, log2_ceil
from auditor.model import Codes, Family
from auditor.numerics import triggers
from auditor.numerics.formats import Format
from auditor.numerics.hashing import MASK64, U64, mix32, stream_key
from auditor.numerics.recipes import COMMON, Stream, indices, scale_word, truncate

POSITION_STREAM = 0x40
SMOOTH_STREAM = 0x48

_CARRIES = 3

# --- position_coded ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PositionPlan:
    """How a place number of ``width`` bits is spread: sign, ``scale_bits`` of exponent from ``low`` up, ``bits`` -
    1 of significand.
    """

    bits: int
    scale_bits: int
    low: int
    active: int

    @property
    def width(self) -> int:
        return self.bits + self.scale_bits


@lru_cache(maxsize=256)
def position_plan(fmt: Format, rank_n: int) -> PositionPlan:
    """Every contributor sends the same +-significand * 2**unit, so the partial sums are k * significand with k <=
    active: all exact.
    """
    bits = max(1, fmt.precision - log2_ceil(rank_n))
    active = min(rank_n, 1 << (fmt.precision if bits == 1 else fmt.precision - bits))
    low = max(fmt.emin - bits + 1, -RANK_CODED_SLOTS // 2)
    scales = min(fmt.emax - fmt.precision - low + 1, RANK_CODED_SLOTS)
    return PositionPlan(bits, scales.bit_length() - 1, low, active)


def _clashes(weights: list[int], width: int) -> int:
    """In how many ways adding 2**k, with the carries that end in the last digit, leaves the number as it was."""
    n, mask = len(weights), (1 << width) - 1
    starts = range(max(0, n - 1 - _CARRIES), n)
    return sum(not ((weights[t] << k) + sum(weights[t + 1 :])) & mask for t in starts for k in range(width))


@lru_cache(maxsize=64)
def place_weights(width: int) -> tuple[int, ...]:
    """One odd weight for each digit of the index, chosen one by one so that i and i +- 2**k get different numbers."""
    weights: list[int] = []
    for digit in range(-(-64 // width)):
        candidates = [(2 * mix32(64 * digit + trial) + 1) & ((1 << width) - 1) for trial in range(64)]
        weights.append(min(candidates, key=lambda weight: _clashes([*weights, weight], width)))
    return tuple(weights)


def place_numbers(seed: int, width: int, start: int, stop: int) -> U64:
    """A number of ``width`` bits for each index, so chosen that i and i +- 2**k differ, and i and i + d for nearly
    every other d.

    It is the sum of the index's width-bit digits, each times its own odd weight, modulo 2**width. Adding 2**k
    changes one digit by a power of two, and by a carry the next digit by one: the weights are chosen so that no
    such change comes to nothing (up to 3 carries in a row). That they differ keeps d = 2**width - 1 from
    cancelling. The seed adds an odd multiple: seeds s and s + 1 differ at every index. A bijection then spreads
    neighbouring numbers over the bits.
    """
    mask, index = np.uint64((1 << width) - 1), indices(start, stop)
    total = np.full(stop - start, seed * (2 * mix32(77) + 1) & MASK64, np.uint64)
    for digit, weight in enumerate(place_weights(width)):
        total += ((index >> np.uint64(digit * width)) & mask) * np.uint64(weight)
    total = (total * np.uint64(0x9E3779B1)) & mask
    return total ^ (total >> np.uint64((width + 1) // 2))


def position_coded(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """The send index in sign, exponent and significand; the same for every contributor (some of them +0 where there
    are too many).
    """
    del family
    plan = position_plan(fmt, rank_n)
    number = place_numbers(seed, plan.width, start, stop)
    fraction = number & np.uint64((1 << (plan.bits - 1)) - 1)
    scale = (number >> np.uint64(plan.bits - 1)) & np.uint64((1 << plan.scale_bits) - 1)
    field = (scale + np.uint64(plan.low + plan.bits - 1 + fmt.bias)) << np.uint64(fmt.mantissa_bits)
    sign = (number >> np.uint64(plan.width - 1)) << np.uint64(fmt.bits - 1)
    codes: Codes = (sign | field | (fraction << np.uint64(fmt.precision - plan.bits))).astype(fmt.dtype)
    if plan.active < rank_n:
        turn = scale_word(Stream(seed, COMMON, POSITION_STREAM).words(start, stop), rank_n)
        codes[(turn + np.uint64(rank)) % np.uint64(rank_n) >= plan.active] = 0
    return codes


# --- constant ---------------------------------------------------------------------------------------


def exact_code(fmt: Format, value: float) -> int | None:
    """Code of a finite value where the format holds it exactly, else None."""
    if not math.isfinite(value):
        return None
    numerator, denominator = abs(value).as_integer_ratio()
    sign = fmt.sign_mask if math.copysign(1.0, value) < 0 else 0
    if numerator == 0:
        return sign
    top = numerator.bit_length() - denominator.bit_length()  # exact: the denominator is a power of two
    unit = max(top, fmt.emin) - fmt.mantissa_bits
    scaled = (numerator << max(-unit, 0), denominator << max(unit, 0))
    if scaled[0] % scaled[1]:
        return None
    magnitude = ((max(top, fmt.emin) - fmt.emin) << fmt.mantissa_bits) + scaled[0] // scaled[1]
    return sign | magnitude if magnitude <= fmt.max_code else None


def constant(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """``value`` (default 1.0) everywhere."""
    del seed, rank_n, rank
    value = family.get("value", 1.0)
    code = None if isinstance(value, str) else exact_code(fmt, float(value))
    if code is None:
        raise ConfigError(
            f"family {family}: {value!r} is no finite value of {fmt.name}; choose one that it holds exactly"
        )
    return np.full(stop - start, code, fmt.dtype)


# --- tail_trigger -----------------------------------------------------------------------------------


def tail_trigger(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """1.0 from the first contributor, (7/8) * 2**(1-p) from the second, +0 from the others (NUMERICS §1.5).

    The sum is 1 + 7/8 ulp: a rounding keyed by neighbours takes it down beside sums of 1.0, up beside sums of 1.75. ``rem`` =
    high or low: sums next to a number of the format, which the least noise tips (:func:`auditor.numerics.triggers.tipped`).
    """
    del seed, rank_n
    small = fmt.power_of_two(-fmt.precision) | 3 << (fmt.mantissa_bits - 2)
    pair: tuple[int, int] | None = (fmt.power_of_two(0), small)
    if (rem := family.get("rem", None)) is not None:
        pair = triggers.tipped(fmt, str(rem))
    if pair is None:
        raise ConfigError(f"family {family}: rem = {rem!r} is none of high, low, or {fmt.name} has no such terms")
    return np.full(stop - start, pair[rank] if rank < 2 else 0, fmt.dtype)


# --- smooth -----------------------------------------------------------------------------------------


def smooth(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """Alternating parabolic arches, |x| < 1, with 2048 to 4096 elements a period; period and phase by contributor.

    Neighbours are close to each other, so that a rounding keyed by neighbours shows as a bias (NUMERICS §7.1).
    """
    del family, rank_n
    key = stream_key(seed, rank, SMOOTH_STREAM, 0)
    step, phase = (
        (1 << 52) + (key << 19 | 1),
        mix32(key) << 32,
    )  # in units of 2**-64 periods; odd, so nothing comes back
    angle = (indices(start, stop) * np.uint64(step) + np.uint64(phase)) >> np.uint64(32)
    along = (angle & np.uint64(0x7FFFFFFF)) >> np.uint64(5)  # 26 bits through the arch
    height = along * (np.uint64(1 << 26) - along)  # below 2**50
    return truncate(fmt, angle >= np.uint64(1 << 31), height, -50)
