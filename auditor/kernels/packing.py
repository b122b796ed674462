"""The records of ``rules.cuh`` as bytes. Every field is a 64-bit word, in the order of the C structs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from auditor.numerics.formats import Format
from auditor.numerics.hashing import MASK64, stream_key
from auditor.numerics.programs import Program, Sender

Words = npt.NDArray[np.uint64]
Table = Callable[[bytes], int]  # where the device keeps these bytes

KINDS = (
    "zero",
    "scaled",
    "sparse",
    "report132",
    "normal",
    "lognormal",
    "rank_coded",
    "constant",
    "position",
    "smooth",
    "ties",
    "operands",
    "specials",
    "exhaustive",
)
FORMAT_WORDS, RULE_WORDS, SENDER_WORDS = 8, 14, 31


def _padded(numbers: Sequence[int], n: int) -> list[int]:
    if len(numbers) > n:
        raise ValueError(f"{len(numbers)} arguments, a rule has room for {n}")
    return [*numbers, *[0] * (n - len(numbers))]


def format_words(fmt: Format) -> list[int]:
    sizes = [fmt.bits, fmt.mantissa_bits, fmt.emin, fmt.emax, int(fmt.has_infinity)]
    return [*sizes, fmt.max_code, fmt.overflow_code, fmt.nan_code]


def rule_words(program: Program, high: int, table: Table) -> list[int]:
    """One rule, keyed for data indices whose high word is ``high``."""
    keys = [stream_key(one.seed, one.rank, one.number, high) for one in program.streams]
    where = table(np.array(program.table, np.uint64).tobytes()) if program.table else 0
    kind = KINDS.index(program.kind)
    return [kind, *_padded(keys, 4), *_padded(program.small, 6), *_padded(program.wide, 2), where]


def sender_words(sender: Sender, high: int, table: Table) -> list[int]:
    rules = [rule_words(one, high, table) for one in sender.programs]
    second = rules[1] if len(rules) > 1 else [0] * RULE_WORDS
    roles = table(sender.roles) if sender.roles else 0
    return [*rules[0], *second, sender.period, len(sender.roles), roles]


def packed(words: Sequence[int]) -> Words:
    """uint64 of shape (n,); negative numbers in two's complement."""
    return np.array([word & MASK64 for word in words], np.uint64)
