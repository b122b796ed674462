"""Does the extra for this machine's GPUs work? ``python tests/smoke.py [EXTRA]``; ``--which`` prints the extra alone.

Without a word it is ``cuda13`` or ``cuda12``, by the driver's CUDA version. Looks at every package that the extra names, imports
the libraries, asks the auditor which backends are here, and, where a GPU is, audits NCCL with one rank. A line for each; exit
code 0 where all went well, 1 where something did not, 3 where there is no driver to choose by.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata as metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROJECT = "collective-rounding-auditor"
CONFIG = """
[[arm]]
name = "one-rank"
backend = "nccl"
ranks = 1
[sweep]
collective = ["all_reduce"]
format = ["bfloat16"]
count = [1, 1021]
shift = [0, 1]
repeats = 2
seed = 7
[probes]
run = ["coverage"]
"""


def driver() -> int:
    """The driver's CUDA version, as 13000 for 13.0; 0 where there is no driver. Makes no context."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value


def fitting() -> str:
    """The extra for this driver; "" where there is none."""
    version = driver()
    return "" if not version else "cuda13" if version >= 13000 else "cuda12"


def packages(extra: str) -> Iterator[tuple[bool, str]]:
    """Every package that the extra names, extras within it included: is it here, in a version that it allows?"""
    for text in metadata.requires(PROJECT) or []:
        requirement, _, marker = text.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker) is None:
            continue
        name = re.match(r"[\w.-]+", requirement).group()
        if inner := re.match(rf"{PROJECT}\[([\w-]+)\]", requirement):
            yield from packages(inner.group(1))
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield False, f"{name}: not installed"
            continue
        allowed = re.sub(r"^[\w.-]+(\[[^\]]*\])?", "", requirement).strip()
        yield fits(version, allowed), f"{name} {version} ({allowed or 'any'})"


def fits(version: str, allowed: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(allowed).contains(version)


def libraries(extra: str) -> Iterator[tuple[bool, str]]:
    """Each library with the version that it tells of itself."""
    modules = ["cupy", "cupy.cuda.nccl", "nccl.bindings", "cuda.core", "pynvml"]
    for name in [*modules, *(["nvshmem.core"] if extra.startswith("nvshmem") else [])]:
        try:
            module = importlib.import_module(name)
            said = module.get_version() if name.endswith(".nccl") else getattr(module, "__version__", "")
        except Exception as error:  # whatever a library does that does not load
            yield False, f"import {name}: {type(error).__name__}: {error}"
        else:
            yield True, f"import {name}: {said}".removesuffix(": ")


def command(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "auditor", *words], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def audits(extra: str) -> Iterator[tuple[bool, str]]:
    """The auditor's own word on its backends, and one audit where there is a GPU."""
    code, said = command("backends")
    names = ["nccl", *(["nvshmem"] if extra.startswith("nvshmem") else [])]
    lines = {name: line for name in names for line in said.splitlines() if line.split()[:1] == [name]}
    yield code == 0 and len(lines) == len(names), f"auditor backends: exit code {code}"
    for line in lines.values():
        wanted = "ok" if driver() else "unavailable"
        yield line.split()[1] == wanted, f"auditor backends: {' '.join(line.split()[:2])}"
    if driver():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "smoke.toml").write_text(CONFIG)
            code, said = command("run", f"{folder}/smoke.toml", "--out", f"{folder}/run")
        yield code == 0, f"an audit of NCCL with one rank: exit code {code}"
        if code:
            print(said, file=sys.stderr)


def main(words: list[str]) -> int:
    extra = next((word for word in words if not word.startswith("-")), "") or fitting()
    if not extra:
        print(
            "there is no NVIDIA driver here (libcuda.so.1) to choose between cuda12 and cuda13; name one",
            file=sys.stderr,
        )
        return 3
    if "--which" in words:
        print(extra)
        return 0
    found = [*packages(extra), *libraries(extra), *audits(extra)]
    print(f"extra {extra}, driver for CUDA {driver() / 1000:.1f}" if driver() else f"extra {extra}, no driver")
    for good, line in found:
        print(f"{'ok  ' if good else 'FAIL'}  {line}")
    return 0 if all(good for good, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
