"""Threshold spectroscopy (NUMERICS §7.4), laid out beforehand: single bits of single neighbours beside every scale of rem.

In a sparse trial noise is zero but for one set bit in a block of 64 bytes. An element at distance 1 - rem below 1 goes up iff
that bit weighs as much; over all elements this brackets every weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from auditor.inputs.contexts import BLOCK_BYTES, space
from auditor.numerics.formats import Format
from auditor.probes.neighbours.formula import EXPONENT, FORMS, SIGN, Formula, Mask, Seen, predict

PAIRINGS = ("cyclic", "xor")
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Inexact elements of blocks with one source; arrays of shape (n,). ``gap``: (1 - rem) * 2**W."""

    target: Ints  # places in the block
    source: Ints
    which: Ints  # feature number
    gap: Ints
    up: Mask


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``rest``: elements that go up without any noise have gap <= rest, in units of 2**-W. ``why``: what no formula fits."""

    formula: Formula | None
    reach: int = 0  # elements; 0: no bit of any neighbour shows
    rest: int = 0
    brackets: dict[tuple[int, int], tuple[int, int]] | None = None
    why: str = ""


def features(fmt: Format) -> list[int]:
    return [*range(space(fmt).bits), SIGN, EXPONENT]


def _blocks(fmt: Format, seen: Seen) -> tuple[Mask, Beside]:
    """(elements of blocks without a source, those of blocks with one)."""
    n = BLOCK_BYTES // fmt.itemsize
    depth = space(fmt).depth
    table = np.stack([seen.feature(which) for which in features(fmt)]).reshape(len(features(fmt)), -1, n)
    per_block = table.sum(axis=(0, 2))
    rows = np.flatnonzero(per_block == 1)
    one = table[:, rows, :]
    which, source = one.any(axis=2).argmax(axis=0), one.any(axis=0).argmax(axis=1)
    gap = (np.int64(1) << depth) - (seen.split.rem >> np.uint64(64 - depth)).astype(np.int64).reshape(-1, n)[rows]
    keep = seen.inexact.reshape(-1, n)[rows]
    target = np.broadcast_to(np.arange(n), keep.shape)
    wide = [np.broadcast_to(a[:, None], keep.shape)[keep] for a in (source, which)]
    up = seen.up.reshape(-1, n)[rows][keep]
    return np.repeat(per_block == 0, n), Beside(target[keep], wide[0], wide[1], gap[keep], up)


def identify(fmt: Format, seen: Seen) -> Spectrum:
    """The formula that the sparse trial's elements spell out, its form still open (SRFF)."""
    depth = space(fmt).depth
    empty, beside = _blocks(fmt, seen)
    empty &= seen.inexact
    gaps = (np.int64(1) << depth) - (seen.split.rem[empty] >> np.uint64(64 - depth)).astype(np.int64)
    rest, least = _bracket(gaps, seen.up[empty], depth)
    if rest >= least:
        return Spectrum(None, why="elements without any set bit near them do not round by one threshold")
    if (~beside.up & (beside.gap <= rest)).any():
        return Spectrum(None, why="a set bit of a neighbour turns a sum down")
    moved = beside.up & (beside.gap > rest)
    if not moved.any():
        return Spectrum(None, why="no single bit of any neighbour shows")
    group = _group(beside.source[moved], beside.target[moved], BLOCK_BYTES // fmt.itemsize)
    for pairing in PAIRINGS:
        brackets = _brackets(beside, group, pairing, features(fmt), depth)
        if brackets is not None:
            weights = {key: _weight(pair, rest, depth) for key, pair in brackets.items() if pair[0] > rest}
            formula = Formula(group, weights, pairing)
            return Spectrum(_noise_bits(formula, rest, depth), group, rest, brackets)
    return Spectrum(None, group, rest, why="what a bit weighs depends on more than which neighbour it belongs to")


def _bracket(gap: Ints, up: Mask, depth: int) -> tuple[int, int]:
    """(largest gap that went up, smallest that did not)."""
    return int(gap[up].max(initial=0)), int(gap[~up].min(initial=(1 << depth) + 1))


def _group(source: Ints, target: Ints, block: int) -> int:
    """The smallest aligned group, a power of two, that holds every pair."""
    size = 1
    while size < block and (source // size != target // size).any():
        size *= 2
    return size


def _brackets(
    beside: Beside, group: int, pairing: str, which: list[int], depth: int
) -> dict[tuple[int, int], tuple[int, int]] | None:
    """By (relation, feature); None where one threshold does not fit all elements of a relation."""
    same = beside.source // group == beside.target // group
    relation = (beside.source - beside.target) % group if pairing == "cyclic" else beside.source ^ beside.target
    key = np.where(same, relation * len(which) + beside.which, -1)
    cells = group * len(which)
    high = np.zeros(cells, np.int64)
    low = np.full(cells, (1 << depth) + 1, np.int64)
    np.maximum.at(high, key[same & beside.up], beside.gap[same & beside.up])
    np.minimum.at(low, key[same & ~beside.up], beside.gap[same & ~beside.up])
    if (high >= low).any():
        return None
    return {(c // len(which), which[c % len(which)]): (int(high[c]), int(low[c])) for c in range(cells) if high[c]}


def _weight(bracket: tuple[int, int], rest: int, depth: int) -> int:
    """The power of two within the bracket, less what goes up anyway; the middle where there is none."""
    # An offset is half a unit of noise (SRF) or looks so (SRC, which takes the tie beside the last bit down): no bit weighs
    # less than a unit.
    low, high = max(bracket[0] - rest, 2 * rest), bracket[1] - rest
    k = max(low - 1, 0).bit_length()  # 2**k is the least power that is not below ``low``
    if 1 << k <= high:
        return 1 << (k + 64 - depth)
    return ((low + high) << (64 - depth)) // 2


def _noise_bits(formula: Formula, rest: int, depth: int) -> Formula:
    """r from the offset where there is one, else from the lightest weight; 0 where a further bit would not show."""
    lightest = min(w.bit_length() - 1 for w in formula.weights.values())
    r = 64 - lightest
    if rest:
        r = depth - (rest.bit_length() - 1) - 1
    return replace(formula, noise_n=r if r < depth else 0)


# ------------------------------------------------------------------------------------------------------------------ form


@dataclass(frozen=True, slots=True)
class Forms:
    """Mismatches of each form over some data, and how many elements tell each from the best."""

    wrong: dict[str, int]
    told: dict[str, int]

    @property
    def left(self) -> list[str]:
        """The best form and those that nothing tells from it."""
        best = min(self.wrong, key=lambda form: (self.wrong[form], FORMS.index(form)))
        return [form for form in FORMS if form == best or not self.told[form]]


def forms(formula: Formula, data: list[Seen]) -> Forms:
    """Which treatment of the last bit the data follow."""
    wrong = dict.fromkeys(FORMS, 0)
    predictions = []
    for seen in data:
        made = {form: predict(formula.with_form(form), seen) for form in FORMS}
        predictions.append(made)
        for form, (up, whole) in made.items():
            wrong[form] += int(((up != seen.up) & whole & seen.inexact).sum())
    best = min(FORMS, key=lambda form: (wrong[form], FORMS.index(form)))
    told = {
        form: sum(int(((made[form][0] != made[best][0]) & made[best][1]).sum()) for made in predictions)
        for form in FORMS
    }
    return Forms(wrong, told)
