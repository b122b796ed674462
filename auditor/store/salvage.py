"""Opening a file that was not closed: its writer is alive or was killed, or a copy of it was cut off.

HDF5 itself opens such a file only for SWMR reading, and there waits, twice as long each time, for metadata that a cut-off file
will never have. So it is given a view instead: the same bytes, the mark "being written" cleared in the superblock, zeros past the
end. What is missing then fails its checksum at once. Source of the layout and checksum: HDF5 file format, II.A.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path

SUPERBLOCK = struct.Struct("<8s4B4Q")  # signature; version, two sizes, flags; base, extension, end of file, root
SIGNATURE = b"\x89HDF\r\n\x1a\n"
VIRTUAL_END = 1 << 60
MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Superblock:
    """What the first bytes say. ``writing``: not closed since it was opened for writing; ``end``: length of the closed file."""

    writing: bool
    end: int
    patched: bytes


def read_superblock(path: Path) -> Superblock:
    """Raises ValueError where the superblock is short, foreign or fails its checksum."""
    with path.open("rb") as stream:
        raw = stream.read(SUPERBLOCK.size + 4)
    if len(raw) < SUPERBLOCK.size + 4 or raw[:8] != SIGNATURE or raw[8] != 3:
        raise ValueError("no superblock of version 3")
    if lookup3(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise ValueError("the superblock fails its checksum")
    *head, flags, base, extension, end, root = SUPERBLOCK.unpack(raw[:-4])
    patched = SUPERBLOCK.pack(*head, 0, base, extension, VIRTUAL_END, root)
    return Superblock(bool(flags), end, patched + lookup3(patched).to_bytes(4, "little"))


class UnclosedFile(io.RawIOBase):
    """The read-only view that HDF5 is given."""

    def __init__(self, path: Path, superblock: Superblock) -> None:
        self._file = path.open("rb", buffering=0)
        self._head = superblock.patched
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: VIRTUAL_END}[whence]
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        view = memoryview(target).cast("B")
        self._file.seek(self._at)
        done = 0
        while done < len(view) and (got := self._file.readinto(view[done:])):
            done += got
        view[done:] = bytes(len(view) - done)
        head = self._head[self._at : self._at + len(view)]
        view[: len(head)] = head
        self._at += len(view)
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def lookup3(data: bytes) -> int:
    """Bob Jenkins' lookup3 (2006, public domain), little-endian form, initial value 0."""
    a = b = c = (0xDEADBEEF + len(data)) & MASK
    while len(data) > 12:
        x, y, z = struct.unpack_from("<3I", data)
        a, b, c = _mix((a + x) & MASK, (b + y) & MASK, (c + z) & MASK)
        data = data[12:]
    if not data:
        return c
    x, y, z = struct.unpack("<3I", data.ljust(12, b"\0"))
    return _final((a + x) & MASK, (b + y) & MASK, (c + z) & MASK)


def _turn(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for by in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & MASK) ^ _turn(c, by)
        a, b, c = b, (c + b) & MASK, a  # the roles turn: after six steps each is back in its place
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    c = ((c ^ b) - _turn(b, 14)) & MASK
    a = ((a ^ c) - _turn(c, 11)) & MASK
    b = ((b ^ a) - _turn(a, 25)) & MASK
    c = ((c ^ b) - _turn(b, 16)) & MASK
    a = ((a ^ c) - _turn(c, 4)) & MASK
    b = ((b ^ a) - _turn(a, 14)) & MASK
    return ((c ^ b) - _turn(b, 24)) & MASK
