"""From a config to a verdict: plan, record, analyze, report. What each command of the CLI does, in order."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from auditor import analysis, store
from auditor.config import ArmSpec, Config
from auditor.errors import AuditError, ConfigError, Unavailable
from auditor.launch import ArmRunner
from auditor.model import Capabilities
from auditor.plan import ArmPlan, Plan, build, multicast_waiver, summary
from auditor.processes import Server, check_room, mpiexec
from auditor.profiling import note
from auditor.report import Exports

PROBE_LIMIT = 120.0  # seconds that a backend's probe may take
PROBES_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says about a run beside its config. ``probes``: plans by name instead of this version's probes."""

    arm: str | None = None
    out: Path | None = None
    resume: bool = False
    as_json: bool = False
    hang_budget: float = 60.0
    exports: Exports = field(default_factory=Exports)
    probes: Mapping[str, Any] | None = None


def run(config: Config, options: RunOptions) -> int:
    """Run every arm in fresh processes, or the one that was asked for."""
    with interruptible():
        return _run(config, options)


def _run(config: Config, options: RunOptions) -> int:
    offers = probe_arms(config, options.arm)
    plan = build(config, capabilities_of(offers), launcher=None, probes=options.probes)
    note("planned")
    run_dir, plan = open_run(plan, options)
    note("plan written")
    failure, interrupted = 0, False
    try:
        for arm in plan.arms:
            if arm.status == "ok":
                plan, code = _record_arm(run_dir, plan, arm, offers[arm.name], options)
                failure = max(failure, code)
    except KeyboardInterrupt:
        interrupted = True
        say(f"interrupted; what was recorded is kept in {run_dir}")
    return finish(run_dir, options, interrupted=interrupted, machinery_failed=failure == 3)


def _record_arm(run_dir: Path, plan: Plan, arm: ArmPlan, offer: Offer, options: RunOptions) -> tuple[Plan, int]:
    """Record one arm and note in plan.json how it ended."""
    already = recorded_trials(run_dir, arm.name) if options.resume else ()
    code, status, reason = 0, "ok", ""
    with Ticker(arm.name) as tick:
        runner = ArmRunner(run_dir, arm, offer.process_model, options.hang_budget, tick, offer.needs_mpi)
        try:
            runner.run(already)
        except AuditError as error:  # this arm's; the other arms still run
            code, status, reason = error.exit_code, "failed", str(error)
            say(str(error))
    plan = plan.with_status(arm.name, status, reason, describe=read_describe(run_dir, arm.name))
    plan.save(run_dir)
    return plan, code


@dataclass(frozen=True, slots=True)
class Offer:
    """What a backend said of itself in an arm's environment."""

    process_model: str
    offered: Capabilities | Unavailable
    needs_mpi: bool = True  # of process model "one": whether its ranks have to be started by mpiexec


def probe_arms(config: Config, only: str | None = None) -> dict[str, Offer]:
    """Ask each arm's backend, in a process of its own and in the arm's environment. Arms that multicast bars are not asked."""
    arms = config.arms if only is None else (config.arm(only),)
    with ThreadPoolExecutor(PROBES_AT_ONCE) as threads:  # each waits for processes that load a library for seconds
        offers = dict(zip((arm.name for arm in arms), threads.map(_probe, arms), strict=True))
    note("probed", arms=len(arms))
    return offers


def _probe(arm: ArmSpec) -> Offer:
    if barred := multicast_waiver(arm, os.environ):
        return Offer("all", Unavailable(barred))
    with contextlib.closing(Server(arm.env, Path(os.devnull))) as server:
        answer = server.ask({"probe": arm.backend, "options": dict(arm.options)}, PROBE_LIMIT)
    if "unavailable" in answer:
        return Offer("all", Unavailable(answer["unavailable"], answer["remedy"]))
    if "error" in answer:
        error = ConfigError if answer["exit_code"] == 2 else AuditError
        raise error(f"arm {arm.name}: {answer['error']}")
    if answer["process_model"] == "one":
        check_room(arm.name, arm.ranks)
        try:
            _ = mpiexec(arm.env) if answer["needs_mpi"] else None
        except Unavailable as error:
            return Offer("one", error)
    return Offer(answer["process_model"], Capabilities.from_json(answer["capabilities"]), answer["needs_mpi"])


def capabilities_of(offers: Mapping[str, Offer]) -> dict[str, Capabilities | Unavailable]:
    return {name: offer.offered for name, offer in offers.items()}


def open_run(plan: Plan, options: RunOptions) -> tuple[Path, Plan]:
    """Make the run directory (or find it again for --resume) and save the plan in it."""
    if options.resume and options.out is not None:
        before = Plan.load(options.out)
        if before.plan_id != plan.plan_id:
            raise ConfigError(
                f"{options.out} holds plan {before.plan_id}, this config is plan {plan.plan_id}: not the same run"
            )
        plan = plan.with_run_id(before.run_id)
        run_dir = options.out
    else:
        run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{plan.plan_id[:6]}{secrets.token_hex(2)}"
        plan = plan.with_run_id(run_id)
        run_dir = options.out if options.out is not None else Path("results") / run_id
        try:
            run_dir.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise ConfigError(f"{run_dir} exists already; give another --out, or --resume to go on with it") from None
        except OSError as error:
            raise ConfigError(f"{run_dir} cannot be made: {error.strerror}") from None
    plan.save(run_dir)
    return run_dir, plan


def recorded_trials(run_dir: Path, arm: str) -> tuple[str, ...]:
    """Trials whose every planned repeat is recorded, or that ended in an event; --resume leaves them alone."""
    with store.RunReader(run_dir) as reader:
        view = reader.arm(arm)
        done = []
        for planned in view.planned:
            seen = view.observations(planned.trial.trial_id)
            ended = any(row.status != "ok" for row in seen)
            if ended or len({row.repeat for row in seen}) >= planned.repeats:
                done.append(planned.trial.trial_id)
    return tuple(done)


def read_describe(run_dir: Path, arm: str) -> dict[str, Any]:
    path = run_dir / ".work" / arm / "describe.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def finish(run_dir: Path, options: RunOptions, *, interrupted: bool = False, machinery_failed: bool = False) -> int:
    """Join what was recorded, analyze it, write the reports, print the summary; returns the exit code.

    A report that cannot be written costs neither the findings nor the summary: it is said in a line, with exit code 3.
    """
    store.join(run_dir)
    note("joined")
    with store.RunReader(run_dir) as reader:
        content = analysis.analyze(reader, interrupted=interrupted, machinery_failed=machinery_failed)
    analysis.write_findings(run_dir, content)
    note("analyzed")
    written = _reported(run_dir, options.exports)
    note("reported")
    shutil.rmtree(run_dir / ".work", ignore_errors=True)
    _print(run_dir, content, options)
    return _with_reports(int(content["exit_code"]), written)


def _reported(run_dir: Path, exports: Exports, *, page: bool = True) -> bool:
    """Write the page and the exports; whether all could be written. What could not is said, and the others are."""
    from auditor import report

    written = True
    for make in ([partial(report.write, run_dir)] if page else []) + [partial(report.export, run_dir, exports)]:
        try:
            make()
        except AuditError as error:
            say(str(error))
            written = False
    return written


def _with_reports(code: int, written: bool) -> int:
    """The exit code, where reports could not be written: 3, unless 130 or 1 comes first (DESIGN §7)."""
    return code if written or code in (130, 1) else 3


def _print(run_dir: Path, content: Mapping[str, Any], options: RunOptions) -> None:
    """The findings on standard output, or on standard error where a report takes that."""
    from auditor import report
    from auditor.report.summary import summary_lines

    apart = options.exports.to_stdout
    if options.as_json:
        click.echo(json.dumps(content, indent=1), err=apart)
        return
    stream = sys.stderr if apart else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    for line in summary_lines(content, width, run_dir):
        click.echo(line, err=apart)
    page = run_dir / "report.html"
    click.echo(
        f"report: {page if report.is_current(run_dir) else f'make it with: auditor report {run_dir}'}", err=apart
    )


def show_plan(config: Config, arm: str | None) -> int:
    """``auditor plan``: trials and waivers, before anything runs."""
    plan = build(config, capabilities_of(probe_arms(config, arm)), launcher=None)
    for line in summary(plan):
        click.echo(line)
    return 0


def analyze_run(run_dir: Path, options: RunOptions, *, recompute: bool = False) -> int:
    """``auditor analyze``: findings.json again, from the recorded bytes. ``recompute``: nothing that was counted while recording
    is taken over, and it must agree; exit 3 where it does not.
    """
    with store.RunReader(run_dir, recompute=recompute) as reader:
        content = analysis.analyze(reader)
        differing = list(analysis.disagreements(reader)) if recompute else []
        for problem in (*reader.problems, *differing):
            say(problem)
        directory = reader.directory
    analysis.write_findings(directory, content)
    written = _reported(directory, options.exports, page=False)
    _print(directory, content, options)
    return 3 if differing else _with_reports(int(content["exit_code"]), written)


def write_report(run_dir: Path, exports: Exports) -> int:
    """``auditor report``: the page again, and what was asked for beside it, from findings.json and the record."""
    from auditor import report

    click.echo(str(report.write(run_dir)), err=exports.to_stdout)
    report.export(run_dir, exports)
    return 0


def show_run(run_dir: Path, *, as_json: bool = False) -> int:
    """``auditor show``: the summary again."""
    content = analysis.read_findings(run_dir)
    _print(run_dir, content, RunOptions(as_json=as_json))
    return int(content["exit_code"])


def verify_run(run_dir: Path) -> int:
    """``auditor verify``: recompute every digest; exit 3 where one does not hold."""
    problems = store.verify(run_dir)
    for problem in problems:
        click.echo(problem)
    if not problems:
        click.echo(f"{run_dir}: every recorded byte agrees with its digest")
    return 3 if problems else 0


def join_runs(run_dirs: Sequence[Path], out: Path, options: RunOptions) -> int:
    """``auditor join``: arms that ran apart become one run."""
    store.join_runs(run_dirs, out, seal=Plan.sealed)
    return finish(out, options)


def show_backends() -> int:
    """``auditor backends``."""
    from auditor.backends.registry import listing

    for entry in listing(probe=True):
        click.echo(f"{entry.name:12} {entry.status:12} {entry.spec}")
        for line in (entry.reason, entry.remedy):
            if line:
                click.echo(f"{'':12} {line}")
    return 0


def say(text: str) -> None:
    """One line to the person; standard output stays for results."""
    click.echo(f"auditor: {text}", err=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat a polite kill (a batch system's) like Ctrl-C, so that recorded work is kept and closed."""

    def interrupt(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Ticker:
    """Progress of one arm: a bar on a terminal, a plain line now and then elsewhere."""

    EVERY = 10.0

    def __init__(self, arm: str) -> None:
        self.arm, self.started, self.said = arm, time.monotonic(), time.monotonic()
        self.bar: Any = None
        self.last = (0, 0)

    def __enter__(self) -> Ticker:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            text = TextColumn("{task.description}")
            columns = (text, BarColumn(), MofNCompleteColumn(), TextColumn("trials"), TimeElapsedColumn())
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.bar.start()
            self.task = self.bar.add_task(self.arm, total=None)
        return self

    def __call__(self, done: int, total: int) -> None:
        self.last = (done, total)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, total=total)
        elif time.monotonic() - self.said > self.EVERY:
            self.said = time.monotonic()
            self._line()

    def _line(self) -> None:
        done, total = self.last
        say(f"arm {self.arm}: {done}/{total} trials, {time.monotonic() - self.started:.1f} s")

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        else:
            self._line()
