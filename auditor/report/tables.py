"""A table of text, on the terminal and as Markdown: what comparisons and impacts are told in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from auditor.report.summary import LEAST, PAPER
from auditor.report.words import clean


@dataclass(frozen=True, slots=True)
class Table:
    """``empty``: what is said where there are no rows. ``whole``: columns whose text is not broken."""

    title: str
    says: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str = ""
    whole: frozenset[int] = frozenset()


def console(width: int | None) -> Console:
    """``width``: columns of the terminal; None: no terminal, so no colour either, and as wide as paper."""
    plain = width is None or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    columns = PAPER if width is None else max(width, LEAST)
    return Console(width=columns, no_color=plain, force_terminal=not plain, highlight=False, markup=False, emoji=False)


def show_table(table: Table, to: Console) -> None:
    """Print a table with its title, or what is said in its stead."""
    to.print()
    if not table.rows:
        to.print(Text(f"{table.title}: {table.empty}"))
        return
    to.print(Text(table.title, "bold") + Text(f". {table.says}"))
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for number, name in enumerate(table.head):
        grid.add_column(Text(clean(name)), no_wrap=number in table.whole, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    to.print(grid)


def markdown_table(table: Table) -> Iterator[str]:
    """Lines of a table as GitHub's Markdown has it."""
    yield f"\n**{table.title}**\n"
    if not table.rows:
        yield table.empty
        return
    yield "| " + " | ".join(map(escaped, table.head)) + " |"
    yield "|" + "---|" * len(table.head)
    yield from ("| " + " | ".join(escaped(cell) or " " for cell in row) + " |" for row in table.rows)
    yield ""


def escaped(text: str) -> str:
    """Text that stays itself in Markdown: no table cell ends early, nothing becomes markup or HTML."""
    safe = clean(text).replace("\\", "\\\\")
    for mark in "|*`[]#":  # an underscore within a word is no markup
        safe = safe.replace(mark, f"\\{mark}")
    return safe.replace("<", "&lt;").replace("\n", " ")
