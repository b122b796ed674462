"""The table of families: name -> builder, arguments, one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from auditor.errors import ConfigError
from auditor.inputs import averaged, cases, coded, contexts, scaled, structured
from auditor.model import Codes, Family
from auditor.numerics.formats import Format
from auditor.numerics.recipes import Recipe, evaluate

Build = Callable[[Family, Format, int, int, int], Recipe]
Direct = Callable[[Family, Format, int, int, int, int, int], Codes]


@dataclass(frozen=True, slots=True)
class Row:
    """One family: how to build it, the arguments it takes, the fewest contributors, and what it is for."""

    text: str
    build: Build | None = None
    direct: Direct | None = None
    arguments: tuple[str, ...] = ()
    rank_n_min: int = 1


_TABLE: dict[str, Row] = {
    "order_exact": Row(
        "every partial sum of every order is exact in the stated format", scaled.order_exact, None, ("format", "span")
    ),
    "report132": Row("random sign and mantissa, exponent -4..4: NVSHMEM issue 132", scaled.report132),
    "wide": Row("normal or lognormal draws", scaled.wide, None, ("dist",)),
    "rank_coded": Row("each contributor one bit of the sum", scaled.rank_coded, None, ("pass",)),
    "position_coded": Row("the send index, in a sum that is exact in every order", None, coded.position_coded),
    "ties": Row("sums that are ties, near-ties or barely inexact", None, structured.ties, (), 2),
    "testfloat1": Row("the operand pairs of TestFloat level 1", None, structured.testfloat(1), (), 2),
    "testfloat2": Row("the operand pairs of TestFloat level 2", None, structured.testfloat(2), (), 2),
    "specials": Row("NaN, infinities, zeros and range ends at each contributor in turn", None, structured.specials),
    "constant": Row("one value everywhere", None, coded.constant, ("value",)),
    "tail_trigger": Row(
        "sums of 1 + 7/8 ulp everywhere, for the fills of the same name", None, coded.tail_trigger, ("rem",), 2
    ),
    "smooth": Row("slowly varying: neighbours resemble each other", None, coded.smooth),
    "neighbours": Row(
        "sums whose remainder and whose neighbours' bits are chosen: what decides how a sum is rounded",
        None,
        contexts.neighbours,
        ("part", "redraw", "turn", "toggle"),
        2,
    ),
    "exhaustive": Row("every pair of codes", None, structured.exhaustive, ("chunk",), 2),
    "special_cases": Row(
        "named special cases, each beside an ordinary element", None, cases.special_cases, ("part", "beside")
    ),
    "equal": Row("the same random value from every contributor", averaged.equal, None, ("range",)),
    "average_ties": Row("sums whose average lies next to a tie", None, averaged.average_ties),
}

FAMILIES: dict[str, str] = {name: row.text for name, row in _TABLE.items()}


def _row(family: Family, rank_n: int) -> Row:
    row = _TABLE.get(family.name)
    if row is None:
        raise ConfigError(f"family {family.name!r} is unknown; there are {', '.join(_TABLE)}")
    for key, _ in family.args:
        if key not in row.arguments:
            known = ", ".join(row.arguments) or "none"
            raise ConfigError(f"family {family}: {key!r} is no argument of {family.name}; it takes {known}")
    if rank_n < row.rank_n_min:
        raise ConfigError(f"family {family}: needs {row.rank_n_min} contributors, there are {rank_n}")
    return row


def check(family: Family, fmt: Format, rank_n: int) -> None:
    """Raises ConfigError: unknown family or argument, too few contributors, or a span that breaks the family's
    promise (NUMERICS §2).
    """
    row = _row(family, rank_n)
    if row.build is not None:
        row.build(family, fmt, 0, rank_n, 0)
    elif row.direct is not None:
        row.direct(family, fmt, 0, rank_n, 0, 0, 0)


def recipe(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe | None:
    """The family resolved to integers, for the kernels; None where the family has no such form."""
    row = _row(family, rank_n)
    return None if row.build is None else row.build(family, fmt, seed, rank_n, rank)


def generate(family: Family, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> Codes:
    """Elements [start, stop) of one contributor: codes of shape (stop - start,). Any cut of a range gives the same
    elements.

    Temporaries are about 60 bytes an element: ask for blocks of 2**16 to 2**20 where memory counts. Raises
    ConfigError as ``check`` does.
    """
    row = _row(family, rank_n)
    if row.build is not None:
        return evaluate(row.build(family, fmt, seed, rank_n, rank), start, stop)
    assert row.direct is not None
    return row.direct(family, fmt, seed, rank_n, rank, start, stop)
