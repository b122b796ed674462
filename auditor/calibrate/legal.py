"""Legal sums without the library: every tree over a few terms, trees drawn at random, and the order that explains an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from auditor.model import Codes
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.recipes import COMMON, Stream, scale_word
from auditor.numerics.rounding import round_sums
from auditor.numerics.trees import Tree, evaluate

TREE_STREAM = 0x73
MODELS_MAX = 1000  # (2 * 6 - 3)!! = 945 trees over six terms; seven have 10,395
NEAREST = "ties_to_even"


def tree_count(terms: int) -> int:
    """Different orders of adding that many terms in pairs, where a + b = b + a: (2 terms - 3)!!."""
    return prod(range(2 * terms - 3, 0, -2))


def every_tree(terms: int) -> Iterator[Tree]:
    """Each of them once: the last term joins, in turn, every part of every tree over the terms before it."""
    if terms == 1:
        yield 0
        return
    for tree in every_tree(terms - 1):
        yield from _joined(tree, terms - 1)


def _joined(tree: Tree, leaf: int) -> Iterator[Tree]:
    yield (tree, leaf)
    if isinstance(tree, tuple):
        for place, part in enumerate(tree):
            for other in _joined(part, leaf):
                yield (*tree[:place], other, *tree[place + 1 :])


def random_tree(terms: int, seed: int, number: int) -> Tree:
    """Two parts drawn at random are joined, again and again; the draws are a function of (seed, number)."""
    words = Stream(seed, COMMON, TREE_STREAM).words(2 * terms * number, 2 * terms * (number + 1))
    parts: list[Tree] = list(range(terms))
    for step in range(terms - 1):
        first, second = (int(scale_word(words[2 * step + k : 2 * step + k + 1], len(parts) - k)[0]) for k in (0, 1))
        one = parts.pop(first)
        parts[second] = (one, parts[second])
    return parts[0]


def accumulators(fmt: Format) -> tuple[Format, ...]:
    """Formats in which partial sums are kept in practice: binary32 and the format itself for the narrow ones."""
    return (FORMATS["binary32"], fmt) if fmt.bits <= 16 else (fmt,)


def summed(tree: Tree, terms: Sequence[Codes], fmt: Format, accumulator: Format) -> Codes:
    """The terms along a tree, rounded to nearest, ties to even, at every addition and at the end."""
    return evaluate(tree, terms, fmt, accumulator=accumulator, hop=NEAREST, final=NEAREST)


def model_count(fmt: Format, terms: int) -> int:
    """Rows that :func:`legal_outputs` has."""
    return tree_count(terms) * len(accumulators(fmt)) + 1


def legal_outputs(fmt: Format, terms: Sequence[Codes]) -> Codes:
    """Every output that a tree of pairs with one of :func:`accumulators`, or one fused addition, gives; shape (models, n).

    Raises ValueError where the trees are too many to be tried.
    """
    if model_count(fmt, len(terms)) > MODELS_MAX + 1:
        raise ValueError(
            f"{tree_count(len(terms)):,} trees over {len(terms)} terms are too many to be tried one by one"
        )
    rows = [round_sums(fmt, exact_sums(fmt, terms), NEAREST)]
    for tree in every_tree(len(terms)):
        rows += [summed(tree, terms, fmt, accumulator) for accumulator in accumulators(fmt)]
    return np.stack(rows)


def explains(candidates: Mapping[str, Codes], output: Codes) -> str:
    """The name of the first candidate that is the output bit by bit; "" where none is."""
    return next((name for name, codes in candidates.items() if np.array_equal(codes, output)), "")
