"""What each rank sends in a trial: ``active``, ``tiled`` and ``inputs`` applied to a family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from auditor.errors import ConfigError
from auditor.inputs.families import generate, recipe
from auditor.model import Codes, Trial
from auditor.numerics.recipes import Recipe, indices

Evaluate = Callable[[Recipe, int, int], Codes]


def active_positions(trial: Trial) -> tuple[int, ...]:
    """Positions within the group that send data: all of them for ``all`` and ``pairs``. Raises ConfigError."""
    n = len(trial.members)
    if trial.active == "pairs" and n < 2:
        raise ConfigError(f"active = 'pairs' needs 2 ranks, the group has {n}")
    if trial.active in ("all", "pairs"):
        return tuple(range(n))
    try:
        positions = tuple(int(part) for part in trial.active.split(","))
    except ValueError:
        positions = ()
    if not positions or len(set(positions)) < len(positions) or not all(0 <= p < n for p in positions):
        raise ConfigError(
            f"active = {trial.active!r} is none of 'all', 'pairs', or different positions 0..{n - 1} as '0,2'"
        )
    return positions


@lru_cache(maxsize=64)
def _pair_table(n: int, position: int) -> npt.NDArray[np.int8]:
    """Role of a position in each pair of n, in lexicographic order: 0 first, 1 second, -1 none."""
    pairs = combinations(range(n), 2)
    return np.array([pair.index(position) if position in pair else -1 for pair in pairs], np.int8)


def send_codes(
    trial: Trial, repeat: int, rank: int, start: int, stop: int, *, evaluate: Evaluate | None = None
) -> Codes:
    """What global rank ``rank`` sends at the send indices [start, stop): codes of shape (stop - start,); +0 where
    it is not active.

    ``evaluate`` is a faster twin of ``numerics.recipes.evaluate`` (``kernels.evaluate``). Raises ConfigError as
    ``check`` does.
    """
    parts = [_untiled(trial, repeat, rank, a, b, evaluate) for a, b in _tiles(trial, start, stop)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, trial.call.fmt.dtype)


def _tiles(trial: Trial, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The ranges of data indices that lie, one after the other, at the send indices [start, stop)."""
    if trial.tiled < 1 or trial.send_count % trial.tiled:
        raise ConfigError(f"tiled = {trial.tiled} does not divide the send count {trial.send_count}")
    period = trial.send_count // trial.tiled
    while start < stop:
        first = start % period if trial.tiled > 1 else start
        size = min(stop - start, period - first) if trial.tiled > 1 else stop - start
        yield first, first + size
        start += size


def _untiled(trial: Trial, repeat: int, rank: int, start: int, stop: int, evaluate: Evaluate | None) -> Codes:
    position = trial.members.index(rank)
    positions = active_positions(trial)
    if trial.active == "pairs" and len(positions) > 2:
        return _paired(trial, repeat, position, start, stop, evaluate)
    if position not in positions:
        return np.zeros(stop - start, trial.call.fmt.dtype)
    return _family_codes(trial, repeat, len(positions), positions.index(position), start, stop, evaluate)


def _family_codes(
    trial: Trial, repeat: int, rank_n: int, rank: int, start: int, stop: int, evaluate: Evaluate | None
) -> Codes:
    fmt, seed = trial.call.fmt, trial.seed_of(repeat)
    if evaluate is not None:
        resolved = recipe(trial.family, fmt, seed, rank_n, rank)
        if resolved is not None:
            return evaluate(resolved, start, stop)
    return generate(trial.family, fmt, seed, rank_n, rank, start, stop)


def _paired(trial: Trial, repeat: int, position: int, start: int, stop: int, evaluate: Evaluate | None) -> Codes:
    """Element i belongs to pair number i mod C(n,2): its two members send what two contributors would."""
    table = _pair_table(len(trial.members), position)
    role = table[(indices(start, stop) % np.uint64(len(table))).astype(np.intp)]
    codes = np.zeros(stop - start, trial.call.fmt.dtype)
    for rank in (0, 1):
        mask = role == rank
        if mask.any():
            np.copyto(codes, _family_codes(trial, repeat, 2, rank, start, stop, evaluate), where=mask)
    return codes


def terms(trial: Trial, repeat: int, start: int, stop: int, *, evaluate: Evaluate | None = None) -> list[Codes]:
    """``send_codes`` of every member, in group order."""
    return [send_codes(trial, repeat, rank, start, stop, evaluate=evaluate) for rank in trial.members]


def receiver_range(trial: Trial, rank: int) -> tuple[int, int]:
    """The send indices whose sums land in this receiver's range: its share of a reduce_scatter, else all of them."""
    if trial.call.collective != "reduce_scatter":
        return 0, trial.call.count
    first = trial.members.index(rank) * trial.call.count
    return first, first + trial.call.count
