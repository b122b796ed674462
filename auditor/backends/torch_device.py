"""Where a torch rank's tensors lie: host memory under NumPy arrays, or a GPU's under CuPy's; copies, clocks and waiting."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from auditor.backends.cuda_device import ALIGNMENT, choose_devices, describe_devices, load_cupy
from auditor.backends.gpu_sharing import described, gpus_of_ranks, most_on_one
from auditor.model import Window, World


class HostPlace:
    """Host memory. Calls are done when torch's verbs return."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.device = torch.device("cpu")
        self._tensors: dict[int, Any] = {}  # address of an array -> the tensor of the same bytes
        self._scratch: Any = None
        self._began = self._seconds = 0.0

    def allocate(self, nbytes: int) -> Any:
        """A uint8 array whose first byte is 512-byte aligned, over a tensor's bytes."""
        return self.adopt(self._torch.empty(nbytes + ALIGNMENT, dtype=self._torch.uint8, device=self.device), nbytes)

    def adopt(self, tensor: Any, nbytes: int) -> Any:
        """The aligned ``nbytes`` of a uint8 tensor as an array."""
        skip = -tensor.data_ptr() % ALIGNMENT
        part = tensor[skip : skip + nbytes]
        self._tensors[part.data_ptr()] = part
        return self._array(part)

    def _array(self, tensor: Any) -> Any:
        return tensor.numpy()

    def tensor(self, window: Window, dtype: Any) -> Any:
        """The window's range as a tensor of ``dtype``: the same bytes."""
        whole = self._tensors[window.address - window.offset]
        return whole[window.offset : window.offset + window.nbytes].view(dtype)

    def scratch(self, like: Any) -> Any:
        """Memory for a copy of a tensor, at the same place within 512 bytes."""
        nbytes = like.numel() * like.element_size()
        if self._scratch is None or self._scratch.numel() < nbytes + 2 * ALIGNMENT:
            self._scratch = self._torch.empty(nbytes + 2 * ALIGNMENT, dtype=self._torch.uint8, device=self.device)
        start = (like.data_ptr() - self._scratch.data_ptr()) % ALIGNMENT
        part = self._scratch[start : start + nbytes]
        if part.storage_offset() % like.element_size():  # then torch cannot look at it as such elements
            part = self._scratch[:nbytes]
        return part.view(like.dtype)

    def copy(self, source: Any, target: Any) -> None:
        """Bytes, unless both are the same range."""
        if source.data_ptr() != target.data_ptr() and source.numel():
            target.view(self._torch.uint8).copy_(source.view(self._torch.uint8))

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._seconds = time.perf_counter() - self._began

    def wait(self) -> None:
        return None

    def seconds(self) -> float:
        return self._seconds

    def describe(self) -> Mapping[str, Any]:
        return {"threads": int(self._torch.get_num_threads())}

    def close(self) -> None:
        self._tensors.clear()
        self._scratch = None


class CudaPlace(HostPlace):
    """One GPU. Calls go to torch's current stream, between two events."""

    def __init__(self, torch: Any, world: World, devices: Sequence[int]) -> None:
        super().__init__(torch)
        self._cupy = load_cupy()
        chosen = choose_devices(world, devices, torch.cuda.device_count())
        (self._number,) = chosen.values()
        self._sharing = most_on_one(gpus_of_ranks(self._cupy, world, chosen).values())
        torch.cuda.set_device(self._number)
        self.device = torch.device("cuda", self._number)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for event in self._events:  # CUDA refuses the time of an event never recorded
            event.record()
        torch.cuda.synchronize(self.device)

    @staticmethod
    def count(torch: Any, devices: Sequence[int]) -> int:
        return len(devices) or int(torch.cuda.device_count())

    def _array(self, tensor: Any) -> Any:
        with self._cupy.cuda.Device(self._number):
            return self._cupy.asarray(tensor)  # through the tensor's CUDA array interface: the same bytes

    def begin(self) -> None:
        self._events[0].record()

    def end(self) -> None:
        self._events[1].record()

    def wait(self) -> None:
        self._torch.cuda.current_stream(self.device).synchronize()

    def seconds(self) -> float:
        return float(self._events[0].elapsed_time(self._events[1])) * 1e-3

    def describe(self) -> Mapping[str, Any]:
        built_for = ".".join(str(part) for part in self._torch.cuda.nccl.version())
        versions = {"nccl": loaded_nccl(), "nccl_torch_built_for": built_for}
        sharing = described(self._sharing, "one", os.environ)
        return {**versions, **describe_devices(self._cupy, [self._number]), **sharing}


def loaded_nccl() -> str:
    """The release of the NCCL library in this process, asked of the library itself: torch tells the one it was built for.

    "unknown" where no library of that name is loaded, as in a torch that has NCCL linked in.
    """
    number = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        refused = library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return "unknown"
    return "unknown" if refused else f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
