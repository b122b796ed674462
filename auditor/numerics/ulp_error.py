"""The error of an output against an exact value, as a real number of ulp, and codes as places on the number line.

Beside the whole steps of :mod:`auditor.numerics.ulps`, because one number does not do for both: steps tell neighbours apart and
count codes, but a step just below a power of two is half as large as one above it; a real distance is smooth there, but is no
count. Never normalised by the output's own gap, for the output may lie in the next binade.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.containers import Codes, code_of, magnitude_of, scale_of
from auditor.numerics.formats import Format
from auditor.numerics.rounding import Split

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def ordinals(fmt: Format, codes: Codes) -> I64:
    """Places on the number line: both zeros are 0, each code is one from its neighbours; infinity is one past the largest finite
    code. NaN has no place: leave it out.
    """
    magnitude = magnitude_of(fmt, codes).astype(np.int64)
    return np.where((codes & code_of(fmt, fmt.sign_mask)) != 0, -magnitude, magnitude)


def from_ordinals(fmt: Format, places: I64) -> Codes:
    """The codes at those places; what lies past the code above the largest finite one (infinity, or NaN) stays there."""
    magnitude = np.minimum(np.abs(places), fmt.overflow_code).astype(fmt.dtype)
    codes: Codes = magnitude | np.where(places < 0, code_of(fmt, fmt.sign_mask), code_of(fmt, 0))
    return codes


def gap_scale(fmt: Format, split: Split) -> npt.NDArray[np.int64]:
    """Scale s of each exact value's ulp: it is 2**(lsb + s), s = -1 included.

    Harrison's ulp: the distance of the two floats that the value lies between; for a value that is a float, the distance to
    the nearest one, which at a power of two is the one below (J.-M. Muller, On the definition of ulp(x), RR-5504, 2005).
    """
    scale = scale_of(fmt, split.lo).astype(np.int64)
    at_power = ((split.lo & code_of(fmt, (1 << fmt.mantissa_bits) - 1)) == 0) & (scale > 0)
    gaps: npt.NDArray[np.int64] = scale - (at_power & ~split.inexact)
    return gaps


def err_ulp(fmt: Format, codes: Codes, split: Split) -> F64:
    """(|output| - |exact|) / ulp(exact), signed in magnitude: positive away from zero. ``split``: the exact values seen from
    ``fmt``.

    An output of the other sign counts as a negative magnitude. NaN where either side is NaN or infinite, or the exact value
    lies past the largest finite one. Exact sums keep 64 leading bits, so the difference is right to 2**(precision - 64) ulp: of
    binary64 to 2**-11.
    """
    magnitude = magnitude_of(fmt, codes)
    gap = gap_scale(fmt, split)
    out, low = (_in_gaps(fmt, side, gap) for side in (magnitude, split.lo))
    flipped = ((codes & code_of(fmt, fmt.sign_mask)) != 0) != split.negative
    error = np.where(flipped, -out, out) - low - split.rem.astype(np.float64) * 2.0**-64
    known = split.finite & ~split.past_max & (magnitude <= code_of(fmt, fmt.max_code))
    return np.where(known, error, np.nan)


def _in_gaps(fmt: Format, magnitude: Codes, gap: npt.NDArray[np.int64]) -> F64:
    scale = scale_of(fmt, magnitude)
    significand: Any = (magnitude - (scale << code_of(fmt, fmt.mantissa_bits))).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(significand, (scale.astype(np.int64) - gap).astype(np.int32)), np.float64)
