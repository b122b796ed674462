"""Several ranks on one GPU, on a fake CUDA: who serves it, who refuses it in which words, and what a description then says."""

from __future__ import annotations

import json
import os
import re
import sys
import types

import fake_cuda
import pytest

from auditor.backends import nccl_path
from auditor.backends.gpu_sharing import MPS_PIPES, described, gpus_of_ranks, most_on_one, mps_runs
from auditor.backends.nccl import Nccl, NcclOne
from auditor.backends.nccl_options import SHARED_GPU
from auditor.backends.nvshmem import check_sharing
from auditor.errors import BackendError, Unavailable
from auditor.model import Call, Window, World
from auditor.testing import check_backend

FOUR = {"devices": [0, 0, 0, 0]}
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Gathered:
    """The control of one process whose peers say what is given."""

    def __init__(self, *others):
        self.others = others

    def broadcast(self, data, root=0):
        return data or bytes(range(128))

    def all_gather(self, data):
        return [*self.others, data]

    def barrier(self):
        return None


@pytest.fixture
def machine(monkeypatch):
    """NCCL 2.32 with its variable set, one GPU."""
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_ALGO", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nccl_path, "_of_this_process", {})
    monkeypatch.setenv(SHARED_GPU, "1")
    return fake_cuda.install(monkeypatch, gpu_n=1, version=23203)


def world(rank_n, control=None, ranks=None, **rest):
    local = tuple(range(rank_n)) if ranks is None else ranks
    return World(rank_n=rank_n, local_ranks=local, control=control or Gathered(), **rest)


def places(rank_gpus):
    return json.dumps(rank_gpus).encode()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_on_one_gpu_keep_the_contract(machine, ranks):
    assert Nccl.probe(FOUR).rank_n_max == NcclOne.probe(FOUR).rank_n_max == 4
    assert check_backend(Nccl, FOUR, ranks=ranks) == []


def test_every_rank_has_a_stream_of_its_own_and_the_gpu_queues_enough(machine):
    backend = Nccl(world(4), FOUR)
    assert len({backend._lanes[rank].stream.ptr for rank in range(4)}) == 4
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    backend.close()


def test_a_description_says_how_many_ranks_share_and_what_that_cannot_show(machine):
    backend = Nccl(world(4), FOUR)
    said = backend.describe()
    assert said["ranks_per_gpu"] == 4
    assert "One GPU served 4 ranks:" in said["limits"]
    assert "NVLink" in said["limits"]
    backend.close()
    machine.gpu_n = 2
    apart = Nccl(world(2), {})
    assert apart.describe()["ranks_per_gpu"] == 1
    assert "limits" not in apart.describe()
    apart.close()


def test_register_finds_the_rank_by_its_memory(machine, monkeypatch):
    """All four arenas are on device 0; each window must go to its own rank's communicator."""
    backend = Nccl(world(4), FOUR)
    arenas = backend.allocate(4096)
    registered = []
    extra = types.SimpleNamespace(
        register=lambda comm, address, nbytes: registered.append((comm.rank, address)) or len(registered),
        release=lambda comm, handle: None,
        is_error=lambda error: False,
    )
    backend._errors.extra = extra
    windows = {rank: Window(array, 512, 20) for rank, array in arenas.items()}
    for window in windows.values():
        backend.register(window)
    backend.run(Call(collective="all_reduce", op="sum", format="binary32", count=5), windows, windows)
    assert registered == [(rank, window.address) for rank, window in windows.items()]
    with pytest.raises(BackendError, match="allocate did not give"):
        backend.register(Window(sys.modules["cupy"].uint8, 0, 4))


@pytest.mark.parametrize(
    ("version", "value", "words", "remedy"),
    [
        (22809, "1", r"2\.28\.9 refuses", r"2\.30 or later"),
        (23203, None, SHARED_GPU, r'env = \{ NCCL_MULTI_RANK_GPU_ENABLE = "1" \}'),
        (23203, "0", SHARED_GPU, "GPU of its own"),
        (23203, "yes", SHARED_GPU, "GPU of its own"),
        (23203, "", SHARED_GPU, "GPU of its own"),
    ],
)
def test_what_nccl_would_refuse_is_unavailable_before_any_call(machine, monkeypatch, version, value, words, remedy):
    machine.version = version
    monkeypatch.setenv(SHARED_GPU, value or "")
    if value is None:
        monkeypatch.delenv(SHARED_GPU)
    for make in (lambda: Nccl.probe(FOUR), lambda: NcclOne.probe(FOUR), lambda: Nccl(world(4), FOUR)):
        with pytest.raises(Unavailable, match=words) as caught:
            make()
        assert re.search(remedy, caught.value.remedy)
    assert machine.alive == 0


def test_the_switchs_algorithm_is_unavailable_between_such_ranks(machine, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "NVLS")
    with pytest.raises(Unavailable, match="no NVLS"):
        Nccl.probe(FOUR)
    monkeypatch.setenv("NCCL_ALGO", "^NVLS,NVLSTree")
    assert Nccl.probe(FOUR).rank_n_max == 4
    monkeypatch.setenv("NCCL_ALGO", "NVLS")
    assert Nccl.probe({}).rank_n_max == 1


def test_processes_find_out_that_they_share_from_each_other(machine, monkeypatch):
    """Each process sees one GPU as its number 0; the address tells that it is the same one."""
    machine.gpu_n = 2
    here = gpus_of_ranks(sys.modules["cupy"], world(2, ranks=(1,)), {1: 1})[1]
    same = Gathered(places({"0": here}))
    backend = NcclOne(world(2, same, (1,), node_rank=1), {})
    assert backend.describe()["ranks_per_gpu"] == 2
    assert "took turns on it (no MPS)" in backend.describe()["limits"]
    backend.close()
    other = Gathered(places({"0": here.replace(":01:", ":00:")}))
    apart = NcclOne(world(2, other, (1,), node_rank=1), {})
    assert apart.describe()["ranks_per_gpu"] == 1
    apart.close()
    monkeypatch.delenv(SHARED_GPU)
    alive = machine.alive
    with pytest.raises(Unavailable, match="2 ranks are to share a GPU"):
        NcclOne(world(2, same, (1,), node_rank=1), {})
    assert machine.alive == alive


def test_the_busiest_gpu_counts():
    assert most_on_one([]) == 0
    assert most_on_one([0, 1, 2]) == 1
    assert most_on_one([0, 1, 1, 0, 1]) == 3


def test_mps_is_seen_by_its_pipe(tmp_path, monkeypatch):
    assert mps_runs({}) is os.path.exists(f"{MPS_PIPES}/control")
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not mps_runs(environ)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with pytest.raises(Unavailable, match="under MPS alone") as caught:
        check_sharing(3)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to at most 33" in caught.value.remedy
    (tmp_path / "control").touch()
    assert mps_runs(environ)
    check_sharing(3)
    assert "took turns" not in described(3, "one", environ)["limits"]
