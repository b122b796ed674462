"""What NCCL has and CuPy does not reach: its own allocator, registration, windows, an algorithm for one call.

Through nccl4py's bindings, which take plain addresses and work on CuPy's communicators, since both load one and the same library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from auditor.backends.nccl_options import NCCL4PY
from auditor.errors import BackendError, Unavailable
from auditor.model import Call

COLL_SYMMETRIC = 1  # a window flag: the same offset on every rank, which NCCL's symmetric kernels need


def load_bindings(wanted_for: str) -> Any:
    """``nccl.bindings.nccl``. Raises Unavailable."""
    try:
        from nccl.bindings import nccl as bindings
    except Exception as error:
        raise Unavailable(f"{wanted_for} needs nccl4py, which cannot be imported ({error})", NCCL4PY) from error
    return bindings


def one_library() -> None:
    """Raises Unavailable where two NCCL libraries are mapped: a communicator of one must not be handed to the other."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    found = sorted({line.split()[-1] for line in lines if "libnccl.so" in line})
    if len(found) > 1:
        raise Unavailable(f"CuPy and nccl4py load two NCCL libraries ({' and '.join(found)})", "remove one of them")


class Extra:
    """nccl4py's low-level calls on CuPy's communicators."""

    def __init__(self, wanted_for: str) -> None:
        self._bindings = load_bindings(wanted_for)
        self.version = int(self._bindings.get_version())  # loads the library
        one_library()

    def words(self, comm: Any) -> str:
        """NCCL's account of the last error."""
        try:
            return str(self._bindings.get_last_error(self._handle(comm)))
        except Exception:  # an old library without the call
            return ""

    def _handle(self, comm: Any) -> Any:
        return self._bindings.Comm(comm.comm)

    def allocate(self, nbytes: int) -> int:
        """Address of memory of ncclMemAlloc on the current device: what windows need."""
        return int(self._bindings.mem_alloc(nbytes))

    def free(self, address: int) -> None:
        self._bindings.mem_free(address)

    def register(self, comm: Any, address: int, nbytes: int) -> Any:
        """A registered range's handle; to be given to :meth:`release`."""
        return self._bindings.comm_register(self._handle(comm), address, nbytes)

    def release(self, comm: Any, handle: Any) -> None:
        self._bindings.comm_deregister(self._handle(comm), handle)

    def window(self, comm: Any, address: int, nbytes: int) -> Any:
        """A symmetric window; collective over the communicator. Its handle is filled when the NCCL group ends."""
        return self._bindings.comm_window_register(self._handle(comm), address, nbytes, COLL_SYMMETRIC)

    def close_window(self, comm: Any, window: Any) -> None:
        self._bindings.comm_window_deregister(self._handle(comm), window)

    @staticmethod
    def refused(window: Any) -> bool:
        """Whether NCCL gave no window (its handle is 0 where the platform has none)."""
        return not int(window.handle)

    def config(self, algorithm: str) -> Any:
        """A call's configuration that admits these algorithms alone. Raises BackendError where the binding has none."""
        try:
            config = self._bindings.CollConfig()
            config.alg_selection = algorithm
        except Exception as error:
            raise BackendError(f"nccl4py takes no algorithm a call: {error}") from error
        return config

    def call(
        self, comm: Any, call: Call, addresses: tuple[int, int], numbers: tuple[int, int], stream: int, config: Any
    ) -> None:
        """One collective with a configuration of its own. Raises what nccl4py raises."""
        send, recv = addresses
        datatype, op = numbers
        handle, bindings = self._handle(comm), self._bindings
        if call.collective == "all_reduce":
            bindings.all_reduce_config(send, recv, call.count, datatype, op, handle, stream, config)
        elif call.collective == "reduce_scatter":
            bindings.reduce_scatter_config(send, recv, call.count, datatype, op, handle, stream, config)
        else:
            bindings.reduce_config(send, recv, call.count, datatype, op, call.root, handle, stream, config)

    def is_error(self, error: Exception) -> bool:
        """Whether an exception carries NCCL's refusal, or says that the loaded library lacks the function."""
        return isinstance(error, self._bindings.NCCLError) or type(error).__name__ == "FunctionNotFoundError"
