"""Providers of a multicast pointer: barred before any CUDA call where a switch is set; on fakes, what they ask in which order."""

from __future__ import annotations

import ctypes
import json
import sys
import types

import emulated_multimem as emulated
import fake_cuda
import fake_multimem
import numpy as np
import pytest
from fake_providers import Driver, NcclBindings, Nvshmem

from auditor.backends import multimem_nvshmem
from auditor.backends.base import LocalControl
from auditor.backends.multimem import Multimem, MultimemOne
from auditor.backends.multimem_driver import DriverFabric, load_driver
from auditor.cli import main
from auditor.errors import BackendError, Unavailable, Unsupported
from auditor.model import Call, Window, World
from auditor.multicast import MULTICAST_OFF
from auditor.numerics.formats import FORMATS
from auditor.testing import check_backend
from auditor.testing.bench import one_process_world

PROVIDERS = ("nccl", "nvshmem", "driver")
MODULES = ("cupy", "cuda.bindings", "cuda.core", "nccl", "nccl.bindings", "nvshmem", "nvshmem.bindings")
SUM = Call(collective="all_reduce", op="sum", format="bfloat16", count=67)


@pytest.fixture(autouse=True)
def _no_switch_set(monkeypatch):
    """As on a machine where nobody forbade multicast; nothing here can make a multicast object: there is no CUDA."""
    for name in (*MULTICAST_OFF, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def no_cuda(monkeypatch):
    """Importing anything of CUDA is an error: the test that takes this shows that nothing was asked."""

    class Untouchable(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f"{self.__name__}.{name} was asked")

    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, Untouchable(name))


# ---- Permission -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("switch", MULTICAST_OFF)
def test_a_set_switch_bars_every_provider_before_any_cuda_call(no_cuda, monkeypatch, provider, switch):
    monkeypatch.setenv(switch, MULTICAST_OFF[switch])
    options = {"provider": provider, "allow_multicast": True}
    backend = Multimem.for_options(options)
    for ask in (lambda: backend.probe(options), lambda: backend(one_process_world(Multimem, 2), options)):
        with pytest.raises(
            Unavailable, match=f"needs a CUDA multicast object, and .*{switch}={MULTICAST_OFF[switch]}"
        ) as caught:
            ask()
        assert "unicast" in caught.value.remedy


@pytest.mark.parametrize("provider", PROVIDERS)
def test_without_allow_multicast_nothing_is_asked_either(no_cuda, provider):
    for allowed in ({}, {"allow_multicast": False}):
        with pytest.raises(Unavailable, match="NVSwitch fabric that others share") as caught:
            Multimem.probe({"provider": provider, **allowed})
        assert "options.allow_multicast = true" in caught.value.remedy


@pytest.mark.parametrize("switch", MULTICAST_OFF)
def test_auditor_run_waives_the_arms_and_starts_nothing(no_cuda, monkeypatch, tmp_path, switch, capsys):
    """The whole way, from a config: WAIVED with the reason, exit code 5, no process started for these arms."""
    monkeypatch.setenv(switch, MULTICAST_OFF[switch])
    arms = "".join(
        f'[[arm]]\nname = "{provider}"\nbackend = "multimem"\nranks = 2\n'
        f'options = {{ provider = "{provider}", allow_multicast = true }}\n'
        for provider in PROVIDERS
    )
    sweep = '[sweep]\ncollective = ["all_reduce"]\nop = ["sum"]\nformat = ["bfloat16"]\ncount = [7]\n'
    (tmp_path / "c.toml").write_text(f'title = "t"\n{arms}{sweep}')
    monkeypatch.setattr("auditor.pipeline.Server", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(SystemExit) as left:
        main(["run", str(tmp_path / "c.toml"), "--out", str(tmp_path / "run")])
    assert left.value.code == 5, capsys.readouterr()
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert [arm["status"] for arm in found["arms"]] == ["waived"] * 3
    waived = [finding for finding in found["findings"] if finding["verdict"] == "WAIVED"]
    assert {finding["arm"] for finding in waived} == set(PROVIDERS)
    assert all(f"{switch}={MULTICAST_OFF[switch]} is set here" in finding["claim"] for finding in waived)


# ---- NCCL -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    if emulated.compiler() is None:
        pytest.skip("no C++ compiler")
    return fake_multimem.install(monkeypatch, gpu_n=2)


@pytest.fixture
def nccl(monkeypatch, machine):
    bindings, package, parent = NcclBindings(machine), types.ModuleType("nccl"), types.ModuleType("nccl.bindings")
    parent.nccl = bindings
    package.bindings = parent
    for name, module in (("nccl", package), ("nccl.bindings", parent), ("nccl.bindings.nccl", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    return bindings


NCCL = {"provider": "nccl", "allow_multicast": True}


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
@pytest.mark.parametrize("lone", ["scalar", "pair"])
def test_over_nccls_windows_it_keeps_the_contract(nccl, algorithm, lone):
    """The switch is emulated; head, tail, alignment and what is stored through it are the kernels' own."""
    assert check_backend(Multimem, {**NCCL, "algorithm": algorithm, "lone": lone}, ranks=2) == []


def test_what_the_switch_arm_says_and_frees(nccl, machine):
    backend = Multimem(one_process_world(Multimem, 2), NCCL)
    arenas = backend.allocate(4096), backend.allocate(4096)
    send, recv = ({rank: Window(array, 514, 134) for rank, array in one.items()} for one in arenas)
    backend.run(SUM, send, recv)
    assert backend.path() == "MULTIMEM(nccl)/one_shot/v4.bf16x2.acc::f32/s1.w3.v4.w2/st16"
    said = backend.describe()
    assert said["form.bfloat16"] == "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2"
    assert said["model.bfloat16"].startswith("not stated: the switch adds")
    assert ("limits" in said, said["nccl"]) == (False, "2.28.9")
    assert "float8_e4m3fn" not in Multimem.probe(NCCL).formats
    with pytest.raises(Unsupported, match="no groups"):
        backend.run(Call(collective="all_reduce", op="sum", format="bfloat16", count=67, group=(1, 0)), send, recv)
    outside = np.zeros(1024, np.uint8).view(fake_cuda.Array)
    with pytest.raises(BackendError, match="memory that allocate did not give"):
        backend.run(SUM, {rank: Window(outside, 0, 134) for rank in (0, 1)}, recv)
    backend.close()
    backend.close()
    assert (nccl.memory, nccl.windows, machine.cuda.alive) == ({}, [], 0)


def test_eight_bits_through_the_switch_begin_with_blackwell(nccl, monkeypatch):
    fake_multimem.install(monkeypatch, gpu_n=2, major=10)
    assert "float8_e4m3fn" in Multimem.probe(NCCL).formats


def test_no_window_or_no_address_is_unavailable(nccl):
    backend = Multimem(one_process_world(Multimem, 2), NCCL)
    nccl.pointer = False
    with pytest.raises(Unavailable, match="no multicast address"):
        backend.allocate(512)
    nccl.pointer, nccl.refuses = True, True
    with pytest.raises(Unavailable, match="no multicast address"):
        backend.allocate(512)
    backend.close()
    assert nccl.memory == {}


def test_ncclss_errors_are_told_in_its_words(nccl, monkeypatch):
    backend = Multimem(one_process_world(Multimem, 2), NCCL)

    def refuse(nbytes):
        raise NcclBindings.NCCLError("NCCL_ERROR_INVALID_ARGUMENT (4)")

    monkeypatch.setattr(nccl, "mem_alloc", refuse)
    with pytest.raises(BackendError, match=r"NCCL 2\.28\.9: ncclMemAlloc of 512 bytes: NCCL_ERROR_INVALID_ARGUMENT"):
        backend.allocate(512)


# ---- The driver's own sequence --------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch, machine):
    found, package = Driver(), types.ModuleType("cuda.bindings")
    package.driver = found
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", found)
    return found


DRIVER = {"provider": "driver", "allow_multicast": True}


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_over_the_drivers_sequence_it_keeps_the_contract(driver, algorithm):
    assert check_backend(Multimem, {**DRIVER, "algorithm": algorithm}, ranks=2) == []


def test_the_sequence_binds_everything_before_it_maps_and_is_undone_in_reverse(driver):
    backend = Multimem(one_process_world(Multimem, 2), DRIVER)
    backend.allocate(4096)
    names = [call[0] for call in driver.calls]
    order = ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastAddDevice", "cuMemCreate", "cuMulticastBindMem")
    assert [name for name in names if name in order][:5] == list(order)
    created = next(call for call in driver.calls if call[0] == "cuMulticastCreate")
    assert (created[1].numDevices, created[1].size) == (2, 8192)
    last_bind = max(number for number, name in enumerate(names) if name == "cuMulticastBindMem")
    whole = [number for number, call in enumerate(driver.calls) if call[0] == "cuMemMap" and isinstance(call[4], tuple)]
    assert len(whole) == 2
    assert min(whole) > last_bind
    made = len(driver.calls)
    backend.close()
    undone = [call[0] for call in driver.calls[made:]]
    assert undone[:2] == ["cuMemUnmap", "cuMemAddressFree"]
    assert undone[-1] == "cuMemRelease"
    assert (undone.count("cuMemRelease"), undone.count("cuMulticastUnbind"), undone.count("cuMemUnmap")) == (3, 2, 4)
    backend.close()
    assert len(driver.calls) == made + len(undone)


def test_a_switch_that_is_set_later_bars_the_object_itself(driver, monkeypatch):
    backend = Multimem(one_process_world(Multimem, 2), DRIVER)
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "1")
    with pytest.raises(Unavailable, match="NVSHMEM_DISABLE_NVLS=1"):
        backend.allocate(4096)
    assert {call[0] for call in driver.calls} <= {"cuMulticastGetGranularity", "cuMemGetAllocationGranularity"}


def test_a_refusal_of_the_driver_names_the_call(driver):
    backend = Multimem(one_process_world(Multimem, 2), DRIVER)
    driver.fails = "cuMulticastCreate"
    with pytest.raises(BackendError, match="cuMulticastCreate: CUDA_ERROR_NOT_PERMITTED"):
        backend.allocate(4096)
    backend.close()


def test_without_the_bindings_the_driver_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver", raising=False)
    with pytest.raises(Unavailable, match=r"cuda\.bindings cannot be imported"):
        load_driver()


def test_the_real_bindings_have_every_name_of_the_sequence():
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs the extra compile: cuda-bindings")
    fabric = DriverFabric.__new__(DriverFabric)
    fabric._driver = driver
    placed, wanted = fabric._placed(3), fabric._wanted(4096, 2)
    assert (int(placed.location.id), int(placed.location.type), int(placed.type)) == (3, 1, 1)
    assert (int(wanted.numDevices), int(wanted.size)) == (2, 4096)
    calls = {name.removeprefix("do_") for name in dir(Driver) if name.startswith("do_cu")}
    undone = {
        "cuMulticastAddDevice",
        "cuMulticastUnbind",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemAddressFree",
        "cuMemRelease",
    }
    assert [name for name in calls | undone if not callable(getattr(driver, name, None))] == []
    for kind in ("CUmulticastGranularity_flags", "CUmemAllocationGranularity_flags", "CUmemAccess_flags"):
        (flag,) = vars(getattr(Driver(), kind))
        assert hasattr(getattr(driver, kind), flag)


@pytest.mark.parametrize(
    ("provider", "module"), [("nccl", "nccl"), ("nvshmem", "nvshmem"), ("driver", "cuda.bindings")]
)
def test_a_provider_whose_library_is_missing_is_unavailable_when_probed(machine, monkeypatch, provider, module):
    for name in [one for one in sys.modules if one == module or one.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unavailable, match=r"cannot be imported|does not load"):
        Multimem.probe({"provider": provider, "allow_multicast": True})


# ---- NVSHMEM --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def nvshmem(monkeypatch, machine):
    bindings = Nvshmem(machine)
    core = types.SimpleNamespace(get_version=lambda: types.SimpleNamespace(libnvshmem_version="3.8.0"))
    monkeypatch.setattr(multimem_nvshmem, "load_nvshmem", lambda: (core, bindings))
    monkeypatch.setattr(multimem_nvshmem, "start", lambda core, world, device: bindings.calls.append(("start", device)))
    return bindings


NVSHMEM = {"provider": "nvshmem", "allow_multicast": True}


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_a_pe_reduces_through_its_heaps_multicast_address(nvshmem, algorithm):
    """PE 0's part of a sum of two: all of it, or the first half, stored into both heaps."""
    world = World(rank_n=2, local_ranks=(0,), control=LocalControl())
    backend = MultimemOne(world, {**NVSHMEM, "algorithm": algorithm})
    fmt, one = FORMATS["bfloat16"], FORMATS["bfloat16"].power_of_two(0)
    send, recv = ({0: Window(backend.allocate(4096)[0], 514, 134)} for _ in range(2))
    for at in (send[0].address, send[0].address + nvshmem.other):
        memory_at(at, 134).view(np.uint16)[:] = one
    backend.run(SUM, send, recv)
    assert backend.describe()["nvshmem"] == "3.8.0"
    everywhere = [memory_at(recv[0].address + other, 134).view(np.uint16) for other in (0, nvshmem.other)]
    two = fmt.power_of_two(1)
    if algorithm == "one_shot":
        assert (everywhere[0] == two).all()
        assert not everywhere[1].any()
    else:
        assert np.array_equal(*everywhere)
        done = int((everywhere[0] == two).sum())
        assert 0 < done < 67
        assert not everywhere[0][done:].any()
    assert [call[0] for call in nvshmem.calls if call[0] != "ptr"] == ["start", "barrier", "barrier"]
    backend.close()
    assert [call[0] for call in nvshmem.calls].count("free") == 2


def memory_at(address, nbytes):
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def test_a_heap_that_is_full_or_has_no_multicast_is_told(nvshmem):
    backend = MultimemOne(World(rank_n=2, local_ranks=(0,), control=LocalControl()), NVSHMEM)
    with pytest.raises(BackendError, match="NVSHMEM_SYMMETRIC_SIZE"):
        backend.allocate(1 << 20)
    nvshmem.multicast = False
    with pytest.raises(Unavailable, match="no multicast address"):
        backend.allocate(512)


def test_a_pe_out_of_reach_is_told(nvshmem, monkeypatch):
    backend = MultimemOne(World(rank_n=2, local_ranks=(0,), control=LocalControl()), NVSHMEM)
    arenas = backend.allocate(4096)
    monkeypatch.setattr(nvshmem, "ptr", lambda address, pe: 0)
    with pytest.raises(BackendError, match="rank 1 cannot be reached"):
        backend.run(SUM, {0: Window(arenas[0], 512, 134)}, {0: Window(backend.allocate(4096)[0], 512, 134)})


def test_a_launcher_may_bring_more_ranks_than_this_node_has_gpus(nvshmem, monkeypatch):
    assert MultimemOne.probe(NVSHMEM).rank_n_max == 2
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "16")
    assert MultimemOne.probe(NVSHMEM).rank_n_max is None
