"""Plays cases on a backend in this process, and the loop of a process that is asked for one case after another.

Cases come and results go through files in one directory, so that nothing that was seen travels over what is being audited and a
process that dies or hangs takes nothing with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from auditor.backends.base import LocalControl
from auditor.backends.registry import choose
from auditor.errors import Unsupported
from auditor.evidence.cases import Case, Outcome, Place, Seen, Step, fence, seen_to_json
from auditor.kernels.memory import Memory, adopt
from auditor.layout import PERIOD, Background, Range, prefill_code, recv_range, send_range
from auditor.model import Bytes, Control, OutsideByte, Window, World

POLL = 0.002  # seconds between two looks for the next case
OUTSIDE_CAP = 64
SETUP, END = "setup.json", "end"


class Stage:
    """One process's part of a backend, with arenas of ``nbytes``, on which any case that fits can be played."""

    def __init__(self, backend: Any, world: World, nbytes: int, features: Collection[str] = ()) -> None:
        self.backend, self.world, self.nbytes = backend, world, nbytes
        self.reports_path = "path" in features
        arenas = {name: backend.allocate(nbytes) for name in ("send", "recv")}
        self.patterns = {
            (name, rank): Background(rank, name).bytes(0, max(nbytes, 2 * PERIOD))
            for name in arenas
            for rank in world.local_ranks
        }
        self.memory: dict[tuple[str, int], Memory] = {
            (name, rank): adopt(arenas[name][rank], pattern[: 2 * PERIOD])
            for (name, rank), pattern in self.patterns.items()
        }

    def play(self, case: Case) -> dict[Place, Seen]:
        """What this process's ranks see; breaks off at the first error of the backend."""
        seen: dict[Place, Seen] = {}
        mine = [rank for rank in self.world.local_ranks if rank in case.members]
        for number in range(case.repeats):
            for index, step in enumerate(case.steps):
                rows, go_on = self._step(case, step, mine)
                seen |= {(number, index, rank): row for rank, row in rows.items()}
                if not go_on:
                    return seen
        return seen

    def _step(self, case: Case, step: Step, mine: list[int]) -> tuple[dict[int, Seen], bool]:
        images = {rank: self._images(case, step, rank) for rank in mine}
        for rank, parts in images.items():
            for name, image in parts.items():
                _write(self.memory[name, rank].buffer, image)
        self._settle(mine)
        trial = step.trial(case.rank_n)
        source = send_range(trial)
        send = {rank: self._window("send", rank, source) for rank in mine}
        into = "send" if step.in_place else "recv"
        recv = {rank: self._window(into, rank, recv_range(trial, rank)) for rank in mine}
        self.world.control.barrier()  # one-sided libraries may write into a peer as soon as one rank calls
        try:
            if mine:
                self.backend.run(step.call, send, recv)
        except Exception as error:
            status = "unsupported" if isinstance(error, Unsupported) else "error"
            words = str(error) if status == "unsupported" else f"{type(error).__name__}: {error}"
            return {rank: Seen(status=status, message=words) for rank in mine}, False
        self._settle(mine)
        path = str(self.backend.path()) if self.reports_path and mine else ""
        return {rank: self._look(case, step, rank, images[rank], path) for rank in mine}, True

    def _images(self, case: Case, step: Step, rank: int) -> dict[str, Bytes]:
        """What both arenas of a rank hold when the call begins."""
        trial, fmt = step.trial(case.rank_n), step.fmt
        source, row = send_range(trial), case.members.index(rank)
        images = {name: self.patterns[name, rank][: self.nbytes].copy() for name in ("send", "recv")}
        images["send"][source.fenced] = fenced(step, row).view(np.uint8)
        if not step.in_place:
            target = recv_range(trial, rank)
            code = np.array([prefill_code(fmt, step.prefill)], fmt.dtype)
            images["recv"][target.body] = np.tile(code, step.call.count).view(np.uint8)
        return images

    def _window(self, name: str, rank: int, part: Range) -> Window:
        return Window(self.memory[name, rank].buffer, part.offset, part.nbytes)

    def _look(self, case: Case, step: Step, rank: int, images: Mapping[str, Bytes], path: str) -> Seen:
        trial = step.trial(case.rank_n)
        source, target = send_range(trial), recv_range(trial, rank)
        after = {name: self._read(name, rank) for name in images}
        into = "send" if step.in_place else "recv"
        output = after[into][target.body].copy().view(step.fmt.dtype)
        intact = step.in_place or np.array_equal(after["send"][source.body], images["send"][source.body])
        receives = rank in step.call.receivers(case.rank_n)
        allowed: dict[str, list[Range]] = {"send": [], "recv": []}
        if not step.in_place or step.shares > 1:  # said by send_after; in place, the other shares are scratch
            allowed["send"].append(source)
        if receives:
            allowed[into].append(target)
        outside = [
            OutsideByte(
                buffer=name, offset=int(at) - origin, expected=int(images[name][at]), found=int(after[name][at])
            )
            for name, origin in (("send", source.offset), ("recv", target.offset))
            for at in _changed(images[name], after[name], allowed[name])
        ]
        return Seen(
            output=output if receives else None,
            outside=tuple(outside[:OUTSIDE_CAP]),
            outside_total=len(outside),
            send_after=bool(intact),
            path=path,
        )

    def _read(self, name: str, rank: int) -> Bytes:
        memory = self.memory[name, rank]
        return memory.host(memory.take(0, self.nbytes))

    def _settle(self, mine: list[int]) -> None:
        for (_, rank), memory in self.memory.items():
            if rank in mine:
                memory.settle()


def fenced(step: Step, row: int) -> Any:
    """One member's codes from the first to the last byte that a case sets: zeros, head, data, tail, zeros."""
    room = fence(step.fmt)
    before = np.zeros(room - step.head.shape[1], step.fmt.dtype)
    after = np.zeros(room - step.tail.shape[1], step.fmt.dtype)
    return np.concatenate([before, step.head[row], step.data[row], step.tail[row], after])


def _write(buffer: Any, image: Bytes) -> None:
    """Host bytes into an arena, wherever it lies."""
    if isinstance(buffer, np.ndarray):
        buffer[:] = image
        return
    with buffer.device:
        buffer.set(image)


def _changed(before: Bytes, after: Bytes, allowed: list[Range]) -> Any:
    """Offsets at which bytes changed, those of the ranges that the call may write left out."""
    differs = np.not_equal(before, after)
    for part in allowed:
        differs[part.body] = False
    return np.flatnonzero(differs)


def play_here(backend: type[Any], options: Mapping[str, Any], case: Case) -> Outcome:
    """A case on a backend that drives every rank from this process, made for it and closed after it (no path is asked for)."""
    world = World(rank_n=case.rank_n, local_ranks=tuple(range(case.rank_n)), control=LocalControl())
    one = backend(world, options)
    try:
        return outcome_of(case, Stage(one, world, case.nbytes).play(case))
    finally:
        one.close()


def outcome_of(case: Case, seen: Mapping[Place, Seen]) -> Outcome:
    """What all ranks saw, with how the case broke off where it did."""
    bad = next((one for one in seen.values() if one.status != "ok"), None)
    if bad is not None:
        return Outcome(seen=seen, ended=bad.status, words=bad.message)
    short = len(seen) < case.repeats * len(case.steps) * len(case.members)
    return Outcome(seen=seen, ended="error" if short else "", words="some ranks gave nothing" if short else "")


# ------------------------------------------------------------------------------------------------- a process of its own


def serve(directory: Path, control: Control, rank_n: int, local_ranks: tuple[int, ...], node_rank: int = 0) -> None:
    """Make the backend that ``setup.json`` names, then play ``case.0.json``, ``case.1.json``, ... until told to end.

    Every process leaves ``ready.RANK``, and ``seen.NUMBER.RANK.json`` for each case.
    """
    setup = json.loads((directory / SETUP).read_text())
    world = World(rank_n=rank_n, local_ranks=local_ranks, node_rank=node_rank, control=control)
    backend = choose(setup["backend"], setup["options"])(world, setup["options"])
    stage = Stage(backend, world, setup["nbytes"], setup["features"])
    publish(directory / f"ready.{local_ranks[0]}", "{}")
    number = 0
    while (case := _next_case(directory, number)) is not None:
        rows = [[*place, seen_to_json(seen)] for place, seen in stage.play(case).items()]
        publish(directory / f"seen.{number}.{local_ranks[0]}.json", json.dumps(rows))
        number += 1
    backend.close()


def _next_case(directory: Path, number: int) -> Case | None:
    path = directory / f"case.{number}.json"
    while not path.exists():
        if (directory / END).exists() or not directory.exists():
            return None
        time.sleep(POLL)
    return Case.from_json(json.loads(path.read_text()))


def publish(path: Path, text: str) -> None:
    """Write a file that appears whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(text)
    os.replace(beside, path)
