"""Runs on disk without a subject: a function (trial, repeat, rank) -> codes stands in for what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import Page

from auditor import cli, store
from auditor.analysis import write_findings
from auditor.model import Call, Codes, Family, Finding, Observation, Planned, Trial, Verdict
from auditor.plan.records import ArmPlan, Plan
from auditor.probes.expected import blocks, nearest_code

Output = Callable[[Trial, int, int], Codes]


def make_trial(count: int = 7, shift: int = 0, fmt: str = "bfloat16", rank_n: int = 2, **changes: Any) -> Trial:
    call = Call(collective="all_reduce", op="sum", format=fmt, count=count)
    base = Trial(call=call, rank_n=rank_n, send_shift=shift, recv_shift=shift, family=Family("wide"), seed=7)
    return base.with_(**changes)


def planned(*trials: Trial, repeats: int = 3, probes: tuple[str, ...] = ("placement",)) -> list[Planned]:
    return [Planned(trial=trial, repeats=repeats, probes=probes) for trial in trials]


def right(trial: Trial, repeat: int, rank: int) -> Codes:
    """The exact sums, rounded once to nearest, ties to even."""
    out = np.empty(trial.call.count, trial.call.fmt.dtype)
    for part, data in blocks(trial, repeat, rank):
        out[part] = nearest_code(trial, data)
    return out


def one_up(*indices: int, ranks: Iterable[int] = (0, 1), repeats: Iterable[int] = range(100)) -> Output:
    """The right result with the codes at some indices one higher."""

    def output(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = right(trial, repeat, rank)
        if rank in ranks and repeat in repeats:
            codes[[index for index in indices if index < len(codes)]] += 1
        return codes

    return output


@dataclass
class Arm:
    """One arm of a run. ``status`` maps (trial id, repeat, rank) to a status that is not ok."""

    name: str = "ring"
    planned: list[Planned] = field(default_factory=list)
    output: Output = right
    backend: str = "simulator"
    rank_n: int = 2
    describe: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    status: Callable[[Trial, int, int], str] = lambda trial, repeat, rank: "ok"
    plan_status: str = "ok"
    reason: str = ""


ENVIRONMENT = {
    "auditor": {"version": "0.1.0", "commit": "abc"},
    "date": "2026-01-02T03:04:05+00:00",
    "python": "3.11.7",
    "packages": {"numpy": "2.4.6", "mpich": "5.0.2"},
    "system": {"host": "node7", "kernel": "6.1"},
    "cpu": {"model": "Xeon", "count": 2, "usable": 2},
    "memory_bytes": 1 << 34,
    "gpus": {"management_library": "not asked"},
    "variables": {"NCCL_ALGO": "Ring"},
}


def finding(kind: str, verdict: str, *, arm: str = "ring", probe: str = "placement", **more: Any) -> Finding:
    scope = {"collective": "all_reduce", "op": "sum", "format": "bfloat16", **more.pop("scope", {})}
    claim = more.pop("claim", f"A claim about {kind}.")
    return Finding(arm=arm, probe=probe, kind=kind, verdict=Verdict(verdict), claim=claim, scope=scope, **more)


def make_run(
    run_dir: Path,
    *arms: Arm,
    findings: Iterable[Finding] = (),
    environment: Mapping[str, Any] = ENVIRONMENT,
    write: bool = True,
) -> Path:
    """A run directory with shards and, where ``write``, findings.json. ``run_id`` is the directory's name."""
    plans = tuple(
        ArmPlan(
            name=arm.name,
            backend=arm.backend,
            rank_n=arm.rank_n,
            trials=tuple(arm.planned),
            env=dict(arm.env),
            describe=dict(arm.describe),
            status=arm.plan_status,
            reason=arm.reason,
        )
        for arm in arms
    )
    plan = Plan(title="recorded", arms=plans, run_id=run_dir.name)
    run_dir.mkdir(parents=True)
    plan.save(run_dir)
    for arm in arms:
        if arm.planned:
            _record(run_dir, plan.plan_id, arm, environment)
    rows = [replace(one, id=f"F{number}").to_json() for number, one in enumerate(findings, 1)]
    if write:
        head = {"schema": "auditor-findings/1", "run_id": run_dir.name, "verdict": "PASS", "exit_code": 0}
        entries = [{"name": a.name, "backend": a.backend, "rank_n": a.rank_n, "status": "ok"} for a in arms]
        write_findings(run_dir, {**head, "arms": entries, "findings": rows})
    return run_dir


def _record(run_dir: Path, plan_id: str, arm: Arm, environment: Mapping[str, Any]) -> None:
    meta = {"run_id": run_dir.name, "plan_id": plan_id, "arm": arm.name, "ranks": [0, 1], "attempt": 0}
    with store.ShardWriter(store.shard_path(run_dir, arm.name, 0, 0), {**meta, "environment": environment}) as writer:
        for one in arm.planned:
            for repeat in range(one.repeats):
                for rank in one.trial.members:
                    _row(writer, arm, one.trial, repeat, rank)
            writer.flush()


def _row(writer: store.ShardWriter, arm: Arm, trial: Trial, repeat: int, rank: int) -> None:
    status = arm.status(trial, repeat, rank)
    fixed: dict[str, Any] = {"trial_id": trial.trial_id, "repeat": repeat, "rank": rank, "status": status}
    if status == "absent":
        return
    if status != "ok":
        writer.append(trial, Observation(**fixed, message="refused"), None)
        return
    codes = arm.output(trial, repeat, rank)
    writer.append(trial, Observation(**fixed, digest=store.digest(codes), path="RING/SIMPLE"), codes)


def offline(html: str) -> Page:
    """A page, after what must hold of every page: whole, every link within it, nothing from elsewhere, no scripts."""
    found = Page(html)
    assert [one for one, n in found.ids.items() if n > 1 or not one] == []
    links = [value for _, name, value in found.attributes if name in ("href", "src")]
    assert all(link.startswith("#") and link[1:] in found.ids for link in links)
    assert not {"script", "link", "img"} & set(found.tags)
    return found


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Runs the command line in this process: exit code, what was printed, what was said beside it."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err
