"""Probes: one question a file, ``plan(scope)`` and ``analyze(view)``, both pure.

``PROBES`` names them; a module loads when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol, cast

from auditor.config import Scope
from auditor.model import ArmView, Finding, Trial

# In the order in which findings are listed.
PROBES: dict[str, str] = {
    name: f"{__name__}.{name}"
    for name in (
        *("coverage", "rounding", "special", "repeatability", "placement", "tail", "neighbours", "order"),
        *("scaling", "timing", "tolerance", "paths"),
    )
}


class Probe(Protocol):
    """What a probe module offers."""

    NAME: str
    KINDS: tuple[str, ...]

    def plan(self, scope: Scope) -> Iterator[tuple[Trial, int]]:
        """Trials and repeats for one arm."""

    def analyze(self, view: ArmView) -> Iterator[Finding]:
        """Findings of one recorded arm; ``id`` and ``reproduce`` are left empty."""


class AcrossArms(Protocol):
    """What a probe module offers besides, where its question is about several arms of a run."""

    def analyze_run(self, views: Sequence[ArmView]) -> Iterator[Finding]:
        """Findings between arms, each under one of them; none for a run of one arm. Pure, like ``analyze``."""


def across(probe: Probe) -> AcrossArms | None:
    """The probe's verb over all arms; None where it has none."""
    return cast(AcrossArms, probe) if hasattr(probe, "analyze_run") else None


def get(name: str) -> Probe:
    """The probe's module. Raises KeyError for an unknown name: config has checked it."""
    return cast(Probe, import_module(PROBES[name]))
