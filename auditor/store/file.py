"""Reading one HDF5 file of the layout, whole, still being written, or torn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from auditor.errors import EvidenceError
from auditor.model import Bytes, Observation
from auditor.store import schema
from auditor.store.schema import Rows
from auditor.store.writer import reason


def open_file(path: Path) -> tuple[h5py.File, bool]:
    """The open file, and whether it was closed properly. A file whose writer is alive or was killed opens only as SWMR."""
    if not path.is_file():
        raise EvidenceError(f"{path}: no such file; name a run directory or its run.h5")
    if not h5py.is_hdf5(path):
        raise EvidenceError(f"{path}: not an HDF5 file, or torn at its start; name a run directory or its run.h5")
    try:
        return h5py.File(path, "r", locking=schema.LOCKING), True
    except OSError:
        pass
    try:
        return h5py.File(path, "r", libver=schema.LIBVER, swmr=True, locking=schema.LOCKING), False
    except OSError as error:
        raise EvidenceError(f"{path}: torn beyond reading ({reason(error)}); restore it from a copy") from error


class RecordFile:
    """The rows of one file that are complete, and their bytes. ``problems``: what was not, a line each.

    Raises EvidenceError where the file is missing, foreign, newer than this reader, or torn beyond reading.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self._file, self.closed_properly = open_file(path)
        try:
            self.attributes: dict[str, Any] = dict(self._file.attrs)
            schema.check_encoding(self.attributes, path)
            self._load()
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            self.close()
            detail = " ".join(str(error).split())[:200]
            raise EvidenceError(f"{path}: torn beyond reading ({detail}); restore it from a copy") from error
        except EvidenceError:
            self.close()
            raise

    @property
    def kind(self) -> str:
        """``shard``, ``run`` (joined) or ``listing`` (a run too large to join)."""
        return str(self.attributes.get("kind", ""))

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
        except (OSError, KeyError) as error:
            raise EvidenceError(
                f"{self.path}: dataset {name!r} is missing or damaged; restore it from a copy"
            ) from error

    def text(self, row: np.void, column: str = "text") -> bytes:
        at = int(row[f"{column}_at"])
        return self._text[at : at + int(row[f"{column}_n"])].tobytes()

    def observation(self, row: np.void) -> Observation:
        return schema.observation_of(row, self.text(row))

    def blocks(self, row: np.void, block: int = schema.BLOCK) -> Iterator[Bytes]:
        """The output's bytes in pieces of at most ``block`` (a multiple of 8). Raises EvidenceError where they are not there."""
        if row["encoding"] == schema.NONE:
            raise EvidenceError(f"{self.name(row)}: no output was recorded (status {row['status'].decode()})")
        for start, stop in schema.spans(int(row["nbytes"]), block):
            yield self._piece(row, start, stop)

    def read(self, row: np.void) -> Bytes:
        """The output's bytes."""
        out = np.empty(int(row["nbytes"]), dtype=np.uint8)
        at = 0
        for piece in self.blocks(row):
            out[at : at + len(piece)] = piece
            at += len(piece)
        return out

    def xor_words(self, row: np.void) -> Iterator[np.ndarray[Any, Any]]:
        """The stored difference in whole chunks, as 64-bit words."""
        first = int(row["offset"])
        for start, stop in schema.spans(-(-int(row["nbytes"]) // 8), schema.XOR_CHUNK):
            del stop
            yield self._slice("xor", row, first + start, first + start + schema.XOR_CHUNK)

    def name(self, row: np.void) -> str:
        """One observation, for people."""
        arm, trial = row["arm"].decode(errors="replace"), row["trial"].decode(errors="replace")
        return f"{self.path}: arm {arm}, trial {trial}, repeat {row['repeat']}, rank {row['rank']}"

    def release(self) -> None:
        """Give back the file handle; it is opened again when needed."""
        self.close()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _handle(self) -> h5py.File:
        if not self._file:
            self._file, _ = open_file(self.path)
        return self._file

    def _piece(self, row: np.void, start: int, stop: int) -> Bytes:
        at = int(row["offset"])
        if row["encoding"] == schema.RAW:
            return self._slice("bytes", row, at + start, at + stop)
        words = self._slice("xor", row, at + start // 8, at + -(-stop // 8))
        base = int(row["reference"])
        return self._slice("bytes", row, base + start, base + stop) ^ words.view(np.uint8)[: stop - start]

    def _slice(self, store: str, row: np.void, start: int, stop: int) -> np.ndarray[Any, Any]:
        try:
            values = self._handle()[store][start:stop]
        except (OSError, KeyError) as error:
            raise EvidenceError(f"{self.name(row)}: bytes cannot be read ({reason(OSError(error))})") from error
        if len(values) != stop - start:
            raise EvidenceError(f"{self.name(row)}: bytes lie past the end of dataset {store!r}")
        return np.asarray(values)

    def _load(self) -> None:
        whole = self._whole()
        self._text: Bytes = self._prefix("text", whole)
        rows = self._prefix("index", whole)
        good = self._complete(rows, whole)
        self.rows: Rows = rows[good]
        lost = len(rows) - len(self.rows)
        missing = not all(whole.values())
        if lost or missing:
            cause = "file is torn" if missing else "damaged"
            self.problems.append(
                f"{self.path}: {cause}; {len(self.rows)} complete observations are read, {lost or 'an unknown number'} are lost"
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

    def _complete(self, rows: Rows, whole: dict[str, int | bool]) -> np.ndarray[Any, Any]:
        texts = [self.text(row) for row in rows]
        good = np.array(schema.checksums(rows, texts), dtype=np.uint32) == rows["crc"]
        if whole["bytes"] is not True:
            raw = rows["encoding"] == schema.RAW
            ends = np.where(raw, rows["offset"] + rows["nbytes"], rows["reference"] + rows["nbytes"])
            good &= (rows["encoding"] == schema.NONE) | (ends <= np.uint64(whole["bytes"]))
        if whole["xor"] is not True:
            ends = rows["offset"] + (rows["nbytes"] + np.uint64(7)) // np.uint64(8)
            good &= (rows["encoding"] != schema.XOR) | (ends <= np.uint64(whole["xor"]))
        return good


def _present(dataset: h5py.Dataset, size: int) -> int | bool:
    """Leading elements whose chunks lie within ``size`` bytes of file; True where all do."""
    chunk = dataset.chunks[0]
    absent: list[int] = []
    seen: set[int] = set()

    def look(info: Any) -> None:
        seen.add(info.chunk_offset[0])
        if info.byte_offset is None or info.byte_offset + info.size > size:
            absent.append(info.chunk_offset[0])

    try:
        dataset.id.chunk_iter(look)
    except (OSError, RuntimeError):
        absent.append(len(seen) * chunk)
    length = int(dataset.shape[0])
    absent.append(next((at for at in range(0, length, chunk) if at not in seen), length))
    return True if min(absent) >= length else min(absent)
