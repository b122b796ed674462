"""torch and torch.distributed as far as the backend uses them, on NumPy arrays; the ranks are threads of one process.

What a backend does with them is tested without torch: addresses are real, so a wrong window, count, copy or order shows. The fake
keeps torch's habits: collectives work in place, a group's ranks are sorted, a tensor that ``reduce`` was given where the root is
not is scratch afterwards, and a view as wider elements needs an offset that they divide.
"""

from __future__ import annotations

import sys
import threading
import types

import ml_dtypes
import numpy as np

DTYPES = {
    "uint8": np.uint8,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}
ELEMENTWISE = {"SUM": np.sum, "AVG": np.mean, "MIN": np.min, "MAX": np.max}


class Tensor:
    """A part of a block of bytes, as elements of a type."""

    def __init__(self, block, start, nbytes, dtype):
        self.block, self.start, self.nbytes, self.dtype = block, start, nbytes, dtype

    def numpy(self):
        return self.block[self.start : self.start + self.nbytes].view(DTYPES[self.dtype])

    def data_ptr(self):
        return self.block.ctypes.data + self.start

    def element_size(self):
        return np.dtype(DTYPES[self.dtype]).itemsize

    def numel(self):
        return self.nbytes // self.element_size()

    def storage_offset(self):
        return self.start // self.element_size()

    def __getitem__(self, part):
        size = self.element_size()
        start, stop, _ = part.indices(self.numel())
        return Tensor(self.block, self.start + start * size, max(stop - start, 0) * size, self.dtype)

    def view(self, dtype):
        size = np.dtype(DTYPES[dtype]).itemsize
        if self.start % size or self.nbytes % size:
            raise RuntimeError("self.storage_offset() must be divisible by the size of the new dtype")
        return Tensor(self.block, self.start, self.nbytes, dtype)

    def copy_(self, other):
        assert (other.dtype, other.nbytes) == (self.dtype, self.nbytes)
        self.numpy()[:] = other.numpy()


class Hub:
    """Where the threads meet: each call of a group gathers what its members bring."""

    def __init__(self):
        self.lock = threading.Condition()
        self.slots = {}

    def exchange(self, key, members, rank, value):
        with self.lock:
            slot = self.slots.setdefault(key, {})
            slot[rank] = value
            self.lock.notify_all()
            assert self.lock.wait_for(lambda: all(member in slot for member in members), 20), (
                f"{key}: a rank is missing"
            )
            values = [slot[member] for member in members]
            slot["read"] = slot.get("read", 0) + 1
            if slot["read"] == len(members):
                del self.slots[key]
            return values


class Distributed(types.ModuleType):
    """One world; which rank asks is a matter of the thread."""

    def __init__(self, refuse=""):
        super().__init__("torch.distributed")
        self.hub, self.mine, self.refuse = Hub(), threading.local(), refuse
        self.ReduceOp = types.SimpleNamespace(**{name: name for name in ELEMENTWISE})
        self.group = types.SimpleNamespace(WORLD=types.SimpleNamespace(group_name="0"))
        self.calls = []

    def is_available(self):
        return True

    def is_gloo_available(self):
        return True

    is_nccl_available = is_gloo_available

    def is_initialized(self):
        return getattr(self.mine, "size", 0) > 0

    def TCPStore(self, host, port, world_size, timeout, wait_for_workers, is_master):
        assert is_master or port == 4242
        return types.SimpleNamespace(port=4242)

    def PrefixStore(self, prefix, store):
        return prefix

    def init_process_group(self, backend, store, rank, world_size, timeout, device_id=None):
        if self.refuse == "init":
            raise RuntimeError("the wire\nis cut")
        self.mine.rank, self.mine.size, self.mine.prefix, self.mine.number = rank, world_size, store, {}

    def destroy_process_group(self, group=None):
        if group is None:
            self.mine.size = 0

    def new_group(self, ranks=None, timeout=None, use_local_synchronization=False):
        assert ranks is None or use_local_synchronization
        return tuple(sorted(range(self.mine.size) if ranks is None else ranks))

    def _gather(self, name, group, tensor):
        members = group or tuple(range(self.mine.size))
        assert self.mine.rank in members
        number = self.mine.number[members] = self.mine.number.get(members, 0) + 1
        if self.refuse == "call":
            raise RuntimeError("Invalid scalar type")
        if self.mine.rank == members[0]:
            self.calls.append((name, members))
        key = (self.mine.prefix, members, number, name)
        return members, self.hub.exchange(key, members, self.mine.rank, tensor.numpy().copy())

    def _total(self, op, terms):
        wide = [term.astype(np.float64) for term in terms]
        return ELEMENTWISE[op](np.stack(wide), axis=0).astype(terms[0].dtype)

    def all_reduce(self, tensor, op="SUM", group=None):
        _, terms = self._gather("all_reduce", group, tensor)
        tensor.numpy()[:] = self._total(op, terms)

    def reduce(self, tensor, dst, op="SUM", group=None):
        _, terms = self._gather("reduce", group, tensor)
        total = self._total(op, terms)
        tensor.numpy()[:] = total if dst == self.mine.rank else total + 1  # scratch

    def reduce_scatter_tensor(self, output, given, op="SUM", group=None):
        members, terms = self._gather("reduce_scatter_tensor", group, given)
        self._share(output, members, op, terms)

    def reduce_scatter(self, output, given, op="SUM", group=None):
        whole = np.concatenate([part.numpy() for part in given])
        flat = types.SimpleNamespace(numpy=lambda: whole)
        members, terms = self._gather("reduce_scatter", group, flat)
        self._share(output, members, op, terms)

    def _share(self, output, members, op, terms):
        n, at = output.numel(), members.index(self.mine.rank)
        output.numpy()[:] = self._total(op, terms)[at * n : (at + 1) * n]


def install(monkeypatch, *, gpu_n=0, refuse=""):
    """Put the fake where ``import torch`` finds it; gives its torch.distributed."""
    distributed = Distributed(refuse)
    torch = types.ModuleType("torch")

    def empty(nbytes, dtype, device):
        block = np.full(nbytes + 64, 0xA5, np.uint8)
        return Tensor(block, 8, nbytes, dtype)

    event = lambda **_: types.SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 2.0)  # noqa: E731
    stream = types.SimpleNamespace(synchronize=lambda: None)
    cuda = types.SimpleNamespace(
        is_available=lambda: gpu_n > 0,
        device_count=lambda: gpu_n,
        set_device=lambda number: None,
        synchronize=lambda device: None,
        current_stream=lambda device: stream,
        Event=event,
        nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)),
    )
    vars(torch).update(
        **{name: name for name in DTYPES},
        __version__="2.13.0",
        distributed=distributed,
        cuda=cuda,
        empty=empty,
        device=lambda *parts: parts,
        get_num_threads=lambda: 1,
    )
    for name, module in (("torch", torch), ("torch.distributed", distributed)):
        monkeypatch.setitem(sys.modules, name, module)
    return distributed
