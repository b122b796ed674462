"""Subjects that run a real MPI library and then misbehave about time; named on the command line by tests."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from auditor.backends.mpi import MpiBackend
from auditor.model import Call, Window


class EarlyAndFalse(MpiBackend):
    """MPI's result of a large call goes to a buffer of this class, and is copied to the receive range by a thread, after the
    return. Its clock tells a tenth of MPI_Wtime's time.
    """

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if not recv or max(window.nbytes for window in recv.values()) <= 4096:
            super().run(call, send, recv)
            return
        (rank, window), *_ = recv.items()
        aside = np.empty(window.nbytes + 512, np.uint8)
        start = (window.address - aside.ctypes.data) % 512
        target = window.buffer[window.offset : window.offset + window.nbytes]
        result = aside[start : start + window.nbytes]
        result[:] = target  # what MPI leaves untouched stays as it was
        super().run(call, send, {rank: Window(aside, start, window.nbytes)})
        threading.Timer(0.004, lambda: np.copyto(target, result)).start()

    def last_seconds(self) -> float:
        return super().last_seconds() / 10
