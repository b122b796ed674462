"""Loading and launching the multimem kernels on this process's lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.backends import multimem_kernels
from auditor.backends.cuda_device import Lane, Lanes
from auditor.backends.multimem_kernels import KERNEL, THREADS, Variant

BLOCKS_PER_PROCESSOR = 4
HOST_TO_DEVICE = 1


class Kernels:
    """Compiled for each device once, with the tables of addresses that calls need."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._functions: dict[tuple[int, Variant], Any] = {}
        self._tables: dict[tuple[int, tuple[int, ...]], tuple[Any, npt.NDArray[np.uint64]]] = {}
        properties = lanes.cupy.cuda.runtime.getDeviceProperties
        self._of = {int(lanes[rank].device.id): properties(int(lanes[rank].device.id)) for rank in lanes}

    def architecture(self, lane: Lane) -> str:
        found = self._of[int(lane.device.id)]
        return multimem_kernels.architecture(int(found["major"]), int(found["minor"]))

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Compile and load for every lane's GPU. Raises like :meth:`load`."""
        for architecture in dict.fromkeys(self.architecture(self._lanes[rank]) for rank in self._lanes):
            multimem_kernels.of_each(multimem_kernels.cubin, variants, architecture)
        for rank in self._lanes:
            for variant in variants:
                self.load(self._lanes[rank], variant)

    def load(self, lane: Lane, variant: Variant) -> Any:
        """The kernel on this lane's GPU. Raises Unavailable, or multimem_compile.Refused with the compiler's words."""
        key = int(lane.device.id), variant
        if key not in self._functions:
            code = multimem_kernels.cubin(variant, self.architecture(lane))
            with lane.device, self._lanes.speaking(f"loading of the kernel of {variant.format}"):
                module = self._lanes.cupy.cuda.function.Module()
                module.load(code)
                self._functions[key] = module.get_function(KERNEL)
        return self._functions[key]

    def table(self, lane: Lane, addresses: tuple[int, ...]) -> int:
        """Address of these addresses in device memory, put there on the lane's stream; kept until the lanes end, since calls may
        be in flight.
        """
        key = lane.rank, addresses
        if key not in self._tables:
            host = np.array(addresses, np.uint64)
            memory = self._lanes.cupy.cuda.Memory(host.nbytes)
            self._tables[key] = memory, host
            runtime = self._lanes.cupy.cuda.runtime
            runtime.memcpyAsync(memory.ptr, host.ctypes.data, host.nbytes, HOST_TO_DEVICE, lane.stream.ptr)
        return int(self._tables[key][0].ptr)

    def launch(self, lane: Lane, variant: Variant, steps: int, arguments: Sequence[int]) -> None:
        """On the lane's stream: enough blocks for ``steps``, but no more than the GPU holds at once."""
        processors = int(self._of[int(lane.device.id)]["multiProcessorCount"])
        blocks = max(1, min(-(-steps // THREADS), processors * BLOCKS_PER_PROCESSOR))
        words = tuple(np.uint64(argument) for argument in arguments)
        self.load(lane, variant)((blocks, 1, 1), (THREADS, 1, 1), words, stream=lane.stream)
