"""How far from the exact sum legal orders take a result, in ulp: the same data laid on the ranks in other ways.

The ranks keep their places in the library's order of additions, and the data change ranks: so each way is another order of the
same sums. The distance is a measure, not a defect; ``[expect] ulp_bound`` makes it one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.config import Scope
from auditor.model import ArmView, Codes, Evidence, Finding, Trial, Verdict
from auditor.numerics.recipes import COMMON, Stream
from auditor.numerics.ulp_error import err_ulp
from auditor.numerics.ulps import is_nan, ulp_steps
from auditor.probes.common import (
    cell,
    evidence_rows,
    finding,
    inconclusive,
    no_data_reason,
    plural,
    receiving,
    trials_of,
    where,
)
from auditor.probes.expected import Block, blocks, nearest_code
from auditor.probes.values import to_float64

NAME = "tolerance"
KINDS = ("ulp_bound",)
NEEDS = "a sum over two ranks or more and a count of at least 1"
WAYS = 6  # of laying the data on the ranks
LISTED = 5  # members up to which every way is listed, and the first are taken; of more they are drawn
WAY_STREAM = 0x75
CANCELS = 4.0


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """The largest count, out of place and unshifted where the axes have that; each family in a few ways."""
    yield from plan_ways(scope, WAYS)


def plan_ways(scope: Scope, ways: int, repeats: int = 1) -> Iterator[tuple[Trial, int]]:
    """The same with at most ``ways`` ways. The first is the plain one, each rank with its own data."""
    for call in scope.calls():
        count = scope.telling_counts(1)[0]
        if call.op != "sum" or not count or len(call.members(scope.arm.ranks)) < 2:
            continue
        shift = scope.telling_shifts(1)[0]
        for family in scope.families("wide"):
            base = Trial(
                call=call, rank_n=scope.arm.ranks, family=family, seed=scope.sweep.seed[0],
                send_shift=shift[0], recv_shift=shift[1],
            ).with_(count=count)  # fmt: skip
            yield from ((base.with_(active=way), repeats) for way in laid_out(len(base.members), ways))


def laid_out(members: int, ways: int) -> list[str]:
    """Ways of laying contributors on members, as a trial's ``active``: ``all`` first, then others, none twice."""
    if members <= LISTED:
        every: Iterator[Sequence[int]] = permutations(range(members))
        return ["all", *(_text(way) for way in islice(every, 1, ways))]
    drawn = dict.fromkeys(_text(_drawn(members, number)) for number in range(2 * ways))
    drawn.pop(_text(range(members)), None)
    return ["all", *drawn][:ways]


def _drawn(members: int, number: int) -> Sequence[int]:
    words = Stream(number, COMMON, WAY_STREAM).words(0, members)
    return [int(place) for place in np.argsort(words, kind="stable")]


def _text(way: Sequence[int]) -> str:
    return ",".join(map(str, way))


# ---------------------------------------------------------------------------------------------------------- analysis


@dataclass(slots=True)
class _Worst:
    """The farthest output of one cell."""

    steps: int = -1
    error: float = 0.0
    condition: float = 0.0
    elements: int = 0
    nan: int = 0
    row: Any = None  # makes the evidence row of the farthest element

    def add(self, trial: Trial, seen: Any, part: slice, data: Block, codes: Codes) -> None:
        fmt = trial.call.fmt
        self.elements += len(codes)
        numbers = ~(is_nan(fmt, codes) | ~data.split.finite)
        self.nan += int((is_nan(fmt, codes) & data.split.finite).sum())
        if not numbers.any():
            return
        nearest = nearest_code(trial, data)
        steps = np.where(numbers, ulp_steps(fmt, codes, nearest), np.uint64(0))
        self.error = max(self.error, float(np.nanmax(np.abs(err_ulp(fmt, codes, data.split)), initial=0.0)))
        self.condition = max(self.condition, _condition(trial, data))
        at = int(np.argmax(steps))
        if int(steps[at]) > self.steps:
            self.steps = int(steps[at])
            index = part.start + at
            one, want = codes[at : at + 1], nearest[at : at + 1]
            self.row = partial(evidence_rows, trial, seen, [index], one, want)


def _condition(trial: Trial, data: Block) -> float:
    """Sum of magnitudes over magnitude of the sum, at the worst element; a sum of zero counts as infinite."""
    values = np.stack([to_float64(trial.call.fmt, term) for term in data.terms])
    with np.errstate(all="ignore"):
        ratio: npt.NDArray[np.float64] = np.abs(values).sum(axis=0) / np.abs(values.sum(axis=0))
    usable = ratio[~np.isnan(ratio) & data.split.finite]
    return float(np.max(usable, initial=0.0))


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a cell."""
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in trials_of(view, NAME):
        cells.setdefault(cell(planned.trial), []).append(planned.trial)
    for trials in cells.values():
        yield _finding(view, trials)


def outputs(view: ArmView, trial: Trial) -> Iterator[tuple[Any, Codes]]:
    """Each receiver's output of the first repeat; of ranks with the same bits of the same sums only the first."""
    told = set()
    for seen in receiving(view, trial):
        key = (seen.digest, seen.rank if trial.call.collective == "reduce_scatter" else -1)
        if seen.repeat == 0 and key not in told:
            told.add(key)
            yield seen, view.output(trial.trial_id, seen.repeat, seen.rank)


def _finding(view: ArmView, trials: Sequence[Trial]) -> Finding:
    worst, looked = _Worst(), []
    for trial in trials:
        for seen, codes in outputs(view, trial):
            looked.append(trial)
            for part, data in blocks(trial, seen.repeat, seen.rank):
                worst.add(trial, seen, part, data, codes[part])
    ways = len({trial.active for trial in looked})
    if not looked or worst.steps < 0:
        return inconclusive(view, NAME, KINDS[0], trials, no_data_reason(view, trials))
    stated = view.expect.get(KINDS[0])
    claim = (
        f"{where(looked)}: laid on the ranks in {plural(ways, 'way')}, the same data give results of at most "
        f"{plural(worst.steps, 'step')} ({worst.error:.3g} ulp) from the correctly rounded sum."
    )
    rows: list[Evidence] = worst.row() if worst.row is not None and worst.steps else []
    measure = {
        "worst_steps": worst.steps,
        "worst_error_ulp": worst.error,
        "ways": ways,
        "elements": worst.elements,
        "nan": worst.nan,
        "cancellation": worst.condition if np.isfinite(worst.condition) else None,
        **({"stated_bound": stated} if _is_number(stated) else {}),
    }
    verdict = _verdict(stated, worst)
    return finding(
        view, NAME, KINDS[0], verdict, claim, trials=looked, measure=measure, evidence=rows, limits=_limits(worst, ways)
    )


def _is_number(stated: Any) -> bool:
    return isinstance(stated, int | float) and not isinstance(stated, bool)


def _verdict(stated: Any, worst: _Worst) -> Verdict:
    if not _is_number(stated):
        return Verdict.INFORMATION
    return Verdict.PASS if worst.steps <= stated and not worst.nan else Verdict.FAIL


def _limits(worst: _Worst, ways: int) -> str:
    told = f"{plural(ways, 'way')} of laying the data out and one algorithm: another order may lie farther away."
    if worst.condition > CANCELS:
        most = f"{worst.condition:.3g} times" if np.isfinite(worst.condition) else "any number of times"
        told += (
            f" Terms of both signs cancel here (the sum of magnitudes is up to {most} the result), so a distance in ulp of the "
            "result says little of the additions."
        )
    return told
