"""Does an element's rounding depend on other elements, on which of their bits, and by what rule? (NUMERICS §7)

The rule is found from data alone: what changes when neighbours are drawn anew, what one bit of one neighbour weighs, the formula
that this spells out, and how well it predicts data that it was not made from. Where no neighbour matters, the finding says what
does: one rounding mode, the sum's own bits, the index, an address, or a generator.
"""

from __future__ import annotations

from collections.abc import Iterator

from auditor.config import Scope
from auditor.model import ArmView, Finding, Trial
from auditor.probes.common import cell, trials_of
from auditor.probes.neighbours import design
from auditor.probes.neighbours.claims import deciding_bits, judge

NAME = "neighbours"
KINDS = ("neighbour_dependence",)
NEEDS = f"a sum over two ranks or more and a count of at least {design.LEAST_COUNT:,} in the sweep"


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """One point of each (collective, format) of op sum: about 29 calls of 2**17 elements for the first, 6 of 2**16 for others.

    None where the sweep's largest count is below 2**15.
    """
    yield from design.wanted(scope)


def analyze(view: ArmView) -> Iterator[Finding]:
    """One finding a cell."""
    for trials in _cells(view).values():
        yield judge(view, trials)


def bits_that_decide(view: ArmView, of: tuple[str, str, str]) -> list[str]:
    """For other probes: by which bits of its neighbours (``b22``, ...) an element of a cell is rounded, as far as was tried."""
    trials = _cells(view).get(of, [])
    return deciding_bits(view, trials) if trials else []


def _cells(view: ArmView) -> dict[tuple[str, str, str], list[Trial]]:
    cells: dict[tuple[str, str, str], list[Trial]] = {}
    for planned in trials_of(view, NAME):
        cells.setdefault(cell(planned.trial), []).append(planned.trial)
    return cells
