"""Which elements a call did not write. Every probe leaves these out of what it compares.

Proved: all three prefills survive at the same element, in every repeat (a quiet NaN plus x returns the NaN, and 8-bit
formats have two NaN codes, so one surviving prefill proves nothing). In place nothing is prefilled: an output that equals
the rank's own input where that is not a legal sum was not written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auditor import layout
from auditor.model import PREFILLS, ArmView, Codes, Trial
from auditor.probes.common import receiving
from auditor.probes.expected import Mask, blocks, is_faithful, own_codes

Point = tuple[Any, ...]


def point_of(trial: Trial) -> Point:
    """What decides which elements a subject writes: the call, its shape and its place; not its data."""
    return trial.call, trial.rank_n, trial.send_shift, trial.recv_shift, trial.in_place


class _Memo:
    """Masks of one view, by (kind, trial or point, rank). None stands for: nothing set."""

    def __init__(self, view: ArmView) -> None:
        self.view = view
        self.masks: dict[tuple[Any, ...], Mask | None] = {}
        self.points: dict[Point, dict[str, list[Trial]]] = {}
        self.number = {planned.trial.trial_id: i for i, planned in enumerate(view.planned)}
        for planned in view.planned:
            trial = planned.trial
            if trial.variant == "plain" and trial.head == trial.tail == "zero":
                self.points.setdefault(point_of(trial), {}).setdefault(trial.prefill, []).append(trial)


MEMOS = 16
_memos: list[_Memo] = []  # the last used first: analyses go view by view, and some look at all arms of a run


def _of(view: ArmView) -> _Memo:
    known = next((memo for memo in _memos if memo.view is view), None)
    if known is None:
        known = _Memo(view)
    elif known is _memos[0]:
        return known
    _memos[:] = [known, *(memo for memo in _memos if memo is not known)][:MEMOS]
    return known


def trials_at(view: ArmView, trial: Trial, prefill: str) -> list[Trial]:
    """The plain trials at the same point with that prefill, whatever their data."""
    return _of(view).points.get(point_of(trial), {}).get(prefill, [])


def number_of(view: ArmView, trial: Trial) -> int:
    """The trial's place in the plan, which is the order of the calls."""
    return _of(view).number[trial.trial_id]


def prefill_of(trial: Trial) -> int:
    return layout.prefill_code(trial.call.fmt, trial.prefill)


def _distinct(view: ArmView, trial: Trial, rank: int) -> list[tuple[int, Codes]]:
    """One (repeat, output) for each different output of the rank."""
    seen: dict[tuple[str, int], int] = {}
    for o in receiving(view, trial):
        if o.rank == rank:
            seen.setdefault((o.digest, trial.seed_of(o.repeat) if trial.in_place else 0), o.repeat)
    return [(repeat, view.output(trial.trial_id, repeat, rank)) for repeat in seen.values()]


def unchanged(trial: Trial, repeat: int, rank: int, output: Codes) -> Mask:
    """Elements that hold what they held before the call, legal results or not."""
    before = own_codes(trial, repeat, rank) if trial.in_place else output.dtype.type(prefill_of(trial))
    return np.asarray(output == before)


def untouched(trial: Trial, repeat: int, rank: int, output: Codes) -> Mask:
    """Elements that hold what they held before the call, where that is not a legal result of op sum."""
    mask: Mask = np.zeros(len(output), np.bool_)
    same = unchanged(trial, repeat, rank, output)
    if not same.any() or trial.call.op != "sum":
        return same if not trial.in_place else mask
    for part, data in blocks(trial, repeat, rank):
        if same[part].any():
            mask[part] = same[part] & ~is_faithful(trial, output[part], data)
    return mask


def proved(view: ArmView, trial: Trial, rank: int) -> Mask | None:
    """Elements proved unwritten at the trial's point, shape (count,); None where there are none."""
    memo = _of(view)
    key = ("proved", point_of(trial), rank)
    if key not in memo.masks:
        memo.masks[key] = _prove(view, memo.points.get(point_of(trial), {}), trial, rank)
    return memo.masks[key]


def _prove(view: ArmView, by_prefill: dict[str, list[Trial]], trial: Trial, rank: int) -> Mask | None:
    """Unchanged in every output, and in at least one of them not a legal result: own data may be a legal sum by chance."""
    mask: Mask = np.ones(trial.call.count, np.bool_)
    illegal: Mask = np.zeros(trial.call.count, np.bool_)
    for name in by_prefill if trial.in_place else PREFILLS:
        outputs = [(t, r, out) for t in by_prefill.get(name, []) for r, out in _distinct(view, t, rank)]
        if not outputs:
            return None
        for t, repeat, out in outputs:
            mask &= unchanged(t, repeat, rank, out)
            if not mask.any():
                return None
            illegal |= untouched(t, repeat, rank, out)
    mask &= illegal
    return mask if mask.any() else None


def unwritten_mask(view: ArmView, trial: Trial, rank: int) -> Mask:
    """Elements of the rank's output to leave out: proved unwritten at this point, or holding, in any repeat of this trial,
    what they held before the call. Shape (count,), read-only.
    """
    memo = _of(view)
    key = ("suspect", trial.trial_id, rank)
    if key not in memo.masks:
        mask = proved(view, trial, rank)
        for repeat, output in _distinct(view, trial, rank):
            held = untouched(trial, repeat, rank, output)
            if held.any():
                mask = held if mask is None else mask | held
        memo.masks[key] = mask
    known = memo.masks[key]
    mask = np.zeros(trial.call.count, np.bool_) if known is None else known
    mask.flags.writeable = False
    return mask
