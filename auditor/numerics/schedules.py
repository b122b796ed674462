"""Named orders of summation: every binary tree of a few terms, a bank for many, and names for what is found.

Additions commute bit for bit (NaN payloads apart), so trees are held in one form: the part with the smallest leaf stands first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

from auditor.numerics.trees import Tree, chain, fused, recursive_doubling, ring_order

ENUMERATED = 5  # terms up to which every binary tree is tried: (2n - 3)!! of them, 105 for five


def canonical(tree: Tree) -> Tree:
    """The form in which equal sums have equal trees."""
    if not isinstance(tree, tuple):
        return tree
    return tuple(sorted((canonical(part) for part in tree), key=smallest))


def smallest(tree: Tree) -> int:
    """The least leaf of a canonical tree."""
    while isinstance(tree, tuple):
        tree = tree[0]
    return tree


def text_of(tree: Tree) -> str:
    """``((1+2)+3)+0``: a chain in the order in which it adds."""
    if not isinstance(tree, tuple):
        return str(tree)
    order = chain_of(tree)
    parts = sorted(tree, key=lambda part: not isinstance(part, tuple)) if order else tree
    return "+".join(f"({text_of(part)})" if isinstance(part, tuple) else str(part) for part in parts)


def chain_of(tree: Tree) -> tuple[int, ...]:
    """The order of a chain, its first two terms ascending; empty where the tree is no chain of two terms or more."""
    tail: list[int] = []
    while isinstance(tree, tuple):
        leaves = [part for part in tree if not isinstance(part, tuple)]
        rest = [part for part in tree if isinstance(part, tuple)]
        if len(tree) != 2 or len(rest) > 1:
            return ()
        if not rest:
            return (*sorted(leaves), *reversed(tail))
        tail.append(leaves[0])
        tree = rest[0]
    return ()


@lru_cache(maxsize=8)
def every_tree(n: int) -> tuple[Tree, ...]:
    """All binary trees over the terms 0 .. n - 1, canonical; meant for n up to ``ENUMERATED``."""
    return tuple(_over(tuple(range(n))))


@lru_cache(maxsize=1 << 12)
def _over(terms: tuple[int, ...]) -> tuple[Tree, ...]:
    if len(terms) == 1:
        return (terms[0],)
    found: list[Tree] = []
    first, others = terms[0], terms[1:]
    for size in range(len(others)):
        for some in combinations(others, size):
            left, right = (first, *some), tuple(term for term in others if term not in some)
            found += [(a, b) for a in _over(left) for b in _over(right)]
    return tuple(found)


@lru_cache(maxsize=64)
def bank(n: int) -> tuple[Tree, ...]:
    """Trees to try: all of a few terms; of more, chains from every rank in both directions, distance doubling and halving seen
    from every rank, and chains of chains of neighbours.
    """
    if n <= ENUMERATED:
        return every_tree(n)
    found: list[Tree] = []
    for turn in range(n):
        up = ring_order(n, turn)
        found += [chain(up), chain(up[::-1])]
        found += [_relabelled(tree, turn, n) for tree in (recursive_doubling(n), recursive_halving(n))]
    for size in (size for size in range(2, n) if n % size == 0):
        blocks = [list(range(start, start + size)) for start in range(0, n, size)]
        found += [
            _chained([chain(block) for block in blocks]),
            _chained([chain(block[::-1]) for block in blocks[::-1]]),
        ]
    return tuple(dict.fromkeys(canonical(tree) for tree in found))


def recursive_halving(n: int) -> Tree:
    """Pairs at distance n/2, n/4, ..., 1, in the largest power of two; what lies beyond is folded onto the first ranks before."""
    half = 1 << (n.bit_length() - 1)
    row: list[Tree] = [(i, i + half) if i + half < n else i for i in range(half)]
    while len(row) > 1:
        row = [(row[i], row[i + len(row) // 2]) for i in range(len(row) // 2)]
    return row[0]


def _relabelled(tree: Tree, turn: int, n: int) -> Tree:
    return tuple(_relabelled(part, turn, n) for part in tree) if isinstance(tree, tuple) else (tree + turn) % n


def _chained(parts: Sequence[Tree]) -> Tree:
    tree = parts[0]
    for part in parts[1:]:
        tree = (tree, part)
    return tree


def rotation_of(tree: Tree, n: int) -> int:
    """1 where a chain runs round the ranks upwards, -1 where downwards; 0 where it does neither, and below four ranks, where
    every chain does both.
    """
    order = chain_of(tree)
    if len(order) != n or n < 4:
        return 0
    for step in (1, -1):
        start = order[-1] - step * (n - 1)
        if canonical(chain([(start + step * k) % n for k in range(n)])) == canonical(tree):
            return step
    return 0


def name_of(choices: Sequence[Sequence[Tree]], n: int) -> str:
    """A name for the trees of a range's segments, each given with all the trees that replay it.

    ``ring``: chains round the ranks in one direction, several of them; ``sequential``: one such chain; ``recursive_doubling``,
    ``recursive_halving``, ``fused``; ``chain`` and ``chains``: others; ``tree`` and ``trees``: what has no name.
    """
    common = set(choices[0]).intersection(*choices)
    known = {"fused": fused(n), "recursive_doubling": recursive_doubling(n), "recursive_halving": recursive_halving(n)}
    if common:
        for name, tree in known.items():
            if canonical(tree) in common and (n > 3 or name == "fused"):
                return name
        if n < 4 or any(rotation_of(tree, n) for tree in common):
            return "sequential"
        return "chain" if any(chain_of(tree) for tree in common) else "tree"
    if n < 4 or any(all(any(rotation_of(tree, n) == step for tree in some) for some in choices) for step in (1, -1)):
        return "ring"
    return "chains" if all(any(chain_of(tree) for tree in some) for some in choices) else "trees"
