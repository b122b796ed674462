"""A comparison on the terminal, and as Markdown for an issue or a job log."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from auditor.compare.records import Comparison, Run
from auditor.report.compare_rows import BITS, bits_notes, headline, names_of, notes, policy_line, tables, title
from auditor.report.tables import escaped, markdown_table, show_table
from auditor.report.words import clean

STYLES = {
    "worse": "bold red",
    "changed": "bold cyan",
    "accepted": "bold",
    "same": "bold green",
    "nothing in common": "bold",
}


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
                show_table(table, to)
                if table.title == BITS:
                    for line in bits_notes(pair, names):
                        to.print(Text(f"  {clean(line)}"))
        for line in notes(beside):
            to.print(Text(f"  note: {clean(line)}"))


# ---------------------------------------------------------------------------------------------------------------- Markdown


def markdown(comparison: Comparison) -> str:
    """The same tables as Markdown (GitHub's), so that they can be pasted where a change is discussed."""
    return "\n".join(_markdown(comparison)) + "\n"


def _markdown(comparison: Comparison) -> Iterator[str]:
    base = comparison.base
    yield f"## {escaped(base.label)} and {escaped(', '.join(one.other.label for one in comparison.besides))}"
    yield ""
    yield f"**{headline(comparison)}** ({policy_line(comparison)})"
    for line in comparison.trouble:
        yield f"\n> {escaped(line)}"
    for beside in comparison.besides:
        for pair in beside.pairs:
            names = names_of(beside, pair, base.label)
            yield f"\n### {escaped(title(beside, pair, base.label))}"
            for table in tables(pair, names):
                yield from markdown_table(table)
                if table.title == BITS:
                    yield from (f"- {escaped(line)}" for line in bits_notes(pair, names))
        if told := notes(beside):
            yield "\n**Not compared, and to be known**\n"
            yield from (f"- {escaped(line)}" for line in told)
    yield f"\nRuns: {'; '.join(escaped(_run(one)) for one in (base, *(b.other for b in comparison.besides)))}."


def _run(run: Run) -> str:
    return f"{run.label} = {run.run_id}, plan {run.plan_id}, {run.date or 'no date recorded'}"
