"""The machine and the software on it: operating system, processor, memory, input-output translation, packages, source commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = """
    numpy h5py numba llvmlite ml-dtypes torch mpi4py mpich openmpi impi-rt
    cupy-cuda12x cupy-cuda13x cuda-core cuda-bindings cuda-pathfinder cuda-python nvidia-ml-py
    nccl4py nvidia-nccl-cu12 nvidia-nccl-cu13
    nvshmem4py-cu12 nvshmem4py-cu13 nvidia-nvshmem-cu12 nvidia-nvshmem-cu13
    nvidia-cuda-runtime nvidia-cuda-runtime-cu12 nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12 nvidia-nvjitlink nvidia-nvjitlink-cu12
    """
PACKAGES = tuple(_PACKAGES.split())
IOMMU, GROUPS, COMMAND_LINE = Path("/sys/class/iommu"), Path("/sys/kernel/iommu_groups"), Path("/proc/cmdline")


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


def iommu(units: Path = IOMMU, groups: Path = GROUPS, command_line: Path = COMMAND_LINE) -> dict[str, Any]:
    """Whether device addresses are translated, which peer-to-peer copies over PCIe depend on.

    ``units``: translation units that the kernel drives; ``groups``: device groups by type (``identity`` is no translation);
    ``command_line``: the kernel's settings that speak of it. An entry that the system does not show is ``not shown``.
    """
    words = (first_line(command_line) or "").split()
    return {
        "units": _names(units),
        "groups": _group_types(groups),
        "command_line": [word for word in words if "iommu" in word] if words else "not shown",
    }


def _names(folder: Path) -> list[str] | str:
    try:
        return sorted(one.name for one in folder.iterdir())
    except OSError:
        return "not shown"


def _group_types(groups: Path) -> dict[str, int] | str:
    try:
        kinds = [first_line(one / "type") or "unknown" for one in groups.iterdir()]
    except OSError:
        return "not shown"
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def packages() -> dict[str, str]:
    """Installed versions, of the packages that matter, by their metadata."""
    return {name: found for name in PACKAGES if (found := version_of(name))}


def version_of(package: str) -> str | None:
    """Installed version by its metadata; the package is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """Commit of the source tree this runs from, "+" where tracked files differ from it; None where there is no git checkout."""
    root = Path(__file__).resolve().parents[2]
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


def cpu() -> dict[str, Any]:
    """The processor's own name for itself, how many there are, and how many this process may use."""
    return {"model": cpu_model(), "count": os.cpu_count(), "usable": usable_cpus()}


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
