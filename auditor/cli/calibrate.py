"""``auditor calibrate`` and ``auditor check``: make a measured bound, and apply one."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from auditor.cli.files import FILE, check_place
from auditor.errors import ConfigError

POSITIVE = click.IntRange(min=1)
WHOLE = click.IntRange(min=0)
DIRECTORY = click.Path(path_type=Path, file_okay=False)
Command = Callable[..., Any]

# Flag, type, what it is for; every one is left out where it is not given, so that each workload has its own defaults.
WORKLOAD_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--backend", str, "Collectives: a name, or package.module:ClassName."),
    ("--ranks", POSITIVE, "Collectives: rank count."),
    ("--count", POSITIVE, "Elements that each rank, or a person's function, gives."),
    (
        "--algorithms",
        click.Choice(["all", "default"]),
        "Collectives: every algorithm known here, or the library's choice.",
    ),
    ("--arms", str, "Collectives: take the arms of this config instead."),
    ("--device", str, "Local workloads: cpu or cuda."),
    ("--bins", POSITIVE, "histogram: bins."),
    ("--weights", POSITIVE, "histogram: weights a bin."),
    ("--terms", POSITIVE, "A person's function: rows that it adds."),
    ("--size", POSITIVE, "matmul: rows and columns."),
    ("--chunks", POSITIVE, "matmul: row blocks."),
    ("--checks", POSITIVE, "matmul: checks on fresh inputs."),
    ("--bound-absolute", click.FloatRange(min=0, min_open=True), "matmul: the bound, written down beforehand."),
    ("--format", str, "The elements' format."),
    ("--orders", POSITIVE, "Legal orders that are calibrated (of collectives: for each algorithm)."),
    ("--distribution", str, "Of the terms: uniform, exponential, or a family of inputs."),
    ("--reference", str, "float64, exact, or user:module.function."),
    ("--seed", WHOLE, "Seed of data and planted errors."),
)


def _workload_options(command: Command) -> Command:
    for flag, kind, words in reversed(WORKLOAD_OPTIONS):
        command = click.option(flag, type=kind, help=words)(command)
    for flag, words in (
        ("--env", "Collectives: a variable of every arm."),
        ("--option", "Collectives: a backend's option."),
    ):
        command = click.option(flag, multiple=True, metavar="KEY=VALUE", help=words)(command)
    return click.option("--run", "run_dir", type=DIRECTORY, help="Collectives: where the recorded run goes.")(command)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was really given, by the option's name; several values as a list."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in options.items() if v is not None and v != ()}


@click.command()
@click.argument("workload")
@_workload_options
@click.option("--margin", type=click.FloatRange(min=1), default=4.0, show_default=True, help="Times the worst order.")
@click.option(
    "--law", default="normal:0.03", show_default=True, help="Planted relative errors: normal:SD or uniform:WIDTH."
)
@click.option(
    "--held-out", type=WHOLE, default=1000, show_default=True, help="Legal orders that the calibration does not see."
)
@click.option("--out", type=FILE, metavar="FILE", help="The record; default results/bound-WORKLOAD-TIME.json.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead of the table.")
def calibrate(
    workload: str,
    margin: float,
    law: str,
    held_out: int,
    out: Path | None,
    as_json: bool,
    run_dir: Path | None,
    **options: Any,
) -> int:
    """Measure a bound for WORKLOAD and what each rule lets through: a record and an offline page beside it.

    WORKLOAD: all_reduce, reduce_scatter, histogram, matmul, or user:module.function. Exit code 1 where a gate fails: the
    workload writes too little, too late, from stale input, or claims a false time.
    """
    from auditor import calibrate as calibration
    from auditor.report import calibrate_page, calibrate_text

    given = _given(options)
    law_of = calibration.Law.parse(law)
    path = out or _default_place(workload)
    if out:
        check_place(out)
    resolved = calibration.resolved(workload, given)
    recorder = partial(
        _recorded, run_dir or path.parent / f"{_stamp()}-calibrate-{workload}", path.with_suffix(".toml")
    )
    work = calibration.build(workload, resolved, recorder)
    beside = {"margin": f"{margin:g}", "law": law, "held_out": held_out}
    request = calibration.request_of(workload, given, beside)
    record = calibration.calibrated(
        work, request, margin=margin, law=law_of, seed=resolved["seed"], orders_held_out=held_out
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(path, record)
    page = calibrate_page.write(path, record)
    for line in [json.dumps(record, indent=1)] if as_json else calibrate_text.lines(record):
        click.echo(line)
    click.echo(f"record: {path}\npage: {page}", err=as_json)
    return 1 if record["verdict"] == "FAIL" else 0


@click.command()
@click.argument("workload", required=False)
@click.option("--bound", type=FILE, required=True, metavar="FILE", help="The record of `auditor calibrate`.")
@_workload_options
def check(workload: str | None, bound: Path, run_dir: Path | None, **options: Any) -> int:
    """Run a calibrated workload again and hold its outputs against the measured bound.

    Without further options the workload is asked for as it was calibrated. Where any condition differs the bound says nothing,
    and is refused with the reason. Exit codes: 0 within the bound; 1 outside it, or a gate fails; 5 refused.
    """
    from auditor import calibrate as calibration

    record = calibration.load(bound)
    asked = record["request"]
    name = workload or asked["workload"]
    base = asked["options"] if name == asked["workload"] else {}
    resolved = calibration.resolved(name, {**base, **_given(options)})
    if record["verdict"] == "FAIL":
        return _refused(
            bound, record, ["the workload failed a gate when the bound was measured; see the record's page"]
        )
    with tempfile.TemporaryDirectory(prefix="auditor-check-") as scratch:
        recorder = partial(_recorded, run_dir or Path(scratch) / "run", Path(scratch) / "config.toml")
        work = calibration.build(name, resolved, recorder)
        if found := calibration.differences(record["conditions"], work.asked()):
            return _refused(bound, record, found)
        measured = work.measure(0)
    if found := calibration.differences(record["conditions"], measured.conditions):
        return _refused(bound, record, found)
    verdict, lines = calibration.applied(record, measured)
    held = f"{len(measured.orders)} orders of {len(measured.reference):,} elements"
    click.echo(f"{verdict}  {name}: {held}; {_bound_words(record['bound'])}")
    for line in lines:
        click.echo(f"  {line}")
    return 1 if lines else 0


def _bound_words(bound: Mapping[str, Any]) -> str:
    if bound["kind"] == "absolute":
        return f"absolute bound {bound['absolute']:g}"
    return f"bound {bound['ulp_steps']:,} steps, {bound['margin']:g} times the worst of the calibration"


def _refused(path: Path, record: Mapping[str, Any], reasons: list[str]) -> int:
    click.echo(f"REFUSED  the bound of {path} says nothing here:")
    for reason in reasons:
        click.echo(f"  {reason}")
    click.echo(f"calibrate again under the new conditions; the bound was made with: {record['request']['command']}")
    return 5


def _stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _default_place(workload: str) -> Path:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in workload)
    return Path("results") / f"bound-{name}-{_stamp()}.json"


@dataclass(frozen=True, slots=True)
class _Run:
    """A recorded run's reader with its findings."""

    reader: Any
    findings: list[dict[str, Any]]


@contextlib.contextmanager
def _recorded(run_dir: Path, config_path: Path, text: str, plans: Mapping[str, Any]) -> Iterator[_Run]:
    """Run a config as ``auditor run`` does and give its record. What a run prints goes to standard error."""
    from auditor import launched_run, pipeline, store
    from auditor.analysis import read_findings
    from auditor.config import load
    from auditor.mpi_control import launcher_rank_and_size

    launched = launcher_rank_and_size()
    many = launched is not None and launched.size > 1
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    if launched is not None and launched.rank:
        config_path = Path(tempfile.mkdtemp(prefix="auditor-")) / "config.toml"  # rank 0 writes the one that is kept
    config_path.write_text(text, encoding="utf-8")
    config = load(config_path)
    if many and len(config.arms) > 1:
        raise ConfigError("under an MPI launcher one invocation calibrates one algorithm; add --algorithms default")
    start = launched_run.run if many else pipeline.run
    with contextlib.redirect_stdout(sys.stderr):
        code = start(config, pipeline.RunOptions(out=run_dir, probes=plans))
    if launched is not None and launched.rank:
        raise click.exceptions.Exit(code)  # rank 0 goes on alone
    if code == 130:
        raise KeyboardInterrupt
    with store.RunReader(run_dir) as reader:
        yield _Run(reader, list(read_findings(run_dir)["findings"]))
