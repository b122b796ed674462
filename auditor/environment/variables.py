"""The variables that steer the audited libraries, and what is kept out of a record that strangers will read.

A name that speaks of a key, token, password or the like is left out together with its value; inside values, credentials of URLs,
settings of that kind and well-known shapes of access tokens are replaced, and so are home directories and the user's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_PREFIXES = """
    NCCL_ NVSHMEM_ CUDA_ CUPY_ NVIDIA_ TORCH_ PYTORCH_ GLOO_
    MPICH_ MPIR_CVAR_ MPIEXEC_ HYDRA_ MPI4PY_ MV2_ I_MPI_
    OMPI_MCA_ OMPI_COMM_WORLD_ PMIX_MCA_ PRTE_MCA_ OPAL_ HCOLL_ SHARP_
    UCX_ UCC_ FI_ PSM2_ PSM3_ IBV_ RDMAV_ MLX5_
    OMP_ KMP_ NUMBA_ HDF5_ AUDITOR_
    """
_SLURM = """
    CPUS_ON_NODE CPUS_PER_TASK CPU_BIND CPU_BIND_TYPE DISTRIBUTION GPUS GPUS_ON_NODE GPUS_PER_NODE
    GPUS_PER_TASK GPU_BIND GTIDS JOB_NUM_NODES JOB_PARTITION LOCALID MEM_BIND MPI_TYPE NNODES
    NODEID NODELIST NPROCS NTASKS NTASKS_PER_NODE PROCID STEP_NODELIST STEP_NUM_TASKS
    STEP_TASKS_PER_NODE TASKS_PER_NODE TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN
    """
PREFIXES = tuple(_PREFIXES.split())
NAMES = frozenset(f"SLURM_{name}" for name in _SLURM.split()) | {
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
}
# What Open MPI's and PMIx's launchers tell the processes of one job: addresses, job numbers, session folders, and the key with
# which its transports know each other. None of it is a setting.
JOB = re.compile(
    r"OMPI_MCA_(orte_|ess(_|$)|pmix$|prte_|initial_wdir|opal_|grpcomm|schizo)|OMPI_MCA_shmem_RUNTIME|PMIX_(SERVER|RANK|NAMESPACE|HOSTNAME)"
    r"|PRTE_MCA_(prte_|ess|pmix)"
)
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|SIGNATURE|COOKIE|PRIVATE", re.IGNORECASE)
SETTING = re.compile(rf"(\w*(?:{SECRET.pattern})\w*[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^,;&\s]+)", re.IGNORECASE)
SCHEME = re.compile(r"\b(Bearer|Basic)\s+[\w.+/=~-]{6,}", re.IGNORECASE)
TOKEN = re.compile(  # of source hosts, model hubs, cloud accounts and chat services, and signed web tokens
    r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{8,}"
    r"|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*)"
)


def steering_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what a library does, sorted; never one whose name or value may hold a secret or a user's home,
    and nothing that a launcher tells its own job alone.
    """
    kept = {name: value for name, value in environ.items() if name.startswith(PREFIXES) or name in NAMES}
    return {
        name: private(value) for name, value in sorted(kept.items()) if not SECRET.search(name) and not JOB.match(name)
    }


def private(text: str) -> str:
    """``text`` with home directories and the user's name replaced, and without what looks like a secret inside a value."""
    text = re.sub(r"(://)[^/@\s]+@", r"\1", text)
    text = SCHEME.sub(r"\1 ...", text)
    text = SETTING.sub(r"\1...", text)
    text = TOKEN.sub("...", text)
    home = os.path.expanduser("~")
    if len(home) > 1:
        text = text.replace(home, "~")
    text = re.sub(r"(/home/|/Users/|/users/)[^/:,\s]+", r"\1USER", text)
    user = os.environ.get("USER", "")
    return re.sub(rf"\b{re.escape(user)}\b", "USER", text) if len(user) > 2 and user != "root" else text
