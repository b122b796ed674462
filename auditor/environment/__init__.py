"""Provenance: versions, machine, GPUs, and the variables that steer the libraries. Imports no vendor library, records no secret.

Facts about GPUs come from the driver's management library, asked by a process of its own: a library that hangs or crashes there
costs a run nothing but the facts, and the record says so.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from typing import Any

from auditor.environment.gpus import GpuQuestion, ask, model_of, not_asked_here
from auditor.environment.machine import (
    cpu,
    first_line,
    iommu,
    memory_bytes,
    packages,
    source_commit,
    system,
    version_of,
)
from auditor.environment.variables import private, steering_variables

__all__ = [
    "GpuQuestion",
    "ask",
    "collect",
    "first_line",
    "iommu",
    "memory_bytes",
    "model_of",
    "not_asked_here",
    "packages",
    "private",
    "source_commit",
    "steering_variables",
    "system",
    "version_of",
]


def collect(environ: Mapping[str, str] | None = None, gpus: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything known of this process's surroundings, as JSON values; never raises for what is not there.

    ``gpus``: the answer to a question asked earlier (``ask().answer()``). Without one it is asked now: some 0.2 s where
    nvidia-ml-py is installed; the rest costs some 10 ms.
    """
    return {
        "auditor": {"version": version_of("collective-rounding-auditor"), "commit": source_commit()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": packages(),
        "system": system(),
        "cpu": cpu(),
        "memory_bytes": memory_bytes(),
        "iommu": iommu(),
        "gpus": dict(gpus) if gpus is not None else ask().answer(),
        "variables": steering_variables(os.environ if environ is None else environ),
    }
