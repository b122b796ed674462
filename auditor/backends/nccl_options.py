"""NCCL's numbers, what its releases take, and the options of the ``nccl`` backend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from auditor.backends.cuda_device import check_devices, first_line
from auditor.errors import ConfigError, Unavailable, Unsupported
from auditor.model import COLLECTIVES, OPS, Call
from auditor.mpi_control import launcher_rank_and_size

# nccl.h; CuPy has no names for the 8-bit formats, but passes every number through.
TYPES = {
    "binary16": 6,
    "binary32": 7,
    "binary64": 8,
    "bfloat16": 9,
    "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}
OPERATIONS = {"sum": 0, "max": 2, "min": 3, "avg": 4}
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
FLOAT8_FROM = 22400  # NCCL 2.24
CUPY_FROM = 14
SHARED_GPU_FROM = 23000  # NCCL 2.30; before, "Duplicate GPU detected"
SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
FLOAT8_COMPUTE = 9  # its sums of 8-bit floats begin with sm_90
BUFFERS = ("plain", "registered", "window")
PROCESS_MODELS = ("all", "one")
NCCL4PY = "pip install 'nccl4py~=0.6.0' (it comes with the extras cuda12 and cuda13)"
OPTIONS: dict[str, Any] = {
    "process_model": "",  # by for_options
    "buffers": "plain",
    "algorithm": "",
    "collectives": list(COLLECTIVES),
    "devices": [],
}


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their defaults. Raises ConfigError on an unknown key or a wrong value."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"backend nccl: options.{key} is not known; known are {', '.join(OPTIONS)}")
    chosen = {**OPTIONS, **options}
    if chosen["process_model"] not in ("", *PROCESS_MODELS):
        said = f"backend nccl: options.process_model = {chosen['process_model']!r}"
        raise ConfigError(f'{said} is neither "all" (one process for all GPUs) nor "one" (one process a GPU)')
    if chosen["buffers"] not in BUFFERS:
        raise ConfigError(f"backend nccl: options.buffers = {chosen['buffers']!r} is not one of {', '.join(BUFFERS)}")
    if not isinstance(chosen["algorithm"], str):
        raise ConfigError(
            f'backend nccl: options.algorithm = {chosen["algorithm"]!r} is not a text such as "ring" or "tree,ring"'
        )
    asked = chosen["collectives"]
    if not isinstance(asked, list | tuple) or not asked or not set(asked) <= set(COLLECTIVES):
        raise ConfigError(f"backend nccl: options.collectives = {asked!r} is not a list of {', '.join(COLLECTIVES)}")
    check_devices("nccl", chosen["devices"])
    return chosen


def process_model(options: Mapping[str, Any]) -> str:
    """What the options say; without a word: one process for all GPUs, or one a GPU where a launcher started several."""
    asked: str = check_options(options)["process_model"]
    if asked:
        return asked
    launched = launcher_rank_and_size()
    return "one" if launched is not None and launched.size > 1 else "all"


def load_nccl(cupy: Any) -> Any:
    """``cupy.cuda.nccl`` with its library. Raises Unavailable."""
    remedy = "install nvidia-nccl-cu13 or nvidia-nccl-cu12, as CuPy's CUDA is"
    try:
        from cupy.cuda import nccl
    except Exception as error:
        raise Unavailable(f"cupy.cuda.nccl cannot be imported ({first_line(error)})", remedy) from error
    if not getattr(nccl, "available", True):
        raise Unavailable(f"cupy {cupy.__version__} finds no NCCL library", remedy)
    if int(cupy.__version__.partition(".")[0]) < CUPY_FROM:
        raise Unavailable(f"cupy {cupy.__version__} is too old", f"install cupy {CUPY_FROM} or later")
    try:
        nccl.get_version()
    except Exception as error:
        raise Unavailable(f"NCCL's library does not load ({first_line(error)})", remedy) from error
    return nccl


def check_sharing(version: int, most: int, environ: Mapping[str, str]) -> None:
    """Raises Unavailable where ``most`` ranks share a GPU and NCCL would refuse. To be asked before any of its calls.

    ``version``: NCCL's, as 22809 for 2.28.9. The variable is read as NCCL reads it: off unless it begins with a number but 0.
    """
    if most < 2:
        return
    asked = f"{most} ranks are to share a GPU"
    if version < SHARED_GPU_FROM:
        raise Unavailable(
            f"{asked}, which NCCL {dotted(version)} refuses", "install NCCL 2.30 or later (nvidia-nccl-cu13 or -cu12)"
        )
    if not re.match(r"\s*[+-]?0*[1-9]", environ.get(SHARED_GPU, "")):
        remedy = f'set env = {{ {SHARED_GPU} = "1" }} in the arm, or give every rank a GPU of its own'
        raise Unavailable(f"{asked}, which NCCL {dotted(version)} refuses without {SHARED_GPU}=1", remedy)
    if "NVLS" in environ.get("NCCL_ALGO", "").upper() and not environ["NCCL_ALGO"].startswith("^"):
        raise Unavailable(f"{asked}, and NCCL has no NVLS between such ranks", "give every rank a GPU of its own")


def offered_formats(cupy: Any, version: int) -> frozenset[str]:
    """Formats that this release reduces on these GPUs. ``version``: NCCL's, as 22809 for 2.28.9."""
    majors = [
        int(cupy.cuda.runtime.getDeviceProperties(number)["major"])
        for number in range(cupy.cuda.runtime.getDeviceCount())
    ]
    float8 = version >= FLOAT8_FROM and min(majors, default=0) >= FLOAT8_COMPUTE
    return frozenset(TYPES if float8 else set(TYPES) - set(FLOAT8))


def numbers(call: Call, version: str) -> tuple[int, int]:
    """NCCL's (datatype, operation) of a call. Raises Unsupported where it has none."""
    if call.collective not in COLLECTIVES or call.op not in OPERATIONS or call.format not in TYPES:
        raise Unsupported(f"NCCL {version} has no {call.collective} {call.op} of {call.format}")
    return TYPES[call.format], OPERATIONS[call.op]


def dotted(number: int) -> str:
    """NCCL's 22809 as 2.28.9; before 2.9 the numbers were shorter (2708 is 2.7.8)."""
    major, rest = divmod(number, 10000 if number >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


assert set(OPERATIONS) == set(OPS)
