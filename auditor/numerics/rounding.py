"""Rounding an exact value once, in every mode of DESIGN §7: a scalar reference on integers and an array twin.

NUMERICS §0 gives the vocabulary: lo and hi are the neighbours of |x| in magnitude, rem how far between them |x| lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics import exact
from auditor.numerics.exact import Codes, Sums, kind_reference
from auditor.numerics.formats import Format

MODES = ("ties_to_even", "ties_to_away", "toward_zero", "toward_positive", "toward_negative", "away_from_zero")


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Exact sums seen from one output format. All arrays have the same shape (n,).

    ``finite``: the sum is finite (NaN and infinities: other fields are zero, see ``special``).
    ``lo``: magnitude code at or below |x| (code dtype of the format); the neighbour above is ``lo + 1``; never above
    ``max_code``.
    ``rem``: floor of (|x| - lo) / gap in units of 2**-64, uint64; ``sticky``: more non-zero bits lie below. Sums carry their
    64 leading bits, so of a sum with more (then it is sticky) the 64 - precision upper bits of rem are true.
    ``past_max``: |x| lies at or above the value that max_code + 1 ulp would have; then lo = max_code, rem = 2**64 - 1,
    sticky.
    ``special``: code of the result where it does not depend on rounding a non-zero value: NaN, infinities; 0 elsewhere.
    ``zero``: 0 not zero, 1 every term is +0, 2 every term is -0, 3 an exact zero of another kind.
    """

    lo: npt.NDArray[Any]
    rem: npt.NDArray[np.uint64]
    sticky: npt.NDArray[np.bool_]
    negative: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]
    past_max: npt.NDArray[np.bool_]
    special: npt.NDArray[Any]
    zero: npt.NDArray[np.uint8]

    @property
    def inexact(self) -> npt.NDArray[np.bool_]:
        return np.not_equal(self.rem, 0) | self.sticky

    def __len__(self) -> int:
        return len(self.rem)


Bools = npt.NDArray[np.bool_]
HALF = np.uint64(1 << 63)
BLOCK = 1 << 14  # elements that are worked on at once: the scratch arrays stay in the second-level cache


def round_reference(fmt: Format, numerator: int, exponent: int, mode: str, *, negative_zero: bool = False) -> int:
    """Code of numerator * 2**exponent, rounded once to ``fmt``; Python integers only.

    A zero numerator gives +0, or -0 where ``negative_zero``. Overflow goes to the code above the largest finite one.
    Raises ValueError on an unknown mode.
    """
    check_mode(mode)
    size, negative = abs(numerator), numerator < 0
    if size == 0:
        return fmt.sign_mask if negative_zero else 0
    lead = size.bit_length() - 1 + exponent
    drop = (
        max(lead - fmt.precision + 1, fmt.lsb) - exponent
    )  # gradual underflow: the gap is never under the smallest subnormal
    kept, rest = (size >> drop, size & ((1 << drop) - 1)) if drop > 0 else (size << -drop, 0)
    lo = (max(lead - fmt.emin, 0) << fmt.mantissa_bits) + kept
    twice, gap = (2 * rest, 1 << drop) if drop > 0 else (0, 1)
    if lo > fmt.max_code:
        lo, twice, gap = fmt.max_code, 3, 2  # at or past max + gap: like an inexact value nearer to the upper neighbour
    up = {
        "ties_to_even": twice > gap or (twice == gap and lo % 2 == 1),
        "ties_to_away": twice >= gap,
        "toward_zero": False,
        "toward_positive": twice > 0 and not negative,
        "toward_negative": twice > 0 and negative,
        "away_from_zero": twice > 0,
    }[mode]
    return (lo + up) | (fmt.sign_mask if negative else 0)


def sum_reference(fmt: Format, codes: Sequence[int], mode: str, *, to: Format | None = None) -> int:
    """Code of the exact sum of any codes of ``fmt``, specials included, rounded once to ``to`` (else ``fmt``)."""
    to = to or fmt
    kind = kind_reference(fmt, codes)
    if kind >= exact.PLUS_INFINITY:
        return special_code(to, kind)
    minus = kind == exact.MINUS_ZERO or (kind == exact.OTHER_ZERO and mode == "toward_negative")
    return round_reference(to, *exact.exact_sum_reference(fmt, codes), mode, negative_zero=minus)


def check_mode(mode: str) -> None:
    """Raises ValueError where ``mode`` is none of :data:`MODES`."""
    if mode not in MODES:
        raise ValueError(f"unknown rounding mode {mode!r}; one of {', '.join(MODES)}")


def special_code(fmt: Format, kind: int) -> int:
    """Code for a sum of kind +inf, -inf or NaN (4, 5, 6); a format without infinities gives its NaN with that sign."""
    if kind == exact.NAN:
        return fmt.nan_code
    return fmt.overflow_code | (fmt.sign_mask if kind == exact.MINUS_INFINITY else 0)


def split(fmt: Format, sums: Sums) -> Split:
    """The sums as seen from ``fmt``: lo, rem and what else a rounding decision can depend on. Shape (n,)."""
    n = len(sums)
    out = Split(
        lo=np.empty(n, fmt.dtype),
        rem=np.empty(n, np.uint64),
        sticky=np.empty(n, np.bool_),
        negative=np.empty(n, np.bool_),
        finite=np.empty(n, np.bool_),
        past_max=np.empty(n, np.bool_),
        special=np.zeros(n, fmt.dtype),
        zero=np.empty(n, np.uint8),
    )
    for start in range(0, n, BLOCK):
        _split_block(fmt, sums, out, slice(start, start + BLOCK))
    return out


def _split_block(fmt: Format, sums: Sums, out: Split, part: slice) -> None:
    kind, sig = sums.kind[part], sums.sig[part]
    # sig has 64 bits, so |x| lies in [2**lead, 2**(lead + 1)); beyond emax + 1 only the fact of overflow counts.
    lead = np.minimum(sums.exp[part].astype(np.int64) + 63, fmt.emax + 1)
    drop = 64 - fmt.precision + np.maximum(fmt.emin - lead, 0)  # bits of sig below the gap
    drop = np.minimum(drop, 128).astype(np.uint64)
    over = np.maximum(drop, np.uint64(64)) - np.uint64(64)  # more than all of sig is dropped
    # NumPy gives 0 for a shift of 64 or more, and 64 - drop wraps to a huge count where over > 0.
    rem = (sig << (np.uint64(64) - drop)) | np.where(over != 0, sig >> over, np.uint64(0))
    sticky = sums.sticky[part] | ((sig << (np.uint64(64) - over)) != 0)
    lo = (np.maximum(lead - fmt.emin, 0).astype(np.uint64) << np.uint64(fmt.mantissa_bits)) + (sig >> drop)
    number = kind == exact.FINITE
    past = (lo > np.uint64(fmt.max_code)) & number
    out.past_max[part] = past
    out.lo[part] = np.where(past, np.uint64(fmt.max_code), np.where(number, lo, np.uint64(0)))
    out.rem[part] = np.where(past, np.uint64((1 << 64) - 1), np.where(number, rem, np.uint64(0)))
    out.sticky[part] = (sticky & number) | past
    out.negative[part] = sums.negative[part]
    out.finite[part] = kind < exact.PLUS_INFINITY
    out.zero[part] = np.where(kind < exact.PLUS_INFINITY, kind, 0)
    for special in (exact.PLUS_INFINITY, exact.MINUS_INFINITY, exact.NAN):
        out.special[part][kind == special] = special_code(fmt, special)


def up_by_mode(mode: str, split: Split) -> Bools:
    """Whether |x| goes to lo + 1 under one of :data:`MODES`. Shape (n,). Raises ValueError on an unknown mode."""
    check_mode(mode)
    up: Bools = np.zeros(len(split), np.bool_)
    if mode == "ties_to_even":
        odd = (split.lo & split.lo.dtype.type(1)) != 0
        up = (split.rem > HALF) | ((split.rem == HALF) & (split.sticky | odd))
    elif mode == "ties_to_away":
        up = split.rem >= HALF
    elif mode == "away_from_zero":
        up = split.inexact
    elif mode != "toward_zero":
        up = split.inexact & (split.negative == (mode == "toward_negative"))
    return up


def up_by_noise(split: Split, noise: npt.NDArray[np.uint64]) -> Bools:
    """Whether rem + noise >= 1, noise in units of 2**-64 (so under 1). Shape (n,).

    Noise is a whole number of units, so what lies below rem's last true bit (``sticky``) cannot decide: exact for every sum
    of at most 64 significant bits, and for any sum where the noise is a multiple of 2**-(64 - precision). Past the maximum
    rem is 1 or more.
    """
    return (split.rem + noise < noise) | split.past_max


def join(fmt: Format, split: Split, up: Bools, *, negative_zero: bool = False) -> Codes:
    """Codes of lo, or of lo + 1 where ``up``, with signs, zeros, infinities and NaN put back. Shape (n,).

    ``negative_zero``: an exact zero of operands that are not all +0 is -0 (mode toward_negative; IEEE 754-2019, 6.3).
    """
    codes = split.lo + up.astype(fmt.dtype)
    minus = split.negative | (split.zero == exact.MINUS_ZERO)
    if negative_zero:
        minus = minus | (split.zero == exact.OTHER_ZERO)
    codes |= minus.astype(fmt.dtype) << fmt.dtype.type(fmt.bits - 1)
    return np.where(split.finite, codes, split.special)


def round_sums(fmt: Format, sums: Sums, mode: str) -> Codes:
    """Codes of the sums, rounded once to ``fmt``. Shape (n,). Raises ValueError on an unknown mode."""
    seen = split(fmt, sums)
    return join(fmt, seen, up_by_mode(mode, seen), negative_zero=mode == "toward_negative")


def convert(source: Format, codes: Codes, target: Format, mode: str) -> Codes:
    """A cast: each code of ``source`` rounded once to ``target``. NaN gives ``target``'s quiet NaN."""
    return round_sums(target, exact.exact_sums(source, [codes]), mode)
