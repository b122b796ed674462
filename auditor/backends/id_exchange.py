"""Carries the id of a new communicator or team between the members of a group, which control's verbs cannot do."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable

from auditor.model import Control


class Exchange:
    """Carries a small text from a group's first member to its others.

    Control's verbs need every process, and a call on a group is made by its members alone. So every process has a listener, and
    all addresses are known from the start. The members of one group make the same calls in the same order.
    """

    def __init__(self, control: Control, rank: int, rank_n: int) -> None:
        from multiprocessing.connection import Listener

        self._rank = rank
        self._key = control.broadcast(secrets.token_bytes(16))
        self._listener = Listener(("", 0), "AF_INET", backlog=rank_n, authkey=self._key)
        host, port = socket.gethostname(), self._listener.address[1]
        self._hosts = [tuple(json.loads(one)) for one in control.all_gather(json.dumps([host, port]).encode())]

    def share(self, members: tuple[int, ...], make: Callable[[], bytes]) -> bytes:
        """What the first member makes, at every member."""
        from multiprocessing.connection import Client

        if self._rank == members[0]:
            data = make()
            for _ in members[1:]:
                with self._listener.accept() as peer:
                    peer.send_bytes(data)
            return data
        host, port = self._hosts[members[0]]
        here = host == self._hosts[self._rank][0]
        with Client(("127.0.0.1" if here else host, port), "AF_INET", authkey=self._key) as peer:
            return bytes(peer.recv_bytes())

    def close(self) -> None:
        """Idempotent."""
        self._listener.close()
