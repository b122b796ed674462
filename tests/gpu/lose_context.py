"""Spoils the CUDA context by an illegal access, then calls: the process must end by SIGABRT, and say why."""

from __future__ import annotations

import cupy

from auditor.backends.nccl import Nccl
from auditor.model import Call, Window
from auditor.testing.bench import one_process_world

world = one_process_world(Nccl, 1)
backend = Nccl(world, {})
send, recv = backend.allocate(4096)[0], backend.allocate(4096)[0]
cupy.RawKernel('extern "C" __global__ void spoil(int* p) { *p = 1; }', "spoil")((1,), (1,), (cupy.uint64(8),))
call = Call(collective="all_reduce", op="sum", format="binary32", count=4)
backend.run(call, {0: Window(send, 0, 16)}, {0: Window(recv, 0, 16)})
print("still alive")
