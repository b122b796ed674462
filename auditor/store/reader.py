"""Reading a run, from ``run.h5``, from shards, or from what a kill left of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from auditor.errors import EvidenceError
from auditor.model import Bytes, Codes, Observation, Planned
from auditor.numerics.formats import FORMATS
from auditor.store import schema
from auditor.store.file import RecordFile, sources_of
from auditor.store.schema import Row

CACHE_BYTES = 256 << 20
OPEN_FILES = 64
PLAN_SCHEMA = "auditor-plan/1"
PLAN_KEYS = ("run_id", "plan_id", "arms")

Place = tuple[RecordFile, int]  # a file and the number of a row of it


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of an arm; a line torn by a kill is left out. No file: none."""
    if not path.is_file():
        return []
    events = []
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "trial_id" in event:
            events.append(event)
    return events


def parse_plan(text: bytes, where: Path) -> dict[str, Any]:
    """A plan.json's content. Raises EvidenceError where it is torn or of another kind."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise EvidenceError(f"{where}: not JSON ({error}); restore it from a copy") from error
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA or any(key not in plan for key in PLAN_KEYS):
        kind = plan.get("schema") if isinstance(plan, dict) else None
        raise EvidenceError(f"{where}: schema {kind!r} is not {PLAN_SCHEMA!r}; name a run directory of this auditor")
    return plan


class RunReader:
    """A recorded run, opened at a run directory or at a ``run.h5``. Takes a snapshot: rows written later are not seen.

    ``problems``: one line for each thing that is torn or was cut short; what was complete is read all the same. Raises
    EvidenceError where the path is missing or holds no run, the plan is missing, or a file is foreign, newer than this reader or
    torn beyond reading. ``plan``: the text of plan.json, for a directory of shards that has none. ``recompute``: observations
    come without what was counted from the outputs while recording; ``counted`` has it.
    """

    def __init__(self, path: Path, plan: bytes | None = None, *, recompute: bool = False) -> None:
        self.path = Path(path)
        self.recompute = recompute
        self._given_plan = plan
        self.problems: list[str] = []
        self._open: OrderedDict[Path, RecordFile] = OrderedDict()
        self._cache: OrderedDict[tuple[Any, ...], Bytes] = OrderedDict()
        self._cached = 0
        self.files = self._find_files()
        self.plan_bytes = self._find_plan()
        self.plan = parse_plan(self.plan_bytes, self.directory / "plan.json")
        self._check_identity()
        self._arms = {arm["name"]: arm for arm in self.plan["arms"]}
        self._views: dict[str, RecordedArm] = {}

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def run_id(self) -> str:
        return str(self.plan["run_id"])

    @property
    def arm_names(self) -> list[str]:
        """Every arm of the plan, in its order, also those that were not run."""
        return list(self._arms)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Provenance as the first process noted it; {} where nothing was recorded."""
        sources = self.sources()
        return dict(sources[0]["environment"]) if sources else {}

    def sources(self) -> list[dict[str, Any]]:
        """Each recording process: ``file``, ``size``, ``arm``, ``ranks``, ``attempt``, ``environment``."""
        return [entry for file in self.files for entry in sources_of(file, self.directory)]

    def has_rows(self, name: str) -> bool:
        """Whether anything was recorded of an arm."""
        return any(np.any(file.rows["arm"] == name.encode()) for file in self.files)

    def arm(self, name: str) -> RecordedArm:
        """One arm's view. Raises EvidenceError where the plan has no such arm."""
        if name not in self._arms:
            raise EvidenceError(f"{self.path}: no arm {name!r}; it has {', '.join(self._arms) or 'none'}")
        if name not in self._views:
            self._views[name] = RecordedArm(self, self._arms[name], self._arm_rows(name), self._arm_events(name))
        return self._views[name]

    def read(self, file: RecordFile, row: Row) -> Bytes:
        """An output's bytes, read-only, through a cache bounded by bytes."""
        key = (row.digest, row.nbytes) if row.digest else (file.path, row.encoding, row.offset, row.nbytes)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        self._touch(file)
        raw = file.read(row)
        raw.flags.writeable = False
        self._remember(key, raw)
        return raw

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remember(self, key: tuple[Any, ...], raw: Bytes) -> None:
        if raw.nbytes > CACHE_BYTES:
            return
        self._cache[key] = raw
        self._cached += raw.nbytes
        while self._cached > CACHE_BYTES:
            self._cached -= self._cache.popitem(last=False)[1].nbytes

    def _touch(self, file: RecordFile) -> None:
        self._open[file.path] = file
        self._open.move_to_end(file.path)
        while len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].release()

    def _find_files(self) -> list[RecordFile]:
        """``run.h5`` and every shard that it does not hold already."""
        if not self.path.exists():
            raise EvidenceError(f"{self.path}: no such run; list the runs with: ls results")
        if self.path.is_file():
            return [self._opened(self.path)]
        joined = self._joined()
        whole = joined is not None and joined.kind == "run" and not joined.problems
        held = {s["file"]: s["size"] for s in joined.json("sources")} if joined is not None and whole else {}
        fresh = [p for p in self._shards() if held.get(p.relative_to(self.path).as_posix()) != p.stat().st_size]
        files = [] if joined is None else [joined]
        for path in fresh:
            try:
                files.append(self._opened(path))
            except EvidenceError as error:
                self.problems.append(str(error))
        if not files and not (self.path / "plan.json").is_file():
            raise EvidenceError(
                f"{self.path}: no run (neither plan.json nor run.h5 in it); name a directory under results"
            )
        return files

    def _joined(self) -> RecordFile | None:
        """run.h5 where it can be read; a torn one is a problem where shards are left, an error where not."""
        path = self.path / "run.h5"
        if not path.exists():
            return None
        try:
            return self._opened(path)
        except EvidenceError as error:
            if not self._shards():
                raise
            self.problems.append(f"{error}; the shards are read instead")
            return None

    def _shards(self) -> list[Path]:
        """Shards of a run directory, or of a plain directory of shards."""
        beside = (path for path in self.path.glob("*.h5") if path.name != "run.h5")
        return sorted([*(self.path / "shards").glob("*/*.h5"), *beside])

    def _opened(self, path: Path) -> RecordFile:
        file = RecordFile(path)
        if file.cut_off and not len(file.rows):
            file.close()
            raise EvidenceError(f"{path}: torn beyond reading (its end is missing); restore it from a copy")
        self.problems += file.problems
        self._touch(file)
        return file

    def _find_plan(self) -> bytes:
        path = self.directory / "plan.json"
        if self.path.is_dir() and path.is_file():
            return path.read_bytes()
        for file in self.files:
            if file.kind != "shard":
                return file.document("plan")
        if self._given_plan is not None:
            return self._given_plan
        above = self.path.parent.parent / "plan.json"
        if self.path.parent.name == "shards" and above.is_file():
            return above.read_bytes()
        raise EvidenceError(f"{path}: missing, so nothing says what was planned; restore it, it lies beside the shards")

    def _check_identity(self) -> None:
        for file in self.files:
            found = str(file.attributes.get("plan_id"))
            if found != self.plan["plan_id"]:
                ours = self.plan["plan_id"]
                raise EvidenceError(
                    f"{file.path}: recorded under plan {found}, but plan.json is {ours}; keep each run in a directory of its own"
                )

    def _arm_rows(self, name: str) -> list[Place]:
        wanted = name.encode()
        return [(file, int(number)) for file in self.files for number in np.flatnonzero(file.rows["arm"] == wanted)]

    def _arm_events(self, name: str) -> list[dict[str, Any]]:
        if not self.path.is_dir():
            return []
        beside = self.path / "events.jsonl"  # of a plain directory of shards, which is one arm's
        mine = beside.is_file() and self.has_rows(name)
        return read_events(schema.events_path(self.path, name)) + (read_events(beside) if mine else [])


class RecordedArm:
    """One arm of a recorded run; satisfies ``model.ArmView``."""

    def __init__(
        self, reader: RunReader, plan: Mapping[str, Any], places: list[Place], events: list[dict[str, Any]]
    ) -> None:
        self._reader = reader
        self._plan = plan
        self.events = _distinct(_stored_events(places) + [{"attempt": 0, "machinery": False, **e} for e in events])
        self._places: dict[str, list[Place]] = {}
        for file, number in places:
            self._places.setdefault(file.trials[number], []).append((file, number))
        self._observations: dict[str, tuple[Observation, ...]] = {}
        self._outputs: dict[tuple[str, int, int], Place] = {}
        self.counted: dict[tuple[str, int, int], int] = {}  # (trial, repeat, rank) -> off_nearest, where set aside
        reader.problems += [self._machinery_line(event) for event in self._unrepeated()]

    @property
    def arm(self) -> str:
        return str(self._plan["name"])

    @property
    def backend(self) -> str:
        return str(self._plan["backend"])

    @property
    def rank_n(self) -> int:
        return int(self._plan["rank_n"])

    @property
    def status(self) -> str:
        return str(self._plan.get("status", "ok"))

    @property
    def reason(self) -> str:
        return str(self._plan.get("reason") or "")

    @property
    def plan(self) -> Mapping[str, Any]:
        """The arm's entry in plan.json: ``describe``, ``options``, ``env``, ``path``, ``capabilities``, ``waivers``."""
        return self._plan

    @property
    def expect(self) -> Mapping[str, Any]:
        return dict(self._reader.plan.get("expect", {}))

    @property
    def describe(self) -> Mapping[str, Any]:
        return dict(self._plan.get("describe") or {})

    @cached_property
    def planned(self) -> Sequence[Planned]:
        return tuple(_planned(entry) for entry in self._plan.get("trials", ()))

    def observations(self, trial_id: str) -> Sequence[Observation]:
        """All of a trial by (repeat, rank): of several attempts the last, and every crash and hang of the subject."""
        if trial_id not in self._observations:
            self._observations[trial_id] = self._collect(trial_id)
        return self._observations[trial_id]

    def output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        """The output range's codes; read-only. Raises EvidenceError where there are none or they cannot be read."""
        return self._codes("output", (trial_id, repeat, rank))

    def late_output(self, trial_id: str, repeat: int, rank: int) -> Codes:
        """The same range read once more, later; read-only. Raises EvidenceError where it was not, or cannot be read."""
        return self._codes("second reading", (trial_id, repeat, rank))

    def pieces(self, trial_id: str, repeat: int, rank: int) -> Iterator[Codes]:
        """The output in order, 4 MiB at most at a time and not kept: for outputs that are too large to hold."""
        file, row = self._find("output", (trial_id, repeat, rank))
        self._reader._touch(file)
        return (piece.view(FORMATS[row.format.decode()].dtype) for piece in file.blocks(row))

    def _codes(self, what: str, key: tuple[str, int, int]) -> Codes:
        file, row = self._find(what, key)
        codes: Codes = self._reader.read(file, row).view(FORMATS[row.format.decode()].dtype)
        return codes

    def _find(self, what: str, key: tuple[str, int, int]) -> tuple[RecordFile, Row]:
        self.observations(key[0])
        place = self._outputs.get(key)
        row = None if place is None else place[0].row(place[1])
        if row is not None and what != "output":
            row = row.late
        if place is None or row is None or row.encoding == schema.NONE:
            where = f"arm {self.arm}, trial {key[0]}, repeat {key[1]}, rank {key[2]}"
            raise EvidenceError(
                f"{self._reader.path}: no {what} was recorded for {where}; see what it has with: auditor show"
            )
        return place[0], row

    def _collect(self, trial_id: str) -> tuple[Observation, ...]:
        latest: dict[tuple[int, int], tuple[Row, Place]] = {}
        for place in self._places.get(trial_id, ()):
            row = place[0].row(place[1])
            known = latest.get((row.repeat, row.rank))
            if not row.is_event and (known is None or known[0].attempt <= row.attempt):
                latest[row.repeat, row.rank] = (row, place)
        for key, (row, place) in latest.items():
            if row.encoding != schema.NONE:
                self._outputs[trial_id, *key] = place
        seen = [file.observation(row) for row, (file, _) in latest.values()]
        if self._reader.recompute:
            self.counted |= {(trial_id, o.repeat, o.rank): o.off_nearest for o in seen if o.off_nearest is not None}
            seen = [replace(one, off_nearest=None) for one in seen]
        deaths = [
            schema.observation_from_json(e) for e in self.events if e["trial_id"] == trial_id and not e.get("machinery")
        ]
        return tuple(sorted(seen + deaths, key=lambda o: (o.repeat, o.rank)))

    def _unrepeated(self) -> list[dict[str, Any]]:
        """Machinery events whose trial was not run again."""
        return [e for e in self.events if e.get("machinery") and not self._ran_after(e)]

    def _ran_after(self, event: Mapping[str, Any]) -> bool:
        rows = (file.row(number) for file, number in self._places.get(event["trial_id"], ()))
        return any((row.repeat, row.rank) == (event["repeat"], event["rank"]) and not row.is_event for row in rows)

    def _machinery_line(self, event: Mapping[str, Any]) -> str:
        what = event.get("message") or "ended from outside"
        where = f"arm {self.arm}, trial {event['trial_id']}, repeat {event['repeat']}, rank {event['rank']}"
        return f"{self._reader.path}: {where} was cut short ({what}); run it again with --resume"


def next_attempt(run_dir: Path, arm: str) -> int:
    """The attempt number that no process of an arm has used, in shards or in a ``run.h5`` joined from shards since deleted."""
    directory = schema.shard_directory(run_dir, arm)
    used = [int(path.name.split(".")[1]) for path in directory.glob("rank*.*.h5") if path.name.split(".")[1].isdigit()]
    if (run_dir / "run.h5").is_file():
        file = RecordFile(run_dir / "run.h5")
        used += [int(source["attempt"]) for source in file.json("sources") if source["arm"] == arm]
        file.close()
    return max(used, default=-1) + 1


def _planned(entry: Mapping[str, Any]) -> Planned:
    return Planned(trial=schema.planned_trial(entry), repeats=int(entry["repeats"]), probes=tuple(entry["probes"]))


def _stored_events(places: list[Place]) -> list[dict[str, Any]]:
    rows = [(file, file.row(number)) for file, number in places if number in file.events]
    return [
        schema.observation_to_json(file.observation(row)) | {"attempt": row.attempt, "machinery": bool(row.machinery)}
        for file, row in rows
    ]


def _distinct(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each event once: after joining, one may stand both in run.h5 and in the events file."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in events:
        key = tuple(event.get(k) for k in ("trial_id", "repeat", "rank", "status", "attempt", "message"))
        kept.setdefault(key, event)
    return list(kept.values())
