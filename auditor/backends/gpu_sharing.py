"""Several ranks on one GPU: which ranks share which, and what such a run cannot show.

A library may serve it (NCCL from 2.30 on, NVSHMEM under MPS); order, rounding and the code of algorithm and protocol are then its
own, but no link between GPUs is touched, so every description says how many ranks share.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from auditor.model import World

BOOT = Path("/proc/sys/kernel/random/boot_id")
MPS_PIPES = "/tmp/nvidia-mps"  # where the daemon is reached unless CUDA_MPS_PIPE_DIRECTORY says otherwise


def most_on_one(gpus: Iterable[Hashable]) -> int:
    """How many ranks the busiest GPU has. ``gpus``: one entry a rank."""
    return max(Counter(gpus).values(), default=0)


def gpus_of_ranks(cupy: Any, world: World, devices: Mapping[int, int]) -> dict[int, str]:
    """Rank -> its GPU as host and PCI address, of every rank. Device numbers do not tell: each process may see another selection.

    ``devices``: this process's ranks and their device numbers. Collective over all processes.
    """
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    address = cupy.cuda.runtime.deviceGetPCIBusId
    mine = {rank: f"{socket.gethostname()} {boot} {address(number)}" for rank, number in devices.items()}
    everyone = world.control.all_gather(json.dumps(mine).encode())
    return {int(rank): gpu for one in everyone for rank, gpu in json.loads(one).items()}


def mps_runs(environ: Mapping[str, str]) -> bool:
    """Whether CUDA's Multi-Process Service is reachable: without it the kernels of several processes take turns on a GPU."""
    return (Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES) / "control").exists()


def widen_queues(environ: MutableMapping[str, str]) -> None:
    """Let a GPU take up 32 streams of this process side by side; to be called before its CUDA context is made.

    The kernels of ranks that share a GPU wait for each other. By default it has 8 work queues, and a library has streams of its
    own: two ranks in one queue, where the second starts when the first has ended, would never end.
    """
    environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def described(most: int, process_model: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What ``describe`` says of it: ``ranks_per_gpu``, and where that is more than one, the ``limits`` of all findings."""
    if most < 2:
        return {"ranks_per_gpu": most}
    turns = "" if process_model == "all" or mps_runs(environ) else ", whose processes took turns on it (no MPS)"
    limits = (
        f"One GPU served {most} ranks{turns}: order, rounding at each hop and the code of algorithm and protocol are the "
        "library's own, but no NVLink, NVSwitch or network lay between those ranks."
    )
    return {"ranks_per_gpu": most, "limits": limits}
