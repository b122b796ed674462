"""The numeric formats, as rows of one table. Every property is derived; nothing else knows a width or a bias.

Source: IEEE 754-2019 (binary16/32/64), the OCP 8-bit specification (float8_e4m3fn, float8_e5m2), bfloat16 as the upper half of
binary32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format whose magnitude codes are ordered like their values, so the neighbour above code c is c + 1.

    ``precision`` counts the hidden bit. ``has_infinity`` False: the all-ones code is the only NaN and max + 1 ulp is that NaN.
    """

    name: str
    bits: int
    precision: int
    emin: int
    emax: int
    has_infinity: bool = True

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of a code."""
        return np.dtype(f"u{self.itemsize}")

    @property
    def mantissa_bits(self) -> int:
        return self.precision - 1

    @property
    def bias(self) -> int:
        return 1 - self.emin

    @property
    def lsb(self) -> int:
        """Exponent of the smallest subnormal: every finite value is an integer times 2**lsb."""
        return self.emin - self.precision + 1

    @property
    def sign_mask(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def magnitude_mask(self) -> int:
        return self.sign_mask - 1

    @property
    def overflow_code(self) -> int:
        """Magnitude code just above the largest finite one: infinity, or NaN where there is no infinity."""
        if not self.has_infinity:
            return self.magnitude_mask
        return (self.emax + self.bias + 1) << self.mantissa_bits

    @property
    def max_code(self) -> int:
        """Magnitude code of the largest finite value."""
        return self.overflow_code - 1

    @property
    def nan_code(self) -> int:
        """A quiet NaN."""
        return self.overflow_code | (1 << (self.mantissa_bits - 1)) if self.has_infinity else self.magnitude_mask

    def power_of_two(self, exponent: int) -> int:
        """Code of 2**exponent, normal or subnormal. Raises ValueError where it is out of range."""
        if not self.lsb <= exponent <= self.emax:
            raise ValueError(f"2**{exponent} is outside {self.name}")
        if exponent < self.emin:
            return 1 << (exponent - self.lsb)
        return (exponent + self.bias) << self.mantissa_bits


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("binary64", 64, 53, -1022, 1023),
        Format("binary32", 32, 24, -126, 127),
        Format("binary16", 16, 11, -14, 15),
        Format("bfloat16", 16, 8, -126, 127),
        Format("float8_e4m3fn", 8, 4, -6, 8, has_infinity=False),
        Format("float8_e5m2", 8, 3, -14, 15),
    )
}
