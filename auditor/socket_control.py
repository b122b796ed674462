"""``model.Control`` between processes that the auditor starts by itself, where no subject needs MPI: a star of socket pairs.

The parent makes the pairs and hands each rank its ends, so there is no address, no port and nobody else who could connect. Rank 0
is the centre. Messages are a length of eight bytes and the bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

LENGTH = struct.Struct("<Q")
PATIENCE = 60.0  # seconds that a rank whose peer is gone waits to be ended by the parent


def star(rank_n: int) -> tuple[list[list[socket.socket]], list[socket.socket]]:
    """(for each rank the ends that it gets: rank 0 one a peer, in order, the others one; all ends)."""
    pairs = [socket.socketpair() for _ in range(rank_n - 1)]
    ends = [[centre for centre, _ in pairs], *([end] for _, end in pairs)]
    return ends, [end for pair in pairs for end in pair]


class SocketControl:
    """One rank's end of the star. ``links``: for rank 0 those to ranks 1, 2, ..., for another the one to rank 0."""

    def __init__(self, rank: int, size: int, links: Sequence[socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._links = list(links)

    @staticmethod
    def from_descriptors(rank: int, size: int, descriptors: Sequence[int]) -> SocketControl:
        """Over sockets that this process inherited."""
        return SocketControl(rank, size, [socket.socket(fileno=number) for number in descriptors])

    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """``data`` of process ``root``, on every process."""
        if self.rank == 0:
            data = data if root == 0 else self._receive(self._links[root - 1])
            for link in self._links:
                self._send(link, data)
            return data
        if self.rank == root:
            self._send(self._links[0], data)
        return self._receive(self._links[0])

    def all_gather(self, data: bytes) -> list[bytes]:
        """Every process's ``data``, in rank order; lengths may differ."""
        if self.rank == 0:
            parts = [data, *(self._receive(link) for link in self._links)]
            whole = b"".join(LENGTH.pack(len(part)) + part for part in parts)
            for link in self._links:
                self._send(link, whole)
            return parts
        self._send(self._links[0], data)
        return _parts(self._receive(self._links[0]))

    def barrier(self) -> None:
        """Returns when every process has called it."""
        self.all_gather(b"")

    def close(self) -> None:
        """Idempotent."""
        for link in self._links:
            link.close()

    def _send(self, link: socket.socket, data: bytes) -> None:
        try:
            link.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            _wait_for_the_end()

    def _receive(self, link: socket.socket) -> bytes:
        (length,) = LENGTH.unpack(_exactly(link, LENGTH.size))
        return _exactly(link, length)


def _parts(whole: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(whole):
        (length,) = LENGTH.unpack_from(whole, at)
        parts.append(whole[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return parts


def _exactly(link: socket.socket, nbytes: int) -> bytes:
    parts, left = [], nbytes
    while left:
        try:
            part = link.recv(min(left, 1 << 20))
        except OSError:
            part = b""
        if not part:
            _wait_for_the_end()
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _wait_for_the_end() -> None:
    """A peer is gone. Its end is the finding, not what fails here in consequence: the parent sees it and ends this process."""
    time.sleep(PATIENCE)
    raise SystemExit(1)
