"""A fake machine for the multimem backend: CuPy's part on host memory, the kernels emulated, streams that obey events alone.

What is put on a stream runs when somebody waits, the last stream first and each as far as the events let it: a barrier that is
missing lets a rank read what another has not sent yet, or write what another still reads.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import emulated_multimem as emulated
import fake_cuda

from auditor.backends import multimem, multimem_kernels
from auditor.backends.multimem_kernels import Variant


@dataclass
class Machine:
    """The state of the machine, and what it is told to do wrong."""

    cuda: fake_cuda.World
    streams: list[Stream] = field(default_factory=list)
    peers: list[tuple[int, int]] = field(default_factory=list)
    reachable: bool = True
    asked: set[int] = field(default_factory=set)  # streams that somebody looked at
    launches: list[tuple[int, Variant, tuple[int, ...]]] = field(default_factory=list)
    compiled: list[tuple[Variant, str]] = field(default_factory=list)

    def settle(self) -> None:
        """Runs everything; fails where streams wait for what nobody will record."""
        moved = True
        while moved:
            moved = sum(stream.advance() for stream in reversed(self.streams)) > 0
        assert not any(stream.queue for stream in self.streams), "streams wait for each other for ever"


class Stream:
    machine: Machine

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking
        self.ptr, self.queue = id(self), []
        self.device = self.machine.cuda.current
        self.machine.streams.append(self)

    def put(self, ready: Callable[[], bool], work: Callable[[], None]) -> None:
        assert self.machine.cuda.current == self.device, "the stream's device is not current"
        self.queue.append((ready, work))

    def advance(self) -> bool:
        before = len(self.queue)
        while self.queue and self.queue[0][0]():
            self.queue.pop(0)[1]()
        return len(self.queue) < before

    def wait_event(self, event: Event) -> None:
        asked = event.recorded
        self.put(lambda: event.reached >= asked, lambda: None)


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.recorded = self.reached = 0
        self.timed = not disable_timing

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        number = self.recorded
        stream.put(always, lambda: setattr(self, "reached", number))


def always() -> bool:
    return True


class Module:
    machine: Machine

    def load(self, code: bytes) -> None:
        self.variant = next(one for one in emulated.variants() if repr(one).encode() == code)

    def get_function(self, name: str) -> Callable[..., None]:
        assert name == multimem_kernels.KERNEL
        machine, variant = self.machine, self.variant

        def launch(grid, block, words, stream):
            arguments = tuple(int(one) for one in words)
            assert block == (multimem_kernels.THREADS, 1, 1)
            assert 1 <= grid[0] <= 4 * 8
            machine.launches.append((stream.device, variant, arguments))
            stream.put(always, lambda: emulated.launch(variant, arguments, 3))

        return launch


def elapsed(begin: Event, end: Event) -> float:
    assert begin.timed
    assert end.timed
    assert begin.reached
    assert end.reached
    return 0.001


def install(monkeypatch, **settings) -> Machine:
    """Put the fakes where ``import cupy`` finds them."""
    machine = Machine(fake_cuda.install(monkeypatch, **settings))
    cupy = sys.modules["cupy"]
    for cls in (Stream, Module):
        monkeypatch.setattr(cls, "machine", machine, raising=False)
    runtime, properties = cupy.cuda.runtime, cupy.cuda.runtime.getDeviceProperties

    def look(pointer):
        machine.asked.add(pointer)
        machine.settle()
        return machine.cuda.stream_code

    def enable(other):
        if (machine.cuda.current, other) in machine.peers:
            raise fake_cuda.CUDARuntimeError(704)
        machine.peers.append((machine.cuda.current, other))

    def copy(target, source, nbytes, kind, pointer):
        stream = next(one for one in machine.streams if one.ptr == pointer)
        stream.put(always, lambda: ctypes.memmove(target, source, nbytes))

    runtime.getDeviceProperties = lambda number: {**properties(number), "multiProcessorCount": 8}
    runtime.streamQuery, runtime.deviceSynchronize = look, machine.settle
    runtime.deviceCanAccessPeer = lambda one, other: int(machine.reachable)
    runtime.deviceEnablePeerAccess, runtime.memcpyAsync = enable, copy
    cupy.cuda.Stream, cupy.cuda.Event, cupy.cuda.get_elapsed_time = Stream, Event, elapsed
    cupy.cuda.function = types.SimpleNamespace(Module=Module)

    def compiled(variant, architecture):
        machine.compiled.append((variant, architecture))
        return repr(variant).encode()

    monkeypatch.setattr(multimem_kernels, "cubin", compiled)
    monkeypatch.setattr(multimem, "compiler_version", lambda: "13.0")
    monkeypatch.setattr(multimem, "disassembler_version", lambda: "13.5.37")
    monkeypatch.setattr(multimem, "sass_words", lambda variant, architecture: "FADD")
    return machine
