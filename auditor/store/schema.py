"""The layout that every recorded file shares, and the small conversions between records and rows (results/README.md).

One flat, fixed set of datasets, because a file in SWMR mode may not gain any: ``index`` (one row an observation), ``bytes``
(outputs as they are), ``xor`` (outputs as the difference from one in ``bytes``), ``text`` (JSON). Rows never change once written.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np
import numpy.typing as npt

from auditor.errors import EvidenceError
from auditor.model import Bytes, Codes, Observation, OutsideByte, Trial

Rows = npt.NDArray[np.void]

ENCODING_TYPE = "auditor-run"
ENCODING_VERSION = "1"
LIBVER = ("v110", "v110")  # the oldest HDF5 that knows SWMR, so that old readers still read the file
LOCKING = "best-effort"  # a file system without locks is no reason to refuse; HDF5_USE_FILE_LOCKING still overrides it

BYTES_CHUNK = 1 << 20
XOR_CHUNK = 1 << 15  # 64-bit words: 256 KiB; every xor output starts on a chunk, so no chunk is compressed twice
TEXT_CHUNK = 1 << 14
INDEX_CHUNK = 64
BLOCK = 4 << 20  # bytes moved at a time wherever a whole output would not do

RAW, XOR, NONE = b"raw", b"xor", b"none"


def index_dtype(arm_width: int) -> np.dtype[Any]:
    """dtype of an index row; ``arm_width``: bytes of the longest arm name in the file."""
    columns = (
        ("arm", f"S{max(1, arm_width)}"),
        ("trial", "S12"),
        ("repeat", "<i4"),
        ("rank", "<i4"),
        ("attempt", "<i4"),
        ("status", "S12"),
        ("format", "S16"),
        ("digest", "S64"),
        ("encoding", "S4"),
        ("offset", "<u8"),
        ("nbytes", "<u8"),
        ("reference", "<u8"),
        ("send_before", "u1"),
        ("send_after", "u1"),
        ("machinery", "u1"),
        ("outside_total", "<u8"),
        ("seconds", "<f8"),
        ("subject_seconds", "<f8"),
        ("trial_at", "<u8"),
        ("trial_n", "<u4"),
        ("text_at", "<u8"),
        ("text_n", "<u4"),
        ("crc", "<u4"),
    )
    return np.dtype(list(columns))


def digest(output: Codes | Bytes | bytes | memoryview) -> str:
    """SHA-256 of an output's bytes, in hex. Reads the memory in place; a large contiguous array costs no copy."""
    raw = np.ascontiguousarray(output).view(np.uint8).data if isinstance(output, np.ndarray) else output
    return hashlib.sha256(raw).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def shard_directory(run_dir: Path, arm: str) -> Path:
    """Where an arm's shards lie; characters that a file name should not have are percent-encoded."""
    return run_dir / "shards" / quote(arm, safe=" +=,@()[]")


def shard_path(run_dir: Path, arm: str, rank: int, attempt: int) -> Path:
    """The shard of the process whose first rank is ``rank``."""
    return shard_directory(run_dir, arm) / f"rank{rank:04d}.{attempt}.h5"


def events_path(run_dir: Path, arm: str) -> Path:
    """Where the parent process notes crashes and hangs of an arm."""
    return shard_directory(run_dir, arm) / "events.jsonl"


def text_of(observation: Observation) -> bytes:
    """What has no fixed width: path, message and the capped rows of bytes outside the range; b"" where there is nothing."""
    rows = [[row.buffer, row.offset, row.expected, row.found] for row in observation.outside]
    content = {"path": observation.path, "message": observation.message, "outside": rows}
    kept = {key: value for key, value in content.items() if value}
    return json.dumps(kept, separators=(",", ":")).encode() if kept else b""


def row_values(observation: Observation) -> dict[str, Any]:
    """The index columns that come from an observation alone."""
    own = observation.subject_seconds
    return {
        "trial": observation.trial_id.encode(),
        "repeat": observation.repeat,
        "rank": observation.rank,
        "status": observation.status.encode(),
        "digest": observation.digest.encode(),
        "send_before": observation.send_before,
        "send_after": observation.send_after,
        "outside_total": observation.outside_total,
        "seconds": observation.seconds,
        "subject_seconds": math.nan if own is None else own,
    }


def observation_of(row: np.void, text: bytes) -> Observation:
    """The inverse of :func:`row_values` and :func:`text_of`."""
    content = json.loads(text) if text else {}
    own = float(row["subject_seconds"])
    return Observation(
        trial_id=row["trial"].decode(),
        repeat=int(row["repeat"]),
        rank=int(row["rank"]),
        status=row["status"].decode(),
        digest=row["digest"].decode(),
        send_before=bool(row["send_before"]),
        send_after=bool(row["send_after"]),
        outside=tuple(
            OutsideByte(buffer=b, offset=o, expected=e, found=f) for b, o, e, f in content.get("outside", ())
        ),
        outside_total=int(row["outside_total"]),
        path=content.get("path", ""),
        seconds=float(row["seconds"]),
        subject_seconds=None if math.isnan(own) else own,
        message=content.get("message", ""),
    )


def observation_to_json(observation: Observation) -> dict[str, Any]:
    """Flat JSON object with the Observation's field names."""
    raw = {f.name: getattr(observation, f.name) for f in fields(observation)}
    raw["outside"] = [{f.name: getattr(row, f.name) for f in fields(row)} for row in observation.outside]
    return raw


def observation_from_json(raw: Mapping[str, Any]) -> Observation:
    """The inverse of :func:`observation_to_json`; other keys (``attempt``, ``machinery``) are left aside."""
    names = {f.name for f in fields(Observation)}
    known = {key: value for key, value in raw.items() if key in names}
    known["outside"] = tuple(OutsideByte(**row) for row in known.get("outside", ()))
    return Observation(**known)


def planned_trial(entry: Mapping[str, Any]) -> Trial:
    """The trial of an entry of plan.json's ``trials``."""
    return Trial.from_json({key: value for key, value in entry.items() if key not in ("trial_id", "repeats", "probes")})


def trial_text(trial: Trial) -> bytes:
    """Canonical JSON of a trial: its SHA-256 begins with the trial id."""
    return json.dumps(trial.to_json(), sort_keys=True, separators=(",", ":")).encode()


def write_document(file: h5py.File, name: str, content: bytes) -> None:
    """Keep a JSON document in a dataset of its own, compressed and with checksums."""
    data = np.frombuffer(content, dtype=np.uint8)
    chunks = (max(1, min(len(data), 1 << 20)),)
    file.create_dataset(name, data=data, maxshape=(None,), chunks=chunks, compression="gzip", fletcher32=True)


def seal(rows: Rows, texts: list[bytes]) -> Rows:
    """Fill in ``crc``: CRC-32 of each row's other bytes followed by its text. Returns ``rows``."""
    rows["crc"] = checksums(rows, texts)
    return rows


def checksums(rows: Rows, texts: list[bytes]) -> list[int]:
    """What the ``crc`` column must hold."""
    width, raw = rows.dtype.itemsize, rows.tobytes()
    starts = range(0, len(raw), width)
    return [zlib.crc32(text, zlib.crc32(raw[at : at + width - 4])) for at, text in zip(starts, texts, strict=True)]


def spans(total: int, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """[start, stop) pieces of [0, total)."""
    return ((at, min(at + block, total)) for at in range(0, total, block))


def check_encoding(attributes: Mapping[str, Any], where: Path) -> None:
    """Raises EvidenceError where a file is of another kind or of a newer version than this reader."""
    kind, version = str(attributes.get("encoding-type", "")), str(attributes.get("encoding-version", ""))
    if kind != ENCODING_TYPE:
        raise EvidenceError(f"{where}: this HDF5 file is no auditor run (encoding-type {kind!r}); name a run directory")
    if not version.isdigit() or int(version) > int(ENCODING_VERSION):
        known = f"this auditor reads up to {ENCODING_VERSION}"
        raise EvidenceError(f"{where}: encoding-version {version!r} is newer, {known}; upgrade the auditor")
