"""The multimem kernels on a real GPU, provider unicast: several ranks share GPU 0, and spread over the GPUs where there are more.

What the stated model gives is compared with every output bit, and every byte around the ranges with what it was.
Nothing here needs multicast, and nothing asks for it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from gpus import GPU_N, needs_gpu, needs_two
from multimem_cases import model, terms

from auditor.backends.multimem import Multimem
from auditor.errors import Unavailable
from auditor.model import Call, Window
from auditor.multicast import MULTICAST_OFF
from auditor.numerics.formats import FORMATS
from auditor.testing import check_backend
from auditor.testing.bench import one_process_world

SHIFTS, COUNTS, LARGE = range(9), range(1, 18), (1 << 20) + 3
NAMES = ("bfloat16", "binary16", "binary32")
BASE, GUARD = 512, 0xA5


def missing():
    """Why the kernels cannot be made here, beside a missing GPU; "" where they can."""
    try:
        Multimem.probe({"devices": [0]})
    except Unavailable as error:
        return str(error)
    return ""


MISSING = missing() if GPU_N else ""
pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


class Arenas:
    """Both arenas of every rank, full of guards; filled, run and compared to the byte."""

    def __init__(self, n, nbytes, **options):
        self.backend, self.n = Multimem(one_process_world(Multimem, n), options), n
        self.nbytes, self.in_place = nbytes, False
        self.send, self.recv = self.backend.allocate(nbytes), self.backend.allocate(nbytes)

    def sum(self, call, codes, shifts):
        """Every rank's (send arena, receive arena) after the call, and the windows."""
        size = call.fmt.itemsize
        offsets = [BASE + shift * size for shift in shifts]
        send, recv, before = {}, {}, {}
        for rank in range(self.n):
            before[rank] = np.full(self.nbytes, GUARD, np.uint8)
            before[rank][offsets[0] : offsets[0] + codes[rank].nbytes] = codes[rank].view(np.uint8)
            self.send[rank].set(before[rank])
            self.recv[rank].set(np.full(self.nbytes, GUARD, np.uint8))
            send[rank] = Window(self.send[rank], offsets[0], codes[rank].nbytes)
            recv[rank] = Window(self.recv[rank], offsets[1], call.count * size)
        self.backend.run(call, send, recv)
        return before, recv

    def check(self, call, codes, wanted, shifts, label):
        before, recv = self.sum(call, codes, shifts)
        for rank in range(self.n):
            expected = np.full(self.nbytes, GUARD, np.uint8)
            at = recv[rank].offset
            expected[at : at + recv[rank].nbytes] = wanted.view(np.uint8)
            assert np.array_equal(self.recv[rank].get(), expected), f"{label}: rank {rank}'s output or its guards"
            assert np.array_equal(self.send[rank].get(), before[rank]), f"{label}: rank {rank}'s send arena"

    def close(self):
        self.backend.close()


def every_shift_and_count(n, name, kind, **options):
    codes = terms(name, n, COUNTS[-1])
    right = model(name, kind, codes)
    arenas = Arenas(n, 2048, accumulator=kind, **options)
    for shift in SHIFTS:
        for count in COUNTS:
            call = Call(collective="all_reduce", op="sum", format=name, count=count)
            recv_shift = shift if count % 2 else (shift + count) % 9
            label = f"{name} {kind} {n} ranks, shifts {shift},{recv_shift}, count {count}"
            arenas.check(call, codes[:, :count], right[:count], (shift, recv_shift), label)
    arenas.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["plain", "wide"])
@pytest.mark.parametrize("n", [2, 4])
def test_every_shift_and_count_is_the_stated_model(n, name, kind):
    every_shift_and_count(n, name, kind, devices=[0] * n)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["plain", "wide"])
@pytest.mark.parametrize("n", [2, 4])
def test_a_million_elements_are_the_stated_model(n, name, kind):
    codes = terms(name, n, LARGE)
    right, call = model(name, kind, codes), Call(collective="all_reduce", op="sum", format=name, count=LARGE)
    arenas = Arenas(n, 1024 + -(-codes[0].nbytes // 512) * 512, accumulator=kind, devices=[0] * n)
    for shift in SHIFTS:
        arenas.check(call, codes, right, (shift, shift), f"{name} {kind} {n} ranks, shift {shift}")
    print(f"\n{name} {kind} {n} ranks: {arenas.backend.path()}, {arenas.backend.last_seconds() * 1e6:.0f} us")
    for key in ("architecture", "nvrtc", f"sass.{name}"):
        print(f"{key}: {arenas.backend.describe()[key]}")
    arenas.close()


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "two_shot"},
        {"algorithm": "two_shot", "lone": "pair"},
        {"vector": "v1"},
        {"vector": "v2", "lone": "pair"},
        {"vector": "v8"},
    ],
    ids=str,
)
def test_other_options_are_the_same_model(options):
    for n, kind in ((3, "wide"), (4, "plain")):
        every_shift_and_count(n, "bfloat16", kind, devices=[0] * n, **options)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["plain", "wide"])
def test_eight_bits_are_the_stated_model_and_saturate(name, kind):
    every_shift_and_count(4, name, kind, devices=[0] * 4)
    fmt, call = FORMATS[name], Call(collective="all_reduce", op="sum", format=name, count=3)
    arenas = Arenas(2, 2048, accumulator=kind, devices=[0, 0])
    top = fmt.max_code
    arenas.sum(call, np.array([[top, top | fmt.sign_mask, fmt.nan_code]] * 2, np.uint8), (1, 1))
    found = arenas.recv[0].get()[BASE + 1 : BASE + 4].tolist()
    assert found[:2] == [top, top | fmt.sign_mask]
    assert found[2] & fmt.magnitude_mask > (top if not fmt.has_infinity else fmt.overflow_code)
    arenas.close()


@pytest.mark.parametrize(
    "options", [{"algorithm": "one_shot"}, {"algorithm": "two_shot"}, {"accumulator": "plain", "vector": "v1"}]
)
def test_ranks_that_share_a_gpu_keep_the_contract(options):
    assert check_backend(Multimem, {"devices": [0] * 4, **options}, ranks=4) == []


@needs_two
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_ranks_on_gpus_of_their_own_keep_the_contract(algorithm):
    assert check_backend(Multimem, {"algorithm": algorithm}, ranks=GPU_N) == []


@needs_two
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["plain", "wide"])
def test_over_nvlink_every_shift_and_count_is_the_stated_model(name, kind):
    every_shift_and_count(GPU_N, name, kind)
    every_shift_and_count(GPU_N, name, kind, algorithm="two_shot")


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_calls_in_flight_together_see_each_others_results(algorithm):
    """What one call receives the next one sends, twenty times, with nothing but the streams' events between."""
    n, count = 4, (1 << 18) + 3
    codes, call = (
        terms("binary32", n, count),
        Call(collective="all_reduce", op="sum", format="binary32", count=count),
    )
    arenas = Arenas(n, 4 * count + 1024 - 12, devices=[0] * n, algorithm=algorithm)
    there, back = {}, {}
    for rank in range(n):
        arenas.send[rank][BASE : BASE + codes[rank].nbytes].set(codes[rank].view(np.uint8))
        there[rank], back[rank] = (
            Window(one[rank], at, 4 * count) for one, at in ((arenas.send, BASE), (arenas.recv, BASE + 12))
        )
    for turn in range(20):
        arenas.backend.enqueue(call, *((there, back) if turn % 2 == 0 else (back, there)))
    arenas.backend.wait()
    right = model("binary32", "plain", codes)
    for _ in range(19):
        right = model("binary32", "plain", [right] * n)
    for rank in range(n):
        assert np.array_equal(arenas.send[rank].get()[BASE : BASE + 4 * count].view(np.uint32), right)
    arenas.close()


def test_more_than_2_to_the_31_elements():
    """Zeros but for the ends and the 2**31st neighbourhood; two ranks on one GPU, in place, two-shot."""
    import cupy

    count, fmt = (1 << 31) + 1, FORMATS["bfloat16"]
    nbytes = 2 * count + 1024 - 2
    if cupy.cuda.runtime.memGetInfo()[0] < 5 * nbytes:
        pytest.skip("needs 20 GiB of free device memory")
    backend = Multimem(one_process_world(Multimem, 2), {"devices": [0, 0], "algorithm": "two_shot"})
    arenas, window = backend.allocate(nbytes), {}
    one, marks = fmt.power_of_two(0), (0, 1, 12345, (1 << 30) + 3, (1 << 31) - 1, 1 << 31)
    for rank, array in arenas.items():
        array[:] = 0
        window[rank] = Window(array, BASE + 2, 2 * count)
        elements = array[BASE + 2 : BASE + 2 + 2 * count].view(cupy.uint16)
        for mark in marks:
            elements[mark] = one
    backend.run(Call(collective="all_reduce", op="sum", format="bfloat16", count=count), window, window)
    for array in arenas.values():
        elements = array[BASE + 2 : BASE + 2 + 2 * count].view(cupy.uint16)
        assert [int(elements[mark]) for mark in marks] == [fmt.power_of_two(1)] * len(marks)
        assert int(cupy.count_nonzero(elements)) == len(marks)
        assert int(cupy.count_nonzero(array[: BASE + 2])) == int(cupy.count_nonzero(array[BASE + 2 + 2 * count :])) == 0
    print(
        f"\n2**31 + 1 elements, bfloat16, two ranks on one GPU, two-shot in place: {backend.last_seconds() * 1e3:.1f} ms"
    )
    backend.close()


@pytest.mark.parametrize("provider", ["nccl", "nvshmem", "driver"])
def test_where_a_switch_is_set_no_provider_of_a_pointer_starts(provider):
    if not any(os.environ.get(name) == value for name, value in MULTICAST_OFF.items()):
        pytest.skip("no switch forbids multicast here")
    with pytest.raises(Unavailable, match="needs a CUDA multicast object"):
        Multimem.probe({"provider": provider, "allow_multicast": True})
