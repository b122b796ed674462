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
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
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
EVENTS = (b"crash", b"hang")


class Place(NamedTuple):
    """Where an output's bytes are: ``offset`` in ``bytes`` or, in words, in ``xor``; ``reference`` of the latter in ``bytes``."""

    encoding: bytes
    offset: int
    nbytes: int
    reference: int


NOWHERE = Place(NONE, 0, 0, 0)


class Row(NamedTuple):
    """One row of ``index``, as Python values; the columns' meaning is in results/README.md."""

    arm: bytes
    trial: bytes
    repeat: int
    rank: int
    attempt: int
    status: bytes
    format: bytes
    digest: bytes
    encoding: bytes
    offset: int
    nbytes: int
    reference: int
    send_before: int
    send_after: int
    machinery: int
    outside_total: int
    seconds: float
    subject_seconds: float
    trial_at: int
    trial_n: int
    text_at: int
    text_n: int
    late_digest: bytes = b""
    late_encoding: bytes = b"none"
    late_offset: int = 0
    late_reference: int = 0
    late_seconds: float = math.nan
    copy_seconds: float = math.nan
    off_nearest: int = -1
    crc: int = 0

    @property
    def is_event(self) -> bool:
        """Noted by the parent process, not seen by the rank itself."""
        return bool(self.machinery) or self.status in EVENTS

    @property
    def late(self) -> Row:
        """The second reading in the place of the first."""
        return self._replace(
            digest=self.late_digest,
            encoding=self.late_encoding,
            offset=self.late_offset,
            reference=self.late_reference,
        )

    @property
    def readings(self) -> tuple[Row, ...]:
        """The row, and where the output was read twice, the row of the second reading."""
        return (self,) if self.late_encoding == NONE else (self, self.late)


STRINGS = {"trial": 12, "status": 12, "format": 16, "digest": 64, "encoding": 4, "late_digest": 64, "late_encoding": 4}
SIGNED = ("repeat", "rank", "attempt")
WIDE = ("off_nearest",)
FLAGS = ("send_before", "send_after", "machinery")
REALS = ("seconds", "subject_seconds", "late_seconds", "copy_seconds")
SHORT = ("trial_n", "text_n", "crc")


def index_dtype(arm_width: int) -> np.dtype[Any]:
    """dtype of an index row; ``arm_width``: bytes of the longest arm name in the file."""
    kinds = {name: f"S{width}" for name, width in (STRINGS | {"arm": max(1, arm_width)}).items()}
    for names, kind in ((SIGNED, "<i4"), (WIDE, "<i8"), (FLAGS, "u1"), (REALS, "<f8"), (SHORT, "<u4")):
        kinds |= dict.fromkeys(names, kind)
    return np.dtype([(name, kinds.get(name, "<u8")) for name in Row._fields])


def known_columns(rows: Rows) -> Rows:
    """The rows with the columns of this version: those of a later one left out, those that an earlier one had not at
    their defaults. Raises KeyError where a column is missing that every version has.
    """
    if rows.dtype.names == Row._fields:
        return rows
    there = rows.dtype.names or ()
    out = np.zeros(len(rows), index_dtype(rows.dtype["arm"].itemsize))
    for name in Row._fields:
        if name not in there and name not in Row._field_defaults:
            raise KeyError(f"the index has no column {name}")
        out[name] = rows[name] if name in there else Row._field_defaults[name]
    return out


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
    return _text_of(observation.path, observation.message, observation.outside)


@lru_cache(1024)
def _text_of(path: str, message: str, outside: tuple[OutsideByte, ...]) -> bytes:
    rows = [[row.buffer, row.offset, row.expected, row.found] for row in outside]
    kept = {key: value for key, value in (("path", path), ("message", message), ("outside", rows)) if value}
    return json.dumps(kept, separators=(",", ":")).encode() if kept else b""


@lru_cache(1024)
def _texts(text: bytes) -> tuple[str, str, tuple[OutsideByte, ...]]:
    """The inverse: path, message, outside."""
    content = json.loads(text) if text else {}
    rows = content.get("outside", ())
    outside = tuple(OutsideByte(buffer=b, offset=o, expected=e, found=f) for b, o, e, f in rows)
    return content.get("path", ""), content.get("message", ""), outside


def row_values(observation: Observation) -> dict[str, Any]:
    """The index columns that come from an observation alone."""
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
        "subject_seconds": _number(observation.subject_seconds),
        "late_digest": observation.late_digest.encode(),
        "late_seconds": _number(observation.late_seconds),
        "copy_seconds": _number(observation.copy_seconds),
        "off_nearest": -1 if observation.off_nearest is None else observation.off_nearest,
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _value(number: float) -> float | None:
    return None if math.isnan(number) else number


def observation_of(row: Row, text: bytes) -> Observation:
    """The inverse of :func:`row_values` and :func:`text_of`."""
    path, message, outside = _texts(text)
    return Observation(
        trial_id=row.trial.decode(),
        repeat=row.repeat,
        rank=row.rank,
        status=row.status.decode(),
        digest=row.digest.decode(),
        send_before=bool(row.send_before),
        send_after=bool(row.send_after),
        outside=outside,
        outside_total=row.outside_total,
        path=path,
        seconds=row.seconds,
        subject_seconds=_value(row.subject_seconds),
        message=message,
        late_digest=row.late_digest.decode(),
        late_seconds=_value(row.late_seconds),
        copy_seconds=_value(row.copy_seconds),
        off_nearest=None if row.off_nearest < 0 else row.off_nearest,
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
