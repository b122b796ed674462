"""Two recorded outputs of the same call side by side, piece by piece: memory does not grow with their length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.formats import Format
from auditor.numerics.ulps import is_nan, ulp_steps

WORD = 16  # bytes
SAMPLE = 256  # differing elements of an output that are kept with their codes
BINS = 66  # by distance: 0, 1, 2, 3-4, 5-8, ..., up to 2**64 - 1
Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Apart:
    """Distances of many pairs of codes in bins of fixed number, so that it stays small whatever the distances are."""

    bins: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))
    most: int = 0
    nan: int = 0  # pairs in which either is NaN

    def add(self, fmt: Format, a: Codes, b: Codes) -> None:
        """Count the pairs of two arrays of codes, shape (n,)."""
        numbers = ~(is_nan(fmt, a) | is_nan(fmt, b))
        steps = ulp_steps(fmt, a[numbers], b[numbers])
        self.nan += len(a) - len(steps)
        if len(steps):
            self.bins += np.bincount(np.searchsorted(_EDGES, steps), minlength=BINS)
            self.most = max(self.most, int(steps.max()))

    def merge(self, other: Apart) -> None:
        self.bins += other.bins
        self.most, self.nan = max(self.most, other.most), self.nan + other.nan

    def measure(self) -> dict[str, Any]:
        """``max``, ``histogram`` by distance in ulp (``0``: zeros of unlike sign), ``nan`` where there is any."""
        used = np.flatnonzero(self.bins)
        told: dict[str, Any] = {"histogram": {_name(int(i)): int(self.bins[i]) for i in used}}
        if len(used):
            told["max"] = self.most
        return {**told, "nan": self.nan} if self.nan else told


_EDGES = np.array([0, *(1 << k for k in range(64))], np.uint64)  # the greatest distance of each bin but the last


def _name(which: int) -> str:
    """``3-4``: the distances that a bin holds."""
    if which < 3:
        return str(which)
    low = (1 << (which - 2)) + 1
    return f"{low}-{1 << (which - 1)}" if which < BINS - 1 else f"{low} or more"


@dataclass(slots=True)
class Differing:
    """Elements whose bits differ between two outputs of one format. ``lanes``: how many, by index mod 16. ``at``, ``a``, ``b``:
    index and codes of the first of them, at most :data:`SAMPLE`.
    """

    elements: int = 0
    changed: int = 0
    first: int = -1
    last: int = -1
    lanes: Counts = field(default_factory=lambda: np.zeros(WORD, np.int64))
    apart: Apart = field(default_factory=Apart)
    at: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    a: Codes = field(default_factory=lambda: np.zeros(0, np.uint8))
    b: Codes = field(default_factory=lambda: np.zeros(0, np.uint8))

    def by_address(self, first: int, itemsize: int) -> Counts:
        """Differing elements by byte address mod 16, where index 0 lies at address ``first``; shape (16,)."""
        found = np.zeros(WORD, np.int64)
        np.add.at(found, (first + np.arange(WORD) * itemsize) % WORD, self.lanes)
        return found

    def _add(self, fmt: Format, a: Codes, b: Codes) -> None:
        at = np.flatnonzero(a != b)
        start, self.elements = self.elements, self.elements + len(a)
        if not len(at):
            return
        self.apart.add(fmt, a[at], b[at])
        self.lanes += np.bincount((start + at) % WORD, minlength=WORD)
        self.first = start + int(at[0]) if self.first < 0 else self.first
        self.last = start + int(at[-1])
        self.changed += len(at)
        some = at[: SAMPLE - len(self.at)]
        kept = self.at if len(self.at) else None
        self.at = start + some if kept is None else np.concatenate([kept, start + some])
        self.a = a[some].copy() if kept is None else np.concatenate([self.a, a[some]])
        self.b = b[some].copy() if kept is None else np.concatenate([self.b, b[some]])


def differing(fmt: Format, a: Iterable[Codes], b: Iterable[Codes]) -> Differing:
    """``a``, ``b``: the pieces of two outputs of equal length, cut alike. Raises ValueError where they are not."""
    found = Differing()
    for x, y in zip(a, b, strict=True):
        if len(x) != len(y):
            raise ValueError(f"pieces of {len(x)} and of {len(y)} elements do not lie side by side")
        found._add(fmt, x, y)
    return found
