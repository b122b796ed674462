"""The seam between the harness and an implementation under audit (DESIGN §4).

A backend must not: import its vendor library at module level; generate, compare, cast, round, pad or clear data; touch bytes
outside its windows; know trials, seeds, probes, files or the config; choose an algorithm without reporting it; retry, print, or
swallow a vendor status; use the collective to move evidence; return before its stream is synchronised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from auditor.model import Call, Capabilities, Window, World


@runtime_checkable
class Backend(Protocol):
    """One reduction implementation under audit, seen from one process."""

    name: ClassVar[str]
    process_model: ClassVar[str]  # "all": this process drives every rank; "one": a process drives one rank

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """What is offered here; raises Unavailable(reason, remedy). No side effects."""

    def __init__(self, world: World, options: Mapping[str, Any]) -> None: ...

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """Local rank -> 1-D uint8 array of ``nbytes``, base 512-byte aligned, valid until ``close``."""

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        """Perform the call; return when every local ``recv`` may be read. Raises BackendError or Unsupported."""

    def describe(self) -> Mapping[str, Any]:
        """Versions and device names; JSON scalars."""

    def close(self) -> None:
        """Idempotent; frees what ``allocate`` gave."""


class OptionalVerbs(Protocol):
    """Verbs present where the feature of the same row is listed; features decide, not isinstance.

    Two optional class methods need no feature. ``for_options(options)`` gives the class that options mean, where one name stands
    for two. ``preload(options)`` loads libraries and makes no context; it is called in the very process that will make the
    backend, while another job may still run.
    """

    def path(self) -> str: ...  # feature "path": what the last call really took
    def perturb(self, side_communicators: int) -> None: ...  # "history": that many alive from now on (absolute)
    def recreate(self) -> None: ...  # "recreate"
    def capture(
        self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]
    ) -> Callable[[], None]: ...  # "graph"
    def register(self, window: Window) -> None: ...  # "registration"
    def deregister(self) -> None: ...  # may come with it: ends what register began, so that later calls are plain again
    def enqueue(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None: ...  # "queue"
    def wait(self) -> None: ...  # "queue"
    def last_seconds(self) -> float: ...  # "timing": the subject's own clock for the last call


class LocalControl:
    """``model.Control`` of a world whose one process drives every rank."""

    def broadcast(self, data: bytes, root: int = 0) -> bytes:  # noqa: ARG002  the one process is every root
        return data

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data]

    def barrier(self) -> None:
        return None
