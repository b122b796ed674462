"""An in-memory ArmView: a function (trial, repeat, rank) -> codes stands in for a recorded subject."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from auditor import inputs, layout
from auditor.errors import EvidenceError
from auditor.model import Call, Codes, Family, Observation, Planned, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import round_sums

Output = Callable[[Trial, int, int], Codes]
Details = Callable[[Trial, int, int], Mapping[str, Any]]


class FakeView:
    """``output(trial, repeat, rank)`` gives the receive range of every rank of the group after the call.

    ``details(trial, repeat, rank)`` gives Observation fields that differ from a good one (status, send_after, outside).
    Outputs are computed when first asked for, and kept.
    """

    def __init__(
        self,
        planned: Iterable[Planned],
        output: Output,
        *,
        details: Details | None = None,
        expect: Mapping[str, Any] | None = None,
        late: Output | None = None,
        describe: Mapping[str, Any] | None = None,
        arm: str = "subject",
        backend: str = "fake",
    ) -> None:
        self.planned: Sequence[Planned] = tuple(planned)
        self.expect: Mapping[str, Any] = dict(expect or {})
        self.arm, self.backend = arm, backend
        self.rank_n = max((p.trial.rank_n for p in self.planned), default=1)
        self._trials = {p.trial.trial_id: p for p in self.planned}
        self._make, self._details, self._late = output, details, late
        self.describe: Mapping[str, Any] = dict(describe or {})
        self._outputs: dict[tuple[str, int, int], Codes] = {}
        self._seen: dict[str, list[Observation]] = {}

    def observations(self, trial_id: str) -> list[Observation]:
        planned = self._trials.get(trial_id)
        if planned is None:
            return []
        if trial_id not in self._seen:
            points = [(repeat, rank) for repeat in range(planned.repeats) for rank in sorted(planned.trial.members)]
            self._seen[trial_id] = [self._observation(trial_id, planned.trial, *point) for point in points]
        return self._seen[trial_id]

    def _observation(self, trial_id: str, trial: Trial, repeat: int, rank: int) -> Observation:
        more = dict(self._details(trial, repeat, rank)) if self._details else {}
        if more.get("status", "ok") == "ok" and "digest" not in more:
            more["digest"] = hashlib.sha256(self.output(trial_id, repeat, rank).tobytes()).hexdigest()
        return Observation(**{"trial_id": trial_id, "repeat": repeat, "rank": rank, "status": "ok", **more})

    def late_output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        if self._late is None or trial_id not in self._trials:
            raise EvidenceError(f"trial {trial_id} has no second reading in this fake run")
        return self._late(self._trials[trial_id].trial, repeat, rank)

    def output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        if trial_id not in self._trials:
            raise EvidenceError(f"trial {trial_id} is not in this fake run")
        key = (trial_id, repeat, rank)
        if key not in self._outputs:
            codes = np.array(self._make(self._trials[trial_id].trial, repeat, rank), copy=True)
            codes.flags.writeable = False
            self._outputs[key] = codes
        return self._outputs[key]


def before(trial: Trial, repeat: int, rank: int) -> Codes:
    """The receive range before the call: the prefill, or in place the rank's own input."""
    call = trial.call
    if trial.in_place:
        start = 0 if call.collective != "reduce_scatter" else inputs.receiver_range(trial, rank)[0]
        return np.array(inputs.send_codes(trial, repeat, rank, start, start + call.count), copy=True)
    return np.full(call.count, layout.prefill_code(call.fmt, trial.prefill), dtype=call.fmt.dtype)


def correct(mode: str = "ties_to_even") -> Output:
    """A subject that returns the exact sum rounded once in ``mode``; ranks that receive nothing keep what they held."""

    def output(trial: Trial, repeat: int, rank: int) -> Codes:
        if rank not in trial.call.receivers(trial.rank_n):
            return before(trial, repeat, rank)
        terms = inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))
        return round_sums(trial.call.fmt, exact_sums(trial.call.fmt, terms), mode)

    return output


def planned(pairs: Iterable[tuple[Trial, int]], probe: str) -> list[Planned]:
    """What a probe's ``plan`` gave, merged as the plan does: same trial, the larger repeat count."""
    repeats: dict[Trial, int] = {}
    for trial, count in pairs:
        repeats[trial] = max(count, repeats.get(trial, 0))
    return [Planned(trial=t, repeats=r, probes=(probe,)) for t, r in repeats.items()]


def a_trial(family: str = "order_exact", **changes: Any) -> Trial:
    """A small all_reduce of bfloat16 on 2 ranks, with fields of Trial or Call replaced."""
    base = Trial(
        call=Call(collective="all_reduce", op="sum", format="bfloat16", count=64),
        rank_n=2,
        family=Family.parse(family),
        seed=7,
    )
    return base.with_(**changes)


def one(family: str = "order_exact", repeats: int = 3, probe: str = "coverage", **changes: Any) -> Planned:
    return Planned(trial=a_trial(family, **changes), repeats=repeats, probes=(probe,))
