"""Rounding an exact value once, in every mode of DESIGN §7: a scalar reference on integers and an array twin.

NUMERICS §0 gives the vocabulary: lo and hi are the neighbours of |x| in magnitude, rem how far between them |x| lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MODES = ("ties_to_even", "ties_to_away", "toward_zero", "toward_positive", "toward_negative", "away_from_zero")


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Exact sums seen from one output format. All arrays have the same shape (n,).

    ``finite``: the sum is finite (NaN and infinities: other fields are zero, see ``special``).
    ``lo``: magnitude code at or below |x| (code dtype of the format); the neighbour above is ``lo + 1``; never above ``max_code``.
    ``rem``: floor of (|x| - lo) / gap in units of 2**-64, uint64; ``sticky``: more non-zero bits lie below.
    ``past_max``: |x| lies at or above the value that max_code + 1 ulp would have; then lo = max_code, rem = 2**64 - 1, sticky.
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
        return (self.rem != 0) | self.sticky
