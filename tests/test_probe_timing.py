"""timing: early returns and false clocks, on made-up records and the whole way through the command line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_view import FakeView, before, correct, planned

from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Capabilities
from auditor.probes import timing
from auditor.probes.timing_limits import limits

HERE = Path(__file__).parent
OFFER = Capabilities(
    collectives=frozenset({"all_reduce", "reduce_scatter", "reduce"}),
    ops=frozenset({"sum", "max"}),
    formats=frozenset({"bfloat16", "binary32"}),
    features=frozenset({"timing"}),
)


def a_scope(offer=OFFER, ranks=2, **axes):
    sweep = Sweep(**{"collective": ("all_reduce",), "format": ("bfloat16",), "count": (1, 7), **axes})
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), offer, sweep)


def a_view(offer=OFFER, ranks=2, output=None, late=None, clock=None, expect=None, describe=None, **axes):
    """``clock(variant, count, repeat, rank)``: (host's seconds, subject's) of all calls of the repeat."""
    make = output or correct()

    def details(trial, repeat, rank):
        more = {"seconds": 1e-3, "subject_seconds": 1e-3}
        if clock is not None:
            host, own = clock(trial.variant, trial.call.count, repeat, rank)
            more = {"seconds": host, "subject_seconds": own}
        if output is None:  # nothing here depends on the bytes
            more |= {"digest": "d" * 64}
            return more | {
                "late_digest": "d" * 64,
                "late_seconds": 0.02,
                "copy_seconds": 2e-5 * (trial.variant == "reread"),
            }
        if trial.variant == "reread":
            second = (late or make)(trial, repeat, rank)
            digest = hashlib.sha256(np.ascontiguousarray(second).tobytes()).hexdigest()
            more |= {"late_digest": digest, "late_seconds": 0.02, "copy_seconds": 2e-5}
        return more

    trials = planned(timing.plan(a_scope(offer, ranks, **axes)), "timing")
    return FakeView(trials, make, late=late or make, details=details, expect=expect, describe=describe)


def of_kind(view, kind):
    return next(found for found in timing.analyze(view) if found.kind == kind)


# ------------------------------------------------------------------------------------------------------------------ plan


def test_a_point_a_collective_is_read_twice_and_timed_with_and_without_a_queue():
    trials = dict(timing.plan(a_scope(collective=("all_reduce", "reduce_scatter"), op=("max", "sum"))))
    assert {t.variant.partition(":")[0] for t in trials} == {"reread", "burst"}
    assert {t.call.op for t in trials} == {"sum"}
    twice = [t for t in trials if t.variant == "reread"]
    assert [t.send_count * t.call.fmt.itemsize for t in twice] == [timing.BYTES["host"]] * 2
    assert {t.call.count for t in trials if t.variant != "reread"} == {1, *(t.call.count for t in twice)}
    queue = replace(OFFER, features=OFFER.features | {"queue"}, memory="cuda")
    names = {t.variant for t, _ in timing.plan(a_scope(queue))}
    assert names == {"reread", "burst:32", "queued:32"}


def test_without_a_clock_false_time_is_waived_and_early_return_is_still_looked_for():
    view = a_view(replace(OFFER, features=frozenset()))
    assert {p.trial.variant for p in view.planned} == {"reread"}
    assert [(f.kind, str(f.verdict)) for f in timing.analyze(view)] == [
        ("early_return", "PASS"),
        ("false_time", "WAIVED"),
    ]


# ---------------------------------------------------------------------------------------------------------- early_return


def test_bytes_that_change_after_the_return_are_shown_with_both_values():
    right = correct()

    def early(trial, repeat, rank):
        codes = np.array(right(trial, repeat, rank))
        if trial.variant == "reread" and repeat % 2 and rank == 1:
            codes[1000:] = before(trial, repeat, rank)[1000:]
        return codes

    found = of_kind(a_view(output=early, late=right), "early_return")
    assert str(found.verdict) == "FAIL"
    assert found.measure["calls_changed"] == 3
    assert found.measure["calls"] == 6
    assert found.measure["ranks"] == [1]
    count = timing.BYTES["host"] // 2
    assert found.measure["elements_changed"] == found.measure["evidence_total"] == 3 * (count - 1000)
    row = found.evidence[0]
    assert row.index == 1000
    assert row.observed == "0x7fa5"  # the prefill was still there
    assert row.expected != row.observed
    assert "on rank 1" in found.claim
    assert (
        str(of_kind(a_view(output=early, late=right, expect={"early_return": True}), "early_return").verdict)
        == "INFORMATION"
    )


def test_nothing_recorded_is_inconclusive():
    view = a_view()
    view._details = lambda *_: {"status": "error"}
    assert {str(found.verdict) for found in timing.analyze(view)} == {"INCONCLUSIVE"}
    assert "status error" in of_kind(view, "early_return").claim


# ------------------------------------------------------------------------------------------------------------ false_time


def a_clock(call=1e-3, around=2e-5, share=1.0, noise=0.0, add=0.0):
    """A call of many elements takes ``call`` seconds, what surrounds any call ``around``; the subject tells ``share`` of it."""

    def clock(variant, count, repeat, rank):
        calls = int(variant.partition(":")[2] or 1)
        true = (call if count > 1 else 1e-6) * (1 + noise * (repeat % 3))
        told = true * share + add
        return calls * (true + around), told * (calls if variant.startswith("burst") else 1)

    return clock


CLOCKS = [  # (clock, verdict, a part of the claim)
    (a_clock(), "PASS", "accounts for 98% to 98% of the host's time"),
    (a_clock(noise=3), "PASS", "accounts for"),  # a call may take four times as long now and then
    (a_clock(call=1e-4, around=8e-5), "PASS", "accounts for 56%"),
    (a_clock(call=2e-5, around=9e-5), "INCONCLUSIVE", "what surrounds a call takes as long as the call"),
    (a_clock(share=0.1), "FAIL", "accounts for 12% at most"),
    (a_clock(share=0.3, noise=3), "FAIL", "at most"),
    (a_clock(share=1.5), "FAIL", "where no more than"),
    (a_clock(share=0), "INCONCLUSIVE", "reads 0 for every call"),
]


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(("clock", "verdict", "words"), CLOCKS)
def test_clocks(clock, verdict, words, queue):
    offer = replace(OFFER, features=OFFER.features | {"queue"}) if queue else OFFER
    found = of_kind(a_view(offer, clock=clock), "false_time")
    assert str(found.verdict) == verdict, found.claim
    assert words in found.claim


def test_a_call_faster_than_memory_and_link_allow():
    gpus = {"gpus": "0: NVIDIA H200 (0000:0a:00.0); 1: NVIDIA H200 (0000:0b:00.0)"}
    offer = replace(OFFER, memory="cuda")
    honest = a_view(offer, clock=a_clock(call=3e-5, around=1e-5), describe=gpus)
    assert str(of_kind(honest, "false_time").verdict) == "PASS"
    # What surrounds a call would explain the difference of the clocks; what must be moved does not fit into the time.
    found = of_kind(a_view(offer, clock=a_clock(call=3e-5, around=3e-5, share=0.2), describe=gpus), "false_time")
    assert str(found.verdict) == "FAIL"
    assert found.measure["faults"] == ["faster"]
    assert "2 times the NVLink bandwidth of H200, 450 GB/s" in found.claim
    assert found.measure["least_seconds_per_call"] == pytest.approx((1 << 23) / 900e9)


def test_what_bounds_a_call():
    trial = next(t for t, _ in timing.plan(a_scope(collective=("reduce",))))
    received = trial.call.count * 2
    assert limits(trial, 0, {}, None) == []
    assert limits(trial, 0, {}, 1e-5)[0].least == pytest.approx(1e-5 / 32)
    assert limits(trial, 1, {}, 1e-5) == []  # not the root: it receives nothing
    one = {"gpus": "0: NVIDIA A100-SXM4-80GB (0000:07:00.0)"}  # both ranks on one GPU: no link between them
    assert [row.least for row in limits(trial, 0, one, None)] == [pytest.approx(2 * received / (4 * 2.04e12))]
    other = {"gpus": "0: NVIDIA H100 80GB HBM3; 1: Some Other GPU"}
    assert limits(trial, 0, other, None) == []


# ---------------------------------------------------------------------------------------------------- through the command

CONFIG = """
title = "Time"
[[arm]]
name = "subject"
backend = "{backend}"
ranks = {ranks}
[sweep]
collective = ["all_reduce", "reduce_scatter"]
format = ["bfloat16"]
count = [1, 1026]
[probes]
run = ["timing"]
"""


def audit(folder, backend, ranks=4, here=HERE):
    """(exit code, the findings) of ``auditor run`` with a backend that may lie in the directory ``here``."""
    (folder / "c.toml").write_text(CONFIG.format(backend=backend, ranks=ranks))
    command = [sys.executable, "-m", "auditor", "run", "c.toml", "--out", "run"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(HERE), str(HERE.parent), *sys.path])}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)
    path = folder / "run" / "findings.json"
    assert path.exists(), done.stderr
    return done.returncode, json.loads(path.read_text())["findings"]


def failed(findings):
    return {found["kind"] for found in findings if found["verdict"] == "FAIL"}


OUTSIDE = {
    "TellsTime": set(),
    "TellsTooLittle": {"false_time"},
    "TellsTooMuch": {"false_time"},
    "ReturnsEarly": {"early_return"},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_subjects_from_outside(name, tmp_path):
    code, findings = audit(tmp_path, f"outside_subjects:{name}")
    assert failed(findings) == OUTSIDE[name], [found["claim"] for found in findings]
    assert code == (1 if OUTSIDE[name] else 0)
    assert {found["kind"] for found in findings} == {"early_return", "false_time"}
    if name == "ReturnsEarly":
        verified = subprocess.run([sys.executable, "-m", "auditor", "verify", tmp_path / "run"], check=False)
        assert verified.returncode == 0
        rows = next(found for found in findings if found["kind"] == "early_return")["evidence"]
        assert rows
        assert all(row["observed"] != row["expected"] for row in rows)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("backend", "kinds"), [("mpi", set()), ("outside_mpi:EarlyAndFalse", {"early_return", "false_time"})]
)
def test_real_mpi(backend, kinds, tmp_path):
    pytest.importorskip("mpi4py")
    code, findings = audit(tmp_path, backend, ranks=2)
    assert failed(findings) == kinds, [found["claim"] for found in findings]
    assert code == (1 if kinds else 0)
