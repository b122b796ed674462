"""The NCCL backend on a fake CUDA (no GPU needed): the contract, what it refuses and in which words, what it says ran."""

from __future__ import annotations

import os
import sys
import threading
import types

import fake_cuda
import pytest

from auditor.backends import cuda_device, nccl_path
from auditor.backends.id_exchange import Exchange
from auditor.backends.nccl import Nccl, NcclOne
from auditor.backends.nccl_options import check_options, dotted
from auditor.backends.nccl_path import UNREPORTED, prepare, taken, warnings, why_silent
from auditor.backends.registry import choose
from auditor.errors import BackendError, ConfigError, Unavailable, Unsupported
from auditor.model import Call, Window, World
from auditor.testing import check_backend

VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_ID")
SUM = Call(collective="all_reduce", op="sum", format="bfloat16", count=5)


class Alone:
    def broadcast(self, data, root=0):
        return data

    def all_gather(self, data):
        return [data]

    def barrier(self):
        return None


class Gathered(Alone):
    """Control among threads: every verb is a meeting."""

    def __init__(self, n):
        self.n, self.meeting, self.rows, self.rank = n, threading.Barrier(n, timeout=20), {}, threading.local()

    def broadcast(self, data, root=0):
        return self.all_gather(data)[root]

    def all_gather(self, data):
        self.rows[self.rank.value] = data
        self.meeting.wait()
        seen = [self.rows[rank] for rank in range(self.n)]
        self.meeting.wait()
        return seen


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch):
    for name in (*VARIABLES, *LAUNCHERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(nccl_path, "_of_this_process", {})


@pytest.fixture
def machine(monkeypatch):
    return fake_cuda.install(monkeypatch)


def world(rank_n=2, ranks=None, **rest):
    return World(rank_n=rank_n, local_ranks=tuple(range(rank_n)) if ranks is None else ranks, control=Alone(), **rest)


def windows(backend, call, rank_n=2):
    """Send and receive windows of every local rank, over arenas of their own."""
    size = call.fmt.itemsize
    send, recv = backend.allocate(4096), backend.allocate(4096)
    nbytes = call.send_count(rank_n) * size
    return (
        {rank: Window(array, 512, nbytes) for rank, array in send.items()},
        {rank: Window(array, 512, call.count * size) for rank, array in recv.items()},
    )


def performed(backend, call=SUM):
    backend.run(call, *windows(backend, call))
    return backend.path()


# ---- the contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_keeps_the_contract(machine, ranks):
    machine.gpu_n = 4
    assert check_backend(Nccl, {}, ranks=ranks) == []


def test_one_process_a_gpu_keeps_the_contract_alone(machine):
    assert check_backend(NcclOne, {}, ranks=1) == []


def test_every_communicator_ends_with_the_backend(machine):
    backend = Nccl(world(), {})
    backend.perturb(3)
    performed(backend, Call(collective="all_reduce", op="sum", format="binary32", count=3, group=(1, 0)))
    assert machine.alive == 2 * (1 + 3 + 1)
    backend.recreate()
    assert machine.alive == 2 * (1 + 3)
    backend.close()
    backend.close()
    assert machine.alive == 0


def test_calls_in_flight_together_are_waited_for_once(machine):
    backend = Nccl(world(), {})
    placed = windows(backend, SUM)
    for _ in range(3):
        backend.enqueue(SUM, *placed)
    backend.wait()
    assert backend.path() == "RING/LL/2"
    backend.close()


def test_the_process_model_comes_from_options_or_launcher(monkeypatch, machine):
    assert choose("auditor.backends.nccl:Nccl", {}) is Nccl
    assert choose("auditor.backends.nccl:Nccl", {"process_model": "one"}) is NcclOne
    assert Nccl.probe({}).rank_n_max == NcclOne.probe({}).rank_n_max == 2
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert choose("auditor.backends.nccl:Nccl", {}) is NcclOne
    assert choose("auditor.backends.nccl:Nccl", {"process_model": "all"}) is Nccl
    assert NcclOne.probe({}).rank_n_max is None


# ---- what is offered, and what is not ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"gpu_n": 0}, "there is no GPU"), ({"gpu_n": -1}, "no driver")],
)
def test_no_gpu_is_unavailable(monkeypatch, settings, words):
    fake_cuda.install(monkeypatch, **settings)
    with pytest.raises(Unavailable, match=words):
        Nccl.probe({})


def test_an_arm_may_offer_fewer_collectives(machine):
    assert Nccl.probe({"collectives": ["all_reduce"]}).collectives == {"all_reduce"}
    assert len(Nccl.probe({}).collectives) == 3


def test_no_cupy_no_nccl_or_an_old_cupy_is_unavailable(monkeypatch, machine):
    sys.modules["cupy"].__version__ = "13.6.0"
    with pytest.raises(Unavailable, match="too old"):
        Nccl.probe({})
    sys.modules["cupy.cuda.nccl"].available = False
    with pytest.raises(Unavailable, match="no NCCL library"):
        Nccl.probe({})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unavailable, match="cupy cannot be imported") as caught:
        Nccl.probe({})
    assert "cuda13" in caught.value.remedy


@pytest.mark.parametrize(("version", "major", "offered"), [(22809, 9, True), (22304, 9, False), (22809, 8, False)])
def test_eight_bit_floats_need_a_new_library_and_a_new_gpu(machine, version, major, offered):
    machine.version, machine.major = version, major
    assert ("float8_e5m2" in Nccl.probe({}).formats) is offered


def test_what_needs_nccl4py_says_so(monkeypatch, machine):
    monkeypatch.setitem(sys.modules, "nccl", None)
    for options in ({"buffers": "window"}, {"algorithm": "ring"}):
        with pytest.raises(Unavailable, match="nccl4py") as caught:
            Nccl.probe(options)
        assert "pip install" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algo": "ring"}, "options.algo is not known"),
        ({"process_model": "both"}, "neither"),
        ({"buffers": "managed"}, "plain, registered, window"),
        ({"algorithm": ["ring"]}, "not a text"),
        *(({"collectives": asked}, "not a list of all_reduce") for asked in ([], "reduce", ["broadcast"])),
        *(({"devices": devices}, "GPU numbers") for devices in ([True], [-1], "01", [0.0], 3)),
    ],
)
def test_wrong_options_are_told(options, words):
    with pytest.raises(ConfigError, match=words):
        check_options(options)


def test_devices_are_taken_in_the_order_given(machine):
    machine.gpu_n = 4
    backend = Nccl(world(), {"devices": [3, 1]})
    assert [array.device.id for array in backend.allocate(512).values()] == [3, 1]
    assert backend.describe()["gpus"] == "1: Fake H200 (0000:01:00.0); 3: Fake H200 (0000:03:00.0)"
    with pytest.raises(ConfigError, match="GPU 9"):
        Nccl(world(), {"devices": [0, 9]})
    with pytest.raises(Unavailable, match="3 ranks"):
        Nccl(world(3), {"devices": [0, 1]})


def test_one_process_a_gpu_counts_devices_on_the_node():
    choose_devices = cuda_device.choose_devices
    assert choose_devices(world(8, (5,), node_rank=1), [], 4) == {5: 1}
    assert choose_devices(world(8, (5,), node_rank=1, device=3), [], 4) == {5: 3}
    assert choose_devices(world(8, (5,), node_rank=3), [], 1) == {5: 0}  # the launcher shows each process one GPU


# ---- refusals and faults -------------------------------------------------------------------------------------------------


def test_a_refused_eight_bit_call_is_unsupported_in_nccls_words(machine):
    backend = Nccl(world(), {})
    machine.refuse, machine.warning = 4, "FP8 reduction support begins with sm90 capable devices."
    call = Call(collective="all_reduce", op="sum", format="float8_e4m3fn", count=3)
    with pytest.raises(Unsupported, match=r"2\.28\.9.*FP8 reduction support begins with sm90"):
        performed(backend, call)
    assert performed(backend) == "RING/LL/2"  # the group was closed


def test_an_error_of_nccl_is_told_in_its_words(machine):
    backend = Nccl(world(), {})
    machine.refuse, machine.warning = 4, "AllReduce : invalid root 9"
    with pytest.raises(BackendError, match=r"invalid argument: AllReduce : invalid root 9$"):
        performed(backend)


def test_an_asynchronous_error_gives_up_the_communicators(machine):
    backend = Nccl(world(), {})
    machine.async_error = 6
    with pytest.raises(BackendError, match="NCCL_ERROR_6"):
        performed(backend)
    assert machine.events == ["abort", "abort"]
    machine.async_error = 0
    assert performed(backend) == "RING/LL/2"


def test_a_call_that_cuda_refuses_is_a_backend_error(machine):
    backend = Nccl(world(), {})
    machine.stream_code = 999
    with pytest.raises(BackendError, match="cudaError999"):
        performed(backend)


@pytest.mark.parametrize("by_nccl", [False, True])
def test_a_lost_context_ends_the_process(monkeypatch, machine, capfd, by_nccl):
    backend = Nccl(world(), {})
    machine.stream_code = 700
    machine.refuse = 1 if by_nccl else 0
    died = []

    def abort():
        died.append(True)
        raise SystemExit(134)

    monkeypatch.setattr(os, "abort", abort)
    with pytest.raises(SystemExit):
        performed(backend)
    assert died
    assert "cudaError700" in capfd.readouterr().err


def test_calls_that_nccl_has_no_number_for_are_unsupported(machine):
    backend = Nccl(world(), {})
    with pytest.raises(Unsupported, match="all_reduce product"):
        performed(backend, Call(collective="all_reduce", op="product", format="bfloat16", count=1))


def test_a_failed_capture_is_closed(machine):
    backend = Nccl(world(), {})
    machine.refuse, machine.warning = 5, "no"
    with pytest.raises(BackendError):
        backend.capture(SUM, *windows(backend, SUM))
    assert machine.events.count("begin_capture") == machine.events.count("end_capture") == 2


def test_one_process_a_gpu_joins_by_rank_0s_id(machine):
    class Second(Alone):
        def broadcast(self, data, root=0):
            return data or bytes(range(128))

    backend = NcclOne(World(rank_n=2, local_ranks=(1,), node_rank=1, control=Second()), {})
    (comm,) = backend._comms.get(None).of.values()
    assert (comm.size, comm.rank, comm.key, comm.device) == (2, 1, bytes(range(128)), 1)
    backend.close()


# ---- groups of one process a GPU -----------------------------------------------------------------------------------------


def test_a_groups_id_reaches_its_members_alone():
    """Ranks 2 and 0 agree on an id while rank 1 is elsewhere; then all three on another."""
    control, got = Gathered(3), {}

    def process(rank):
        control.rank.value = rank
        exchange = Exchange(control, rank, 3)
        first = exchange.share((2, 0), lambda: b"from 2") if rank != 1 else b""
        got[rank] = first, exchange.share((1, 0, 2), lambda: b"from 1")
        control.barrier()
        exchange.close()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == {0: (b"from 2", b"from 1"), 1: (b"", b"from 1"), 2: (b"from 2", b"from 1")}


# ---- nccl4py -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bindings(monkeypatch, machine):
    """nccl4py's bindings as far as they are used; ``calls`` keeps what was asked."""
    calls = []

    class NCCLError(Exception):
        status = 4

    class FunctionNotFoundError(RuntimeError):
        pass

    def refuse(*_):
        raise FunctionNotFoundError("function ncclAllReduceConfig is not found")

    module = types.ModuleType("nccl.bindings.nccl")
    memory = []

    def mem_alloc(nbytes):
        memory.append(fake_cuda.Memory(nbytes + 512))
        return memory[-1].ptr + -memory[-1].ptr % 512

    vars(module).update(
        NCCLError=NCCLError,
        Comm=lambda handle: handle,
        CollConfig=types.SimpleNamespace,
        get_version=lambda: machine.version,
        get_last_error=lambda comm: "",
        mem_alloc=mem_alloc,
        mem_free=lambda address: calls.append(("mem_free",)),
        comm_register=lambda comm, address, nbytes: calls.append(("register", nbytes)) or len(calls),
        comm_deregister=lambda comm, handle: calls.append(("deregister", handle)),
        comm_window_register=lambda comm, address, nbytes, flags: types.SimpleNamespace(handle=machine.window_handle),
        comm_window_deregister=lambda comm, window: calls.append(("close_window",)),
        all_reduce_config=refuse,
    )
    package, inner = types.ModuleType("nccl"), types.ModuleType("nccl.bindings")
    package.__path__, inner.__path__, inner.nccl = [], [], module
    package.__spec__ = inner.__spec__ = types.SimpleNamespace()
    names = (("nccl", package), ("nccl.bindings", inner), ("nccl.bindings.nccl", module))
    for name, one in names:
        monkeypatch.setitem(sys.modules, name, one)
    module.calls = calls
    return module


def test_registered_arenas_are_registered_with_every_communicator(machine, bindings):
    backend = Nccl(world(), {"buffers": "registered"})
    performed(backend)
    assert bindings.calls == [("register", 4096)] * 4
    backend.recreate()
    assert [call[0] for call in bindings.calls[4:]] == ["deregister"] * 4 + ["register"] * 4
    backend.close()
    assert [call[0] for call in bindings.calls[12:]] == ["deregister"] * 4


def test_a_registered_range_can_be_released(machine, bindings):
    backend = Nccl(world(), {})
    assert "registration" in Nccl.probe({}).features
    send, recv = windows(backend, SUM)
    for window in (*send.values(), *recv.values()):
        backend.register(window)
    backend.run(SUM, send, recv)
    assert bindings.calls == [("register", 10)] * 4
    backend.deregister()
    assert [call[0] for call in bindings.calls[4:]] == ["deregister"] * 4
    backend.run(SUM, send, recv)
    assert len(bindings.calls) == 8


def test_windows_are_of_nccls_memory_and_a_missing_window_is_unsupported(machine, bindings):
    backend = Nccl(world(), {"buffers": "window"})
    assert "registration" not in Nccl.probe({"buffers": "window"}).features
    assert performed(backend) == "RING/LL/2"
    backend.close()
    assert sorted(call[0] for call in bindings.calls) == ["close_window"] * 4 + ["mem_free"] * 4
    machine.window_handle = 0
    refused = Nccl(world(), {"buffers": "window"})
    for _ in range(2):  # no call may run as if it had its window
        with pytest.raises(Unsupported, match="no symmetric window"):
            performed(refused)
    refused.close()


def test_an_algorithm_that_the_library_cannot_take_is_unsupported(machine, bindings):
    backend = Nccl(world(), {"algorithm": "ring"})
    assert backend.describe()["algorithm"] == "ring"
    with pytest.raises(Unsupported, match="ncclAllReduceConfig is not found"):
        performed(backend)


# ---- the path ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("h:1:1 [0] NCCL INFO AllReduce: 2042 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}", "RING/LL/1"),
        (
            "x AllReduce: 4 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15} cgaClusterSize 4",
            "NVLS_TREE/SIMPLE/16",
        ),
        ("x ReduceScatter: 4 Bytes -> Algo 1 proto 2 time 12.5", "RING/SIMPLE"),
        ("x AllReduce: 4 Bytes -> Algo Tree proto LL128 channel{Lo..Hi}={2..3}", "TREE/LL128/2"),
        (
            "x AllReduce [Symmetric]: 2042 Bytes -> Kernel AllReduce_AGxLL_R nchannels 2 nthreads 512 nWorks 1",
            "SYMK/AllReduce_AGxLL_R/2",
        ),
        ("x AllGather [Copy Engine]: 4 Bytes -> cudaMemcpyBatch", "CE"),
        ("x AllReduce: opCount 3 sendbuff 0x7f count 1021 datatype 9 op 0", ""),
        ("NCCL INFO Bytes -> nothing", ""),
        ("", ""),
    ],
)
def test_nccls_lines_become_a_path(text, path):
    assert taken(text) == path


def test_several_paths_of_one_call_are_all_named_once():
    line = "AllReduce: 4 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..0}}"
    text = "\n".join(line.format(name) for name in ("RING", "TREE", "RING"))
    assert taken(text) == "RING/LL/1+TREE/LL/1"


def test_a_communicator_of_one_rank_reports_no_path(machine):
    backend = Nccl(world(1), {})
    backend.run(SUM, *windows(backend, SUM, 1))
    assert backend.path() == UNREPORTED
    backend.close()


def test_nothing_of_the_debug_output_is_left_behind(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(nccl_path.tempfile, "tempdir", str(tmp_path))
    backend = Nccl(world(), {})
    assert performed(backend) == "RING/LL/2"
    assert list(tmp_path.iterdir()) == []
    second = Nccl(world(), {})  # NCCL goes on writing where it began
    assert performed(second) == "RING/LL/2"


def test_a_users_own_debug_file_is_read_and_kept(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "ALL")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "mine.%p"))
    backend = Nccl(world(), {})
    assert performed(backend) == "RING/LL/2"
    mine = tmp_path / f"mine.{os.getpid()}"
    assert "Algo RING" in mine.read_text()
    assert backend.describe()["path_from"] == str(mine)


@pytest.mark.parametrize(
    ("variables", "silent"),
    [
        ({}, False),
        ({"NCCL_DEBUG": "info"}, False),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "INIT, TUNING"}, False),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, False),
        ({"NCCL_DEBUG_SUBSYS": "^NET,INIT"}, False),
        ({"NCCL_DEBUG": "WARN"}, True),
        ({"NCCL_DEBUG": "VERSION"}, True),
        ({"NCCL_DEBUG_SUBSYS": "INIT,ENV"}, True),
        ({"NCCL_DEBUG_SUBSYS": "^TUNING"}, True),
        ({"NCCL_DEBUG_SUBSYS": "^NET,TUNING"}, True),
    ],
)
def test_variables_that_keep_nccl_silent_take_the_feature_away(monkeypatch, machine, variables, silent):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(why_silent(os.environ)) is silent
    assert ("path" in Nccl.probe({}).features) is not silent
    before = dict(variables)
    after = dict(variables)
    prepare(after)
    assert {name: after[name] for name in before} == before  # what a user set stays


def test_a_silent_library_gives_no_path(monkeypatch, machine):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    machine.log = False
    backend = Nccl(world(), {})
    assert performed(backend) == UNREPORTED
    assert "NCCL_DEBUG=WARN" in backend.describe()["path_from"]


def test_a_debug_file_that_is_none_is_told(monkeypatch, machine):
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/dev/null")
    machine.log = False
    backend = Nccl(world(), {})
    assert performed(backend) == UNREPORTED
    assert "no regular file" in backend.describe()["path_from"]


def test_warnings_are_told_once():
    text = "h [0] NCCL WARN one\nh [1] NCCL WARN one\nh NCCL INFO x\nh [1] a.cc:3 NCCL WARN two"
    assert warnings(text) == "one; two"


@pytest.mark.parametrize(("number", "text"), [(22809, "2.28.9"), (23203, "2.32.3"), (2708, "2.7.8")])
def test_versions_are_read(number, text):
    assert dotted(number) == text
