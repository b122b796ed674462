"""Where the memory of a multimem call comes from, how ranks reach each other's, and how they wait for each other.

:class:`Fabric` is one process for all GPUs, with CUDA's own memory and loads from peers. The providers of a multicast pointer
(multimem_nccl, multimem_nvshmem, multimem_driver) replace what they bring: memory, the pointer, and NVSHMEM also the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from auditor.backends.cuda_device import ALIGNMENT, Lanes
from auditor.errors import BackendError, Unavailable
from auditor.model import Window, World

PEER_ACCESS_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled
Windows = Mapping[int, Window]


class Fabric:
    """Provider ``unicast``: plain device memory of every rank, read by its peers."""

    @classmethod
    def load(cls, cupy: Any) -> None:
        """Loads the provider's library, and nothing else. Raises Unavailable where it is missing."""

    def __init__(self, world: World, lanes: Lanes) -> None:  # noqa: ARG002  one process for all: the lanes are the world
        self.lanes = lanes
        self._here = {rank: lanes.cupy.cuda.Event(disable_timing=True) for rank in lanes}
        reach_peers(lanes)

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """Local rank -> 1-D uint8 CuPy array on its own GPU, 512-byte aligned."""
        return self.lanes.allocate(nbytes)

    def addresses(self, windows: Windows, members: Sequence[int]) -> tuple[int, ...]:
        """Where this process's kernels reach each member's window, in the order of ``members``."""
        return tuple(windows[rank].address for rank in members)

    def through_switch(self, window: Window) -> int:  # noqa: ARG002  the providers of a pointer know the window
        """The multicast address of the same bytes of all ranks; 0 where there is none."""
        return 0

    def meet(self, ranks: Sequence[int]) -> None:
        """What these ranks' streams do from here on begins when all of them have come so far. The host does not wait, and no
        kernel spins: ranks may share a GPU.
        """
        for rank in ranks:
            with self.lanes[rank].device:
                self._here[rank].record(self.lanes[rank].stream)
        for rank in ranks:
            with self.lanes[rank].device:
                for other in ranks:
                    if other != rank:
                        self.lanes[rank].stream.wait_event(self._here[other])

    def describe(self) -> dict[str, Any]:
        """Versions of what the memory comes from. JSON scalars."""
        return {}

    def close(self) -> None:
        """Frees what ``allocate`` gave; idempotent."""


class SwitchFabric(Fabric):
    """Memory that also stands behind a multicast address."""

    def __init__(self, world: World, lanes: Lanes) -> None:
        super().__init__(world, lanes)
        self.mapped: list[tuple[int, int, int]] = []  # local base, bytes, multicast base

    def through_switch(self, window: Window) -> int:
        """Raises BackendError where the window lies in no allocation."""
        for base, nbytes, multicast in self.mapped:
            if base <= window.address and window.address + window.nbytes <= base + nbytes:
                return multicast + window.address - base
        raise BackendError("a window lies in memory that allocate did not give")


def reach_peers(lanes: Lanes) -> None:
    """Let every device of these lanes load from the others. Raises Unavailable where the machine does not allow it."""
    runtime = lanes.cupy.cuda.runtime
    devices = {int(lanes[rank].device.id): lanes[rank] for rank in lanes}
    unreachable(lanes.cupy, devices)
    for number, lane in devices.items():
        for other in devices.keys() - {number}:
            with lane.device, lanes.speaking(f"peer access from GPU {number} to GPU {other}"):
                _once(runtime, lambda other=other: runtime.deviceEnablePeerAccess(other))  # type: ignore[misc]


def _once(runtime: Any, enable: Callable[[], None]) -> None:
    try:
        enable()
    except runtime.CUDARuntimeError as error:
        if error.status != PEER_ACCESS_ALREADY:  # another backend of this process did it before
            raise


def unreachable(cupy: Any, devices: Iterable[int]) -> None:
    """Raises Unavailable where two of these GPUs cannot load from each other."""
    numbers = sorted(set(devices))
    for one in numbers:
        for other in numbers:
            if one != other and not cupy.cuda.runtime.deviceCanAccessPeer(one, other):
                raise Unavailable(
                    f"GPU {one} cannot load from GPU {other}'s memory (no peer access)",
                    "name GPUs joined by NVLink in options.devices, or one GPU for all ranks",
                )


def aligned(address: int) -> int:
    """The same address. Raises BackendError where a provider's memory is not 512-byte aligned, as its pages should be."""
    if address % ALIGNMENT:
        raise BackendError(f"the provider's memory begins {address % ALIGNMENT} bytes past a multiple of {ALIGNMENT}")
    return address
