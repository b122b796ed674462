"""Runs the calls of a JSON job under mpiexec and writes what every rank saw: ``drive.py job.json seen.json``.

job: {"options": {...}, "fail_on_rank": rank or null, "calls": [{"collective", "op", "format", "count", "root", "group",
"in_place", "send_shift", "recv_shift", "send": codes per rank, "before": [[verb, argument], ...]}]}
seen: {"describe": {...}, "gathered": [...], "calls": [per call, per rank: {"recv": codes in the receive range, "outside": bytes
of both arenas that changed outside it, "error": str, "path": str, "seconds": float}]}
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from auditor.backends import mpi_ops
from auditor.backends.mpi import MpiBackend
from auditor.errors import AuditError
from auditor.model import Call, Window, World
from auditor.mpi_control import MpiControl

POISON = 0xA5
BASE = 1024  # bytes; a multiple of 512
ARENA = BASE + 8 * 4 * 1100


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    control = MpiControl()
    if control.rank == job.get("fail_on_rank"):
        mpi_ops.PlantedSum.add = broken_add
    world = World(rank_n=control.size, local_ranks=(control.rank,), control=control)
    backend = MpiBackend(world, job["options"])
    arenas = [backend.allocate(ARENA)[control.rank] for _ in range(2)]
    assert all(arena.ctypes.data % 512 == 0 and arena.shape == (ARENA,) for arena in arenas)
    seen = [perform(backend, control, arenas, row) for row in job["calls"]]
    everyone = [json.loads(part) for part in control.all_gather(json.dumps(seen).encode())]
    gathered = [part.decode() for part in control.all_gather(b"x" * control.rank)]
    root = control.broadcast(b"from 1" if control.rank == 1 else b"", 1).decode()
    control.barrier()
    if control.rank == 0:
        calls = list(zip(*everyone, strict=True))
        with open(sys.argv[2], "w") as file:
            json.dump({"describe": backend.describe(), "gathered": [*gathered, root], "calls": calls}, file)
    backend.close()
    backend.close()
    control.close()
    control.close()


def broken_add(self: mpi_ops.PlantedSum, a: Any, total: Any) -> None:
    raise MemoryError("no room for the sum")


def perform(backend: MpiBackend, control: MpiControl, arenas: list[Any], row: dict[str, Any]) -> dict[str, Any]:
    names = ("collective", "op", "format", "count")
    group = tuple(row["group"]) if row.get("group") else None
    call = Call(**{name: row[name] for name in names}, root=row.get("root", 0), group=group)
    for verb, *arguments in row.get("before", []):
        getattr(backend, verb)(*arguments)
    send, recv = windows(call, control, arenas, row)
    for arena in arenas:
        arena[:] = POISON
    range_of(send)[:] = np.array(row["send"][control.rank], call.fmt.dtype).view(np.uint8)
    before = [arena.copy() for arena in arenas]
    error = ""
    try:
        backend.run(call, {control.rank: send}, {control.rank: recv})
    except AuditError as caught:
        error = f"{type(caught).__name__}: {caught}"
    got = range_of(recv).copy()
    if control.rank in call.receivers(
        control.size
    ):  # what may have changed is put back, so that all else can be compared
        kept = before[0] if recv.buffer is arenas[0] else before[1]
        range_of(recv)[:] = kept[recv.offset : recv.offset + recv.nbytes]
    return {
        "recv": got.view(call.fmt.dtype).tolist(),
        "outside": int(sum((a != b).sum() for a, b in zip(arenas, before, strict=True))),
        "error": error,
        "path": backend.path(),
        "seconds": backend.last_seconds(),
    }


def windows(call: Call, control: MpiControl, arenas: list[Any], row: dict[str, Any]) -> tuple[Window, Window]:
    size = call.fmt.itemsize
    members = call.members(control.size)
    send = Window(arenas[0], BASE + row.get("send_shift", 0) * size, call.send_count(control.size) * size)
    if not row.get("in_place"):
        return send, Window(arenas[1], BASE + row.get("recv_shift", 0) * size, call.count * size)
    position = members.index(control.rank) if control.rank in members else 0
    share = position * call.count * size if call.collective == "reduce_scatter" else 0
    return send, Window(arenas[0], send.offset + share, call.count * size)


def range_of(window: Window) -> Any:
    return window.buffer[window.offset : window.offset + window.nbytes]


if __name__ == "__main__":
    main()
