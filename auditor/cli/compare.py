"""``auditor compare``: recorded runs side by side."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import click

from auditor.cli.files import FILE, check_place, terminal_width, write_page


@click.command()
@click.argument("runs", metavar="RUN RUN [RUN ...]", nargs=-1, required=True)
@click.option(
    "--fail-on", type=click.Choice(["changed", "worse"]), help="Exit with 1 where something changed, or is worse."
)
@click.option("--accept", type=FILE, metavar="FILE", help="TOML: changes that somebody answers for, until a date.")
@click.option("--recompute", is_flag=True, help="Derive every run's findings anew, with this version of the auditor.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of the tables.")
@click.option("--html", type=FILE, metavar="FILE", help="Write one offline page.")
@click.option("--markdown", type=FILE, metavar="FILE", help="Write the tables as Markdown.")
def compare(
    runs: tuple[str, ...],
    fail_on: str | None,
    accept: Path | None,
    recompute: bool,
    as_json: bool,
    html: Path | None,
    markdown: Path | None,
) -> int:
    """Say what changed between recorded runs, bit by bit. RUN is a run directory, or RUN:ARM; the first is the base.

    What differs around them comes first: it is the likely cause. Exit codes: 0; 1 by --fail-on; 2 usage; 3 a record that
    cannot be read; 5 nothing in common.
    """
    from auditor import compare as comparing
    from auditor.compare import accepted
    from auditor.report import compare_page, compare_text, tables

    pages = {path: make for path, make in ((html, compare_page.page), (markdown, compare_text.markdown)) if path}
    for path in pages:
        check_place(path)
    entries = accepted.load(accept) if accept else ()
    comparison = comparing.compare(runs, policy=fail_on or "", recompute=recompute)
    if accept:
        comparison = accepted.apply(comparison, entries, str(accept), datetime.date.today())
    for path, make in pages.items():
        write_page(path, make(comparison))
    if as_json:
        click.echo(json.dumps(comparing.to_json(comparison), indent=1))
        for line in comparison.trouble:
            click.echo(f"auditor: {line}", err=True)
    else:
        compare_text.show(comparison, tables.console(terminal_width()))
    return comparison.exit_code
