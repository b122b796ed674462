"""By what is the rounding keyed? The decision ladder of NUMERICS §7.2, each step on trials that only differ in one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.inputs.contexts import RUN, block_elements, picked
from auditor.model import ArmView, Codes, Observation, Trial
from auditor.numerics.exact import Sums
from auditor.numerics.rounding import MODES, Split, up_by_mode
from auditor.probes.common import receiving
from auditor.probes.expected import blocks, is_faithful
from auditor.probes.neighbours.formula import Seen, seen_from
from auditor.probes.statistics import clopper_pearson

ODD_SHARE = 1e-3  # of the sums go otherwise than a mode says: so few are a defect, not a rule
GENERATOR_SHARE = 0.01  # of the inexact sums change between identical calls: less is a defect, not a generator


# ------------------------------------------------------------------------------------------------------------- one trial


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One repeat of one trial: what was seen, and how many outputs were neither the exact sum nor a neighbour of it."""

    trial: Trial
    repeat: int
    seen: Seen
    outside: int


def parts_of(view: ArmView, trial: Trial, repeat: int) -> list[Observation]:
    """Observations that cover the sums of a repeat once, in order: the first receiver, or every one's share. May be empty."""
    by_rank = {o.rank: o for o in receiving(view, trial) if o.repeat == repeat}
    if trial.call.collective != "reduce_scatter":
        return [by_rank[rank] for rank in sorted(by_rank)[:1]]
    shares = [by_rank[rank] for rank in trial.members if rank in by_rank]
    return shares if len(shares) == len(trial.members) else []


def read(view: ArmView, trial: Trial, repeat: int, parts: Sequence[Observation]) -> Reading:
    """What the parts hold, beside what they should."""
    ups, splits, sums, outside = [], [], [], 0
    for one in parts:
        output = view.output(trial.trial_id, repeat, one.rank)
        for part, data in blocks(trial, repeat, one.rank):
            codes = output[part]
            magnitude = codes & codes.dtype.type(trial.call.fmt.magnitude_mask)
            outside += int((~is_faithful(trial, codes, data)).sum())
            ups.append(magnitude == data.split.lo + codes.dtype.type(1))
            splits.append(data.split)
            sums.append(data.sums)
    seen = seen_from(_joined(Split, splits), _joined(Sums, sums), np.concatenate(ups), trial.send_shift)
    return Reading(trial, repeat, seen, outside)


def _joined(kind: type[Any], parts: Sequence[Any]) -> Any:
    names = list(kind.__dataclass_fields__)
    return parts[0] if len(parts) == 1 else kind(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


def against_modes(readings: Sequence[Reading]) -> dict[str, int]:
    """Over all readings, the elements that each mode would have given otherwise."""
    return {
        mode: sum(int((up_by_mode(mode, one.seen.split) != one.seen.up).sum()) for one in readings) for mode in MODES
    }


# ------------------------------------------------------------------------------------------------------------- influence


@dataclass(slots=True)
class Toggles:
    """Elements kept while others were drawn anew: how many inexact ones went elsewhere. By distance to the one drawn anew."""

    changed: int = 0
    kept: int = 0
    by_offset: dict[int, list[int]] = field(default_factory=dict)
    example: tuple[int, int] | None = None  # index, and the element drawn anew

    @property
    def bound(self) -> tuple[float, float]:
        return clopper_pearson(self.changed, self.kept)


def toggled(base: Reading, other: Reading, redraw: str) -> Toggles:
    """Compares the plain dense trial with one of its redraws; both by send index."""
    fmt, n = base.trial.call.fmt, len(base.seen)
    index = np.arange(n)
    found = Toggles()
    if redraw == "odd":
        kept = (index & 1 == 0) & base.seen.inexact
        drawn = index + 1
    else:
        size = block_elements(fmt)
        period = picked(fmt, base.trial.seed)
        drawn = index // size * size + period[(index // size) % len(period)]
        kept = (index != drawn) & base.seen.inexact
    changed = kept & (base.seen.up != other.seen.up)
    found.changed, found.kept = int(changed.sum()), int(kept.sum())
    if redraw == "one":
        offset = drawn - index
        total = np.bincount(offset[kept] + size, minlength=2 * size)
        moved = np.bincount(offset[changed] + size, minlength=2 * size)
        found.by_offset = {o - size: [int(moved[o]), int(total[o])] for o in range(2 * size) if total[o]}
    if changed.any():
        at = int(changed.argmax())
        found.example = (at, int(drawn[at]))
    return found


# ------------------------------------------------------------------------------------------------------- by itself alone


@dataclass(frozen=True, slots=True)
class Twins:
    """Inexact elements with equal sums at different places: ``torn`` of ``sums`` values went both ways."""

    elements: int
    sums: int
    torn: int


def twins(readings: Sequence[Reading]) -> Twins:
    """Over all readings of one call shape."""
    keys = [_identity(one.seen) for one in readings]
    words = np.concatenate(keys)
    ups = np.concatenate([one.seen.up[one.seen.inexact] for one in readings])
    order = np.lexsort((words[:, 1], words[:, 0]))
    words, ups = words[order], ups[order].astype(np.int64)
    new = np.ones(len(words), np.bool_)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(words)))
    up = np.add.reduceat(ups, first) if len(first) else np.zeros(0, np.int64)
    several = size > 1
    return Twins(int(size[several].sum()), int(several.sum()), int((several & (up > 0) & (up < size)).sum()))


def _identity(seen: Seen) -> npt.NDArray[np.uint64]:
    """Sign, lo and rem of the inexact elements, shape (n, 2)."""
    inexact = seen.inexact
    lo = seen.split.lo[inexact].astype(np.uint64) << np.uint64(1) | seen.split.negative[inexact]
    return np.stack([lo, seen.split.rem[inexact]], axis=1)


def in_runs(seen: Seen, step: int, other: Seen) -> tuple[int, int]:
    """Of two trials of runs of equal sums: (elements that differ from the other's element ``step`` further on, compared)."""
    n = len(seen) - step
    at = np.arange(n)
    inside = at // RUN == (at + step) // RUN
    return int((inside & (seen.up[step:] != other.up[:n])).sum()), int(inside.sum())


def keyed_by_place(shapes: Mapping[str, Reading]) -> tuple[str, dict[str, Any]]:
    """``index``, ``send address``, ``receive address`` or ``place`` (which of them is open), with what was compared."""
    dense, shifted = shapes.get("dense"), shapes.get("shifted")
    plain, both, moved = (shapes.get(name) for name in ("constant", "constant_shifted", "constant_moved"))
    if dense is None or shifted is None:
        return "place", {}
    by_index = int((dense.seen.up != shifted.seen.up).sum())
    measure: dict[str, Any] = {"changed_by_shift": [by_index, int(dense.seen.inexact.sum())]}
    if by_index == 0:
        return "index", measure
    if plain is None or both is None:
        return "place", measure
    along = in_runs(plain.seen, 1, both.seen)
    measure["differ_at_equal_address"] = list(along)
    if along[0]:
        return "place", measure
    if moved is None:
        return "address", measure
    by_send, by_recv = in_runs(plain.seen, 1, moved.seen)[0], in_runs(plain.seen, 0, moved.seen)[0]
    measure["send_moved_alone"] = {"differ_at_equal_send_address": by_send, "differ_at_equal_receive_address": by_recv}
    if by_send == 0 < by_recv:
        return "send address", measure
    return ("receive address", measure) if by_recv == 0 < by_send else ("address", measure)


# ----------------------------------------------------------------------------------------------------------------- outputs


def inexact_pairs(a: Reading, b: Reading) -> tuple[int, int]:
    """(inexact elements that differ, inexact elements) between two repeats of the same inputs."""
    use = a.seen.inexact
    return int((use & (a.seen.up != b.seen.up)).sum()), int(use.sum())


def receive_rows(trial: Trial, index: int) -> tuple[int, int]:
    """(receiving rank, receive index) of a send index."""
    for rank in trial.call.receivers(trial.rank_n):
        first, last = inputs.receiver_range(trial, rank)
        if first <= index < last:
            return rank, index - first
    raise ValueError(f"send index {index} lands nowhere")


def output_at(view: ArmView, trial: Trial, repeat: int, index: int) -> tuple[int, int, Codes]:
    rank, at = receive_rows(trial, index)
    return rank, at, view.output(trial.trial_id, repeat, rank)[at : at + 1]
