"""torch: the contract over a fake torch, what is refused and when, and the real one where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import types
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import fake_cuda
import fake_torch
import numpy as np
import pytest
from spawned_kit import conform

from auditor.backends.torch import TorchBackend
from auditor.backends.torch_device import loaded_nccl
from auditor.backends.torch_options import check_options
from auditor.backends.torch_symmetric import Symmetric
from auditor.config import ArmSpec, Config, Sweep, load
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import Call, Window, World
from auditor.plan import build
from auditor.socket_control import SocketControl, star
from auditor.testing import check_backend

ROOT = Path(__file__).parents[1]
SWITCHES = ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, in an environment of its own")


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)


def in_threads(size, body):
    """``body(world)`` on every rank, each in a thread; their results."""
    ends, _ = star(size)
    results = [None] * size

    def run(rank):
        control = SocketControl(rank, size, ends[rank])
        results[rank] = body(World(rank_n=size, local_ranks=(rank,), node_rank=rank, control=control))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# --------------------------------------------------------------------------------------------------------------- contract


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_contract_over_a_fake_torch(monkeypatch, size):
    distributed = fake_torch.install(monkeypatch)
    checks = ("probe", "arrays", "calls", "groups", "features", "lifecycle")
    lines = in_threads(size, lambda world: check_backend(TorchBackend, {}, world=world, checks=checks))
    assert lines == [[]] * size
    names = {name for name, _ in distributed.calls}
    # A group in another order than torch's needs the list form: shares are handed over in torch's order.
    assert names == {"all_reduce", "reduce", "reduce_scatter_tensor"} | ({"reduce_scatter"} if size > 1 else set())


def test_what_is_offered(monkeypatch):
    fake_torch.install(monkeypatch)
    offer = TorchBackend.probe({})
    assert offer.formats == {"bfloat16", "binary16", "binary32", "binary64"}
    assert (offer.memory, offer.rank_n_max) == ("host", None)
    assert offer.features == {"groups", "history", "recreate", "timing", "path"}
    assert not TorchBackend.needs_mpi


def test_a_copy_for_the_ranks_that_are_not_the_root_has_the_range_s_place(monkeypatch):
    fake_torch.install(monkeypatch)
    seen = []

    def body(world):
        backend = TorchBackend(world, {})
        (rank,) = world.local_ranks
        send, recv = backend.allocate(8192)[rank], backend.allocate(8192)[rank]
        send[:], recv[:] = 0, 0x77
        send[1030 : 1030 + 200].view(np.float16)[:] = rank + 1
        before = send.copy()
        call = Call(collective="reduce", op="sum", format="binary16", count=100, root=1)
        kept = backend._place.scratch
        backend._place.scratch = lambda like: seen.append((like, kept(like))) or seen[-1][1]
        backend.run(call, {rank: Window(send, 1030, 200)}, {rank: Window(recv, 1034, 200)})
        result = recv[1034:1234].view(np.float16).copy()
        untouched = np.array_equal(send, before) and (recv[:1034] == 0x77).all() and (recv[1234:] == 0x77).all()
        backend.close()
        return untouched, result[0].item() if rank == 1 else bool((recv == 0x77).all())

    assert in_threads(2, body) == [(True, True), (True, 3.0)]
    ((like, scratch),) = seen
    assert scratch.data_ptr() % 512 == like.data_ptr() % 512


def test_torch_s_words_on_one_line(monkeypatch):
    fake_torch.install(monkeypatch, refuse="init")
    world = World(rank_n=1, local_ranks=(0,), control=SocketControl(0, 1, []))
    with pytest.raises(BackendError, match=r"torch 2\.13\.0, init_process_group: the wire is cut"):
        TorchBackend(world, {})
    fake_torch.install(monkeypatch, refuse="call")
    backend = TorchBackend(world, {})
    arena = backend.allocate(512)[0]
    windows = {0: Window(arena, 0, 8)}
    call = Call(collective="all_reduce", op="sum", format="binary32", count=2)
    with pytest.raises(BackendError, match=r"torch 2\.13\.0, all_reduce sum of 2 binary32: Invalid scalar type"):
        backend.run(call, windows, windows)
    with pytest.raises(BackendError, match="has a process group in this process already"):
        TorchBackend(world, {})


# ---------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"proces_group": "gloo"}, "options.proces_group is not known"),
        ({"process_group": "mpi"}, "is not one of 'gloo', 'nccl'"),
        ({"operation": "one_shot_all_reduce"}, 'options.operation needs options.process_group = "nccl"'),
        ({"devices": [1]}, 'options.devices needs options.process_group = "nccl"'),
        ({"process_group": "nccl", "operation": "three_shot"}, "is not one of '', 'one_shot_all_reduce'"),
        ({"process_group": "nccl", "devices": [-1]}, "is not a list of"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ConfigError, match=r"^backend torch: ") as caught:
        TorchBackend.probe(options)
    assert words in str(caught.value)


def test_absences(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="torch cannot be imported") as caught:
        TorchBackend.probe({})
    assert "environment of its own" in caught.value.remedy
    distributed = fake_torch.install(monkeypatch)
    with pytest.raises(Unavailable, match=r"torch 2\.13\.0 sees no GPU"):
        TorchBackend.probe({"process_group": "nccl"})
    monkeypatch.setattr(distributed, "is_gloo_available", lambda: False)
    with pytest.raises(Unavailable, match="built without gloo"):
        TorchBackend.probe({})
    monkeypatch.setattr(distributed, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"built without torch\.distributed"):
        TorchBackend.probe({})


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("operation", ["multimem_all_reduce_", "multimem_one_shot_all_reduce"])
def test_sums_in_the_switch_are_refused_before_torch_is_loaded(monkeypatch, name, operation):
    monkeypatch.setenv(name, "0" if name.startswith("NCCL") else "1")
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    options = {"process_group": "nccl", "operation": operation}
    with pytest.raises(Unavailable, match="adds in the switch, and in-switch multicast is switched off here"):
        TorchBackend.probe(options)
    world = World(rank_n=1, local_ranks=(0,), control=SocketControl(0, 1, []))
    with pytest.raises(Unavailable, match="adds in the switch"):
        TorchBackend(world, options)
    arm = ArmSpec(name="switch", backend="torch", ranks=2, options=options)
    plan = build(Config(title="t", arms=(arm,), sweep=Sweep()), {"switch": Unavailable("never asked")})
    assert plan.arm("switch").status == "waived"
    assert operation in plan.arm("switch").reason


@pytest.mark.parametrize("name", [*SWITCHES, ""])
def test_the_shipped_gpu_config(monkeypatch, name):
    """Every arm's options are known; the switch's arm alone is waived, and only where it is forbidden."""
    if name:
        monkeypatch.setenv(name, "0" if name.startswith("NCCL") else "1")
    config = load(ROOT / "configs/torch_nccl.toml")
    for arm in config.arms:
        assert arm.backend in ("torch", "nccl")
        assert arm.backend == "nccl" or check_options(arm.options)["process_group"] == "nccl"
    plan = build(config, {arm.name: Unavailable("no GPU here") for arm in config.arms})
    assert {arm.name for arm in plan.arms if arm.status == "waived"} == ({"multimem"} if name else set())


class Refusing:
    """An operation on symmetric memory that wants whole words, or is broken."""

    def __init__(self, words):
        self.words = words

    def __getattr__(self, operation):
        def verb(tensor, op, group):
            raise RuntimeError(self.words)

        return verb


@pytest.mark.parametrize(
    ("words", "error"), [("input must be 4 byte\naligned", Unsupported), ("CUDA error: unspecified", RuntimeError)]
)
def test_a_refused_length_is_told_from_an_error(monkeypatch, words, error):
    fake_torch.install(monkeypatch, gpu_n=2)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", types.ModuleType("memory"))
    monkeypatch.setattr(sys.modules["torch"], "ops", types.SimpleNamespace(symm_mem=Refusing(words)), raising=False)
    symmetric = Symmetric(sys.modules["torch"], "one_shot_all_reduce")
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=3)
    tensor = types.SimpleNamespace(data_ptr=lambda: 0, copy_=lambda other: None)
    with pytest.raises(error, match=r"aligned|unspecified") as caught:
        symmetric.all_reduce(call, None, tensor, tensor)
    assert "\n" not in str(caught.value)
    with pytest.raises(Unsupported, match="over all ranks alone"):
        symmetric.all_reduce(call, (0,), tensor, tensor)
    symmetric.all_reduce(replace(call, count=0), None, tensor, tensor)  # nothing to do, and nothing asked


# ------------------------------------------------------------------------------------------------------------- on fake GPUs


def test_nccl_and_symmetric_memory_on_fake_gpus(monkeypatch):
    fake_cuda.install(monkeypatch)
    distributed = fake_torch.install(monkeypatch, gpu_n=2)
    cupy = sys.modules["cupy"]
    monkeypatch.setattr(cupy, "asarray", lambda tensor: tensor.numpy(), raising=False)
    offer = TorchBackend.probe({"process_group": "nccl"})
    assert (offer.memory, offer.rank_n_max) == ("cuda", 2)
    assert "queue" in offer.features
    symmetric = TorchBackend.probe({"process_group": "nccl", "operation": "two_shot_all_reduce_"})
    assert (symmetric.collectives, symmetric.ops, symmetric.element_alignment) == ({"all_reduce"}, {"sum"}, 16)

    def body(world):
        backend = TorchBackend(world, {"process_group": "nccl"})
        (rank,) = world.local_ranks
        send, recv = backend.allocate(4096)[rank], backend.allocate(4096)[rank]
        send[512:912].view(np.float32)[:] = rank + 1.5
        call = Call(collective="all_reduce", op="sum", format="binary32", count=100)
        backend.enqueue(call, {rank: Window(send, 512, 400)}, {rank: Window(recv, 516, 400)})
        backend.wait()
        found = (
            recv[516:916].view(np.float32).copy(),
            backend.last_seconds(),
            backend.describe()["nccl_torch_built_for"],
            backend.path(),
        )
        backend.close()
        return found

    for values, seconds, version, path in in_threads(2, body):
        assert (values == 4.0).all()
        assert (seconds, version, path) == (0.002, "2.28.9", "unreported")
    assert distributed.calls == [("all_reduce", (0, 1))]


# -------------------------------------------------------------------------------------------------------------- real torch


@TORCH
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_kit_over_real_gloo(ranks):
    assert conform("torch", {}, ranks) == []


@TORCH
def test_gloo_the_whole_way(tmp_path):
    """Four ranks without MPI: the rounding named, place matters, ranks agree, and a ring replayed on every element."""
    command = [sys.executable, "-m", "auditor", "run", str(ROOT / "configs/torch.toml"), "--out", "run"]
    narrow = (
        "sweep.count=[7, 65536]",
        "sweep.shift=[0]",
        'sweep.collective=["all_reduce"]',
        'sweep.format=["bfloat16"]',
    )
    probes = 'probes.run=["rounding", "repeatability", "placement", "order"]'
    for change in (*narrow, probes, "sweep.in_place=[false]"):
        command += ["--set", change]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "AUDITOR_MPIEXEC": "/no/such/mpiexec"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in json.loads((tmp_path / "run/findings.json").read_text())["findings"]}
    assert found["rounding_mode"]["measure"]["mode"] == "ties_to_even"
    assert found["rank_disagreement"]["verdict"] == "PASS"
    assert found["position_dependence"]["verdict"] == "INFORMATION"
    order = found["summation_tree"]["measure"]
    assert order["schedule"] == "ring"
    assert order["elements_matched"] == order["elements"]


def test_the_release_of_nccl_is_that_of_the_library_in_the_process():
    """A preloaded library is what runs, whatever torch was built for; the sources of a stand-in are compiled here."""
    source = "int ncclGetVersion(int *v) { *v = 23203; return 0; }"
    ask = "from auditor.backends.torch_device import loaded_nccl; print(loaded_nccl())"
    code = f"import ctypes, sys; ctypes.CDLL(sys.argv[1]); {ask}"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnccl.so.2"
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-x", "c", "-", "-o", str(library)]
        subprocess.run(["cc", *flags], input=source, text=True, check=True)
        done = subprocess.run(
            [sys.executable, "-c", code, library], cwd=ROOT, capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == "2.32.3"
    assert loaded_nccl() == "unknown"
