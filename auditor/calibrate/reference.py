"""What outputs are judged against: the exact sums, or a binary64 result, as integers seen from the output format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.exact import Sums, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import Split, join, split, up_by_mode
from auditor.numerics.ulp_error import gap_scale
from auditor.probes.values import F64, to_float64

ROWS = 256  # rows whose magnitudes are added at a time
EXACT, FLOAT64 = "exact", "float64"
UNIT64 = 2.0**-53


@dataclass(frozen=True, eq=False)
class Reference:
    """The values, element by element; shape (n,).

    ``kind``: ``exact``, ``float64``, or the function that gave it. ``magnitude``: the sum of the terms' magnitudes, None where
    the terms are not known. ``roundings``: how many roundings a term may pass on its way into the output (terms - 1 for a sum).
    """

    fmt: Format
    kind: str
    sums: Sums
    magnitude: F64 | None = None
    roundings: int = 0

    def __len__(self) -> int:
        return len(self.sums)

    def at(self, index: Any) -> Reference:
        """The reference of some elements."""
        magnitude = None if self.magnitude is None else self.magnitude[index]
        return Reference(self.fmt, self.kind, self.sums[index], magnitude, self.roundings)

    @cached_property
    def split(self) -> Split:
        """The values seen from the output format."""
        return split(self.fmt, self.sums)

    @cached_property
    def nearest(self) -> Codes:
        """The values rounded once, ties to even: what steps are counted from."""
        return join(self.fmt, self.split, up_by_mode("ties_to_even", self.split))

    @cached_property
    def ulp(self) -> F64:
        """One ulp at each value, as Harrison defines it."""
        scale = (gap_scale(self.fmt, self.split) + self.fmt.lsb).astype(np.int32)
        return np.asarray(np.ldexp(1.0, scale), np.float64)

    @cached_property
    def value(self) -> F64:
        """The values in binary64, for the rules that are stated in terms of differences of numbers."""
        above = to_float64(self.fmt, self.split.lo) + self.split.rem.astype(np.float64) * 2.0**-64 * self.ulp
        value = np.where(self.split.negative, -above, above)
        return np.where(self.split.finite, value, to_float64(self.fmt, self.split.special))

    @cached_property
    def condition(self) -> F64 | None:
        """Sum of magnitudes over magnitude of the sum: 1 where nothing cancels, infinite where everything does."""
        if self.magnitude is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.magnitude == 0, 1.0, self.magnitude / np.abs(self.value))

    def uncertainty_ulp(self) -> float:
        """How far a binary64 sum may itself be from the exact one, at worst, in ulp of the output format; 0 for an exact one.

        Each of its additions errs by at most 2**-53 of a partial sum, and no partial sum exceeds the sum of magnitudes.
        NaN where the terms are not known.
        """
        if self.kind == EXACT:
            return 0.0
        if self.magnitude is None:
            return float("nan")
        return float(np.max(self.roundings * UNIT64 * self.magnitude / self.ulp, initial=0.0))


def of_rows(fmt: Format, rows: npt.NDArray[Any], kind: str) -> Reference:
    """The sums over the first axis of ``rows``, shape (terms, n), dtype the format's; ``kind``: ``exact`` or ``float64``."""
    in_integers = kind == EXACT
    sums = (
        exact_sums(fmt, list(rows.view(fmt.dtype))) if in_integers else sums_of_float64(rows.sum(axis=0, dtype=float))
    )
    return Reference(fmt, kind, sums, magnitudes(rows), len(rows) - 1)


def magnitudes(rows: npt.NDArray[Any]) -> F64:
    """Sums of magnitudes over the first axis, in binary64."""
    total = np.zeros(rows.shape[1], np.float64)
    for start in range(0, len(rows), ROWS):
        total += np.abs(rows[start : start + ROWS]).sum(axis=0, dtype=np.float64)
    return total


def sums_of_float64(values: F64) -> Sums:
    """Binary64 values as exact numbers; shape (n,)."""
    fmt = FORMATS["binary64"]
    return exact_sums(fmt, [np.ascontiguousarray(values, np.float64).view(fmt.dtype)])
