"""Where the time of one arm goes: ``python benchmarks/arm.py [CONFIG] [--arm NAME] [--ranks N] [--functions]``.

Runs it as ``auditor run`` does, in a folder that is thrown away, with AUDITOR_PROFILE set, and prints two Markdown tables: the
command's own steps, and a row for every worker process with the seconds of each of its steps. With ``--functions`` also the
functions that took most of the longest worker's time, in a run that those measurements slow.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Note = dict[str, Any]
COMMAND = ("probed", "planned", "plan written", "joined", "analyzed", "reported")
STEPS = (  # what a worker notes -> the heading of the time until it did
    ("worker: job begins", "until it begins"),
    ("worker: plan read", "plan"),
    ("worker: class of the backend loaded", "class"),
    ("worker: backend made", "backend"),
    ("worker: surroundings known", "surroundings"),
    ("worker: arenas made", "arenas"),
    ("worker: first call returned", "first call"),
    ("worker: trials done", "other calls"),
    ("worker: shard closed", "shard"),
    ("worker: backend closed", "end"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="configs/nccl.toml")
    parser.add_argument("--arm", default="default")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--functions", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total, code = recorded(asked, folder)
        notes = [json.loads(line) for line in (folder / "profile" / "notes.jsonl").read_text().splitlines()]
        print(f"{asked.config}, arm {asked.arm}: {total:.1f} s, exit code {code}\n")
        print("\n".join([*command_table(notes, total), "", *worker_table(notes)]))
        if asked.functions:
            longest = max((folder / "profile").glob("*.pstats"), key=lambda path: pstats.Stats(str(path)).total_tt)
            print(f"\n{longest.stem}:")
            pstats.Stats(str(longest)).strip_dirs().sort_stats("tottime").print_stats(40)
    return 0 if code in (0, 1, 5) else code


def recorded(asked: argparse.Namespace, folder: Path) -> tuple[float, int]:
    """(seconds, exit code) of the run; its notes are in ``folder``/profile."""
    command = [sys.executable, "-m", "auditor", "run", asked.config, "--arm", asked.arm, "--out", str(folder / "run")]
    command += ["--ranks", str(asked.ranks)] if asked.ranks else []
    environ = {**os.environ, "AUDITOR_PROFILE": str(folder / "profile")}
    if asked.functions:
        environ["AUDITOR_PROFILE_FUNCTIONS"] = "1"
    (folder / "profile").mkdir()
    began = time.monotonic()
    (folder / "profile" / "notes.jsonl").write_text(json.dumps({"at": began, "process": 0, "what": "began"}) + "\n")
    code = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False).returncode
    return time.monotonic() - began, code


def command_table(notes: list[Note], total: float) -> Iterator[str]:
    """The command's steps, the arm's recording as one of them."""
    yield "| the command's steps | s |"
    yield "|---|---|"
    before = began = notes[0]["at"]
    jobs = [note for note in notes if note["what"] == "supervisor: job ended"]
    marks = [(note["what"], note["at"]) for note in notes if note["what"] in COMMAND]
    marks += [("recorded", jobs[-1]["at"])] if jobs else []
    for what, at in sorted(marks, key=lambda mark: mark[1]):
        yield f"| {what} | {at - before:.2f} |"
        before = at
    yield f"| printed, and the process ended | {began + total - before:.2f} |"


def worker_table(notes: list[Note]) -> Iterator[str]:
    """One row a worker process, in the order in which their jobs were asked for."""
    yield "| worker | " + " | ".join(heading for _, heading in STEPS) + " | sum | calls | ms a call |"
    yield "|---" * (len(STEPS) + 4) + "|"
    asked = {note["attempt"]: note for note in notes if note["what"] == "supervisor: job asked for"}
    begun = [note for note in notes if note["what"] == "worker: job begins"]
    for job in sorted(begun, key=lambda note: note["at"]):
        mine = {note["what"]: note for note in notes if note["process"] == job["process"]}
        yield worker_row(job, asked[job["attempt"]]["at"], mine)


def worker_row(job: Note, asked_at: float, mine: dict[str, Note]) -> str:
    cells, before = [], asked_at
    for what, _ in STEPS:
        at = mine[what]["at"] if what in mine else None
        cells.append("" if at is None else f"{at - before:.2f}")
        before = before if at is None else at
    done = mine.get("worker: trials done", {})
    calls = int(done.get("calls", 0))
    took = done["at"] - mine["worker: first call returned"]["at"] if calls > 1 else 0.0
    name = f"{job['arm']} {'all' if job['fresh'] is None else 'fresh ' + str(job['fresh'])}"
    each = f"{took / (calls - 1) * 1e3:.2f}" if calls > 1 else ""
    return f"| {name} | " + " | ".join(cells) + f" | {before - asked_at:.2f} | {calls} | {each} |"


if __name__ == "__main__":
    sys.exit(main())
