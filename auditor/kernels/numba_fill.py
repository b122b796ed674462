"""Input streams compiled by Numba: ``numerics.recipes.evaluate``, element for element.

A loop carries its place in the stream (the index times the hash's odd constant, plus the key) from element to
element: an addition where the reference multiplies.
"""

# Numba compiles these bodies: each assignment pins a 32-bit width, so what looks like a needless cast is not.
# mypy: disable-error-code="untyped-decorator, misc"

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numba import int64, uint32, uint64

from auditor.kernels import numpy_ops
from auditor.kernels.numba_jit import jit
from auditor.model import Codes
from auditor.numerics.hashing import MASK32, MASK64, MIX_A, MIX_B, WEYL, stream_key
from auditor.numerics.recipes import CLT_CENTRE, COMMON, Recipe, mantissa_mask


@jit
def _hash(x: Any) -> Any:
    x = uint32(x ^ uint32(x >> uint32(16)))
    x = uint32(x * uint32(MIX_A))
    x = uint32(x ^ uint32(x >> uint32(15)))
    x = uint32(x * uint32(MIX_B))
    return uint32(x ^ uint32(x >> uint32(16)))


@jit
def _scaled16(out: Any, key: Any, mask: Any, choices: Any, field: Any, base: Any) -> None:
    """16-bit formats. choices = (span + 1) << mantissa bits, below 2**15, so that every shift is by a constant and
    the product takes one instruction: ((e * n) >> 15) << m equals ((e * (n << m)) >> 15) less its low m bits.
    """
    place, n = uint32(key), uint32(choices & uint32(0x7FFF))
    for i in range(len(out)):
        x = _hash(place)
        y = uint32(x >> uint32(16))
        exponent = uint32(uint32(uint32(uint32(y & uint32(0x7FFF)) * n) >> uint32(15)) & field)
        out[i] = uint32(uint32(uint32(uint32(y & uint32(0x8000)) | uint32(x & mask)) | exponent) + base)
        place = uint32(place + uint32(WEYL))


@jit
def _scaled(out: Any, key: Any, second: Any, mask: Any, choices: Any, base: Any, field: Any, top: Any) -> None:
    """8-bit formats, and binary32 with its mantissa from the second stream. base = lowest exponent + bias."""
    place, other, narrow = uint32(key), uint32(second), top < uint32(16)
    for i in range(len(out)):
        x = _hash(place)
        fraction = x if narrow else _hash(other)
        exponent = uint32(uint32(uint32(uint32(x >> uint32(16)) & uint32(0x7FFF)) * choices) >> uint32(15))
        code = uint32(uint32(fraction & mask) | uint32(uint32(exponent + base) << field))
        out[i] = uint32(code | uint32(uint32(x >> uint32(31)) << top))
        place, other = uint32(place + uint32(WEYL)), uint32(other + uint32(WEYL))


@jit
def _report132(out: Any, base: Any, start: Any, mask: Any, bias: Any, field: Any, top: Any) -> None:
    for i in range(len(out)):
        z = uint64(uint64(uint64(start + uint64(i)) ^ base) + uint64(0x9E3779B97F4A7C15))
        z = uint64((z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9))
        z = uint64((z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB))
        z = uint64(z ^ (z >> uint64(31)))
        exponent = uint64(uint64(z >> uint64(32)) % uint64(9)) + bias
        out[i] = uint64((z & mask) | (exponent << field) | ((z >> uint64(63)) << top))


@jit
def _truncate(magnitude: Any, exponent: Any, negative: Any, bits: Any, field: Any, emin: Any) -> Any:
    """The scalar of ``recipes.truncate``: the leading bit is read from the exponent field of the exact binary64
    value.
    """
    word = np.float64(magnitude).view(np.uint64)
    top = int64(word >> uint64(52)) - int64(1023) + exponent
    significand = uint64(uint64(word & uint64(0xFFFFFFFFFFFFF)) | uint64(0x10000000000000)) >> uint64(52 - field)
    below = uint64(min(max(emin - top, int64(0)), int64(63)))
    code = uint64((uint64(max(top, emin) - emin) << uint64(field)) + uint64(significand >> below))
    code = code if magnitude != 0 else uint64(0)
    return uint64(code | (uint64(negative) << uint64(bits - 1)))


@jit
def _wide(out: Any, keys: Any, normal: Any, first: Any, second: Any, bits: Any, field: Any, emin: Any) -> None:
    """normal: first = the exponent of the magnitude's unit; else first = shift, second = centre (``Recipe``)."""
    extra_bits = int64(6) if bits <= 16 else int64(35)
    place = uint32(0)
    for i in range(len(out)):
        a, b = _hash(uint32(place + keys[0])), _hash(uint32(place + keys[1]))
        c = _hash(uint32(place + keys[2]))
        total = int64(a & uint32(0xFFFF)) + int64(a >> uint32(16)) + int64(b & uint32(0xFFFF)) + int64(b >> uint32(16))
        value = total - int64(CLT_CENTRE)
        extra = uint64(c & uint32(0x3F))
        if bits > 16:
            d = _hash(uint32(place + keys[3]))
            extra = uint64(uint64(uint64(c & uint32(0x7FFFFFFF)) << uint64(4)) | uint64(d >> uint32(28)))
        if normal:
            magnitude = uint64(uint64(uint64(abs(value)) << uint64(extra_bits)) | extra | uint64(1))
            out[i] = _truncate(magnitude, int64(first) - extra_bits, value < 0, bits, field, int64(emin))
        else:
            within = uint64(uint64(value & ((int64(1) << first) - int64(1))) | uint64(uint64(1) << uint64(first)))
            magnitude = uint64(uint64(within << uint64(extra_bits)) | extra)
            exponent = (value >> int64(first)) + int64(second) - int64(first) - extra_bits
            out[i] = _truncate(magnitude, exponent, c >= uint32(0x80000000), bits, field, int64(emin))
        place = uint32(place + uint32(WEYL))


@jit
def _rank_coded(
    out: Any, key: Any, sign: Any, turn: Any, size: Any, skip: Any, slots: Any, base: Any, field: Any, top: Any
) -> None:
    """turn, skip: position and seed, already reduced; base = lowest exponent + bias."""
    place, other = uint32(key), uint32(sign)
    for i in range(len(out)):
        x, y = _hash(place), _hash(other)
        bit = uint32(uint32(uint32(uint32(x & uint32(0xFFFF)) * size) >> uint32(16)) + turn)
        bit = bit if bit < size else uint32(bit - size)
        unit = uint32(uint32(uint32(uint32(x >> uint32(16)) * slots) >> uint32(16)) + skip)
        unit = unit if unit < slots else uint32(unit - slots)
        code = uint64(uint32(uint32(bit + unit) + base)) << uint64(field)
        out[i] = uint64(code | (uint64(y >> uint32(31)) << uint64(top)))
        place, other = uint32(place + uint32(WEYL)), uint32(other + uint32(WEYL))


_stream_key = lru_cache(maxsize=4096)(stream_key)


def _keys(streams: list[tuple[int, int, int]], high: int, low: int) -> list[np.uint32]:
    """Keys of (seed, rank, stream number), advanced to the index's low word."""
    return [np.uint32((_stream_key(*stream, high) + low * WEYL) & MASK32) for stream in streams]


def _own(recipe: Recipe, n: int) -> list[tuple[int, int, int]]:
    return [(recipe.seed, recipe.rank, recipe.stream + k) for k in range(n)]


def _words(*numbers: int) -> list[np.uint32]:
    return [np.uint32(number) for number in numbers]


def _scaled16_words(recipe: Recipe) -> list[np.uint32] | None:
    """The arguments of ``_scaled16`` after the key; None where the recipe needs another loop."""
    if recipe.kind != "scaled" or recipe.fmt.bits != 16:
        return None
    _, span, lowest = recipe.params
    bits, base = recipe.fmt.mantissa_bits, lowest + recipe.fmt.bias
    choices = (span + 1) << bits
    if choices >= 1 << 15:
        return None
    return _words(mantissa_mask(recipe), choices, 0x7FFF >> bits << bits, base << bits)


def scaled_words(recipes: Sequence[Recipe], start: int, stop: int) -> tuple[Any, ...] | None:
    """(keys of all recipes, the arguments that they share) for a fused loop over bfloat16 indices [start, stop);
    None where there is none.
    """
    first = recipes[0]
    alike = all((one.fmt, one.kind, one.params) == (first.fmt, first.kind, first.params) for one in recipes)
    words = _scaled16_words(first)
    if words is None or not alike or first.fmt.name != "bfloat16" or start >> 32 != (stop - 1) >> 32:
        return None
    keys = [_keys(_own(one, 1), start >> 32, start & MASK32)[0] for one in recipes]
    return np.array(keys, np.uint32), *words


def _fill_scaled(recipe: Recipe, high: int, low: int, out: Codes) -> None:
    first, second = _keys(_own(recipe, 2), high, low)
    words = _scaled16_words(recipe)
    if words is not None:
        _scaled16(out, first, *words)
        return
    _, span, lowest = recipe.params
    fmt = recipe.fmt
    numbers = (mantissa_mask(recipe), span + 1, lowest + fmt.bias, fmt.mantissa_bits, fmt.bits - 1)
    _scaled(out, first, second, *_words(*numbers))


def _fill_wide(recipe: Recipe, high: int, low: int, out: Codes) -> None:
    fmt, normal = recipe.fmt, recipe.kind == "normal"
    first, second = (recipe.params[0] - 16, 0) if normal else recipe.params
    keys = np.array(_keys(_own(recipe, 4), high, low), np.uint32)
    _wide(out, keys, normal, first, second, fmt.bits, fmt.mantissa_bits, fmt.emin)


def _fill_rank_coded(recipe: Recipe, high: int, low: int, out: Codes) -> None:
    position, size, slots, lowest = recipe.params
    fmt, seed, stream = recipe.fmt, recipe.seed, recipe.stream
    keys = _keys([(0, COMMON, stream), (seed, COMMON, stream + 1)], high, low)
    numbers = ((position + seed) % size, size, seed % slots, slots, lowest + fmt.bias, fmt.mantissa_bits, fmt.bits - 1)
    _rank_coded(out, *keys, *_words(*numbers))


_FILLS = {"scaled": _fill_scaled, "normal": _fill_wide, "lognormal": _fill_wide, "rank_coded": _fill_rank_coded}


def fill(recipe: Recipe, start: int, out: Codes) -> None:
    """Writes the codes of the indices from ``start`` on into ``out``."""
    if recipe.kind == "report132":
        fmt = recipe.fmt
        base = ((recipe.seed << 40) ^ (recipe.rank << 32)) & MASK64
        numbers = (base, start & MASK64, (1 << fmt.mantissa_bits) - 1, fmt.bias - 4, fmt.mantissa_bits, fmt.bits - 1)
        _report132(out, *(np.uint64(number) for number in numbers))
        return
    rule = _FILLS.get(recipe.kind)
    if rule is None or (recipe.kind == "scaled" and recipe.fmt.bits > 32):
        numpy_ops.fill(recipe, start, out)
        return
    done = 0
    while done < len(out):
        index = start + done
        size = min(len(out) - done, (((index >> 32) + 1) << 32) - index)
        rule(recipe, index >> 32, index & 0xFFFFFFFF, out[done : done + size])
        done += size
