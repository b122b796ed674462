"""A run under an outer mpirun, mpiexec or srun: this very process is one rank, so one invocation runs exactly one arm.

An MPI cannot be started twice, hence no fresh-process repeats and no respawn after a crash. Rank 0 alone plans, prints and
analyses; it also watches every rank's progress file, because a rank inside a hanging call cannot watch itself.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.backends.registry import choose
from auditor.config import BUILT_IN, ArmSpec, Config
from auditor.errors import AuditError, ConfigError, Unavailable
from auditor.launch import POLL, ArmRunner, Watch
from auditor.model import Capabilities
from auditor.mpi_control import MpiControl, launcher_rank_and_size
from auditor.multicast import switched_off, with_settings
from auditor.pipeline import RunOptions, finish, open_run, read_describe, say
from auditor.plan import Plan, build, multicast_waiver
from auditor.worker import JobFile, guarded, node_rank, run_job

SETTLE = 1.0  # seconds that the other ranks get to finish writing before rank 0 ends the job


def run(config: Config, options: RunOptions) -> int:
    """Run one arm as one rank of the launcher's job; every rank returns the same exit code."""
    arm = chosen_arm(config, options)
    surroundings = dict(os.environ)
    os.environ.update(with_settings(surroundings, arm.env))  # before any library reads it
    control = MpiControl()
    silence_all_but_rank_0(control.rank)
    try:
        return _run(config, options, arm, control, _shared_switches(control, surroundings))
    except AuditError as error:
        say(str(error))
        return error.exit_code


def _shared_switches(control: MpiControl, surroundings: Mapping[str, str]) -> dict[str, str]:
    """The surroundings from before the arm's settings, with the multicast switches that any rank's surroundings set.

    They are set in this process, too: a launcher need not pass variables to other nodes, and all ranks must decide alike.
    """
    for said in control.all_gather(json.dumps(switched_off(surroundings)).encode()):
        surroundings = with_settings(surroundings, json.loads(said))
    os.environ.update(switched_off(surroundings))
    return dict(surroundings)


def silence_all_but_rank_0(rank: int) -> None:
    if rank:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)


def chosen_arm(config: Config, options: RunOptions) -> ArmSpec:
    """The arm to run; with several and no --arm, the command for each."""
    if options.arm:
        return config.arm(options.arm)
    if len(config.arms) == 1:
        return config.arms[0]
    launched = launcher_rank_and_size()
    if launched is not None and launched.rank:
        sys.exit(2)  # rank 0 says it for all
    raise ConfigError(
        "under an MPI launcher one invocation runs one arm; start one job for each, then join them:\n"
        + "\n".join(commands(config, [arm.name for arm in config.arms]))
    )


def commands(config: Config, names: list[str], ran: Sequence[str] = ()) -> list[str]:
    """One command line for each arm, and the one that joins their runs with those that ``ran``."""
    source = () if config.source == BUILT_IN else (config.source,)
    lines = []
    for name in names:
        arm = config.arm(name)
        words = ("mpiexec", "-n", str(arm.ranks), "auditor", "run", *source, "--arm", name, *config.arguments)
        lines.append("  " + shlex.join([*words, "--out", f"results/{name}"]))
    runs = [*ran, *(f"results/{name}" for name in names)]
    return [*lines, "  " + shlex.join(["auditor", "join", *runs, "--out", "results/joined"])]


def _run(
    config: Config, options: RunOptions, arm: ArmSpec, control: MpiControl, surroundings: Mapping[str, str]
) -> int:
    """``surroundings``: the environment from before the arm's settings, by which multicast is judged."""
    if control.size != arm.ranks:
        raise ConfigError(
            f"arm {arm.name} asks for {arm.ranks} ranks, the launcher started {control.size}; add --ranks {control.size}"
        )
    backend = choose(arm.backend, arm.options)
    if backend.process_model != "one":
        raise ConfigError(
            f"arm {arm.name}: {arm.backend} drives all ranks from one process; start it without a launcher"
        )
    offer = _offer(backend, arm, control, surroundings)
    run_dir, plan = _shared(control, lambda: _open(config, arm, offer, options, surroundings))
    if not run_dir.is_dir():
        raise AuditError(f"{run_dir} is not visible on {socket.gethostname()}; results need a shared file system")
    if plan.arm(arm.name).status == "ok":
        _record(run_dir, plan, arm, control, options)
    code = 0
    if control.rank == 0:
        ended = plan.arm(arm.name)
        plan = plan.with_status(arm.name, ended.status, ended.reason, describe=read_describe(run_dir, arm.name))
        plan.save(run_dir)
        code = finish(run_dir, options)
        left = [other.name for other in config.arms if other.name != arm.name]
        if left:
            say(
                "arms left to run, one job each, and how to join them:\n"
                + "\n".join(commands(config, left, [str(options.out or run_dir)]))
            )
    return int(control.broadcast(str(code).encode()))


def _offer(
    backend: Any, arm: ArmSpec, control: MpiControl, surroundings: Mapping[str, str]
) -> Capabilities | Unavailable:
    """Rank 0's answer holds for all; multicast's bar comes before any question."""
    barred = multicast_waiver(arm, surroundings)
    if barred:
        return Unavailable(barred)
    try:
        offer: Capabilities = backend.probe(arm.options)
        raw = json.dumps({"offer": offer.to_json()})
    except Unavailable as error:
        raw = json.dumps({"reason": error.reason, "remedy": error.remedy})
    said = json.loads(control.broadcast(raw.encode()))
    return Capabilities.from_json(said["offer"]) if "offer" in said else Unavailable(said["reason"], said["remedy"])


def _open(
    config: Config,
    arm: ArmSpec,
    offer: Capabilities | Unavailable,
    options: RunOptions,
    surroundings: Mapping[str, str],
) -> tuple[Path, Plan]:
    launched = launcher_rank_and_size()
    launcher = launched.launcher if launched else "a launcher"
    plan = build(config, {arm.name: offer}, launcher=launcher, environ=surroundings, probes=options.probes)
    return open_run(plan, options)


def _shared(control: MpiControl, make: Callable[[], tuple[Path, Plan]]) -> tuple[Path, Plan]:
    """Rank 0 makes the run directory; everybody reads the plan from it, or gets rank 0's error."""
    said: dict[str, Any] = {}
    if control.rank == 0:
        try:
            run_dir, _ = make()
            said = {"run_dir": str(run_dir.resolve())}
        except AuditError as error:
            said = {"error": str(error), "exit_code": error.exit_code}
    said = json.loads(control.broadcast(json.dumps(said).encode()))
    if "error" in said:
        failure = AuditError(said["error"])
        failure.exit_code = said["exit_code"]
        raise failure
    return Path(said["run_dir"]), Plan.load(Path(said["run_dir"]))


def _record(run_dir: Path, plan: Plan, arm: ArmSpec, control: MpiControl, options: RunOptions) -> None:
    arm_plan = plan.arm(arm.name)
    trials = tuple(planned.trial.trial_id for planned in arm_plan.trials)
    job = JobFile(run_dir, arm.name, 0, trials)
    job.work.mkdir(parents=True, exist_ok=True)
    control.barrier()
    if control.rank == 0:
        runner = ArmRunner(run_dir, arm_plan, "one", options.hang_budget, attempt=1)
        threading.Thread(target=_supervise, args=(job, runner, control, options), daemon=True).start()
    ranks = (control.rank,)
    status = guarded(job, control.rank, lambda: run_job(job, control, control.size, ranks, node_rank(os.environ)))
    if status:
        words = json.loads(job.side(control.rank, "failure").read_text())
        sys.stderr.write(f"auditor: rank {control.rank}: {words['error']}\n")
        control.abort(words["exit_code"])
    control.barrier()


def _supervise(job: JobFile, runner: ArmRunner, control: MpiControl, options: RunOptions) -> None:
    """Rank 0's second thread: on a hang, keep what there is, say so, and end the job."""
    watch = Watch(job, list(runner.plan.trials), runner)
    while not watch.finished():
        if watch.must_end():
            time.sleep(SETTLE)
            watch.settle(None)
            code = finish(job.run_dir, options)
            say("the job is ended because a rank does not return; trials after this one were not run")
            control.abort(code)
        time.sleep(POLL * 5)
