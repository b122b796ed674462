"""What a rounding_mode finding's data were: P(up | rem), the mean signed error with its interval, and which cases they hold.

The cases are the cells of NUMERICS §6.3: where rem lies, how the two terms met, where in its binade lo stands, and which binade
it is. A finding that names a mode has seen only the cells that its data fill; the others are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.kernels.table import BINS, dose_response
from auditor.model import ArmView, Codes, Family, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import Format
from auditor.numerics.rounding import Split, split
from auditor.probes.expected import Block, Mask, blocks
from auditor.probes.mode import Look, ordinary, take
from auditor.probes.statistics import mean_interval
from auditor.probes.unwritten import unwritten_mask

ENOUGH = 1000  # elements that make a cell filled
SHOWN = 24  # unfilled cells that are named
CLUSTER = 16  # consecutive elements that may share what decides their rounding

Counts = npt.NDArray[np.int64]

# rem: "next to" is within 2**-(p - 1) of a tie, as near as two terms come, but not on it.
REMS = ("exact", "below 1/2", "next to 1/2", "tie, lo even", "tie, lo odd", "above 1/2")
MEETS = ("same sign", "carry", "cancel")
PLACES = ("lowest of its binade", "interior", "highest of its binade")
BINADES = ("least normal", "middle", "largest")
AXES = (REMS, MEETS, PLACES, BINADES)
SHAPE = tuple(len(axis) for axis in AXES)


def described(view: ArmView, main: Look, looks: Sequence[Look]) -> dict[str, Any]:
    """Keys for the measure: dose_response and mean_signed_error_95 of the main look, coverage of all looks."""
    dose = np.zeros((BINS, 2, 2), np.int64)
    errors = _Clusters()
    trial, seen = main.trial, main.seen
    output = view.output(trial.trial_id, seen.repeat, seen.rank)
    skip = unwritten_mask(view, trial, seen.rank)
    for part, data in blocks(trial, seen.repeat, seen.rank):
        keep = ordinary(trial, data) & ~skip[part]
        dose += dose_response(trial.call.fmt, take(data.split, keep), output[part][keep])
        errors.add(trial.call.fmt, data.split, output[part], keep)
    # Per bin of rem: sums with lo even, of these up, sums with lo odd, of these up.
    rows = np.concatenate(
        [dose[:, 0].sum(axis=1)[:, None], dose[:, 0, 1:], dose[:, 1].sum(axis=1)[:, None], dose[:, 1, 1:]], axis=1
    )
    return {
        "dose_response": rows.tolist(),
        "mean_signed_error_95": errors.interval(),
        "coverage": coverage(view, looks),
    }


# ----------------------------------------------------------------------------------------------------------- mean signed error


class _Clusters:
    """Errors by clusters of consecutive elements: neighbours may share what decides, so they are no independent draws."""

    def __init__(self) -> None:
        self.totals: list[npt.NDArray[np.float64]] = []
        self.sizes: list[npt.NDArray[np.float64]] = []

    def add(self, fmt: Format, seen: Split, codes: Codes, keep: Mask) -> None:
        magnitude = codes & fmt.dtype.type(fmt.magnitude_mask)
        up = magnitude == seen.lo + fmt.dtype.type(1)
        used = keep & seen.inexact & (up | (magnitude == seen.lo))
        error = np.where(used, up - seen.rem.astype(np.float64) * 2.0**-64, 0.0)
        starts = np.arange(0, len(error), CLUSTER)
        if len(starts):
            self.totals.append(np.add.reduceat(error, starts))
            self.sizes.append(np.add.reduceat(used.astype(np.float64), starts))

    def interval(self) -> list[float] | None:
        """Two-sided 95 % for the mean; None where there are few clusters."""
        if not self.totals:
            return None
        found = mean_interval(np.concatenate(self.totals), np.concatenate(self.sizes))
        return None if found is None else list(found)


# ------------------------------------------------------------------------------------------------------------------- coverage


def coverage(view: ArmView, looks: Iterable[Look]) -> dict[str, Any]:
    """How the judged sums of some trials spread over the cells, and which cells that two terms can fill hold too few."""
    counts = np.zeros(SHAPE, np.int64)
    signs, places = np.zeros(2, np.int64), np.zeros(8, np.int64)
    fmt: Format | None = None
    for found in looks:
        trial, seen = found.trial, found.seen
        fmt = trial.call.fmt
        skip = unwritten_mask(view, trial, seen.rank)
        for part, data in blocks(trial, seen.repeat, seen.rank):
            keep = ordinary(trial, data) & ~skip[part] & (data.split.zero == 0)
            counts += tally(fmt, data, keep)
            signs += np.bincount(data.split.negative[keep].astype(np.int64), minlength=2)
            places += _positions(trial, data, keep)
    return {} if fmt is None else _summary(fmt, counts, signs, places)


def _summary(fmt: Format, counts: Counts, signs: Counts, places: Counts) -> dict[str, Any]:
    can = feasible(fmt)
    filled = can & (counts >= ENOUGH)
    empty = np.argwhere(can & (counts == 0)).tolist()
    thin = np.argwhere(can & (counts > 0) & ~filled).tolist()
    group = max(1, 8 // fmt.itemsize)
    return {
        "cells": int(can.sum()),
        "filled": int(filled.sum()),
        "thin": len(thin),
        "empty": len(empty),
        "complete": bool((filled == can).all()),
        "enough": ENOUGH,
        "empty_cells": [_name(cell) for cell in empty[:SHOWN]],
        "thin_cells": [_name(cell) for cell in thin[:SHOWN]],
        "matrix": _matrix(can, counts),
        "by_rem": _margin(counts, 0),
        "by_meeting": _margin(counts, 1),
        "by_place": _margin(counts, 2),
        "by_binade": _margin(counts, 3),
        "by_sign": {"positive": int(signs[0]), "negative": int(signs[1])},
        "by_position_in_8_bytes": [int(n) for n in places[:group]],
        "left_to_special": ["subnormal sums and terms", "the last gap below the maximum", "past the maximum"],
    }


def _matrix(can: Mask, counts: Counts) -> dict[str, str]:
    """By rem and meeting, a character for each place within each binade: # filled, + thin, 0 empty, - cannot be."""
    symbols = np.select([~can, counts >= ENOUGH, counts > 0], ["-", "#", "+"], "0")
    return {
        f"{rem} / {meet}": " ".join("".join(symbols[i, j, :, binade]) for binade in range(len(BINADES)))
        for i, rem in enumerate(REMS)
        for j, meet in enumerate(MEETS)
    }


def uncovered(covered: Mapping[str, Any]) -> str:
    """A sentence for ``limits``: how many cells the data fill, and the first that they leave empty."""
    text = f"The data fill {covered['filled']} of {covered['cells']} cases with {ENOUGH:,} sums or more"
    if not covered["empty"]:
        return f"{text}; none is empty."
    few = "; ".join(covered["empty_cells"][:3])
    return f"{text} and leave {covered['empty']} empty ({few}{'; ...' if covered['empty'] > 3 else ''})."


def _name(cell: Sequence[int]) -> str:
    return " / ".join(axis[k] for axis, k in zip(AXES, cell, strict=True))


def _margin(counts: Counts, axis: int) -> dict[str, int]:
    others = tuple(k for k in range(len(SHAPE)) if k != axis)
    return dict(zip(AXES[axis], counts.sum(axis=others).tolist(), strict=True))


def _positions(trial: Trial, data: Block, keep: Mask) -> Counts:
    """Elements by their place in an aligned 8-byte group of the send buffer."""
    group = max(1, 8 // trial.call.fmt.itemsize)
    at = (np.flatnonzero(keep) + data.start + trial.send_shift) % group
    return np.bincount(at, minlength=8).astype(np.int64)


def tally(fmt: Format, data: Block, keep: Mask) -> Counts:
    """Counts by cell, shape :data:`SHAPE`, of the elements in ``keep``."""
    index = np.ravel_multi_index(_cells(fmt, data.terms, data.split), SHAPE)[keep]
    return np.bincount(index, minlength=int(np.prod(SHAPE))).astype(np.int64).reshape(SHAPE)


def _cells(fmt: Format, terms: Sequence[Codes], seen: Split) -> tuple[npt.NDArray[np.int64], ...]:
    kind, mask = fmt.dtype.type, fmt.dtype.type(fmt.magnitude_mask)
    half, width = np.uint64(1 << 63), np.uint64(1 << (65 - fmt.precision))
    off = np.where(seen.rem > half, seen.rem - half, half - seen.rem)
    odd = (seen.lo & kind(1)) != 0
    tie = (seen.rem == half) & ~seen.sticky
    rem = np.select([~seen.inexact, tie & ~odd, tie, off <= width, seen.rem < half], [0, 3, 4, 2, 1], 5)
    exponents = [(term & mask) >> kind(fmt.mantissa_bits) for term in terms]
    largest = np.maximum.reduce(exponents)
    own = seen.lo >> kind(fmt.mantissa_bits)
    negative = np.stack([(term > mask) & ((term & mask) != 0) for term in terms])
    positive = np.stack([(term <= mask) & (term != 0) for term in terms])
    opposed = negative.any(axis=0) & positive.any(axis=0)
    meets = np.where(opposed, 2, np.where(own > largest, 1, 0))
    fraction = seen.lo & kind((1 << fmt.mantissa_bits) - 1)
    place = np.select([fraction == 0, fraction == (1 << fmt.mantissa_bits) - 1], [0, 2], 1)
    top = kind(fmt.max_code >> fmt.mantissa_bits)
    binade = np.select([own <= 1, own == top], [0, 2], 1)
    return tuple(np.asarray(axis, np.int64) for axis in (rem, meets, place, binade))


@lru_cache(maxsize=16)
def feasible(fmt: Format) -> Mask:
    """Cells that a sum of two non-zero normal terms can fill, shape :data:`SHAPE`. 8-bit formats: by trying all pairs.

    In the least normal binade the gap is the least subnormal, so every sum there is exact, and two terms of one sign are past it.
    Lo lowest in its binade is even, highest is odd. A carry ends at most at 4 - 2 ulp, the highest value of its binade, exactly.
    A sum of one sign is more than its larger term, so it is no power of two unless it carries; a difference is less, so it is
    never the largest value. That everything else occurs was seen with 12 million pairs of bfloat16 and of binary16.
    """
    if fmt.bits == 8:
        return _feasible_by_trial(fmt)
    can = np.ones(SHAPE, np.bool_)
    for cell in itertools.product(*(range(n) for n in SHAPE)):
        rem, meet, place, binade = cell
        inexact = rem != 0
        can[cell] = not (
            (inexact and binade == 0)
            or (rem == 3 and place == 2)
            or (rem == 4 and place == 0)
            or (inexact and meet == 1 and place == 2)
            or (meet != 2 and binade == 0)
            or (not inexact and meet == 0 and place == 0)
            or (not inexact and meet == 2 and place == 2 and binade == 2)
            or (inexact and place == 2 and binade == 2)  # the last gap is special's
        )
    can.flags.writeable = False
    return can


def _feasible_by_trial(fmt: Format) -> Mask:
    terms = [inputs.generate(Family("exhaustive"), fmt, 0, 2, rank, 0, 1 << 16) for rank in (0, 1)]
    sums = exact_sums(fmt, terms)
    data = Block(0, 1 << 16, tuple(terms), sums, split(fmt, sums))
    mask, least = fmt.dtype.type(fmt.magnitude_mask), fmt.dtype.type(1 << fmt.mantissa_bits)
    keep = data.split.finite & ~data.split.past_max & (data.split.zero == 0) & (data.split.lo >= least)
    keep &= (data.split.lo != fmt.dtype.type(fmt.max_code)) | ~data.split.inexact
    for term in terms:
        keep &= (term & mask) >= least
    can = np.asarray(tally(fmt, data, np.asarray(keep, np.bool_)) > 0, np.bool_)
    can.flags.writeable = False
    return can
