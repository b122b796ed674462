"""What one workload gave when it was run in several legal orders, ready to be judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from auditor.calibrate.gates import Gate
from auditor.calibrate.held_out import HeldOut
from auditor.calibrate.reference import Reference
from auditor.model import Codes


@dataclass(frozen=True, slots=True)
class Models:
    """Outputs known without the subject. ``says``: which, or why there are none."""

    codes: Codes | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One workload's outputs.

    ``conditions``: everything that a bound is tied to. ``orders``: output codes by name, shape (n,) each; the first is the one
    that errors are planted in. ``replay``: the first order's additions done again. ``legal``: every legal output, shape
    (models, n). ``directed``: additions need not round to nearest. ``repeats``: whether the first order gave the same bits
    twice; None: not tried. ``absolute``: a bound that was written down beforehand. ``checks``: measured errors of checks on
    fresh inputs, a row each. ``environment``, ``run_id``: of the recorded run, where there is one. ``trees``: how many orders of
    addition there are; None: more than can be counted.
    """

    conditions: Mapping[str, Any]
    reference: Reference
    orders: Mapping[str, Codes]
    gates: Sequence[Gate]
    replay: Models
    legal: Models
    held_out: Iterable[HeldOut] = ()
    directed: bool = False
    repeats: bool | None = None
    absolute: float | None = None
    checks: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    trees: int | None = None

    @property
    def first(self) -> Codes:
        """The output that errors are planted in."""
        return next(iter(self.orders.values()))


class Workload(Protocol):
    """Something whose tolerance can be measured."""

    def asked(self) -> Mapping[str, Any]:
        """The conditions that are known before anything runs."""

    def elements(self) -> int:
        """Elements of the output that errors are planted in."""

    def measure(self, held_out: int) -> Measured:
        """Run it in its stated orders and, for ``held_out`` > 0, prepare that many others."""
