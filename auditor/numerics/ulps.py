"""How far apart two codes lie: steps on the number line of one format (NUMERICS §3.1, ``ulp_steps``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import Format

U64 = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


def is_nan(fmt: Format, codes: Codes) -> npt.NDArray[np.bool_]:
    """Which codes, shape (n,), are NaN."""
    first = fmt.overflow_code + (1 if fmt.has_infinity else 0)
    return np.asarray((codes & fmt.dtype.type(fmt.magnitude_mask)) >= fmt.dtype.type(first), np.bool_)


def ulp_steps(fmt: Format, a: Codes, b: Codes) -> U64:
    """Steps between the values of two arrays of codes, shape (n,): +0 and -0 are one point, infinity is one step past the
    maximum. What a NaN is compared with has no distance: leave it out (:func:`is_nan`).
    """
    mask = fmt.dtype.type(fmt.magnitude_mask)
    x, y = ((codes & mask).astype(np.uint64) for codes in (a, b))
    opposed = (a > mask) != (b > mask)
    # Magnitudes have 63 bits at most, so that neither the sum nor the difference leaves 64.
    return np.asarray(np.where(opposed, x + y, np.maximum(x, y) - np.minimum(x, y)), np.uint64)


@dataclass(slots=True)
class Distances:
    """Distances of many pairs of codes, each distance counted."""

    values: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    nan: int = 0  # pairs in which either is NaN

    def add(self, fmt: Format, a: Codes, b: Codes) -> None:
        """Count the pairs of two arrays of codes, shape (n,)."""
        numbers = ~(is_nan(fmt, a) | is_nan(fmt, b))
        self.nan += int((~numbers).sum())
        found, times = np.unique(ulp_steps(fmt, a[numbers], b[numbers]), return_counts=True)
        self.values, where = np.unique(np.concatenate([self.values, found]), return_inverse=True)
        counts = np.zeros(len(self.values), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, times]))
        self.counts = counts

    @property
    def pairs(self) -> int:
        """Pairs that have a distance."""
        return int(self.counts.sum())

    @property
    def most(self) -> int:
        return int(self.values[-1]) if len(self.values) else 0

    @property
    def median(self) -> int:
        """The lower median; 0 where nothing was counted."""
        if not len(self.values):
            return 0
        return int(self.values[np.searchsorted(np.cumsum(self.counts), (self.pairs + 1) // 2)])

    def histogram(self) -> dict[str, int]:
        """Pairs by distance: ``0`` (zeros of unlike sign), ``1``, ``2``, ``3-4``, ``5-8``, ...; empty ends are left out."""
        if not len(self.values):
            return {}
        edges = [0, 1, 2]
        while edges[-1] < self.most:
            edges.append(edges[-1] * 2)
        bins = np.searchsorted(np.array(edges, np.uint64), self.values)  # first edge that is not below the value
        totals = np.bincount(bins, weights=self.counts, minlength=len(edges)).astype(np.int64)
        names = [str(e) if e < 3 else f"{edges[i - 1] + 1}-{e}" for i, e in enumerate(edges)]
        used = np.flatnonzero(totals)
        return {names[i]: int(totals[i]) for i in range(used[0], used[-1] + 1)}

    def measure(self) -> dict[str, Any]:
        """``max``, ``median``, ``histogram``; ``nan`` where there is any."""
        told: dict[str, Any] = {"max": self.most, "median": self.median, "histogram": self.histogram()}
        return {**told, "nan": self.nan} if self.nan else told
