"""auditor evidence: the bundle that a vendor's engineer can use alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from auditor.errors import AuditError, ConfigError, Unavailable

if TYPE_CHECKING:
    from auditor.evidence.bundle import Bundle, Ran
    from auditor.evidence.reduce import Player
    from auditor.plan import ArmPlan

SCRIPT_LIMIT = 60.0  # seconds that reproduce.py may take where it is tried
TRACKER = 25 << 20  # bytes that most issue trackers take


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--finding", "finding_id", metavar="ID", help="Which finding; default the worst one.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FILE.zip", help="Default evidence-RUN-ID.zip here."
)
@click.option("--anonymize-hosts", is_flag=True, help="Replace host names, IP addresses and GPU ids.")
@click.option("--offline", is_flag=True, help="Do not try the backend, even if it is here.")
@click.option(
    "--shrink-time", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S"
)
@click.option(
    "--hang-budget", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S"
)
def evidence(
    run_dir: Path,
    finding_id: str | None,
    out: Path | None,
    anonymize_hosts: bool,
    offline: bool,
    shrink_time: float,
    hang_budget: float,
) -> int:
    """Bundle one finding for its maintainer: a page, the smallest case, a script, raw bits, the record.

    The smallest case is looked for on the arm's backend where it is here (--shrink-time, --hang-budget bound that); else by
    replaying a measured rule; else it is the smallest recorded call. Which of these it was is said.
    """
    from auditor import analysis, store
    from auditor.evidence import bundle, choice
    from auditor.evidence.reduce import reduce
    from auditor.plan import Plan

    _check_target(out)
    with store.RunReader(run_dir) as reader, tempfile.TemporaryDirectory(prefix="auditor-evidence-") as scratch:
        content = analysis.read_findings(reader.directory)
        findings = analysis.findings_of(content, reader.directory)
        finding = choice.choose(findings, finding_id)
        arm = Plan.from_json(reader.plan).arm(finding.arm)
        place = Path(scratch)
        with _Subject(arm, place / "live", offline, shrink_time, hang_budget) as subject:
            reduced = reduce(reader.arm(finding.arm), finding, findings, subject.player, subject.absent)
        made = bundle.make(
            reader,
            finding,
            findings,
            reduced,
            out if out is not None else Path(f"evidence-{reader.run_id}-{finding.id}.zip"),
            privacy=_guard(reader, content, anonymize_hosts),
            scratch=place,
            run_script=subject.run_script,
            process_model=subject.model,
        )
    for line in _said(made):
        click.echo(line)
    return 0


def _check_target(out: Path | None) -> None:
    """Before anything is tried: it may take a minute."""
    if out is not None and out.suffix != ".zip":
        raise ConfigError(f"-o {out}: a bundle is a zip; give a name that ends in .zip")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"-o {out}: there is no directory {out.parent}")


def _guard(reader: Any, content: Any, anonymize: bool) -> Any:
    from auditor.evidence import privacy

    return privacy.gathered(
        [source["environment"] for source in reader.sources()],
        [entry.get("describe") or {} for entry in content["arms"]],
        reader.arm_names,
        anonymize=anonymize,
    )


class _Subject:
    """The arm's backend, if it can be tried here. ``absent`` says why not."""

    def __init__(self, arm: ArmPlan, scratch: Path, offline: bool, seconds: float, hang_budget: float) -> None:
        self.arm, self.absent, self.model, self.by_mpi = arm, "", "", False
        self.player: Player | None = None
        self.live: Any = None
        if offline:
            self.absent = "the backend was not to be tried (--offline)"
            return
        self._find(scratch, seconds, hang_budget)

    def _find(self, scratch: Path, seconds: float, hang_budget: float) -> None:
        from auditor.cli.evidence_live import Live, offered
        from auditor.evidence.reduce import Player
        from auditor.model import Capabilities

        try:
            offer = offered(self.arm)
        except Unavailable as error:
            self.absent = f"the backend {self.arm.backend} is not available here: {error.reason}"
            return
        except AuditError as error:
            self.absent = f"the backend {self.arm.backend} cannot be tried here: {error}"
            return
        assert isinstance(offer.offered, Capabilities)
        self.model = offer.process_model
        self.by_mpi = offer.process_model == "one" and offer.needs_mpi
        self.live = Live(self.arm, offer, scratch, hang_budget=hang_budget, seconds=seconds)
        self.player = Player(self.live, self.live.encore, offer.offered)

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.end()

    def run_script(self, directory: Path, rank_n: int) -> Ran:
        """reproduce.py in a process of its own, as its reader will start it."""
        from auditor.evidence.bundle import Ran
        from auditor.processes import arm_environment, mpiexec

        if self.live is None and self.arm.backend != "simulator":  # a model's script needs nothing but numpy
            return Ran(why=self.absent)
        environment = arm_environment(self.arm.env)
        if ":" in self.arm.backend:  # a module of the current directory is importable, there as here
            environment["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "reproduce.py"]
        if self.by_mpi:
            command = [*mpiexec(self.arm.env), "-n", str(rank_n), *command]
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SCRIPT_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ran(text=f"(no return within {SCRIPT_LIMIT:g} s)", shown=True)
        last = done.stdout.rstrip().rpartition("\n")[2]
        if done.returncode or not last:
            said = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it printed nothing"]
            return Ran(text=f"(ended with status {done.returncode}: {said[0]})", shown=False)
        return Ran(text=done.stdout, shown=last.startswith("REPRODUCED"))


def _said(made: Bundle) -> list[str]:
    """What the person reads: what it is about, how small it got, what to do with it."""
    from auditor.evidence.shrink import described

    finding, reduced = made.finding, made.reduced
    lines = [f"{finding.id} {finding.verdict} {finding.kind}, arm {finding.arm}: {finding.claim}"]
    if reduced.case is not None:
        how = {"live": "on the backend itself", "model": "on the measured rule", "recorded": "as recorded"}[reduced.how]
        lines.append(f"smallest case ({how}): {described(reduced.case)}")
    if reduced.why:
        lines.append(f"not better, because {reduced.why}")
    if made.script:
        tried = made.ran.text.strip().splitlines()[-1:] or [f"not run: {made.ran.why}"]
        lines.append(f"reproduce.py: {made.script} lines; {tried[0]}")
    else:
        lines.append(f"no reproduce.py: {made.no_script}")
    lines.append(f"{made.path}: {made.nbytes:,} bytes")
    if made.nbytes > TRACKER:
        lines.append(
            "larger than most trackers take (25 MB): attach issue.md, reproduce.py and bits.csv, and offer the rest"
        )
    return [*lines, "read issue.md before you send it; check the files with: sha256sum -c SHA256SUMS"]
