"""Summation trees, and what a sum along one gives under (accumulator format, rounding at each hop, final rounding).

A tree is a leaf (the number of a term) or a tuple of trees: a pair is one addition, a longer tuple a fused addition, summed
exactly and rounded once. Trees of thousands of terms are as deep as that, so everything here walks them without recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from auditor.numerics.exact import Codes, Sums, exact_sums
from auditor.numerics.formats import Format
from auditor.numerics.rounding import check_mode, convert, round_sums, sum_reference

Tree: TypeAlias = "int | tuple[Tree, ...]"
Value = TypeVar("Value")

BLOCK = 1 << 15  # elements taken along the whole tree at once: partial sums stay in the cache
HARDWARE: dict[str, np.dtype[Any]] = {"binary32": np.dtype(np.float32), "binary64": np.dtype(np.float64)}


def chain(order: Sequence[int]) -> Tree:
    """One term after the other: ((order[0] + order[1]) + order[2]) + ... Raises ValueError on an empty order."""
    if not order:
        raise ValueError("a chain needs at least one term")
    tree: Tree = order[0]
    for leaf in order[1:]:
        tree = (tree, leaf)
    return tree


def binary_tree(n: int) -> Tree:
    """Neighbours in pairs, then pairs of pairs; an odd one waits. This is a binomial-tree reduce to rank 0."""
    return _paired(list(range(_positive(n))))


def recursive_doubling(n: int) -> Tree:
    """Pairs at distance 1, 2, 4, ...; past the last power of two 2**k, the first 2 * (n - 2**k) ranks fold pairwise before."""
    extra = n - (1 << (_positive(n).bit_length() - 1))
    folded: list[Tree] = [(2 * pair, 2 * pair + 1) for pair in range(extra)]
    return _paired(folded + list(range(2 * extra, n)))


def fused(n: int) -> Tree:
    """All terms in one addition, rounded once."""
    return tuple(range(n)) if _positive(n) > 1 else 0


def ring_order(n: int, chunk: int) -> tuple[int, ...]:
    """Order in which a ring adds the terms of one chunk: rank chunk + 1 first, rank chunk last. Feed it to :func:`chain`."""
    return tuple((chunk + 1 + step) % n for step in range(_positive(n)))


def _positive(n: int) -> int:
    if n < 1:
        raise ValueError(f"a tree of {n} terms: at least one is needed")
    return n


def _paired(row: Sequence[Tree]) -> Tree:
    while len(row) > 1:
        row = [(row[i], row[i + 1]) if i + 1 < len(row) else row[i] for i in range(0, len(row), 2)]
    return row[0]


def leaves(tree: Tree) -> Iterator[int]:
    """The leaves, left to right. Raises ValueError on an empty tuple."""
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            if not item:
                raise ValueError("a tree holds an empty tuple: an addition of nothing")
            stack.extend(reversed(item))
        else:
            yield item


def fold(tree: Tree, leaf: Callable[[int], Value], node: Callable[[list[Value]], Value]) -> Value:
    """Value of a tree from the values of its leaves and of its additions, left to right."""
    todo: list[tuple[Tree, bool]] = [(tree, False)]
    values: list[Value] = []
    while todo:
        item, ready = todo.pop()
        if not isinstance(item, tuple):
            values.append(leaf(item))
        elif ready:
            parts = values[-len(item) :]
            del values[-len(item) :]
            values.append(node(parts))
        else:
            todo.append((item, True))
            todo.extend((child, False) for child in reversed(item))
    return values[0]


def evaluate(tree: Tree, terms: Sequence[Codes], fmt: Format, *, accumulator: Format, hop: str, final: str) -> Codes:
    """Codes of the sum along ``tree``, shape (n,) like each term.

    Every term is brought to ``accumulator`` (rounded by ``hop`` where it does not fit), every addition is rounded to it by
    ``hop``, and the root is rounded to ``fmt`` by ``final``. NaN results are the format's quiet NaN. Raises ValueError on an
    unknown mode, a leaf without a term or an addition of nothing.
    """
    check_mode(final)
    out = np.empty(len(terms[0]), fmt.dtype)
    for part, codes in _roots(tree, terms, fmt, accumulator, hop):
        out[part] = convert(accumulator, codes, fmt, final)
    return out


def evaluate_each(
    trees: Sequence[Tree], terms: Sequence[Codes], fmt: Format, *, accumulator: Format, hop: str, final: str
) -> list[Codes]:
    """:func:`evaluate` of several trees over the same terms, parts that they share computed once. For blocks: nothing is cut."""
    check_mode(final)
    check_mode(hop)
    node = _addition(accumulator, hop)
    known: dict[Tree, Codes] = {}

    def value(tree: Tree) -> Codes:
        if tree not in known:
            everything = slice(0, len(terms[0]))
            if isinstance(tree, tuple):
                known[tree] = node([value(part) for part in tree])
            else:
                known[tree] = _enter(terms, everything, fmt, accumulator, hop, tree)
        return known[tree]

    return [convert(accumulator, value(tree), fmt, final) for tree in trees]


def evaluate_to_sums(tree: Tree, terms: Sequence[Codes], fmt: Format, *, accumulator: Format, hop: str) -> Sums:
    """The root's accumulator values, before the final rounding; arguments as for :func:`evaluate`."""
    sums = Sums.zeros(len(terms[0]))
    for part, codes in _roots(tree, terms, fmt, accumulator, hop):
        sums[part] = exact_sums(accumulator, [codes])
    return sums


def evaluate_reference(
    tree: Tree, codes: Sequence[int], fmt: Format, *, accumulator: Format, hop: str, final: str
) -> int:
    """Scalar twin of :func:`evaluate`, for one element; Python integers only."""
    root = fold(
        tree,
        lambda leaf: sum_reference(fmt, [codes[leaf]], hop, to=accumulator),
        lambda parts: sum_reference(accumulator, parts, hop),
    )
    return sum_reference(accumulator, [root], final, to=fmt)


def _roots(
    tree: Tree, terms: Sequence[Codes], fmt: Format, accumulator: Format, hop: str
) -> Iterator[tuple[slice, Codes]]:
    """The root's accumulator codes, block by block."""
    check_mode(hop)
    wrong = [leaf for leaf in leaves(tree) if not 0 <= leaf < len(terms)]
    if wrong:
        raise ValueError(f"the tree has leaf {wrong[0]}, but there are {len(terms)} terms")
    node = _addition(accumulator, hop)
    for start in range(0, len(terms[0]), BLOCK):
        part = slice(start, min(start + BLOCK, len(terms[0])))
        yield part, fold(tree, partial(_enter, terms, part, fmt, accumulator, hop), node)


def _enter(terms: Sequence[Codes], part: slice, fmt: Format, accumulator: Format, hop: str, leaf: int) -> Codes:
    codes = terms[leaf][part]
    if fmt == accumulator:
        return codes
    return _table(fmt, accumulator, hop)[codes] if fmt.bits <= 16 else convert(fmt, codes, accumulator, hop)


@lru_cache(maxsize=16)
def _table(fmt: Format, accumulator: Format, hop: str) -> Codes:
    """Every code of a narrow format, converted."""
    return convert(fmt, np.arange(1 << fmt.bits).astype(fmt.dtype), accumulator, hop)


def _addition(accumulator: Format, hop: str) -> Callable[[list[Codes]], Codes]:
    def in_integers(parts: list[Codes]) -> Codes:
        return round_sums(accumulator, exact_sums(accumulator, parts), hop)

    if hop != "ties_to_even" or accumulator.name not in HARDWARE or not hardware_is_ieee():
        return in_integers
    dtype = HARDWARE[accumulator.name]

    def in_hardware(parts: list[Codes]) -> Codes:
        if len(parts) != 2:
            return in_integers(parts)
        with np.errstate(all="ignore"):
            total: Codes = np.add(parts[0].view(dtype), parts[1].view(dtype)).view(accumulator.dtype)
        return total

    return in_hardware


def hardware_is_ieee() -> bool:
    """Whether this thread's float additions keep subnormals and round to nearest, ties to even.

    A library loaded into the process may have set flush-to-zero or another rounding direction; then integers do the work.
    """
    for dtype in HARDWARE.values():
        ulp = np.finfo(dtype).eps
        tiny = np.array([1], f"u{dtype.itemsize}").view(dtype)
        one = np.array([1, 1 + ulp, -1, -1 - ulp], dtype)
        tied = one + np.copysign(dtype.type(ulp / 2), one)
        if (tied != np.array([1, 1 + 2 * ulp, -1, -1 - 2 * ulp], dtype)).any() or (tiny + tiny).view(
            f"u{dtype.itemsize}"
        ) != 2:
            return False
    return True
