"""NVSHMEM's block-scope sums: its device library linked into kernels of one block, at run time.

NVRTC compiles ``nvshmem_block.cu`` against the headers of NVSHMEM's wheel, nvJitLink links ``libnvshmem_device.a``: a cubin for
this very GPU, without a host compiler or a toolkit. Those headers take a minute to compile, hence sums alone, and the cubin is
kept in the user's cache, under a name made of every version it came from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from auditor.backends.cuda_device import Lane, first_line, installed_version
from auditor.errors import BackendError, Unavailable

SOURCE = Path(__file__).with_name("nvshmem_block.cu")
THREADS = 256  # of the one block, as the kernels' launch bounds: 512 did not fit on an H200 (out of resources)
BUILDERS = (
    *("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"),
    *("nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink-cu12"),
)
TOOLS = "nvidia-cuda-runtime, nvidia-cuda-nvrtc and nvidia-nvjitlink (for CUDA 12: with -cu12)"
REMEDY = f'install {TOOLS}, or use options.scope = "stream"'


def headers(cupy: Any) -> tuple[Path, list[Path]]:
    """(NVSHMEM's device library, include directories). Raises Unavailable where one is missing."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise Unavailable(f'options.scope = "block" needs cuda-pathfinder ({first_line(error)})', REMEDY) from error
    nvshmem, runtime = (_directory(find_nvidia_header_directory, name) for name in ("nvshmem", "cudart"))
    bundled = Path(cupy.__file__).parent / "_core/include/cupy/_cccl/libcudacxx"  # CuPy brings libcu++ along
    library = nvshmem.parent / "lib" / "libnvshmem_device.a"
    includes = [nvshmem, bundled if bundled.is_dir() else runtime / "cccl", runtime]
    for needed in (library, *includes):
        if not needed.exists():
            raise Unavailable(f'options.scope = "block" needs {needed}, which is not there', REMEDY)
    return library, includes


def _directory(find: Any, name: str) -> Path:
    try:
        found = find(name)
    except Exception as error:
        raise Unavailable(f'options.scope = "block": the headers of {name} are not found ({error})', REMEDY) from error
    if not found:
        raise Unavailable(f'options.scope = "block": the headers of {name} are not found', REMEDY)
    return Path(getattr(found, "abs_path", found))


def source() -> str:
    """The kernels, bound to the block that they are launched with."""
    return f"#define THREADS {THREADS}\n{SOURCE.read_text()}"


def cubin(cupy: Any, architecture: str, nvshmem_version: str) -> bytes:
    """The linked kernels for an architecture such as ``sm_90``; from the cache where they were built before.

    Raises Unavailable where something is missing, BackendError with the compiler's words.
    """
    library, includes = headers(cupy)
    versions = [f"{name} {installed_version(name)}" for name in BUILDERS]
    made_of = [source(), architecture, nvshmem_version, cupy.__version__, *versions]
    key = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "collective-rounding-auditor"
    kept = cache / f"nvshmem_block.{architecture}.{key}.cubin"
    if kept.exists():
        return kept.read_bytes()
    built = build(library, includes, architecture)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
            file.write(built)
        os.replace(file.name, kept)
    return built


def build(library: Path, includes: list[Path], architecture: str) -> bytes:
    """Compile and link; needs no GPU. Raises BackendError with the tools' words."""
    from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions

    options = ProgramOptions(
        std="c++17",
        arch=architecture,
        relocatable_device_code=True,
        device_as_default_execution_space=True,
        include_path=[str(path) for path in includes],
    )
    try:
        compiled = Program(source(), "c++", options).compile("cubin")
        parts = (compiled, ObjectCode.from_library(str(library)))
        return bytes(Linker(*parts, options=LinkerOptions(arch=architecture)).link("cubin").code)
    except Exception as error:
        raise BackendError(f"NVSHMEM's block kernels cannot be built for {architecture}: {_short(error)}") from error


def _short(error: Exception) -> str:
    """The first line that says what is wrong, of a compiler's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() and "NVRTC_ERROR" not in line), first_line(error))


class BlockKernels:
    """The loaded kernels of one PE. ``status()``: what the last one returned, once its stream is empty."""

    def __init__(self, cupy: Any, bindings: Any, lane: Lane, nvshmem_version: str) -> None:
        self._cupy, self._bindings, self._lane = cupy, bindings, lane
        major, minor = (cupy.cuda.runtime.getDeviceProperties(lane.device.id)[name] for name in ("major", "minor"))
        code = cubin(cupy, f"sm_{major}{minor}", nvshmem_version)
        with lane.device:
            self._module = cupy.cuda.function.Module()
            self._module.load(code)
            self._status = cupy.zeros(1, cupy.int32)
        if status := bindings.cumodule_init(self._module.ptr):
            raise BackendError(f"NVSHMEM {nvshmem_version} does not take the block kernels: status {status}")

    def launch(self, name: str, team: int, target: int, source: int, count: int) -> None:
        """One block of a kernel such as ``bfloat16_sum_reduce`` on the lane's stream."""
        wide, narrow = self._cupy.uint64, self._cupy.int32
        arguments = (narrow(team), wide(target), wide(source), wide(count), wide(self._status.data.ptr))
        kernel = self._module.get_function(name)
        kernel((1, 1, 1), (THREADS, 1, 1), arguments, stream=self._lane.stream)

    def status(self) -> int:
        """NVSHMEM's return code of the last finished kernel; 0 is success."""
        with self._lane.device:
            return int(self._status.get()[0])

    def close(self) -> None:
        """NVSHMEM lets go of the module."""
        self._bindings.cumodule_finalize(self._module.ptr)
