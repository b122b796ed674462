"""The multimem backend on a fake machine whose kernels are the real ones, emulated: contract, barriers, paths, refusals."""

from __future__ import annotations

import os
import sys

import emulated_multimem as emulated
import fake_cuda
import fake_multimem
import numpy as np
import pytest
from multimem_cases import model, terms

from auditor.backends import multimem_fabric
from auditor.backends.multimem import Multimem, MultimemOne
from auditor.backends.multimem_options import check_options
from auditor.backends.registry import choose
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import Call, Window
from auditor.numerics.formats import FORMATS
from auditor.testing import check_backend
from auditor.testing.bench import one_process_world

pytestmark = pytest.mark.skipif(emulated.compiler() is None, reason="no C++ compiler")
SWITCHES = ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
SUM = Call(collective="all_reduce", op="sum", format="bfloat16", count=67)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in (*SWITCHES, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def machine(monkeypatch):
    return fake_multimem.install(monkeypatch, gpu_n=4)


def made(rank_n, **options):
    return Multimem(one_process_world(Multimem, rank_n), options)


def placed(backend, call, codes, shifts=(1, 2), arenas=None):
    """Send and receive windows over arenas that hold ``codes``, a row a rank; in place where both arenas are one."""
    size, rank_n = call.fmt.itemsize, len(codes)
    sources, results = arenas or (backend.allocate(4096), backend.allocate(4096))
    send, recv = {}, {}
    for position, rank in enumerate(call.members(rank_n)):
        send[rank] = Window(sources[rank], 512 + shifts[0] * size, codes[rank].nbytes)
        share = position * call.count * size if call.collective == "reduce_scatter" and results is sources else 0
        recv[rank] = Window(results[rank], 512 + shifts[1] * size + share, call.count * size)
        sources[rank][send[rank].offset : send[rank].offset + codes[rank].nbytes] = codes[rank].view(np.uint8)
    return send, recv


def output(window, fmt):
    return np.asarray(window.buffer[window.offset : window.offset + window.nbytes]).view(fmt.dtype)


# ---- the contract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_it_keeps_the_contract(machine, ranks, algorithm):
    assert check_backend(Multimem, {"algorithm": algorithm}, ranks=ranks) == []


@pytest.mark.parametrize(
    "options",
    [
        {"devices": [0, 0, 0, 0], "algorithm": "two_shot"},
        {"devices": [0, 0, 0, 0], "lone": "pair", "vector": "v4"},
        {"devices": [1, 0, 1, 0], "accumulator": "plain", "vector": "v8"},
        {"vector": "v1", "algorithm": "two_shot"},
        {"vector": "v2", "accumulator": "plain"},
    ],
)
def test_every_option_keeps_it(machine, options):
    assert check_backend(Multimem, options, ranks=4) == []


def test_ranks_that_share_a_gpu_need_no_peer_access_and_others_get_it_once(machine):
    made(4, devices=[2, 2, 2, 2])
    assert machine.peers == []
    for _ in range(2):
        made(2, devices=[3, 1])
    assert sorted(machine.peers) == [(1, 3), (3, 1)]
    machine.reachable = False
    with pytest.raises(Unavailable, match=r"GPU 0 cannot load from GPU 1.*NVLink"):
        Multimem.probe({})
    with pytest.raises(Unavailable, match="GPU 1 cannot load from GPU 3"):
        made(2, devices=[3, 1])
    assert Multimem.probe({"devices": [2, 2]}).rank_n_max == 2


def test_peer_access_that_cuda_refuses_is_told(machine, monkeypatch):
    def refuse(other):
        raise fake_cuda.CUDARuntimeError(217, "cudaErrorPeerAccessUnsupported")

    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "deviceEnablePeerAccess", refuse)
    with pytest.raises(BackendError, match=r"peer access from GPU \d to GPU \d: cudaErrorPeerAccessUnsupported"):
        made(2)


# ---- what the numbers are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "binary32"])
@pytest.mark.parametrize(("accumulator", "kept"), [("plain", None), ("wide", "binary32")])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_the_sum_is_a_chain_in_the_groups_order(machine, name, accumulator, kept, collective):
    fmt = FORMATS[name]
    backend = made(4, accumulator=accumulator, devices=[0, 0, 0, 0])
    for group in (None, (3, 0, 2)):
        n = len(group or range(4))
        call = Call(collective=collective, op="sum", format=name, count=21, root=1 % n, group=group)
        codes = terms(fmt.name, 4, call.send_count(4))
        send, recv = placed(backend, call, codes)
        backend.run(call, send, recv)
        whole = model(name, accumulator, codes, call.members(4))
        for position, rank in enumerate(call.members(4)):
            start = position * 21 if collective == "reduce_scatter" else 0
            if rank in call.receivers(4):
                assert np.array_equal(output(recv[rank], fmt), whole[start : start + 21])
    assert f"partial sums in {kept or name}" in backend.describe()[f"model.{name}"]


@pytest.mark.parametrize("options", [{"algorithm": "two_shot"}, {}])
def test_calls_in_flight_see_each_others_results(machine, options):
    """A ping-pong: what one call receives the next one sends. Without meetings a rank reads too early, or writes too soon."""
    backend, fmt = made(3, **options), FORMATS["binary32"]
    call = Call(collective="all_reduce", op="sum", format="binary32", count=23)
    codes = terms(fmt.name, 3, 23)
    arenas = backend.allocate(4096), backend.allocate(4096)
    there = placed(backend, call, codes, (0, 3), arenas)  # unlike shifts: one rank's share is not the same both ways
    back = there[::-1]
    for one in (there, back, there):
        backend.enqueue(call, *one)
    backend.wait()
    once = model("binary32", "wide", codes)
    twice = model("binary32", "wide", [once] * 3)
    assert all(
        np.array_equal(output(window, fmt), model("binary32", "wide", [twice] * 3)) for window in there[1].values()
    )
    assert backend.last_seconds() == 1e-6


def test_calls_of_several_groups_in_flight_are_all_waited_for(machine):
    backend, fmt, codes = made(4, devices=[0, 1, 0, 1]), FORMATS["binary32"], terms("binary32", 4, 23)
    arenas, outputs = (backend.allocate(4096), backend.allocate(4096)), {}
    for group in ((0, 1), (3, 2)):
        call = Call(collective="all_reduce", op="sum", format="binary32", count=23, group=group)
        send, recv = placed(backend, call, codes, arenas=arenas)
        outputs |= {rank: (window, group) for rank, window in recv.items()}
        backend.enqueue(call, send, recv)
    machine.asked.clear()
    backend.wait()
    assert len(machine.asked) == 4
    for window, group in outputs.values():
        assert np.array_equal(output(window, fmt), model("binary32", "wide", codes, group))


@pytest.mark.parametrize("options", [{"algorithm": "two_shot"}, {}])
def test_a_missing_meeting_shows(machine, monkeypatch, options):
    """The test above can fail: the fake machine runs the streams apart where no event holds them."""
    monkeypatch.setattr(multimem_fabric.Fabric, "meet", lambda self, ranks: None)
    with pytest.raises(AssertionError):
        test_calls_in_flight_see_each_others_results(machine, options)


def test_a_count_beyond_32_bits_reaches_the_kernel(machine, monkeypatch):
    monkeypatch.setattr(emulated, "launch", lambda *arguments: None)
    backend = made(2, algorithm="two_shot")
    count = (1 << 31) + 1
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=count)
    arenas = backend.allocate(4096)
    windows = {rank: Window(array, 512, 2 * count) for rank, array in arenas.items()}
    backend.run(call, windows, windows)
    spans = [arguments[6:] for _, _, arguments in machine.launches]
    steps = (count - 1) // 8 + 1
    assert spans == [(count, 0, steps // 2), (count, steps // 2, steps)]


# ---- what is said ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "change", "shifts", "path"),
    [
        ({}, {}, (1, 1), "UNICAST/one_shot/v4.bf16x2.acc::f32/s1.w3.v4.w2/st16"),
        ({}, {}, (0, 1), "UNICAST/one_shot/v4.bf16x2.acc::f32/v4.w1.s1/st2"),
        ({"accumulator": "plain", "vector": "v8"}, {"count": 3}, (1, 1), "UNICAST/one_shot/v8.bf16/s1.w1/st4"),
        ({"algorithm": "two_shot", "lone": "pair"}, {"count": 1}, (1, 1), "UNICAST/two_shot/v4.bf16x2.acc::f32/p1/st2"),
        ({}, {"format": "binary32"}, (1, 3), "UNICAST/one_shot/v4.f32/w3.v4/st4"),
        ({}, {"collective": "reduce", "root": 1}, (0, 0), "UNICAST/at_root/v4.bf16x2.acc::f32/v4.w1.s1/st16"),
        (
            *({}, {"collective": "reduce_scatter", "count": 9}, (0, 0)),
            "UNICAST/own_share/v4.bf16x2.acc::f32/v4.s1/st16+s1.w3.w1/st2",
        ),
        ({}, {"count": 0}, (1, 1), "UNICAST/one_shot/v4.bf16x2.acc::f32/nothing"),
    ],
)
def test_the_path_says_what_each_element_took(machine, options, change, shifts, path):
    backend = made(2, **options)
    call = Call(**{"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": 67, **change})
    backend.run(call, *placed(backend, call, terms(call.format, 2, call.send_count(2)), shifts))
    assert backend.path() == path


def test_the_description_says_options_model_kernel_and_limits(machine):
    said = made(4, devices=[1, 1, 1, 1], lone="pair").describe()
    assert (said["provider"], said["lone"], said["ranks_per_gpu"], said["architecture"]) == (
        "unicast",
        "pair",
        4,
        "sm_90a",
    )
    assert said["limits"].startswith("The additions ran on the SMs of the GPUs")
    assert "One GPU served 4 ranks" in said["limits"]
    assert said["sass.bfloat16"] == "FADD"
    assert said["model.bfloat16"].startswith("a chain in the group's order, partial sums in binary32")
    assert said["model.binary32"].startswith("a chain in the group's order, partial sums in binary32")
    assert not any(key.startswith("form.") for key in said)


def test_every_format_is_compiled_for_the_gpus_at_hand_before_the_first_call(monkeypatch):
    machine = fake_multimem.install(monkeypatch, gpu_n=2, major=10)
    made(2)
    assert {architecture for _, architecture in machine.compiled} == {"sm_100a"}
    assert {variant.format for variant, _ in machine.compiled} == set(Multimem.probe({}).formats)
    assert "binary32" not in Multimem.probe({"vector": "v8"}).formats


# ---- refusals -------------------------------------------------------------------------------------------------------------


def test_one_shot_in_place_is_refused_for_all_reduce_alone(machine):
    backend = made(2)
    assert not Multimem.probe({}).in_place
    assert Multimem.probe({"algorithm": "two_shot"}).in_place
    codes = terms("bfloat16", 2, 8)
    arena = backend.allocate(4096)
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=8)
    with pytest.raises(Unsupported, match="two_shot"):
        backend.run(call, *placed(backend, call, codes, (0, 0), (arena, arena)))
    scatter = Call(collective="reduce_scatter", op="sum", format="bfloat16", count=4)
    send, recv = placed(backend, scatter, codes, (0, 0), (arena, arena))
    backend.run(scatter, send, recv)
    whole = model("bfloat16", "wide", codes)
    assert np.array_equal(np.concatenate([output(recv[rank], FORMATS["bfloat16"]) for rank in (0, 1)]), whole)


def test_ranges_at_unlike_alignments_are_refused(machine):
    backend = made(2)
    send, recv = placed(backend, SUM, terms("bfloat16", 2, 67))
    send[1] = Window(send[1].buffer, send[1].offset + 2, send[1].nbytes)
    with pytest.raises(Unsupported, match="unlike alignments"):
        backend.run(SUM, send, recv)


@pytest.mark.parametrize("change", [{"op": "max"}, {"format": "binary64"}, {"op": "avg"}])
def test_what_is_not_offered_is_unsupported(machine, change):
    backend = made(2)
    call = Call(**{"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": 4, **change})
    with pytest.raises(Unsupported, match="it sums bfloat16, binary16, binary32, float8"):
        backend.run(call, *placed(backend, call, terms(call.format, 2, 4)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate": "wide"}, "options.accumulate is not known; known are provider"),
        ({"provider": "torch"}, "unicast, nccl, nvshmem, driver"),
        ({"algorithm": "ring"}, "one_shot, two_shot"),
        ({"accumulator": "binary64"}, "wide, plain"),
        ({"vector": "v16"}, "v4, v2, v1, v8"),
        ({"lone": "neighbour"}, "scalar, pair"),
        ({"devices": "01"}, "GPU numbers"),
        ({"allow_multicast": "yes"}, "neither true nor false"),
        ({"provider": "nccl", "devices": [0, 0]}, "a GPU twice"),
    ],
)
def test_wrong_options_are_told(options, words):
    with pytest.raises(ConfigError, match=words):
        check_options(options)


def test_gpus_that_are_not_there_or_too_old_are_told(machine, monkeypatch):
    with pytest.raises(ConfigError, match="GPU 9"):
        made(2, devices=[0, 9])
    with pytest.raises(Unavailable, match="5 ranks"):
        made(5)
    fake_multimem.install(monkeypatch, major=8)
    with pytest.raises(Unavailable, match=r"compute capability 9\.0, one here has 8"):
        Multimem.probe({})
    fake_multimem.install(monkeypatch, gpu_n=0)
    with pytest.raises(Unavailable, match="no GPU"):
        Multimem.probe({})


def test_a_lost_context_ends_the_process(machine, monkeypatch, capfd):
    backend = made(2)
    placing = placed(backend, SUM, terms("bfloat16", 2, 67))
    machine.cuda.stream_code = 700

    def abort():
        raise SystemExit(134)

    monkeypatch.setattr(os, "abort", abort)
    with pytest.raises(SystemExit):
        backend.run(SUM, *placing)
    assert "cudaError700" in capfd.readouterr().err


def test_the_provider_picks_the_process_model():
    assert choose("auditor.backends.multimem:Multimem", {}) is Multimem
    assert choose("auditor.backends.multimem:Multimem", {"provider": "driver"}) is Multimem
    assert choose("auditor.backends.multimem:Multimem", {"provider": "nvshmem"}) is MultimemOne


def test_nothing_is_done_for_ranks_outside_a_group(machine):
    backend = made(3)
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=4, group=(2,))
    backend.run(call, {}, {})
    assert machine.launches == []
