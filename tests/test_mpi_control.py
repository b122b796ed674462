"""Who launched this process, how MPI starts, and that several singletons are told so. No mpiexec here but where marked."""

import os
import subprocess
import sys

import pytest
from mpi_launch import PROGRAMS, mpiexec

from auditor.errors import ConfigError, Unavailable
from auditor.mpi_control import check_world, launcher_rank_and_size, load_mpi

SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4, "mpiexec (PMI)")),
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "one", "PMI_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3, "Open MPI mpirun")),
        ({"PMIX_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3, "Open MPI mpirun")),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, (0, 2, "MVAPICH mpirun")),
        (SRUN, (5, 8, "srun")),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "6"}, (5, 6, "srun")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # sbatch or salloc without a step
        ({**SRUN, "SLURM_STEP_ID": "4294967291"}, None),  # the batch script's own step
        ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, "mpiexec (PMI)")),  # mpiexec inside a Slurm job
    ],
)
def test_launcher_variables(environ, expected):
    assert launcher_rank_and_size(environ) == expected


def test_singletons_are_told_loudly():
    with pytest.raises(ConfigError) as caught:
        check_world(1, "MPICH 5.0.2", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"})
    for part in (
        "Open MPI mpirun started 4 processes",
        "all 4 processes believe to be rank 0 of 1",
        "MPI4PY_LIBMPI",
        "mpiexec",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_world_that_any_launcher_promises_is_accepted():
    check_world(1, "MPI", {})
    check_world(4, "MPI", {"PMI_RANK": "0", "PMI_SIZE": "4"})
    check_world(2, "MPI", {**SRUN, "PMI_RANK": "0", "PMI_SIZE": "2"})
    with pytest.raises(ConfigError, match="started 4 processes, but MPI sees a world of 2;"):
        check_world(2, "MPI", {"PMI_RANK": "0", "PMI_SIZE": "4"})


def test_without_mpi4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(Unavailable, match="mpi4py cannot be imported") as caught:
        load_mpi()
    assert "pip install mpi4py" in caught.value.remedy


def run_python(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.mpi
def test_a_library_that_does_not_load_is_unavailable(tmp_path):
    code = "from auditor.backends.mpi import MpiBackend; MpiBackend.probe({})"
    done = run_python(code, MPI4PY_LIBMPI=str(tmp_path / "libmpi.so.12"))
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("auditor.errors.Unavailable: mpi4py found no MPI library that loads")
    assert "MPI4PY_LIBMPI=" in last


@pytest.mark.mpi
def test_probe_starts_nothing_and_leaves_mpi4py_settings_alone():
    code = """
import sys
from auditor.backends.mpi import MpiBackend
assert not any(name.startswith("mpi4py") for name in sys.modules)
print(sorted(MpiBackend.probe({}).formats))
import mpi4py
from mpi4py import MPI
assert not MPI.Is_initialized()
assert mpi4py.rc.initialize is True
from auditor.mpi_control import start_mpi
assert start_mpi() is MPI and MPI.Is_initialized() and start_mpi() is MPI
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "binary32" in done.stdout
    assert "binary64" in done.stdout


@pytest.mark.mpi
def test_mpi_does_not_start_twice():
    done = run_python(
        "from auditor.mpi_control import start_mpi\nstart_mpi().Finalize()\nstart_mpi()",
    )
    assert done.stderr.strip().splitlines()[-1].startswith("auditor.errors.ConfigError: MPI was already finalised")


@pytest.mark.mpi
def test_a_foreign_launchers_process_refuses_to_be_rank_0_of_1():
    code = "from auditor.mpi_control import MpiControl\nMpiControl()"
    done = run_python(code, OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4")
    assert done.returncode != 0
    assert "believe to be rank 0 of 1" in done.stderr


@pytest.mark.mpi
def test_one_failing_rank_ends_the_job():
    done = mpiexec(3, PROGRAMS / "one_raises.py")
    assert done.returncode == ConfigError.exit_code
    assert "planted failure" in done.stderr


@pytest.mark.mpi
def test_a_world_of_another_size_is_a_launcher_mismatch():
    done = mpiexec(2, PROGRAMS / "wrong_world.py")
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert "the arm has 3 ranks, but MPI" in lines[0].replace("MPICH", "MPI")
    assert "started 2 processes" in lines[0]
    assert "mpiexec -n 3" in lines[0]
    assert "told ranks (1,)" in lines[1]
    assert "calls it rank 0" in lines[1]
