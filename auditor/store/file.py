"""Reading one HDF5 file of the layout, whole, still being written, or torn."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from auditor.errors import EvidenceError
from auditor.model import Bytes, Observation
from auditor.store import schema
from auditor.store.salvage import Superblock, UnclosedFile, read_superblock
from auditor.store.schema import Row, Rows
from auditor.store.writer import reason


def open_file(path: Path) -> tuple[h5py.File, Superblock | None]:
    """The open file, and the superblock of one that was not closed: its writer is alive or was killed, or it is cut off."""
    if not path.is_file():
        raise EvidenceError(f"{path}: no such file; name a run directory or its run.h5")
    if not os.access(path, os.R_OK):
        raise EvidenceError(f"{path}: may not be read; ask its owner for the permission")
    if not h5py.is_hdf5(path):
        raise EvidenceError(f"{path}: not an HDF5 file, or torn at its start; name a run directory or its run.h5")
    try:
        return h5py.File(path, "r", locking=schema.LOCKING), None
    except OSError as error:
        cause: Exception = error
    try:
        superblock = read_superblock(path)
        if superblock.writing or path.stat().st_size < superblock.end:
            return h5py.File(UnclosedFile(path, superblock), "r"), superblock
    except (OSError, ValueError) as error:
        cause = error
    raise torn(path, cause) from cause


def torn(path: Path, cause: Exception) -> EvidenceError:
    """What is said of a file that cannot be read at all."""
    words = reason(cause)
    if "lock" in words:
        return EvidenceError(f"{path}: cannot be opened ({words})")
    return EvidenceError(f"{path}: torn beyond reading ({words}); restore it from a copy")


Flags = npt.NDArray[np.bool_]
UNREADABLE = (
    OSError,
    KeyError,
    RuntimeError,
    ValueError,
)  # what h5py raises for a damaged file, by where the damage is
ATTEMPTS = 5
WINDOW = 1 << 20  # small outputs are read by the mebibyte: they lie in the order in which they are asked for


class RecordFile:
    """The rows of one file that are complete, and their bytes. ``problems``: what was not, a line each.

    Raises EvidenceError where the file is missing, foreign, newer than this reader, or torn beyond reading.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.closed_properly = self.cut_off = False
        self._file: Any = None
        self._window: Bytes = np.empty(0, dtype=np.uint8)
        self._window_at = 0
        for attempt in range(ATTEMPTS):
            try:
                self._open()
                return
            except UNREADABLE as error:
                if attempt == ATTEMPTS - 1 or self.closed_properly:
                    raise torn(path, error) from error
            time.sleep(0.01)  # a live writer may have been in the middle of a piece of metadata

    @property
    def kind(self) -> str:
        """``shard``, ``run`` (joined) or ``listing`` (a run too large to join)."""
        return str(self.attributes.get("kind", ""))

    @cached_property
    def trials(self) -> list[str]:
        """Trial id of each row."""
        return [trial.decode(errors="replace") for trial in self.rows["trial"].tolist()]

    @cached_property
    def events(self) -> frozenset[int]:
        """Numbers of the rows that the parent process noted."""
        noted = np.isin(self.rows["status"], schema.EVENTS) | (self.rows["machinery"] > 0)
        return frozenset(np.flatnonzero(noted).tolist())

    def row(self, number: int) -> Row:
        return Row._make(self.rows[number].item())

    def select(self, which: Flags | None = None) -> Iterator[Row]:
        """All rows, or those that ``which`` marks."""
        return rows_of(self.rows if which is None else self.rows[which])

    def outputs(self, encoding: bytes) -> Iterator[Row]:
        """Every output that is stored so, second readings included, each as the row that it belongs to."""
        marked = (self.rows["encoding"] == encoding) | (self.rows["late_encoding"] == encoding)
        return (one for row in self.select(marked) for one in row.readings if one.encoding == encoding)

    def raw_lengths(self) -> dict[int, int]:
        """Offset in ``bytes`` -> length, of every output that is stored as it is."""
        return {row.offset: row.nbytes for row in self.outputs(schema.RAW)}

    def json(self, name: str) -> Any:
        """A JSON document kept in a dataset of its own. Raises EvidenceError where it is missing or damaged."""
        try:
            return json.loads(self.document(name))
        except ValueError as error:
            raise EvidenceError(f"{self.path}: dataset {name!r} is damaged; restore it from a copy") from error

    def document(self, name: str) -> bytes:
        """Bytes of a document dataset."""
        try:
            return bytes(self._handle()[name][()].tobytes())
        except UNREADABLE as error:
            raise EvidenceError(
                f"{self.path}: dataset {name!r} is missing or damaged; restore it from a copy"
            ) from error

    def text(self, row: Row, column: str = "text") -> bytes:
        at, length = (row.text_at, row.text_n) if column == "text" else (row.trial_at, row.trial_n)
        return self._text[at : at + length]

    def observation(self, row: Row) -> Observation:
        return schema.observation_of(row, self.text(row))

    def blocks(self, row: Row, block: int = schema.BLOCK) -> Iterator[Bytes]:
        """The output's bytes in pieces of at most ``block`` (a multiple of 8). Raises EvidenceError where they are not there."""
        if row.encoding == schema.NONE:
            raise EvidenceError(f"{self.name(row)}: no output was recorded (status {row.status.decode()})")
        for start, stop in schema.spans(row.nbytes, block):
            yield self._piece(row, start, stop)

    def read(self, row: Row) -> Bytes:
        """The output's bytes."""
        out = np.empty(row.nbytes, dtype=np.uint8)
        at = 0
        for piece in self.blocks(row):
            out[at : at + len(piece)] = piece
            at += len(piece)
        return out

    def xor_words(self, row: Row) -> Iterator[np.ndarray[Any, Any]]:
        """The stored difference in whole chunks, as 64-bit words."""
        first = row.offset
        for start in range(0, -(-row.nbytes // 8), schema.XOR_CHUNK):
            yield self._slice("xor", row, first + start, first + start + schema.XOR_CHUNK)

    def name(self, row: Row) -> str:
        """One observation, for people."""
        arm, trial = row.arm.decode(errors="replace"), row.trial.decode(errors="replace")
        return f"{self.path}: arm {arm}, trial {trial}, repeat {row.repeat}, rank {row.rank}"

    def release(self) -> None:
        """Give back the file handle and what is held of the outputs; both come again when needed."""
        self._window = np.empty(0, dtype=np.uint8)
        self.close()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _handle(self) -> h5py.File:
        if not self._file:
            self._file, _ = open_file(self.path)
        return self._file

    def _piece(self, row: Row, start: int, stop: int) -> Bytes:
        at = row.offset
        if row.encoding == schema.RAW:
            return self._slice("bytes", row, at + start, at + stop)
        words = self._slice("xor", row, at + start // 8, at + -(-stop // 8))
        base = row.reference
        return self._slice("bytes", row, base + start, base + stop) ^ words.view(np.uint8)[: stop - start]

    def _slice(self, store: str, row: Row, start: int, stop: int) -> np.ndarray[Any, Any]:
        if store == "bytes" and stop - start < WINDOW // 16:
            try:
                return self._from_window(start, stop)
            except UNREADABLE:
                pass  # the window reaches into a hole; the slice alone may not
        try:
            values = self._handle()[store][start:stop]
        except UNREADABLE as error:
            raise EvidenceError(f"{self.name(row)}: bytes cannot be read ({reason(error)})") from error
        if len(values) != stop - start:
            raise EvidenceError(f"{self.name(row)}: bytes lie past the end of dataset {store!r}")
        return np.asarray(values)

    def _from_window(self, start: int, stop: int) -> Bytes:
        at = start - self._window_at
        if not 0 <= at <= at + stop - start <= len(self._window):
            self._window = np.asarray(self._handle()["bytes"][start : start + WINDOW])
            self._window_at, at = start, 0
        if stop - start > len(self._window):
            raise ValueError("past the end")
        return self._window[at : at + stop - start]

    def _open(self) -> None:
        """Open and load; closes again where that fails."""
        self._file, superblock = open_file(self.path)
        self.closed_properly = superblock is None
        self.cut_off = superblock is not None and not superblock.writing
        try:
            self.attributes: dict[str, Any] = dict(self._file.attrs)
            schema.check_encoding(self.attributes, self.path)
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        whole = self._whole()
        self._text = self._prefix("text", whole).tobytes()
        rows = self._prefix("index", whole)
        sealed, good = self._complete(rows, whole)
        known = schema.known_columns(rows)
        self.rows: Rows = known[good]
        self.damaged: Rows = known[~sealed]
        lost = len(rows) - len(self.rows)
        missing = self.cut_off or any(present is not True for present in whole.values())
        if lost or missing:
            cause = "torn, its end is missing" if missing else "damaged"
            self.problems.append(
                f"{self.path}: {cause}; {len(self.rows)} complete observations are read, {lost or 'perhaps some'} are lost"
            )

    def _whole(self) -> dict[str, int | bool]:
        """Dataset -> how many leading elements have all their bytes in the file, or True for all."""
        if self.closed_properly:
            return dict.fromkeys(("index", "text", "bytes", "xor"), True)
        size = self.path.stat().st_size
        return {name: _present(self._file[name], size) for name in ("index", "text", "bytes", "xor")}

    def _prefix(self, name: str, whole: dict[str, int | bool]) -> np.ndarray[Any, Any]:
        dataset = self._file[name]
        return np.asarray(dataset[:] if whole[name] is True else dataset[: whole[name]])

    def _complete(self, rows: Rows, whole: dict[str, int | bool]) -> tuple[Flags, Flags]:
        """Which rows agree with their checksum, and which of these have all their bytes in the file."""
        known = schema.known_columns(rows)
        texts = [self.text(row) for row in rows_of(known)]
        sealed: Flags = np.array(schema.checksums(rows, texts), dtype=np.uint32) == rows["crc"]
        good = sealed & _inside(known, whole, "") & _inside(known, whole, "late_")
        return sealed, good


def _inside(rows: Rows, whole: dict[str, int | bool], which: str) -> Flags:
    """Which rows have all bytes of an output in the file. ``which``: "" or "late_", the second reading."""
    encoding, offset, reference = (rows[which + name] for name in ("encoding", "offset", "reference"))
    good = np.ones(len(rows), np.bool_)
    if whole["bytes"] is not True:
        ends = np.where(encoding == schema.RAW, offset, reference) + rows["nbytes"]
        good &= (encoding == schema.NONE) | (ends <= np.uint64(whole["bytes"]))
    if whole["xor"] is not True:
        ends = offset + (rows["nbytes"] + np.uint64(7)) // np.uint64(8)
        good &= (encoding != schema.XOR) | (ends <= np.uint64(whole["xor"]))
    return good


def rows_of(rows: Rows) -> Iterator[Row]:
    """Rows as Python values, made some thousands at a time."""
    return (Row._make(values) for start, stop in schema.spans(len(rows), 4096) for values in rows[start:stop].tolist())


def sources_of(file: RecordFile, directory: Path) -> list[dict[str, Any]]:
    """The recording processes whose rows a file holds."""
    if file.kind == "run":
        try:
            return list(file.json("sources"))
        except EvidenceError:
            return []  # verify names it
    if file.kind != "shard":
        return []
    attributes = file.attributes
    at = file.path.resolve()
    inside = at.is_relative_to(directory.resolve())
    return [
        {
            "file": (at.relative_to(directory.resolve()) if inside else Path(at.name)).as_posix(),
            "arm": str(attributes["arm"]),
            "ranks": [int(rank) for rank in attributes["ranks"]],
            "attempt": int(attributes["attempt"]),
            "size": file.path.stat().st_size,
            "environment": json.loads(attributes["environment"]),
        }
    ]


def _present(dataset: h5py.Dataset, size: int) -> int | bool:
    """Leading elements whose bytes lie within ``size`` bytes of file; True where all do.

    A chunk that is not compressed may reach past the end: HDF5 writes only as much of it as is used.
    """
    chunk, length = int(dataset.chunks[0]), int(dataset.shape[0])
    ends: dict[int, int] = {}

    def look(info: Any) -> None:
        inside = 0 if info.byte_offset is None else max(0, size - info.byte_offset)
        elements = chunk if inside >= info.size else 0 if dataset.compression else inside // dataset.dtype.itemsize
        ends[info.chunk_offset[0]] = elements

    with contextlib.suppress(OSError, RuntimeError):  # what the chunk index no longer names is absent
        dataset.id.chunk_iter(look)
    for start in range(0, length, chunk):
        if ends.get(start, 0) < min(chunk, length - start):
            return start + ends.get(start, 0)
    return True
