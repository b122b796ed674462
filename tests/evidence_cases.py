"""Cases for the tests of auditor evidence: literal bytes, and outcomes made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditor.evidence.cases import Case, Outcome, Seen, Step
from auditor.model import Call
from auditor.numerics.formats import FORMATS


def codes(fmt: str, rows: Sequence[Sequence[int]]) -> Any:
    return np.array(rows, FORMATS[fmt].dtype).reshape(len(rows), -1)


def step(
    rows: Sequence[Sequence[int]],
    *,
    fmt: str = "bfloat16",
    collective: str = "all_reduce",
    head: Sequence[Sequence[int]] | None = None,
    tail: Sequence[Sequence[int]] | None = None,
    root: int = 0,
    op: str = "sum",
    group: tuple[int, ...] | None = None,
    **rest: Any,
) -> Step:
    n = len(rows)
    count = len(rows[0]) // (n if collective == "reduce_scatter" else 1)
    nothing = [[]] * n
    return Step(
        call=Call(collective=collective, op=op, format=fmt, count=count, root=root, group=group),
        head=codes(fmt, head or nothing),
        data=codes(fmt, rows),
        tail=codes(fmt, tail or nothing),
        **rest,
    )


def case(*steps: Step, rank_n: int | None = None, repeats: int = 1) -> Case:
    return Case(rank_n=rank_n or len(steps[0].data), steps=steps, repeats=repeats)


def outcome(given: Case, rows: dict[tuple[int, int, int], Sequence[int]], **seen: Any) -> Outcome:
    """(round, step, rank) -> output codes."""
    dtype = given.fmt.dtype
    return Outcome(seen={place: Seen(output=np.array(row, dtype), **seen) for place, row in rows.items()})


def everywhere(given: Case, row: Sequence[int]) -> Outcome:
    """The same output in every round, step and rank."""
    places = [(r, s, k) for r in range(given.repeats) for s in range(len(given.steps)) for k in given.members]
    return outcome(given, dict.fromkeys(places, row))
