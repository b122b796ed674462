"""Multicast safety (DESIGN §4): which arms must not start where somebody forbade in-switch reductions."""

from __future__ import annotations

from collections.abc import Mapping

from auditor.config import ArmSpec
from auditor.multicast import MULTICAST_OFF, forbids_multicast

MULTICAST_WORDS = ("NVLS", "MULTIMEM", "MULTICAST", "LDMC", "STMC")  # as algorithms and kernels are named


def multicast_waiver(arm: ArmSpec, environ: Mapping[str, str]) -> str | None:
    """Why an arm must not start where somebody forbade multicast objects; None where it may. The one place of the rule.

    Somebody did as soon as one switch is set to its forbidding value in ``environ``. Then no arm may set any of the three
    to another value, and none that needs multicast may run.
    """
    set_here = [name for name in MULTICAST_OFF if forbids_multicast(name, environ.get(name, ""))]
    if not set_here:
        return None
    where = f"{set_here[0]}={environ[set_here[0]]} is set here"
    for name in MULTICAST_OFF:
        if name in arm.env and not forbids_multicast(name, arm.env[name]):
            return f"{where}, and the arm's env would allow multicast again ({name}={arm.env[name]})"
    need = _needs_multicast(arm)
    return f"{where}, and the arm needs multicast ({need})" if need else None


def _needs_multicast(arm: ArmSpec) -> str | None:
    """What shows that an arm needs it: the backend, the stated path, or a setting that picks such an algorithm."""
    if "multimem" in arm.backend.lower() and not _adds_on_the_sm(arm):
        return f"backend {arm.backend}"
    if arm.options.get("allow_multicast"):
        return "options.allow_multicast"
    for key, value in {"path": arm.path, **arm.env, **arm.options}.items():
        if _names_multicast(str(value)):
            return f"{key} = {value}"
    return None


def _names_multicast(text: str) -> bool:
    """Whether a setting asks for such an algorithm. NCCL's lists hold one part a collective, and ``^NVLS`` is anything but."""
    lists = (part.rpartition(":")[2].strip() for part in text.upper().split(";"))
    return any(word in one for one in lists if not one.startswith("^") for word in MULTICAST_WORDS)


def _adds_on_the_sm(arm: ArmSpec) -> bool:
    """Whether the arm asks our own multimem backend, in so many words, for its kernels without multicast."""
    ours = arm.backend == "multimem" or arm.backend.startswith("auditor.backends.multimem:")
    return ours and arm.options.get("provider") == "unicast"
