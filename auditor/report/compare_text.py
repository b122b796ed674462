"""A comparison on the terminal, and as Markdown for an issue or a job log."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from auditor.compare.records import Comparison, Run
from auditor.report.compare_rows import BITS, Table, bits_notes, headline, names_of, notes, policy_line, tables, title
from auditor.report.summary import LEAST, PAPER
from auditor.report.words import clean

STYLES = {
    "worse": "bold red",
    "changed": "bold cyan",
    "accepted": "bold",
    "same": "bold green",
    "nothing in common": "bold",
}


def console(width: int | None) -> Console:
    """``width``: columns of the terminal; None: no terminal, so no colour either, and as wide as paper."""
    plain = width is None or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    columns = PAPER if width is None else max(width, LEAST)
    return Console(width=columns, no_color=plain, force_terminal=not plain, highlight=False, markup=False, emoji=False)


def show(comparison: Comparison, to: Console) -> None:
    """Print the tables, the likely causes first."""
    verdict, _, rest = headline(comparison).partition(":")
    to.print(Text(verdict, STYLES[comparison.verdict]) + Text(f":{rest} {policy_line(comparison)}"))
    for line in comparison.trouble:
        to.print(Text(clean(line), "bold yellow"), soft_wrap=True)
    for beside in comparison.besides:
        for pair in beside.pairs:
            names = names_of(beside, pair, comparison.base.label)
            to.print()
            to.rule(Text(clean(title(beside, pair, comparison.base.label)), "bold"), align="left", characters="─")
            for table in tables(pair, names):
                _print(table, to)
                if table.title == BITS:
                    for line in bits_notes(pair, names):
                        to.print(Text(f"  {clean(line)}"))
        for line in notes(beside):
            to.print(Text(f"  note: {clean(line)}"))


def _print(table: Table, to: Console) -> None:
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


# ---------------------------------------------------------------------------------------------------------------- Markdown


def markdown(comparison: Comparison) -> str:
    """The same tables as Markdown (GitHub's), so that they can be pasted where a change is discussed."""
    return "\n".join(_markdown(comparison)) + "\n"


def _markdown(comparison: Comparison) -> Iterator[str]:
    base = comparison.base
    yield f"## {_escaped(base.label)} and {_escaped(', '.join(one.other.label for one in comparison.besides))}"
    yield ""
    yield f"**{headline(comparison)}** ({policy_line(comparison)})"
    for line in comparison.trouble:
        yield f"\n> {_escaped(line)}"
    for beside in comparison.besides:
        for pair in beside.pairs:
            names = names_of(beside, pair, base.label)
            yield f"\n### {_escaped(title(beside, pair, base.label))}"
            for table in tables(pair, names):
                yield from _markdown_table(table)
                if table.title == BITS:
                    yield from (f"- {_escaped(line)}" for line in bits_notes(pair, names))
        if told := notes(beside):
            yield "\n**Not compared, and to be known**\n"
            yield from (f"- {_escaped(line)}" for line in told)
    yield f"\nRuns: {'; '.join(_escaped(_run(one)) for one in (base, *(b.other for b in comparison.besides)))}."


def _run(run: Run) -> str:
    return f"{run.label} = {run.run_id}, plan {run.plan_id}, {run.date or 'no date recorded'}"


def _markdown_table(table: Table) -> Iterator[str]:
    yield f"\n**{table.title}**\n"
    if not table.rows:
        yield table.empty
        return
    yield "| " + " | ".join(map(_escaped, table.head)) + " |"
    yield "|" + "---|" * len(table.head)
    yield from ("| " + " | ".join(_escaped(cell) or " " for cell in row) + " |" for row in table.rows)
    yield ""


def _escaped(text: str) -> str:
    """Text that stays itself in Markdown: no table cell ends early, nothing becomes markup or HTML."""
    safe = clean(text).replace("\\", "\\\\")
    for mark in "|*_`[]#":
        safe = safe.replace(mark, f"\\{mark}")
    return safe.replace("<", "&lt;").replace("\n", " ")
