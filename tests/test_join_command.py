"""Arms that ran apart, joined: what comes out is a run like any other, for every command that reads one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from auditor.plan import Plan

CONFIG = """
title = "Two arms, run apart"
[[arm]]
name = "one"
backend = "simulator"
ranks = 2
[[arm]]
name = "two"
backend = "simulator"
ranks = 2
[sweep]
collective = ["all_reduce"]
format = ["bfloat16"]
count = [7, 1026]
repeats = 2
[probes]
run = ["rounding", "repeatability"]
"""


def auditor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "auditor", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apart")
    (folder / "c.toml").write_text(CONFIG)
    for arm in ("one", "two"):
        done = auditor(folder, "run", "c.toml", "--arm", arm, "--out", arm)
        assert done.returncode == 0, done.stderr
    done = auditor(folder, "join", "one", "two", "--out", "both")
    assert done.returncode == 0, done.stderr
    return folder


def test_its_plan_is_whole_and_holds_the_trials_of_both(joined: Path) -> None:
    """The digest is of the joined arms: that of either run alone would call the plan changed."""
    plan = Plan.load(joined / "both")
    assert [bool(arm.trials) for arm in plan.arms] == [True, True]
    apart = {Plan.load(joined / arm).content_id for arm in ("one", "two")}
    assert plan.content_id not in apart


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "both"),
        ("analyze", "both"),
        ("impact", "both"),
        ("join", "both", "--out", "again"),
    ],
)
def test_every_command_reads_it(joined: Path, arguments: tuple[str, ...]) -> None:
    done = auditor(joined, *arguments)
    assert done.returncode == 0, done.stderr
