"""One rounded bfloat16 sum of ``N`` ranks on GPU 0, in one process; prints what came of it as JSON.

``further_than_bound``: outputs that differ from the exact sum, here the sum in binary64, by more than any order of the additions
in binary32 or bfloat16 allows: (N - 1) roundings, each by half a unit of the largest partial sum.
"""

from __future__ import annotations

import json
import sys

import ml_dtypes
import numpy as np

from auditor.backends.nccl import Nccl
from auditor.model import Call, Window
from auditor.testing.bench import one_process_world

COUNT = 1 << 16
rank_n = int(sys.argv[1])
rng = np.random.default_rng(3)
terms = rng.normal(size=(rank_n, COUNT)).astype(ml_dtypes.bfloat16)
call = Call(collective="all_reduce", op="sum", format="bfloat16", count=COUNT)
backend = Nccl(one_process_world(Nccl, rank_n), {"devices": [0] * rank_n})
send, recv = {}, {}
arenas, results = backend.allocate(terms[0].nbytes), backend.allocate(terms[0].nbytes)
for rank in range(rank_n):
    arenas[rank].set(terms[rank].view(np.uint8))
    send[rank] = Window(arenas[rank], 0, terms[rank].nbytes)
    recv[rank] = Window(results[rank], 0, terms[rank].nbytes)
backend.run(call, send, recv)
outputs = [results[rank].get().view(ml_dtypes.bfloat16) for rank in range(rank_n)]
wide = terms.astype(np.float64)
bound = (rank_n - 1) * np.abs(wide).sum(axis=0) * 2.0**-8
error = np.abs(outputs[0].astype(np.float64) - wide.sum(axis=0))
said = {
    "path": backend.path(),
    "ranks_per_gpu": backend.describe()["ranks_per_gpu"],
    "outputs_differ": sum(int((one.view(np.uint16) != outputs[0].view(np.uint16)).sum()) for one in outputs),
    "further_than_bound": int((error > bound).sum()),
}
backend.close()
print(json.dumps(said))
