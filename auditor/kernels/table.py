"""What one trial's output says about the rounding of its sums: class counts that add up over blocks, ranks of a
grid, or devices.

Vocabulary: NUMERICS §0. An output is *up* where |out| = hi, *down* where |out| = lo. ``tabulate`` is the reference;
the fast twins in
``host`` and, later, on a device fill the same table from binary32 words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.model import Codes
from auditor.numerics.formats import Format
from auditor.numerics.rounding import MODES, Split

BELOW, TIE_EVEN, TIE_ODD, ABOVE = range(4)  # relation: rem < 1/2; a tie with lo even; a tie with lo odd; rem > 1/2
CELLS = 16
BINS = 64
ONE = 1 << 64  # the unit of rem_sum is 2**-64

Dose = npt.NDArray[np.int64]


def cell(negative: int, up: int, relation: int) -> int:
    """Where a class stands in ``RoundingTable.cells``."""
    return (negative * 2 + up) * 4 + relation


def _goes_up(mode: str, negative: int, relation: int) -> bool:
    """What a mode does with an inexact sum of that sign and relation."""
    return {
        "ties_to_even": relation >= TIE_ODD,
        "ties_to_away": relation >= TIE_EVEN,
        "toward_zero": False,
        "away_from_zero": True,
        "toward_positive": not negative,
        "toward_negative": bool(negative),
    }[mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingTable:
    """Counts over ``elements`` outputs = skipped + exact_right + exact_wrong + outside + sum(cells).

    ``skipped``: the sum is not finite or lies past the maximum. ``exact_*``: the sum is a value of the format (rem
    = 0), and the output is or is not that value; the sign of a zero is not looked at. ``outside``: inexact, and the
    output is neither neighbour. ``cells``: inexact sums whose output is a neighbour, by sign, up and relation: see
    :func:`cell`. ``rem_sum``: the rem of those, added, in units of 2**-64.
    """

    elements: int = 0
    skipped: int = 0
    exact_right: int = 0
    exact_wrong: int = 0
    outside: int = 0
    cells: tuple[int, ...] = (0,) * CELLS
    rem_sum: int = 0

    def __add__(self, other: RoundingTable) -> RoundingTable:
        return RoundingTable(
            elements=self.elements + other.elements,
            skipped=self.skipped + other.skipped,
            exact_right=self.exact_right + other.exact_right,
            exact_wrong=self.exact_wrong + other.exact_wrong,
            outside=self.outside + other.outside,
            cells=tuple(a + b for a, b in zip(self.cells, other.cells, strict=True)),
            rem_sum=self.rem_sum + other.rem_sum,
        )

    def count(
        self, *, negative: int | None = None, up: int | None = None, relations: tuple[int, ...] = (0, 1, 2, 3)
    ) -> int:
        """Inexact sums that went to a neighbour, by any of sign, direction and relation."""
        signs = (0, 1) if negative is None else (negative,)
        ways = (0, 1) if up is None else (up,)
        return sum(self.cells[cell(s, u, r)] for s in signs for u in ways for r in relations)

    @property
    def inexact(self) -> int:
        return sum(self.cells) + self.outside

    @property
    def nearest(self) -> int:
        """Inexact, and as ties_to_even would have it."""
        return self.count(up=0, relations=(BELOW, TIE_EVEN)) + self.count(up=1, relations=(TIE_ODD, ABOVE))

    @property
    def toward_zero(self) -> int:
        """Output lo where ties_to_even says hi."""
        return self.count(up=0, relations=(TIE_ODD, ABOVE))

    @property
    def away(self) -> int:
        """Output hi where ties_to_even says lo."""
        return self.count(up=1, relations=(BELOW, TIE_EVEN))

    @property
    def ties(self) -> int:
        """Sums half-way between their neighbours, where the output is one of them."""
        return self.count(relations=(TIE_EVEN, TIE_ODD))

    @property
    def mean_signed_error_ulp(self) -> float | None:
        """Mean of (|out| - |x|) / gap over the inexact sums that went to a neighbour; negative is toward zero. None
        where there are none.
        """
        n = sum(self.cells)
        return (self.count(up=1) * ONE - self.rem_sum) / (n * ONE) if n else None

    def mismatches(self, mode: str) -> int:
        """Outputs that are not what ``mode`` gives: the wrong neighbour, no neighbour, or an exact sum not
        returned. Raises ValueError.
        """
        if mode not in MODES:
            raise ValueError(f"unknown rounding mode {mode!r}; one of {', '.join(MODES)}")
        wrong = sum(
            self.cells[cell(sign, not _goes_up(mode, sign, relation), relation)]
            for sign in (0, 1)
            for relation in range(4)
        )
        return wrong + self.outside + self.exact_wrong

    @property
    def consistent_modes(self) -> tuple[str, ...]:
        """The modes that every output agrees with; all six where no sum is inexact and none is wrong."""
        return tuple(mode for mode in MODES if not self.mismatches(mode))


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Masks of one block, shape (n,) each."""

    right: npt.NDArray[np.bool_]  # the output is lo (and the sum may be exact)
    up: npt.NDArray[np.bool_]
    usable: npt.NDArray[np.bool_]
    neighbour: npt.NDArray[np.bool_]  # inexact and usable, output lo or hi
    odd: npt.NDArray[np.bool_]


def _look(fmt: Format, split: Split, out_codes: Codes) -> _Seen:
    magnitude = out_codes & fmt.dtype.type(fmt.magnitude_mask)
    same_sign = ((out_codes >> fmt.dtype.type(fmt.bits - 1)) != 0) == split.negative
    same_sign |= magnitude == 0  # the sign of a zero is not rounding's business
    right = same_sign & (magnitude == split.lo)
    up = same_sign & (magnitude == split.lo + fmt.dtype.type(1))
    usable = split.finite & ~split.past_max
    return _Seen(right, up, usable, usable & split.inexact & (right | up), (split.lo & fmt.dtype.type(1)) != 0)


def tabulate(fmt: Format, split: Split, out_codes: Codes) -> RoundingTable:
    """The reference: counts for outputs of shape (n,) against the exact sums as ``fmt`` sees them. Raises
    ValueError on unequal lengths.
    """
    _same_length(len(split.lo), len(out_codes))
    seen = _look(fmt, split, out_codes)
    half = np.uint64(1 << 63)
    tie = (split.rem == half) & ~split.sticky
    relation = np.where(split.rem < half, BELOW, np.where(tie, TIE_EVEN + seen.odd, ABOVE))
    index = ((split.negative * 2 + seen.up) * 4 + relation)[seen.neighbour]
    cells = np.bincount(index, minlength=CELLS)
    exact = seen.usable & ~split.inexact
    right = int((exact & seen.right).sum())
    usable, exact_n = int(seen.usable.sum()), int(exact.sum())
    return RoundingTable(
        elements=len(out_codes),
        skipped=len(out_codes) - usable,
        exact_right=right,
        exact_wrong=exact_n - right,
        outside=usable - exact_n - int(seen.neighbour.sum()),
        cells=tuple(int(c) for c in cells),
        rem_sum=_wide_sum(split.rem[seen.neighbour]),
    )


def dose_response(fmt: Format, split: Split, out_codes: Codes) -> Dose:
    """Counts [bin of rem, lo odd, up], int64 of shape (64, 2, 2), over the inexact sums whose output is a neighbour
    (NUMERICS §7.2, step 4).
    """
    _same_length(len(split.lo), len(out_codes))
    seen = _look(fmt, split, out_codes)
    index = (split.rem >> np.uint64(58)).astype(np.int64) * 4 + seen.odd * 2 + seen.up
    return np.bincount(index[seen.neighbour], minlength=4 * BINS).astype(np.int64).reshape(BINS, 2, 2)


def _wide_sum(words: npt.NDArray[np.uint64]) -> int:
    """The sum as a Python integer: the halves are added apart, so nothing wraps below 2**32 elements."""
    return (int((words >> np.uint64(32)).sum()) << 32) + int((words & np.uint64(0xFFFFFFFF)).sum())


def _same_length(expected: int, found: Any) -> None:
    if expected != found:
        raise ValueError(f"{found} outputs for {expected} sums")
