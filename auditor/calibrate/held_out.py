"""The other side of a rule: legal orders that the calibration did not see, and how many of them each rule rejects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from auditor.calibrate.planted import share
from auditor.calibrate.reference import Reference
from auditor.calibrate.rules import NAN_STEPS, Rule, steps_from
from auditor.model import Codes


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """One legal order's output. ``group``: what kind of order, and where it ran."""

    group: str
    output: Codes


@dataclass(slots=True)
class _Group:
    """Counts of one group."""

    orders: int = 0
    elements: int = 0
    worst: int = 0
    over_worst: int = 0  # orders that lie farther than the worst of the calibration
    rejected: dict[str, int] = field(default_factory=dict)
    rejected_elements: dict[str, int] = field(default_factory=dict)
    digests: set[bytes] = field(default_factory=set)

    def add(self, output: Codes, rules: Sequence[Rule], reference: Reference, calibrated: int) -> None:
        self.orders += 1
        self.elements += len(output)
        self.digests.add(sha256(output.tobytes()).digest())
        steps = int(steps_from(reference, output).max(initial=0))
        self.worst, self.over_worst = max(self.worst, steps), self.over_worst + (steps > calibrated)
        for rule in rules:
            wrong = int(len(output) - np.count_nonzero(rule.accepts(output)))
            self.rejected[rule.name] = self.rejected.get(rule.name, 0) + (wrong > 0)
            self.rejected_elements[rule.name] = self.rejected_elements.get(rule.name, 0) + wrong

    def to_json(self, name: str) -> dict[str, Any]:
        return {
            "group": name,
            "orders": self.orders,
            "different_outputs": len(self.digests),
            "elements": self.elements,
            "worst_ulp_steps": self.worst if self.worst < NAN_STEPS else None,
            "beyond_calibrated_worst": share(self.over_worst, self.orders),
            "rejected_orders": {rule: share(k, self.orders) for rule, k in self.rejected.items()},
            "rejected_elements": {rule: share(k, self.elements) for rule, k in self.rejected_elements.items()},
        }


def judged(
    outputs: Iterable[HeldOut], rules: Sequence[Rule], reference: Reference, calibrated: int
) -> list[dict[str, Any]]:
    """By group, in the order in which they come: how many orders (any element rejected) and elements each rule rejects, and how
    many orders lie farther from the reference than the ``calibrated`` steps of the worst order of the calibration.
    """
    groups: dict[str, _Group] = {}
    for one in outputs:
        groups.setdefault(one.group, _Group()).add(one.output, rules, reference, calibrated)
    return [group.to_json(name) for name, group in groups.items()]
