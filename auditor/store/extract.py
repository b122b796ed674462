"""A part of a recorded run as a run of its own: some trials, with every text rewritten, in a file that stands alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from auditor.errors import EvidenceError
from auditor.store import schema
from auditor.store.file import RecordFile
from auditor.store.merge import Merger
from auditor.store.reader import RunReader
from auditor.store.verify import verify_file

Rewrite = Callable[[Any], Any]


def extract(
    reader: RunReader, wanted: Mapping[str, Collection[str]], plan: bytes, target: Path, rewrite: Rewrite
) -> Path:
    """Write the rows and outputs of some trials to ``target``, a ``run.h5``; returns its path.

    ``wanted``: arm name -> trial ids. ``plan``: the text of the plan.json that goes with it. ``rewrite``: what is to become of
    each JSON value that is free text (messages, paths, environments). Same run, same arguments: same bytes. Raises
    EvidenceError where the bytes that are copied contradict their digests.
    """
    content = json.loads(plan)
    files = [_restricted(path, wanted) for path in _paths(reader)]
    events = [
        (name, event) for name in wanted for event in reader.arm(name).events if event["trial_id"] in wanted[name]
    ]
    noted = _noted(files)
    events = [(name, event) for name, event in events if _key(name, event) not in noted]
    events = [(name, {**event, **rewrite({"message": event.get("message", "")})}) for name, event in events]
    try:
        merger = _Rewriting(target, reader.run_id, content, files, rewrite)
        with merger:
            merger.copy_outputs()
            merger.write_rows(events)
            merger.write_documents(plan, _sources(reader, wanted, rewrite))
    finally:
        for file in files:
            file.close()
    problems = verify_file(target, content)
    if problems:
        raise EvidenceError(f"{problems[0]}; check the run with: auditor verify {reader.path}")
    return target


def _key(arm: str, event: Mapping[str, Any]) -> tuple[Any, ...]:
    return arm.encode(), event["trial_id"].encode(), event["repeat"], event["rank"], event["attempt"]


def _noted(files: list[RecordFile]) -> set[tuple[Any, ...]]:
    """Rows that are copied anyway: a trial that was skipped is one, and may stand in the events beside kept shards too."""
    return {
        (row.arm, row.trial, row.repeat, row.rank, row.attempt)
        for file in files
        for row in file.select()
        if not row.is_event
    }


def _paths(reader: RunReader) -> list[Path]:
    return [file.path for file in reader.files if file.kind in ("shard", "run")]


def _restricted(path: Path, wanted: Mapping[str, Collection[str]]) -> RecordFile:
    """A file of the run, opened anew, that knows of the wanted rows only."""
    file = RecordFile(path)
    ids = {name.encode(): [trial.encode() for trial in trials] for name, trials in wanted.items()}
    keep = np.zeros(len(file.rows), np.bool_)
    for name, trials in ids.items():
        keep |= (file.rows["arm"] == name) & np.isin(file.rows["trial"], trials)
    file.rows = file.rows[keep]
    return file


def _sources(reader: RunReader, wanted: Mapping[str, Any], rewrite: Rewrite) -> list[dict[str, Any]]:
    return [
        {**source, "environment": rewrite(source["environment"])}
        for source in reader.sources()
        if source["arm"] in wanted
    ]


def texts(path: Path) -> str:
    """Every text that a file holds, in one: attributes, documents, and the rows' own."""
    file = RecordFile(path)
    try:
        rows = {file.text(row, column) for row in file.select() for column in ("text", "trial")}
        documents = [file.document(name) for name in ("plan", "sources")] if file.kind == "run" else []
        parts = [*(str(value) for value in file.attributes.values()), *map(_decoded, (*documents, *sorted(rows)))]
        return "\n".join(parts)
    finally:
        file.close()


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace")


class _Rewriting(Merger):
    """A merger that rewrites each row's own text; a row's checksum is made over what is written."""

    def __init__(
        self, path: Path, run_id: str, plan: Mapping[str, Any], files: list[RecordFile], rewrite: Rewrite
    ) -> None:
        super().__init__(path, run_id, plan, files)
        self._rewrite = rewrite
        self._rewritten: dict[bytes, bytes] = {}

    def _add_row(self, row: schema.Row, text: bytes, trial: bytes) -> None:
        super()._add_row(row, self._free_of(text), trial)

    def _free_of(self, text: bytes) -> bytes:
        if not text:
            return text
        if text not in self._rewritten:
            changed = self._rewrite(json.loads(text))
            self._rewritten[text] = json.dumps(changed, separators=(",", ":")).encode()
        return self._rewritten[text]
