"""The whole way, with backends from outside the package: each fault is named by its kind, and by no wrong FAIL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONFIG = """
title = "A subject from outside"
[[arm]]
name = "subject"
backend = "outside_subjects:Clean"
ranks = 4
[sweep]
collective = ["all_reduce"]
format = ["bfloat16"]
count = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1021, 1026, 4099]
shift = [0, 1, 3]
repeats = 3
seed = 7
[expect]
rounding_mode = "ties_to_even"
[probes]
run = ["coverage", "rounding", "repeatability", "placement", "tail"]
"""

CASES = {  # class: (kinds that must FAIL, kinds that may FAIL as well since they are true of it too)
    "Clean": ((), ()),
    "Truncates": (("rounding_mode",), ()),
    "LeavesTail": (("unwritten",), ()),
    "WritesPast": (("overrun",), ()),
    "ReadsPast": (("foreign_read",), ()),
    "Disagrees": (("rank_disagreement",), ()),
    "FlipsEveryTenth": (("not_repeatable",), ("wrong_value",)),
    "Aborts": (("crash",), ()),
    "LeavesEarly": (("crash",), ()),
    "Raises": (("backend_error",), ()),
    "DropsRank": (("missing_term",), ()),
    "CountsTwice": (("duplicate_term",), ()),
    "UsesStale": (("stale_term",), ("not_repeatable",)),
    "AddsToPrefill": (("prefill_leak",), ()),
    "ScratchesInput": (("send_modified",), ()),
}


def audit(folder: Path, name: str, *more: str) -> tuple[int, dict, str]:
    config = folder / "subject.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "auditor", "run", str(config), "--backend", f"outside_subjects:{name}"]
    done = subprocess.run(
        [*command, "--out", str(folder / "run"), *more],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    path = folder / "run" / "findings.json"
    return done.returncode, json.loads(path.read_text()) if path.exists() else {}, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_named_by_its_kind_and_by_no_other(name, tmp_path):
    must, may = CASES[name]
    code, content, _ = audit(tmp_path, name)
    failed = {finding["kind"] for finding in content["findings"] if finding["verdict"] == "FAIL"}
    assert set(must) <= failed <= set(must) | set(may)
    assert code == content["exit_code"] == (1 if must else 0)
    if name == "Truncates":  # from a binary32 sum: the mode is named, what binary32 cannot hold is told apart
        modes = [f["measure"]["mode"] for f in content["findings"] if f["kind"] == "rounding_mode"]
        assert modes == ["toward_zero"]
        assert [f["verdict"] for f in content["findings"] if f["kind"] == "double_rounding"] == ["INFORMATION"]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_unwritten_elements_are_left_out_of_every_other_probe_in_place_too(tmp_path):
    code, content, _ = audit(tmp_path, "SkipsOddStarts", "--set", "sweep.in_place=[false, true]")
    worse = {finding["kind"] for finding in content["findings"] if finding["verdict"] in ("FAIL", "INFORMATION")}
    assert worse == {"unwritten"}
    assert code == 1


def test_a_flipped_bit_names_the_rank_and_no_place_that_it_came_from(tmp_path):
    _, content, _ = audit(tmp_path, "FlipsOneBit", "--set", "sweep.count=[1026]")
    failed = {finding["kind"]: finding for finding in content["findings"] if finding["verdict"] == "FAIL"}
    assert set(failed) == {"wrong_value", "rank_disagreement"}
    assert failed["rank_disagreement"]["measure"]["suspect_ranks"].keys() == {"1"}
    assert "elements away" not in failed["wrong_value"]["claim"]


def test_an_endless_wait_is_a_hang_and_the_other_counts_are_still_judged(tmp_path):
    code, content, _ = audit(tmp_path, "WaitsForever", "--hang-budget", "6")
    failed = [finding for finding in content["findings"] if finding["verdict"] == "FAIL"]
    assert [finding["kind"] for finding in failed] == ["hang"]
    assert failed[0]["scope"]["count"] == 1021
    assert code == 1
    passed = {finding["kind"] for finding in content["findings"] if finding["verdict"] == "PASS"}
    assert {"unwritten", "not_repeatable"} <= passed


def test_a_kill_from_outside_is_the_machinery_s_and_can_be_resumed(tmp_path):
    code, content, words = audit(tmp_path, "KilledFromOutside")
    assert code == 3
    assert "SIGKILL" in words
    assert "--resume" in words
    assert not [finding for finding in content["findings"] if finding["kind"] == "crash"]
    assert content["arms"][0]["status"] == "failed"


def test_a_backend_that_is_not_there_is_named_and_nothing_takes_its_place(tmp_path):
    code, content, words = audit(tmp_path, "NoSuchClass")
    assert code in (2, 3)
    assert "NoSuchClass" in words
    assert not content
