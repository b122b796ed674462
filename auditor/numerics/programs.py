"""Inputs as a device kernel makes them: a rule's name and the integers that it reads.

A :class:`Program` is one contributor's data with everything resolved but the high word of the index, which keys the
hash streams. ``kernels/rules.cuh`` has the rules; a :class:`~auditor.numerics.recipes.Recipe` is one of them, and
``inputs.programs`` gives one for every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from auditor.numerics.formats import Format
from auditor.numerics.hashing import MASK64
from auditor.numerics.recipes import COMMON, Recipe, Stream, mantissa_mask

BINARY32_PRECISION = 24


@dataclass(frozen=True, slots=True)
class Program:
    """``kind`` names the rule. ``streams`` (at most 4), ``small`` (at most 6 integers), ``wide`` (at most 2 of 64 bits)
    and ``table`` are its arguments, in the order that the rule documents.
    """

    kind: str
    fmt: Format
    streams: tuple[Stream, ...] = ()
    small: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    table: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sender:
    """What one rank sends: ``programs`` holds one, or the two contributors of a pair.

    ``roles``: this rank's contributor number in each pair, 255 for none; empty where there are no pairs. ``period``: send
    index i holds the data of index i mod period; 0 where there is none.
    """

    programs: tuple[Program, ...]
    roles: bytes = b""
    period: int = 0


def of_recipe(recipe: Recipe) -> Program:
    """The recipe as a program."""
    fmt, seed, rank, params = recipe.fmt, recipe.seed, recipe.rank, recipe.params
    own = tuple(Stream(seed, rank, recipe.stream + k) for k in range(4))
    kind = recipe.kind
    if kind in ("scaled", "sparse"):
        _, span, low = params[:3]
        scale = (span + 1, low + fmt.bias)
        if kind == "scaled":
            return Program(kind, fmt, own[:3], scale, (mantissa_mask(recipe),))
        shared = Stream(seed, COMMON, recipe.stream + 8)
        return Program(kind, fmt, (*own[:3], shared), (*scale, *params[3:], rank), (mantissa_mask(recipe),))
    if kind == "report132":
        return Program(kind, fmt, wide=(((seed << 40) ^ (rank << 32)) & MASK64,))
    if kind in ("normal", "lognormal"):
        return Program(kind, fmt, own, params)
    if kind == "rank_coded":
        position, size, slots, low = params
        streams = (Stream(0, COMMON, recipe.stream), Stream(seed, COMMON, recipe.stream + 1))
        return Program(kind, fmt, streams, ((position + seed) % size, size, seed % slots, slots, low + fmt.bias))
    return Program("zero", fmt)


def add_in_binary32(programs: Sequence[Program]) -> bool:
    """Whether every sum of these, in every order, is exact in binary32 and in the format's range, by their rule alone.

    Terms of ``scaled`` are multiples of u = 2**(low - bits + 1) below 2**(low + span + 1), so n of them add to at most
    n * 2**(bits + span) * u.
    """
    first = programs[0]
    alike = all((one.kind, one.small, one.wide) == (first.kind, first.small, first.wide) for one in programs)
    if first.kind != "scaled" or first.fmt.bits > 16 or not alike:
        return False
    bits, span, low = first.wide[0].bit_count() + 1, first.small[0] - 1, first.small[1] - first.fmt.bias
    carry = (len(programs) - 1).bit_length()
    return bits + span + carry <= BINARY32_PRECISION and low + span + 1 + carry <= first.fmt.emax
