"""In which order are the terms added, and where is the sum rounded on the way? From three ranks up; with two, all orders are one.

An order is named only where it gives every bit of every element of the trial: candidates are replayed (order_search), over data
whose partial sums are rounded at nearly every addition. Up to five ranks every binary tree is a candidate, from six on a bank of
named ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor import inputs, kernels
from auditor.config import Scope
from auditor.model import ArmView, Codes, Evidence, Finding, Trial, Verdict
from auditor.numerics.schedules import ENUMERATED, bank, name_of, text_of
from auditor.probes import common
from auditor.probes.differences import Stable, stable
from auditor.probes.order_search import Eliminated, Replayed, Search, Terms, eliminated, search
from auditor.probes.unwritten import unwritten_mask

NAME = "order"
KINDS = ("summation_tree",)
NEEDS = "a sum over three ranks or more (up to 64)"

FAMILY = "wide"
RANKS = range(3, 65)
COUNTS = 3  # of the sweep's, the largest
FEWEST, OWN = 256, 4096  # elements that say enough; a count of our own where the sweep has none of that many
LOOKED = 1 << 16  # elements over which every candidate is counted
SHOWN = 12


# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """The largest counts of each sum, out of place and least shifted; shared with placement where that runs too."""
    large = sorted(count for count in set(scope.sweep.count) if count >= FEWEST)[-COUNTS:] or [OWN]
    best: dict[tuple[Any, ...], Trial] = {}
    for point in scope.points():
        if point.call.op != "sum" or len(point.members) not in RANKS:
            continue
        key = (*common.cell(point), point.call.group, point.call.root)
        if key not in best or _rank(point) < _rank(best[key]):
            best[key] = point
    for point in best.values():
        for count in large:
            yield point.with_(count=count, family=scope.families(FAMILY)[0]), max(2, scope.sweep.repeats)


def _rank(point: Trial) -> tuple[bool, int]:
    return point.in_place, point.send_shift + point.recv_shift


# --------------------------------------------------------------------------------------------------------------- analyze


@dataclass(frozen=True, slots=True)
class _Seen:
    """One trial that repeats itself, with what was found on it."""

    one: Stable
    output: Codes  # by send index
    found: Search

    @property
    def account(self) -> Replayed | None:
        return self.found.accounts[0] if self.found.accounts else None

    @property
    def n(self) -> int:
        return len(self.one.trial.members)

    @property
    def undecided(self) -> int:
        """Trees left, in the segment that leaves most."""
        return max(len(one.trees) for one in self.account.segments) if self.account else 0

    @property
    def name(self) -> str:
        if self.account is None:
            return "unknown"
        choices = [one.trees for one in self.account.segments]
        return "undetermined" if self.undecided > 1 and len(choices) == 1 else name_of(choices, self.n)


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a cell (collective, op, format)."""
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in common.trials_of(view, NAME):
        cells.setdefault(common.cell(planned.trial), []).append(planned.trial)
    for trials in cells.values():
        yield _summation_tree(view, trials)


def _summation_tree(view: ArmView, trials: Sequence[Trial]) -> Finding:
    seen, why_not = [], ""
    for trial in trials:
        one = stable(view, trial)
        if one is None:
            why_not = why_not or common.no_data_reason(view, [trial])
        elif any(unwritten_mask(view, trial, rank).any() for rank in one.seen):
            why_not = why_not or "elements are left unwritten"
        else:
            output = _by_send_index(view, one)
            seen.append(_Seen(one, output, search(trial.call.fmt, len(trial.members), output, _terms(trial))))
    if not seen:
        unstable = "no trial repeats itself" if why_not == "nothing was recorded" else why_not
        return common.inconclusive(view, NAME, "summation_tree", trials, unstable)
    return _finding(view, trials, seen)


def _by_send_index(view: ArmView, one: Stable) -> Codes:
    """The output of one receiver, or of a reduce_scatter the shares in the order of the data."""
    trial = one.trial
    ranks = list(trial.members) if trial.call.collective == "reduce_scatter" else [next(iter(one.seen))]
    return np.concatenate([view.output(trial.trial_id, one.seen[rank].repeat, rank) for rank in ranks])


def _terms(trial: Trial) -> Terms:
    return lambda start, stop: inputs.terms(trial, 0, start, stop, evaluate=kernels.evaluate)


def _finding(view: ArmView, trials: Sequence[Trial], seen: Sequence[_Seen]) -> Finding:
    names = list(dict.fromkeys(one.name for one in seen))
    main = max(seen, key=lambda one: (one.account is not None, len(one.output)))
    rows, deciding = _eliminated(main)
    measure = {
        "schedule": names[0] if len(names) == 1 else "several",
        "schedules": names,
        "arithmetic": str(main.account.arithmetic) if main.account else "none of those tried",
        "other_arithmetics": [str(other.arithmetic) for other in main.found.accounts[1:]],
        "explained": main.found.explained,
        "elements": sum(len(one.output) for one in seen),
        "elements_matched": sum(one.account.matched for one in seen if one.account),
        "elements_deciding": deciding,
        "candidates": len(bank(main.n)),
        "trees_left": main.undecided,
        "by_trial": [_by_trial(one) for one in seen],
        "eliminated": [_row(row) for row in rows[:SHOWN]],
        "evidence_total": len(rows),
    }
    return common.finding(
        view,
        NAME,
        "summation_tree",
        _verdict(view, names),
        f"{common.where(trials)}: {_words(seen, main, rows)}",
        trials=[one.one.trial for one in seen],
        measure=measure,
        evidence=_evidence(main, rows),
        limits=_limits(main, names),
    )


def _verdict(view: ArmView, names: Sequence[str]) -> Verdict:
    if "unknown" in names:
        return Verdict.INCONCLUSIVE
    verdicts = [common.verdict_for_value(view, "summation_tree", name, _possible(name)) for name in names]
    return Verdict.worst(verdicts)


def _possible(name: str) -> tuple[str, ...]:
    """What an order that does not show may still be."""
    every = (
        "ring",
        "sequential",
        "recursive_doubling",
        "recursive_halving",
        "chain",
        "chains",
        "tree",
        "trees",
        "fused",
    )
    return every if name == "undetermined" else ()


def _by_trial(one: _Seen) -> dict[str, Any]:
    call = one.one.trial.call
    segments = one.account.segments if one.account else ()
    return {
        "trial": one.one.trial.trial_id,
        "count": call.count,
        "schedule": one.name,
        "arithmetic": str(one.account.arithmetic) if one.account else "",
        "elements": len(one.output),
        "segments": [
            {"start": part.start, "stop": part.stop, "tree": text_of(part.trees[0]), "trees": len(part.trees)}
            for part in segments[:SHOWN]
        ],
        "segments_total": len(segments),
    }


def _eliminated(main: _Seen) -> tuple[list[Eliminated], int]:
    if main.account is None:
        return [], 0
    return eliminated(main.account, main.n, main.output, _terms(main.one.trial), LOOKED)


def _row(row: Eliminated) -> dict[str, Any]:
    return {"tree": text_of(row.tree), "mismatches": row.mismatches, "first_mismatch": row.first}


def _evidence(main: _Seen, rows: Sequence[Eliminated]) -> list[Evidence]:
    """For each candidate that failed, its first mismatch: `expected` is what it would have given there."""
    trial, fmt, found = main.one.trial, main.one.trial.call.fmt, []
    for row in rows[: common.MAX_ROWS // 2]:
        rank = next(rank for rank in main.one.seen if _holds(trial, rank, row.first))
        index = row.first - inputs.receiver_range(trial, rank)[0]
        seen, codes = main.one.seen[rank], np.array([main.output[row.first]], fmt.dtype)
        (shown,) = common.evidence_rows(
            trial, seen, [index], codes, f"{common.hex_code(fmt, row.code)} by {text_of(row.tree)}"
        )
        found.append(shown)
    return found


def _holds(trial: Trial, rank: int, send_index: int) -> bool:
    first, last = inputs.receiver_range(trial, rank)
    return first <= send_index < last


# ----------------------------------------------------------------------------------------------------------------- words


def _words(seen: Sequence[_Seen], main: _Seen, rows: Sequence[Eliminated]) -> str:
    total = sum(len(one.output) for one in seen)
    if main.account is None:
        best = max(main.found.explained.items(), key=lambda item: item[1])
        return (
            f"no order that was tried gives these bits; the nearest, {best[0]}, explains {best[1]:.1%} of a sample, one element "
            "at a time."
        )
    how = str(main.account.arithmetic)
    if main.name == "fused":
        return f"{how}, replays each of {total:,} elements: no order shows."
    if main.name == "undetermined":
        left = f"{main.undecided} of {len(bank(main.n))} orders"
        alike = (
            " One exact sum, rounded once, gives the same."
            if any(o.arithmetic.exact for o in main.found.accounts)
            else ""
        )
        return f"{how}, {left} replay each of {total:,} elements: which it is does not show.{alike}"
    by_name: dict[str, list[_Seen]] = {}
    for one in seen:
        by_name.setdefault(one.name, []).append(one)
    parts = [f"{_order_words(some)}{_counts(some, len(by_name))}" for some in by_name.values()]
    others = f"; {len(rows)} of {len(bank(main.n))} orders fail" if rows and main.name != "ring" else ""
    return f"{'; '.join(parts)}, {how}, replayed on each of {total:,} elements{others}."


def _counts(some: Sequence[_Seen], names: int) -> str:
    counts = sorted({one.one.trial.call.count for one in some})
    return f" at count {common.listed(counts)}" if names > 1 else ""


def _order_words(some: Sequence[_Seen]) -> str:
    one = max(some, key=lambda other: len(other.output))
    if one.account is None:
        return "no order that was tried"
    trees = list(dict.fromkeys(text_of(part.trees[0]) for part in one.account.segments))
    shown = common.listed(trees, 4)
    return {
        "ring": f"a ring, which begins at another rank for each of {len(one.account.segments)} chunks: {shown}",
        "recursive_doubling": f"recursive doubling, {shown}",
        "recursive_halving": f"recursive halving, {shown}",
        "sequential": f"one rank after the other, {shown}",
    }.get(one.name, f"the order {shown}" if len(trees) == 1 else f"orders that change along the range: {shown}")


def _limits(main: _Seen, names: Sequence[str]) -> str:
    if main.account is None:
        return "Other accumulators, other places of rounding, or an order outside the bank; nothing is said of which."
    every = (
        "Every binary tree was a candidate."
        if main.n <= ENUMERATED
        else "From six ranks on the candidates are a bank of named trees."
    )
    ends = (
        " A segment may end earlier than stated, by elements that both orders round alike."
        if len(main.account.segments) > 1
        else ""
    )
    three = " Of three ranks every order is a chain: its direction does not show." if main.n == 3 else ""
    sizes = " Other counts may take other orders." if len(names) == 1 else ""
    return f"{every}{three}{ends}{sizes} `expected` is what a candidate that failed would have given."
