"""``auditor impact``: does a measured rounding matter?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from auditor.cli.files import FILE, check_place, terminal_width, write_page


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--finding", default="", metavar="ID", help="The rounding to speak of; default: the one with the greatest bias."
)
@click.option(
    "--steps", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Steps of accumulation."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything as JSON instead of the paragraph and the tables."
)
@click.option("--html", type=FILE, metavar="FILE", help="Write one offline page with the figure.")
def impact(run_dir: Path, finding: str, steps: int, as_json: bool, html: Path | None) -> int:
    """Say what a run's rounding does to results: bias and spread of a sum, over many steps, and what a shift changes.

    Exit codes: 0; 2 usage; 3 a record that cannot be read; 5 the run has no rounding to speak of.
    """
    from auditor import impact as impacts
    from auditor.analysis.files import plain
    from auditor.report import impact_page, impact_text, tables

    if html:
        check_place(html)
    found = impacts.assess(run_dir, finding, steps)
    if found is None:
        click.echo(
            f"auditor: {run_dir}: no rounding_mode finding with an inexact sum; ask for the probe rounding", err=True
        )
        return 5
    if html:
        write_page(html, impact_page.page(found))
    if as_json:
        click.echo(json.dumps({"schema": impacts.SCHEMA, **plain(asdict(found))}, indent=1))
    else:
        impact_text.show(found, tables.console(terminal_width()))
    return 0
