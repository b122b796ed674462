"""2**31 + 1 elements: every offset, count and index on the way from the plan to the file has 64 bits. It needs no such memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import emulated_cuda
import fake_cuda
import numpy as np
import pytest
from fake_view import a_trial
from test_nvshmem_backend import bindings  # noqa: F401  a fixture
from test_second_reading import RANKS, Silent
from test_store import make_plan, make_shard

from auditor import analysis, inputs, layout, store
from auditor.backends.base import LocalControl
from auditor.backends.nccl import Nccl
from auditor.backends.nvshmem import Nvshmem
from auditor.cli import main
from auditor.config import load
from auditor.harness import Harness, Job, look
from auditor.inputs.programs import contributors, sender
from auditor.kernels.engine import CHUNK, LAUNCH, PAGE, Engine
from auditor.model import Call, Capabilities, Family, Planned, Trial, Window, World
from auditor.numerics.formats import FORMATS
from auditor.plan import build
from auditor.store import schema
from auditor.store.reader import RunReader

ROOT = Path(__file__).parents[1]
COUNT = (1 << 31) + 1
BIG = Call(collective="all_reduce", op="sum", format="bfloat16", count=COUNT)


# ----------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("name", FORMATS)
def test_ranges_and_arenas(name):
    trial = Trial(
        call=Call(collective="reduce_scatter", op="sum", format=name, count=COUNT),
        rank_n=4,
        family=Family("wide"),
        seed=0,
    )
    size = FORMATS[name].itemsize
    assert layout.send_range(trial).nbytes == 4 * COUNT * size
    inside = layout.recv_range(trial.with_(in_place=True), 3)
    assert inside.offset == layout.GUARD + 3 * COUNT * size
    assert inside.stop == layout.send_range(trial).stop
    assert layout.arena_bytes([trial]) >= layout.send_range(trial).fenced.stop
    assert inputs.receiver_range(trial, 3) == (3 * COUNT, 4 * COUNT)


@pytest.mark.parametrize("family", ["rank_coded", "position_coded", "wide", "order_exact"])
@pytest.mark.parametrize("wrap", [1 << 31, 1 << 32])
def test_data_do_not_repeat_themselves_where_a_narrow_index_would(family, wrap):
    trial = a_trial(family, count=(1 << 33))
    low, high = (inputs.send_codes(trial, 0, 0, start, start + 4096) for start in (0, wrap))
    assert (low != high).mean() > 0.2
    ends = inputs.send_codes(trial, 0, 1, wrap - 8, wrap + 8)
    apart = [inputs.send_codes(trial, 0, 1, start, start + 8) for start in (wrap - 8, wrap)]
    assert np.array_equal(ends, np.concatenate(apart))


def test_the_plan_takes_such_a_count(tmp_path):
    config = load(ROOT / "configs/large.toml")
    offer = Capabilities(
        collectives=frozenset({"all_reduce"}), ops=frozenset({"sum"}), formats=frozenset({"bfloat16"}), memory="cuda"
    )
    (arm,) = build(config, {arm.name: offer for arm in config.arms}, memory=128 << 30).arms
    assert {planned.trial.call.count for planned in arm.trials} == {COUNT}
    assert {planned.trial.send_shift for planned in arm.trials} == {1}
    small = build(config, {arm.name: offer for arm in config.arms}, memory=16 << 30).arms[0]
    assert small.status == "waived"
    assert "the arenas would take 8.0 GiB" in small.reason


# ---------------------------------------------------------------------------------------------------------------- kernels


class Recording(emulated_cuda.Emulated):
    """Notes launches instead of making them."""

    def __init__(self):
        super().__init__()
        self.made = []

    def launch(self, kernel, blocks, arguments):
        self.made.append((kernel, [int(argument) for argument in arguments]))

    def zeros(self, nbytes):
        self.room = nbytes
        return np.zeros(min(nbytes, 1 << 16), np.uint8)


@pytest.mark.parametrize("name", ["bfloat16", "binary64", "float8_e5m2"])
def test_fills_are_cut_into_launches_of_31_bits(name):
    trial = a_trial("wide", format=name, count=COUNT)
    runtime = Recording()
    address, size = 1 << 40, FORMATS[name].itemsize
    Engine(runtime).fill(sender(trial, 0, 0), 0, address, COUNT)
    spans = [tuple(arguments[-3:]) for kernel, arguments in runtime.made if kernel.startswith("fill_")]
    assert spans == [(0, address, LAUNCH), (LAUNCH, address + LAUNCH * size, 1)]


def test_bytes_are_compared_and_filled_with_64_bit_counts():
    runtime = Recording()
    engine, nbytes = Engine(runtime), 2 * COUNT
    assert engine.equal(1 << 40, 1 << 41, nbytes)
    assert engine.compare(1 << 40, 1 << 41, nbytes).count == 0
    engine.fill_code((1 << 40) + 2, nbytes, 0x7FA5, 2)
    engine.fill_pattern(1 << 40, nbytes, 1 << 42, (1 << 33) + 5, layout.PERIOD)
    by_kernel = {}
    for kernel, arguments in runtime.made:
        by_kernel.setdefault(kernel, []).append(arguments)
    assert [arguments[:3] for arguments in by_kernel["compare"]] == [[1 << 40, 1 << 41, nbytes]] * 2
    assert [arguments[:2] for arguments in by_kernel["fill_pattern"]] == [[(1 << 40) + 2, nbytes], [1 << 40, nbytes]]
    assert by_kernel["fill_pattern"][1][3] == 5  # the place within the period
    assert 4 * -(-nbytes // PAGE) < 1 << 23  # page counters stay small


def test_sums_are_checked_in_launches_of_31_bits():
    runtime = Recording()
    trial = a_trial("rank_coded", count=COUNT)
    total, numbers = Engine(runtime).expect(contributors(trial, 0), 0, 1 << 40, COUNT, limit=0)
    assert (total, len(numbers)) == (0, 0)
    spans = [
        arguments[3:7] for kernel, arguments in runtime.made if kernel.startswith("expect_") and kernel != "expect_rest"
    ]
    assert spans == [[0, 0, 1 << 40, LAUNCH], [LAUNCH, 0, (1 << 40) + 2 * LAUNCH, 1]]
    assert LAUNCH // CHUNK * 4 < 1 << 23


# --------------------------------------------------------------------------------------------------------------- backends


def windows(backend, rank_n):
    arrays = backend.allocate(4096)
    return {rank: Window(arrays[rank], 514, 2 * COUNT) for rank in range(rank_n)}


def test_nccl_is_told_the_whole_count(monkeypatch):
    fake_cuda.install(monkeypatch)
    told = []
    monkeypatch.setattr(
        fake_cuda.Communicator, "_post", lambda self, name, send, recv, count, *_: told.append((name, count))
    )
    backend = Nccl(World(rank_n=2, local_ranks=(0, 1), control=LocalControl()), {})
    here = windows(backend, 2)
    for collective in ("all_reduce", "reduce_scatter", "reduce"):
        call = Call(collective=collective, op="sum", format="bfloat16", count=COUNT)
        backend.run(call, here, here)
    assert told == [(name, COUNT) for name in ("AllReduce", "ReduceScatter", "Reduce") for _ in range(2)]


def test_nvshmem_is_told_the_whole_count(monkeypatch, bindings):  # noqa: F811
    told = []
    monkeypatch.setattr(
        bindings, "bfloat16_sum_reduce_on_stream", lambda team, target, source, count, stream: told.append(count)
    )
    backend = Nvshmem(World(rank_n=1, local_ranks=(0,), control=LocalControl()), {})
    here = windows(backend, 1)
    backend.run(BIG, here, here)
    assert told == [COUNT]
    backend.close()


# ------------------------------------------------------------------------------------------------------------------ store


def test_an_index_row_holds_such_places():
    row = schema.Row(
        arm=b"a", trial=b"t", repeat=0, rank=0, attempt=0, status=b"ok", format=b"bfloat16", digest=b"d", encoding=b"xor",
        offset=(1 << 40) + 1, nbytes=2 * COUNT, reference=(1 << 41) + 7, send_before=1, send_after=1, machinery=0,
        outside_total=(1 << 34), seconds=1.0, subject_seconds=1.0, trial_at=1 << 33, trial_n=3, text_at=(1 << 33) + 5,
        text_n=4, late_offset=(1 << 42), late_reference=(1 << 43), off_nearest=(1 << 33),
    )  # fmt: skip
    back = schema.Row._make(np.array([row], schema.index_dtype(1))[0].item())
    names = (
        "offset",
        "nbytes",
        "reference",
        "outside_total",
        "trial_at",
        "text_at",
        "late_offset",
        "late_reference",
        "off_nearest",
    )
    assert [getattr(back, name) for name in names] == [getattr(row, name) for name in names]
    pieces = list(schema.spans(2 * COUNT))
    assert pieces[0][0] == 0
    assert pieces[-1][1] == 2 * COUNT
    assert all(stop - start <= schema.BLOCK for start, stop in pieces)


# ------------------------------------------------------------------------------------- counted where the data lie, and again


def recorded(folder, counted):
    """A run of Clean whose rows say that ``counted`` outputs are off the nearest sum."""
    from outside_subjects import Clean

    trial = a_trial("wide", count=3000)
    make_plan(folder, {"ring": [trial]})
    world = World(rank_n=RANKS, local_ranks=(0, 1), control=LocalControl())
    with make_shard(folder, "ring", ranks=[0, 1]) as writer:
        Harness(
            Clean(world, {}),
            world,
            Clean.probe({}),
            Job([Planned(trial=trial, repeats=2, probes=("coverage",))]),
            writer,
            Silent(),
        ).run()
    store.join(folder)
    return trial


@pytest.mark.parametrize("counted", [0, 5])
def test_recompute_sets_the_counts_aside_and_they_must_agree(tmp_path, monkeypatch, counted, capsys):
    monkeypatch.setattr("auditor.harness.loop.off_nearest", lambda *_: counted)
    trial = recorded(tmp_path, counted)
    with RunReader(tmp_path) as reader:
        assert {seen.off_nearest for seen in reader.arm("ring").observations(trial.trial_id)} == {counted}
    with RunReader(tmp_path, recompute=True) as reader:
        assert {seen.off_nearest for seen in reader.arm("ring").observations(trial.trial_id)} == {None}
        lines = list(analysis.disagreements(reader))
    assert len(lines) == (0 if not counted else 4)
    assert all("the device counted 5 outputs off the nearest even sum, the bytes give 0" in line for line in lines)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(tmp_path), "--recompute"])
    assert ended.value.code == (3 if counted else 0)
    assert ("auditor verify" in capsys.readouterr().err) is False
    with RunReader(tmp_path) as reader:
        failed = [one for one in analysis.analyze(reader)["findings"] if one["verdict"] == "FAIL"]
    assert not failed  # a count that is not 0 only means that the bytes are looked at


def test_what_is_counted_and_what_is_not(monkeypatch):
    monkeypatch.setattr(look.memory, "STAGING", 100)
    asked = []
    arena = SimpleNamespace(
        off_nearest=lambda at, count, programs, start, period: (
            asked.append((at, count, len(programs), start, period)) or 0
        )
    )
    state = look.Rank(1, arena, arena)
    base = a_trial("rank_coded", rank_n=4, count=64)
    assert look.off_nearest(state, base, 0) == 0
    assert look.off_nearest(state, base.with_(collective="reduce_scatter", tiled=8), 0) == 0
    assert look.off_nearest(state, base.with_(active="pairs", family=Family("report132")), 0) == 0
    assert asked == [(4096, 64, 4, 0, 0), (4096, 64, 4, 64, 32), (4096, 64, 2, 0, 0)]
    assert look.off_nearest(state, base.with_(op="max"), 0) is None
    assert look.off_nearest(state, base.with_(collective="reduce"), 0) is None  # rank 1 is not the root
    assert look.off_nearest(state, base.with_(count=50), 0) is None  # no more than the staging buffer holds
