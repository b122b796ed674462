"""One sum as a record that stands alone: bits in, bits out, what lay around it, and where between its neighbours it ended.

After the practice of MPFR and CORE-MATH, whose hard cases are kept as hex text: every number is exact, and the record replays
alone, without trial, seed or generator. Around an element lies its aligned group, because a rounding may be keyed by it; bytes
of the group that lie outside the range are part of it (NVSHMEM issue 132).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from auditor import inputs, layout
from auditor.backends.base import LocalControl
from auditor.errors import EvidenceError
from auditor.model import Call, Codes, Trial, Window, World
from auditor.numerics.exact import PLUS_INFINITY, exact_sum_reference, kind_reference
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_reference

SCHEMA = "auditor-failure/1"
GROUP_BYTES = 16
CLASSES = ("exact", "nearest", "toward_zero", "away", "outside", "special")
Group = tuple[tuple[int, ...], ...]  # by element, by member


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """One result of op sum.

    ``inputs``: codes of the whole aligned group by element, then by member; ``start`` and ``stop``: which of its elements lie
    in the range; ``place``: which one the result is of. ``address``: byte address mod 16 of the group's first element in the send
    buffers (0 unless a group is smaller than 16 bytes). ``context``: where it was seen, for people; a replay needs none of it.
    """

    format: str
    inputs: Group
    start: int
    stop: int
    place: int
    out: int
    address: int = 0
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fmt(self) -> Format:
        return FORMATS[self.format]

    @property
    def terms(self) -> tuple[int, ...]:
        """The members' inputs of the element itself."""
        return self.inputs[self.place]

    @property
    def exact(self) -> tuple[int, int] | None:
        """(odd integer or 0, k): the sum is integer * 2**k. None where a NaN or an infinity takes part."""
        if kind_reference(self.fmt, self.terms) >= PLUS_INFINITY:
            return None
        number, k = exact_sum_reference(self.fmt, self.terms)
        down = (number & -number).bit_length() - 1 if number else 0
        return number >> down, k + down if number else 0

    @property
    def lo(self) -> int | None:
        """Code of the neighbour toward zero, with the sum's sign; the sum itself where the format holds it."""
        return None if self.exact is None else round_reference(self.fmt, *self.exact, "toward_zero")

    @property
    def hi(self) -> int | None:
        """Code of the neighbour away from zero; past the maximum, of infinity or of what stands in its place."""
        if self.lo is None:
            return None
        return self.lo + 1 if self.rem else self.lo

    @property
    def rem(self) -> Fraction | None:
        """How far from lo to hi the sum lies; 0 where lo is the sum. Past the maximum it may reach 1 and more."""
        if self.exact is None or self.lo is None:
            return None
        gap = max((self.lo & self.fmt.magnitude_mask) >> self.fmt.mantissa_bits, 1) - 1 + self.fmt.lsb
        low, k = exact_sum_reference(self.fmt, [self.lo])
        return abs(Fraction(self.exact[0]) * _power(self.exact[1]) - Fraction(low) * _power(k)) / _power(gap)

    @property
    def kind(self) -> str:
        """One of :data:`CLASSES`: where the output ended. Zeros of either sign are one value."""
        if self.exact is None or self.lo is None or self.hi is None:
            return "special"
        if self.out == self.lo or (self.out | self.lo) & self.fmt.magnitude_mask == 0:
            went = self.lo
        elif self.out == self.hi:
            went = self.hi
        else:
            return "outside"
        if not self.rem:
            return "exact"
        nearest = round_reference(self.fmt, *self.exact, "ties_to_even")
        if went & self.fmt.magnitude_mask == nearest & self.fmt.magnitude_mask:
            return "nearest"
        return "toward_zero" if went == self.lo else "away"

    def to_json(self) -> dict[str, Any]:
        """Hex text; every derived figure is there for a reader and checked by :meth:`from_json`."""

        def text(code: int | None) -> str | None:
            return None if code is None else f"0x{code:0{self.fmt.bits // 4}x}"

        size = self.fmt.itemsize
        return {
            "schema": SCHEMA,
            "dtype": self.format,
            "n": len(self.terms),
            "op": "sum",
            "context": dict(self.context),
            "index": self.context.get("index"),
            "address_mod_16": (self.address + self.place * size) % 16,
            "group": {
                "bytes": len(self.inputs) * size,
                "address_mod_16": self.address,
                "place": self.place,
                "in_range": [self.start, self.stop],
                "inputs": [[text(code) for code in element] for element in self.inputs],
            },
            "exact": None if self.exact is None else f"{self.exact[0]} * 2**{self.exact[1]}",
            "lo": text(self.lo),
            "hi": text(self.hi),
            "out": text(self.out),
            "rem": None if self.rem is None else f"{self.rem.numerator}/{self.rem.denominator}",
            "class": self.kind,
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> FailureRecord:
        """Raises EvidenceError where the text is no record, or where its figures do not follow from its inputs."""
        try:
            group = raw["group"]
            found = FailureRecord(
                format=raw["dtype"],
                inputs=tuple(tuple(int(code, 16) for code in element) for element in group["inputs"]),
                start=group["in_range"][0],
                stop=group["in_range"][1],
                place=group["place"],
                out=int(raw["out"], 16),
                address=group["address_mod_16"],
                context=raw["context"],
            )
            again = found.to_json()
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise EvidenceError(f"failure record: is damaged ({type(error).__name__}: {error})") from error
        wrong = [key for key in again if again[key] != raw.get(key)]
        if wrong:
            raise EvidenceError(f"failure record: {', '.join(wrong)} does not follow from its inputs; take a copy")
        return found


def _power(k: int) -> Fraction:
    return Fraction(2) ** k


# ------------------------------------------------------------------------------------------------------- from a recorded call


def failure_record(
    trial: Trial, repeat: int, rank: int, index: int, out: int, *, group_bytes: int = GROUP_BYTES, path: str = ""
) -> FailureRecord:
    """The record of what ``rank`` received at receive index ``index``: ``out`` is the code seen there.

    The aligned group of ``group_bytes`` (a power of two, at most 512) that holds the element is cut by address in the send
    buffers. Raises EvidenceError where the trial's op is not sum, or where the rank receives nothing at that index.
    """
    fmt, call = trial.call.fmt, trial.call
    if call.op != "sum":
        raise EvidenceError(f"trial {trial.trial_id}: a failure record is of a sum, not of {call.op}")
    if rank not in call.receivers(trial.rank_n) or not 0 <= index < call.count:
        raise EvidenceError(f"trial {trial.trial_id}: rank {rank} receives nothing at index {index}")
    at = inputs.receiver_range(trial, rank)[0] + index
    n = max(group_bytes // fmt.itemsize, 1)
    first = (
        at - (at + trial.send_shift) % n
    )  # send index of the group's first element; arenas and guards are whole groups
    of_trial = ("trial_id", "send_shift", "recv_shift", "in_place", "head", "tail", "variant")
    context = {key: getattr(call, key) for key in ("collective", "count", "root")}
    context |= {key: getattr(trial, key) for key in of_trial}
    context |= {"repeat": repeat, "rank": rank, "index": index, "path": path}
    return FailureRecord(
        format=fmt.name,
        inputs=tuple(zip(*(_around(trial, repeat, member, first, first + n) for member in trial.members), strict=True)),
        start=max(0, -first),
        stop=min(n, trial.send_count - first),
        place=at - first,
        out=out,
        address=(trial.send_shift + first) * fmt.itemsize % 16,
        context=context,
    )


def _around(trial: Trial, repeat: int, member: int, first: int, stop: int) -> list[int]:
    """What lies in a member's send buffer at the send indices [first, stop), fills of both guards included."""
    count, position = trial.send_count, trial.members.index(member)
    head = layout.fill_codes(trial.call.fmt, trial.head, position, after=False)
    tail = layout.fill_codes(trial.call.fmt, trial.tail, position, after=True)
    inside = inputs.send_codes(trial, repeat, member, max(first, 0), min(stop, count))
    before = head[len(head) + first :] if first < 0 else head[:0]
    after = tail[: max(stop - count, 0)]
    return [int(code) for part in (before, inside, after) for code in part]


# ---------------------------------------------------------------------------------------------------------------- replay


def replay(record: FailureRecord, subject: type[Any], options: Mapping[str, Any]) -> int:
    """The code that ``subject`` (a backend class that drives every rank from one process) gives for the record's element.

    An all_reduce of the group's in-range elements alone, at the recorded address mod 16, the rest of the group beside them and
    zeros further off. Kept is the rounding, by values, group and place in the word; not an order that depends on the count.
    """
    fmt, n = record.fmt, len(record.terms)
    world = World(rank_n=n, local_ranks=tuple(range(n)), control=LocalControl())
    backend = subject(world, dict(options))
    try:
        first, size = layout.ALIGNMENT + record.address, fmt.itemsize
        nbytes = 2 * layout.ALIGNMENT + -(-len(record.inputs) * size // layout.ALIGNMENT) * layout.ALIGNMENT
        send, recv = backend.allocate(nbytes), backend.allocate(nbytes)
        for rank in range(n):
            codes = np.array([element[rank] for element in record.inputs], fmt.dtype)
            send[rank][first : first + codes.nbytes] = codes.view(np.uint8)
        call = Call(collective="all_reduce", op="sum", format=fmt.name, count=record.stop - record.start)
        offset, length = first + record.start * size, call.count * size
        windows = [{rank: Window(part[rank], offset, length) for rank in range(n)} for part in (send, recv)]
        backend.run(call, *windows)
        got: Codes = np.asarray(recv[0][offset : offset + length]).view(fmt.dtype)
        return int(got[record.place - record.start])
    finally:
        backend.close()


# ---------------------------------------------------------------------------------------------------------------- shrink


def shrink(record: FailureRecord, run: Callable[[FailureRecord], int]) -> FailureRecord:
    """A simpler record of the same class: members, then elements of the group, then low bits are set to zero, each where the
    result, asked of ``run``, still ends in that class. Nothing more can be taken from what comes back.
    """
    before = None
    while before != record:
        before = record
        for spots in _steps(record):
            record = _lighter(record, spots, run)
    return record


def _steps(record: FailureRecord) -> Iterator[list[tuple[int, int]]]:
    """(element, member) spots that are simplified together."""
    elements, members = range(len(record.inputs)), range(len(record.terms))
    yield from ([(element, member) for element in elements] for member in members)
    yield from ([(element, member) for member in members] for element in elements if element != record.place)
    yield from ([(element, member)] for element in elements for member in members)


def _lighter(record: FailureRecord, spots: list[tuple[int, int]], run: Callable[[FailureRecord], int]) -> FailureRecord:
    """All spots zero if the class stays; one spot alone also loses its low bits one after the other."""
    codes = [record.inputs[element][member] for element, member in spots]
    tried = _with(record, dict.fromkeys(spots, 0))
    ways = [tried] if any(codes) else []
    if len(spots) == 1 and codes[0]:
        ways.append(_with(record, {spots[0]: codes[0] & (codes[0] - 1)}))
    for way in ways:
        found = replace(way, out=run(way))
        if found.kind == record.kind:
            return _lighter(found, spots, run)
    return record


def _with(record: FailureRecord, codes: Mapping[tuple[int, int], int]) -> FailureRecord:
    rows = [[codes.get((e, m), code) for m, code in enumerate(row)] for e, row in enumerate(record.inputs)]
    return replace(record, inputs=tuple(tuple(row) for row in rows))
