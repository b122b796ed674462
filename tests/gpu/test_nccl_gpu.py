"""NCCL on real GPUs, with as many as there are; what needs two says so and is skipped on one."""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec

import numpy as np
import pytest
from gpus import GPU_N, conform, needs_gpu, needs_two, run_program

from auditor.backends.nccl import Nccl
from auditor.backends.nccl_options import FLOAT8
from auditor.backends.nccl_path import UNREPORTED
from auditor.errors import Unsupported
from auditor.model import Call, Window
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import round_sums
from auditor.testing import check_backend
from auditor.testing.bench import one_process_world

pytestmark = [pytest.mark.gpu, needs_gpu]
NCCL4PY = pytest.mark.skipif(find_spec("nccl") is None, reason="needs nccl4py")
SWITCHES = ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
PATH = re.compile(r"(RING|TREE)/(LL|LL128|SIMPLE)/\d+|SYMK/\w+/\d+")
COUNT = 1 << 20


@pytest.fixture
def backend():
    made = Nccl(one_process_world(Nccl, GPU_N), {})
    yield made
    made.close()


def near_terms(fmt, n, length, seed=3):
    """Random signs and significands, exponents -3..3: nearly every sum is rounded. Codes, shape (n, length)."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(fmt.bias - 3, fmt.bias + 4, (n, length)).astype(np.uint64) << np.uint64(fmt.mantissa_bits)
    mantissa = rng.integers(0, 1 << fmt.mantissa_bits, (n, length)).astype(np.uint64)
    sign = rng.integers(0, 2, (n, length)).astype(np.uint64) << np.uint64(fmt.bits - 1)
    return (exponent | mantissa | sign).astype(fmt.dtype)


def placed(backend, call, codes, shift=1):
    """Arenas with these codes at ``shift`` elements past 512 bytes: (send, recv) windows."""
    size, rank_n = call.fmt.itemsize, len(codes)
    room = 1024 + -(-call.send_count(rank_n) * size // 512) * 512 + 512
    arenas, results = backend.allocate(room), backend.allocate(room)
    offset = 512 + shift * size
    send, recv = {}, {}
    for rank, row in enumerate(codes):
        send[rank] = Window(arenas[rank], offset, row.nbytes)
        recv[rank] = Window(results[rank], offset, call.count * size)
        fill(send[rank], row)
        fill(recv[rank], np.full(call.count, call.fmt.nan_code, call.fmt.dtype))
    return send, recv


def fill(window, codes):
    whole = window.buffer.get()
    whole[window.offset : window.offset + window.nbytes] = codes.view(np.uint8)
    window.buffer.set(whole)


def read(window, fmt):
    return window.buffer.get()[window.offset : window.offset + window.nbytes].view(fmt.dtype)


def refusal(backend, call, send, recv):
    """NCCL's words where it refuses the call; "" where it performed it."""
    try:
        backend.run(call, send, recv)
    except Unsupported as error:
        return str(error)
    return ""


def beside_refusals(lines):
    """Discrepancies other than NCCL's own refusals: capabilities cannot say that averages of 8-bit formats are not offered
    (seen on 2.28.9), and symmetric windows depend on the machine. More of a capped list's kind is not a kind of its own.
    """
    refused = ("avg float8", "Unsupported: NCCL gives no symmetric window")
    return [line for line in lines if not any(words in line for words in refused) and " more" not in line]


@pytest.mark.parametrize("ranks", sorted({1, GPU_N} - {0}))
def test_it_keeps_the_contract(ranks):
    assert beside_refusals(check_backend(Nccl, {}, ranks=ranks)) == []


@NCCL4PY
@pytest.mark.parametrize("buffers", ["registered", "window"])
def test_other_buffers_keep_the_contract_or_are_refused_throughout(buffers):
    lines = conform("auditor.backends.nccl:Nccl", {"buffers": buffers}, f"RANKS={GPU_N}", "calls", "features")
    assert beside_refusals(lines) == []


@needs_two
def test_one_process_a_gpu_keeps_the_contract():
    assert beside_refusals(conform("auditor.backends.nccl:NcclOne", {}, ranks=GPU_N)) == []


def test_one_process_for_one_gpu_needs_no_launcher():
    assert beside_refusals(conform("auditor.backends.nccl:NcclOne", {})) == []


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "binary32"])
def test_the_sum_of_two_ranks_is_rounded_to_nearest_even(backend, name):
    """One rank: the sum is the term. More than two ranks may be added in any order, so only two are judged."""
    fmt = FORMATS[name]
    codes = near_terms(fmt, GPU_N, COUNT)
    call = Call(collective="all_reduce", op="sum", format=name, count=COUNT)
    send, recv = placed(backend, call, codes)
    backend.run(call, send, recv)
    outputs = [read(window, fmt) for window in recv.values()]
    assert all(np.array_equal(outputs[0], other) for other in outputs)
    if GPU_N == 1:
        assert np.array_equal(outputs[0], codes[0])
    if GPU_N == 2:
        assert np.array_equal(outputs[0], round_sums(fmt, exact_sums(fmt, list(codes)), "ties_to_even"))
    assert backend.last_seconds() > 0


def test_the_path_is_what_nccl_says(backend):
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=1021)
    backend.run(call, *placed(backend, call, near_terms(call.fmt, GPU_N, 1021)))
    if GPU_N == 1:
        assert backend.path() == UNREPORTED
    else:
        assert PATH.fullmatch(backend.path()), backend.path()


@pytest.mark.parametrize("name", FLOAT8)
def test_eight_bit_floats_are_summed_or_refused_in_words(backend, name):
    fmt = FORMATS[name]
    half = np.full((GPU_N, 1021), fmt.power_of_two(-1), fmt.dtype)
    call = Call(collective="all_reduce", op="sum", format=name, count=1021)
    send, recv = placed(backend, call, half)
    if name not in Nccl.probe({}).formats:
        pytest.skip("this library or GPU offers no sums of 8-bit floats")
    if words := refusal(backend, call, send, recv):
        assert "NCCL_ERROR_INVALID" in words
        return
    if GPU_N in (1, 2, 4):
        assert set(read(recv[0], fmt).tolist()) == {fmt.power_of_two(GPU_N.bit_length() - 2)}


def test_a_graph_is_replayed_on_new_inputs(backend):
    call = Call(collective="all_reduce", op="max", format="bfloat16", count=1021)
    send, recv = placed(backend, call, near_terms(call.fmt, GPU_N, 1021))
    replay = backend.capture(call, send, recv)
    seen = []
    for seed in (5, 6, 5):
        for window, codes in zip(send.values(), near_terms(call.fmt, GPU_N, 1021, seed), strict=True):
            fill(window, codes)
        replay()
        seen.append(read(recv[0], call.fmt).copy())
    assert np.array_equal(seen[0], seen[2])
    assert not np.array_equal(seen[0], seen[1])


@NCCL4PY
def test_an_algorithm_a_call_is_taken_or_refused_in_words():
    backend = Nccl(one_process_world(Nccl, GPU_N), {"algorithm": "ring"})
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=1021)
    words = refusal(backend, call, *placed(backend, call, near_terms(call.fmt, GPU_N, 1021)))
    if words:
        assert "ncclAllReduceConfig" in words or "alg" in words
    else:
        assert backend.path().startswith("RING") or GPU_N == 1
    backend.close()


def test_a_lost_context_ends_the_process_and_says_so():
    done = run_program("lose_context.py")
    assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
    assert "the CUDA context is lost" in done.stderr
    assert "illegal" in done.stderr.lower()


def test_the_multicast_switches_are_left_alone(backend):
    before = {name: os.environ.get(name) for name in SWITCHES}
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=64)
    backend.run(call, *placed(backend, call, near_terms(call.fmt, GPU_N, 64)))
    assert {name: os.environ.get(name) for name in SWITCHES} == before
    if before["NCCL_NVLS_ENABLE"] == "0":
        assert "NVLS" not in backend.path()
