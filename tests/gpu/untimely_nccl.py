"""NCCL with every call made some milliseconds longer, and with a fault of time; named on the command line by tests."""

from __future__ import annotations

import cupy

from auditor.backends.nccl import Nccl

SPIN = cupy.RawKernel(
    'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n) {} }', "spin"
)
CYCLES = 5_000_000  # 2 to 4 ms


class Slow(Nccl):
    """Right in everything; a waiting kernel runs on the stream before NCCL's."""

    def _issue(self, call, comms, datatype_op, send, recv):
        for rank in comms.of:
            with self._lanes[rank].device, self._lanes[rank].stream:
                SPIN((1,), (1,), (cupy.int64(CYCLES),))
        super()._issue(call, comms, datatype_op, send, recv)


class Early(Slow):
    """Returns with the stream still running. Who asks for the time waits, as the events demand."""

    def run(self, call, send, recv):
        self.enqueue(call, send, recv)
        self._queue.clear()

    def last_seconds(self):
        self._lanes.settle(self._timed)
        return super().last_seconds()


class TellsTooLittle(Slow):
    """A tenth of the events' time."""

    def last_seconds(self):
        return super().last_seconds() / 10
