"""Backends from outside that load something ahead of their job, and write down in which process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from outside_subjects import Clean

from auditor.model import World


def note(step: str) -> None:
    line = json.dumps({"step": step, "pid": os.getpid(), "parent": os.getppid()}) + "\n"
    out = os.open(os.environ["AHEAD_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, line.encode())
    os.close(out)


class Loads(Clean):
    @classmethod
    def preload(cls, options: Mapping[str, Any]) -> None:
        note("preload")

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        super().__init__(world, options)
        note("start")


class CannotLoad(Loads):
    @classmethod
    def preload(cls, options: Mapping[str, Any]) -> None:
        note("preload")
        raise RuntimeError("no library here")


class DiesLoading(Loads):
    @classmethod
    def preload(cls, options: Mapping[str, Any]) -> None:
        os.abort()
