"""The parts of joining: which run each arm comes from, and the copying of outputs and rows into one file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from auditor.errors import EvidenceError
from auditor.store import schema
from auditor.store.file import RecordFile
from auditor.store.reader import RunReader
from auditor.store.schema import Row
from auditor.store.writer import Appender, create_file

Content = tuple[Any, ...]
Where = tuple[bytes, int, int]  # encoding, offset, reference


def check_same_plan(readers: Sequence[RunReader]) -> None:
    """Raises EvidenceError, naming what differs, where the runs were not recorded under one plan."""
    first = readers[0]
    for other in readers[1:]:
        ours, theirs = first.plan, other.plan
        if ours["plan_id"] != theirs["plan_id"]:
            raise EvidenceError(
                f"{other.path}: plan {theirs['plan_id']} is not {first.path}'s {ours['plan_id']} "
                f"({plan_difference(ours, theirs)}); record both with the same config, or use: auditor compare"
            )


def plan_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The first thing that two plans differ in, in a few words."""
    for key in ("title", "expect"):
        if ours.get(key) != theirs.get(key):
            return f"{key}: {ours.get(key)!r} against {theirs.get(key)!r}"
    names = [[arm["name"] for arm in plan["arms"]] for plan in (ours, theirs)]
    if names[0] != names[1]:
        return f"arms: {', '.join(names[0])} against {', '.join(names[1])}"
    for left, right in zip(ours["arms"], theirs["arms"], strict=True):
        for key in ("backend", "rank_n", "options", "env", "path"):
            if left.get(key) != right.get(key):
                return f"arm {left['name']}, {key}: {left.get(key)!r} against {right.get(key)!r}"
        counts = [len(arm.get("trials", ())) for arm in (left, right)]
        if counts[0] != counts[1]:
            return f"arm {left['name']}: {counts[0]} trials against {counts[1]}"
    return "the same arms with other trials, or other versions of the auditor"


def merged_run_id(readers: Sequence[RunReader]) -> str:
    """The run id that all share, or one made of theirs, the same in whatever order they are given."""
    names = sorted({reader.run_id for reader in readers})
    return names[0] if len(names) == 1 else "joined-" + hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def merged_plan(readers: Sequence[RunReader]) -> tuple[dict[str, Any], dict[str, list[RunReader]]]:
    """One plan whose arms are taken from the run that ran them, and which runs each arm's record comes from."""
    plan = copy.deepcopy(readers[0].plan)
    chosen = {name: _runs_of(name, readers) for name in readers[0].arm_names}
    plan["arms"] = [copy.deepcopy(_entry(chosen[name][0], name)) for name in chosen]
    return plan, chosen


def _entry(reader: RunReader, name: str) -> dict[str, Any]:
    return next(arm for arm in reader.plan["arms"] if arm["name"] == name)


def _runs_of(name: str, readers: Sequence[RunReader]) -> list[RunReader]:
    """The runs that recorded an arm; where none did, the first that at least says why."""
    recorded = [reader for reader in readers if reader.has_rows(name) or reader.arm(name).events]
    if not recorded:
        tried = [reader for reader in readers if _entry(reader, name).get("status") != "not_run"]
        return [(tried or list(readers))[0]]
    seen: dict[tuple[str, str], RunReader] = {}
    for reader in recorded:
        for source in reader.sources():
            if source["arm"] != name:
                continue
            other = seen.setdefault((reader.run_id, source["file"].rpartition("/")[2]), reader)
            if other is not reader or any(r.run_id != reader.run_id for r in recorded):
                two = f"{recorded[0].path} and in {recorded[1].path}"
                raise EvidenceError(f"arm {name} was recorded in {two}; join one of them, or use: auditor compare")
    return sorted(recorded, key=lambda reader: _entry(reader, name).get("status") != "ok")


class Merger:
    """Copies outputs, rows and documents of several files into a new one at ``path``. Use as a context manager."""

    def __init__(self, path: Path, run_id: str, plan: Mapping[str, Any], files: Sequence[RecordFile]) -> None:
        self._plan = plan
        self._inputs = [file for file in files if file.kind in ("shard", "run")]
        names = [str(arm["name"]).encode() for arm in plan["arms"]]
        attributes = {"kind": "run", "run_id": run_id, "plan_id": str(plan["plan_id"])}
        raw = sum(row.nbytes for file in self._inputs for row in file.outputs(schema.RAW))
        chunk = max(4096, min(schema.BYTES_CHUNK, 1 << max(0, raw - 1).bit_length()))
        self._file = create_file(path, attributes, max(map(len, names), default=1), bytes_chunk=chunk, pack=True)
        self._bytes, self._xor = Appender(self._file["bytes"]), Appender(self._file["xor"])
        self._text, self._index = Appender(self._file["text"]), Appender(self._file["index"])
        self._rows: list[Row] = []
        self._row_texts: list[bytes] = []
        self._contents: dict[Content, Where] = {}
        self._texts: dict[bytes, int] = {}
        self._arms = names

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def copy_outputs(self) -> None:
        """Every distinct output once: first the raw ones, then the differences."""
        for file in self._inputs:
            for row in file.outputs(schema.RAW):
                if _content(file, row) not in self._contents:
                    self._contents[_content(file, row)] = self._copy_raw(file, row)
            file.release()
        for file in self._inputs:
            bases = {row.offset: _content(file, row) for row in file.outputs(schema.RAW)}
            for row in file.outputs(schema.XOR):
                if _content(file, row) not in self._contents:
                    self._contents[_content(file, row)] = self._copy_xor(file, row, bases)
            file.release()
        self._bytes.drain()
        self._xor.drain()

    def write_rows(self, events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """The index: arms in the plan's order, as recorded; after each, the crashes and hangs that the parent process noted."""
        self._check_arms()
        for name in self._arms:
            seen: set[tuple[Any, ...]] = set()
            for file in self._inputs:
                for row in file.select(file.rows["arm"] == name):
                    key = (row.trial, row.repeat, row.rank, row.attempt)
                    if (
                        not row.is_event and key not in seen
                    ):  # events come below; a shard may have been joined in part before
                        seen.add(key)
                        self._add_row(self._placed(file, row), file.text(row), file.text(row, "trial"))
            for arm, event in events:
                if arm.encode() == name:
                    self._add_event(arm, event)
            self._write_rows()
        self._text.drain()
        self._index.drain()
        self._file.attrs["observations"] = self._index.length

    def _check_arms(self) -> None:
        for file in self._inputs:
            unknown = set(file.rows["arm"].tolist()) - set(self._arms)
            if unknown:
                names = ", ".join(sorted(name.decode(errors="replace") for name in unknown))
                raise EvidenceError(f"{file.path}: holds arm {names}, which the plan has not; it was not joined")

    def write_documents(self, plan: bytes, sources: Sequence[Mapping[str, Any]]) -> None:
        """The plan and what is known of each recording process."""
        first = sources[0]["environment"] if sources else {}
        self._file.attrs["environment"] = json.dumps(first, sort_keys=True)
        schema.write_document(self._file, "plan", plan)
        schema.write_document(self._file, "sources", json.dumps(list(sources)).encode())

    def _copy_raw(self, file: RecordFile, row: Row) -> Where:
        offset = self._bytes.length
        for piece in file.blocks(row):
            self._bytes.add(piece)
        return schema.RAW, offset, 0

    def _copy_xor(self, file: RecordFile, row: Row, bases: Mapping[int, Content]) -> Where:
        base = bases.get(row.reference)
        if base is None or self._contents[base][0] != schema.RAW:
            return self._copy_raw(file, row)
        offset = self._xor.length
        for words in file.xor_words(row):
            self._xor.add(words)
        return schema.XOR, offset, self._contents[base][1]

    def _placed(self, file: RecordFile, row: Row) -> Row:
        """The row with the places that its outputs have in the new file."""
        if row.encoding != schema.NONE:
            encoding, offset, reference = self._contents[_content(file, row)]
            row = row._replace(encoding=encoding, offset=offset, reference=reference)
        if row.late_encoding != schema.NONE:
            encoding, offset, reference = self._contents[_content(file, row.late)]
            row = row._replace(late_encoding=encoding, late_offset=offset, late_reference=reference)
        return row

    def _add_event(self, arm: str, event: Mapping[str, Any]) -> None:
        observation = schema.observation_from_json(event)
        trial = self._trials.get((arm, observation.trial_id), b"")
        nothing: dict[str, Any] = dict.fromkeys(Row._fields, 0) | Row._field_defaults
        nothing["format"] = json.loads(trial)["format"].encode() if trial else b""
        origin = {"arm": arm.encode(), "attempt": event["attempt"], "machinery": int(event["machinery"])}
        row = Row(**(nothing | {"encoding": schema.NONE} | schema.row_values(observation) | origin))
        self._add_row(row, schema.text_of(observation), trial)

    def _add_row(self, row: Row, text: bytes, trial: bytes) -> None:
        text_at, trial_at = self._keep_text(text), self._keep_text(trial)
        self._rows.append(row._replace(text_at=text_at, text_n=len(text), trial_at=trial_at, trial_n=len(trial)))
        self._row_texts.append(text)
        if len(self._rows) >= 4096:
            self._write_rows()

    def _write_rows(self) -> None:
        values = np.array(self._rows, dtype=self._index.dataset.dtype)
        self._index.add(schema.seal(values, self._row_texts))
        self._rows, self._row_texts = [], []

    @cached_property
    def _trials(self) -> dict[tuple[str, str], bytes]:
        return {
            (str(arm["name"]), trial["trial_id"]): schema.trial_text(schema.planned_trial(trial))
            for arm in self._plan["arms"]
            for trial in arm.get("trials", ())
        }

    def _keep_text(self, text: bytes) -> int:
        if text not in self._texts:
            self._texts[text] = self._text.add(np.frombuffer(text, dtype=np.uint8))
        return self._texts[text]


def _content(file: RecordFile, row: Row) -> Content:
    """What makes two outputs the same: digest and length; without a digest, the place."""
    return (row.digest, row.nbytes) if row.digest else (file.path, row.offset, row.nbytes)
