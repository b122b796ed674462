"""One process a rank without MPI: control over socket pairs, and the supervisor's words on every way to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from spawned_kit import conform

from auditor.socket_control import SocketControl, star

HERE = Path(__file__).parent
CONFIG = """
title = "Ranks without MPI"
[[arm]]
name = "subject"
backend = "outside_spawned:Gathers"
ranks = 3
[sweep]
format = ["bfloat16"]
count = [1, 1026]
shift = [0]
repeats = 2
[probes]
run = ["coverage"]
"""


def on_every_rank(size, body):
    """Each rank's result of ``body(control)``, in threads."""
    ends, _ = star(size)
    controls = [SocketControl(rank, size, mine) for rank, mine in enumerate(ends)]
    results = [None] * size

    def run(rank):
        results[rank] = body(controls[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for control in controls:
        control.close()
        control.close()
    return results


@pytest.mark.parametrize("size", [1, 2, 5])
def test_control(size):
    def body(control):
        whole = control.all_gather(b"x" * (100_000 * control.rank))
        control.barrier()
        said = [control.broadcast(f"{control.rank}".encode(), root) for root in range(size)]
        return [len(part) for part in whole], said

    lengths, said = [100_000 * rank for rank in range(size)], [str(root).encode() for root in range(size)]
    assert on_every_rank(size, body) == [(lengths, said)] * size


def audit(folder, name, *more):
    (folder / "c.toml").write_text(CONFIG.replace("Gathers", name))
    command = [sys.executable, "-m", "auditor", "run", "c.toml", "--out", "run", *more]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    environ["AUDITOR_MPIEXEC"] = "/no/such/mpiexec"  # nothing here may want one
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    path = folder / "run" / "findings.json"
    return done.returncode, json.loads(path.read_text())["findings"] if path.exists() else [], done.stderr


ENDINGS = {  # class: (exit code, kind, a part of the claim, ranks of its evidence)
    "Gathers": (0, "", "", []),
    "Aborts": (1, "crash", "died by SIGABRT inside the call", [1]),
    "LeavesEarly": (1, "crash", "left early with exit status 0 inside the call", [2]),
    "Waits": (1, "hang", "no return from call", [0]),
    "Raises": (1, "backend_error", "no more of this", [1]),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_way_to_end(name, tmp_path):
    code, kind, words, ranks = ENDINGS[name]
    found, findings, said = audit(tmp_path, name, "--hang-budget", "4")
    assert found == code, said
    failed = [one for one in findings if one["verdict"] == "FAIL"]
    assert [one["kind"] for one in failed] == ([kind] if kind else [])
    for one in failed:
        assert words in one["claim"]
        assert set(ranks) <= {row["rank"] for row in one["evidence"]}
        assert one["scope"]["count"] == 1026
    assert any(one["kind"] == "unwritten" and one["verdict"] == "PASS" for one in findings)


def test_the_kit_takes_such_a_backend():
    assert conform("outside_spawned:Gathers", {}, 3, "calls", "probe", "arrays") == []
