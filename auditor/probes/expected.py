"""What a trial must give: the terms, the exact sums and their neighbours, in blocks, recomputed from the trial alone.

Blocks are cached by what their data depend on, so trials that differ by prefill, shift, fills or variant share them.
Memory is bounded: a trial of 2**24 elements is never held whole.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs, kernels
from auditor.model import Codes, Observation, Trial
from auditor.numerics import rounding
from auditor.numerics.exact import Sums, exact_sums
from auditor.numerics.formats import Format
from auditor.numerics.rounding import Split

BLOCK = 1 << 18  # elements at once, for up to 8 members; fewer for more
CACHE_BYTES = 192 << 20
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Data of the send indices [start, stop): ``terms``: an array a member, in group order; sums, split: of op sum."""

    start: int
    stop: int
    terms: tuple[Codes, ...]
    sums: Sums
    split: Split

    @property
    def nbytes(self) -> int:
        per_element = len(self.terms) * self.terms[0].itemsize + 15 + 13 + 2 * self.terms[0].itemsize
        return (self.stop - self.start) * per_element


_cache: OrderedDict[tuple[Any, ...], Block] = OrderedDict()


def _key(trial: Trial, repeat: int, start: int, stop: int) -> tuple[Any, ...]:
    """Everything that the data of a block depend on, and nothing else."""
    call = trial.call
    period = trial.send_count if trial.tiled > 1 else 0
    shape = (call.format, trial.rank_n, call.group, period, trial.active, trial.tiled)
    return (str(trial.family), trial.seed_of(repeat), *shape, start, stop)


def block(trial: Trial, repeat: int, start: int, stop: int) -> Block:
    """The data of send indices [start, stop) in one repeat; at most ``BLOCK`` elements. Cached, read-only."""
    if stop - start > BLOCK:
        raise ValueError(f"[{start}, {stop}) is more than {BLOCK} elements; iterate over blocks()")
    key = _key(trial, repeat, start, stop)
    if key in _cache:
        _cache.move_to_end(key)
        return _cache[key]
    terms = tuple(inputs.terms(trial, repeat, start, stop, evaluate=kernels.evaluate))
    sums = exact_sums(trial.call.fmt, terms)
    made = Block(start, stop, terms, sums, rounding.split(trial.call.fmt, sums))
    _cache[key] = made
    while len(_cache) > 1 and sum(b.nbytes for b in _cache.values()) > CACHE_BYTES:
        _cache.popitem(last=False)
    return made


def step_of(trial: Trial) -> int:
    """Elements of one block: ``BLOCK``, less where there are many members, so that a block's terms stay bounded."""
    return max(1 << 10, min(BLOCK, (8 * BLOCK) // (1 << (len(trial.members) - 1).bit_length())))


def spans(trial: Trial, rank: int) -> Iterator[tuple[slice, int, int]]:
    """Pieces of one receiver's range: (slice of its output, first and last + 1 send index whose sum lands there)."""
    first, last = inputs.receiver_range(trial, rank)
    step = step_of(trial)
    for start in range(first, last, step):
        stop = min(start + step, last)
        yield slice(start - first, stop - first), start, stop


def blocks(trial: Trial, repeat: int, rank: int) -> Iterator[tuple[slice, Block]]:
    """(slice of the rank's output, data of the sums that land there), in order."""
    for part, start, stop in spans(trial, rank):
        yield part, block(trial, repeat, start, stop)


def gather(trial: Trial, repeat: int, send_indices: npt.NDArray[np.int64]) -> list[Codes]:
    """Every member's codes at ascending send indices, in group order; shape (n,) each."""
    parts: list[tuple[Codes, ...]] = []
    step = step_of(trial)
    for start in range(0, trial.send_count, step):
        stop = min(start + step, trial.send_count)
        low, high = np.searchsorted(send_indices, (start, stop))
        if low < high:
            data = block(trial, repeat, start, stop)
            parts.append(tuple(term[send_indices[low:high] - start] for term in data.terms))
    if not parts:
        return [np.empty(0, trial.call.fmt.dtype) for _ in trial.members]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


_digests: OrderedDict[tuple[Any, ...], str] = OrderedDict()


def nearest_digest(trial: Trial, repeat: int, rank: int) -> str:
    """SHA-256 hex of the correctly rounded output of one receiver: equal digests need no further look."""
    key = _key(trial, repeat, *inputs.receiver_range(trial, rank))
    if key not in _digests:
        digest = hashlib.sha256()
        for _, data in blocks(trial, repeat, rank):
            digest.update(nearest_code(trial, data).tobytes())
        _digests[key] = digest.hexdigest()
        while len(_digests) > 4096:
            _digests.popitem(last=False)
    return _digests[key]


def is_nearest(trial: Trial, seen: Observation) -> bool:
    """Whether every element is the correctly rounded sum: as counted while recording, where that was done, else by digest."""
    if seen.off_nearest is not None:
        return seen.off_nearest == 0
    return seen.digest == nearest_digest(trial, seen.repeat, seen.rank)


def own_codes(trial: Trial, repeat: int, rank: int) -> Codes:
    """What the rank's receive range holds before an in-place call: its own terms of the sums that it receives."""
    if trial.call.collective == "reduce":
        return inputs.send_codes(trial, repeat, rank, 0, trial.call.count)
    return inputs.send_codes(trial, repeat, rank, *inputs.receiver_range(trial, rank))


def magnitude(trial: Trial, codes: Codes) -> Codes:
    return codes & codes.dtype.type(trial.call.fmt.magnitude_mask)


def is_faithful(trial: Trial, codes: Codes, data: Block) -> Mask:
    """Which outputs are the exact sum or one of its two neighbours; see :func:`faithful_to`."""
    return faithful_to(trial.call.fmt, codes, data.split)


def faithful_to(fmt: Format, codes: Codes, split: Split) -> Mask:
    """Which codes are the exact value or one of its two neighbours (any zero for a zero, any NaN for a NaN). Shape (n,).

    Past the maximum the largest finite value and the code above it (infinity, or NaN) both count: `special` asks which.
    """
    kind = codes.dtype.type
    mag = codes & kind(fmt.magnitude_mask)
    negative = (codes & kind(fmt.sign_mask)) != 0
    up = (mag == split.lo + kind(1)) & split.inexact
    sign_right = (
        (negative == split.negative) | (mag == 0) | ((mag == kind(fmt.magnitude_mask)) & (not fmt.has_infinity))
    )
    finite = ((mag == split.lo) | up) & sign_right
    nan = mag > kind(fmt.overflow_code - (0 if fmt.has_infinity else 1))
    want_nan = (split.special & kind(fmt.magnitude_mask)) > kind(fmt.overflow_code - (0 if fmt.has_infinity else 1))
    return np.where(split.finite, finite, np.where(want_nan, nan, codes == split.special))


def nearest_code(trial: Trial, data: Block) -> Codes:
    """The correctly rounded sums (ties to even): shown as expected in evidence rows where several outputs are legal."""
    return rounding.join(trial.call.fmt, data.split, rounding.up_by_mode("ties_to_even", data.split))


def nearest_at(trial: Trial, repeat: int, rank: int, index: npt.NDArray[np.int64]) -> Codes:
    """:func:`nearest_code` at ascending receive indices of one rank; shape (n,)."""
    parts = [np.empty(0, trial.call.fmt.dtype)]
    for part, start, stop in spans(trial, rank):
        low, high = np.searchsorted(index, (part.start, part.stop))
        if low < high:
            data = block(trial, repeat, start, stop)
            parts.append(nearest_code(trial, data)[index[low:high] - part.start])
    return np.concatenate(parts)
