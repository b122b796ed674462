"""One rank's arena: guard | shift | payload | tail | guard, and every byte that stands outside a range.

An arena is one long byte array. Between trials all of it holds the *background*, a fixed pseudo-random pattern, so that a
write anywhere outside a range shows. A trial writes its payload and, in the send arena, the fills before (head) and after
(tail) the range; the receive range gets a prefill. ``offset % 512 == shift * itemsize % 512`` holds for every range (DESIGN §4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from auditor.errors import ConfigError
from auditor.model import Bytes, Codes, Trial
from auditor.numerics import triggers
from auditor.numerics.formats import Format
from auditor.numerics.hashing import counter_hash, stream_key

ALIGNMENT = 512
GUARD = 4096  # bytes fenced on each side of a range; a multiple of ALIGNMENT and of every item size
PERIOD = 1 << 16  # the background repeats after so many bytes
_BACKGROUND_STREAM, _RANDOM_STREAM = 0xB6, 0xF1


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of an arena; ``fenced`` is the range with its guards."""

    offset: int
    nbytes: int

    @property
    def stop(self) -> int:
        return self.offset + self.nbytes

    @property
    def head(self) -> slice:
        return slice(self.offset - GUARD, self.offset)

    @property
    def body(self) -> slice:
        return slice(self.offset, self.stop)

    @property
    def tail(self) -> slice:
        return slice(self.stop, self.stop + GUARD)

    @property
    def fenced(self) -> slice:
        return slice(self.offset - GUARD, self.stop + GUARD)


def send_range(trial: Trial) -> Range:
    itemsize = trial.call.fmt.itemsize
    return Range(GUARD + trial.send_shift * itemsize, trial.send_count * itemsize)


def recv_range(trial: Trial, rank: int) -> Range:
    """Where ``rank`` (a member) receives; in place this lies inside its send range (DESIGN §4)."""
    itemsize = trial.call.fmt.itemsize
    nbytes = trial.call.count * itemsize
    if not trial.in_place:
        return Range(GUARD + trial.recv_shift * itemsize, nbytes)
    share = trial.members.index(rank) * nbytes if trial.call.collective == "reduce_scatter" else 0
    return Range(send_range(trial).offset + share, nbytes)


def arena_bytes(trials: Iterable[Trial]) -> int:
    """Bytes of each of the two arenas, enough for every trial."""
    need = 0
    for trial in trials:
        shift = max(trial.send_shift, trial.recv_shift)
        need = max(need, (shift + max(trial.send_count, trial.call.count)) * trial.call.fmt.itemsize)
    return -(-(need + 2 * GUARD) // ALIGNMENT) * ALIGNMENT


class Background:
    """The pattern of one arena of one rank, by absolute offset."""

    def __init__(self, rank: int, arena: str) -> None:
        key = stream_key(0, rank, _BACKGROUND_STREAM + (arena == "recv"), 0)
        one = counter_hash(key, np.arange(PERIOD // 4, dtype=np.uint32)).view(np.uint8)
        self._twice = np.concatenate([one, one])

    def blocks(self, start: int, stop: int) -> Iterable[tuple[int, Bytes]]:
        """(offset, bytes) pieces that cover [start, stop)."""
        while start < stop:
            phase = start % PERIOD
            n = min(stop - start, PERIOD)
            yield start, self._twice[phase : phase + n]
            start += n

    def bytes(self, start: int, stop: int) -> Bytes:
        return np.concatenate([np.empty(0, np.uint8), *(block for _, block in self.blocks(start, stop))])


def prefill_code(fmt: Format, name: str) -> int:
    """Code that fills the receive range before a call.

    ``snan_a``/``snan_b``: signalling NaNs with payloads that no library makes up (8-bit formats have no such code: both of
    their NaN signs stand in). ``finite``: 1.25, which no sum of rank-coded data is (those are 1..1 in binary) and which no such
    sum swallows, so that a prefill that takes part in a sum shows in every format.
    """
    if name == "finite":
        return fmt.power_of_two(0) | 1 << (fmt.mantissa_bits - 2)
    if name not in ("snan_a", "snan_b"):
        raise ConfigError(f"prefill {name!r} is none of snan_a, snan_b, finite")
    sign = fmt.sign_mask if name == "snan_b" else 0
    if fmt.mantissa_bits < 4:
        return fmt.overflow_code | sign | (1 if fmt.has_infinity else 0)
    quiet = 1 << (fmt.mantissa_bits - 1)
    pattern = 0xA5A5A5A5A5A5A if name == "snan_b" else 0x5A5A5A5A5A5A5
    return fmt.overflow_code | sign | ((pattern & (quiet - 1)) | 1)


def fill_codes(fmt: Format, fill: str, position: int, *, after: bool) -> Codes:
    """GUARD bytes of a head (``after`` False) or tail fill, as codes; ``position``: of the member in its group.

    ``trigger:A`` sums to 1.0 and ``trigger:B`` to 1.75 over the members (NUMERICS §1.5); other triggers are sums that differ in
    one bit (:func:`auditor.numerics.triggers.beside`).
    """
    n = GUARD // fmt.itemsize
    kind, _, argument = fill.partition(":")
    if kind == "random":
        stream = _RANDOM_STREAM + after
        words = counter_hash(stream_key(int(argument), position, stream, 0), np.arange(GUARD // 4, dtype=np.uint32))
        return words.view(fmt.dtype)
    one = fmt.power_of_two(0)
    half_more = 1 << (fmt.mantissa_bits - 1)
    if kind == "trigger":
        three_quarters = fmt.power_of_two(-1) | half_more
        named = {"A": (one, 0), "B": (one, three_quarters)}
        per_member = named.get(argument) or triggers.beside(fmt, argument)
        if per_member is None:
            raise ConfigError(f"fill {fill!r}: a trigger is A, B, 0, all, or a bit that {fmt.name} can set: s, e0, b22")
        return np.full(n, per_member[position] if position < 2 else 0, fmt.dtype)
    codes = {"zero": 0, "finite": one | half_more, "huge": fmt.max_code, "nan": fmt.nan_code}
    if kind not in codes or argument:
        raise ConfigError(f"fill {fill!r} is none of zero, finite, huge, nan, random:k, trigger:A")
    return np.full(n, codes[kind], fmt.dtype)
