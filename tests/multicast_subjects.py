"""Backends from outside that write down, at every step of their life, which multicast switches their process sees.

One line of JSON a step goes to the file that ``MULTICAST_LOG`` names: the arm's ``label``, the step, the process, the switches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from outside_subjects import DTYPES, Clean

from auditor.model import Call, Capabilities, Window, World
from auditor.multicast import MULTICAST_OFF


def note(options: Mapping[str, Any], step: str) -> None:
    seen = {name: os.environ.get(name) for name in MULTICAST_OFF}
    line = json.dumps({"label": options.get("label"), "step": step, "pid": os.getpid(), "seen": seen}) + "\n"
    out = os.open(os.environ["MULTICAST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, line.encode())  # one write: lines of several processes stay whole
    os.close(out)


class Records(Clean):
    """Every rank in one process."""

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        note(options, "probe")
        return super().probe(options)

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        super().__init__(world, options)
        self.options = options
        note(options, "start")

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if not self.calls:
            note(self.options, "first call")
        super().run(call, send, recv)

    def describe(self) -> Mapping[str, Any]:
        return {name: os.environ.get(name, "not set") for name in MULTICAST_OFF}

    def close(self) -> None:
        note(self.options, "close")
        super().close()


class RecordsOne(Records):
    """One process a rank; terms travel by the world's control."""

    process_model: ClassVar[str] = "one"

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if not self.calls:
            note(self.options, "first call")
        self.calls += 1
        dtype = DTYPES[call.format]
        ((rank, window),) = send.items()
        own = window.buffer[window.offset : window.offset + window.nbytes].tobytes()
        raw = [np.frombuffer(data, np.uint8).view(dtype) for data in self.world.control.all_gather(own)]
        total = self.round(self.total({peer: term.astype(np.float32) for peer, term in enumerate(raw)}, rank), dtype)
        self.write(recv[rank], total if call.collective == "all_reduce" else np.split(total, len(raw))[rank])
