"""The command line. Every command imports what it needs when it runs, so that ``auditor --help`` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from auditor import __version__
from auditor.errors import AuditError, ConfigError

RUN = click.Path(path_type=Path)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="auditor")
def cli() -> None:
    """Say what a collective sum really computes: rounding, order, repeatability, and what it reads and writes.

    Exit codes: 0 no FAIL and something conclusive; 1 a FAIL; 2 usage or config; 3 the machinery failed or a backend that was
    asked for is not available; 5 nothing conclusive; 130 interrupted.
    """


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override any key of the config."),
        click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Rank count of every arm."),
        click.option("--backend", metavar="SPEC", help="Audit this backend: a name or package.module:ClassName."),
        click.option("--arm", metavar="NAME", help="Run this arm only."),
    ):
        command = option(command)
    return command


def _load(config: Path | None, backend: str | None, ranks: int | None, settings: Any) -> Any:
    from auditor.config import load

    loaded = load(config, settings)
    if backend:
        loaded = loaded.with_backend(backend)
    if ranks:
        loaded = loaded.with_ranks(ranks)
    return loaded


@cli.command()
@click.argument("config", type=RUN, required=False)
@_config_options
@click.option("--out", type=RUN, metavar="DIR", help="The run directory; default results/<run_id>.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON instead of the summary.")
@click.option(
    "--hang-budget", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S"
)
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
) -> int:
    """Plan, record, analyze and report. Without CONFIG: the built-in quickstart."""
    from auditor import launched_run, pipeline
    from auditor.mpi_control import launcher_rank_and_size

    if resume and out is None:
        raise ConfigError("--resume needs --out DIR: the run directory to go on with")
    options = pipeline.RunOptions(arm=arm, out=out, resume=resume, as_json=as_json, hang_budget=hang_budget)
    launched = launcher_rank_and_size()
    start = launched_run.run if launched is not None and launched.size > 1 else pipeline.run
    return start(_load(config, backend, ranks, settings), options)


@cli.command()
@click.argument("config", type=RUN, required=False)
@_config_options
def plan(
    config: Path | None, arm: str | None, backend: str | None, ranks: int | None, settings: tuple[str, ...]
) -> int:
    """Print the trials and the waivers of a config before anything runs."""
    from auditor import pipeline

    return pipeline.show_plan(_load(config, backend, ranks, settings), arm)


@cli.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON instead of the summary.")
def analyze(run_dir: Path, as_json: bool) -> int:
    """Derive the findings of a recorded run again, from its files alone."""
    from auditor import pipeline

    return pipeline.analyze_run(run_dir, as_json=as_json)


@cli.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
def report(run_dir: Path) -> int:
    """Write report.html of a run from its findings and its record."""
    from auditor import pipeline

    return pipeline.write_report(run_dir)


@cli.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def show(run_dir: Path, as_json: bool) -> int:
    """Print the summary of a run's findings."""
    from auditor import pipeline

    return pipeline.show_run(run_dir, as_json=as_json)


@cli.command()
@click.argument("run_dir", metavar="RUN", type=RUN)
def verify(run_dir: Path) -> int:
    """Recompute every digest of a recorded run."""
    from auditor import pipeline

    return pipeline.verify_run(run_dir)


@cli.command()
@click.argument("run_dirs", metavar="RUN...", type=RUN, nargs=-1, required=True)
@click.option("--out", type=RUN, required=True, metavar="DIR", help="The joined run directory.")
def join(run_dirs: tuple[Path, ...], out: Path) -> int:
    """Join arms that were run apart into one run, then analyze and report it."""
    from auditor import pipeline

    return pipeline.join_runs(run_dirs, out)


@cli.command()
def backends() -> int:
    """List the backends: what is here, what is not, and how to get it."""
    from auditor import pipeline

    return pipeline.show_backends()


def main(argv: list[str] | None = None) -> None:
    """Entry point: one clear line for every error, the exit codes of DESIGN §7, never a traceback."""
    sys.path.insert(0, os.getcwd())  # package.module:ClassName may name a module of the current directory
    try:
        code = cli.main(args=argv, standalone_mode=False)
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except AuditError as error:
        click.echo(f"auditor: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("auditor: interrupted", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of our output has gone; that is its right
        code = 0
    except Exception as error:
        if os.environ.get("AUDITOR_DEBUG"):
            raise
        words = f"internal error: {type(error).__name__}: {error}; set AUDITOR_DEBUG=1 for the traceback"
        click.echo(f"auditor: {words}", err=True)
        code = 3
    sys.exit(code if isinstance(code, int) else 0)
