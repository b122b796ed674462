"""The conformance kit over backends that need no MPI: one process a rank, started here, with sockets between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def conform(spec, options, ranks, *checks, timeout=200):
    """The kit's lines from every rank."""
    from auditor.socket_control import star

    ends, every = star(ranks)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)])}
    started = []
    for rank, mine in enumerate(ends):
        numbers = [end.fileno() for end in mine]
        command = [sys.executable, __file__, spec, json.dumps(options), ",".join(checks), str(rank), str(ranks)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*command, *map(str, numbers)], env=environ, pass_fds=numbers, **pipes))
    for end in every:
        end.close()
    lines = []
    try:
        for process in started:
            out, err = process.communicate(timeout=timeout)
            answers = [line[5:] for line in out.splitlines() if line.startswith("kit: ")]
            assert len(answers) == 1, f"exit status {process.returncode}\n{out[-2000:]}\n{err[-4000:]}"
            lines += json.loads(answers[0])
    finally:
        for process in started:
            process.kill()
    return lines


def main():
    from auditor.backends.registry import resolve
    from auditor.model import World
    from auditor.socket_control import SocketControl
    from auditor.testing import CHECKS, check_backend

    spec, options, checks, rank, size, *numbers = sys.argv[1:]
    control = SocketControl.from_descriptors(int(rank), int(size), [int(number) for number in numbers])
    world = World(rank_n=int(size), local_ranks=(int(rank),), node_rank=int(rank), control=control)
    chosen = checks.split(",") if checks else list(CHECKS)
    lines = check_backend(resolve(spec), json.loads(options), world=world, checks=chosen)
    print("kit: " + json.dumps(lines), flush=True)


if __name__ == "__main__":
    main()
