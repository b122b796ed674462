"""Which way each element takes through the multimem kernels: the arithmetic of multimem.cu, in Python, for ``path()``.

A range is cut by the address of its first element: lone elements up to a multiple of 4 bytes, words of 4 bytes up to a multiple
of the unit, whole units, words, lone elements. The switch reduces words and units; a lone element of 8 or 16 bits it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from auditor.backends.multimem_forms import WORD


@dataclass(frozen=True, slots=True)
class Split:
    """Steps of one range, in the order of its elements; a step is an element, a word or a unit."""

    itemsize: int
    unit: int
    lone: int
    words: int
    units: int
    last_words: int
    last_lone: int

    @property
    def steps(self) -> int:
        return self.lone + self.words + self.units + self.last_words + self.last_lone

    def ways(self) -> Iterator[tuple[str, int, int]]:
        """(way, steps, elements) in order, without empty ones; way: ``lone``, ``word`` or ``unit``."""
        in_word, in_unit = WORD // self.itemsize, self.unit // self.itemsize
        rows = (
            ("lone", self.lone, 1),
            ("word", self.words, in_word),
            ("unit", self.units, in_unit),
            ("word", self.last_words, in_word),
            ("lone", self.last_lone, 1),
        )
        yield from ((way, steps, steps * each) for way, steps, each in rows if steps)

    def text(self, vector: str, lone: str) -> str:
        """As ``s1.w3.v4.w2.s1``: one lone element, three words, whole units of v4, two words, one lone element.

        ``lone``: ``s`` where a lone element is added by itself, ``p`` where it comes out of the word around it. How many whole
        units there are follows from the count, so that calls that go the same ways have the same text.
        """
        names = {"lone": lone, "word": "w"}
        return ".".join(vector if way == "unit" else f"{names[way]}{n}" for way, n, _ in self.ways()) or "nothing"


def split(address: int, count: int, itemsize: int, unit: int) -> Split:
    """``address``: of the first element, in bytes; ``unit``: bytes of a whole access."""
    in_word, in_unit = WORD // itemsize, unit // itemsize
    lone = min(count, -address % WORD // itemsize)
    rest = count - lone
    words = min(rest // in_word, -(address + lone * itemsize) % unit // WORD)
    rest -= words * in_word
    units, rest = divmod(rest, in_unit)
    last_words, last_lone = divmod(rest, in_word)
    return Split(itemsize, unit, lone, words, units, last_words, last_lone)


def store_width(address: int, itemsize: int, unit: int, steps: Split, first: int) -> int:
    """Bytes of the widest store of a range that is read as ``steps`` from ``first`` on and written to ``address`` on."""
    shift = (address - first) % unit
    if shift % WORD:
        return itemsize
    if steps.units:
        return WORD if shift else unit
    return WORD if steps.words or steps.last_words else itemsize
