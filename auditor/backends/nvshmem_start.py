"""NVSHMEM's library: loading it, starting it once a process, and what its status codes mean."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from typing import Any

from auditor.backends.cuda_device import first_line
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import World

NOT_SUPPORTED = 3
STATUSES = (  # nvshmemx_error.h
    "success",
    "invalid value",
    "out of memory",
    "not supported",
    "symmetry",
    "GPU not selected",
    "collective launch failed",
    "internal",
)
INSTALL = "pip install 'collective-rounding-auditor[nvshmem-cu13]' (or [nvshmem-cu12], as CuPy's CUDA is)"


@contextlib.contextmanager
def told(bindings: Any, version: str, what: str) -> Iterator[None]:
    """NVSHMEM's status codes become the auditor's errors."""
    try:
        yield
    except bindings.NVSHMEMError as error:
        status = int(getattr(error, "status", -1))
        name = STATUSES[status] if 0 <= status < len(STATUSES) else "unknown"
        words = f"NVSHMEM {version}: {what}: status {status} ({name})"
        raise (Unsupported if status == NOT_SUPPORTED else BackendError)(words) from error


def load_nvshmem() -> tuple[Any, Any]:
    """(``nvshmem.core``, ``nvshmem.bindings``) with the library loaded. Raises Unavailable."""
    try:
        import nvshmem.bindings as bindings
        import nvshmem.core as core

        core.get_version()
    except Exception as error:  # the bindings, cuda.core or the library: each fails in its own way
        raise Unavailable(f"nvshmem4py or NVSHMEM's library does not load ({first_line(error)})", INSTALL) from error
    return core, bindings


_started: list[tuple[int, int, int]] = []  # (rank, rank_n, device) that NVSHMEM was started with in this process


def start(core: Any, world: World, device: int) -> None:
    """Start NVSHMEM by an id that rank 0 makes; once a process, since it cannot start twice. It ends at interpreter exit.

    Raises ConfigError where it was started as another rank, and what the bindings raise.
    """
    import numpy as np
    from cuda.core import Device

    wanted = (world.local_ranks[0], world.rank_n, device)
    if _started:
        if _started[0] != wanted:
            raise ConfigError(f"NVSHMEM was started in this process as (rank, ranks, GPU) {_started[0]}, not {wanted}")
        return
    chosen = Device(device)
    chosen.set_current()
    uid = core.get_unique_id(empty=world.local_ranks[0] != 0)
    data = uid._data.view(np.int8)
    data[:] = np.frombuffer(world.control.broadcast(data.tobytes()), np.int8)
    core.init(device=chosen, uid=uid, rank=wanted[0], nranks=wanted[1], initializer_method="uid")
    _started.append(wanted)
    atexit.register(core.finalize)  # before MPI's own end, which was registered earlier
