"""The NVSHMEM backend on fake bindings (no GPU needed): addresses, teams, the heap, and what it refuses in which words."""

from __future__ import annotations

import ctypes
import sys
import types

import fake_cuda
import numpy as np
import pytest

from auditor.backends import nvshmem_block, nvshmem_start
from auditor.backends.nvshmem import Nvshmem, check_options
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import Call, Window, World
from auditor.testing import check_backend

LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SUM = Call(collective="all_reduce", op="sum", format="bfloat16", count=5)
SIZES = {"double": 8, "float": 4, "half": 2, "bfloat16": 2}


class Alone:
    sent = b""

    def broadcast(self, data, root=0):
        self.sent = data
        return data

    def all_gather(self, data):
        return [data]

    def barrier(self):
        return None


class NVSHMEMError(Exception):
    def __init__(self, status):
        super().__init__(f"Status code {status}")
        self.status = status


class Bindings(types.ModuleType):
    """One PE: a reduction is a copy. ``calls`` keeps what was asked; ``refuse`` is the next call's status."""

    def __init__(self):
        super().__init__("nvshmem.bindings")
        self.calls, self.refuse, self.room, self.heap, self.next_team = [], 0, 1 << 20, {}, 5
        self.NVSHMEMError = NVSHMEMError
        self.TeamConfig = lambda: types.SimpleNamespace(ptr=1, uniqueid=0)
        self.team_uniqueid = lambda: types.SimpleNamespace(ptr=2, value=2**64 - 77)  # an id has no sign
        for name, size in SIZES.items():
            for op in ("sum", "min", "max"):
                for kind in ("reduce", "reducescatter"):
                    setattr(self, f"{name}_{op}_{kind}_on_stream", self.reduction(f"{name}_{op}_{kind}", size))

    def reduction(self, name, size):
        def call(team, target, source, count, stream):
            if self.refuse:
                status, self.refuse = self.refuse, 0
                raise NVSHMEMError(status)
            self.calls.append((name, team, count))
            ctypes.memmove(target, source, count * size)

        return call

    def malloc(self, nbytes):
        if nbytes > self.room:
            return 0
        memory = fake_cuda.Memory(nbytes)
        self.heap[memory.ptr] = memory
        return memory.ptr

    def free(self, address):
        del self.heap[address]

    def team_split_strided(self, parent, start, stride, size, config, mask, out):
        self.calls.append(("split", parent, start, stride, size))
        ctypes.c_int.from_address(out).value = self.next_team
        self.next_team += 1 if self.next_team > 0 else 0

    def team_init(self, out, config, mask, size, position):
        self.calls.append(("team_init", mask, size, position))
        ctypes.c_int.from_address(out).value = 42

    def team_get_uniqueid(self, pointer):
        self.calls.append(("id",))

    def team_destroy(self, team):
        self.calls.append(("destroy", team))


@pytest.fixture
def bindings(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    fake_cuda.install(monkeypatch)
    found, package, core = Bindings(), types.ModuleType("nvshmem"), types.ModuleType("nvshmem.core")
    version = types.SimpleNamespace(
        libnvshmem_version="3.4.5", openshmem_spec_version="1.3", nvshmem4py_version="0.4.1"
    )

    def unique_id(empty=False):
        found.calls.append(("unique_id", empty))
        return types.SimpleNamespace(_data=np.full(128, 0 if empty else 9, np.int8))

    core.get_version = lambda: version
    core.get_unique_id = unique_id
    core.init = lambda **arguments: found.calls.append(("init", arguments))
    core.finalize = lambda: None
    package.core, package.bindings = core, found
    device = types.SimpleNamespace(set_current=lambda: None)
    cuda, cuda_core = types.ModuleType("cuda"), types.ModuleType("cuda.core")
    cuda.core, cuda_core.Device = cuda_core, lambda number: device
    modules = {"nvshmem": package, "nvshmem.core": core, "nvshmem.bindings": found}
    for name, module in {**modules, "cuda": cuda, "cuda.core": cuda_core}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(nvshmem_start, "_started", [])
    monkeypatch.setattr(nvshmem_start.atexit, "register", lambda function: found.calls.append(("at exit", function)))
    return found


def world(rank_n=1, rank=0, control=None):
    return World(rank_n=rank_n, local_ranks=(rank,), node_rank=rank, control=control or Alone())


def windows(backend, rank=0, offsets=(512, 512)):
    send, recv = backend.allocate(4096)[rank], backend.allocate(4096)[rank]
    return {rank: Window(send, offsets[0], 10)}, {rank: Window(recv, offsets[1], 10)}


def test_one_pe_keeps_the_contract(bindings):
    assert check_backend(Nvshmem, {}, ranks=1) == []


def test_addresses_counts_and_shifts_reach_the_binding(bindings):
    backend = Nvshmem(world(), {})
    send, recv = windows(backend, offsets=(514, 518))
    send[0].buffer[514:524] = np.arange(10)
    backend.run(SUM, send, recv)
    assert bindings.calls[-1] == ("bfloat16_sum_reduce", 0, 5)
    assert recv[0].buffer[518:528].tolist() == list(range(10))
    backend.close()
    backend.close()
    assert bindings.heap == {}


def test_it_starts_once_a_process_by_rank_0s_id(bindings):
    control = Alone()
    backend = Nvshmem(world(control=control), {})
    arguments = dict(bindings.calls)["init"]
    assert (arguments["rank"], arguments["nranks"], arguments["initializer_method"]) == (0, 1, "uid")
    assert control.sent == bytes([9]) * 128
    backend.close()
    Nvshmem(world(), {}).close()
    assert [call[0] for call in bindings.calls].count("init") == 1
    assert [call[0] for call in bindings.calls].count("at exit") == 1
    with pytest.raises(ConfigError, match="was started in this process"):
        Nvshmem(world(2, 1), {})


def test_another_rank_takes_the_id_that_it_is_given(bindings):
    class Second(Alone):
        def broadcast(self, data, root=0):
            return bytes([7]) * 128 if len(data) == 128 else data

    Nvshmem(world(2, 1, Second()), {})
    assert ("unique_id", True) in bindings.calls
    arguments = next(call[1] for call in bindings.calls if call[0] == "init")
    assert arguments["uid"]._data.tolist() == [7] * 128


def test_a_split_team_and_side_teams(bindings):
    backend = Nvshmem(world(), {"team": "split"})
    backend.run(SUM, *windows(backend))
    assert bindings.calls[-1] == ("bfloat16_sum_reduce", 5, 5)
    backend.perturb(2)
    backend.perturb(1)
    assert bindings.calls[-3:] == [("split", 0, 0, 1, 1), ("split", 0, 0, 1, 1), ("destroy", 7)]
    backend.close()
    assert [call for call in bindings.calls if call[0] == "destroy"] == [("destroy", 7), ("destroy", 6), ("destroy", 5)]


def test_a_group_is_a_team_made_once(bindings):
    backend = Nvshmem(world(), {})
    grouped = Call(collective="reduce_scatter", op="max", format="binary16", count=5, group=(0,))
    placed = windows(backend)
    for _ in range(2):
        backend.run(grouped, *placed)
    assert [call for call in bindings.calls if call[0] == "team_init"] == [("team_init", 2, 1, 0)]
    assert bindings.calls[-1] == ("half_max_reducescatter", 42, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "avg"}, "no all_reduce avg of bfloat16"),
        ({"format": "float8_e5m2"}, "no all_reduce sum of float8_e5m2"),
        ({"collective": "reduce"}, "no reduce sum"),
    ],
)
def test_what_nvshmem_does_not_have_is_unsupported(bindings, change, words):
    backend = Nvshmem(world(), {})
    call = Call(**{"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": 5, **change})
    with pytest.raises(Unsupported, match=words):
        backend.run(call, *windows(backend))


def test_in_place_reduce_scatter_of_several_is_unsupported(bindings):
    class Pair(Alone):
        def all_gather(self, data):
            return [data, data]

    backend = Nvshmem(world(2, 0, Pair()), {})
    send, _ = windows(backend)
    call = Call(collective="reduce_scatter", op="sum", format="bfloat16", count=2)
    with pytest.raises(Unsupported, match="in place"):
        backend.run(call, send, {0: Window(send[0].buffer, 512, 4)})


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (3, Unsupported, r"3\.4\.5.*status 3 \(not supported\)"),
        (7, BackendError, r"status 7 \(internal\)"),
        (99, BackendError, r"status 99 \(unknown\)"),
    ],
)
def test_a_status_is_told(bindings, status, error, words):
    backend = Nvshmem(world(), {})
    bindings.refuse = status
    with pytest.raises(error, match=words):
        backend.run(SUM, *windows(backend))


def test_a_full_heap_says_what_to_set(bindings):
    backend = Nvshmem(world(), {})
    with pytest.raises(BackendError, match="NVSHMEM_SYMMETRIC_SIZE"):
        backend.allocate(1 << 21)


def test_no_team_left_says_what_to_set(bindings):
    backend = Nvshmem(world(), {})
    bindings.next_team = -1
    with pytest.raises(BackendError, match="NVSHMEM_MAX_TEAMS"):
        backend.perturb(1)


def test_what_is_missing_is_unavailable(bindings, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(Unavailable, match=r"block.*cuda-pathfinder"):
        Nvshmem.probe({"scope": "block"})
    monkeypatch.setitem(sys.modules, "nvshmem.bindings", None)
    with pytest.raises(Unavailable, match="nvshmem4py") as caught:
        Nvshmem.probe({})
    assert "nvshmem-cu13" in caught.value.remedy


@pytest.fixture
def toolchain(bindings, monkeypatch, tmp_path):
    """The headers where they are looked for, and a compiler that gives ``built``; counts how often it is asked."""
    for name in ("nvshmem/include", "nvshmem/lib", "runtime/cccl"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "nvshmem/lib/libnvshmem_device.a").write_bytes(b"")
    places = {"nvshmem": tmp_path / "nvshmem/include", "cudart": tmp_path / "runtime"}
    pathfinder = types.ModuleType("cuda.pathfinder")
    pathfinder.find_nvidia_header_directory = lambda name: str(places[name]) if name in places else None
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []
    monkeypatch.setattr(nvshmem_block, "build", lambda *arguments: asked.append(arguments) or b"built")
    cupy = sys.modules["cupy"]
    cupy.__file__ = str(tmp_path / "cupy/__init__.py")
    status = np.zeros(1, np.int32).view(Status)
    launched = []

    class Module:
        ptr = 11

        def load(self, code):
            launched.append(code)

        def get_function(self, name):
            return lambda grid, block, arguments, stream: launched.append(
                (name, grid, block, arguments[:1] + arguments[3:4])
            )

    cupy.cuda.function = types.SimpleNamespace(Module=Module)
    cupy.zeros, cupy.int32, cupy.uint64 = (lambda n, dtype: status), np.int32, np.uint64
    bindings.cumodule_init = lambda pointer: bindings.calls.append(("module", pointer)) or 0
    bindings.cumodule_finalize = lambda pointer: bindings.calls.append(("module ends", pointer))
    return types.SimpleNamespace(asked=asked, launched=launched, status=status, places=places)


class Status(np.ndarray):
    """A device array of one status word."""

    data = types.SimpleNamespace(ptr=99)

    def get(self):
        return np.array(self)


def test_block_scope_launches_one_block(toolchain, bindings):
    assert Nvshmem.probe({"scope": "block"}).ops == {"sum"}
    backend = Nvshmem(world(), {"scope": "block"})
    placed = windows(backend)
    backend.run(SUM, *placed)
    assert toolchain.launched == [b"built", ("bfloat16_sum_reduce", (1, 1, 1), (256, 1, 1), (0, 5))]
    with pytest.raises(Unsupported, match="max of bfloat16 at block scope"):
        backend.run(Call(collective="all_reduce", op="max", format="bfloat16", count=5), *placed)
    backend.close()
    assert ("module ends", 11) in bindings.calls


def test_block_kernels_are_bound_to_the_block_that_they_are_launched_with():
    text = nvshmem_block.source()
    assert text.startswith(f"#define THREADS {nvshmem_block.THREADS}\n")
    assert (
        text.count("__global__") == text.count("__launch_bounds__(THREADS)") == 1
    )  # of the one macro that makes them all


def test_a_block_kernels_status_is_told(toolchain):
    backend = Nvshmem(world(), {"scope": "block"})
    toolchain.status[0] = 7
    with pytest.raises(BackendError, match="block scope: status 7"):
        backend.run(SUM, *windows(backend))


def test_the_kernels_are_built_once_for_each_gpu_and_version(toolchain, tmp_path):
    cupy = sys.modules["cupy"]
    for architecture, version in (("sm_90", "3.4.5"), ("sm_90", "3.4.5"), ("sm_100", "3.4.5"), ("sm_90", "3.8.0")):
        assert nvshmem_block.cubin(cupy, architecture, version) == b"built"
    assert len(toolchain.asked) == len(list((tmp_path / "cache/collective-rounding-auditor").iterdir())) == 3


def test_missing_headers_are_told(toolchain):
    toolchain.places["nvshmem"] = toolchain.places["nvshmem"].parent / "elsewhere/include"
    with pytest.raises(Unavailable, match=r"libnvshmem_device\.a"):
        Nvshmem.probe({"scope": "block"})
    del toolchain.places["cudart"]
    with pytest.raises(Unavailable, match="headers of cudart"):
        Nvshmem.probe({"scope": "block"})


def test_a_compilers_first_error_is_told():
    log = "6: NVRTC_ERROR_COMPILATION, compilation log:\n\na.cuh(13): catastrophic error: cannot open x\n  #include\n1 error"
    assert nvshmem_block._short(RuntimeError(log)) == "a.cuh(13): catastrophic error: cannot open x"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scop": "stream"}, "options.scop is not known"),
        ({"scope": "warp"}, "stream, block"),
        ({"team": "node"}, "world, split"),
        ({"devices": [1, "1"]}, "GPU numbers"),
    ],
)
def test_wrong_options_are_told(options, words):
    with pytest.raises(ConfigError, match=words):
        check_options(options)


def test_a_launcher_may_bring_more_nodes(bindings, monkeypatch):
    assert Nvshmem.probe({}).rank_n_max == 2
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "16")
    assert Nvshmem.probe({}).rank_n_max is None
