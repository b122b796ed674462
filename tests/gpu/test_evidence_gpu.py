"""Cases and reproduce.py on real GPUs: NCCL in one process, as a person with a finding would have it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from evidence_cases import case, step
from gpus import GPU_N, needs_gpu, needs_two

from auditor.cli.evidence_live import Live, offered
from auditor.evidence import relations
from auditor.evidence.relations import Relation
from auditor.evidence.script import Subject, script
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import round_sums
from auditor.plan import ArmPlan
from auditor.processes import arm_environment

pytestmark = [pytest.mark.gpu, needs_gpu]


def tail_case(ranks):
    """Values around 1, a range that begins and ends within a word, other values past it."""
    random = np.random.default_rng(3)
    rows = [random.integers(0x3F000000, 0x40800000, (ranks, n)).tolist() for n in (7, 9)]
    return case(step(rows[0], fmt="binary32", tail=rows[1], send_shift=3, recv_shift=1), repeats=2)


def test_a_case_reaches_nccl_and_its_bits_come_back(tmp_path):
    """One rank is enough to see that bytes go where they belong; two and more are rounded once for two terms."""
    ranks = min(GPU_N, 2)
    arm = ArmPlan(name="nccl", backend="nccl", rank_n=ranks, options={"process_model": "all"})
    given = tail_case(ranks)
    with Live(arm, offered(arm), tmp_path / "live", hang_budget=30, seconds=120) as subject:
        got = subject(given)
    assert got.whole, got.words
    want = round_sums(given.fmt, exact_sums(given.fmt, list(given.steps[0].data)), "ties_to_even")
    assert len(got.seen) == 2 * ranks
    for seen in got.seen.values():
        assert seen.output is not None
        assert np.array_equal(seen.output, want)
        assert seen.outside_total == 0
        assert seen.send_after


@needs_two
def test_the_nccl_script_runs_on_two_gpus(tmp_path):
    arm = ArmPlan(name="nccl", backend="nccl", rank_n=2)
    subject = Subject(backend="nccl", options={}, env={}, describe={})
    outside = Relation("bytes_outside", relations.bytes_outside)
    (tmp_path / "reproduce.py").write_text(script(tail_case(2), outside, subject, "t", "o", "a byte was changed"))
    command = [sys.executable, "reproduce.py"]
    environ = arm_environment(arm.env)
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert "NOT REPRODUCED: 0 places" in done.stdout, done.stdout + done.stderr
