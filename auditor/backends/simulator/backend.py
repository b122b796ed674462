"""The simulator: every rank in this process, in host memory, with the bits that its options ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from auditor.backends.simulator.arithmetic import extreme, total
from auditor.backends.simulator.keyed import generator_noise, neighbour_noise, top_bits, up_by_form
from auditor.backends.simulator.options import Options, Recipe
from auditor.backends.simulator.schedule import Piece, pieces
from auditor.errors import BackendError, Unsupported
from auditor.model import COLLECTIVES, OPS, Bytes, Call, Capabilities, Codes, Window, World
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import join, round_sums, split, up_by_mode

ALIGNMENT = 512
BLOCK = 1 << 16  # elements reduced at once; a multiple of every group


class Simulator:
    """A reduction with known numerics; its options are the fields of :class:`auditor.backends.simulator.options.Options`."""

    name: ClassVar[str] = "simulator"
    process_model: ClassVar[str] = "all"

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Everything, everywhere. Raises ConfigError on an option or a value that does not exist."""
        Options.parse(options)
        return Capabilities(
            collectives=frozenset(COLLECTIVES),
            ops=frozenset(OPS),
            formats=frozenset(FORMATS),
            features=frozenset({"groups", "history", "recreate", "path", "timing"}),
        )

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self.options = Options.parse(options)
        self._world = world
        self._buffers: list[dict[int, Bytes]] = []
        self._calls = 0
        self._path = ""
        self._seconds = 0.0
        self._side_communicators = 0

    def allocate(self, nbytes: int) -> dict[int, Bytes]:
        """One zeroed array a rank, base 512-byte aligned."""
        self._buffers.append({rank: _aligned(nbytes) for rank in self._world.local_ranks})
        return dict(self._buffers[-1])

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        """Raises Unsupported where there is no such collective, op or format, BackendError where windows do not fit."""
        began = time.perf_counter()
        members = _checked(call, self._world.rank_n, send, recv)
        recipe = Recipe.of(self.options, call.fmt)
        self._path = _path(recipe, call.op)
        outputs = _Outputs(call.fmt, recv)
        for piece in pieces(call, members, self.options.order, self.options.shot):
            sources = [send[rank] for rank in members]
            for start, codes in self._reduce(call, recipe, piece, sources, outputs):
                outputs.put(piece, start, codes)
        outputs.flush()
        self._calls += 1
        self._seconds = time.perf_counter() - began

    def path(self) -> str:
        """``SIM/order/shot/rounding`` of the last call; rounding is ``exact`` for min and max, which do not round."""
        return self._path

    def last_seconds(self) -> float:
        """Seconds that the last call took by the simulator's own clock."""
        return self._seconds

    def perturb(self, side_communicators: int) -> None:
        """Side communicators that are alive from now on. They change nothing here."""
        self._side_communicators = side_communicators

    def recreate(self) -> None:
        """A new communicator over the same buffers. A generator keyed by the call goes on counting."""

    def describe(self) -> Mapping[str, Any]:
        return {"simulated": True, "numpy": np.__version__, **self.options.to_json()}

    def close(self) -> None:
        self._buffers.clear()

    def _reduce(
        self, call: Call, recipe: Recipe, piece: Piece, sources: Sequence[Window], outputs: _Outputs
    ) -> Iterator[tuple[int, Codes]]:
        """(first send index, codes) of the piece's blocks. Blocks end where groups end, so that a group is read once, whole."""
        reader = _Reader(recipe, piece, sources)
        for start, stop in reader.blocks():
            low, high = reader.groups(start, stop)
            outputs.flush(low)
            terms = [reader.read(source, low, high) for source in sources]
            if call.op in ("min", "max"):
                codes = extreme(call.fmt, call.op, terms)
            else:
                place = sources[0].offset // call.fmt.itemsize
                codes = self._round(call, recipe, piece, terms, low, place)
            yield start, codes[start - low : stop - low]

    def _round(self, call: Call, recipe: Recipe, piece: Piece, terms: Sequence[Codes], low: int, place: int) -> Codes:
        """The rounded sums of whole groups, the first of which begins at send index ``low``; send index 0 is element ``place``
        of the arena.
        """
        sums = total(recipe, call.op, piece.tree, terms)
        if recipe.final not in ("stochastic", "neighbour_keyed"):
            # Where the accumulator is the element format every sum fits it already, and no mode changes it.
            return round_sums(call.fmt, sums, recipe.final)
        seen = split(call.fmt, sums)
        if recipe.final == "stochastic":
            noise = generator_noise(recipe, self._calls, low, sums, place)
        else:
            noise = neighbour_noise(recipe, top_bits(recipe.word, sums))
        up = up_by_form(seen, noise, recipe.noise_n, self.options.form)
        if recipe.final == "neighbour_keyed" and self.options.read_past is False:
            cut = _incomplete(piece, low, len(seen), recipe.group_n)
            up[cut] = up_by_mode("ties_to_even", seen)[cut]
        return join(call.fmt, seen, up)


class _Reader:
    """Reads one piece of every member's send range, whole groups at a time. Groups are cut by byte address."""

    def __init__(self, recipe: Recipe, piece: Piece, sources: Sequence[Window]) -> None:
        self._fmt, self._piece, self._group_n = recipe.fmt, piece, recipe.group_n
        self._phase = sources[0].offset // recipe.fmt.itemsize % recipe.group_n
        self._read_past = recipe.options.read_past is True

    def groups(self, start: int, stop: int) -> tuple[int, int]:
        """The send indices of the whole groups that hold [start, stop)."""
        low = start - (start + self._phase) % self._group_n
        return low, stop + -(stop + self._phase) % self._group_n

    def blocks(self) -> Iterator[tuple[int, int]]:
        low, high = self.groups(self._piece.start, self._piece.stop)
        for start in range(low, high, BLOCK):
            yield max(start, self._piece.start), min(start + BLOCK, self._piece.stop)

    def read(self, source: Window, low: int, high: int) -> Codes:
        """Codes at send indices [low, high) of one rank, a copy; zeros where nothing is read or the buffer has ended."""
        size, room = self._fmt.itemsize, len(source.buffer)
        first, last = low, high
        if not self._read_past:
            first, last = max(low, self._piece.start), min(high, self._piece.stop)
        begin, end = (min(max(source.offset + index * size, 0), room) for index in (first, last))
        codes = np.zeros((high - low) * size, np.uint8)
        at = begin - source.offset - low * size
        codes[at : at + end - begin] = source.buffer[begin:end]
        return codes.view(self._fmt.dtype)


class _Outputs:
    """Writes results, each only when no group still to be read can hold its bytes: in place, an output lies on an input."""

    def __init__(self, fmt: Format, recv: Mapping[int, Window]) -> None:
        self._fmt, self._recv = fmt, recv
        self._pending: list[tuple[Piece, int, Codes]] = []

    def put(self, piece: Piece, start: int, codes: Codes) -> None:
        self._pending.append((piece, start, codes))

    def flush(self, before: int | None = None) -> None:
        """Write what ends at or before send index ``before``; all of it without one."""
        done = [p for p in self._pending if before is None or p[1] + len(p[2]) <= before]
        self._pending = [] if before is None else [p for p in self._pending if p[1] + len(p[2]) > before]
        for piece, start, codes in done:
            for rank, base in piece.receivers:
                window = self._recv[rank]
                at = window.offset + (start - base) * self._fmt.itemsize
                window.buffer[at : at + codes.nbytes] = codes.view(np.uint8)


def _aligned(nbytes: int) -> Bytes:
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    first = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[first : first + nbytes]


def _incomplete(piece: Piece, low: int, n: int, group_n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of ``n`` elements from send index ``low`` lie in a group that the piece does not fill."""
    first = low + np.arange(n) // group_n * group_n
    return (first < piece.start) | (first + group_n > piece.stop)


def _path(recipe: Recipe, op: str) -> str:
    rounding = recipe.final if op in ("sum", "avg") else "exact"
    return f"SIM/{recipe.options.order}/{recipe.options.shot}/{rounding}"


def _checked(call: Call, rank_n: int, send: Mapping[int, Window], recv: Mapping[int, Window]) -> tuple[int, ...]:
    """The call's members. Raises where the call or its windows cannot be served."""
    if call.collective not in COLLECTIVES or call.op not in OPS or call.format not in FORMATS:
        raise Unsupported(f"simulator: there is no {call.collective} of {call.format} by {call.op}")
    members = call.members(rank_n)
    if not members or len(set(members)) != len(members) or not all(0 <= rank < rank_n for rank in members):
        raise BackendError(f"simulator: group {members} is not a choice of ranks 0 to {rank_n - 1}")
    if call.count < 0 or not 0 <= call.root < len(members):
        raise BackendError(f"simulator: count {call.count} or root {call.root} is out of range")
    for what, windows, count in (("send", send, call.send_count(rank_n)), ("recv", recv, call.count)):
        for rank in members:
            _check_window(f"{what} window of rank {rank}", windows.get(rank), count * call.fmt.itemsize)
    return members


def _check_window(what: str, window: Window | None, nbytes: int) -> None:
    if window is None:
        raise BackendError(f"simulator: there is no {what}")
    if window.nbytes != nbytes or window.offset < 0 or window.offset + nbytes > len(window.buffer):
        raise BackendError(
            f"simulator: the {what} has {window.nbytes} bytes at offset {window.offset} of {len(window.buffer)}; "
            f"the call needs {nbytes}"
        )
