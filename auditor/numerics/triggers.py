"""Sums that differ in one bit of their word, and sums that one bit of noise tips: what is put beside a range, and into it.

NUMERICS §1.5 puts sums of 1 + 7/8 ulp beside sums of 1.0 and of 1.75: that decides where a rounding takes noise from the two top
mantissa bits of its neighbours. Here every bit of the neighbour's binary32 word has its turn, beside sums so close to the next
number that a bit of weight 2**-precision tips them; so whichever bit a rule reads, some pair of calls shows it.
"""

from __future__ import annotations

from auditor.numerics.formats import Format

WORD_BITS, BIAS = 23, 127  # mantissa bits and bias of binary32, in whose word partial sums are kept
BASE, ALL, SIGN = "0", "all", "s"


def exponent(fmt: Format) -> int:
    """Of the sums, such that the last bits of their word are normal numbers of the format as far as it reaches."""
    return min(max(-1, fmt.emin + WORD_BITS), fmt.emax - 1)


def bits(fmt: Format) -> tuple[str, ...]:
    """Bits that can be set or turned alone in a sum of two terms: ``s``, ``e7`` to ``e0``, ``b22`` to ``b0``. None for formats as
    wide as that word.
    """
    if fmt.mantissa_bits >= WORD_BITS:
        return ()
    e = exponent(fmt)
    exponents = [k for k in range(7, -1, -1) if fmt.emin <= ((e + BIAS) ^ (1 << k)) - BIAS <= fmt.emax]
    mantissa = [k for k in range(WORD_BITS - 1, -1, -1) if e + k - WORD_BITS >= fmt.emin]
    return (SIGN, *(f"e{k}" for k in exponents), *(f"b{k}" for k in mantissa))


def beside(fmt: Format, name: str) -> tuple[int, int] | None:
    """Codes of two contributors whose sum is 2**exponent (``0``); the same with one of :func:`bits` turned; or with the sign, the
    lowest exponent bit and as many mantissa bits turned as two terms hold (``all``). None where there is no such sum.
    """
    e = exponent(fmt)
    base = fmt.power_of_two(e)
    if name == BASE:
        return base, 0
    if name == ALL and bits(fmt):
        other = ((e + BIAS) ^ 1) - BIAS
        ones, low = (1 << fmt.mantissa_bits) - 1, other - fmt.precision
        high = min(fmt.power_of_two(other) | ones, fmt.max_code)
        return fmt.sign_mask | high, fmt.sign_mask | fmt.power_of_two(low) | ones if low >= fmt.emin else 0
    if name not in bits(fmt):
        return None
    if name == SIGN:
        return base | fmt.sign_mask, 0
    k = int(name[1:])
    if name[0] == "e":
        return fmt.power_of_two(((e + BIAS) ^ (1 << k)) - BIAS), 0
    own = k - (WORD_BITS - fmt.mantissa_bits)  # which bit of the format's own mantissa
    return (base | 1 << own, 0) if own >= 0 else (base, fmt.power_of_two(e + k - WORD_BITS))


def tipped(fmt: Format, rem: str) -> tuple[int, int] | None:
    """Codes of two contributors whose sum lies 2**-precision of a gap below the next number (``high``), or as much above the
    last one (``low``). None where the smaller term would not be normal, or for another name.
    """
    e, p = exponent(fmt), fmt.precision
    small = {"high": e - p, "low": e - 2 * p + 1}.get(rem)
    if small is None or small < fmt.emin:
        return None
    code = fmt.power_of_two(small)
    return fmt.power_of_two(e), code | ((1 << fmt.mantissa_bits) - 1) if rem == "high" else code
