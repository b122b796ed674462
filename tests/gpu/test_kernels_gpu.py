"""The device kernels on a GPU: bit equality with the host twins on every family and format; skipped where there is none.

The cases are those of test_kernels_emulated.py; here the fast, aligned ways run as a GPU runs them, on more elements.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import kernel_cases
import numpy as np
import pytest
from kernel_cases import CASES, SENDERS, STARTS, Device, corrupt, named

from auditor import inputs, kernels
from auditor.backends.base import LocalControl
from auditor.errors import Unavailable
from auditor.inputs.programs import program, sender
from auditor.kernels import cuda
from auditor.kernels.memory import Payload, adopt
from auditor.layout import PERIOD, Background, fill_codes
from auditor.model import Call, Family, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.programs import Sender, add_in_binary32
from auditor.numerics.recipes import evaluate
from auditor.numerics.rounding import round_sums


def missing() -> str:
    try:
        cuda.cupy()
    except Unavailable as error:
        return f"{error.reason}; {error.remedy}"
    return ""


REASON = missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]
TURN = random.Random(20)
RANDOM_STARTS = (*STARTS[:4], TURN.randrange(1 << 42), (1 << 33) - TURN.randrange(9000))


def gpus() -> int:
    return 0 if REASON else int(cuda.cupy().cuda.runtime.getDeviceCount())


@pytest.fixture(scope="module")
def device() -> Device:
    cupy = cuda.cupy()
    return Device(cuda.engine(0), cupy.asarray, cupy.asnumpy, cuda.engine(0).runtime.address)


@pytest.fixture(scope="module", autouse=True)
def which() -> Iterator[None]:
    """Says which device was tested, after the last test of the module."""
    yield
    cupy = cuda.cupy()
    props = cupy.cuda.runtime.getDeviceProperties(0)
    print(
        f"\nGPU 0: {props['name'].decode()}, compute capability {props['major']}.{props['minor']}, CuPy {cupy.__version__}"
    )


@pytest.mark.parametrize(("text", "fmt"), CASES, ids=named)
def test_fills_equal_the_host(device: Device, text: str, fmt: Format) -> None:
    for start in RANDOM_STARTS:
        kernel_cases.check_fill(device, text, fmt, start, 9001)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=named)
@pytest.mark.parametrize("changes", SENDERS, ids=str)
def test_what_ranks_send(device: Device, fmt: Format, changes: dict[str, Any]) -> None:
    for text in ("report132", "rank_coded", "order_exact", "ties"):
        kernel_cases.check_sender(device, fmt, text, **changes)


@pytest.mark.parametrize("rank_n", [2, 3, 4, 8])
@pytest.mark.parametrize(("text", "fmt"), CASES, ids=named)
def test_tables_and_mismatches_equal_the_host(device: Device, text: str, fmt: Format, rank_n: int) -> None:
    kernel_cases.check_classes(
        device, text, fmt, rank_n, (1 << 32) - 4001 if rank_n % 4 else TURN.randrange(1 << 42), 5003
    )


@pytest.mark.parametrize("rank_n", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("name", ["bfloat16", "binary16", "float8_e4m3fn", "float8_e5m2"])
def test_large_tables(device: Device, name: str, rank_n: int) -> None:
    """Millions of elements on the fast way, nearly all as they should be, some not."""
    fmt, n, start = FORMATS[name], (1 << 24) // (4 + rank_n) + 5, (1 << 40) - (1 << 17)
    family = Family.parse("order_exact:format=binary32")
    recipes = [inputs.recipe(family, fmt, 9, rank_n, rank) for rank in range(rank_n)]
    programs = [program(family, fmt, 9, rank_n, rank) for rank in range(rank_n)]
    assert add_in_binary32(programs) or rank_n == 64
    terms = [kernels.evaluate(one, start, start + n) for one in recipes]
    right = round_sums(fmt, exact_sums(fmt, terms), "ties_to_even")
    out = corrupt(fmt, right, share=4000)
    array, address = device.place(out, fmt.itemsize)
    assert device.engine.tabulate(programs, start, address, n) == kernels.tabulate_recipes(recipes, start, out)
    wrong = np.flatnonzero(out != right)
    count, first = device.engine.expect(programs, start, address, n, limit=500)
    assert (count, list(first)) == (len(wrong), list(wrong[:500]))
    noise = corrupt(fmt, right, seed=6, share=6)  # more strange pieces than the fast kernel may leave over
    array, address = device.place(noise, 0)
    assert device.engine.tabulate(programs, start, address, n) == kernels.tabulate_recipes(recipes, start, noise)
    del array


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=named)
def test_large_fills(device: Device, fmt: Format) -> None:
    """Whole blocks of the grid, and a cut at an index with a new high word."""
    n, start = 3_000_001, (1 << 32) - 1_000_003
    made = inputs.recipe(Family.parse("order_exact"), fmt, 4, 2, 1)
    array, address = device.place(np.zeros(n, fmt.dtype), 3 * fmt.itemsize)
    device.engine.fill(Sender((program(Family.parse("order_exact"), fmt, 4, 2, 1),)), start, address, n)
    at = address - device.address(array)
    found = device.get(array)[at : at + n * fmt.itemsize].view(fmt.dtype)
    assert np.array_equal(found, evaluate(made, start, start + n))


def test_bytes_and_patterns(device: Device) -> None:
    kernel_cases.check_bytes(device)
    kernel_cases.check_patterns(device)


def test_more_differences_than_are_listed(device: Device) -> None:
    n = 1 << 22
    a = np.random.default_rng(1).integers(0, 1 << 16, n).astype(np.uint16)
    b = a ^ np.uint16(1)
    one, at_one = device.place(a, 2)
    two, at_two = device.place(b, 2)
    found = device.engine.compare(at_one, at_two, a.nbytes, 2, limit=5000)
    assert found.count == n
    assert list(found.indices) == list(range(5000))
    assert set((found.found ^ found.wanted).tolist()) == {1}
    del one, two


def test_twins_on_cupy_arrays() -> None:
    cupy, fmt = cuda.cupy(), FORMATS["bfloat16"]
    recipes = [inputs.recipe(Family.parse("report132"), fmt, 0, 2, rank) for rank in (0, 1)]
    out = cupy.empty(1 << 20, cupy.uint16)
    cuda.fill(recipes[1], 5, out)
    assert np.array_equal(cupy.asnumpy(out), evaluate(recipes[1], 5, 5 + (1 << 20)))
    sums = round_sums(fmt, exact_sums(fmt, [evaluate(one, 0, 1 << 20) for one in recipes]), "ties_to_even")
    out.set(sums)
    assert cuda.tabulate_recipes(recipes, 0, out) == kernels.tabulate_recipes(recipes, 0, sums)


@pytest.mark.parametrize("number", [0, 1])
def test_an_arena_through_the_memory_seam(number: int) -> None:
    """Made, put, compared, scanned; on the second GPU too, from the same process."""
    if number >= gpus():
        pytest.skip(f"{gpus()} GPU here")
    cupy = cuda.cupy()
    with cupy.cuda.Device(number):
        block = cupy.cuda.Memory((1 << 22) + 512)
        buffer = cupy.ndarray((1 << 22,), cupy.uint8, cupy.cuda.MemoryPointer(block, -block.ptr % 512))
    arena = adopt(buffer, Background(0, "send").bytes(0, 2 * PERIOD))
    call = Call(collective="all_reduce", op="sum", format="binary16", count=1_000_003)
    trial = Trial(call=call, rank_n=2, family=Family("wide"), seed=7, tail="random:3")
    head, tail = fill_codes(call.fmt, "zero", 0, after=False), fill_codes(call.fmt, "random:3", 0, after=True)
    codes = inputs.send_codes(trial, 0, 0, 0, call.count)
    payload = Payload(
        head=head, tail=tail, count=call.count, codes=lambda a, b: codes[a:b], sender=lambda: sender(trial, 0, 0)
    )
    want = np.concatenate([head, codes, tail]).view(np.uint8)
    arena.restore(0, arena.nbytes)
    kept = arena.made(payload, 514)
    assert np.array_equal(arena.host(kept), want)
    arena.put(514, kept)
    arena.settle()
    assert arena.same(514, kept)
    assert arena.strayed(0, 514, 9).total == arena.strayed(514 + want.nbytes, arena.nbytes, 9).total == 0
    arena.fill(100, 6, 0x7C01, 2)
    assert arena.strayed(0, 514, 9).offsets == list(range(100, 106))
    taken = arena.take(514, want.nbytes)
    arena.fill(2000, 1, 0xA5 ^ int(want[2000 - 514]), 1)
    changed = arena.changed(514, taken, 0, want.nbytes, 9)
    assert (changed.total, changed.offsets, changed.expected) == (1, [2000], [int(want[2000 - 514])])


def test_the_harness_on_device_arenas() -> None:
    """A subject that copies on the device; every observation clean, and a planted overrun seen."""
    from auditor.harness import Harness, Job
    from auditor.model import Planned, World

    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=100_003)
    trials = [
        Trial(call=call, rank_n=1, family=Family("wide"), seed=1, send_shift=shift, recv_shift=shift)
        for shift in (0, 1, 3)
    ]
    for spoil in (0, 2):
        rows, subject = _Rows(), _Copies(spoil)
        world = World(rank_n=1, local_ranks=(0,), control=LocalControl())
        planned = [Planned(trial=trial, repeats=3, probes=("test",)) for trial in trials]
        Harness(subject, world, _Copies.capabilities, Job(planned), rows, rows).run()
        assert len(rows.found) == 9
        for trial, row, output in rows.found:
            assert row.send_before
            assert row.send_after
            assert np.array_equal(output, inputs.send_codes(trial, row.repeat, 0, 0, call.count))
            assert row.outside_total == (spoil if row.repeat % 2 == 0 else 0)  # inverted twice, it is as it was
        assert len({row.digest for _, row, _ in rows.found}) == 1


class _Rows:
    def __init__(self) -> None:
        self.found: list[Any] = []

    def append(self, trial: Any, row: Any, output: Any) -> None:
        self.found.append((trial, row, output.copy()))

    def flush(self) -> None: ...
    def begin(self, trial_id: str, repeat: int) -> None: ...
    def end(self) -> None: ...
    def failed(self) -> None:
        raise AssertionError("the subject does not fail")


class _Copies:
    """A sum of one rank: a copy on a stream of its own; inverts ``spoil`` bytes past the end."""

    from auditor.model import Capabilities

    capabilities = Capabilities(
        collectives=frozenset({"all_reduce"}), ops=frozenset({"sum"}), formats=frozenset({"bfloat16"}), memory="cuda"
    )

    def __init__(self, spoil: int) -> None:
        self.spoil, self.cupy = spoil, cuda.cupy()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def allocate(self, nbytes: int) -> dict[int, Any]:
        block = self.cupy.cuda.Memory(nbytes + 512)
        return {0: self.cupy.ndarray((nbytes,), self.cupy.uint8, self.cupy.cuda.MemoryPointer(block, -block.ptr % 512))}

    def run(self, call: Any, send: Any, recv: Any) -> None:
        with self.stream:
            recv[0].buffer[recv[0].offset : recv[0].offset + recv[0].nbytes] = send[0].buffer[
                send[0].offset : send[0].offset + send[0].nbytes
            ]
            if self.spoil:
                end = recv[0].offset + recv[0].nbytes
                recv[0].buffer[end : end + self.spoil] ^= 0xFF
        self.stream.synchronize()
