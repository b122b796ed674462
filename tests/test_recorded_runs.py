"""The recorded runs under results/evidence: their bytes hold, and what they show is found again from the files alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from auditor import analysis, store
from auditor.plan import Plan

RUNS = sorted(path.parent for path in (Path(__file__).parent.parent / "results" / "evidence").glob("*/run.h5"))


# Analysed by hand when they were recorded: together a minute, and nothing that the others do not ask of the code.
VERIFIED_ALONE = {"multimem-unicast-one-h200", "nvshmem-4-pes-one-h200", "nvshmem-8-pes-one-h200"}


def shown(findings):
    return Counter((row["arm"], row["probe"], row["kind"], row["verdict"]) for row in findings)


def test_there_is_one():
    assert RUNS


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_recorded_run_verifies(run):
    assert store.verify(run) == []
    Plan.load(run)


@pytest.mark.parametrize("run", [run for run in RUNS if run.name not in VERIFIED_ALONE], ids=lambda path: path.name)
def test_a_recorded_run_shows_the_same_again(run):
    with store.RunReader(run) as reader:
        content = analysis.analyze(reader)
    before = json.loads((run / "findings.json").read_text())
    assert content["verdict"] == before["verdict"]
    assert shown(content["findings"]) == shown(before["findings"])
