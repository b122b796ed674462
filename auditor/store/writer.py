"""Writing one shard: one process, one file, created exclusively, never reopened, readable at any moment and after a kill.

Measured (HDF5 2.0): a file in SWMR mode whose datasets were all made before the switch, flushed after each trial, was readable
after every one of 34 kills. The bytes reach the file before the row that names them, so a row that can be read is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from auditor.errors import EvidenceError
from auditor.model import Bytes, Codes, Observation, Output, Trial
from auditor.store import schema

SMALL = 1 << 16  # outputs up to this many bytes are gathered and written together
REFERENCES = 4  # outputs of the current trial that a new one may be stored as the difference from
XOR_LEAST = schema.XOR_CHUNK * 8
XOR_PAYS = 1 / 8  # of the sampled bytes differ at most


def create_datasets(
    file: h5py.File, arm_width: int, *, bytes_chunk: int = schema.BYTES_CHUNK, pack: bool = False
) -> None:
    """The fixed flat layout. Raw outputs get chunks larger than the chunk cache, so that HDF5 writes them through uncopied.

    ``pack``: rows and texts compressed, to about a twentieth; not for a shard, of which a killed writer leaves what it flushed.
    """
    make = file.create_dataset
    packed = {"shuffle": True, "compression": "gzip", "compression_opts": 1}
    rows: dict[str, Any] = packed if pack else {}
    make("index", (0,), schema.index_dtype(arm_width), maxshape=(None,), chunks=(schema.INDEX_CHUNK,), **rows)
    make("bytes", (0,), "u1", maxshape=(None,), chunks=(bytes_chunk,), fill_time="never")
    make("text", (0,), "u1", maxshape=(None,), chunks=(schema.TEXT_CHUNK,), **rows)
    make("xor", (0,), "<u8", maxshape=(None,), chunks=(schema.XOR_CHUNK,), **packed)


def create_file(path: Path, attributes: Mapping[str, Any], arm_width: int, **options: Any) -> h5py.File:
    """A new file with the layout and attributes in place. Raises EvidenceError where it exists or cannot be made."""
    if path.exists():
        raise EvidenceError(f"{path}: exists, and a shard is never reopened; use the next attempt number")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = h5py.File(path, "x", libver=schema.LIBVER, locking=schema.LOCKING, rdcc_nbytes=schema.BYTES_CHUNK // 2)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be created ({reason(error)}); choose another --out") from error
    file.attrs["encoding-type"] = schema.ENCODING_TYPE
    file.attrs["encoding-version"] = schema.ENCODING_VERSION
    for key, value in attributes.items():
        file.attrs[key] = value
    create_datasets(file, arm_width, **options)
    return file


def reason(error: Exception) -> str:
    """HDF5's message in one line, with what to try where it is about locks."""
    text = " ".join(str(error).split())
    hint = "; set HDF5_USE_FILE_LOCKING=FALSE on file systems without locks" if "lock" in text.lower() else ""
    return (text[:300] or type(error).__name__) + hint


class Appender:
    """Appends to a one-dimensional dataset; small pieces wait for ``drain``, large ones are written at once and not copied."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self.dataset = dataset
        self.length = self._written = int(dataset.shape[0])  # what is waiting included, and not
        self._type = h5py.h5t.py_create(dataset.dtype)
        self._waiting: list[np.ndarray[Any, Any]] = []
        self._waiting_bytes = 0
        self._flushed = self.length

    def add(self, values: np.ndarray[Any, Any]) -> int:
        """Returns the index of the first element."""
        start = self.length
        self.length += len(values)
        if values.nbytes > SMALL:
            self.drain()
            self._write(values)
        elif len(values):
            self._waiting.append(values.copy())
            self._waiting_bytes += values.nbytes
            if self._waiting_bytes > schema.BYTES_CHUNK:
                self.drain()
        return start

    def drain(self) -> None:
        """Write what is waiting."""
        if self._waiting:
            self._write(np.concatenate(self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def flush(self) -> None:
        """Hand everything over to the operating system."""
        self.drain()
        if self._flushed != self.length:
            self.dataset.flush()
            self._flushed = self.length

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Elements that were added before."""
        if stop > self._written:
            self.drain()
        return np.asarray(self.dataset[start:stop])

    def _write(self, values: np.ndarray[Any, Any]) -> None:
        """By HDF5's own calls: the indexing syntax makes the row type anew for every write, which costs more than the write."""
        start, count = self._written, len(values)
        self._written += count
        self.dataset.id.set_extent((self._written,))
        target = self.dataset.id.get_space()
        target.select_hyperslab((start,), (count,))
        self.dataset.id.write(h5py.h5s.create_simple((count,)), target, np.ascontiguousarray(values), self._type)


class ShardWriter:
    """Records the observations of one process.

    ``meta``: ``run_id``, ``plan_id``, ``arm``, ``ranks`` (the process's ranks), ``attempt`` and ``environment`` (JSON-able).
    Nothing is certain to be in the file before ``flush``; call it after each trial. Raises EvidenceError where the file exists or
    cannot be written.
    """

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._arm = str(meta["arm"]).encode()
        self._attempt = int(meta["attempt"])
        attributes = {
            "kind": "shard",
            "run_id": str(meta["run_id"]),
            "plan_id": str(meta["plan_id"]),
            "arm": str(meta["arm"]),
            "ranks": np.asarray(list(meta["ranks"]), dtype="<i4"),
            "attempt": self._attempt,
            "environment": json.dumps({**meta["environment"], "hdf5": h5py.version.hdf5_version}, sort_keys=True),
        }
        self._file = create_file(self.path, attributes, len(self._arm))
        self._file.swmr_mode = True
        self._index, self._bytes = Appender(self._file["index"]), Appender(self._file["bytes"])
        self._text, self._xor = Appender(self._file["text"]), Appender(self._file["xor"])
        self._columns = self._index.dataset.dtype
        self._rows: list[schema.Row] = []
        self._row_texts: list[bytes] = []
        self._texts: dict[bytes, int] = {}
        self._trials: dict[str, tuple[int, int]] = {}
        self._contents: dict[tuple[str, int], schema.Place] = {}
        self._trial = ""
        self._references: list[tuple[int, int]] = []  # offset and length of the current trial's raw outputs

    def append(
        self,
        trial: Trial,
        observation: Observation,
        output: Codes | Output | None,
        late: Codes | Output | None = None,
    ) -> None:
        """Add one observation with its output range's codes (None: there are none), and with those of a second reading
        where there was one. Nothing is kept of them.
        """
        for codes in (output, late):
            if isinstance(codes, np.ndarray) and codes.dtype != trial.call.fmt.dtype:
                raise ValueError(f"{trial.call.format} codes have dtype {trial.call.fmt.dtype}, not {codes.dtype}")
        if observation.trial_id != self._trial:
            self._trial, self._references = observation.trial_id, []
        text = schema.text_of(observation)
        text_at = self._keep_text(text)
        trial_at, trial_n = self._keep_trial(trial, observation.trial_id)
        with self._storage_errors():
            first = self._keep_output(observation.digest, output)
            second = self._keep_output(observation.late_digest, late)
        if output is None and observation.status == "ok" and trial.call.count == 0:
            first = schema.Place(schema.RAW, 0, 0, 0)
        row = schema.Row(
            **schema.row_values(observation),
            arm=self._arm,
            attempt=self._attempt,
            format=trial.call.format.encode(),
            machinery=0,
            **first._asdict(),
            trial_at=trial_at,
            trial_n=trial_n,
            text_at=text_at,
            text_n=len(text),
            late_encoding=second.encoding,
            late_offset=second.offset,
            late_reference=second.reference,
        )
        self._rows.append(row)
        self._row_texts.append(text)

    def flush(self) -> None:
        """Bring everything appended so far into the file: first the bytes, then the rows that name them."""
        with self._storage_errors():
            for store in (self._bytes, self._xor, self._text):
                store.flush()
            self._index.add(schema.seal(np.array(self._rows, dtype=self._columns), self._row_texts))
            self._index.flush()
            self._rows.clear()
            self._row_texts.clear()

    def close(self) -> None:
        """Flush, close and bring the file to the disk. Idempotent."""
        if not self._file:
            return
        try:
            self.flush()
        finally:
            self._file.close()
        with self.path.open("rb") as stream:
            os.fsync(stream.fileno())

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EvidenceError(
                f"{self.path}: cannot be written ({reason(error)}); free space, then --resume"
            ) from error

    def _keep_text(self, text: bytes) -> int:
        """Offset of ``text`` in the text store; equal texts are kept once."""
        if text not in self._texts:
            if len(self._texts) > 10_000:
                self._texts.clear()
            self._texts[text] = self._text.add(np.frombuffer(text, dtype=np.uint8))
        return self._texts[text]

    def _keep_trial(self, trial: Trial, trial_id: str) -> tuple[int, int]:
        if trial_id not in self._trials:
            text = schema.trial_text(trial)
            self._trials[trial_id] = (self._keep_text(text), len(text))
        return self._trials[trial_id]

    def _keep_output(self, digest: str, output: Codes | Output | None) -> schema.Place:
        """Where an output's bytes are; bytes already in the file are not written again."""
        if output is None:
            return schema.NOWHERE
        key = (digest, int(output.nbytes))
        if output.nbytes and (key not in self._contents or not digest):
            ours = _InMemory(output) if isinstance(output, np.ndarray) else output
            self._contents[key] = self._store(ours)
        return self._contents.get(key, schema.Place(schema.RAW, 0, int(output.nbytes), 0))

    def _store(self, output: Output) -> schema.Place:
        reference = self._near(output) if output.nbytes >= XOR_LEAST else None
        if reference is not None:
            return schema.Place(schema.XOR, self._store_xor(output, reference), output.nbytes, reference)
        offset = self._bytes.length
        for start, stop in schema.spans(output.nbytes, output.step):
            self._bytes.add(output.read(start, stop))
        self._references = [*self._references[1 - REFERENCES :], (offset, output.nbytes)]
        return schema.Place(schema.RAW, offset, output.nbytes, 0)

    def _near(self, output: Output) -> int | None:
        """Offset of a raw output of this trial that differs little from this one, by three samples of 16 KiB."""
        piece = 1 << 14
        starts = (0, (output.nbytes // 2) // piece * piece, output.nbytes - piece)
        fitting = [offset for offset, nbytes in reversed(self._references) if nbytes == output.nbytes]
        samples = [np.array(output.read(at, at + piece)) for at in starts] if fitting else []
        for offset in fitting:
            pairs = (
                (ours, self._bytes.read(offset + at, offset + at + piece))
                for ours, at in zip(samples, starts, strict=True)
            )
            if sum(int(np.count_nonzero(ours != theirs)) for ours, theirs in pairs) <= XOR_PAYS * piece * len(starts):
                return offset
        return None

    def _store_xor(self, output: Output, reference: int) -> int:
        """Write output XOR reference, zero-padded to whole chunks; returns the offset in 64-bit words."""
        start = self._xor.length
        block = schema.XOR_CHUNK * 8
        for first, stop in schema.spans(output.nbytes, block):
            piece = np.zeros(block, dtype=np.uint8)
            theirs = self._bytes.read(reference + first, reference + stop)
            np.bitwise_xor(output.read(first, stop), theirs, out=piece[: stop - first])
            self._xor.add(piece.view("<u8"))
        return start


class _InMemory:
    """An array as an ``Output``: nothing is copied."""

    def __init__(self, codes: Codes) -> None:
        self._raw: Bytes = np.ascontiguousarray(codes).view(np.uint8)
        self.nbytes = self.step = self._raw.nbytes

    def read(self, start: int, stop: int) -> Bytes:
        return self._raw[start:stop]


def append_event(path: Path, observation_json: Mapping[str, Any]) -> None:
    """Add one JSON line and bring it to the disk.

    ``observation_json``: an Observation's fields (see ``observation_to_json``) and, where known, ``attempt`` and ``machinery``
    (true: ended by a signal that is not the subject's; the trial runs again on resume).
    """
    line = json.dumps(dict(observation_json), sort_keys=True).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else b"\n" + line  # a torn line must not spoil this one
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
