"""Small runs with findings of every verdict, written through the real writers, and a strict parser for the page made of them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from auditor import report, store
from auditor.analysis import write_findings
from auditor.model import Call, Evidence, Family, Finding, Observation, Planned, Trial, Verdict
from auditor.plan.records import ArmPlan, Plan

VOID = {"meta", "br", "img", "link", "input", "hr", "col"}
NASTY = "<b>&\"'</b><script>alert(1)</script>\x1b[2J\x00"


# ----------------------------------------------------------------------------------------------------------- a run to show


def trial_at(count: int = 1026, shift: int = 0, fmt: str = "bfloat16", **changes: Any) -> Trial:
    call = Call(collective="all_reduce", op="sum", format=fmt, count=count)
    base = Trial(call=call, rank_n=2, send_shift=shift, recv_shift=shift, family=Family("wide"), seed=7)
    return base.with_(**changes)


TRIALS = [trial_at(count, shift) for count in (1, 7, 1026) for shift in (0, 1)]


def finding(
    verdict: str, kind: str = "foreign_read", *, arm: str = "nvls", probe: str = "tail", **more: Any
) -> Finding:
    scope = {"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": [1, 7, 1026]}
    scope = {**scope, "send_shift": [0, 1], "recv_shift": [0, 1], **more.pop("scope", {})}
    claim = more.pop("claim", f"all_reduce sum of bfloat16 on 2 ranks: claim about {kind}.")
    return Finding(arm=arm, probe=probe, kind=kind, verdict=Verdict(verdict), claim=claim, scope=scope, **more)


def row(trial: Trial = TRIALS[4], **changes: Any) -> Evidence:
    fixed = {
        "rank": 0,
        "repeat": 1,
        "index": 1025,
        "inputs": ("0x3f80", "0x3c00"),
        "observed": "0x3f81",
        "expected": "0x3f80",
    }
    return Evidence(trial=trial.trial_id, **{**fixed, **changes})


ROUNDING = {
    "mode": "mixed",
    "consistent_modes": [],
    "elements": 1048576,
    "inexact": 754428,
    "nearest": 524286,
    "toward_zero": 134415,
    "away": 95727,
    "outside": 0,
    "ties": 157869,
    "mean_signed_error_ulp": -0.0512,
    "nearest_95": [0.694, 0.696],
}
BY_BYTE = {
    "changed_by_address_mod_16": {"0": 0, "2": 0, "14": 104},
    "compared_by_address_mod_16": {"0": 1000, "2": 1000, "14": 1040},
}
USUAL = [
    finding(
        "FAIL",
        evidence=(row(),),
        measure={"evidence_total": 1234, **BY_BYTE},
        limits="`observed` is not right.",
        reproduce="auditor run c.toml",
    ),
    finding("INCONCLUSIVE", "not_repeatable", probe="repeatability"),
    finding("INFORMATION", "rounding_mode", probe="rounding", measure=ROUNDING),
    finding("PASS", "unwritten", probe="coverage", limits="Other data."),
    finding(
        "WAIVED",
        "unsupported",
        arm="nccl",
        probe="harness",
        claim="The arm nccl is not available here: no GPU.",
        scope={},
    ),
]


def make_run(
    run_dir: Path,
    findings: Iterable[Finding] = USUAL,
    *,
    title: str = "NVLS on and off",
    trials: Iterable[Trial] = TRIALS,
    ran: Iterable[Trial] = TRIALS,
    exit_code: int = 1,
    environment: dict[str, Any] | None = None,
    nccl_status: str = "unavailable",
    run_id: str = "r1",
) -> Path:
    planned = tuple(Planned(trial=trial, repeats=2, probes=("tail",)) for trial in trials)
    nvls = ArmPlan(
        name="nvls", backend="simulator", rank_n=2, trials=planned, env={"NCCL_NVLS_ENABLE": "1"}, path="NVLS"
    )
    nccl = ArmPlan(name="nccl", backend="nccl", rank_n=8, status=nccl_status, reason="no GPU")
    plan = Plan(title=title, arms=(nvls, nccl), run_id=run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    plan.save(run_dir)
    known = {"system": {"host": "node7"}, "date": "2026-01-02T03:04:05+00:00", "packages": {"numpy": "2.4"}, "gpus": {}}
    meta = {"run_id": run_id, "plan_id": plan.plan_id, "arm": "nvls", "ranks": [0], "attempt": 0}
    ran = list(ran)
    if ran:
        path = store.shard_path(run_dir, "nvls", 0, 0)
        with store.ShardWriter(path, {**meta, "environment": known if environment is None else environment}) as writer:
            for trial in ran:
                codes = np.zeros(trial.call.count, trial.call.fmt.dtype)
                seen = Observation(trial_id=trial.trial_id, repeat=0, rank=0, status="ok", digest=store.digest(codes))
                writer.append(trial, seen, codes)
    rows = [dataclasses.replace(one, id=f"F{n}").to_json() for n, one in enumerate(findings, 1)]
    arms = [
        {
            "name": "nvls",
            "backend": "simulator",
            "rank_n": 2,
            "status": "ok",
            "describe": {"library_version": "2.29", "gpus": ["B300"]},
        },
        {"name": "nccl", "backend": "nccl", "rank_n": 8, "status": nccl_status, "describe": {}},
    ]
    verdict = str(Verdict.worst([Verdict(one["verdict"]) for one in rows]))
    head = {"schema": "auditor-findings/1", "run_id": run_id, "verdict": verdict, "exit_code": exit_code}
    write_findings(run_dir, {**head, "arms": arms, "findings": rows})
    return run_dir


class Page(HTMLParser):
    """Parses a page strictly: tags balanced, ids unique; keeps what tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags["tooltip" if tag == "title" and "svg" in self.open else tag] += 1
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids.update(value for name, value in attrs if name == "id")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def checked(run_dir: Path) -> tuple[Page, str]:
    """The run's page, after what must hold of every page."""
    path = report.write(run_dir)
    assert path == run_dir / "report.html"
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    assert [one for one, n in found.ids.items() if n > 1 or not one] == []
    links = {value for tag, name, value in found.attributes if tag == "a" and name == "href"}
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(found.ids), "a link leads nowhere"
    referred = {value for _, name, value in found.attributes if name == "aria-labelledby"}
    assert referred <= set(found.ids)
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|\bon[a-z]+=", text)
    assert all(value.startswith("#p-") for value in re.findall(r"url\(([^)]*)\)", text))
    assert found.tags["h1"] == found.tags["title"] == found.tags["main"] == 1
    assert found.tags["figcaption"] == found.tags["figure"] >= 3
    return found, text
