"""Measured rules that may stand in for a subject that is not here: the recorded bits must follow from them first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from auditor.backends.simulator import Simulator
from auditor.errors import AuditError
from auditor.evidence.cases import Case, Outcome, Place, Seen
from auditor.evidence.perform import play_here
from auditor.evidence.recorded import Start
from auditor.evidence.relations import receivers
from auditor.model import Finding
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import MODES, round_sums

Play = Callable[[Case], Outcome]


@dataclass(frozen=True, slots=True)
class Model:
    """``words``: which rule, and where it was measured. ``play``: what it says of a case."""

    words: str
    play: Play


def model_of(finding: Finding, findings: Sequence[Finding], start: Start) -> Model | None:
    """A rule that the same run measured of the same arm and format, if it gives every recorded bit of the start."""
    same = [one for one in findings if one.arm == finding.arm and one.scope.get("format") == start.case.fmt.name]
    for model in _candidates([finding, *same]):
        if _gives(model, start):
            return model
    return None


def _candidates(findings: Sequence[Finding]) -> Iterator[Model]:
    for one in findings:
        mode = one.measure.get("mode")
        if one.kind == "rounding_mode" and mode in MODES:
            yield Model(f"rounding_mode {one.id}: {mode}", partial(_rounded, mode=str(mode)))
        options = _options(one) if one.kind == "neighbour_dependence" else None
        if options is not None:
            words = f"neighbour_dependence {one.id}: {one.measure.get('formula')}"
            yield Model(words, partial(play_here, Simulator, options))


def _options(finding: Finding) -> dict[str, Any] | None:
    """The measured formula as the simulator's options; None where it is not of that kind."""
    measure: Mapping[str, Any] = finding.measure
    known = measure.get("order") in ("forward", "reversed", "either") and measure.get("noise_bits")
    if not known or measure.get("form") not in ("SRFF", "SRF", "SRC") or measure.get("layout") != "planes":
        return None
    return {
        "final": "neighbour_keyed",
        "keyed_formats": [str(finding.scope.get("format"))],
        "keyed_by": "self_and_neighbours" if measure.get("own_bits_take_part") else "neighbours",
        "neighbour_order": "reversed" if measure["order"] == "reversed" else "forward",
        "group_bytes": measure["group_bytes"],
        "noise_bits": measure["noise_bits"],
        "form": measure["form"],
    }


def _rounded(case: Case, *, mode: str) -> Outcome:
    """Every sum rounded once; what several additions would give is not claimed (see :func:`_gives`)."""
    seen: dict[Place, Seen] = {}
    for number in range(case.repeats):
        for index, step in enumerate(case.steps):
            for position, rank in receivers(case, step):
                terms = [np.ascontiguousarray(row) for row in step.sent_to(position)]
                seen[number, index, rank] = Seen(output=round_sums(step.fmt, exact_sums(step.fmt, terms), mode))
    return Outcome(seen=seen)


def _gives(model: Model, start: Start) -> bool:
    try:
        said = model.play(start.case)
    except AuditError:
        return False
    for place, seen in start.outcome.seen.items():
        other = said.seen[place].output if place in said.seen else None
        if seen.output is not None and (other is None or not np.array_equal(other, seen.output)):
            return False
    return said.whole
