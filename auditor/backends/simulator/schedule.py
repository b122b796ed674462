"""Who reduces which part of the range, in which order of additions, and who receives it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from auditor.model import Call
from auditor.numerics import trees
from auditor.numerics.trees import Tree


@dataclass(frozen=True, slots=True)
class Piece:
    """One owner's share: send indices [start, stop), added by ``tree`` over positions in the group.

    ``receivers``: (global rank, send index of the first element of its receive range).
    """

    start: int
    stop: int
    tree: Tree
    receivers: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def pieces(call: Call, members: tuple[int, ...], order: str, shot: str) -> tuple[Piece, ...]:
    """The shares of a call in ascending order; none is empty."""
    n, scatter, reduce = len(members), call.collective == "reduce_scatter", call.collective == "reduce"
    whole = scatter or (reduce if order == "ring" else shot == "one_shot")
    share = max(call.count if whole else -(-call.count // n), 1)
    total = call.count * n if scatter else call.count
    receivers = (members[call.root],) if reduce else members
    return tuple(
        Piece(
            start,
            min(start + share, total),
            tree_of(order, n, call.root if reduce else number),
            ((members[number], start),) if scatter else tuple((rank, 0) for rank in receivers),
        )
        for number, start in enumerate(range(0, total, share))
    )


@lru_cache(maxsize=256)
def tree_of(order: str, n: int, chunk: int) -> Tree:
    """The tree of one share; only a ring's depends on which chunk it is."""
    if order == "ring":
        return trees.chain(trees.ring_order(n, chunk))
    if order == "rank":
        return trees.chain(range(n))
    return {"recursive_doubling": trees.recursive_doubling, "tree": trees.binary_tree, "fused": trees.fused}[order](n)
