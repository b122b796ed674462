"""Exact sums of codes, each in the narrowest container that is exact for the exponents really present (NUMERICS §2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from auditor.numerics.containers import (
    ADDERS,
    BLOCK,
    CONTAINERS,
    FINITE,
    MINUS_INFINITY,
    MINUS_ZERO,
    NAN,
    OTHER_ZERO,
    PLUS_INFINITY,
    PLUS_ZERO,
    Block,
    Bools,
    Codes,
    Sums,
    code_of,
    exact_sums_of_integers,
    magnitude_of,
    scale_of,
    stacked,
)
from auditor.numerics.formats import Format

__all__ = [
    "FINITE",
    "MINUS_INFINITY",
    "MINUS_ZERO",
    "NAN",
    "OTHER_ZERO",
    "PLUS_INFINITY",
    "PLUS_ZERO",
    "Bools",
    "Codes",
    "Sums",
    "decode_reference",
    "exact_sum_reference",
    "exact_sums",
    "exact_sums_of_integers",
    "kind_reference",
]

TERM_LIMIT = 1 << 20


def decode_reference(fmt: Format, code: int) -> tuple[int, int]:
    """(numerator, exponent) of one finite code, worth numerator * 2**exponent. ValueError on infinity and NaN."""
    magnitude = code & fmt.magnitude_mask
    if magnitude > fmt.max_code:
        raise ValueError(f"code {code:#x} of {fmt.name} is not finite")
    scale = max((magnitude >> fmt.mantissa_bits) - 1, 0)
    significand = magnitude - (scale << fmt.mantissa_bits)
    return (-significand if code & fmt.sign_mask else significand), fmt.lsb + scale


def exact_sum_reference(fmt: Format, codes: Sequence[int]) -> tuple[int, int]:
    """(numerator, exponent) of the sum of finite codes, in Python integers; the exponent is the format's lsb."""
    parts = [decode_reference(fmt, int(code)) for code in codes]
    return sum(numerator << (exponent - fmt.lsb) for numerator, exponent in parts), fmt.lsb


def kind_reference(fmt: Format, codes: Sequence[int]) -> int:
    """The ``kind`` of one sum (see :class:`Sums`), in Python integers. NaN wins, then infinities; inf - inf is NaN."""
    magnitudes = [int(code) & fmt.magnitude_mask for code in codes]
    signs = [bool(int(code) & fmt.sign_mask) for code in codes]
    infinite = {sign for magnitude, sign in zip(magnitudes, signs, strict=True) if magnitude == fmt.overflow_code}
    no_number = any(m > fmt.max_code and (m != fmt.overflow_code or not fmt.has_infinity) for m in magnitudes)
    if no_number or len(infinite) == 2:
        return NAN
    if infinite:
        return MINUS_INFINITY if True in infinite else PLUS_INFINITY
    if exact_sum_reference(fmt, codes)[0]:
        return FINITE
    if any(magnitudes) or len(set(signs)) == 2:
        return OTHER_ZERO
    return MINUS_ZERO if signs[0] else PLUS_ZERO


def exact_sums(fmt: Format, terms: Sequence[Codes], *, container: str | None = None) -> Sums:
    """Exact sums over ``terms``, element by element: equally long 1-D code arrays, at most 2**20 of them.

    Works block by block and term by term, so scratch memory does not grow with the number of terms. ``container``
    (``int64``, ``limbs``, ``buckets``) forces a container; without it each sum gets the narrowest that is exact for it.
    Raises ValueError on no terms, too many, unequal shapes, a wrong dtype or a forced container that is not exact.
    """
    _check_terms(fmt, terms)
    n = len(terms[0])
    sums = Sums.zeros(n)
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        sums[part] = _sum_block(fmt, [term[part] for term in terms], container)
    return sums


def _check_terms(fmt: Format, terms: Sequence[Codes]) -> None:
    if not 0 < len(terms) <= TERM_LIMIT:
        raise ValueError(f"{len(terms)} terms: exact sums are for 1 to {TERM_LIMIT} of them")
    shapes = {term.shape for term in terms}
    if len(shapes) != 1 or len(terms[0].shape) != 1:
        raise ValueError(f"terms must be 1-D and of one length, not {sorted(shapes)[:4]}")
    wrong = {term.dtype for term in terms} - {fmt.dtype}
    if wrong:
        raise ValueError(f"codes of {fmt.name} have dtype {fmt.dtype}, not {', '.join(sorted(map(str, wrong)))}")


def _sum_block(fmt: Format, terms: Sequence[Codes], container: str | None) -> Sums:
    whole, each = _spans(fmt, terms)
    bits = int(whole.bits[0])
    if container:
        if bits > CONTAINERS[container]:
            raise ValueError(f"a sum here needs {bits} bits, {container} has {CONTAINERS[container]}")
        sums = ADDERS[container](whole)
    else:
        sums = ADDERS["int64"](whole) if bits <= CONTAINERS["int64"] else _sum_each(each)
    _mark_zeros(fmt, sums, stacked(terms))
    if whole.special:
        _mark_special(fmt, sums, stacked(terms))
    return sums


def _sum_each(block: Block) -> Sums:
    """Every element by its own span. Two terms always fit in two limbs, see :func:`_limbs`."""
    bits = np.minimum(block.bits, CONTAINERS["limbs"]) if len(block.terms) == 2 else block.bits
    sums = Sums.zeros(len(bits))
    below = -1
    for name, room in CONTAINERS.items():
        index = np.flatnonzero((bits > below) & (bits <= room))
        below = room
        if len(index) == len(bits):
            return ADDERS[name](block)
        if len(index):
            sums[index] = ADDERS[name](block.at(index))
    return sums


def _spans(fmt: Format, terms: Sequence[Codes]) -> tuple[Block, Block]:
    """The block with one span for all elements, and with a span for each."""
    low = np.full(len(terms[0]), (1 << fmt.bits) - 1, fmt.dtype)
    high = np.zeros(len(terms[0]), fmt.dtype)
    special = False
    for codes in stacked(terms):
        magnitude = magnitude_of(fmt, codes)
        if int(magnitude.max()) > fmt.max_code:
            special = True
            magnitude[magnitude > fmt.max_code] = 0
        np.maximum(high, magnitude.max(axis=0) if len(magnitude) > 1 else magnitude[0], out=high)
        magnitude -= code_of(fmt, 1)  # zero wraps to the top, so that the minimum passes over it
        np.minimum(low, magnitude.min(axis=0) if len(magnitude) > 1 else magnitude[0], out=low)
    top = high.max(keepdims=True)
    bottom = np.minimum(low.min(keepdims=True) + code_of(fmt, 1), top)
    low += code_of(fmt, 1)
    whole = Block(fmt, terms, special, scale_of(fmt, bottom), scale_of(fmt, top))
    return whole, Block(fmt, terms, special, scale_of(fmt, low), scale_of(fmt, high))


def _mark_zeros(fmt: Format, sums: Sums, chunks: Iterator[Codes]) -> None:
    """Tell +0 + +0 and -0 + -0 from the other exact zeros, in place."""
    at = np.flatnonzero(sums.sig == 0)
    if not len(at):
        return
    plus = minus = np.ones(len(at), np.bool_)
    for codes in chunks:
        rows = codes[:, at]
        plus = plus & (rows == 0).all(axis=0)
        minus = minus & (rows == fmt.sign_mask).all(axis=0)
    sums.kind[at] = np.where(plus, PLUS_ZERO, np.where(minus, MINUS_ZERO, OTHER_ZERO))


def _mark_special(fmt: Format, sums: Sums, chunks: Iterator[Codes]) -> None:
    """Put NaN and infinities in, in place: any NaN, or both infinities, give NaN; else an infinity wins."""
    plus = minus = nan = np.zeros(len(sums), np.bool_)
    for codes in chunks:
        magnitude = codes & code_of(fmt, fmt.magnitude_mask)
        infinite = (magnitude == fmt.overflow_code) & fmt.has_infinity
        negative = (codes & code_of(fmt, fmt.sign_mask)) != 0
        nan = nan | ((magnitude > fmt.max_code) & ~infinite).any(axis=0)
        plus = plus | (infinite & ~negative).any(axis=0)
        minus = minus | (infinite & negative).any(axis=0)
    special = plus | minus | nan
    sums.kind[special] = np.select([nan | (plus & minus), plus], [NAN, PLUS_INFINITY], MINUS_INFINITY)[special]
    for name in ("negative", "sig", "exp", "sticky"):
        getattr(sums, name)[special] = 0
