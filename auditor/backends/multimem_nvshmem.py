"""Provider ``nvshmem``: the symmetric heap, its multicast address (nvshmemx_mc_ptr) and barriers on a stream; one process a GPU.

Never run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from auditor.backends.cuda_device import ALIGNMENT, Lanes
from auditor.backends.multimem_fabric import SwitchFabric, Windows
from auditor.backends.nvshmem_start import load_nvshmem, start, told
from auditor.errors import BackendError, Unavailable
from auditor.model import World

TEAM_WORLD = 0


class NvshmemFabric(SwitchFabric):
    """Memory, pointers and barriers of NVSHMEM; the calls are ours."""

    @classmethod
    def load(cls, cupy: Any) -> None:  # noqa: ARG003  NVSHMEM needs no CuPy to be loaded
        load_nvshmem()

    def __init__(self, world: World, lanes: Lanes) -> None:
        super().__init__(world, lanes)
        core, self._bindings = load_nvshmem()
        self._rank = world.local_ranks[0]
        self._lane = lanes[self._rank]
        self.version = str(core.get_version().libnvshmem_version)
        with told(self._bindings, self.version, "start"):
            start(core, world, int(self._lane.device.id))
        self._heap: list[int] = []

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """As Fabric.allocate, on the symmetric heap. Collective. Raises Unavailable where the heap has no multicast address."""
        with self._lane.device, told(self._bindings, self.version, f"allocation of {nbytes} bytes"):
            given = int(self._bindings.malloc(nbytes + ALIGNMENT))
        if not given:
            raise BackendError(
                f"NVSHMEM {self.version}: the symmetric heap has no {nbytes} bytes; set NVSHMEM_SYMMETRIC_SIZE"
            )
        self._heap.append(given)
        address = given + -given % ALIGNMENT  # heaps begin alike, so every PE skips the same
        through = int(self._bindings.mc_ptr(TEAM_WORLD, address))
        if not through:
            raise Unavailable(
                f"NVSHMEM {self.version} gives no multicast address",
                "it needs NVLink SHARP and every GPU of one NVLink domain",
            )
        self.mapped.append((address, nbytes, through))
        return {self._rank: self.lanes.view(self._lane, address, nbytes, self)}

    def addresses(self, windows: Windows, members: Sequence[int]) -> tuple[int, ...]:
        """Every PE's own bytes at the same place of its heap. Raises BackendError where one cannot be reached by loads."""
        own = windows[self._rank].address
        found = tuple(own if rank == self._rank else int(self._bindings.ptr(own, rank)) for rank in members)
        if not all(found):
            raise BackendError(
                f"NVSHMEM {self.version}: rank {members[found.index(0)]} cannot be reached by loads from here"
            )
        return found

    def meet(self, ranks: Sequence[int]) -> None:  # noqa: ARG002  all PEs meet
        with self._lane.device, told(self._bindings, self.version, "barrier"):
            self._bindings.barrier_all_on_stream(self._lane.stream.ptr)

    def describe(self) -> dict[str, Any]:
        return {"nvshmem": self.version}

    def close(self) -> None:
        heap, self._heap = self._heap, []
        with self._lane.device, told(self._bindings, self.version, "release of the symmetric heap"):
            for address in heap:
                self._bindings.free(address)
