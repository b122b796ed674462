"""The kernels' sources compile for every GPU that the auditor meets, without a GPU, and are shipped with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from auditor.kernels import cuda

ARCHITECTURES = ("90a", "100a")  # the multimem forms, which differ, are compiled for 103a too
MODULES = {
    "bytes": (cuda.BYTES, ("fill_2_scaled", "fill_8", "fill_pattern", "compare", "list_compare")),
    "classes": (cuda.CLASSES, ("classify_bfloat16_scaled", "classify_binary64", "expect_rest", "list_expect")),
    "workloads": (cuda.WORKLOADS, ("histogram_ordered_4", "histogram_atomic_8")),
}


def compiled_by_nvcc(source: str, folder: Path, architecture: str) -> bytes:
    text, target = folder / "all.cu", folder / f"{architecture}.cubin"
    text.write_text(source)
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    full = architecture == ARCHITECTURES[0]
    quick = [] if full else ["-Xcicc", "-O1", "-Xptxas", "-O1"]  # only whether they compile at all
    done = subprocess.run(
        ["nvcc", "-std=c++17", code, "-cubin", *quick, "-Xptxas", "-v", str(text), "-o", str(target)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not re.search(r"\bwarning\b", done.stderr), done.stderr[-3000:]
    if full and "classify" in source:
        used = re.search(r"'classify_bfloat16_scaled'.*?Used (\d+) registers", done.stderr, re.DOTALL)
        assert used
        assert int(used[1]) <= 32, "the fast kernel no longer fits 2048 threads on a multiprocessor"
    return target.read_bytes()


def compiled_by_nvrtc(source: str, architecture: str) -> bytes:
    core = pytest.importorskip(
        "cuda.core", reason="neither nvcc nor cuda.core is here: nothing can compile the kernels"
    )
    options = core.ProgramOptions(std="c++17", arch=f"sm_{architecture}")
    return bytes(core.Program(source, "c++", options).compile("cubin").code)


@pytest.mark.parametrize(
    ("module", "architecture"),  # the largest takes ten seconds an architecture
    [(module, one) for module in MODULES for one in ARCHITECTURES if (module, one) != ("classes", "100a")],
)
def test_the_sources_compile(tmp_path: Path, module: str, architecture: str) -> None:
    names, kernels = MODULES[module]
    text = cuda.source(names)
    nvcc = shutil.which("nvcc")
    made = compiled_by_nvcc(text, tmp_path, architecture) if nvcc else compiled_by_nvrtc(text, architecture)
    for name in kernels:
        assert name.encode() in made


def test_every_source_is_shipped_and_used() -> None:
    folder = files("auditor.kernels")
    here = {item.name for item in folder.iterdir() if item.name.endswith((".cu", ".cuh"))}
    assert here == {*cuda.BYTES, *cuda.CLASSES, *cuda.WORKLOADS}
    assert all("#include" not in cuda.source(names) for names, _ in MODULES.values())
    assert all(len((folder / name).read_text().splitlines()) <= 400 for name in here)


def test_every_kernel_is_looked_for_where_it_is() -> None:
    """The engine launches by name, and a name decides which module is compiled."""
    for names, kernels in MODULES.values():
        assert {cuda.module_of(kernel) for kernel in kernels} == {names}
    for name in ("bfloat16", "binary16", "float8_e4m3fn", "float8_e5m2", "binary32", "binary64"):
        assert re.search(rf"GENERAL\({name}, ", cuda.source(cuda.CLASSES)), name
