"""How the Numba twins are compiled: where the code is kept, and for which vectors. Importing this module imports
Numba.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config


def cache_directory() -> str:
    """Where compiled code is kept: NUMBA_CACHE_DIR, else the user's cache directory, else a private one below the
    temporary directory.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    private = Path(tempfile.gettempdir()) / f"auditor-{os.getuid()}"
    for path in (Path(base) / "collective-rounding-auditor" / "numba", private):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK) and path.stat().st_uid == os.getuid():
            return str(path)
    return tempfile.mkdtemp(prefix="auditor-numba-")


def _wide_vectors() -> None:
    """512-bit vectors where the processor has them: LLVM's default of 256 costs a quarter of the speed here."""
    llvm = importlib.import_module("llvmlite.binding")  # has no types
    features = llvm.get_host_cpu_features()
    if features.get("avx512bw"):
        _config.CPU_NAME = llvm.get_host_cpu_name()
        _config.CPU_FEATURES = features.flatten() + ",-prefer-256-bit"


if not _config.CACHE_DIR:
    _config.CACHE_DIR = cache_directory()

if not (_config.CPU_NAME or _config.CPU_FEATURES):
    _wide_vectors()


def jit(function: Any) -> Any:
    """Compiled, kept on disk, holding no lock while it runs. The first call with new types compiles."""
    return numba.njit(function, cache=True, nogil=True, error_model="numpy", boundscheck=False)
