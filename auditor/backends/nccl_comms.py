"""NCCL communicators of this process's ranks: the world's, one for each group, and side ones that only have to exist.

One process for all GPUs: ``initAll``. One process a GPU: a unique id, made by the first member and carried to the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from auditor.backends.cuda_device import Lanes, first_line
from auditor.backends.id_exchange import Exchange
from auditor.backends.nccl_extra import Extra
from auditor.backends.nccl_path import Trace, warnings
from auditor.errors import BackendError, Unsupported
from auditor.model import World

INVALID_ARGUMENT, INVALID_USAGE = 4, 5  # ncclResult_t
Group = tuple[int, ...]


@dataclass(slots=True)
class CommSet:
    """The communicators of one group, by local rank, and what is registered with them: (rank, address, nbytes) -> handle."""

    members: Group
    of: dict[int, Any]
    registered: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    refusal: str = ""  # why NCCL would not register: no call may then run as if it had


@dataclass(frozen=True, slots=True)
class Range:
    """Memory to be registered with every communicator that is used: as a user buffer, or as a symmetric window."""

    rank: int
    address: int
    nbytes: int
    window: bool

    @property
    def key(self) -> tuple[int, int, int]:
        return self.rank, self.address, self.nbytes


@dataclass(slots=True)
class Errors:
    """Turns NCCL's status codes into the auditor's errors, in the library's own words."""

    nccl: Any
    trace: Trace
    lanes: Lanes
    extra: Extra | None = None

    @property
    def bindings(self) -> Extra:
        """nccl4py's calls, loaded when first needed. Raises Unavailable."""
        if self.extra is None:
            self.extra = Extra("registration")
        return self.extra

    @contextlib.contextmanager
    def told(self, what: str, *, refusable: bool = False) -> Iterator[None]:
        """``refusable``: an invalid argument is the library's way to say that it does not offer this."""
        mark = self.trace.mark()
        try:
            yield
        except Exception as error:
            ours = isinstance(error, self.nccl.NcclError)
            if not ours and (self.extra is None or not self.extra.is_error(error)):
                raise
            self.lanes.must_be_alive(what)
            said = first_line(error).partition(" (run with")[0]
            words = ": ".join(part for part in (what, said, warnings(self.trace.since(mark))) if part)
            status = getattr(error, "status", INVALID_USAGE)  # no status: the library lacks the function
            refused = refusable and status in (INVALID_ARGUMENT, INVALID_USAGE)
            raise (Unsupported if refused else BackendError)(words) from error


@contextlib.contextmanager
def grouped(nccl: Any, several: bool) -> Iterator[None]:
    """One NCCL group around the calls of several ranks in one thread: without it the first would wait for the others for ever."""
    if not several:
        yield
        return
    nccl.groupStart()
    try:
        yield
    except BaseException:
        with contextlib.suppress(nccl.NcclError):  # the group must be closed; NCCL gives the same error once more
            nccl.groupEnd()
        raise
    nccl.groupEnd()


class Communicators:
    """Made when first needed, kept until ``renew`` or ``close``."""

    def __init__(self, nccl: Any, world: World, lanes: Lanes, errors: Errors) -> None:
        self._nccl, self._world, self._lanes, self._errors = nccl, world, lanes, errors
        self._everyone = tuple(range(world.rank_n))
        self._together = world.rank_n == len(world.local_ranks)
        rank = world.local_ranks[0]
        self._exchange = None if self._together else Exchange(world.control, rank, world.rank_n)
        self._sets: dict[Group, CommSet] = {}
        self._side: list[CommSet] = []
        self.ranges: list[Range] = []

    def get(self, group: Group | None) -> CommSet:
        """The communicators of a group (None: the world), with everything registered that is to be."""
        members = self._everyone if group is None else group
        if members not in self._sets:
            self._sets[members] = self._make(members, world=group is None)
        self._register(self._sets[members])
        return self._sets[members]

    def _make(self, members: Group, *, world: bool) -> CommSet:
        with self._errors.told(f"communicator of ranks {', '.join(map(str, members))}"):
            if self._together:
                made = self._nccl.NcclCommunicator.initAll([self._lanes[rank].device.id for rank in members])
                return CommSet(members, dict(zip(members, made, strict=True)))
            rank = self._world.local_ranks[0]
            with self._lanes[rank].device:
                comm = self._nccl.NcclCommunicator(len(members), self._id(members, world=world), members.index(rank))
            return CommSet(members, {rank: comm})

    def _id(self, members: Group, *, world: bool) -> Any:
        if not world:
            assert self._exchange is not None
            return self._exchange.share(members, self._nccl.get_unique_id)
        first = self._world.local_ranks[0] == 0
        return self._world.control.broadcast(self._nccl.get_unique_id() if first else b"")

    def _register(self, comms: CommSet) -> None:
        missing = [one for one in self.ranges if one.rank in comms.of and one.key not in comms.registered]
        if comms.refusal:
            raise Unsupported(comms.refusal)
        if not missing:
            return
        try:
            with self._errors.told(f"registration of {len(missing)} ranges", refusable=True):
                self._register_buffers(comms, [one for one in missing if not one.window])
                self._open_windows(comms, [one for one in missing if one.window])
        except Unsupported as error:
            comms.refusal = str(error)
            raise

    def _register_buffers(self, comms: CommSet, missing: list[Range]) -> None:
        for one in missing:
            with self._lanes[one.rank].device:
                comm = comms.of[one.rank]
                comms.registered[one.key] = self._errors.bindings.register(comm, one.address, one.nbytes)

    def _open_windows(self, comms: CommSet, missing: list[Range]) -> None:
        """Collective: the n-th window of every rank belongs together."""
        extra = self._errors.bindings
        each = [[one for one in missing if one.rank == rank] for rank in comms.of]
        for together in zip(*each, strict=True):
            with grouped(self._nccl, len(together) > 1):
                for one in together:
                    with self._lanes[one.rank].device:
                        comms.registered[one.key] = extra.window(comms.of[one.rank], one.address, one.nbytes)
            if any(extra.refused(comms.registered[one.key]) for one in together):
                raise Unsupported("NCCL gives no symmetric window here (its handle is 0)")

    def forget(self, ranges: list[Range]) -> None:
        """Release these ranges with every communicator."""
        self.ranges = [one for one in self.ranges if one not in ranges]
        for comms in self._sets.values():
            comms.refusal = ""
            for one in ranges:
                if (handle := comms.registered.pop(one.key, None)) is not None:
                    self._release(comms, one.rank, handle, window=one.window)

    def _release(self, comms: CommSet, rank: int, handle: Any, *, window: bool) -> None:
        extra = self._errors.bindings
        with self._lanes[rank].device, self._errors.told("release of a registered range"):
            (extra.close_window if window else extra.release)(comms.of[rank], handle)

    def side(self, number: int) -> None:
        """That many further communicators of the world alive from now on. Collective over all ranks."""
        while len(self._side) > number:
            self._destroy(self._side.pop())
        while len(self._side) < number:
            self._side.append(self._make(self._everyone, world=True))

    def poll(self, comms: CommSet) -> None:
        """Ask for errors that NCCL met since the call was issued; after one, no communicator is of use and all are given up."""
        try:
            for comm in comms.of.values():
                comm.check_async_error()
        except self._nccl.NcclError:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up every communicator, whatever it is doing; the next call makes new ones."""
        for comms in (*self._sets.values(), *self._side):
            for rank, comm in comms.of.items():
                with self._lanes[rank].device, contextlib.suppress(self._nccl.NcclError):  # they are broken already
                    comm.abort()
        self._sets.clear()
        self._side.clear()

    def renew(self) -> None:
        """New communicators in place of all but the side ones. Collective over all ranks."""
        self._destroy_sets()
        self.get(None)

    def _destroy_sets(self) -> None:
        while self._sets:
            _, comms = self._sets.popitem()
            self._destroy(comms)

    def _destroy(self, comms: CommSet) -> None:
        windows = {one.key: one.window for one in self.ranges}
        for key, handle in comms.registered.items():
            if key in windows and not (windows[key] and Extra.refused(handle)):
                self._release(comms, key[0], handle, window=windows[key])
        comms.registered.clear()
        for rank, comm in comms.of.items():
            with self._lanes[rank].device, self._errors.told("end of a communicator"):
                comm.destroy()

    def close(self) -> None:
        """Idempotent."""
        self.side(0)
        self._destroy_sets()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
