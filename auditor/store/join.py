"""Joining shards, or arms recorded apart, into one ``run.h5`` that stands alone. Memory is bounded: outputs move in blocks.

Equal bytes are stored once. An output stored as a difference keeps that form, so every output stored raw anywhere is copied
before the first difference: then what a difference refers to is in the file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.errors import EvidenceError
from auditor.store import schema
from auditor.store.file import RecordFile
from auditor.store.merge import Merger, check_same_plan, merged_plan, merged_run_id
from auditor.store.reader import RunReader
from auditor.store.verify import verify_file
from auditor.store.writer import create_file

SIZE_LIMIT = 8 << 30
Seal = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def join(run_dir: Path, *, keep_shards: bool = False, size_limit: int = SIZE_LIMIT) -> Path:
    """Write ``run.h5`` of a run directory, verified before it takes its name; returns its path.

    Afterwards the shards are deleted unless ``keep_shards``; a torn or unclosed one always stays. Where the outputs take more
    than ``size_limit`` bytes the shards stay and ``run.h5`` only lists them with their SHA-256. A run of which nothing was
    recorded gets a ``run.h5`` without rows. Raises EvidenceError where there is no run, or where what was recorded contradicts
    its digests (nothing is written or deleted then).
    """
    with RunReader(run_dir) as reader:
        events = [(name, event) for name in reader.arm_names for event in reader.arm(name).events]
        shards = [file for file in reader.files if file.kind == "shard"]
        target = reader.directory / "run.h5"
        if shards and stored_bytes(reader.files) > size_limit:
            return _write_listing(target, reader)
        done = [file for file in reader.files if file.kind == "run"]
        if shards or not done or sum(len(file.events) for file in done) != len(events):
            _write_run(target, reader.run_id, reader.plan, reader.plan_bytes, [reader], events)
        removable = [file.path for file in shards if file.closed_properly and not file.problems]
    if not keep_shards:
        _remove(removable)
    return target


def join_runs(
    run_dirs: Sequence[Path], out_dir: Path, *, size_limit: int | None = None, seal: Seal | None = None
) -> Path:
    """Join arms that were recorded apart (run directories, or plain directories of shards) into the new run ``out_dir``.

    All must be recorded under one plan; each arm comes from one of them, or from several that hold different ranks of one run.
    ``seal``: what makes a plan out of arms put together; its digests are the planner's to know. Returns the path of the new
    ``run.h5``; the sources are left as they are. Raises EvidenceError where that does not hold, naming what differs.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise EvidenceError(f"{out_dir}: exists and is not empty; choose another --out")
    readers = _open_all([Path(path) for path in run_dirs])
    try:
        check_same_plan(readers)
        size = stored_bytes(file for reader in readers for file in reader.files)
        if size_limit is not None and size > size_limit:
            raise EvidenceError(f"{out_dir}: {size} bytes of outputs exceed the size limit of {size_limit}; raise it")
        plan, chosen = merged_plan(readers)
        plan["run_id"] = merged_run_id(readers)
        plan = plan if seal is None else dict(seal(plan))
        events = [(name, event) for name, of in chosen.items() for reader in of for event in reader.arm(name).events]
        text = json.dumps(plan, indent=1).encode()
        out_dir.mkdir(parents=True, exist_ok=True)
        target = out_dir / "run.h5"
        _write_run(target, plan["run_id"], plan, text, readers, events)
        replace_file(out_dir / "plan.json", text)
    finally:
        for reader in readers:
            reader.close()
    return target


def stored_bytes(files: Iterable[RecordFile]) -> int:
    """Bytes that the outputs take in files, each distinct one once."""
    distinct: dict[tuple[bytes, int], int] = {}
    for file in files:
        for digest, late, nbytes in file.rows[["digest", "late_digest", "nbytes"]].tolist():
            distinct[digest, nbytes] = nbytes
            distinct[late or digest, nbytes] = nbytes
    return sum(distinct.values())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that at every moment it is either the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def _open_all(paths: Sequence[Path]) -> list[RunReader]:
    """Readers of all paths; a plain directory of shards without a plan takes it from one of the others."""
    plans = [found for path in paths if (found := _plan_beside(path)) is not None]
    readers: list[RunReader] = []
    try:
        for path in paths:
            own = _plan_beside(path)
            readers.append(RunReader(path, plan=None if own is not None or not plans else plans[0]))
    except EvidenceError:
        for reader in readers:
            reader.close()
        raise
    return readers


def _plan_beside(path: Path) -> bytes | None:
    if (path / "plan.json").is_file():
        return (path / "plan.json").read_bytes()
    run = path if path.is_file() else path / "run.h5"
    if not run.is_file():
        return None
    file = RecordFile(run)
    try:
        return file.document("plan")
    finally:
        file.close()


def _write_run(
    target: Path,
    run_id: str,
    plan: Mapping[str, Any],
    plan_bytes: bytes,
    readers: Sequence[RunReader],
    events: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    """Merge into a temporary file, verify that, and give it its name."""
    sources = [source for reader in readers for source in reader.sources()]
    temporary = _fresh(target)
    try:
        merger = Merger(temporary, run_id, plan, [file for reader in readers for file in reader.files])
        with merger:
            merger.copy_outputs()
            merger.write_rows(events)
            merger.write_documents(plan_bytes, sources)
        problems = verify_file(temporary, plan)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise EvidenceError(f"{problems[0]}{more}; {target.name} was not written, the shards are kept")
        _publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_listing(target: Path, reader: RunReader) -> Path:
    """A ``run.h5`` without outputs, for a run too large to join: its shards by name, size and SHA-256."""
    if any(file.kind == "run" for file in reader.files):
        raise EvidenceError(
            f"{target}: holds a part of the run already, and the whole exceeds the size limit; raise the limit"
        )
    sources = [
        source | {"sha256": schema.file_digest(reader.directory / source["file"])} for source in reader.sources()
    ]
    temporary = _fresh(target)
    first = reader.environment
    attributes = {"kind": "listing", "run_id": reader.run_id, "plan_id": str(reader.plan["plan_id"]), "observations": 0}
    with create_file(temporary, attributes | {"environment": json.dumps(first, sort_keys=True)}, 1) as file:
        schema.write_document(file, "plan", reader.plan_bytes)
        schema.write_document(file, "sources", json.dumps(sources).encode())
    _publish(temporary, target)
    return target


def _fresh(target: Path) -> Path:
    """A temporary name beside ``target``, free."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    return temporary


def _publish(temporary: Path, target: Path) -> None:
    for path in (temporary, temporary.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    os.replace(temporary, target)


def _remove(shards: Sequence[Path]) -> None:
    """Delete joined shards, their events (they are rows of run.h5 now) and the directories left empty."""
    for path in shards:
        path.unlink()
    for directory in {path.parent for path in shards}:
        if not any(directory.glob("*.h5")):
            shutil.rmtree(directory)
            parent = directory.parent
            if parent.name == "shards" and not any(parent.iterdir()):
                parent.rmdir()
