"""Influence scan (NUMERICS §7.3): one bit of one element's sum is turned, and who else is rounded otherwise?

Two trials are alike but for one element in 64, of whose binary32 word one bit is turned. Bits take turns; half of the elements
stand among quiet sums with remainders close to the next number, half among random ones. A third trial keeps that element's sum
and changes what each rank sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.inputs.contexts import REACH, SCAN_BLOCK, SIGN, Scan, scan_of, scanned_bits
from auditor.model import Trial
from auditor.numerics.formats import Format
from auditor.probes.neighbours.formula import Mask, Seen
from auditor.probes.neighbours.ladder import Reading
from auditor.probes.statistics import clopper_pearson

Counts = npt.NDArray[np.int64]
OFFSETS = range(-REACH, REACH + 1)
WORD = ("s", *(f"e{k}" for k in range(7, -1, -1)), *(f"b{k}" for k in range(22, -1, -1)))


@dataclass(slots=True)
class Influence:
    """Counts by (offset, bit), shape (33, bits): an offset of +1 means that the next element's bit was turned."""

    bits: tuple[str, ...]
    tested: Counts
    changed: Counts
    raised: Counts  # of the changed, those that went up where the bit is set
    beyond: tuple[int, int] = (0, 0)  # changed, tested: more than 16 elements off
    terms: tuple[int, int] = (0, 0)  # changed, tested: a sum kept, its terms changed

    @property
    def of_others(self) -> tuple[int, int]:
        """(changed, tested) over all bits of other elements."""
        changed, tested = (int(np.delete(counts, REACH, axis=0).sum()) for counts in (self.changed, self.tested))
        return changed, tested

    def measure(self) -> dict[str, Any]:
        """``influence``: a row for each offset and bit that matters; for each bit one over all offsets where it does not."""
        bits = range(len(self.bits))
        rows = [self._row(o, b) for b in bits for o in range(len(OFFSETS)) if self.changed[o, b]]
        rows += [self._quiet(b) for b in bits if self._still(b).any()]
        changed, tested = self.terms
        used = self.tested[self.tested > 0]
        return {
            "influence": rows,
            "influence_tested": {
                "offsets": [OFFSETS[0], OFFSETS[-1]],
                "bits": list(self.bits),
                "bits_not_tested": [name for name in WORD if name not in self.bits],
                "cells": len(used),
                "cells_that_matter": int((self.changed > 0).sum()),
                "toggles": int(self.tested.sum()),
                "toggles_of_a_cell": [int(used.min()), int(used.max())] if len(used) else [0, 0],
                "further_off_changed": self.beyond[0],
                "further_off_tested": self.beyond[1],
            },
            "terms_changed_sum_kept": {
                "changed": changed,
                "tested": tested,
                "rate_95": list(clopper_pearson(changed, tested)),
            },
            "raises": self._bits(self.raised),
            "lowers": self._bits(self.changed - self.raised),
        }

    def _still(self, b: int) -> Mask:
        return np.asarray((self.tested[:, b] > 0) & (self.changed[:, b] == 0), np.bool_)

    def _row(self, o: int, b: int) -> dict[str, Any]:
        changed, tested = int(self.changed[o, b]), int(self.tested[o, b])
        return {
            "offset": OFFSETS[o],
            "bit": self.bits[b],
            "changed": changed,
            "tested": tested,
            "rate_95": list(clopper_pearson(changed, tested)),
            "up_where_set": int(self.raised[o, b]),
        }

    def _quiet(self, b: int) -> dict[str, Any]:
        at = np.flatnonzero(self._still(b))
        tested = int(self.tested[at, b].sum())
        return {
            "offset": [OFFSETS[o] for o in at],
            "bit": self.bits[b],
            "changed": 0,
            "tested": tested,
            "rate_95": list(clopper_pearson(0, tested)),
        }

    def _bits(self, counts: Counts) -> list[str]:
        """Bits of other elements with any such change, from the top of the word."""
        others = np.delete(counts, REACH, axis=0)
        return [name for b, name in enumerate(self.bits) if others[:, b].any()]


def scan(fmt: Format, first: Mapping[str, Reading]) -> Influence | None:
    """From the readings ``scan_none_k``, ``scan_bit_k`` and ``scan_terms_k`` of the seeds k; None where there are none."""
    numbers = [name.removeprefix("scan_bit_") for name in first if name.startswith("scan_bit_")]
    pairs = [(first[f"scan_none_{k}"], first[f"scan_bit_{k}"]) for k in numbers if f"scan_none_{k}" in first]
    if not pairs:
        return None
    bits = scanned_bits(fmt)
    tested, changed, raised = np.zeros((3, len(OFFSETS), len(bits)), np.int64)
    found = Influence(bits, tested, changed, raised)
    for base, turned in pairs:
        _add(found, fmt, base, turned)
    for k in numbers:
        if f"scan_terms_{k}" in first and f"scan_none_{k}" in first:
            found.terms = _of_terms(fmt, first[f"scan_none_{k}"], first[f"scan_terms_{k}"])
    return found


def _experiments(fmt: Format, trial: Trial, n: int) -> tuple[Scan, Mask]:
    """The scan's layout, and which of its experiments lie whole in the first ``n`` elements."""
    layout = scan_of(fmt, trial.seed)
    return layout, np.asarray((np.arange(len(layout.at)) + 1) * SCAN_BLOCK <= n, np.bool_)


def _add(found: Influence, fmt: Format, base: Reading, turned: Reading) -> None:
    layout, whole = _experiments(fmt, base.trial, len(base.seen))
    at, which = layout.at[whole], layout.which[whole]
    flips = base.seen.up != turned.seen.up
    was_set = _set(base.seen, at, [found.bits[b] for b in which])
    for row, offset in enumerate(OFFSETS):
        element = at - offset
        usable = base.seen.inexact[element] & turned.seen.inexact[element]
        if offset == 0:  # the element itself: only where its remainder stayed
            usable &= base.seen.split.rem[element] == turned.seen.split.rem[element]
        moved = usable & flips[element]
        up_where_set = np.where(was_set, base.seen.up[element], turned.seen.up[element])
        found.tested[row] += np.bincount(which[usable], minlength=len(found.bits))
        found.changed[row] += np.bincount(which[moved], minlength=len(found.bits))
        found.raised[row] += np.bincount(which[moved & up_where_set], minlength=len(found.bits))
    found.beyond = _plus(found.beyond, _further(base, flips, at))


def _further(base: Reading, flips: Mask, at: npt.NDArray[np.int64]) -> tuple[int, int]:
    """(changed, tested) of the elements of whole blocks that are further off than REACH from any turned one."""
    n = len(at) * SCAN_BLOCK
    far = base.seen.inexact[:n].copy()
    for offset in OFFSETS:
        far[at - offset] = False
    return int((far & flips[:n]).sum()), int(far.sum())


def _plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def _set(seen: Seen, at: npt.NDArray[np.int64], names: list[str]) -> Mask:
    """Whether the named bit of each element's word is set."""
    field, exponent, negative = seen.field[at], seen.exponent[at] + 127, seen.split.negative[at]
    kind = np.array([name[0] for name in names])
    k = np.array([0 if name == SIGN else int(name[1:]) for name in names])
    of_exponent = (exponent >> np.minimum(k, 7)) & 1
    of_mantissa = (field >> (np.uint64(41) + k.astype(np.uint64))) & np.uint64(
        1
    )  # bit 22 of the word is bit 63 of the field
    return np.asarray(np.select([kind == SIGN, kind == "e"], [negative, of_exponent != 0], of_mantissa != 0), np.bool_)


def _of_terms(fmt: Format, base: Reading, other: Reading) -> tuple[int, int]:
    """(changed, tested) within REACH of an element whose terms were changed and whose sum was kept, itself included."""
    layout, whole = _experiments(fmt, base.trial, len(base.seen))
    at = layout.at[whole & layout.zero]
    element = (at[:, None] - np.arange(-REACH, REACH + 1)).reshape(-1)
    use = base.seen.inexact[element]
    return int((use & (base.seen.up != other.seen.up)[element]).sum()), int(use.sum())
