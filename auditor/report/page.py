"""The page: gathers what the template shows, from findings.json and the record, and writes it whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from auditor import __version__
from auditor.analysis import read_findings, write_whole
from auditor.report import coverage, distances, figures, grid, influence, response, sections
from auditor.report.head import head
from auditor.report.surroundings import digests, environment, rank_hosts
from auditor.report.words import CLASSES, SYMBOLS, Labels, Row, clean, one_line
from auditor.store import RunReader

NAME = "report.html"


def write(run_dir: Path) -> Path:
    """Write ``report.html`` beside findings.json. Raises EvidenceError."""
    content = read_findings(run_dir)
    with RunReader(run_dir) as reader:
        context = gather(run_dir, content, reader)
    return write_whole(run_dir / NAME, render(context))


def render(context: Mapping[str, Any], template: str = "report.html.j2") -> str:
    """A template filled in. Everything is escaped; only drawings made by ``svg`` are marked as safe there."""
    folder = files("auditor.report") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters["ticks"] = ticks
    return environment.get_template(template).render(context)


def ticks(text: str) -> Markup:
    """Prose in which `name` stands for code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(clean(text)))))  # escaped first


def gather(run_dir: Path, content: Mapping[str, Any], reader: RunReader) -> dict[str, Any]:
    """All that the template shows."""
    rows = identified([row for row in content.get("findings", ()) if isinstance(row, Mapping)])
    labels = Labels(rows)
    trials = {name: {one.trial.trial_id: one.trial for one in reader.arm(name).planned} for name in reader.arm_names}
    every = {key: trial for mine in trials.values() for key, trial in mine.items()}
    bars, charts = figures.rounding_bars(rows, labels), figures.word_charts(rows, labels, every)
    by_verdict = sections.sections(rows, trials, rank_hosts(reader.sources()))
    return {
        **head(run_dir, content, rows, labels, reader),
        **by_verdict,
        "shown": {one.id for section in by_verdict["sections"] for one in (*section["cards"], *section["lines"])},
        **_grids(rows, reader),
        "overview": sections.overview(rows, labels),
        "symbols": SYMBOLS,
        "bars": bars[: figures.BARS],
        "bars_total": len(bars),
        "classes": CLASSES,
        "charts": charts[: figures.CHARTS],
        "charts_total": len(charts),
        "unchanged": figures.unchanged(rows, labels),
        **response.context(rows, labels),
        **influence.context(rows, labels),
        **coverage.context(rows, labels),
        **distances.context(rows, labels),
        "absent": sections.absent(rows, reader),
        "environment": environment(reader),
        "digests": digests(run_dir, reader),
        "problems": [one_line(problem) for problem in reader.problems],
        "auditor_version": __version__,
    }


def identified(rows: Sequence[Row]) -> list[Row]:
    """The findings, numbered anew where their ids would not do as anchors of a page."""
    ids = [str(row.get("id", "")) for row in rows]
    if len(set(ids)) == len(ids) and all(re.fullmatch(r"[A-Za-z][\w-]*", one) for one in ids):
        return list(rows)
    return [{**row, "id": f"N{number}"} for number, row in enumerate(rows, 1)]


# ------------------------------------------------------------------------------------------------------------------- grids


def _grids(rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    """The grids of counts and shifts, as many as fit; the others in a line each."""
    known: dict[tuple[str, grid.Cell], grid.Known] = {}
    for name in reader.arm_names:
        view = reader.arm(name)
        for planned in view.planned:
            call = planned.trial.call
            one = known.setdefault((name, (call.collective, call.op, call.format)), grid.Known(name))
            one.add(planned, any(seen.status == "ok" for seen in view.observations(planned.trial.trial_id)))
    kept, quiet = grid.drawn(grid.grids(known, rows))
    return {
        "grids": kept,
        "quiet_grids": quiet[: sections.LINES],
        "quiet_left_out": max(0, len(quiet) - sections.LINES),
    }
