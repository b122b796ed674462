"""Codes as float64 values, where reading them off is exact: every finite value of every format is one.

Only for naming what went wrong; what is right comes from exact integers (``expected``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.formats import Format

F64 = npt.NDArray[np.float64]


def to_float64(fmt: Format, codes: Codes) -> F64:
    """The values, exactly; NaN and infinities as such. Same shape."""
    if fmt.name in ("binary16", "binary32", "binary64"):
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes quiet
            return codes.view(f"f{fmt.itemsize}").astype(np.float64)
    magnitude = (codes & codes.dtype.type(fmt.magnitude_mask)).astype(np.int64)
    scale = np.maximum((magnitude >> fmt.mantissa_bits) - 1, 0)
    values: Any = np.ldexp(
        (magnitude - (scale << fmt.mantissa_bits)).astype(np.float64), (scale + fmt.lsb).astype(np.int32)
    )
    above = np.where((magnitude == fmt.overflow_code) & fmt.has_infinity, np.inf, np.nan)
    values = np.where(magnitude > fmt.max_code, above, values)
    negative = (codes & codes.dtype.type(fmt.sign_mask)) != 0
    return np.asarray(np.where(negative, -values, values), np.float64)


def trailing_exponent(values: F64) -> npt.NDArray[np.int32]:
    """Exponent of the lowest set bit: values are odd integers times 2**this; 2**14 for zero. Values must be finite."""
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(np.abs(mantissa), 53).astype(np.int64)
    low = np.log2((whole & -whole).astype(np.float64), where=whole != 0, out=np.zeros(whole.shape)).astype(np.int32)
    return np.where(whole == 0, np.int32(1 << 14), exponent.astype(np.int32) - 53 + low)
