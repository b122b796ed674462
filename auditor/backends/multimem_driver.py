"""Provider ``driver``: CUDA's own sequence for a multicast object, one process for all GPUs. Never run on hardware.

cuMulticastCreate, then cuMulticastAddDevice of every GPU, then memory of each (cuMemCreate) bound to it, then two mappings a
rank: of its memory, which every GPU may load from, and of the object, through which it reaches all. All is undone in reverse.
Source: CUDA driver API reference, "Multicast Object Management" and "Virtual Memory Management".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from auditor.backends.cuda_device import Lanes, first_line
from auditor.backends.multimem_fabric import SwitchFabric
from auditor.errors import BackendError, Unavailable
from auditor.model import World
from auditor.multicast import must_be_allowed

INSTALL = "pip install cuda-bindings, of the CUDA that CuPy is for (it comes with the extras cuda12 and cuda13)"


def load_driver() -> Any:
    """``cuda.bindings.driver``. Raises Unavailable."""
    try:
        from cuda.bindings import driver
    except Exception as error:
        raise Unavailable(f"cuda.bindings cannot be imported ({first_line(error)})", INSTALL) from error
    return driver


class DriverFabric(SwitchFabric):
    """Memory of cuMemCreate, bound to multicast objects of this process's own making."""

    @classmethod
    def load(cls, cupy: Any) -> None:  # noqa: ARG003  the bindings need no CuPy
        load_driver()

    def __init__(self, world: World, lanes: Lanes) -> None:
        super().__init__(world, lanes)
        self._driver = load_driver()
        self._undo: list[Callable[[], None]] = []

    def _call(self, name: str, *arguments: Any) -> Any:
        """A driver call's value. Raises BackendError with the status' name."""
        status, *values = getattr(self._driver, name)(*arguments)
        if int(status):
            raise BackendError(f"{name}: {getattr(status, 'name', status)}")
        return values[0] if values else None

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """As Fabric.allocate: on each GPU memory bound to one multicast object."""
        must_be_allowed(os.environ)
        numbers = {rank: int(self.lanes[rank].device.id) for rank in self.lanes}
        size, grain = self._size(nbytes, list(numbers.values()))
        whole = self._object(size, list(numbers.values()))
        arrays = {}
        for rank, number in numbers.items():
            with self.lanes[rank].device:
                memory = self._memory(whole, size, number)
                own = self._map(memory, size, grain, list(numbers.values()))
            arrays[rank] = self.lanes.view(self.lanes[rank], own, nbytes, self)
            self.mapped.append((own, nbytes, 0))
        for place, (rank, number) in zip(range(-len(numbers), 0), numbers.items(), strict=True):
            with self.lanes[rank].device:  # the object may be mapped once every GPU's memory is bound
                own, _, _ = self.mapped[place]
                self.mapped[place] = own, nbytes, self._map(whole, size, grain, [number])
        return arrays

    def _size(self, nbytes: int, numbers: list[int]) -> tuple[int, int]:
        """(bytes to ask for, granularity of all mappings)."""
        driver = self._driver
        kind = driver.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_RECOMMENDED
        grain = int(self._call("cuMulticastGetGranularity", self._wanted(nbytes, len(numbers)), kind))
        plain = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        for number in numbers:
            grain = max(grain, int(self._call("cuMemGetAllocationGranularity", self._placed(number), plain)))
        return -(-nbytes // grain) * grain, grain

    def _wanted(self, nbytes: int, n: int) -> Any:
        wanted = self._driver.CUmulticastObjectProp()
        wanted.numDevices, wanted.size, wanted.handleTypes, wanted.flags = n, nbytes, 0, 0
        return wanted

    def _placed(self, number: int) -> Any:
        placed = self._driver.CUmemAllocationProp()
        placed.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        placed.location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        placed.location.id = number
        return placed

    def _object(self, size: int, numbers: list[int]) -> Any:
        must_be_allowed(os.environ)  # asked when this backend was made; once more, right where it counts
        whole = self._call("cuMulticastCreate", self._wanted(size, len(numbers)))
        self._undo.append(lambda: self._call("cuMemRelease", whole))
        for number in numbers:
            self._call("cuMulticastAddDevice", whole, self._call("cuDeviceGet", number))
        return whole

    def _memory(self, whole: Any, size: int, number: int) -> Any:
        memory = self._call("cuMemCreate", size, self._placed(number), 0)
        self._undo.append(lambda: self._call("cuMemRelease", memory))
        self._call("cuMulticastBindMem", whole, 0, memory, 0, size, 0)
        device = self._call("cuDeviceGet", number)
        self._undo.append(lambda: self._call("cuMulticastUnbind", whole, device, 0, size))
        return memory

    def _map(self, handle: Any, size: int, grain: int, numbers: list[int]) -> int:
        """Address of a mapping that these GPUs may read and write."""
        driver = self._driver
        address = self._call("cuMemAddressReserve", size, grain, 0, 0)
        self._undo.append(lambda: self._call("cuMemAddressFree", address, size))
        self._call("cuMemMap", address, size, 0, handle, 0)
        self._undo.append(lambda: self._call("cuMemUnmap", address, size))
        grants = []
        for number in numbers:
            grant = driver.CUmemAccessDesc()
            grant.location.type, grant.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, number
            grant.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            grants.append(grant)
        self._call("cuMemSetAccess", address, size, grants, len(grants))
        return int(address)

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()
