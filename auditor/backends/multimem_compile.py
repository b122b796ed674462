"""CUDA C++ to a cubin by NVRTC, and a cubin's SASS by nvdisasm. Neither needs a GPU, a toolkit or a host compiler.

A cubin and not PTX: the driver of a machine may be older than the compiler's PTX. Sources include nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from auditor.backends.cuda_device import first_line
from auditor.errors import AuditError, Unavailable

INSTALL = "pip install 'collective-rounding-auditor[compile]' (it comes with the extras cuda12 and cuda13, too)"
OPTIONS = ("--std=c++17",)
SYMBOL = re.compile(r"^\.text\.(\w+):", re.MULTILINE)
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


class Refused(AuditError):
    """The compiler takes the source not. ``log``: all of its words."""

    def __init__(self, architecture: str, log: str) -> None:
        self.log = log
        super().__init__(f"NVRTC refuses the kernel for {architecture}: {'; '.join(complaints(log)) or first_of(log)}")


def complaints(log: str) -> list[str]:
    """What a log calls errors, in order, without where and without repetition."""
    found = (re.search(r"\berror\s*:?\s+(.*\S)", line) for line in log.splitlines())
    return list(dict.fromkeys(match[1] for match in found if match))


def first_of(log: str) -> str:
    return next((line.strip() for line in log.splitlines() if line.strip()), "no reason given")


def load_nvrtc() -> Any:
    """``cuda.bindings.nvrtc`` with its library. Raises Unavailable."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings or the library: each fails in its own way
        raise Unavailable(f"NVRTC cannot be loaded ({first_line(error)})", INSTALL) from error
    return nvrtc


def compiler_version() -> str:
    """As 13.0. Raises Unavailable."""
    nvrtc = load_nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, status)
    return f"{major}.{minor}"


def cubin(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as ``sm_90a``. Raises Refused with the compiler's words, or Unavailable."""
    return _built(source, architecture, "nvrtcGetCUBIN")


def ptx(source: str, architecture: str) -> str:
    """What the assembler gets, for a virtual architecture such as ``compute_90a``. Raises like :func:`cubin`."""
    return _built(source, architecture, "nvrtcGetPTX").decode()


def _built(source: str, architecture: str, getter: str) -> bytes:
    nvrtc = load_nvrtc()
    program = _asked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"multimem.cu", 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            raise Refused(architecture, _text(nvrtc, program, "nvrtcGetProgramLog").decode(errors="replace"))
        return _text(nvrtc, program, getter)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(nvrtc: Any, program: Any, getter: str) -> bytes:
    room = b"\0" * _asked(nvrtc, getattr(nvrtc, f"{getter}Size")(program))
    _check(nvrtc, getattr(nvrtc, getter)(program, room)[0])
    return bytes(room if getter == "nvrtcGetCUBIN" else room.rstrip(b"\0"))


def _asked(nvrtc: Any, answer: tuple[Any, Any]) -> Any:
    status, value = answer
    _check(nvrtc, status)
    return value


def _check(nvrtc: Any, status: Any) -> None:
    if int(status):
        words = nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise Unavailable(f"NVRTC: {words}", "is the NVRTC library of the same CUDA as cuda-bindings?")


def disassembler() -> str | None:
    """Where nvdisasm is: in the wheel nvidia-cuda-nvdisasm, or on the path; None where it is not."""
    packages = Path(sysconfig.get_paths()["purelib"])
    found = sorted(packages.glob("nvidia/*/bin/nvdisasm"), reverse=True)
    return str(found[0]) if found else shutil.which("nvdisasm")


def disassembler_version() -> str:
    """As 13.5.37; ``not installed`` where there is none."""
    tool = disassembler()
    if tool is None:
        return "not installed"
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return version[1] if version else first_of(said)


def opcodes(code: bytes) -> dict[str, list[str]]:
    """Kernel -> the opcodes of its SASS in order, modifiers included. Raises Unavailable where there is no nvdisasm."""
    tool = disassembler()
    if tool is None:
        raise Unavailable("nvdisasm is not installed", INSTALL)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Unavailable(f"nvdisasm cannot read this cubin: {first_of(done.stderr)}", "install a newer nvdisasm")
    parts = SYMBOL.split(done.stdout)  # what comes before, then name and text in turn
    return {name: INSTRUCTION.findall(text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
