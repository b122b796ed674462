"""Where the time of a run goes, for whoever asks by AUDITOR_PROFILE=FOLDER: what was done when, and what functions cost.

Every process of the run appends lines of JSON to ``notes.jsonl`` there: seconds of one clock for all processes of the machine,
the process, what it has just done; ``benchmarks/arm.py`` makes a table of them. With AUDITOR_PROFILE_FUNCTIONS=1 each worker also
leaves the times of its functions, as ``<arm>.<attempt>.rank<rank>.pstats``, which slows its Python code.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTES = "notes.jsonl"


def folder() -> Path | None:
    """Where profiles go; None where nobody asked."""
    name = os.environ.get("AUDITOR_PROFILE", "")
    return Path(name) if name else None


def note(what: str, **more: Any) -> None:
    """Write down that this has just been done. Costs nothing where nobody asked."""
    if (where := folder()) is None:
        return
    line = json.dumps({"at": time.monotonic(), "process": os.getpid(), "what": what, **more}) + "\n"
    where.mkdir(parents=True, exist_ok=True)
    out = os.open(where / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(out, line.encode())  # one write, so that lines of several processes stay whole
    finally:
        os.close(out)


@contextlib.contextmanager
def functions(name: str) -> Iterator[None]:
    """Keep the times of the functions called inside, where somebody asked for them."""
    where = folder()
    if where is None or not os.environ.get("AUDITOR_PROFILE_FUNCTIONS"):
        yield
        return
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        where.mkdir(parents=True, exist_ok=True)
        profile.dump_stats(where / f"{name}.pstats")
