"""Does the place of an element decide its bits? Its shift, the count around it, its position in the range, in place or not.

The same data are put elsewhere and compared by data index, never by position (NUMERICS §9, 10). A dependence is legal unless
``[expect]`` says otherwise; what it says of an order or of a split between scalar and vector code is for the vendor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import Any

from auditor.config import Scope
from auditor.model import ArmView, Finding, Trial
from auditor.probes import common
from auditor.probes.differences import (
    WORD,
    Flips,
    Stable,
    base_trials,
    repeats_of,
    shift_name,
    stable,
)
from auditor.probes.pairs import Pairs, changes, compare_tiles, too_little
from auditor.probes.splits import PathSplit

NAME = "placement"
KINDS = ("shift_dependence", "count_dependence", "position_dependence", "in_place_difference", "path_split")

# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """Every point of the sweep, shared with repeatability, and tiled trials at two counts a cell."""
    repeats = repeats_of(scope)
    for trial in base_trials(scope):
        yield trial, repeats
    for trial in tiled_trials(scope):
        yield trial, repeats


def tiled_trials(scope: Scope) -> Iterator[Trial]:
    """Copies of one block all along the range, at the smallest shift, for a middle count and the largest.

    A block is a whole number of 16-byte words, so that position is not mixed with alignment, and that number shares no factor
    with 210, so that a schedule that repeats itself after a round number of elements cannot hide behind the tiles' period.
    """
    counts = sorted({count for count in scope.sweep.count if count})
    chosen = {counts[-1], counts[max(0, min(len(counts) // 2, len(counts) - 2))]} if counts else set()
    shift, in_place = min(scope.sweep.shift, default=(0, 0)), min(scope.sweep.in_place, default=False)
    for trial in base_trials(scope):
        at = (trial.send_shift, trial.recv_shift), trial.in_place
        if trial.call.count in chosen and at == (shift, in_place) and len(trial.members) > 1:
            yield from _tiled(trial)


def _tiled(trial: Trial) -> Iterator[Trial]:
    """Two tiles for each member: of a reduce_scatter in each share, else over the whole range."""
    tiles = 2 if trial.call.collective == "reduce_scatter" else 2 * len(trial.members)
    block = _block(trial.call.count // tiles, trial.call.fmt.itemsize)
    if block:
        total = tiles * len(trial.members) if trial.call.collective == "reduce_scatter" else tiles
        yield trial.with_(count=tiles * block, tiled=total)


def _block(room: int, itemsize: int) -> int:
    """The largest block of at most ``room`` elements that is a good one; as large as ``room`` where that is below a word."""
    words = room * itemsize // WORD
    while words > 1 and gcd(words, 210) > 1:
        words -= 1
    return words * WORD // itemsize or room


# --------------------------------------------------------------------------------------------------------------- analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a kind and cell (collective, op, format), from the trials that repeat themselves."""
    flips = Flips(view)
    for trials in _cells(view):
        base = [trial for trial in trials if trial.tiled == 1]
        tiled = [trial for trial in trials if trial.tiled > 1]
        answers = {trial: one for trial in trials if (one := stable(view, trial)) is not None}
        split = PathSplit()
        yield from _shift(view, flips, base, answers, split)
        yield from _count(view, flips, base, answers, split)
        yield from _position(view, flips, tiled, answers)
        yield from _in_place(view, flips, base, answers)
        yield from _path_split(view, base, split)


def _cells(view: ArmView) -> list[list[Trial]]:
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in common.trials_of(view, NAME):
        if planned.trial.call.count and not common.refused(view, planned.trial):
            cells.setdefault(common.cell(planned.trial), []).append(planned.trial)
    return list(cells.values())


def _groups(answers: dict[Trial, Stable], trials: Sequence[Trial], **same: Any) -> list[list[Stable]]:
    """Trials that repeat themselves, grouped by all but the fields of ``same``; groups of one left out."""
    groups: dict[Trial, list[Stable]] = {}
    for trial in trials:
        if trial in answers:
            groups.setdefault(trial.with_(**same), []).append(answers[trial])
    return [group for group in groups.values() if len(group) > 1]


# -------------------------------------------------------------------------------------------------------- shift_dependence


def _shift(
    view: ArmView, flips: Flips, trials: Sequence[Trial], answers: dict[Trial, Stable], split: PathSplit
) -> Iterator[Finding]:
    if len({shift_name(trial) for trial in trials}) < 2:
        return  # not asked
    found = Pairs(view, flips, split=split)
    references = set()
    for group in _groups(answers, trials, send_shift=0, recv_shift=0):
        reference, *others = sorted(group, key=lambda one: (one.trial.send_shift, one.trial.recv_shift))
        references.add((reference.trial.send_shift, reference.trial.recv_shift))
        for other in others:
            found.add(shift_name(other.trial), reference, other)
    split.by_flips |= found.tally.by_flips
    if not found.tally.pairs:
        yield too_little(view, NAME, "shift_dependence", trials)
        return
    found.parts = dict(sorted(found.parts.items(), key=lambda item: [int(n) for n in item[0].split("/")]))
    moved = [name for name, part in found.parts.items() if part.changed]
    still = [name for name, part in found.parts.items() if not part.changed]
    yield found.finding(
        NAME,
        "shift_dependence",
        trials,
        _shift_claim(found, trials, moved, still),
        "Compared with the smallest shift, over this sweep's counts and data; other shifts and allocations may differ.",
        reference_shift=list(min(references)),
        changed={name: part.changed for name, part in found.parts.items()},
        compared={name: part.compared for name, part in found.parts.items()},
        changed_shifts=moved,
        unchanged_shifts=still,
        by_shift=found.by_part(),
    )


def _shift_claim(found: Pairs, trials: Sequence[Trial], moved: list[str], still: list[str]) -> str:
    where = common.where(trials)
    if not moved:
        return (
            f"{where}: the same data give the same bits at every shift tried ({common.listed(still)} elements); the share of "
            f"elements that change is below {found.high():.2g} (95 %)."
        )
    shares = [f"{name} ({found.parts[name].changed / found.parts[name].compared:.2%})" for name in moved]
    rest = f"; shifts of {common.listed(still)} change nothing" if still else ""
    return f"{where}: the same data give other bits when shifted by {common.listed(shares)} elements{rest}."


# -------------------------------------------------------------------------------------------------------- count_dependence


def _count(
    view: ArmView, flips: Flips, trials: Sequence[Trial], answers: dict[Trial, Stable], split: PathSplit
) -> Iterator[Finding]:
    if len({trial.call.count for trial in trials}) < 2:
        return  # not asked
    found = Pairs(view, flips, split=split)
    last_word = True
    for group in _groups(answers, trials, count=0):
        ordered = sorted(group, key=lambda one: one.trial.call.count)
        for a, b in pairwise(ordered):
            changed = found.add(f"{a.trial.call.count}-{b.trial.call.count}", a, b)
            last_word &= not changed or _in_last_word(view, a, b)
    split.by_flips |= found.tally.by_flips
    if not found.tally.pairs:
        yield too_little(view, NAME, "count_dependence", trials)
        return
    steps = [name for name, part in found.parts.items() if part.changed]
    last_word &= bool(steps)
    if steps:
        edge = " in the last 16-byte word of the shorter range alone" if last_word else ""
        claim = f"{common.where(trials)}: the same leading data give other bits{edge} when the count goes from {_steps(steps)}."
    else:
        claim = (
            f"{common.where(trials)}: the same leading data give the same bits at every count tried; the share of elements that "
            f"change is below {found.high():.2g} (95 %)."
        )
    yield found.finding(
        NAME,
        "count_dependence",
        trials,
        claim,
        "Each count is compared with the next one of the sweep, over the elements that both have (reduce_scatter: of the first "
        "member's share); a switch lies between the two counts named, not at one of them.",
        changed_between=[[int(n) for n in name.split("-")] for name in steps],
        by_step=found.by_part(),
        only_in_last_word=last_word,
    )


def _steps(names: list[str]) -> str:
    return common.listed([name.replace("-", " to ") for name in names])


def _in_last_word(view: ArmView, a: Stable, b: Stable) -> bool:
    """Whether all that differs lies in the last, possibly partial, 16-byte word of the shorter range."""
    word = WORD // a.trial.call.fmt.itemsize
    found, _, _ = changes(view, a, b)
    return all(not mask[: max(0, len(mask) - word)].any() for _, _, mask in found)


# ----------------------------------------------------------------------------------------------------- position_dependence


def _position(view: ArmView, flips: Flips, trials: Sequence[Trial], answers: dict[Trial, Stable]) -> Iterator[Finding]:
    if not trials:
        return
    found = Pairs(view, flips)
    orders = 1
    for trial in trials:
        if trial in answers:
            orders = max(orders, compare_tiles(found, answers[trial]))
    if not found.tally.pairs:
        yield too_little(view, NAME, "position_dependence", trials)
        return
    if found.tally.changed:
        claim = (
            f"{common.where(trials)}: the same data give up to {orders} different results by where in the range they stand "
            f"({found.tally.changed / found.tally.compared:.2%} of elements differ from the first copy)."
        )
    else:
        claim = (
            f"{common.where(trials)}: copies of the same data give the same bits all along the range; the share of elements that "
            f"differ is below {found.high():.2g} (95 %)."
        )
    yield found.finding(
        NAME,
        "position_dependence",
        trials,
        claim,
        "The range is tiled with copies of one block; an order that changes only inside a block, or only beyond these counts, "
        "does not show.",
        orders=orders,
        by_tile=found.by_part(),
        block_bytes_mod_16=sorted({t.send_count // t.tiled * t.call.fmt.itemsize % WORD for t in trials}),
    )


# ----------------------------------------------------------------------------------------------------- in_place_difference


def _in_place(view: ArmView, flips: Flips, trials: Sequence[Trial], answers: dict[Trial, Stable]) -> Iterator[Finding]:
    if len({trial.in_place for trial in trials}) < 2:
        return  # not asked
    found = Pairs(view, flips)
    for apart, together in _groups(answers, trials, in_place=False):
        a, b = (apart, together) if together.trial.in_place else (together, apart)
        found.add(f"{a.trial.call.count}", a, b)
    if not found.tally.pairs:
        yield too_little(view, NAME, "in_place_difference", trials)
        return
    if found.tally.changed:
        where_at = [name for name, part in found.parts.items() if part.changed]
        claim = (
            f"{common.where(trials)}: in place the same data give other bits than out of place, at counts "
            f"{common.listed(where_at)}."
        )
    else:
        claim = (
            f"{common.where(trials)}: in place and out of place give the same bits; the share of elements that change is below "
            f"{found.high():.2g} (95 %)."
        )
    yield found.finding(
        NAME,
        "in_place_difference",
        trials,
        claim,
        "Compared at equal counts and shifts; `expected` is the result out of place.",
        by_count=found.by_part(),
    )


# -------------------------------------------------------------------------------------------------------------- path_split


def _path_split(view: ArmView, trials: Sequence[Trial], split: PathSplit) -> Iterator[Finding]:
    if not split.pairs:
        return
    if split.by_flips:
        reason = "the subject changes between identical calls, which may explain what differs between places"
        yield common.inconclusive(view, NAME, "path_split", trials, reason)
        return
    present = split.confined or bool(split.reported)
    yield common.finding(
        view,
        NAME,
        "path_split",
        common.verdict_for(view, "path_split", present),
        f"{common.where(trials)}: {split.claim()}",
        trials=trials,
        measure=split.measure(),
        limits=(
            "Judged from which elements change when the range begins or ends elsewhere; two paths that round alike, or that "
            "differ on all elements at once, do not show here."
        ),
    )
