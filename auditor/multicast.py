"""The switches with which somebody forbids CUDA multicast objects, as the libraries read them (DESIGN §4).

Below the backends and the planner, because both must know: the planner waives arms, and what makes such an object asks once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from auditor.errors import Unavailable

MULTICAST_OFF: Mapping[str, str] = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def multicast_forbidden(environ: Mapping[str, str]) -> str | None:
    """Why nothing may create a CUDA multicast object here; None where nothing forbids it."""
    found = [f"{name}={environ[name]}" for name in MULTICAST_OFF if forbids_multicast(name, environ.get(name, ""))]
    return f"in-switch multicast is switched off here ({', '.join(found)})" if found else None


def must_be_allowed(environ: Mapping[str, str]) -> None:
    """To be called right before a multicast object is made. Raises Unavailable where something forbids it."""
    if forbidden := multicast_forbidden(environ):
        raise Unavailable(f"a CUDA multicast object cannot be made: {forbidden}")


def switched_off(environ: Mapping[str, str]) -> dict[str, str]:
    """What every process must see where somebody forbade multicast: a forbidding switch as it is, the others off. Else empty.

    One switch that somebody set speaks for all three libraries.
    """
    if not multicast_forbidden(environ):
        return {}
    return {
        name: environ[name] if forbids_multicast(name, environ.get(name, "")) else off
        for name, off in MULTICAST_OFF.items()
    }


def with_settings(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with an arm's settings on top, and the switches on top of those where ``environ`` forbids multicast."""
    return {**environ, **settings, **switched_off(environ)}


def forbids_multicast(name: str, value: str) -> bool:
    """Whether one of the three switches, set to ``value``, switches multicast off, as the libraries parse it.

    NCCL takes the leading number (strtoll: a word is 0) and ignores an empty value; a DISABLE switch is on for anything but an
    empty value and the usual words for no.
    """
    word = value.strip().lower()
    if MULTICAST_OFF[name] == "1":
        return word not in ("", "0", "false", "no", "off", "n", "f")
    number = re.match(r"[+-]?\d+", word)
    return bool(word) and (number is None or int(number.group()) == 0)
