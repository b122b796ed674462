"""Does a record still say what was measured? Every digest is computed again from the bytes, differences resolved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from auditor.errors import EvidenceError
from auditor.model import STATUSES, Trial
from auditor.numerics.formats import FORMATS
from auditor.store import schema
from auditor.store.file import RecordFile, rows_of
from auditor.store.reader import RunReader
from auditor.store.schema import Row


def verify(run_dir: Path) -> list[str]:
    """What is wrong with a recorded run, a line each; empty: nothing. Accepts a run directory or a ``run.h5``."""
    try:
        reader = RunReader(run_dir)
    except EvidenceError as error:
        return [str(error)]
    with reader:
        problems = list(reader.problems)
        for file in reader.files:
            problems += verify_record(file, reader.plan)
            if file.kind == "listing":
                problems += _listing_problems(file, reader.directory)
            file.release()
    return problems


def verify_file(path: Path, plan: Mapping[str, Any]) -> list[str]:
    """As :func:`verify`, for one file under a plan."""
    try:
        file = RecordFile(path)
    except EvidenceError as error:
        return [str(error)]
    try:
        return file.problems + verify_record(file, plan)
    finally:
        file.close()


def verify_record(file: RecordFile, plan: Mapping[str, Any]) -> list[str]:
    """Attributes, rows, references and digests of an open file."""
    return [*_attribute_problems(file, plan), *_damaged_rows(file), *_row_problems(file, plan), *_digest_problems(file)]


def _attribute_problems(file: RecordFile, plan: Mapping[str, Any]) -> Iterator[str]:
    attributes = file.attributes
    for key in ("run_id", "plan_id"):
        if str(attributes.get(key)) != plan[key]:
            yield f"{file.path}: {key} is {attributes.get(key)}, the plan's is {plan[key]}"
    if file.kind not in ("shard", "run", "listing"):
        yield f"{file.path}: kind {file.kind!r} is none of shard, run, listing"
    try:
        json.loads(attributes.get("environment", ""))
    except ValueError:
        yield f"{file.path}: environment is missing or not JSON"
    if file.kind == "run":
        yield from _run_problems(file)


def _run_problems(file: RecordFile) -> Iterator[str]:
    stated, found = int(file.attributes.get("observations", -1)), len(file.rows) + len(file.damaged)
    if stated != found:
        yield f"{file.path}: attribute observations is {stated}, the index has {found} rows"
    for name in ("plan", "sources"):
        try:
            file.json(name)
        except EvidenceError as error:
            yield str(error)


def _damaged_rows(file: RecordFile) -> Iterator[str]:
    for row in rows_of(file.damaged[:20]):
        yield f"{file.name(row)}: this index row, or its text, is damaged"


def _row_problems(file: RecordFile, plan: Mapping[str, Any]) -> Iterator[str]:
    arms = {str(arm["name"]).encode() for arm in plan["arms"]}
    trials: dict[bytes, Trial | None] = {}
    lengths = file.raw_lengths()
    seen: set[tuple[Any, ...]] = set()
    for row in file.select():
        text = file.text(row, "trial")
        if text not in trials:
            trials[text] = _trial(text)
        for reading in row.readings:
            for problem in _one_row(reading, trials[text], arms, lengths):
                yield f"{file.name(row)}: {problem}"
        key = (row.arm, row.trial, row.repeat, row.rank, row.attempt)
        if key in seen and not row.is_event:
            yield f"{file.name(row)}: recorded twice in attempt {row.attempt}"
        if not row.is_event:
            seen.add(key)


def _trial(text: bytes) -> Trial | None:
    try:
        return Trial.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError):
        return None


def _one_row(row: Row, trial: Trial | None, arms: set[bytes], lengths: Mapping[int, int]) -> Iterator[str]:
    status, encoding, nbytes = row.status.decode(errors="replace"), row.encoding, row.nbytes
    if row.arm not in arms:
        yield "the plan has no such arm"
    if status not in STATUSES:
        yield f"status {status!r} is none of {', '.join(STATUSES)}"
    if encoding not in (schema.RAW, schema.XOR, schema.NONE):
        yield f"encoding {encoding!r} is none of raw, xor, none"
    if encoding == schema.XOR and lengths.get(row.reference) != nbytes:
        yield "it is stored as the difference from an output that is not in the file"
    if encoding != schema.NONE and nbytes and not row.digest:
        yield "its bytes have no digest"
    if trial is None:
        if status not in ("crash", "hang"):
            yield "the trial's own text cannot be read"
        return
    yield from _against_trial(row, trial)


def _against_trial(row: Row, trial: Trial) -> Iterator[str]:
    if trial.trial_id.encode() != row.trial:
        yield f"the trial's text has the id {trial.trial_id}"
    if trial.call.format.encode() != row.format or trial.call.format not in FORMATS:
        yield f"format {row.format.decode(errors='replace')!r} is not the trial's {trial.call.format!r}"
        return
    stored, expected = row.nbytes, trial.call.count * trial.call.fmt.itemsize
    if row.encoding != schema.NONE and stored != expected:
        yield f"{stored} bytes are stored, {trial.call.count} elements of {trial.call.format} take {expected}"
    received = row.rank in trial.call.receivers(trial.rank_n)
    if row.encoding == schema.NONE and row.status == b"ok" and received:
        yield "status is ok, but no output is stored"


def _digest_problems(file: RecordFile) -> Iterator[str]:
    """One line for each observation whose bytes do not give its digest; each stored output is read once."""
    computed: dict[tuple[Any, ...], str] = {}
    readings = (reading for row in file.select() for reading in row.readings)
    for row in (reading for reading in readings if reading.encoding != schema.NONE):
        place = (row.encoding, row.offset, row.nbytes, row.reference)
        if place not in computed:
            computed[place] = _digest(file, row)
        stated, found = row.digest.decode(errors="replace"), computed[place]
        if found.startswith("!"):
            yield f"{file.name(row)}: {found[1:]}"
        elif stated != found and (stated or place[2]):
            yield f"{file.name(row)}: the bytes give SHA-256 {found[:16]}..., recorded was {stated[:16]}..."


def _digest(file: RecordFile, row: Row) -> str:
    """SHA-256 of the bytes; "!" and the reason where they cannot be read."""
    total = hashlib.sha256()
    try:
        for piece in file.blocks(row):
            total.update(piece.data)
    except EvidenceError as error:
        return "!" + str(error).partition(file.name(row) + ": ")[2]
    return total.hexdigest()


def _listing_problems(file: RecordFile, directory: Path) -> Iterator[str]:
    for source in file.json("sources"):
        path = directory / source["file"]
        if not path.is_file():
            yield f"{file.path}: lists {source['file']}, which is missing; restore it from a copy"
        elif schema.file_digest(path) != source["sha256"]:
            yield f"{path}: its SHA-256 is not the one that {file.path.name} lists"
