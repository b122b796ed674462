"""A failing case as literal bytes: one call or a few, with every code that they may read, and what the ranks got back.

Trials name their inputs by family and seed; a case spells them out, so that it can be cut down to a few elements, run by a script
that knows nothing of the auditor, and read in a bug report.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from auditor.layout import GUARD, arena_bytes
from auditor.model import Call, Codes, Family, OutsideByte, Trial
from auditor.numerics.formats import Format

WORD = 16  # bytes: the widest load of a GPU thread; a case's neighbours are shown by such groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One call. ``head``, ``data`` and ``tail`` are code arrays of shape (members, n), rows in group order.

    ``data``: what each member sends. ``head``: the codes before its send range, the last one next to it; ``tail``: those past
    it. What lies further out, up to :data:`~auditor.layout.GUARD` bytes on either side, is zero.
    """

    call: Call
    head: Codes
    data: Codes
    tail: Codes
    send_shift: int = 0
    recv_shift: int = 0
    in_place: bool = False
    prefill: str = "snan_a"

    @property
    def fmt(self) -> Format:
        return self.call.fmt

    @property
    def shares(self) -> int:
        """Parts of the send range that go to different receivers: the members of a reduce_scatter, else 1."""
        return len(self.data) if self.call.collective == "reduce_scatter" else 1

    def trial(self, rank_n: int) -> Trial:
        """A trial of the same shape (its family and seed mean nothing), for the functions that place ranges in an arena."""
        return Trial(
            call=self.call,
            rank_n=rank_n,
            send_shift=self.send_shift,
            recv_shift=self.recv_shift,
            in_place=self.in_place,
            prefill=self.prefill,
            family=Family("constant"),
            seed=0,
        )

    def sent_to(self, position: int) -> Codes:
        """The codes whose sums the member at ``position`` receives; shape (members, count)."""
        first = position * self.call.count if self.shares > 1 else 0
        return self.data[:, first : first + self.call.count]

    def around(self) -> Codes:
        """Head, data and tail side by side."""
        return np.concatenate([self.head, self.data, self.tail], axis=1)

    def with_(self, **changes: Any) -> Step:
        """A copy with fields of the step or of its call replaced."""
        names = {f.name for f in fields(Call)}
        call = replace(self.call, **{k: v for k, v in changes.items() if k in names})
        return replace(self, call=call, **{k: v for k, v in changes.items() if k not in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """``steps`` in order, gone through ``repeats`` times in one process a rank."""

    rank_n: int
    steps: tuple[Step, ...]
    repeats: int = 1

    @property
    def fmt(self) -> Format:
        return self.steps[0].fmt

    @property
    def members(self) -> tuple[int, ...]:
        """Global ranks that take part, in group order."""
        return self.steps[0].call.members(self.rank_n)

    @property
    def nbytes(self) -> int:
        """Bytes that each of a rank's two arenas must have."""
        return arena_bytes(step.trial(self.rank_n) for step in self.steps)

    @property
    def elements(self) -> int:
        """Codes that a rank sends in the longest call."""
        return max(int(step.data.shape[1]) for step in self.steps)

    def with_steps(self, steps: Sequence[Step]) -> Case:
        return replace(self, steps=tuple(steps))

    def size(self) -> tuple[int, ...]:
        """What makes one case smaller than another, the first difference deciding: ranks, elements, calls, ..., bits."""
        steps = self.steps
        some = [step.around() for step in steps]
        return (
            self.rank_n,
            sum(step.data.shape[1] for step in steps),
            len(steps) * self.repeats,
            self.fmt.bits,
            sum(step.in_place for step in steps),
            sum(step.send_shift + step.recv_shift for step in steps),
            sum(int(np.count_nonzero(codes)) for codes in some),
            sum(complexity(self.fmt, codes) for codes in some),
        )

    def to_json(self) -> dict[str, Any]:
        """Lossless; the codes in base64."""
        return {
            "rank_n": self.rank_n,
            "repeats": self.repeats,
            "steps": [_step_to_json(step) for step in self.steps],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Case:
        steps = tuple(_step_from_json(step) for step in raw["steps"])
        return Case(rank_n=raw["rank_n"], repeats=raw["repeats"], steps=steps)


def complexity(fmt: Format, codes: Codes) -> int:
    """How much there is to read in some codes: significant and set mantissa bits, distance of the exponent from 0, sign."""
    some = codes[codes != 0].astype(np.uint64)
    if not some.size:
        return 0
    mantissa = some & np.uint64((1 << fmt.mantissa_bits) - 1)
    lowest = mantissa & (~mantissa + np.uint64(1))
    depth = np.where(mantissa != 0, fmt.mantissa_bits - np.log2(np.maximum(lowest, np.uint64(1)).astype(np.float64)), 0)
    exponent = (some & np.uint64(fmt.magnitude_mask)) >> np.uint64(fmt.mantissa_bits)
    away = np.abs(exponent.astype(np.int64) - fmt.bias)
    negative = (some & np.uint64(fmt.sign_mask)) != 0
    bits = np.bitwise_count(mantissa).astype(np.int64)
    return int((32 * depth).sum() + 32 * bits.sum() + 2 * away.sum() + negative.sum())


def _step_to_json(step: Step) -> dict[str, Any]:
    call = {f.name: getattr(step.call, f.name) for f in fields(Call)}
    rest = {name: getattr(step, name) for name in ("send_shift", "recv_shift", "in_place", "prefill")}
    codes = {
        name: {"shape": list(array.shape), "base64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}
        for name, array in (("head", step.head), ("data", step.data), ("tail", step.tail))
    }
    return {**call, **rest, **codes}


def _step_from_json(raw: Mapping[str, Any]) -> Step:
    names = {f.name for f in fields(Call)}
    asked: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in names}
    call = Call(**asked)
    rest: dict[str, Any] = {name: raw[name] for name in ("send_shift", "recv_shift", "in_place", "prefill")}
    rest |= {
        name: np.frombuffer(base64.b64decode(raw[name]["base64"]), call.fmt.dtype).reshape(raw[name]["shape"])
        for name in ("head", "data", "tail")
    }
    return Step(call=call, **rest)


# --------------------------------------------------------------------------------------------------------------- outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What one rank saw of one step. ``output`` None: the rank gets none, or the call gave no result."""

    status: str = "ok"
    message: str = ""
    output: Codes | None = None
    outside: tuple[OutsideByte, ...] = ()
    outside_total: int = 0
    send_after: bool = True
    path: str = ""


Place = tuple[int, int, int]  # round, step, rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case gave. ``ended``: "", or how it broke off: crash, hang, error, unsupported; ``words`` say more."""

    seen: Mapping[Place, Seen] = field(default_factory=dict)
    ended: str = ""
    words: str = ""

    def outputs(self, step: int, rank: int) -> list[tuple[int, Codes]]:
        """(round, output) of one rank in one step."""
        rows = [(r, one.output) for (r, s, k), one in sorted(self.seen.items()) if s == step and k == rank]
        return [(number, output) for number, output in rows if output is not None]

    @property
    def whole(self) -> bool:
        return not self.ended


def seen_to_json(seen: Seen) -> dict[str, Any]:
    raw = {name: getattr(seen, name) for name in ("status", "message", "outside_total", "send_after", "path")}
    outside = [[row.buffer, row.offset, row.expected, row.found] for row in seen.outside]
    output = None if seen.output is None else base64.b64encode(seen.output.tobytes()).decode()
    return {**raw, "outside": outside, "output": output}


def seen_from_json(raw: Mapping[str, Any], fmt: Format) -> Seen:
    """The inverse; raises KeyError, ValueError or TypeError where ``raw`` is no such record."""
    outside = tuple(OutsideByte(buffer=b, offset=o, expected=e, found=f) for b, o, e, f in raw["outside"])
    text = raw["output"]
    output = None if text is None else np.frombuffer(base64.b64decode(text), fmt.dtype)
    rest = {name: raw[name] for name in ("status", "message", "outside_total", "send_after", "path")}
    return Seen(**rest, outside=outside, output=output)


def fence(fmt: Format) -> int:
    """Codes on either side of a range that a case may set."""
    return GUARD // fmt.itemsize


def rows_of(codes: Codes) -> Iterator[list[int]]:
    """Each member's codes as Python integers."""
    return (row.tolist() for row in codes)
