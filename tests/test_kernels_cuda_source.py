"""The kernels' sources compile for every GPU that the auditor meets, without a GPU, and are shipped with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from auditor.kernels import cuda

ARCHITECTURES = ("90a", "100a", "103a")
KERNELS = ("fill_2_scaled", "fill_8", "fill_pattern", "classify_bfloat16_scaled", "classify_binary64", "list_compare")


def compiled_by_nvcc(folder: Path, architecture: str) -> bytes:
    text, target = folder / "all.cu", folder / f"{architecture}.cubin"
    text.write_text(cuda.source())
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    quick = (
        [] if architecture == ARCHITECTURES[0] else ["-Xcicc", "-O1", "-Xptxas", "-O1"]
    )  # whether they compile at all
    done = subprocess.run(
        ["nvcc", "-std=c++17", code, "-cubin", *quick, "-Xptxas", "-v", str(text), "-o", str(target)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not re.search(r"\bwarning\b", done.stderr), done.stderr[-3000:]
    if not quick:
        used = re.search(r"'classify_bfloat16_scaled'.*?Used (\d+) registers", done.stderr, re.DOTALL)
        assert used
        assert int(used[1]) <= 32, "the fast kernel no longer fits 2048 threads on a multiprocessor"
    return target.read_bytes()


def compiled_by_nvrtc(architecture: str) -> bytes:
    core = pytest.importorskip(
        "cuda.core", reason="neither nvcc nor cuda.core is here: nothing can compile the kernels"
    )
    options = core.ProgramOptions(std="c++17", arch=f"sm_{architecture}")
    return bytes(core.Program(cuda.source(), "c++", options).compile("cubin").code)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_sources_compile(tmp_path: Path, architecture: str) -> None:
    made = compiled_by_nvcc(tmp_path, architecture) if shutil.which("nvcc") else compiled_by_nvrtc(architecture)
    for name in KERNELS:
        assert name.encode() in made


def test_every_source_is_shipped_and_used() -> None:
    folder = files("auditor.kernels")
    here = {item.name for item in folder.iterdir() if item.name.endswith((".cu", ".cuh"))}
    assert here == set(cuda.SOURCES)
    assert "#include" not in cuda.source()
    assert all(len((folder / name).read_text().splitlines()) <= 400 for name in here)


def test_every_kernel_that_is_called_exists() -> None:
    """By name, since the engine launches by name."""
    text = cuda.source()
    for name in ("bfloat16", "binary16", "float8_e4m3fn", "float8_e5m2", "binary32", "binary64"):
        assert re.search(rf"GENERAL\({name}, ", text), name
    for name in ("classify_rest", "expect_rest", "list_expect", "compare", "list_compare", "fill_pattern"):
        assert f"KERNEL {name}(" in text, name
