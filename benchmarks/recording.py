"""What recording costs beside the subject: one large AllReduce of 4 MPI ranks, 5 repeats, through the real harness and store.

Prints, for the slowest rank: seconds inside the MPI calls, seconds of the auditor's own work (inputs, prefill, checks, digests,
recording), and each process's peak memory beside 4 times its two arenas + 200 MiB. Run: python benchmarks/recording.py
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, REPEATS = 4, 5
BOUND_MIB = 200


def rank_main(folder: Path, count: int) -> None:
    from auditor.backends.mpi import MpiBackend
    from auditor.harness import Harness, Job
    from auditor.layout import arena_bytes
    from auditor.model import Call, Family, Planned, Trial, World
    from auditor.mpi_control import MpiControl
    from auditor.store import ShardWriter
    from auditor.worker import FileProgress

    control = MpiControl()
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=count)
    trial = Trial(call=call, rank_n=control.size, family=Family("wide"), seed=1)
    planned = Planned(trial=trial, repeats=REPEATS, probes=("benchmark",))
    world = World(rank_n=control.size, local_ranks=(control.rank,), control=control)
    backend = MpiBackend(world, {})
    meta = {"run_id": "bench", "plan_id": "bench", "arm": "bench", "ranks": [control.rank], "attempt": 0}
    writer = ShardWriter(folder / f"rank{control.rank:04d}.0.h5", {**meta, "environment": {}})
    timed = TimedCalls(backend)
    progress = FileProgress(folder / f"progress{control.rank}")
    harness = Harness(timed, world, MpiBackend.probe({}), Job([planned]), writer, progress)
    warm_up = time.perf_counter()
    harness.trial(Planned(trial=trial.with_(count=1 << 22, seed=2), repeats=1, probes=("benchmark",)))
    warm_up = time.perf_counter() - warm_up
    timed.seconds = 0.0
    control.barrier()
    started = time.perf_counter()
    harness.run()
    writer.close()
    total = time.perf_counter() - started
    row = {
        "rank": control.rank,
        "total": total,
        "calls": timed.seconds,
        "first": warm_up,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "arenas_mib": 2 * arena_bytes([trial]) / 2**20,
    }
    (folder / f"row{control.rank}.json").write_text(json.dumps(row))


class TimedCalls:
    """The backend, with the time spent in its calls."""

    def __init__(self, backend: object) -> None:
        self.backend, self.seconds = backend, 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self.backend, name)

    def run(self, *args: object) -> None:
        started = time.perf_counter()
        self.backend.run(*args)  # type: ignore[attr-defined]
        self.seconds += time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1 << 24)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        rank_main(options.folder, options.count)
        return 0
    with tempfile.TemporaryDirectory() as name:
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(RANKS), sys.executable, __file__]
        subprocess.run([*command, "--folder", name, "--count", str(options.count)], check=True)
        rows = [json.loads(path.read_text()) for path in sorted(Path(name).glob("row*.json"))]
    slowest = max(rows, key=lambda row: row["total"])
    own = slowest["total"] - slowest["calls"]
    print(f"AllReduce of {options.count} bfloat16 elements, {RANKS} MPI ranks, {REPEATS} repeats, {platform.machine()}")
    print(f"  inside the MPI calls  {slowest['calls']:.3f} s")
    print(f"  the auditor's work    {own:.3f} s = {own / slowest['calls']:.2f} of the calls (bound 2)")
    print(f"  before that, a first trial of 2^22 elements, which loads the fast loops: {slowest['first']:.3f} s")
    for row in rows:
        bound = 4 * row["arenas_mib"] + BOUND_MIB
        print(f"  rank {row['rank']}: peak {row['peak_mib']:.0f} MiB, bound {bound:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
