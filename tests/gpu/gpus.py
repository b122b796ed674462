"""What the GPU tests share: how many GPUs there are, and running a program of theirs, alone or under mpiexec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from auditor.errors import Unavailable
from auditor.processes import arm_environment, mpiexec

HERE = Path(__file__).parent
LIMIT = 240  # seconds that one program may take; NVSHMEM's block kernels compile for a minute


def gpu_count():
    """GPUs that this process sees; 0 where CuPy, the driver or the GPUs are missing."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return 0


GPU_N = gpu_count()
needs_gpu = pytest.mark.skipif(GPU_N < 1, reason="needs CuPy and an NVIDIA GPU")
needs_two = pytest.mark.skipif(GPU_N < 2, reason=f"needs two GPUs, there are {GPU_N}")


def run_program(name, *arguments, ranks=0, env=None):
    """The finished program; ``ranks`` > 0: under mpiexec, or skipped where there is none."""
    command = [sys.executable, str(HERE / name), *arguments]
    if ranks:
        pytest.importorskip("mpi4py")
        try:
            command = [*mpiexec({}), "-n", str(ranks), *command]
        except Unavailable as error:
            pytest.skip(str(error))
    environ = {**arm_environment(env or {}), "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path])}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=LIMIT, check=False)


def conform(backend, options, *checks, ranks=0, env=None):
    """The conformance kit's lines, from every rank, in processes of their own: a library may end the process it is in."""
    done = run_program("conform.py", backend, json.dumps(options), *checks, ranks=ranks, env=env)
    answers = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("kit: ")]
    assert len(answers) == max(ranks, 1), f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return [line for answer in answers for line in answer]
