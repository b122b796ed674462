"""Provider ``nccl``: the multicast address of symmetric windows of ncclMemAlloc, one process for all GPUs.

Never run on hardware.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from auditor.backends.cuda_device import Lanes, first_line
from auditor.backends.multimem_fabric import SwitchFabric, aligned
from auditor.backends.nccl_comms import grouped
from auditor.backends.nccl_extra import Extra, load_bindings
from auditor.backends.nccl_options import dotted, load_nccl
from auditor.errors import BackendError, Unavailable
from auditor.model import World

WANTED = 'options.provider = "nccl"'


class NcclFabric(SwitchFabric):
    """Memory, windows and pointers of NCCL; the calls are ours."""

    @classmethod
    def load(cls, cupy: Any) -> None:
        load_nccl(cupy)
        load_bindings(WANTED)

    def __init__(self, world: World, lanes: Lanes) -> None:
        super().__init__(world, lanes)
        self._nccl, self._bindings, self._extra = load_nccl(lanes.cupy), load_bindings(WANTED), Extra(WANTED)
        with self._told("communicators"):
            made = self._nccl.NcclCommunicator.initAll([int(lanes[rank].device.id) for rank in lanes])
        self._comms = dict(zip(lanes, made, strict=True))
        self._given: list[tuple[int, int, Any]] = []  # rank, address, window (None: not opened)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """NCCL's own errors become BackendError."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, self._nccl.NcclError) and not self._extra.is_error(error):
                raise
            self.lanes.must_be_alive(what)
            raise BackendError(f"NCCL {dotted(self._nccl.get_version())}: {what}: {first_line(error)}") from error

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """As Fabric.allocate. Raises Unavailable where NCCL gives no window, or none with a multicast address."""
        arrays, windows = {}, {}
        for rank in self.lanes:
            with self.lanes[rank].device, self._told(f"ncclMemAlloc of {nbytes} bytes"):
                address = aligned(self._extra.allocate(nbytes))
            self._given.append((rank, address, None))
            arrays[rank] = self.lanes.view(self.lanes[rank], address, nbytes, self)
        with self._told("symmetric windows"), grouped(self._nccl, len(arrays) > 1):
            for rank, address, _ in self._given[-len(arrays) :]:
                with self.lanes[rank].device:
                    windows[rank] = self._extra.window(self._comms[rank], address, nbytes)
        for number, (rank, address, _) in enumerate(self._given[-len(arrays) :], len(self._given) - len(arrays)):
            self._given[number] = rank, address, windows[rank]
            self.mapped.append((address, nbytes, self._pointer(rank, windows[rank])))
        return arrays

    def _pointer(self, rank: int, window: Any) -> int:
        with self.lanes[rank].device, self._told("multicast address of a window"):
            found = 0 if self._extra.refused(window) else int(self._bindings.get_lsa_multimem_device_pointer(window, 0))
        if not found:
            raise Unavailable(
                "NCCL gives this window no multicast address",
                "it needs NVLink SHARP and every GPU of one NVLink domain",
            )
        return found

    def describe(self) -> dict[str, Any]:
        return {"nccl": dotted(self._nccl.get_version())}

    def close(self) -> None:
        given, self._given = self._given, []
        for rank, address, window in given:
            with self.lanes[rank].device, self._told("release of a window"):
                if window is not None and not self._extra.refused(window):
                    self._extra.close_window(self._comms[rank], window)
                self._extra.free(address)
        comms, self._comms = self._comms, {}
        for rank, comm in comms.items():
            with self.lanes[rank].device, self._told("end of a communicator"):
                comm.destroy()
