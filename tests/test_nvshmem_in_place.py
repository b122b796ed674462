"""docs/findings.md, NVSHMEM in place: the model of the wrong sums gives every recorded element of the rank-coded trials."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from auditor import inputs, store
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import round_sums

EVIDENCE = Path(__file__).parent.parent / "results" / "evidence"
LARGE = 16384


def in_lock_step(fmt, terms):
    """What the ranks hold after rank r has added the buffers of r - 1, r - 2, ... to its own: all at once, in place, rounding."""
    held = list(terms)
    for step in range(1, len(held)):
        pairs = [(held[rank], held[(rank - step) % len(held)]) for rank in range(len(held))]
        held = [round_sums(fmt, exact_sums(fmt, pair), "ties_to_even") for pair in pairs]
    return held


def rank_coded(arm, *, in_place):
    """The trials of the large all_reduce whose inputs are one bit a rank."""
    return [
        planned.trial
        for planned in arm.planned
        if planned.trial.call.collective == "all_reduce"
        and planned.trial.call.count == LARGE
        and planned.trial.in_place is in_place
        and planned.trial.family.name == "rank_coded"
    ]


@pytest.mark.parametrize(("run", "times"), [("nvshmem-4-pes-one-h200", 2), ("nvshmem-8-pes-one-h200", 16)])
def test_every_element_in_place_is_what_the_model_gives(run, times):
    looked = 0
    with store.RunReader(EVIDENCE / run) as reader:
        arm = reader.arm("world")
        for trial in rank_coded(arm, in_place=True):
            for seen in arm.observations(trial.trial_id)[
                : trial.rank_n
            ]:  # the first repeat; the others have the same bits
                terms = inputs.terms(trial, seen.repeat, *inputs.receiver_range(trial, seen.rank))
                model = in_lock_step(trial.call.fmt, terms)[seen.rank]
                assert np.array_equal(arm.output(trial.trial_id, seen.repeat, seen.rank), model)
                looked += len(model)
                once = round_sums(trial.call.fmt, exact_sums(trial.call.fmt, terms), "ties_to_even")
                assert not np.any(model == once), f"about {times} times the sum, nowhere the sum"
    assert looked >= 4 * LARGE


def test_out_of_place_the_same_sums_are_right():
    looked = 0
    with store.RunReader(EVIDENCE / "nvshmem-4-pes-one-h200") as reader:
        arm = reader.arm("world")
        for trial in rank_coded(arm, in_place=False):
            for seen in arm.observations(trial.trial_id):
                terms = inputs.terms(trial, seen.repeat, *inputs.receiver_range(trial, seen.rank))
                want = round_sums(trial.call.fmt, exact_sums(trial.call.fmt, terms), "ties_to_even")
                assert np.array_equal(arm.output(trial.trial_id, seen.repeat, seen.rank), want)
                looked += len(want)
    assert looked
