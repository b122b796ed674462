"""MPICH's bfloat16 ties, the whole way: a recorded run, its bundle, and reproduce.py under the library's own mpiexec."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed")

from evidence_cases import case, step
from test_evidence_bundle import auditor, findings, record, unzipped
from test_evidence_script import KINDS, RELATIONS, random_case

from auditor.evidence.script import script
from auditor.processes import mpiexec

pytestmark = pytest.mark.mpi

CONFIG = """
[[arm]]
name = "mpi"
backend = "mpi"
ranks = 3
[sweep]
format = ["bfloat16"]
count = [130]
shift = [0]
repeats = 2
seed = 7
[probes]
run = ["rounding"]
"""


def start(directory: Path, ranks: int) -> str:
    command = [*mpiexec({}), "-n", str(ranks), sys.executable, "reproduce.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs_mpich() -> None:
    from auditor.mpi_control import load_mpi

    if "MPICH Version" not in load_mpi().Get_library_version():
        pytest.skip("the library is not MPICH")


def test_mpichs_ties_reproduce_with_two_ranks_and_one_element(tmp_path: Path) -> None:
    needs_mpich()
    run_dir = record(tmp_path, CONFIG)
    assert next(one for one in findings(run_dir) if one.kind == "rounding_mode").measure["mode"] == "ties_to_away"
    assert auditor("evidence", run_dir, "-o", tmp_path / "x.zip") == 0  # no FAIL, but a known signature
    where = unzipped(tmp_path / "x.zip", tmp_path / "x")
    content = json.loads((where / "case.json").read_text())
    assert content["found"]["how"] == "live"
    assert (content["rank_n"], content["steps"][0]["count"]) == (2, 1)
    out = start(where, 2)
    assert "MPIX_BFLOAT16 | 2 ranks" in out
    assert "exact sum 257/256, rounded 0x3f80 (1), got 0x3f81 (1.0078125)  <--" in out
    assert out.rstrip().splitlines()[-1].startswith("REPRODUCED: 2 places")
    page = (where / "issue.md").read_text()
    assert "`MPI_Allreduce` with `MPI_SUM` of bfloat16 (`MPIX_BFLOAT16`)" in page
    assert "match MPICH's bfloat16 sum" in page
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert sum(entry.file_size for entry in archive.infolist()) < 1 << 20


@pytest.mark.parametrize(
    ("collective", "more"),
    [("reduce_scatter", {"in_place": True}), ("reduce", {"recv_shift": 2}), ("all_reduce", {"in_place": True})],
)
def test_the_script_watches_the_bytes_around_what_mpi_writes(
    tmp_path: Path, collective: str, more: dict[str, Any]
) -> None:
    one = random_case(3, collective, "binary16").steps[0]
    shift = {"recv_shift": one.send_shift} if more.get("in_place") else {}
    given = case(one.with_(**shift, **more))
    text = script(given, RELATIONS["bytes_outside"], KINDS["mpi"], "t", "o", "a byte was changed")
    (tmp_path / "reproduce.py").write_text(text)
    assert "NOT REPRODUCED: 0 places" in start(tmp_path, 3)


def test_a_wrong_number_of_ranks_is_told(tmp_path: Path) -> None:
    text = script(case(step([[1], [2]], fmt="binary32")), RELATIONS["not_rounded"], KINDS["mpi"], "t", "o", "w")
    (tmp_path / "reproduce.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "reproduce.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "start it with: mpiexec -n 2 python reproduce.py (now 1 ranks)" in done.stderr
