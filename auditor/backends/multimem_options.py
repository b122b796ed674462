"""The options of the ``multimem`` backend, and the permission that multicast needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auditor.backends.cuda_device import check_devices
from auditor.backends.multimem_forms import ACCUMULATORS, TYPES, VECTORS, body_form
from auditor.errors import ConfigError, Unavailable
from auditor.multicast import multicast_forbidden

UNICAST = "unicast"
CHOICES: dict[str, tuple[str, ...]] = {
    "provider": (UNICAST, "nccl", "nvshmem", "driver"),
    "algorithm": ("one_shot", "two_shot"),
    "accumulator": ("wide", "plain"),
    "vector": ("v4", "v2", "v1", "v8"),
    "lone": ("scalar", "pair"),
}
OPTIONS: dict[str, Any] = {
    **{key: allowed[0] for key, allowed in CHOICES.items()},
    "devices": [],
    "allow_multicast": False,
}
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
FLOAT8_SWITCH = 10  # the switch's 8-bit forms begin with sm_100a
COMPUTE = 9  # additions of bfloat16 and the multimem instructions begin with sm_90
WITHOUT = 'options.provider = "unicast" runs the same kernels with loads from every rank instead'


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their defaults. Raises ConfigError on an unknown key or a wrong value."""
    for key in options:
        if key not in OPTIONS:
            raise ConfigError(f"backend multimem: options.{key} is not known; known are {', '.join(OPTIONS)}")
    chosen = {**OPTIONS, **options}
    for key, allowed in CHOICES.items():
        if chosen[key] not in allowed:
            raise ConfigError(f"backend multimem: options.{key} = {chosen[key]!r} is not one of {', '.join(allowed)}")
    if not isinstance(chosen["allow_multicast"], bool):
        raise ConfigError(
            f"backend multimem: options.allow_multicast = {chosen['allow_multicast']!r} is neither true nor false"
        )
    check_devices("multimem", chosen["devices"])
    if chosen["provider"] != UNICAST and len(set(chosen["devices"])) != len(chosen["devices"]):
        raise ConfigError("backend multimem: options.devices names a GPU twice, which only provider unicast can serve")
    return chosen


def permit(options: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Raises Unavailable where the provider needs a multicast object and none may be made. To be asked before any CUDA call."""
    if options["provider"] == UNICAST:
        return
    need = f'options.provider = "{options["provider"]}" needs a CUDA multicast object'
    if forbidden := multicast_forbidden(environ):
        raise Unavailable(f"{need}, and {forbidden}", WITHOUT)
    if not options["allow_multicast"]:
        raise Unavailable(
            f"{need}, which a faulty use of can disturb an NVSwitch fabric that others share",
            f"set options.allow_multicast = true where that is acceptable; {WITHOUT}",
        )


def offered_formats(options: Mapping[str, Any], major: int) -> frozenset[str]:
    """Formats that the chosen form exists for. ``major``: of the GPUs' compute capability, the smallest."""
    switch = options["provider"] != UNICAST
    return frozenset(
        name
        for name in TYPES
        if body_form(name, options["accumulator"], options["vector"]) is not None
        and not (switch and name in FLOAT8 and major < FLOAT8_SWITCH)
    )


assert set(CHOICES["accumulator"]) == set(ACCUMULATORS)
assert set(CHOICES["vector"]) == set(VECTORS)
