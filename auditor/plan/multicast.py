"""Multicast safety (DESIGN §4): which arms must not start where somebody forbade in-switch reductions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from auditor.config import ArmSpec

MULTICAST_SWITCHES = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
MULTICAST_WORDS = ("NVLS", "MULTIMEM", "MULTICAST", "LDMC", "STMC")  # as algorithms and kernels are named


def multicast_waiver(arm: ArmSpec, environ: Mapping[str, str]) -> str | None:
    """Why an arm must not start where somebody forbade multicast objects; None where it may. The one place of the rule.

    Somebody did as soon as one switch is set to its forbidding value in ``environ``. Then no arm may set any of the three
    to another value, and none that needs multicast may run.
    """
    set_here = [name for name in MULTICAST_SWITCHES if _forbids(name, environ.get(name))]
    if not set_here:
        return None
    where = f"{set_here[0]}={environ[set_here[0]]} is set here"
    for name in MULTICAST_SWITCHES:
        if name in arm.env and not _forbids(name, arm.env[name]):
            return f"{where}, and the arm's env would allow multicast again ({name}={arm.env[name]})"
    need = _needs_multicast(arm)
    return f"{where}, and the arm needs multicast ({need})" if need else None


def _forbids(name: str, value: str | None) -> bool:
    """Whether a value switches multicast off, as the libraries parse it.

    NCCL takes the leading number (strtoll, so a word counts as 0) and ignores an empty value; a DISABLE switch is on for
    anything but an empty value and the usual words for no.
    """
    word = "" if value is None else value.strip().lower()
    if MULTICAST_SWITCHES[name] == "1":
        return word not in ("", "0", "false", "no", "off", "n", "f")
    number = re.match(r"[+-]?\d+", word)
    return bool(word) and (number is None or int(number.group()) == 0)


def _needs_multicast(arm: ArmSpec) -> str | None:
    """What shows that an arm needs it: the backend, the stated path, or a setting that picks such an algorithm."""
    if "multimem" in arm.backend.lower():
        return f"backend {arm.backend}"
    if arm.options.get("allow_multicast"):
        return "options.allow_multicast"
    for key, value in {"path": arm.path, **arm.env, **arm.options}.items():
        text = str(value).upper()
        if "^" not in text and any(word in text for word in MULTICAST_WORDS):  # ^NVLS: anything but
            return f"{key} = {value}"
    return None
