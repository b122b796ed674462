"""Arenas through the memory seam: on the host, and as a GPU does it, with the kernels emulated on ordinary memory."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

import emulated_cuda
import numpy as np
import pytest

from auditor import inputs
from auditor.errors import AuditError
from auditor.harness import Harness, Job
from auditor.inputs.programs import sender
from auditor.kernels import cuda, cuda_memory, memory
from auditor.kernels.memory import Look, Memory, Payload, adopt, agree
from auditor.layout import PERIOD, Background, fill_codes
from auditor.model import Call, Capabilities, Family, Planned, Trial, World

N = 3 * PERIOD + 512


class _Array(np.ndarray):
    """A NumPy array that answers like one of CuPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return type("pointer", (), {"ptr": self.ctypes.data})

    @property
    def device(self) -> Any:
        return type("device", (), {"id": 0})

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__

    def set(self, data: np.ndarray) -> None:
        self[:] = data

    def get(self, out: np.ndarray) -> None:
        out[:] = self


class _Device:
    id = 0

    def __init__(self, number: int) -> None:
        assert number == 0

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...
    def synchronize(self) -> None: ...


class _Stream:
    ptr = 77

    def synchronize(self) -> None: ...


class FakeCupy:
    """As much of CuPy as ``CudaMemory`` uses, on host memory."""

    managed = False

    class cuda:
        Device = _Device

        @staticmethod
        def Stream(non_blocking: bool) -> _Stream:
            assert non_blocking  # else it would wait for the default stream, and that for a library's
            return _Stream()

        class runtime:
            @staticmethod
            def pointerGetAttributes(address: int) -> Any:
                return type("attributes", (), {"type": 3 if FakeCupy.managed else 2})

            @staticmethod
            def memcpyAsync(to: int, of: int, nbytes: int, kind: int, stream: int) -> None:
                assert (kind, stream) == (3, _Stream.ptr)
                ctypes.memmove(to, of, nbytes)

        @staticmethod
        def alloc_pinned_memory(nbytes: int) -> bytearray:
            return bytearray(nbytes)

    @staticmethod
    def asarray(array: np.ndarray) -> np.ndarray:
        return array

    @staticmethod
    def empty(nbytes: int, dtype: Any) -> np.ndarray:
        return np.full(nbytes, 0x5A, dtype).view(_Array)


def aligned(nbytes: int) -> np.ndarray:
    raw = np.zeros(nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 512
    return raw[start : start + nbytes]


class _OnFakeDevice(emulated_cuda.Emulated):
    def upload(self, data: np.ndarray) -> np.ndarray:
        return data.copy().view(_Array)


@pytest.fixture(params=["host", "cuda"])
def allocate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], np.ndarray]:
    """Makes arenas of a kind."""
    if request.param == "host":
        return aligned
    if emulated_cuda.compiler() is None:
        pytest.skip("no C++ compiler here")
    engine = emulated_cuda.Engine(_OnFakeDevice())
    monkeypatch.setattr(cuda, "cupy", lambda: FakeCupy)
    monkeypatch.setattr(cuda, "engine", lambda device: engine)
    cuda_memory._pattern.cache_clear()
    return lambda nbytes: aligned(nbytes).view(_Array)


@pytest.fixture
def arena(allocate: Callable[[int], np.ndarray]) -> Memory:
    return adopt(allocate(N), Background(1, "send").bytes(0, 2 * PERIOD))


def a_payload(**changes: Any) -> tuple[Payload, np.ndarray]:
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=5001)
    trial = Trial(call=call, rank_n=3, family=Family("wide"), seed=7, tail="random:3", **changes)
    head = fill_codes(call.fmt, trial.head, 0, after=False)
    tail = fill_codes(call.fmt, trial.tail, 0, after=True)
    made = Payload(
        head=head,
        tail=tail,
        count=5001,
        codes=lambda start, stop: inputs.send_codes(trial, 0, 0, start, stop),
        sender=lambda: sender(trial, 0, 0),
    )
    want = np.concatenate([head, inputs.send_codes(trial, 0, 0, 0, 5001), tail]).view(np.uint8)
    return made, want


def everything(arena: Memory) -> np.ndarray:
    return np.array(arena.host(arena.take(0, arena.nbytes)))


def test_a_payload_is_made_put_and_taken_back(arena: Memory) -> None:
    payload, want = a_payload(active="pairs")
    for at in (514, 600, 1021):
        kept = arena.made(payload, at)
        assert kept.nbytes == payload.nbytes == want.nbytes
        assert np.array_equal(arena.host(kept), want)
        arena.put(at, kept)
        assert arena.same(at, kept)
        assert not arena.same(at + 2, kept)
        assert arena.same(at + 100, kept, 100, 300)
        taken = arena.take(at, want.nbytes)
        assert np.array_equal(arena.host(taken), want)
        arena.fill(at, 10, 0x7F81, 2)
        assert np.array_equal(arena.host(taken), want)
        changed = arena.changed(at, kept, 0, want.nbytes, 3)
        where = np.flatnonzero(everything(arena)[at : at + want.nbytes] != want)
        assert changed.total == len(where) > 3
        assert changed.offsets == (where[:3] + at).tolist()
        assert changed.expected == want[where[:3]].tolist()
        assert changed.found == everything(arena)[where[:3] + at].tolist()
        assert arena.changed(at + 10, kept, 10, want.nbytes, 3).total == 0


@pytest.mark.parametrize(("code", "itemsize"), [(0x7F, 1), (0x7F81, 2), (0x7F800001, 4), (0x7FF0000000000001, 8)])
def test_one_code_over_and_over(arena: Memory, code: int, itemsize: int) -> None:
    for at, n in ((0, 40), (3 * itemsize, 77), (5, 9), (64, 0)):
        before = everything(arena)
        arena.fill(at, n * itemsize, code, itemsize)
        before[at : at + n * itemsize] = np.full(n, code, f"u{itemsize}").view(np.uint8)
        assert np.array_equal(everything(arena), before)


def test_the_background_is_laid_down_and_scanned(arena: Memory) -> None:
    want = Background(1, "send").bytes(0, N)
    arena.restore(-100, N + 100)
    arena.settle()
    assert np.array_equal(everything(arena), want)
    assert arena.strayed(0, N, 5).total == 0
    arena.fill(PERIOD - 3, 7, 0xEE, 1)
    changed = arena.strayed(-5, N + 5, 5)
    where = np.flatnonzero(everything(arena) != want)
    assert changed.total == len(where) > 5
    assert changed.offsets == where[:5].tolist()
    assert (changed.expected, changed.found) == (want[where[:5]].tolist(), [0xEE] * 5)
    assert arena.strayed(PERIOD, N, 0).total < changed.total
    assert arena.strayed(N, N, 5).total == 0
    arena.restore(PERIOD - 3, PERIOD + 4)
    assert np.array_equal(everything(arena), want)


def test_many_looks_are_answered_at_once(
    allocate: Callable[[int], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At what is kept and at the background, in two arenas; on a device by one download."""
    first, second = (adopt(allocate(N), Background(1, name).bytes(0, 2 * PERIOD)) for name in ("send", "recv"))
    for one in (first, second):
        one.restore(0, N)
    kept = first.take(513, 5000)
    first.fill(600, 1, first.host(kept)[87] ^ 0xFF, 1)
    second.fill(N - 1, 1, Background(1, "recv").bytes(0, N)[-1] ^ 0xFF, 1)
    looks = {
        Look(first, 0, 87, 513, kept): True,
        Look(first, 87, 88, 600, kept): False,
        Look(second, 0, N - 1): True,
        Look(first, 0, 5000, 513, kept): False,
        Look(first, 88, 5000, 601, kept): True,
        Look(second, -50, N + 50): False,
        Look(first, 600, 601): False,
        Look(first, 40, 40, 9, kept): True,
        Look(first, N, N + 9): True,
    }
    downloads = []
    download = emulated_cuda.Emulated.download
    monkeypatch.setattr(emulated_cuda.Emulated, "download", lambda *a: downloads.append(a) or download(*a))
    assert agree(list(looks)) == list(looks.values())
    assert len(downloads) == (first.where != "host")
    for look, answer in looks.items():
        one = look.memory
        if look.kept is None:
            assert (not one.strayed(look.start, look.stop, 3).total) is answer
        else:
            assert one.same(look.at, look.kept, look.start, look.stop) is answer
    assert agree([]) == []


def test_nothing_at_all(arena: Memory) -> None:
    """A count of 0 is legal."""
    kept = arena.take(513, 0)
    assert kept.nbytes == 0
    assert arena.host(kept).shape == (0,)
    arena.put(100, kept)
    assert arena.same(100, kept)
    assert arena.changed(100, kept, 0, 0, 4).total == 0


def test_a_snapshot_and_parts_of_it(arena: Memory) -> None:
    arena.restore(0, N)
    want = everything(arena)
    for at, nbytes in ((513, 4097), (512, 0)):
        room = arena.room(at, nbytes)
        arena.snapshot(at, room)
        assert np.array_equal(arena.host(room), want[at : at + nbytes])
        assert arena.same(at, room)
    room = arena.room(600, 5000)
    arena.snapshot(600, room)
    arena.fill(600, 5000, 0, 1)
    for start, stop in ((0, 100), (100, 4000), (4990, 5000), (7, 7)):
        assert np.array_equal(arena.part(room, start, stop), want[600 + start : 600 + stop])


def test_what_is_staged_is_read_in_steps(arena: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STAGING", 1 << 12)
    arena.restore(0, N)
    staged = memory.Staged(arena, arena.take(3, 10_000))
    assert (staged.nbytes, staged.step) == (10_000, 4096)
    parts = [np.array(staged.read(at, min(at + staged.step, 10_000))) for at in range(0, 10_000, staged.step)]
    assert np.array_equal(np.concatenate(parts), everything(arena)[3:10_003])


class _Copies:
    """A sum of one rank: a copy. ``harm(repeat, send, recv)`` then does what it likes."""

    def __init__(self, allocate: Callable[[int], np.ndarray], harm: Callable[[int, Any, Any], None]) -> None:
        self._allocate, self._harm, self._calls = allocate, harm, 0

    def allocate(self, nbytes: int) -> dict[int, np.ndarray]:
        return {0: self._allocate(nbytes)}

    def run(self, call: Call, send: Any, recv: Any) -> None:
        into, out_of = recv[0], send[0]
        into.buffer[into.offset : into.offset + into.nbytes] = out_of.buffer[
            out_of.offset : out_of.offset + into.nbytes
        ]
        self._harm(self._calls % 3, out_of, into)
        self._calls += 1


class _Rows:
    """A recorder, a progress and a control in one."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, Any]] = []

    def append(self, trial: Trial, row: Any, output: Any) -> None:
        if not isinstance(output, np.ndarray):  # staged
            parts = [
                np.array(output.read(at, min(at + output.step, output.nbytes)))
                for at in range(0, output.nbytes, output.step)
            ]
            output = np.concatenate(parts).view(trial.call.fmt.dtype)
        self.rows.append((row, output.copy()))

    def flush(self) -> None: ...
    def begin(self, trial_id: str, repeat: int) -> None: ...
    def end(self) -> None: ...
    def barrier(self) -> None: ...


def drive(allocate: Callable[[int], np.ndarray], harm: Callable[[int, Any, Any], None], **changes: Any) -> list[Any]:
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=changes.pop("count", 3001))
    trial = Trial(call=call, rank_n=1, family=Family("wide"), seed=3, send_shift=1, recv_shift=3, **changes)
    offered = {"collectives": {"all_reduce"}, "ops": {"sum"}, "formats": {"bfloat16"}}
    capabilities = Capabilities(**{key: frozenset(value) for key, value in offered.items()})
    rows: Any = _Rows()
    world = World(rank_n=1, local_ranks=(0,), control=rows)
    planned = [Planned(trial=trial, repeats=3, probes=("test",))]
    Harness(_Copies(allocate, harm), world, capabilities, Job(planned), rows, rows).run()
    return [(row, output, inputs.send_codes(trial, row.repeat, 0, 0, call.count)) for row, output in rows.rows]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3001])
def test_the_harness_sees_a_clean_subject(allocate: Callable[[int], np.ndarray], count: int, in_place: bool) -> None:
    found = drive(allocate, lambda *_: None, count=count, in_place=in_place, inputs="alternate")
    assert [(row.send_before, row.send_after, row.outside_total) for row, _, _ in found] == [(True, True, 0)] * 3
    assert all(np.array_equal(output, want) for _, output, want in found)
    assert len({row.digest for row, _, _ in found}) == (2 if count else 1)


def test_the_harness_sees_the_same_through_a_small_buffer(
    allocate: Callable[[int], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "STAGING", 1024)
    found = drive(allocate, lambda repeat, _, recv: recv.buffer.__setitem__(recv.offset, repeat), inputs="alternate")
    assert len({row.digest for row, _, _ in found}) == 3
    for row, output, want in found:
        assert row.digest == hashlib.sha256(output.tobytes()).hexdigest()
        assert np.array_equal(output[1:], want[1:])
        assert output[0] & 0xFF == row.repeat


def test_what_is_wrong_is_counted_on_the_device_where_outputs_are_large(
    allocate: Callable[[int], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def harm(repeat: int, _: Any, recv: Any) -> None:
        for index in range(repeat):
            recv.buffer[recv.offset + 500 * index] ^= 1

    counted = [row.off_nearest for row, _, _ in drive(allocate, harm)]
    assert counted == [None] * 3  # small: the bytes are fetched anyway
    monkeypatch.setattr(memory, "STAGING", 1024)
    on_device = isinstance(allocate(512), _Array)
    for tiled in (1, 3):
        counted = [
            row.off_nearest for row, _, _ in drive(allocate, harm, tiled=tiled, inputs="alternate", count=3 * 1001)
        ]
        assert counted == ([0, 1, 2] if on_device else [None] * 3)


def test_the_harness_sees_what_is_harmed(allocate: Callable[[int], np.ndarray]) -> None:
    """An output that changes once, the send range, a byte beside each range, and one far away."""

    def harm(repeat: int, send: Any, recv: Any) -> None:
        if repeat == 1:
            recv.buffer[recv.offset + 7] ^= 1
            send.buffer[send.offset + 9] ^= 1
            send.buffer[send.offset - 1] ^= 0xFF
        if repeat == 2:
            recv.buffer[recv.offset + recv.nbytes] ^= 0xFF
            recv.buffer[-1] ^= 0xFF

    clean, spoiled, beside = drive(allocate, harm)
    assert clean[0].outside_total == 0
    assert np.flatnonzero(spoiled[1] != spoiled[2]).tolist() == [3]
    assert not spoiled[0].send_after
    assert [(one.buffer, one.offset) for one in spoiled[0].outside] == [("send", -1)]
    assert np.array_equal(beside[1], beside[2])
    assert beside[0].digest == clean[0].digest != spoiled[0].digest
    assert next((one.buffer, one.offset) for one in beside[0].outside) == ("recv", 6002)
    assert beside[0].outside_total == 2
    assert all(one.found == one.expected ^ 0xFF for one in beside[0].outside)


def test_host_memory_is_not_copied() -> None:
    buffer = aligned(N)
    arena = adopt(buffer, Background(0, "recv").bytes(0, 2 * PERIOD))
    assert arena.buffer is buffer
    assert arena.address == buffer.ctypes.data
    kept = arena.take(0, 100)
    assert arena.host(kept) is kept


def test_arenas_of_another_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AuditError, match="an arena of type bytearray is neither a NumPy array nor a CUDA array"):
        adopt(bytearray(512), np.zeros(2 * PERIOD, np.uint8))
    monkeypatch.setattr(cuda, "cupy", lambda: FakeCupy)
    monkeypatch.setattr(FakeCupy, "managed", True)
    with pytest.raises(AuditError, match="managed memory"):
        adopt(aligned(N).view(_Array), np.zeros(2 * PERIOD, np.uint8))
