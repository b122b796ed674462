"""Exact sums of codes, in the narrowest container that is exact for the exponents really present (NUMERICS §2).

Every finite value is an integer times 2**lsb. With W = largest less smallest exponent among the terms, p the precision
and c = ceil(log2(number of terms)), every partial sum of every order fits in W + p + c magnitude bits: int64 up to 63,
two limbs up to 127, buckets above. No float takes part in a sum, so no cast can round one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import Format

Codes = npt.NDArray[np.unsignedinteger[Any]]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Chunks = Callable[[slice], Iterator[Codes]]  # a range of the elements -> the terms there, 2-D (terms, elements)

FINITE, PLUS_ZERO, MINUS_ZERO, OTHER_ZERO, PLUS_INFINITY, MINUS_INFINITY, NAN = range(7)

CONTAINERS = {"int64": 63, "limbs": 127, "buckets": 1 << 62}  # magnitude bits
TERM_LIMIT = 1 << 20
BLOCK = 1 << 14  # elements that are worked on at once: the scratch arrays stay in the second-level cache
BUCKET_WORDS = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Exact sums, shape (n,) each. |x| = (sig + [sticky: something in (0, 1)]) * 2**exp.

    ``sig`` has its top bit set unless the sum is zero or not finite (then sig, exp and sticky are 0).
    ``kind``: 0 finite and not zero, 1 every term is +0, 2 every term is -0, 3 an exact zero of another kind, 4 +inf,
    5 -inf, 6 NaN.
    ``sticky`` is set only where the sum has more than 64 significant bits.
    """

    negative: Bools
    sig: U64
    exp: npt.NDArray[np.int32]
    sticky: Bools
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.sig)

    def __getitem__(self, index: Any) -> Sums:
        """The sums at a slice, a mask or an index array."""
        return Sums(self.negative[index], self.sig[index], self.exp[index], self.sticky[index], self.kind[index])

    def __setitem__(self, index: Any, part: Sums) -> None:
        for name in self.__slots__:
            getattr(self, name)[index] = getattr(part, name)

    @staticmethod
    def zeros(n: int) -> Sums:
        """``n`` sums of +0 terms."""
        bools = (np.zeros(n, np.bool_), np.zeros(n, np.bool_))
        kind = np.full(n, PLUS_ZERO, np.uint8)
        return Sums(bools[0], np.zeros(n, np.uint64), np.zeros(n, np.int32), bools[1], kind)


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
    (``int64``, ``limbs``, ``buckets``) forces a container; without it the narrowest exact one is taken for each block.
    Raises ValueError on no terms, too many, unequal shapes, a wrong dtype or a forced container that is not exact.
    """
    _check_terms(fmt, terms)
    n = len(terms[0])
    sums = Sums.zeros(n)
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        sums[part] = _sum_block(fmt, terms, part, container)
    return sums


def exact_sums_of_integers(values: I64, unit: int) -> Sums:
    """The numbers values * 2**unit as sums; shape (n,). Zeros get kind 3: an integer does not tell how they arose."""
    magnitude = np.abs(values).view(np.uint64)  # abs(-2**63) wraps to itself: 2**63 when unsigned
    return _from_words(values < 0, magnitude, np.zeros(1, np.uint64), unit - 64)


def _check_terms(fmt: Format, terms: Sequence[Codes]) -> None:
    if not 0 < len(terms) <= TERM_LIMIT:
        raise ValueError(f"{len(terms)} terms: exact sums are for 1 to {TERM_LIMIT} of them")
    shapes = {term.shape for term in terms}
    if len(shapes) != 1 or len(terms[0].shape) != 1:
        raise ValueError(f"terms must be 1-D and of one length, not {sorted(shapes)[:4]}")
    wrong = {str(term.dtype) for term in terms} - {str(fmt.dtype)}
    if wrong:
        raise ValueError(f"codes of {fmt.name} have dtype {fmt.dtype}, not {', '.join(sorted(wrong))}")


def _chunks(terms: Sequence[Codes], part: slice) -> Iterator[Codes]:
    """The terms at ``part``, as 2-D arrays (terms, elements); short terms are stacked, so that many stay cheap."""
    rows = max(1, BLOCK // max(1, part.stop - part.start))
    for first in range(0, len(terms), rows):
        group = [term[part] for term in terms[first : first + rows]]
        yield np.stack(group) if len(group) > 1 else group[0][None]


def _sum_block(fmt: Format, terms: Sequence[Codes], part: slice, container: str | None) -> Sums:
    low, high = _magnitude_range(fmt, _chunks(terms, part))
    special = high > fmt.max_code

    def finite(part: slice) -> Iterator[Codes]:
        for codes in _chunks(terms, part):
            yield (
                np.where(codes & _code(fmt, fmt.magnitude_mask) > fmt.max_code, _code(fmt, 0), codes)
                if special
                else codes
            )

    span = (_scale(fmt, low), max(_scale(fmt, low), _scale(fmt, min(high, fmt.max_code))))
    name = _container(fmt, span, len(terms), container)
    sums = {"int64": _int64, "limbs": _limbs, "buckets": _buckets}[name](fmt, finite, part, span)
    _mark_zeros(fmt, sums, _chunks(terms, part))
    if special:
        _mark_special(fmt, sums, _chunks(terms, part))
    return sums


def _scale(fmt: Format, magnitude: int) -> int:
    return max((magnitude >> fmt.mantissa_bits) - 1, 0)


def _container(fmt: Format, span: tuple[int, int], term_n: int, forced: str | None) -> str:
    bits = span[1] - span[0] + fmt.precision + (term_n - 1).bit_length()
    name = forced or next(name for name, room in CONTAINERS.items() if bits <= room)
    if bits > CONTAINERS[name]:
        raise ValueError(f"a sum here needs {bits} bits, {name} has {CONTAINERS[name]}")
    return name


def _code(fmt: Format, value: int) -> Any:
    return fmt.dtype.type(value)


def _magnitude_range(fmt: Format, chunks: Iterator[Codes]) -> tuple[int, int]:
    """Smallest non-zero and largest magnitude code; (0, 0) where there are only zeros."""
    low, high = 1 << fmt.bits, 0
    for codes in chunks:
        magnitude = codes & _code(fmt, fmt.magnitude_mask)
        high = max(high, int(magnitude.max(initial=0)))
        magnitude -= _code(fmt, 1)  # zero wraps to the top, so that the minimum passes over it
        low = min(low, int(magnitude.min(initial=(1 << fmt.bits) - 1)) + 1)
    return (low, high) if high else (0, 0)


def _scaled(fmt: Format, codes: Codes) -> tuple[npt.NDArray[Any], Codes]:
    """(signed significand, scale): value = significand * 2**(lsb + scale). Same width as the codes.

    With biased exponent e, scale = max(e, 1) - 1 and the significand is magnitude - (scale << mantissa_bits): for e > 0
    that leaves the hidden bit standing, for subnormals scale is 0.
    """
    magnitude = codes & _code(fmt, fmt.magnitude_mask)
    scale = magnitude >> _code(fmt, fmt.mantissa_bits)
    scale -= scale != 0
    magnitude -= scale << _code(fmt, fmt.mantissa_bits)
    signed = np.dtype(f"i{fmt.itemsize}")
    sign = codes.view(signed) >> signed.type(fmt.bits - 1)  # 0 or -1
    significand = magnitude.view(signed)
    significand ^= sign
    significand -= sign
    return significand, scale


def _int64(fmt: Format, chunks: Chunks, part: slice, span: tuple[int, int]) -> Sums:
    total = np.zeros(part.stop - part.start, np.uint64)
    for codes in chunks(part):
        significand, scale = _scaled(fmt, codes)
        scale -= _code(fmt, span[0])  # wraps for a zero, which no shift changes
        value = significand.astype(np.int64).view(np.uint64)  # shifting the two's complement pattern multiplies it
        value <<= scale
        total += value.sum(axis=0) if len(value) > 1 else value[0]
    return exact_sums_of_integers(total.view(np.int64), fmt.lsb + span[0])


def _limbs(fmt: Format, chunks: Chunks, part: slice, span: tuple[int, int]) -> Sums:
    """Signed sums modulo 2**128 in (upper, lower). A negative term is added as its complement, plus 1."""
    lower = upper = np.zeros(1, np.uint64)
    for codes in chunks(part):
        for row in codes:
            significand, scale = _scaled(fmt, row)
            shift = scale.astype(np.uint64) - np.uint64(span[0])  # wraps for a zero, which no shift changes
            flip = (significand.astype(np.int64) >> np.int64(63)).view(np.uint64)
            size = np.abs(significand).astype(np.uint64)
            # NumPy gives 0 for a shift of 64 or more, and the counts wrap to huge ones where a part is empty.
            below = (size << shift) ^ flip
            above = ((size >> (np.uint64(64) - shift)) | (size << (shift - np.uint64(64)))) ^ flip
            lower, upper = _add128(lower, upper, below, above)
            lower, upper = _add128(lower, upper, flip & np.uint64(1), np.zeros(1, np.uint64))
    negative = upper.view(np.int64) < 0
    flip = negative.astype(np.uint64) * np.uint64((1 << 64) - 1)
    lower, upper = _add128(lower ^ flip, upper ^ flip, negative.astype(np.uint64), np.zeros(1, np.uint64))
    return _from_words(negative, upper, lower, fmt.lsb + span[0])


def _add128(lower: U64, upper: U64, part: U64, above: U64) -> tuple[U64, U64]:
    total = lower + part
    return total, upper + above + (total < part)


def _from_words(negative: Bools, upper: U64, lower: U64, unit: int) -> Sums:
    """Sums from magnitudes (upper * 2**64 + lower) * 2**unit."""
    alone = upper == 0
    top = np.where(alone, lower, upper)
    rest = np.where(alone, np.uint64(0), lower)
    lead = leading_zeros(top)
    shift = lead.astype(np.uint64)
    sig = (top << shift) | (rest >> (np.uint64(64) - shift))
    zero = sig == 0
    exp = np.where(zero, 0, np.where(alone, unit, unit + 64) - lead).astype(np.int32)
    return Sums(negative & ~zero, sig, exp, (rest << shift) != 0, np.where(zero, OTHER_ZERO, FINITE).astype(np.uint8))


def leading_zeros(words: U64) -> npt.NDArray[np.int64]:
    """Leading zero bits of each 64-bit word; 64 for zero."""
    # Without the bit below each set bit the word is under 1.5 times its leading power of two, so that the conversion to
    # binary64 cannot carry into the next binade: its exponent field is then that of the leading bit.
    field = (words & ~(words >> np.uint64(1))).astype(np.float64).view(np.int64) >> np.int64(52)
    return np.where(words == 0, np.int64(64), np.int64(63 + 1023) - field)


def _buckets(fmt: Format, chunks: Chunks, part: slice, span: tuple[int, int]) -> Sums:
    """Sums over the full range: m * 2**s is added as m << (s % stride) to bucket s // stride; carries move at the end.

    A bucket has room for 2**20 terms: bfloat16 8 + 31 bits, binary16 11 + 31, binary32 24 + 15; binary64 is cut into
    26 and 27 bits, so 27 + 15, and the two pieces of a term may meet in one bucket.
    """
    stride = 32 if fmt.precision <= 11 else 16
    spare = 64 // stride  # what 2**63 in the top bucket spills into
    bucket_n = (span[1] - span[0] + 26) // stride + 1 + spare
    bucket_n += bucket_n % 2
    sums = Sums.zeros(part.stop - part.start)
    width = max(1, BUCKET_WORDS // bucket_n)
    for start in range(part.start, part.stop, width):
        piece = slice(start, min(start + width, part.stop))
        buckets = np.zeros((bucket_n, piece.stop - start), np.int64)
        for codes in chunks(piece):
            _add_to_buckets(fmt, buckets, codes, span[0], stride)
        sums[piece.start - part.start : piece.stop - part.start] = _from_buckets(buckets, stride, fmt.lsb + span[0])
    return sums


def _add_to_buckets(fmt: Format, buckets: I64, codes: Codes, low: int, stride: int) -> None:
    significand, scale = _scaled(fmt, codes)
    place = scale.astype(np.int64) - low
    place[significand == 0] = 0
    value = significand.astype(np.int64)
    column = np.broadcast_to(np.arange(codes.shape[1]), codes.shape)
    pieces = [(value, place)]
    if fmt.precision > 32:
        upper = value >> np.int64(26)  # floor, so that the lower piece is not negative
        pieces = [(value - (upper << np.int64(26)), place), (upper, place + 26)]
    for piece, at in pieces:
        index = (at // stride) * buckets.shape[1] + column
        np.add.at(buckets.reshape(-1), index.reshape(-1), (piece << (at % stride)).reshape(-1))


def _carry(buckets: I64, stride: int) -> I64:
    """Digits of ``stride`` bits, not negative, and the sign (0 or -1) in the last row."""
    digits = buckets.copy()
    for row in range(len(digits) - 1):
        digits[row + 1] += digits[row] >> np.int64(stride)
        digits[row] &= np.int64((1 << stride) - 1)
    return digits


def _from_buckets(buckets: I64, stride: int, unit: int) -> Sums:
    negative = _carry(buckets, stride)[-1] < 0
    digits = _carry(np.where(negative, -buckets, buckets), stride).view(np.uint64)
    if stride == 16:
        digits = digits[0::2] | (digits[1::2] << np.uint64(16))
    column = np.arange(digits.shape[1])
    digits = np.concatenate(
        [np.zeros((2, len(column)), np.uint64), digits]
    )  # two rows below, so that the top has neighbours
    used = digits != 0
    top = np.maximum(len(digits) - 1 - used[::-1].argmax(axis=0), 2)
    word = (digits[top, column] << np.uint64(32)) | digits[top - 1, column]
    below = digits[top - 2, column] << np.uint64(32)
    sums = _from_words(negative, word, below, 0)
    exp = np.where(sums.sig == 0, 0, sums.exp + unit + 32 * (top - 3) - 64).astype(np.int32)
    sticky = sums.sticky | (used.argmax(axis=0) < top - 2)
    return Sums(sums.negative, sums.sig, exp, sticky & (sums.sig != 0), sums.kind)


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
        magnitude = codes & _code(fmt, fmt.magnitude_mask)
        infinite = (magnitude == fmt.overflow_code) & fmt.has_infinity
        negative = (codes & _code(fmt, fmt.sign_mask)) != 0
        nan = nan | ((magnitude > fmt.max_code) & ~infinite).any(axis=0)
        plus = plus | (infinite & ~negative).any(axis=0)
        minus = minus | (infinite & negative).any(axis=0)
    special = plus | minus | nan
    sums.kind[special] = np.select([nan | (plus & minus), plus], [NAN, PLUS_INFINITY], MINUS_INFINITY)[special]
    for name in ("negative", "sig", "exp", "sticky"):
        getattr(sums, name)[special] = 0
