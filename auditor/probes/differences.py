"""What repeatability, placement and tail share: outputs compared by data index, and which differences chance may explain.

Nothing is claimed between two trials unless both repeat themselves (DESIGN §5). Two repeats that agree are weak evidence of that
where the subject flips now and then: a trial whose repeats *all* flipped looks stable and differs from its neighbours.
How often that is to be expected follows from the flips that were seen (:class:`Flips`), and only what exceeds it is laid at
the change under test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, lgamma, log
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import layout
from auditor.config import Scope
from auditor.model import ArmView, Codes, Evidence, Observation, Trial
from auditor.probes import common
from auditor.probes.expected import block, is_faithful, spans
from auditor.probes.statistics import clopper_pearson
from auditor.probes.unwritten import proved, untouched, unwritten_mask

Mask = npt.NDArray[np.bool_]

WORD = 16  # bytes
CHANCE = 1e-3  # a difference that flips explain with at least this probability is not laid at anything else
CHANCE_WORDS = "identical calls: by that alone up to {:.2g} are to be expected, so chance is not excluded"
FAMILY = "wide"  # its sums are inexact at every hop, so order, rounding and neighbours show


# ------------------------------------------------------------------------------------------------------------------ plan


def base_trials(scope: Scope) -> Iterator[Trial]:
    """Every point of the sweep that has elements, with data whose sums reveal order; shared by the three probes."""
    for point in scope.points():
        if point.call.count:
            for family in scope.families(FAMILY):
                yield point.with_(family=family)


def repeats_of(scope: Scope) -> int:
    """The sweep's repeats; two at least, since one cannot be compared."""
    return max(2, scope.sweep.repeats)


# ------------------------------------------------------------------------------------------------------ repeats of a trial


def same_inputs(view: ArmView, trial: Trial) -> list[dict[int, list[Observation]]]:
    """Observations by rank, once for each input that the trial repeats (two where its inputs alternate)."""
    groups: dict[int, dict[int, list[Observation]]] = {}
    for seen in common.receiving(view, trial):
        groups.setdefault(trial.seed_of(seen.repeat), {}).setdefault(seen.rank, []).append(seen)
    return list(groups.values())


def usual(observations: Iterable[Observation]) -> Observation:
    """One whose output is the most frequent; the earliest where several are."""
    some = list(observations)
    votes = Counter(seen.digest for seen in some)
    return max(some, key=lambda seen: votes[seen.digest])  # max keeps the first of equals


def issued_alike(trial: Trial) -> bool:
    """Whether all repeats of a trial are issued the same way, in one process and to one communicator."""
    return trial.call.count > 0 and trial.variant.partition(":")[0] not in ("fresh", "recreate")


@dataclass(frozen=True, slots=True)
class Stable:
    """A trial whose every receiver gave the same bits in at least two repeats: one observation a rank stands for it."""

    trial: Trial
    seen: Mapping[int, Observation]
    repeats: int

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self.seen[rank].digest for rank in sorted(self.seen))

    @property
    def path(self) -> str:
        return next((seen.path for seen in self.seen.values() if seen.path not in ("", "unreported")), "")


def stable(view: ArmView, trial: Trial) -> Stable | None:
    """The trial's one answer; None where it does not repeat itself, or where too little was recorded to know."""
    if trial.inputs != "same" or not issued_alike(trial):
        return None
    by_rank: dict[int, list[Observation]] = next(iter(same_inputs(view, trial)), {})
    if set(by_rank) != set(trial.call.receivers(trial.rank_n)):
        return None
    if any(len(seen) < 2 or len({one.digest for one in seen}) > 1 for seen in by_rank.values()):
        return None
    first = {rank: seen[0] for rank, seen in by_rank.items()}
    return Stable(trial, first, min(len(seen) for seen in by_rank.values()))


# ---------------------------------------------------------------------------------------------------------------- elements


def faithful(trial: Trial, seen: Observation, codes: Codes, among: Mask) -> Mask:
    """Which of ``among`` are the exact sum or one of its neighbours. ``codes``: the output or a prefix of it; op sum only."""
    found = np.zeros(len(codes), np.bool_)
    for part, start, stop in spans(trial, seen.rank):
        size = min(part.stop, len(codes)) - part.start
        if size > 0 and among[part].any():
            padded = np.zeros(stop - start, codes.dtype)
            padded[:size] = codes[part]
            found[part] = is_faithful(trial, padded, block(trial, seen.repeat, start, stop))[:size]
    return found & among


def left_out(view: ArmView, trial: Trial, rank: int) -> Mask:
    """Elements proved unwritten at the trial's point, or untouched in every repeat of this trial. An element that is written
    in some repeats and not in others stays in: that is a difference.
    """
    mask = unwritten_mask(view, trial, rank)
    one_each = {seen.digest: seen for seen in common.receiving(view, trial) if seen.rank == rank}
    if len(one_each) < 2 or not mask.any():
        return mask
    sure = proved(view, trial, rank)
    held = mask.copy()
    for seen in one_each.values():
        held &= untouched(trial, seen.repeat, rank, view.output(trial.trial_id, seen.repeat, rank))
    return held if sure is None else held | sure


def differing(
    view: ArmView,
    a: tuple[Trial, Observation],
    b: tuple[Trial, Observation],
    n: int | None = None,
    other: ArmView | None = None,
) -> Mask:
    """Elements (of the first ``n``) whose bits differ, those unwritten in either left out. ``other``: b's arm, if not a's."""
    size = min(a[0].call.count, b[0].call.count) if n is None else n
    sides = ((view, *a), (other or view, *b))
    x, y = (arm.output(trial.trial_id, seen.repeat, seen.rank)[:size] for arm, trial, seen in sides)
    mask: Mask = np.not_equal(x, y)
    for arm, trial, seen in sides:
        if mask.any():
            mask = mask & ~left_out(arm, trial, seen.rank)[:size]
    return mask


def first_address(trial: Trial, rank: int) -> int:
    """Byte address of the first receive element of a rank, modulo the 512 bytes that every arena is aligned to."""
    return layout.recv_range(trial, rank).offset % layout.ALIGNMENT


def shift_name(trial: Trial) -> str:
    """``3`` where both buffers are shifted alike, else ``send/receive``."""
    same = trial.send_shift == trial.recv_shift
    return str(trial.send_shift) if same else f"{trial.send_shift}/{trial.recv_shift}"


class Addresses:
    """Elements counted by (byte address mod 16) of where they land."""

    def __init__(self) -> None:
        self.changed: npt.NDArray[np.int64] = np.zeros(WORD, np.int64)
        self.compared: npt.NDArray[np.int64] = np.zeros(WORD, np.int64)

    def add(
        self, trial: Trial, rank: int, compared: int, indices: npt.NDArray[Any], times: int = 1, first: int = 0
    ) -> None:
        """``compared`` elements from index ``first`` on, ``times`` over; ``indices``: the receive indices that changed."""
        size, base = trial.call.fmt.itemsize, first_address(trial, rank)
        if len(indices):
            self.changed += np.bincount((base + indices * size) % WORD, minlength=WORD)
        period = WORD // size
        for lane in range(min(period, compared)):
            self.compared[(base + (first + lane) * size) % WORD] += times * (-(-(compared - lane) // period))

    def measure(self) -> dict[str, Any]:
        used = np.flatnonzero(self.compared)
        return {
            "changed_by_address_mod_16": {str(i): int(self.changed[i]) for i in used},
            "compared_by_address_mod_16": {str(i): int(self.compared[i]) for i in used},
        }


@dataclass(slots=True)
class Tally:
    """Comparisons of one cell: how many, how many changed, where, a sample of rows."""

    pairs: int = 0
    changed_pairs: int = 0
    compared: int = 0
    changed: int = 0
    by_chance: float = 0.0  # changed pairs to be expected from flips alone
    trials: dict[str, Trial] = field(default_factory=dict)
    addresses: Addresses = field(default_factory=Addresses)
    rows: list[Evidence] = field(default_factory=list)
    points: dict[str, list[int]] = field(default_factory=dict)  # by count and shift: [changed pairs, pairs]

    def at(self, trial: Trial, changed: int, pairs: int = 1) -> None:
        """Count for the grid of counts and shifts."""
        point = self.points.setdefault(f"count={trial.call.count} shift={shift_name(trial)}", [0, 0])
        point[0], point[1] = point[0] + changed, point[1] + pairs

    def note(self, *trials: Trial) -> None:
        self.trials.update((trial.trial_id, trial) for trial in trials)

    def pair(self, changed: int, compared: int, by_chance: float = 0.0) -> None:
        self.pairs += 1
        self.changed_pairs += bool(changed)
        self.changed += changed
        self.compared += compared
        self.by_chance += by_chance

    def evidence(
        self,
        view: ArmView,
        a: tuple[Trial, Observation],
        b: tuple[Trial, Observation],
        mask: Mask,
        other: ArmView | None = None,
    ) -> None:
        """A few rows: ``observed`` is b's bits, ``expected`` a's. ``other``: b's arm, if not a's."""
        room = min(4, common.MAX_ROWS - len(self.rows))
        at = np.flatnonzero(mask)[: max(room, 0)]
        if len(at):
            (ta, sa), (tb, sb) = a, b
            seen = (other or view).output(tb.trial_id, sb.repeat, sb.rank)[at]
            wanted = view.output(ta.trial_id, sa.repeat, sa.rank)[at]
            self.rows += rows_at(tb, sb, at, seen, wanted)

    @property
    def by_flips(self) -> bool:
        """Whether flips between identical calls explain the changed pairs."""
        return bool(self.changed_pairs) and not exceeds_chance(self.changed_pairs, self.by_chance)

    def measure(self, **more: Any) -> dict[str, Any]:
        low, high = clopper_pearson(self.changed, self.compared)
        return {
            "pairs": self.pairs,
            "changed_pairs": self.changed_pairs,
            "changed_pairs_bounds_95": list(clopper_pearson(self.changed_pairs, self.pairs)),
            "elements_compared": self.compared,
            "elements_changed": self.changed,
            "share": self.changed / self.compared if self.compared else 0.0,
            "share_bounds_95": [low, high],
            **self.addresses.measure(),
            "by_point": self.points,
            "evidence_total": self.changed,
            **more,
        }


def rows_at(trial: Trial, seen: Observation, at: npt.NDArray[Any], observed: Codes, expected: Codes) -> list[Evidence]:
    """Evidence rows for codes given in the order of the indices ``at``."""
    fmt = trial.call.fmt
    return [
        Evidence(
            trial=trial.trial_id,
            rank=seen.rank,
            repeat=seen.repeat,
            index=int(index),
            inputs=tuple(
                common.hex_code(fmt, code) for code in common.term_codes(trial, seen.repeat, seen.rank, int(index))
            ),
            observed=common.hex_code(fmt, int(got)),
            expected=common.hex_code(fmt, int(wanted)),
        )
        for index, got, wanted in zip(at, observed, expected, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------------------ chance


class Flips:
    """How often identical calls differed, by cell and by parts of it; from every trial that has comparable repeats."""

    def __init__(self, view: ArmView) -> None:
        self._seen: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
        self._bounds: dict[tuple[int, int], float] = {}
        for planned in view.planned:
            if issued_alike(planned.trial):
                self._add(planned.trial, same_inputs(view, planned.trial))

    def _add(self, trial: Trial, groups: list[dict[int, list[Observation]]]) -> None:
        flipped, compared = 0, 0
        for by_rank in groups:
            odd = {o.repeat for seen in by_rank.values() for o in seen if o.digest != usual(seen).digest}
            n = max(len(seen) for seen in by_rank.values()) - 1
            flipped, compared = flipped + min(len(odd), n), compared + n
        for stratum in _strata(trial):
            self._seen[stratum][0] += flipped
            self._seen[stratum][1] += compared

    def rate(self, trial: Trial) -> float:
        """Upper bound (95 %) of the chance that one call of this trial flips; 0 where no call of its cell ever did."""
        seen = [self._seen[stratum] for stratum in _strata(trial) if stratum in self._seen]
        return max((self._bound(k, n) for k, n in seen if k), default=0.0)

    def _bound(self, k: int, n: int) -> float:
        if (k, n) not in self._bounds:
            self._bounds[k, n] = clopper_pearson(k, n)[1]
        return self._bounds[k, n]

    def alike_by_chance(self, one: Stable) -> float:
        """Chance that all repeats of a stable trial flipped alike, so that it looks changed and is not."""
        rate = self.rate(one.trial)
        return rate**one.repeats if rate else 0.0


def _strata(trial: Trial) -> list[tuple[Any, ...]]:
    cell = common.cell(trial)
    shift = (trial.send_shift, trial.recv_shift)
    return [cell, (*cell, "shift", shift), (*cell, "count", trial.call.count), (*cell, "in_place", trial.in_place)]


def exceeds_chance(seen: int, expected: float) -> bool:
    """Whether ``seen`` events are too many for a Poisson count of mean ``expected``: P(at least that many) < CHANCE."""
    if expected <= 0.0:
        return seen > 0
    below = sum(exp(k * log(expected) - expected - lgamma(k + 1)) for k in range(seen))
    return 1.0 - below < CHANCE


def flips_reason(tally: Tally) -> str:
    """Why a difference is not claimed; reads on after a colon."""
    return (
        f"{tally.changed_pairs} of {common.plural(tally.pairs, 'pair')} of trials differ, but the subject also changes between "
        f"{CHANCE_WORDS.format(tally.by_chance)}"
    )
