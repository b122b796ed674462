"""The device kernels on NVIDIA GPUs, through CuPy: compiled for the device at hand when first used.

``engine(device)`` gives them on addresses; ``fill`` and ``tabulate_recipes`` are the twins of the functions of the same
name in ``kernels``, on CuPy arrays. CuPy is imported by the first call that needs a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.errors import Unavailable
from auditor.kernels.engine import THREADS, Engine
from auditor.kernels.table import RoundingTable
from auditor.model import Bytes
from auditor.numerics.programs import Sender, of_recipe
from auditor.numerics.recipes import Recipe

BYTES = ("rules.cuh", "pieces.cuh", "audit.cu")  # fills and comparisons of bytes: all that recording needs
CLASSES = ("rules.cuh", "pieces.cuh", "exact.cuh", "sums.cuh", "classes.cu")
WORKLOADS = ("rules.cuh", "pieces.cuh", "workloads.cu")  # local kernels to be calibrated
OPTIONS = ("--std=c++17",)
BLOCKS_PER_PROCESSOR = 8  # of 256 threads: as many as a multiprocessor holds


def source(names: Sequence[str]) -> str:
    """One module's kernels as one text: nothing is included, so nothing has to be found when it is compiled."""
    folder = files("auditor.kernels")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def module_of(kernel: str) -> tuple[str, ...]:
    """The sources that hold a kernel. Several modules, since the largest takes seconds to compile and is rarely needed."""
    if kernel.startswith("histogram"):
        return WORKLOADS
    return CLASSES if "classify" in kernel or "expect" in kernel else BYTES


def cupy() -> Any:
    """The library. Raises Unavailable where it cannot be imported or sees no GPU."""
    try:
        library = import_module("cupy")
    except ImportError as error:
        raise Unavailable(f"CuPy cannot be imported: {error}", "pip install '.[cuda13]' or '.[cuda12]'") from error
    try:
        n = library.cuda.runtime.getDeviceCount()
    except library.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"CuPy sees no GPU: {error}", "check the driver with nvidia-smi") from error
    if not n:
        raise Unavailable("CuPy sees no GPU", "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES")
    return library


class CudaRuntime:
    """One GPU. Everything is issued on CuPy's current stream of the calling thread; downloads wait for it."""

    def __init__(self, device: int) -> None:
        self.cupy = cupy()
        self.device = self.cupy.cuda.Device(device)
        self.blocks = int(self.device.attributes["MultiProcessorCount"]) * BLOCKS_PER_PROCESSOR
        self._kernels: dict[str, Any] = {}
        self._modules: dict[tuple[str, ...], Any] = {}

    def launch(self, kernel: str, blocks: int, arguments: Sequence[int]) -> None:
        with self.device:
            if kernel not in self._kernels:
                self._kernels[kernel] = self._compiled(module_of(kernel)).get_function(kernel)
            self._kernels[kernel]((blocks,), (THREADS,), tuple(np.uint64(argument) for argument in arguments))

    def _compiled(self, names: tuple[str, ...]) -> Any:
        if names not in self._modules:  # CuPy keeps what it compiled on disk
            self._modules[names] = self.cupy.RawModule(code=source(names), options=OPTIONS)
        return self._modules[names]

    def upload(self, data: npt.NDArray[Any]) -> Any:
        with self.device:
            return self.cupy.asarray(data)

    def empty(self, nbytes: int) -> Any:
        with self.device:
            return self.cupy.empty(nbytes, np.uint8)

    def zeros(self, nbytes: int) -> Any:
        with self.device:
            return self.cupy.zeros(nbytes, np.uint8)

    def download(self, array: Any, nbytes: int) -> Bytes:
        with self.device:
            found: Bytes = self.cupy.asnumpy(array.view(np.uint8)[:nbytes])
            return found

    def address(self, array: Any) -> int:
        return int(array.data.ptr)


@lru_cache(maxsize=64)
def engine(device: int) -> Engine:
    """The kernels on one GPU of this process. Raises Unavailable."""
    return Engine(CudaRuntime(device))


def _on(array: Any) -> tuple[Engine, int]:
    return engine(int(array.device.id)), int(array.data.ptr)


def fill(recipe: Recipe, start: int, out: Any) -> None:
    """Writes the codes of the indices from ``start`` on into a contiguous CuPy array of the format's code dtype."""
    kernels, address = _on(out)
    kernels.fill(Sender((of_recipe(recipe),)), start, address, out.size)


def tabulate_recipes(recipes: Sequence[Recipe], start: int, out: Any) -> RoundingTable:
    """Counts for outputs of the indices from ``start`` on, a contiguous CuPy array of codes."""
    kernels, address = _on(out)
    return kernels.tabulate([of_recipe(recipe) for recipe in recipes], start, address, out.size)
