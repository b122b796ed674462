"""Runs the calls of a JSON job under mpiexec and writes what every rank saw: ``drive.py job.json seen.json``.

job: {"options": {...}, "calls": [{"collective", "op", "format", "count", "root", "group", "in_place", "send_shift", "recv_shift",
"send": codes per rank, "before": [[verb, argument], ...]}]}
seen: {"describe": {...}, "calls": [per call, per rank: {"recv": codes in the receive range, "outside": bytes of both arenas that
changed outside it, "error": str, "path": str, "seconds": float}]}
"""

import json
import sys

import numpy as np

from auditor.backends.mpi import MpiBackend
from auditor.errors import AuditError
from auditor.model import Call, Window, World
from auditor.mpi_control import MpiControl

POISON = 0xA5
BASE = 1024  # bytes; a multiple of 512
ARENA = BASE + 8 * 8 * 5000


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    control = MpiControl()
    backend = MpiBackend(World(rank_n=control.size, local_ranks=(control.rank,), control=control), job["options"])
    arenas = [backend.allocate(ARENA)[control.rank] for _ in range(2)]
    assert all(arena.ctypes.data % 512 == 0 for arena in arenas)
    seen = [perform(backend, control, arenas, row) for row in job["calls"]]
    everyone = [json.loads(part) for part in control.all_gather(json.dumps(seen).encode())]
    if control.rank == 0:
        with open(sys.argv[2], "w") as file:
            json.dump({"describe": backend.describe(), "calls": list(zip(*everyone, strict=True))}, file)
    backend.close()
    backend.close()
    control.close()


def perform(backend, control, arenas, row) -> dict:
    group = row.get("group")
    names = ("collective", "op", "format", "count")
    call = Call(**{name: row[name] for name in names}, root=row.get("root", 0), group=tuple(group) if group else None)
    for verb, *arguments in row.get("before", []):
        getattr(backend, verb)(*arguments)
    send, recv = windows(call, control, arenas, row)
    for arena in arenas:
        arena[:] = POISON
    codes = np.array(row["send"][control.rank], call.fmt.dtype)
    range_of(send)[:] = codes.view(np.uint8)
    before = [arena.copy() for arena in arenas]
    error = ""
    try:
        backend.run(call, {control.rank: send}, {control.rank: recv})
    except AuditError as caught:
        error = f"{type(caught).__name__}: {caught}"
    got = range_of(recv).copy()
    receives = control.rank in call.receivers(control.size)
    if receives:  # what may have changed is put back, so that all else can be compared
        kept = before[0] if recv.buffer is arenas[0] else before[1]
        range_of(recv)[:] = kept[recv.offset : recv.offset + recv.nbytes]
    return {
        "recv": got.view(call.fmt.dtype).tolist(),
        "outside": int(sum((a != b).sum() for a, b in zip(arenas, before, strict=True))),
        "error": error,
        "path": backend.path(),
        "seconds": backend.last_seconds(),
    }


def windows(call, control, arenas, row) -> tuple[Window, Window]:
    size = call.fmt.itemsize
    members = call.members(control.size)
    send = Window(arenas[0], BASE + row.get("send_shift", 0) * size, call.send_count(control.size) * size)
    if not row.get("in_place"):
        return send, Window(arenas[1], BASE + row.get("recv_shift", 0) * size, call.count * size)
    position = members.index(control.rank) if control.rank in members else 0
    share = position * call.count * size if call.collective == "reduce_scatter" else 0
    return send, Window(arenas[0], send.offset + share, call.count * size)


def range_of(window: Window) -> np.ndarray:
    return window.buffer[window.offset : window.offset + window.nbytes]


if __name__ == "__main__":
    main()
