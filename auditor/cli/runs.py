"""Commands that make a run and commands that read one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from auditor.errors import ConfigError

if TYPE_CHECKING:
    from auditor.report import Exports

RUN = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, readable=False)  # Exports.check asks what matters: whether it may be written


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override any key of the config."),
        click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Rank count of every arm."),
        click.option("--backend", metavar="SPEC", help="Audit this backend: a name or package.module:ClassName."),
        click.option("--arm", metavar="NAME", help="Run this arm only."),
    ):
        command = option(command)
    return command


def _export_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--junit, --sarif, --markdown, given to the command as one ``exports`` that has been checked."""

    @functools.wraps(command)
    def with_exports(junit: Path | None, sarif: Path | None, markdown: Path | None, **others: Any) -> Any:
        from auditor.report import Exports

        exports = Exports(junit=junit, sarif=sarif, markdown=markdown)
        exports.check()
        return command(exports=exports, **others)

    wrapped: Callable[..., Any] = with_exports
    for name, words in (
        ("--markdown", "Also write a Markdown summary, for a job's log or summary page."),
        ("--sarif", "Also write SARIF 2.1.0, for code-scanning pages and viewers."),
        ("--junit", "Also write JUnit XML, for a CI system's test page. - is standard output."),
    ):
        wrapped = click.option(name, type=FILE, metavar="FILE", help=words)(wrapped)
    return wrapped


def _load(config: Path | None, backend: str | None, ranks: int | None, settings: Any) -> Any:
    from auditor.config import load

    loaded = load(config, settings)
    if backend:
        loaded = loaded.with_backend(backend)
    if ranks:
        loaded = loaded.with_ranks(ranks)
    return loaded


@click.command()
@click.argument("config", type=RUN, required=False)
@_config_options
@click.option("--out", type=RUN, metavar="DIR", help="The run directory; default results/<run_id>.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON instead of the summary.")
@click.option(
    "--hang-budget", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S"
)
@_export_options
def run(
    config: Path | None,
    arm: str | None,
    backend: str | None,
    ranks: int | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    as_json: bool,
    hang_budget: float,
    exports: Exports,
) -> int:
    """Plan, record, analyze and report. Without CONFIG: the built-in quickstart."""
    from auditor import launched_run, pipeline
    from auditor.mpi_control import launcher_rank_and_size

    if resume and out is None:
        raise ConfigError("--resume needs --out DIR: the run directory to go on with")
    options = pipeline.RunOptions(
        arm=arm, out=out, resume=resume, as_json=as_json, hang_budget=hang_budget, exports=exports
    )
    launched = launcher_rank_and_size()
    start = launched_run.run if launched is not None and launched.size > 1 else pipeline.run
    return start(_load(config, backend, ranks, settings), options)


@click.command()
@click.argument("config", type=RUN, required=False)
@_config_options
def plan(
    config: Path | None, arm: str | None, backend: str | None, ranks: int | None, settings: tuple[str, ...]
) -> int:
    """Print the trials and the waivers of a config before anything runs."""
    from auditor import pipeline

    return pipeline.show_plan(_load(config, backend, ranks, settings), arm)


@click.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON instead of the summary.")
@click.option(
    "--recompute",
    is_flag=True,
    help="Derive what was counted on the device again from the bytes; exit 3 where it differs.",
)
@_export_options
def analyze(run_dir: Path, as_json: bool, recompute: bool, exports: Exports) -> int:
    """Derive the findings of a recorded run again, from its files alone."""
    from auditor import pipeline

    return pipeline.analyze_run(run_dir, pipeline.RunOptions(as_json=as_json, exports=exports), recompute=recompute)


@click.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
@_export_options
def report(run_dir: Path, exports: Exports) -> int:
    """Write report.html of a run from its findings and its record, and the other forms that are asked for."""
    from auditor import pipeline

    return pipeline.write_report(run_dir, exports)


@click.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def show(run_dir: Path, as_json: bool) -> int:
    """Print the summary of a run's findings."""
    from auditor import pipeline

    return pipeline.show_run(run_dir, as_json=as_json)


@click.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
def verify(run_dir: Path) -> int:
    """Recompute every digest of a recorded run."""
    from auditor import pipeline

    return pipeline.verify_run(run_dir)


@click.command()
@click.argument("run_dirs", metavar="RUN...", type=RUN, nargs=-1, required=True)
@click.option("--out", type=RUN, required=True, metavar="DIR", help="The joined run directory.")
@_export_options
def join(run_dirs: tuple[Path, ...], out: Path, exports: Exports) -> int:
    """Join arms that were run apart into one run, then analyze and report it."""
    from auditor import pipeline

    return pipeline.join_runs(run_dirs, out, pipeline.RunOptions(exports=exports))


@click.command()
def backends() -> int:
    """List the backends: what is here, what is not, and how to get it."""
    from auditor import pipeline

    return pipeline.show_backends()
