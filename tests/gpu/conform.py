"""Runs the conformance kit here, alone or as one rank under mpiexec: ``conform.py MODULE:CLASS OPTIONS [RANKS=n] [CHECK...]``.

Alone, RANKS says how many ranks a backend drives that drives all from one process. Prints one line ``kit: [...]`` a process.
"""

from __future__ import annotations

import json
import os
import sys

from auditor.backends.registry import resolve
from auditor.errors import Unavailable
from auditor.model import World
from auditor.mpi_control import MpiControl, launcher_rank_and_size
from auditor.testing import CHECKS, check_backend
from auditor.worker import node_rank


def main() -> None:
    spec, options, rest = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
    ranks = next((int(word[6:]) for word in rest if word.startswith("RANKS=")), 1)
    checks = [word for word in rest if not word.startswith("RANKS=")] or list(CHECKS)
    control = world = None
    if launcher_rank_and_size() is not None:
        control = MpiControl()
        own, here = (control.rank,), node_rank(os.environ)
        world = World(rank_n=control.size, local_ranks=own, node_rank=here, control=control)
    try:
        lines = check_backend(resolve(spec), options, ranks, world=world, checks=checks)
    except Unavailable as error:
        lines = [f"unavailable: {error}"]
    print("kit: " + json.dumps(lines), flush=True)


if __name__ == "__main__":
    main()
