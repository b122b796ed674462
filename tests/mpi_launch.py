"""Starts real MPI processes for a test, and skips where there is no MPI."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "mpi_programs"
STEERING = ("MPIR_CVAR_", "OMPI_", "I_MPI_", "PMI_", "PMIX_", "SLURM_")


def mpiexec(n, program, *arguments, **environ):
    """The finished process of ``mpiexec -n N python program arguments`` with only ``environ`` to steer the library."""
    pytest.importorskip("mpi4py")
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(STEERING)}
    command = [launcher, "-n", str(n), sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(
        command, env={**inherited, **environ}, capture_output=True, text=True, timeout=120, check=False
    )


def drive(directory, n, calls, options=None, fail_on_rank=None, **environ):
    """What every rank saw of ``calls`` (see mpi_programs/drive.py)."""
    job, seen = directory / "job.json", directory / "seen.json"
    job.write_text(json.dumps({"options": options or {}, "calls": calls, "fail_on_rank": fail_on_rank}))
    done = mpiexec(n, PROGRAMS / "drive.py", job, seen, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(seen.read_text())
