"""What a comparison comes to: plain records from which the JSON file, the tables and the pages are made.

The base is the first run that was named; every other run is put beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from auditor.model import Verdict

SCHEMA = "auditor-comparison/1"
POLICIES = ("changed", "worse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One operand. ``derived``: its findings were derived now, because findings.json is missing or that was asked for."""

    label: str
    path: str
    run_id: str
    plan_id: str
    date: str
    derived: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that differs. ``group``: library, driver, GPU, topology, variables, settings, software, machine, auditor, plan."""

    group: str
    name: str
    base: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One element whose bits differ. Codes in hex; ``inputs``: one code a member, in group order; ``nearest``: the exact sum
    rounded once, ties to even, where the call is a sum. ``ulps`` None: one of the two is NaN.
    """

    trial: str
    count: int
    shift: str
    rank: int
    repeat: int
    index: int
    inputs: tuple[str, ...]
    base: str
    other: str
    nearest: str
    ulps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """The trials of one (collective, op, format) that both runs hold, bit by bit.

    ``equal`` and ``changed`` count trials; ``silent``: reason -> trials of which nothing is claimed; ``partial``: trials that not
    every rank or input recorded in both. ``elements`` and ``elements_changed`` are of outputs that repeat themselves in both
    runs, equal outputs counted once; ``ulps`` is of these too, ``by_address_mod_16`` of every receiver. ``by_chance``: changed
    trials that flips between identical calls explain; ``claimed`` False: no more changed than that. ``rounded``: of ``looked``
    elements that differ, how many are the exact sum rounded once, ties to even, in the base and in the other run.
    """

    collective: str
    op: str
    format: str
    equal: int
    changed: int
    silent: Mapping[str, int]
    partial: int
    elements: int
    elements_changed: int
    by_chance: float
    claimed: bool
    ranks: tuple[int, ...] = ()
    index_first: int | None = None
    index_last: int | None = None
    by_address_mod_16: Mapping[str, int] = field(default_factory=dict)
    ulps: Mapping[str, Any] = field(default_factory=dict)
    rounded: Mapping[str, int] = field(default_factory=dict)
    changed_trials: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    examples: tuple[Example, ...] = ()
    accepted: str = ""

    @property
    def counts_as_change(self) -> bool:
        return self.claimed and self.changed > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyIn:
    """Trials that one run planned and the other did not."""

    total: int
    by_probe: Mapping[str, int]
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureChange:
    """A number or a word of a measure that changed. ``base_95``, ``other_95``: the intervals that lie apart, where there are any.

    ``why``: ``intervals apart``, ``another value``, ``counts too far apart``.
    """

    name: str
    base: Any
    other: Any
    why: str
    base_95: tuple[float, float] | None = None
    other_95: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A finding that changed. ``what``: ``verdict``, ``measure``, ``extent`` (found at other places), ``new`` or ``gone``.

    ``worse``: by the order FAIL, INCONCLUSIVE, INFORMATION, PASS; known before and not now; a FAIL of which there is more.
    ``measured``: the other run's measure, as ``--accept`` is held against. ``accepted``: the entry that covers it, or empty.
    """

    what: str
    worse: bool
    probe: str
    kind: str
    cell: Mapping[str, tuple[str, ...]]
    base_id: str = ""
    other_id: str = ""
    base_verdict: Verdict | None = None
    other_verdict: Verdict | None = None
    base_claim: str = ""
    other_claim: str = ""
    measures: tuple[MeasureChange, ...] = ()
    extent: tuple[Difference, ...] = ()
    limits: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict, repr=False)
    accepted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One arm of the base beside one arm of another run. ``matched``: ``same name``, ``named``, ``only arm``."""

    base_arm: str
    other_arm: str
    base_backend: str
    other_backend: str
    matched: str
    environment: tuple[Difference, ...]
    plan: tuple[Difference, ...]
    common: int
    only_base: OnlyIn
    only_other: OnlyIn
    bits: tuple[Bits, ...]
    changes: tuple[Change, ...]
    findings_alike: int
    notes: tuple[str, ...]

    @property
    def compared(self) -> int:
        """Trials of which something is claimed."""
        return sum(one.equal + one.changed for one in self.bits if one.claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Another run beside the base."""

    other: Run
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All of it. ``policy``: ``changed``, ``worse`` or empty. ``trouble``: expired and unused entries of ``--accept``."""

    base: Run
    besides: tuple[Beside, ...]
    policy: str = ""
    trouble: tuple[str, ...] = ()

    @property
    def pairs(self) -> Iterator[Pair]:
        return (pair for one in self.besides for pair in one.pairs)

    @property
    def changes(self) -> list[Change | Bits]:
        """Everything that counts as a change, accepted or not."""
        bits: list[Change | Bits] = [one for pair in self.pairs for one in pair.bits if one.counts_as_change]
        return bits + [one for pair in self.pairs for one in pair.changes]

    @property
    def open(self) -> list[Change | Bits]:
        """Changes that nobody has accepted."""
        return [one for one in self.changes if not one.accepted]

    @property
    def worse(self) -> list[Change]:
        """Changes for the worse that nobody has accepted."""
        return [one for one in self.open if isinstance(one, Change) and one.worse]

    @property
    def verdict(self) -> str:
        """``worse``, ``changed``, ``accepted``, ``same`` or ``nothing in common``."""
        if self.worse:
            return "worse"
        if self.open:
            return "changed"
        if not any(pair.compared or pair.findings_alike for pair in self.pairs) and not self.changes:
            return "nothing in common"
        return "accepted" if self.changes else "same"

    @property
    def exit_code(self) -> int:
        """1 by the policy; 5 where nothing can be said of a run that was named; else 0."""
        failing = {"changed": self.open, "worse": self.worse}.get(self.policy, [])
        if failing:
            return 1
        empty = [one for one in self.besides if not any(p.compared or p.findings_alike or p.changes for p in one.pairs)]
        return 5 if empty else 0
