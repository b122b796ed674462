"""What the torch backend may be told, and loading the library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from auditor.backends.cuda_device import check_devices
from auditor.errors import ConfigError, Unavailable
from auditor.multicast import multicast_forbidden

OPTIONS: dict[str, Any] = {"process_group": "gloo", "operation": "", "devices": []}
GROUPS = ("gloo", "nccl")
UNICAST = ("one_shot_all_reduce", "two_shot_all_reduce_")
MULTICAST = ("multimem_one_shot_all_reduce", "multimem_all_reduce_")
INSTALL = "pip install 'collective-rounding-auditor[torch]' in an environment of its own"


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their defaults. Raises ConfigError on an unknown key, a wrong value, or one that is not used."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"backend torch: options.{key} is not known; known are {', '.join(OPTIONS)}")
    chosen = {**OPTIONS, **options}
    _one_of("process_group", chosen["process_group"], GROUPS)
    _one_of("operation", chosen["operation"], ("", *UNICAST, *MULTICAST))
    check_devices("torch", chosen["devices"])
    ignored = [key for key in ("operation", "devices") if chosen[key]]
    if chosen["process_group"] != "nccl" and ignored:
        raise ConfigError(f'backend torch: options.{ignored[0]} needs options.process_group = "nccl"')
    return chosen


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise ConfigError(f"backend torch: options.{key} = {value!r} is not one of {names}")


def forbid_multicast(operation: str) -> None:
    """Raises Unavailable where an operation needs the switch and somebody forbade it; to be called before anything of CUDA."""
    why = multicast_forbidden(os.environ) if operation in MULTICAST else None
    if why:
        raise Unavailable(f"{operation} adds in the switch, and {why}", f"use one of {', '.join(UNICAST)}")


def load_torch(process_group: str) -> tuple[Any, Any]:
    """The modules ``torch`` and ``torch.distributed``. Raises Unavailable where they are missing or lack the process group."""
    try:
        torch, distributed = import_module("torch"), import_module("torch.distributed")
    except Exception as error:  # a missing CUDA library shows as anything
        raise Unavailable(f"torch cannot be imported ({_first_line(error)})", INSTALL) from error
    if not distributed.is_available():
        raise Unavailable(f"torch {torch.__version__} was built without torch.distributed", INSTALL)
    if not getattr(distributed, f"is_{process_group}_available")():
        raise Unavailable(f"torch {torch.__version__} was built without {process_group}", INSTALL)
    if process_group == "nccl" and not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} sees no GPU", "check the driver with nvidia-smi")
    return torch, distributed


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
