"""A subject of one process a rank that needs no MPI, and others with one fault each; named on the command line by tests.

The terms travel over ``world.control``, which is no fabric: these subjects try the starting and ending of processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from outside_subjects import DTYPES, Clean

from auditor.model import Call, Window


class Gathers(Clean):
    process_model: ClassVar[str] = "one"
    needs_mpi: ClassVar[bool] = False

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        dtype = DTYPES[call.format]
        (rank,) = self.world.local_ranks
        own = send[rank].buffer[send[rank].offset : send[rank].offset + send[rank].nbytes].tobytes()
        terms = [np.frombuffer(part, dtype).astype(np.float32) for part in self.world.control.all_gather(own)]
        total = self.round(self.total(dict(enumerate(terms)), rank), dtype)
        if call.collective == "reduce_scatter":
            total = total[rank * call.count : (rank + 1) * call.count]
        self.write(recv[rank], total)
        self.calls += 1


class Aborts(Gathers):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 1026 and self.world.local_ranks == (1,):
            os.abort()
        super().run(call, send, recv)


class LeavesEarly(Gathers):
    """With exit status 0, as if all were done."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 1026 and self.world.local_ranks == (2,):
            os._exit(0)
        super().run(call, send, recv)


class Waits(Gathers):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        while call.count == 1026 and self.world.local_ranks == (0,):
            time.sleep(1)
        super().run(call, send, recv)


class Raises(Gathers):
    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if call.count == 1026:
            raise RuntimeError("no more of this")
        super().run(call, send, recv)
