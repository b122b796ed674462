"""A subject's arenas, filled and compared to the byte: where the kit's data come from and what must come back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.backends.base import LocalControl
from auditor.errors import ConfigError
from auditor.model import Bytes, Call, Capabilities, Codes, Window, World
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import counter_hash, stream_key

GUARD = 4096
COUNT_MAX = 1021
# count, shift of the send range and of the receive range in elements, in place
SUMS = (
    (0, 0, 0, False),
    (0, 0, 0, True),
    (1, 0, 0, False),
    (1, 1, 3, False),
    (2, 0, 0, True),
    (7, 1, 1, True),
    (7, 3, 0, False),
    (64, 0, 0, False),
    (COUNT_MAX, 1, 2, False),
    (COUNT_MAX, 0, 0, True),
)
OTHERS = ((5, 0, 1, False), (5, 1, 1, True))


@dataclass
class Subject:
    cls: type[Any]
    options: dict[str, Any]
    world: World

    @property
    def capabilities(self) -> Capabilities:
        capabilities: Capabilities = self.cls.probe(dict(self.options))
        return capabilities

    @contextlib.contextmanager
    def bench(self) -> Iterator[Bench]:
        """An instance with its two arenas; closed at the end."""
        backend = self.cls(self.world, dict(self.options))
        try:
            nbytes = -(-(2 * GUARD + (COUNT_MAX * self.world.rank_n + 8) * 8) // 512) * 512
            yield Bench(
                backend, self.world, self.capabilities, backend.allocate(nbytes), backend.allocate(nbytes), nbytes
            )
        finally:
            backend.close()


@dataclass(frozen=True)
class Case:
    call: Call
    send_shift: int
    recv_shift: int
    in_place: bool

    def __str__(self) -> str:
        call = self.call
        text = f"{call.collective} {call.op} {call.format} count {call.count} shift {self.send_shift},{self.recv_shift}"
        text += f" root {call.root}" if call.collective == "reduce" else ""
        text += f" group {call.group}" if call.group else ""
        return text + (" in place" if self.in_place else "")


Execute = Callable[[Call, Mapping[int, Window], Mapping[int, Window]], None]


@dataclass
class Bench:
    """Places a case's data, and compares every byte of both arenas afterwards."""

    backend: Any
    world: World
    capabilities: Capabilities
    send: dict[int, Any]
    recv: dict[int, Any]
    nbytes: int
    salt: int = 0
    before: dict[tuple[str, int], Bytes] = field(default_factory=dict)

    def attempt(self, case: Case, execute: Execute | None = None) -> Iterator[str]:
        """Fill, call, compare."""
        send, recv = self.place(case)
        self._meet()
        try:
            if send or recv:
                (execute or self.backend.run)(case.call, send, recv)
        except Exception as error:
            yield f"{case}: raised {said(error)}, though the capabilities allow the call"
            return
        yield from self.compare(case, send, recv)

    def _meet(self) -> None:
        """Every rank's data are in place: a one-sided library may write into a peer as soon as one rank calls."""
        for array in (*self.send.values(), *self.recv.values()):
            if hasattr(array, "__cuda_array_interface__"):
                array.device.synchronize()
        self.world.control.barrier()

    def windows(self, case: Case) -> tuple[dict[int, Window], dict[int, Window]]:
        """Send and receive windows of this process's members."""
        call, size = case.call, case.call.fmt.itemsize
        members = call.members(self.world.rank_n)
        send, recv = {}, {}
        for rank in (rank for rank in members if rank in self.world.local_ranks):
            offset = GUARD + case.send_shift * size
            send[rank] = Window(self.send[rank], offset, call.send_count(self.world.rank_n) * size)
            share = members.index(rank) * call.count * size if call.collective == "reduce_scatter" else 0
            at = offset + share if case.in_place else GUARD + case.recv_shift * size
            recv[rank] = Window(self.send[rank] if case.in_place else self.recv[rank], at, call.count * size)
        return send, recv

    def place(self, case: Case) -> tuple[dict[int, Window], dict[int, Window]]:
        """New data, guards and prefills; remembers every byte."""
        self.salt += 1
        send, recv = self.windows(case)
        members = case.call.members(self.world.rank_n)
        for rank in self.world.local_ranks:
            for name, arena in (("send", self.send[rank]), ("recv", self.recv[rank])):
                bytes_ = _noise(self.nbytes, 2 * rank + (name == "recv"))
                if name == "recv" and rank in recv and not case.in_place:
                    bytes_[_range(recv[rank])] = 0xFF  # NaN in every format
                if name == "send" and rank in send:
                    values = _terms(case.call.op, len(members), members.index(rank), _n(send[rank], case), self.salt)
                    bytes_[_range(send[rank])] = _encode(case.call.fmt, values).view(np.uint8)
                self.before[name, rank] = bytes_
                _put(arena, bytes_)
        return send, recv

    def compare(self, case: Case, send: Mapping[int, Window], recv: Mapping[int, Window]) -> Iterator[str]:
        """What stands elsewhere than it should, per rank and arena."""
        receivers = case.call.receivers(self.world.rank_n)
        for rank in self.world.local_ranks:
            for name, arena in (("send", self.send[rank]), ("recv", self.recv[rank])):
                found, expected = _get(arena), self.before[name, rank].copy()
                if case.in_place and case.call.collective == "reduce_scatter" and name == "send" and rank in send:
                    # In place the other shares are the subject's to use.
                    expected[_range(send[rank])] = found[_range(send[rank])]
                window = recv.get(rank) if name == ("send" if case.in_place else "recv") else None
                if window is not None and rank in receivers:
                    at = _range(window)
                    expected[at] = self._wanted(case, rank, found[at], self.before[name, rank][at])
                yield from _difference(case, rank, name, found, expected, window if rank in receivers else None)

    def _wanted(self, case: Case, rank: int, found: Bytes, before: Bytes) -> Bytes:
        """The output's bytes; where the value is the subject's choice, what it wrote, if it wrote."""
        call, members = case.call, case.call.members(self.world.rank_n)
        values = _result(call.op, len(members), call.send_count(self.world.rank_n), self.salt)
        if values is None:
            wanted = found.copy()
            unwritten = (found == before).reshape(-1, call.fmt.itemsize).all(axis=1) if not case.in_place else []
            wanted.reshape(-1, call.fmt.itemsize)[unwritten] = 0
            return wanted
        start = members.index(rank) * call.count if call.collective == "reduce_scatter" else 0
        return _encode(call.fmt, values[start : start + call.count]).view(np.uint8)


def one_process_world(cls: type[Any], ranks: int) -> World:
    if cls.process_model == "one" and ranks > 1:
        raise ConfigError(
            f"{cls.__name__} drives one rank a process: start the kit under a launcher and give check_backend the world "
            "of each process"
        )
    return World(rank_n=ranks, local_ranks=tuple(range(ranks)), control=LocalControl())


def cases(capabilities: Capabilities, rank_n: int, group: tuple[int, ...] | None) -> Iterator[Case]:
    n = len(group) if group else rank_n
    for collective in sorted(capabilities.collectives):
        for name in sorted(capabilities.formats):
            for op in sorted(capabilities.ops):
                for count, send, recv, in_place in SUMS if op == "sum" else OTHERS:
                    size = FORMATS[name].itemsize
                    odd = (send * size % capabilities.element_alignment, recv * size % capabilities.element_alignment)
                    if any(odd) or (in_place and not capabilities.in_place):
                        continue
                    root = (count + n - 1) % n if collective == "reduce" else 0
                    call = Call(collective=collective, op=op, format=name, count=count, root=root, group=group)
                    yield Case(call, send, recv, in_place)


def plain_case(capabilities: Capabilities) -> Case:
    """One call that is surely offered."""
    collective = "all_reduce" if "all_reduce" in capabilities.collectives else min(capabilities.collectives)
    op = "sum" if "sum" in capabilities.ops else min(capabilities.ops)
    return Case(Call(collective=collective, op=op, format=min(capabilities.formats), count=64), 0, 0, False)


def said(error: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _range(window: Window) -> slice:
    return slice(window.offset, window.offset + window.nbytes)


def _n(window: Window, case: Case) -> int:
    return window.nbytes // case.call.fmt.itemsize


def _put(array: Any, bytes_: Bytes) -> None:
    if isinstance(array, np.ndarray):
        array[:] = bytes_
    else:
        array.set(bytes_)  # cupy


def _get(array: Any) -> Bytes:
    return array.copy() if isinstance(array, np.ndarray) else array.get()


def _hash(n: int, *key: int) -> npt.NDArray[np.uint32]:
    return counter_hash(stream_key(*(key + (0,) * (4 - len(key)))), np.arange(n, dtype=np.uint32))


def _noise(n: int, arena: int) -> Bytes:
    return _hash(n // 4, 1, arena).view(np.uint8)


def _terms(op: str, members: int, position: int, n: int, salt: int) -> npt.NDArray[Any]:
    """What one member sends, 0 to 3. A sum has two contributors an element and at most 6, which every format holds."""
    if op != "sum":
        return 1 + _hash(n, 4, salt) % 2 if op == "avg" else 1 + _hash(n, 5, salt, position) % 3
    first = _hash(n, 2, salt) % members
    second = (first + 1 + _hash(n, 3, salt) % max(members - 1, 1)) % members
    return np.where((first == position) | (second == position), 1 + _hash(n, 6, salt, position) % 3, 0)


def _result(op: str, members: int, n: int, salt: int) -> npt.NDArray[Any] | None:
    """Output values; None where they are the subject's choice: an average over a number of members that is no power of two."""
    if op == "avg" and members & (members - 1):
        return None
    terms = np.stack([_terms(op, members, position, n, salt) for position in range(members)])
    results: dict[str, npt.NDArray[Any]] = {
        "sum": terms.sum(axis=0),
        "avg": terms[0],
        "min": terms.min(axis=0),
        "max": terms.max(axis=0),
    }
    return results[op]


def _encode(fmt: Format, values: npt.NDArray[Any]) -> Codes:
    leads = [value.bit_length() - 1 for value in range(1, 7)]
    table = [fmt.power_of_two(e) | (v - (1 << e)) << (fmt.mantissa_bits - e) for v, e in enumerate(leads, 1)]
    codes: Codes = np.array([0, *table], fmt.dtype)[values]
    return codes


def _difference(
    case: Case, rank: int, arena: str, found: Bytes, expected: Bytes, window: Window | None
) -> Iterator[str]:
    """One line for a wrong output and one for a byte that was not the subject's to write."""
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return
    start, nbytes = (window.offset, window.nbytes) if window else (0, 0)
    inside = (wrong >= start) & (wrong < start + nbytes)
    if inside.any():
        size = case.call.fmt.itemsize
        index = int(wrong[inside][0] - start) // size
        at = slice(start + index * size, start + (index + 1) * size)
        got, want = (int(part[at].view(case.call.fmt.dtype)[0]) for part in (found, expected))
        yield f"{case}: rank {rank} element {index} is {got:#x}, not {want:#x}"
    if not inside.all():
        first = int(wrong[~inside][0])
        where = f"{first - start:+d} from its receive range" if window else f"{first - GUARD:+d} from the range's base"
        yield f"{case}: rank {rank} changed {int((~inside).sum())} bytes of its {arena} arena, the first at {where}"
