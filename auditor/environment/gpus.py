"""What is known of the GPUs: the driver's words in /proc, and the management library's, asked by a process of its own."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from auditor.environment.machine import first_line

LIMIT = 20.0  # seconds that the management library may take; it waits for every GPU of the node to wake
MISSING = "not asked: nvidia-ml-py is not installed (it comes with the extras cuda12 and cuda13)"
ELSEWHERE = "not asked: the first process of this node asks"


@dataclass(slots=True)
class GpuQuestion:
    """A question that is being answered meanwhile. ``process``: None where it was not asked, for the reason in ``words``."""

    process: subprocess.Popen[bytes] | None
    words: str = ""

    def answer(self, limit: float = LIMIT) -> dict[str, Any]:
        """The facts, as JSON values; waits at most ``limit`` seconds. ``management_library`` says where they come from, or why
        there are none.
        """
        return {**_from_proc(), **(_heard(self.process, limit) if self.process else {"management_library": self.words})}


def ask() -> GpuQuestion:
    """Start to ask; costs a few milliseconds here. The question makes no CUDA context and changes nothing."""
    if find_spec("pynvml") is None:
        return GpuQuestion(None, MISSING)
    command = [sys.executable, "-m", "auditor.environment.nvml"]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        return GpuQuestion(None, f"not asked: no process could be started ({error.strerror})")
    return GpuQuestion(process)


def not_asked_here() -> GpuQuestion:
    """For every process but one of a node: all would get the same answer."""
    return GpuQuestion(None, ELSEWHERE)


def _heard(process: subprocess.Popen[bytes], limit: float) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return {"management_library": f"did not answer within {limit:g} s"}
    if process.returncode:
        return {"management_library": f"its process {_ended(process.returncode)}{_said(err)}"}
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"management_library": f"its process gave no answer{_said(err)}"}
    return answer


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill it and go on: a process stuck in a driver call does not even die."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _ended(status: int) -> str:
    return f"died by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _said(err: bytes) -> str:
    lines = err.decode(errors="replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""


def _from_proc() -> dict[str, Any]:
    driver = Path("/proc/driver/nvidia/version")
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    known = {"driver": first_line(driver), "models": [model_of(card) for card in cards]}
    return {key: value for key, value in known.items() if value}


def model_of(card: Path) -> str:
    """The model line of one GPU's information file."""
    try:
        found = re.search(r"^Model:\s*(.+)$", card.read_text(), re.MULTILINE)
    except OSError:
        return "unreadable"
    return found.group(1).strip() if found else "unknown"
