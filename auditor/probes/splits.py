"""Whether elements in partial words of a range are treated by another rule than those in full words (FAULTS K1).

A library that sums full words with vector code and the rest one by one treats an element differently only where moving or cutting
the range takes the element from a full word into a partial one or back. So under a split everything that changes between two
places lies among those elements (``movers``); under any other dependence the changes fall elsewhere too. How likely it is that
they fall there by luck is bounded by (movers / elements) ** changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import layout
from auditor.model import Observation, Trial
from auditor.probes import common
from auditor.probes.differences import Mask, Stable

Change = tuple[Observation, Observation, Mask]  # of the reference, of the other trial, by data index

WORDS = (2, 4, 8, 16, 32, 64, 128)  # bytes
LUCK = log(1e-4)


def body(trial: Trial, rank: int, word: int) -> tuple[int, int]:
    """[start, stop) of the rank's elements that lie in full words of ``word`` bytes, by receive address."""
    size, target = trial.call.fmt.itemsize, layout.recv_range(trial, rank)
    first, last = -(-target.offset // word) * word, target.stop // word * word
    start, stop = -(-(first - target.offset) // size), (last - target.offset) // size
    return (start, stop) if start < stop else (0, 0)


@dataclass(slots=True)
class _Word:
    """One word size: whether all changes were movers, and the log-probability of that by luck."""

    confined: bool = True
    luck: float = 0.0
    head: int = 0
    tail: int = 0
    movers: int = 0


@dataclass(slots=True)
class PathSplit:
    """Gathers pairs of places; decides at the end."""

    pairs: int = 0
    changed_pairs: int = 0
    elements: int = 0
    changed: int = 0
    words: dict[int, _Word] = field(default_factory=lambda: {word: _Word() for word in WORDS})
    reported: dict[tuple[str, str], int] = field(default_factory=dict)
    by_flips: bool = False  # flips between identical calls explain what changed

    def add(self, a: Stable, b: Stable, found: list[Change], compared: int) -> None:
        """``found``: what differs between two trials of the same data. Pairs whose two ranges are shifted unlike each other
        cannot be put into words and are left to shift_dependence.
        """
        if any(trial.send_shift != trial.recv_shift for trial in (a.trial, b.trial)):
            return
        self.pairs += 1
        self.elements += compared
        if not found:
            return
        self.changed_pairs += 1
        self.changed += sum(int(mask.sum()) for _, _, mask in found)
        if a.path and b.path and a.path != b.path:
            pair = (a.path, b.path)
            self.reported[pair] = self.reported.get(pair, 0) + 1
        for x, _, mask in found:
            for word, state in self.words.items():
                if word > a.trial.call.fmt.itemsize:
                    _judge(state, word, a.trial, b.trial, x.rank, np.flatnonzero(mask), len(mask))

    @property
    def best(self) -> tuple[int, _Word] | None:
        """The word size that the changes fit best; None where they fit none, or could do so by luck."""
        fitting = [(state.luck, word) for word, state in self.words.items() if state.confined]
        luck, word = min(fitting, default=(0.0, 0))
        return (word, self.words[word]) if luck < LUCK else None

    @property
    def confined(self) -> bool:
        return self.best is not None

    def claim(self) -> str:
        parts = []
        if self.best is not None:
            word, state = self.best
            parts.append(
                f"everything that changes when the range begins or ends elsewhere ({common.plural(self.changed, 'element')}) "
                f"moves between a full {word}-byte word and a partial one, so partial words follow another rule "
                f"({state.head} before, {state.tail} behind the full words)"
            )
        if self.reported:
            pairs = [f"{a} and {b}" for a, b in self.reported]
            parts.append(f"results differ where the subject reports different paths ({common.listed(pairs)})")
        if parts:
            return "; ".join(parts) + "."
        if self.changed:
            return "what changes with the place is not confined to partial words, and no other path is reported for it."
        return f"elements in full and in partial words give the same bits in {common.plural(self.pairs, 'pair')} of places."

    def measure(self) -> dict[str, Any]:
        best = self.best
        more: dict[str, Any] = {}
        if best is not None:
            word, state = best
            more = {
                "word_bytes": word,
                "changed_in_head": state.head,
                "changed_in_tail": state.tail,
                "movers": state.movers,
            }
        return {
            "pairs": self.pairs,
            "changed_pairs": self.changed_pairs,
            "elements_compared": self.elements,
            "elements_changed": self.changed,
            "confined_to_partial_words": self.confined,
            "reported_paths": [{"paths": list(pair), "pairs": n} for pair, n in self.reported.items()],
            **more,
        }


def _judge(state: _Word, word: int, a: Trial, b: Trial, rank: int, at: npt.NDArray[Any], n: int) -> None:
    (a0, a1), (b0, b1) = body(a, rank, word), body(b, rank, word)
    in_a, in_b = (at >= a0) & (at < a1), (at >= b0) & (at < b1)
    movers = _movers((a0, min(a1, n)), (b0, min(b1, n)))
    state.movers += movers
    if (in_a == in_b).any() or not movers:
        state.confined = False
        return
    state.luck += len(at) * log(movers / n)
    edge = np.where(in_a, at < b0, at < a0)  # seen from the range in which it stands in a partial word
    state.head += int(edge.sum())
    state.tail += int((~edge).sum())


def _movers(a: tuple[int, int], b: tuple[int, int]) -> int:
    """Elements in exactly one of two intervals."""
    lengths = [max(0, stop - start) for start, stop in (a, b)]
    both = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return sum(lengths) - 2 * both
