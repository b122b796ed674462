"""The frozen records that every layer speaks in. No behaviour beyond identity and derivation.

A *code* is the unsigned integer bit pattern of a value; arrays of codes have dtype uint8/16/32/64.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import FORMATS, Format

Codes = npt.NDArray[np.unsignedinteger[Any]]
Bytes = npt.NDArray[np.uint8]

COLLECTIVES = ("all_reduce", "reduce_scatter", "reduce")
OPS = ("sum", "avg", "min", "max")
FEATURES = ("groups", "history", "recreate", "graph", "registration", "queue", "timing", "path")
FILLS = ("zero", "finite", "huge", "nan")  # and random:k, trigger:NAME
PREFILLS = ("snan_a", "snan_b", "finite")
STATUSES = ("ok", "error", "crash", "hang", "unsupported", "skipped")


class Verdict(StrEnum):
    """What a finding amounts to. PASS: looked for and not there. INFORMATION: there, and legal. FAIL: there, and wrong."""

    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INFORMATION = "INFORMATION"
    PASS = "PASS"
    WAIVED = "WAIVED"

    @staticmethod
    def worst(verdicts: Sequence[Verdict]) -> Verdict:
        """The worst in the order FAIL, INCONCLUSIVE, INFORMATION, PASS; WAIVED only where there is nothing else."""
        return min(verdicts, key=list(Verdict).index, default=Verdict.WAIVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call, as a backend is told of it. ``count``: elements each rank RECEIVES; 0 is legal."""

    collective: str
    op: str
    format: str
    count: int
    root: int = 0
    group: tuple[int, ...] | None = None

    @property
    def fmt(self) -> Format:
        return FORMATS[self.format]

    def members(self, rank_n: int) -> tuple[int, ...]:
        """Global ranks that take part, in order."""
        return tuple(range(rank_n)) if self.group is None else self.group

    def send_count(self, rank_n: int) -> int:
        """Elements that each member sends."""
        return self.count * len(self.members(rank_n)) if self.collective == "reduce_scatter" else self.count

    def receivers(self, rank_n: int) -> tuple[int, ...]:
        """Global ranks whose receive range must be written."""
        members = self.members(rank_n)
        return (members[self.root],) if self.collective == "reduce" else members


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What one rank is told to read or write: a byte range of the very array that ``allocate`` returned."""

    buffer: Any
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """Address of the first element."""
        interface = getattr(self.buffer, "__cuda_array_interface__", None) or self.buffer.__array_interface__
        return int(interface["data"][0]) + self.offset


class Control(Protocol):
    """Carries ids and digests between the processes of an arm; never evidence."""

    def broadcast(self, data: bytes, root: int = 0) -> bytes: ...
    def all_gather(self, data: bytes) -> list[bytes]: ...
    def barrier(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One process's view of the ranks of an arm."""

    rank_n: int
    local_ranks: tuple[int, ...]
    node_rank: int = 0
    device: int | None = None
    control: Control


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend offers here and now. ``element_alignment`` in bytes; ``rank_n_max`` None: no limit."""

    collectives: frozenset[str]
    ops: frozenset[str]
    formats: frozenset[str]
    rank_n_min: int = 1
    rank_n_max: int | None = None
    in_place: bool = True
    memory: str = "host"
    element_alignment: int = 1
    features: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        raw = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in raw.items()}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Capabilities:
        values: dict[str, Any] = {k: frozenset(v) if isinstance(v, list) else v for k, v in raw.items()}
        return Capabilities(**values)


@dataclass(frozen=True, slots=True)
class Family:
    """A named input generator with its arguments. Text form: ``name`` or ``name:key=value,key=value``."""

    name: str
    args: tuple[tuple[str, int | float | str], ...] = ()

    def get(self, key: str, default: Any) -> Any:
        return dict(self.args).get(key, default)

    def __str__(self) -> str:
        return self.name + (":" + ",".join(f"{k}={v}" for k, v in self.args) if self.args else "")

    @staticmethod
    def parse(text: str) -> Family:
        """Raises ValueError on malformed text. Whether the family exists is ``inputs``' to say."""
        name, _, rest = text.partition(":")
        pairs = [item.partition("=") for item in rest.split(",") if item]
        if not name or any(not key or not eq or not value for key, eq, value in pairs):
            raise ValueError(f"{text!r} is not of the form name or name:key=value,key=value")
        return Family(name, tuple(sorted((key, _scalar(value)) for key, _, value in pairs)))


def _scalar(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One point of the plan for one arm.

    ``active``: which members send data (the others send +0): ``all``, ``pairs`` (element i has the pair of members number
    i mod C(n,2), in lexicographic order), or positions in the group as ``"0,2"``. A family is asked with ``rank_n`` = number
    of active members and ``rank`` = the position among them.
    ``tiled``: send index i holds the data of index i mod (send_count / tiled); must divide send_count.
    ``inputs``: ``same``, or ``alternate``: repeat j uses seed + j mod 2.
    ``variant``: how a repeat is issued: ``plain``, ``registered``, ``graph``, ``history:k``, ``recreate:k``, ``fresh:k``,
    ``queued:k`` (k calls in flight together), ``burst:k`` (k calls, one after the other), ``reread`` (the output is read at once
    and again later).
    """

    call: Call
    rank_n: int
    send_shift: int = 0
    recv_shift: int = 0
    in_place: bool = False
    family: Family
    seed: int
    active: str = "all"
    inputs: str = "same"
    head: str = "zero"
    tail: str = "zero"
    prefill: str = "snan_a"
    tiled: int = 1
    variant: str = "plain"

    def to_json(self) -> dict[str, Any]:
        """Flat JSON object with the Trial's and the Call's own field names."""
        call = {f.name: getattr(self.call, f.name) for f in fields(self.call)}
        call["group"] = None if self.call.group is None else list(self.call.group)
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("call", "family")}
        return {**call, **rest, "family": str(self.family)}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Trial:
        call_names = {f.name for f in fields(Call)}
        call = {k: v for k, v in raw.items() if k in call_names}
        call["group"] = None if call.get("group") is None else tuple(call["group"])
        rest = {k: v for k, v in raw.items() if k not in call_names and k != "trial_id"}
        rest["family"] = Family.parse(rest["family"])
        return Trial(call=Call(**call), **rest)

    @property
    def trial_id(self) -> str:
        """First 12 hex digits of SHA-256 of the canonical JSON: same content, same id, on every machine."""
        return _trial_id(self)

    @property
    def members(self) -> tuple[int, ...]:
        return self.call.members(self.rank_n)

    @property
    def send_count(self) -> int:
        return self.call.send_count(self.rank_n)

    def seed_of(self, repeat: int) -> int:
        """Seed of one repeat's inputs."""
        return self.seed + (repeat % 2 if self.inputs == "alternate" else 0)

    def with_(self, **changes: Any) -> Trial:
        """A copy with Trial fields or Call fields replaced."""
        call_names = {f.name for f in fields(Call)}
        call = replace(self.call, **{k: v for k, v in changes.items() if k in call_names})
        return replace(self, call=call, **{k: v for k, v in changes.items() if k not in call_names})


@lru_cache(maxsize=1 << 16)
def _trial_id(trial: Trial) -> str:
    canonical = json.dumps(trial.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideByte:
    """One byte outside a range that changed. ``offset``: bytes from the range's first byte; negative before it."""

    buffer: str  # "send" | "recv"
    offset: int
    expected: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one rank saw in one repeat. The output's codes are fetched by ``ArmView.output``.

    ``seconds`` and ``subject_seconds`` are of all calls of a ``burst``; of calls in flight together (``queued``) the second is
    the last call's.
    """

    trial_id: str
    repeat: int
    rank: int
    status: str
    digest: str = ""  # SHA-256 hex of the output range's bytes; "" where there is none
    send_before: bool = True  # the send arena was as generated when the call began
    send_after: bool = True  # the send range was unchanged after it (out of place)
    outside: tuple[OutsideByte, ...] = ()  # capped; outside_total counts all
    outside_total: int = 0
    path: str = ""
    seconds: float = 0.0
    subject_seconds: float | None = None
    message: str = ""
    late_digest: str = ""  # of the output range read once more, where the trial asks for that; "" where it does not
    late_seconds: float | None = None  # from the return of the call to that second reading
    copy_seconds: float | None = None  # that the host's clock saw for a plain copy of the output range
    off_nearest: int | None = (
        None  # outputs that are not the exact sum rounded to nearest even, counted where large data lie
    )


class Output(Protocol):
    """An output that may lie elsewhere than in this process's memory, read piece by piece."""

    @property
    def nbytes(self) -> int: ...
    @property
    def step(self) -> int:
        """Bytes that are best read at a time; a multiple of 512."""

    def read(self, start: int, stop: int) -> Bytes:
        """The bytes [start, stop); valid until the next call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One discrepancy, with bits. Codes in hex; ``inputs``: one code per member, in group order."""

    trial: str
    rank: int | None = None
    repeat: int | None = None
    index: int | None = None
    inputs: tuple[str, ...] = ()
    observed: str = ""
    expected: str = ""

    def to_json(self) -> dict[str, Any]:
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answered question about one arm. ``id`` is given when the findings of a run are collected."""

    id: str = ""
    arm: str
    probe: str
    kind: str
    verdict: Verdict
    claim: str
    measure: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    limits: str = ""
    reproduce: str = ""

    def to_json(self) -> dict[str, Any]:
        raw = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            **raw,
            "verdict": str(self.verdict),
            "measure": dict(self.measure),
            "scope": dict(self.scope),
            "evidence": [row.to_json() for row in self.evidence],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Finding:
        rows = tuple(Evidence(**{**row, "inputs": tuple(row["inputs"])}) for row in raw["evidence"])
        return Finding(**{**raw, "verdict": Verdict(raw["verdict"]), "evidence": rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A trial with its repeat count and the probes that asked for it."""

    trial: Trial
    repeats: int
    probes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """Something asked for that will not be run, and why. ``scope`` uses the Trial's field names."""

    arm: str
    reason: str
    kind: str = "unsupported"
    scope: Mapping[str, Any] = field(default_factory=dict)


class ArmView(Protocol):
    """One arm of a recorded run, as a probe's ``analyze`` sees it. Pure: no subject, no network."""

    @property
    def arm(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def rank_n(self) -> int: ...
    @property
    def planned(self) -> Sequence[Planned]: ...
    @property
    def expect(self) -> Mapping[str, Any]: ...
    @property
    def describe(self) -> Mapping[str, Any]:
        """What the backend said of itself: versions, devices."""

    def observations(self, trial_id: str) -> Sequence[Observation]:
        """All observations of a trial, ordered by (repeat, rank)."""

    def output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        """The output range's codes; read-only. Raises EvidenceError where there are none."""

    def late_output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        """The same range read once more, later. Raises EvidenceError where it was not."""


def asked_by(view: ArmView, probe: str) -> Iterator[Planned]:
    """The trials that a probe asked for, in plan order."""
    return (planned for planned in view.planned if probe in planned.probes)
