"""What was counted on a device while recording, derived again from the recorded bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from auditor.model import ArmView, Trial
from auditor.probes.expected import blocks, nearest_code


class CountedArm(ArmView, Protocol):
    """An arm of a run that was opened to recompute."""

    @property
    def counted(self) -> Mapping[tuple[str, int, int], int]: ...


class CountedRun(Protocol):
    @property
    def arm_names(self) -> Sequence[str]: ...
    def arm(self, name: str) -> CountedArm: ...


def disagreements(reader: CountedRun) -> Iterator[str]:
    """A line for each observation whose count of outputs off the nearest even sum is not what its bytes give."""
    for name in reader.arm_names:
        view = reader.arm(name)
        for planned in view.planned:
            view.observations(planned.trial.trial_id)  # what is counted is known only then
        trials = {planned.trial.trial_id: planned.trial for planned in view.planned}
        known: dict[tuple[str, str, int, int], int] = {}
        for (trial_id, repeat, rank), counted in view.counted.items():
            trial = trials[trial_id]
            seen = next(o for o in view.observations(trial_id) if (o.repeat, o.rank) == (repeat, rank))
            key = (trial_id, seen.digest, trial.seed_of(repeat), rank)
            if key not in known:
                known[key] = _off_nearest(view, trial, repeat, rank)
            if known[key] != counted:
                yield (
                    f"arm {name}, trial {trial_id}, repeat {repeat}, rank {rank}: the device counted {counted} outputs off the "
                    f"nearest even sum, the bytes give {known[key]}; verify the run, then audit that device"
                )


def _off_nearest(view: ArmView, trial: Trial, repeat: int, rank: int) -> int:
    output = view.output(trial.trial_id, repeat, rank)
    return sum(
        int(np.count_nonzero(output[part] != nearest_code(trial, data))) for part, data in blocks(trial, repeat, rank)
    )
