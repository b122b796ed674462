"""The device kernels compiled by g++ as plain C++, one thread after the other: the same sources and the same host code
(``kernels.engine``) as on a GPU, on ordinary memory.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from auditor.kernels.cuda import module_of, source
from auditor.kernels.engine import Engine

ARGUMENTS = 13  # of the widest kernel; more than a function takes does no harm in the C calling convention

EMULATE = """
extern "C" void emulate(void* kernel, u64 blocks, const u64* a) {
    typedef void (*Kernel)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);
    emulated_threads = blocks * 256;
    for (emulated_thread = 0; emulated_thread < emulated_threads; emulated_thread++)
        ((Kernel)kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]);
}
"""


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


@cache
def library(names: tuple[str, ...]) -> ctypes.CDLL:
    """Compiles each module once a process. -ffp-contract=off: a fused multiply-add would change an error term."""
    folder = Path(tempfile.mkdtemp(prefix="auditor-emulated-"))
    (folder / "all.cpp").write_text(source(names) + EMULATE)
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]
    done = subprocess.run(
        [str(compiler()), *flags, str(folder / "all.cpp"), "-o", str(folder / "all.so")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "warning" not in done.stderr, done.stderr[-3000:]
    made = ctypes.CDLL(str(folder / "all.so"))
    shutil.rmtree(folder)
    return made


class Emulated:
    """A Runtime whose device is this process."""

    blocks = 2

    def __init__(self) -> None:
        self.launched: list[str] = []

    def launch(self, kernel: str, blocks: int, arguments: Sequence[int]) -> None:
        self.launched.append(kernel)
        words = np.zeros(ARGUMENTS, np.uint64)
        words[: len(arguments)] = [argument & (1 << 64) - 1 for argument in arguments]
        module = library(module_of(kernel))
        pointer = ctypes.cast(module[kernel], ctypes.c_void_p)
        module.emulate(pointer, ctypes.c_uint64(min(blocks, self.blocks)), words.ctypes.data_as(ctypes.c_void_p))
        misaligned = ctypes.c_uint64.in_dll(module, "emulated_misaligned").value
        assert not misaligned, f"{kernel}: {misaligned} wide accesses that a GPU would refuse"

    def upload(self, data: np.ndarray) -> np.ndarray:
        return data.copy()

    def empty(self, nbytes: int) -> np.ndarray:
        return np.full(nbytes, 0xA5, np.uint8)

    def zeros(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def download(self, array: np.ndarray, nbytes: int) -> np.ndarray:
        return array.view(np.uint8)[:nbytes].copy()

    def address(self, array: np.ndarray) -> int:
        return int(array.ctypes.data)


def engine() -> Engine:
    runtime: Any = Emulated()
    return Engine(runtime)
