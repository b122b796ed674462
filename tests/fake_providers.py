"""NCCL's, CUDA's and NVSHMEM's part of a multicast pointer, on host memory: behind it stands the emulated switch.

No multicast object is made anywhere here: there is no CUDA. Calls are kept in order, and each can be told to fail.
"""

from __future__ import annotations

import types

import emulated_multimem as emulated
import fake_cuda
import numpy as np

BASE = 1 << 46  # multicast addresses begin here, where no memory is


class NcclBindings(types.ModuleType):
    """nccl4py's bindings as far as they are used: memory, windows, and a multicast address of each window."""

    NCCLError = type("NCCLError", (Exception,), {"status": 4})

    def __init__(self, machine):
        super().__init__("nccl.bindings.nccl")
        self.machine, self.memory, self.windows, self.refuses, self.pointer = machine, {}, [], False, True
        self.Comm = lambda handle: handle

    def get_version(self):
        return 23203

    def mem_alloc(self, nbytes):
        block = np.zeros(nbytes + 512, np.uint8)
        address = block.ctypes.data + -block.ctypes.data % 512
        self.memory[address] = block
        return address

    def mem_free(self, address):
        del self.memory[address]

    def comm_window_register(self, comm, address, nbytes, flags):
        self.windows.append((address, nbytes, flags))
        return types.SimpleNamespace(handle=0 if self.refuses else len(self.windows), address=address)

    def comm_window_deregister(self, comm, window):
        self.windows.remove(next(one for one in self.windows if one[0] == window.address))

    def get_lsa_multimem_device_pointer(self, window, offset):
        """One address a pair of windows, as all ranks' windows that were opened together stand behind one."""
        if not self.pointer:
            return 0
        number = [one[0] for one in self.windows].index(window.address) // 2
        pairs = [self.windows[k : k + 2] for k in range(0, len(self.windows), 2)]
        emulated.switch([(BASE * (k + 1), pair[0][1], tuple(one[0] for one in pair)) for k, pair in enumerate(pairs)])
        return BASE * (number + 1) + offset


class Status(int):
    name = "CUDA_ERROR_NOT_PERMITTED"


class Driver(types.ModuleType):
    """The driver's calls, kept in order; host memory behind the mappings; ``fails`` names the call that gets a status."""

    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.calls, self.fails, self.memory, self.mapped, self.serial = [], "", {}, {}, 100
        for kind in ("CUmulticastObjectProp", "CUmemAllocationProp", "CUmemAccessDesc"):
            setattr(self, kind, lambda: types.SimpleNamespace(location=types.SimpleNamespace()))
        flags = {
            "CUmulticastGranularity_flags": "CU_MULTICAST_GRANULARITY_RECOMMENDED",
            "CUmemAllocationGranularity_flags": "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED",
            "CUmemAllocationType": "CU_MEM_ALLOCATION_TYPE_PINNED",
            "CUmemLocationType": "CU_MEM_LOCATION_TYPE_DEVICE",
            "CUmemAccess_flags": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
        }
        for name, flag in flags.items():
            setattr(self, name, types.SimpleNamespace(**{flag: 1}))

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            if name == self.fails:
                return (Status(800),)
            value = getattr(self, f"do_{name}", lambda *_: None)(*arguments)
            return (Status(0),) if value is None else (Status(0), value)

        return call

    def do_cuMulticastGetGranularity(self, prop, kind):
        return 8192

    def do_cuMemGetAllocationGranularity(self, prop, kind):
        return 4096

    def do_cuDeviceGet(self, number):
        return f"device {number}"

    def handle(self):
        self.serial += 1
        return self.serial

    def do_cuMulticastCreate(self, prop):
        self.bound = []
        return ("multicast", self.handle())

    def do_cuMemCreate(self, size, prop, flags):
        block = np.zeros(size + 512, np.uint8)
        handle = self.handle()
        self.memory[handle] = block
        return handle

    def do_cuMulticastBindMem(self, whole, offset, memory, at, size, flags):
        block = self.memory[memory]
        self.bound.append(block.ctypes.data + -block.ctypes.data % 512)

    def do_cuMemAddressReserve(self, size, grain, address, flags):
        self.reserved = size
        if len(self.bound) < 2 or self.calls[-2][0] != "cuMemSetAccess" or self.waiting():
            return self.bound[-1]
        return BASE * self.handle()

    def waiting(self):
        """Whether memory that was bound has no mapping yet."""
        return self.bound[-1] not in [call[1] for call in self.calls if call[0] == "cuMemMap"]

    def do_cuMemMap(self, address, size, offset, handle, flags):
        if isinstance(handle, tuple):
            self.mapped[address] = (address, size, tuple(self.bound))
            emulated.switch(list(self.mapped.values()))


class Nvshmem(types.ModuleType):
    """Two PEs' heaps in one process; this one is PE 0. PE 1's terms lie in its heap at the same place."""

    NVSHMEMError = type("NVSHMEMError", (Exception,), {"status": 7})

    def __init__(self, machine):
        super().__init__("nvshmem.bindings")
        self.machine, self.calls, self.used, self.multicast = machine, [], 0, True
        self.heaps = [fake_cuda.Memory(1 << 20) for _ in range(2)]
        base = self.heaps[0].ptr
        emulated.switch([(BASE, 1 << 20, (base, self.heaps[1].ptr + (base - self.heaps[1].ptr) % 512))])
        self.other = self.heaps[1].ptr + (base - self.heaps[1].ptr) % 512 - base

    def malloc(self, nbytes):
        if self.used + nbytes > 1 << 19:
            return 0
        self.used += nbytes
        return self.heaps[0].ptr + self.used - nbytes

    def free(self, address):
        self.calls.append(("free", address))

    def mc_ptr(self, team, address):
        return BASE + address - self.heaps[0].ptr if self.multicast else 0

    def ptr(self, address, pe):
        self.calls.append(("ptr", pe))
        return address + self.other if pe == 1 else 0

    def barrier_all_on_stream(self, stream):
        self.calls.append(("barrier", stream))
