"""A recorded run without processes or files: every arm of a config is driven here, into memory. Backends of one process only."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from driven_view import DrivenView, drive

from auditor import probes
from auditor.backends.base import LocalControl
from auditor.backends.registry import choose
from auditor.config import Config, load
from auditor.model import World


class DrivenRun:
    """What a calibration asks of a run: ``reader`` (itself) and ``findings``."""

    run_id = "driven"
    environment: Mapping[str, Any] = {"cpu": {"model": "this processor"}, "system": {"host": "here"}}

    def __init__(self, config: Config, plans: Mapping[str, Any]) -> None:
        self.reader = self
        self._arms: dict[str, Any] = {}
        self.findings: list[dict[str, Any]] = []
        for arm in config.arms:
            some: list[Any] = [SimpleNamespace(NAME=name, plan=plan) for name, plan in plans.items()]
            backend: Any = choose(arm.backend, arm.options)
            view: Any = drive(backend, config.sweep, some, rank_n=arm.ranks, options=arm.options)
            view.arm, view.status, view.reason = arm.name, "ok", ""
            world = World(rank_n=arm.ranks, local_ranks=tuple(range(arm.ranks)), control=LocalControl())
            view.describe = backend(world, arm.options).describe()
            self._arms[arm.name] = view
            self.findings += [one.to_json() for name in plans for one in probes.get(name).analyze(view)]

    def arm(self, name: str) -> DrivenView:
        return self._arms[name]

    def sources(self) -> list[dict[str, Any]]:
        return [{"environment": self.environment}]


@contextlib.contextmanager
def driven(text: str, plans: Mapping[str, Any]) -> Iterator[DrivenRun]:
    """In the place of the command line's recorder. The probe timing needs a real clock and is left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(text)
        config = load(path)
    yield DrivenRun(config, {name: plan for name, plan in plans.items() if name != "timing"})
