"""Provenance: versions, machine, and the variables that steer the libraries. Imports no vendor library, records no secret.

A name that speaks of a key, token, password or the like is left out together with its value, and home directories and user
names are replaced, so that a recorded run can be handed to a stranger.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIXES = (
    *(
        "NCCL_",
        "NVSHMEM_",
        "MPIR_CVAR_",
        "MPICH_",
        "MPIEXEC_",
        "HYDRA_",
        "OMPI_MCA_",
        "OMPI_COMM_WORLD_",
        "PMIX_MCA_",
        "PRTE_MCA_",
    ),
    *(
        "I_MPI_",
        "FI_",
        "UCX_",
        "UCC_",
        "CUDA_",
        "TORCH_",
        "OMP_",
        "KMP_",
        "NUMBA_",
        "MPI4PY_",
        "HDF5_",
        "AUDITOR_",
        "OPAL_",
    ),
)
NAMES = frozenset(
    f"SLURM_{name}"
    for name in (
        *(
            "CPUS_ON_NODE",
            "CPUS_PER_TASK",
            "CPU_BIND",
            "CPU_BIND_TYPE",
            "DISTRIBUTION",
            "GPUS",
            "GPUS_ON_NODE",
            "GPUS_PER_NODE",
        ),
        *(
            "GPUS_PER_TASK",
            "GPU_BIND",
            "GTIDS",
            "JOB_NUM_NODES",
            "JOB_PARTITION",
            "LOCALID",
            "MEM_BIND",
            "MPI_TYPE",
            "NNODES",
        ),
        *("NODEID", "NODELIST", "NPROCS", "NTASKS", "NTASKS_PER_NODE", "PROCID", "STEP_NODELIST", "STEP_NUM_TASKS"),
        *("STEP_TASKS_PER_NODE", "TASKS_PER_NODE", "TOPOLOGY_ADDR", "TOPOLOGY_ADDR_PATTERN"),
    )
) | {"LD_PRELOAD", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)

PACKAGES = (
    *("numpy", "h5py", "numba", "mpi4py", "mpich", "openmpi", "impi-rt", "ml-dtypes", "torch"),
    *("cupy-cuda12x", "cupy-cuda13x", "nccl4py", "nvshmem4py-cu12", "nvshmem4py-cu13", "cuda-core", "cuda-bindings"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"),
)


def steering_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what a library does, sorted; never one whose name or value may hold a secret or a user's home."""
    kept = {name: value for name, value in environ.items() if name.startswith(PREFIXES) or name in NAMES}
    return {name: private(value) for name, value in sorted(kept.items()) if not SECRET.search(name)}


def private(text: str) -> str:
    """``text`` with home directories and the user's name replaced, and without what looks like a secret inside a value."""
    text = re.sub(r"(://)[^/@\s]+@", r"\1", text)
    text = re.sub(rf"(\w*(?:{SECRET.pattern})\w*\s*[=:])[^,;&\s]+", r"\1...", text, flags=re.IGNORECASE)
    home = os.path.expanduser("~")
    if len(home) > 1:
        text = text.replace(home, "~")
    text = re.sub(r"(/home/|/Users/|/users/)[^/:,\s]+", r"\1USER", text)
    user = os.environ.get("USER", "")
    return re.sub(rf"\b{re.escape(user)}\b", "USER", text) if len(user) > 2 and user != "root" else text


def collect(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything known of this process's surroundings, as JSON values. Costs some 10 ms; never raises for what is not there."""
    return {
        "auditor": {"version": version_of("collective-rounding-auditor"), "commit": source_commit()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version_of(name))},
        "system": system(),
        "cpu": {"model": cpu_model(), "count": os.cpu_count(), "usable": usable_cpus()},
        "memory_bytes": memory_bytes(),
        "gpus": gpus(),
        "variables": steering_variables(os.environ if environ is None else environ),
    }


def system() -> dict[str, str]:
    """Operating system, kernel, machine type, host name and C library."""
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        release = ""
    libc = " ".join(platform.libc_ver()).strip()
    return {
        "os": release or platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "host": platform.node(),
        "libc": libc,
    }


def gpus() -> dict[str, Any]:
    """What is known of the GPUs: only what the driver says in /proc. The management library is not asked."""
    driver = Path("/proc/driver/nvidia/version")
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    known = {"driver": first_line(driver), "models": [model_of(card) for card in cards]}
    return {**{key: value for key, value in known.items() if value}, "management_library": "not asked"}


def model_of(card: Path) -> str:
    """The model line of one GPU's information file."""
    try:
        found = re.search(r"^Model:\s*(.+)$", card.read_text(), re.MULTILINE)
    except OSError:
        return "unreadable"
    return found.group(1).strip() if found else "unknown"


def version_of(package: str) -> str | None:
    """Installed version by its metadata; the package is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """Commit of the source tree this runs from, "+" where tracked files differ from it; None where there is no git checkout."""
    root = Path(__file__).resolve().parent.parent
    if shutil.which("git") is None or not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()


def cpu_model() -> str:
    """The processor's own name for itself."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def usable_cpus() -> int | None:
    """Processors that this process may use; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def memory_bytes() -> int | None:
    """Physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def first_line(path: Path) -> str | None:
    """First line of a small text file; None where it cannot be read."""
    try:
        return path.read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None
