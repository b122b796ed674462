"""The record: what goes in comes out, whatever happens to the process or the file in between."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from auditor import store
from auditor.errors import EvidenceError
from auditor.model import Call, Codes, Family, Observation, OutsideByte, Trial
from auditor.numerics.formats import FORMATS
from auditor.store import RunReader, ShardWriter, append_event, digest, events_path, shard_path, verify
from auditor.store.writer import XOR_LEAST

ROOT = Path(__file__).resolve().parent.parent
RANK_N = 4


def make_trial(count: int = 5, fmt: str = "bfloat16", seed: int = 1, **changes: Any) -> Trial:
    call = Call(collective="all_reduce", op="sum", format=fmt, count=count)
    return Trial(call=call, rank_n=RANK_N, family=Family("wide"), seed=seed).with_(**changes)


def codes_of(trial: Trial, salt: int = 0) -> Codes:
    fmt = trial.call.fmt
    values = np.random.default_rng(salt).integers(0, 1 << 63, trial.call.count, dtype=np.uint64)
    return values.astype(fmt.dtype)


def seen(trial: Trial, repeat: int, rank: int, output: Codes | None, **changes: Any) -> Observation:
    known = "" if output is None else digest(output)
    row = {"trial_id": trial.trial_id, "repeat": repeat, "rank": rank, "status": "ok", "digest": known}
    return Observation(**{**row, **changes})


def make_plan(run_dir: Path, arms: dict[str, list[Trial]], **changes: Any) -> dict[str, Any]:
    def entry(name: str, trials: list[Trial]) -> dict[str, Any]:
        planned = [{**t.to_json(), "trial_id": t.trial_id, "repeats": 5, "probes": ["coverage"]} for t in trials]
        fixed = {"backend": "simulator", "rank_n": RANK_N, "status": "ok", "reason": "", "describe": {}, "options": {}}
        return {"name": name, **fixed, "env": {}, "path": None, "capabilities": {}, "trials": planned, "waivers": []}

    head = {"schema": "auditor-plan/1", "run_id": "run1", "plan_id": "plan1", "title": "t", "expect": {"nan": True}}
    plan = {**head, "arms": [entry(name, trials) for name, trials in arms.items()]} | changes
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "plan.json").write_text(json.dumps(plan))
    return plan


def make_shard(run_dir: Path, arm: str, rank: int = 0, attempt: int = 0, **changes: Any) -> ShardWriter:
    meta = {"run_id": "run1", "plan_id": "plan1", "arm": arm, "ranks": [rank], "attempt": attempt}
    return ShardWriter(
        shard_path(run_dir, arm, rank, attempt), {**meta, "environment": {"host": f"n{rank}"}, **changes}
    )


def record(
    run_dir: Path, arm: str, trial: Trial, *, ranks: range = range(RANK_N), salt: Callable[[int, int], int]
) -> None:
    """Five repeats on every rank, each rank in a shard of its own."""
    for rank in ranks:
        with make_shard(run_dir, arm, rank) as writer:
            for repeat in range(5):
                output = codes_of(trial, salt(repeat, rank))
                writer.append(trial, seen(trial, repeat, rank, output), output)
                writer.flush()


def small_run(run_dir: Path, arm: str = "ring") -> Trial:
    trial = make_trial(1000)
    make_plan(run_dir, {arm: [trial]})
    record(run_dir, arm, trial, salt=lambda repeat, rank: 100 * rank + repeat)
    return trial


@pytest.fixture(params=["shards", "joined"])
def joined(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Leaves a run as its shards, or joins it and reads run.h5 alone: both must say the same."""
    return (lambda run_dir: run_dir) if request.param == "shards" else store.join


@pytest.mark.parametrize("count", [0, 1, 3, 1021, 40_000])
@pytest.mark.parametrize("fmt", list(FORMATS))
def test_outputs_come_back_bit_for_bit(tmp_path: Path, joined: Callable[[Path], Path], fmt: str, count: int) -> None:
    trial = make_trial(count, fmt)
    make_plan(tmp_path, {"a": [trial]})
    with make_shard(tmp_path, "a") as writer:
        for repeat in range(2):
            writer.append(trial, seen(trial, repeat, 0, codes_of(trial, repeat)), codes_of(trial, repeat))
    with RunReader(joined(tmp_path)) as reader:
        for repeat in range(2):
            output = reader.arm("a").output(trial.trial_id, repeat, 0)
            assert output.dtype == FORMATS[fmt].dtype
            assert not output.flags.writeable
            np.testing.assert_array_equal(output, codes_of(trial, repeat))
            pieces = list(reader.arm("a").pieces(trial.trial_id, repeat, 0))
            np.testing.assert_array_equal(np.concatenate([output[:0], *pieces]), output)
        assert verify(reader.path) == reader.problems == []


def test_observations_come_back_field_for_field(tmp_path: Path, joined: Callable[[Path], Path]) -> None:
    trial = make_trial(3)
    output = codes_of(trial)
    outside = (
        OutsideByte(buffer="recv", offset=-2, expected=171, found=0),
        OutsideByte(buffer="send", offset=9, expected=1, found=2),
    )
    rows = [
        seen(trial, 0, 0, output, path="RING/LL", seconds=0.25, subject_seconds=0.125),
        seen(trial, 0, 1, output, send_before=False, send_after=False, outside=outside, outside_total=1234),
        seen(trial, 1, 0, None, status="error", message="ncclInternalError: 3 \N{GREEK SMALL LETTER ALPHA}"),
        seen(trial, 1, 1, None, status="unsupported", message="no"),
    ]
    make_plan(tmp_path, {"a": [trial]})
    with make_shard(tmp_path, "a") as writer:
        for row in reversed(rows):
            writer.append(trial, row, output if row.status == "ok" else None)
    with RunReader(joined(tmp_path)) as reader:
        view = reader.arm("a")
        assert list(view.observations(trial.trial_id)) == rows
        assert view.observations("000000000000") == ()
        assert (view.arm, view.backend, view.rank_n, view.expect) == ("a", "simulator", RANK_N, {"nan": True})
        assert [p.trial for p in view.planned] == [trial]
        assert view.planned[0].repeats == 5
        assert reader.environment["host"] == "n0"
        assert reader.environment["hdf5"] == h5py.version.hdf5_version
        with pytest.raises(EvidenceError, match=r"no output was recorded for arm a, trial .*, repeat 1, rank 0"):
            view.output(trial.trial_id, 1, 0)
        with pytest.raises(EvidenceError, match="no arm 'b'; it has a"):
            reader.arm("b")


def test_equal_outputs_are_stored_once(tmp_path: Path) -> None:
    trial = make_trial(1000)
    make_plan(tmp_path, {"a": [trial], "b": [trial]})
    for arm in ("a", "b"):
        record(tmp_path, arm, trial, salt=lambda repeat, rank: 7)
    with h5py.File(shard_path(tmp_path, "a", 0, 0)) as shard:
        assert shard["bytes"].shape == (2000,)
        assert shard["index"].shape == (5,)
    with h5py.File(store.join(tmp_path)) as run:
        assert run["bytes"].shape == (2000,)
        assert run["index"].shape == (2 * RANK_N * 5,)
    assert verify(tmp_path) == []


def near_outputs(trial: Trial) -> list[Codes]:
    """One output, two that differ from it in a few bits, and one that has nothing to do with it."""
    outputs = [codes_of(trial, salt) for salt in (0, 0, 0, 1)]
    outputs[1][::997] ^= 1
    outputs[2][-1] ^= 0x8000
    return outputs


def test_an_output_that_differs_little_is_stored_as_the_difference(
    tmp_path: Path, joined: Callable[[Path], Path]
) -> None:
    trial = make_trial(XOR_LEAST // 2 + 1)
    outputs = near_outputs(trial)
    make_plan(tmp_path, {"a": [trial]})
    with make_shard(tmp_path, "a") as writer:
        for repeat, output in enumerate(outputs):
            writer.append(trial, seen(trial, repeat, 0, output), output)
            writer.flush()
    path = joined(tmp_path)
    with h5py.File(path if path.is_file() else shard_path(path, "a", 0, 0)) as file:
        assert file["index"]["encoding"].tolist() == [b"raw", b"xor", b"xor", b"raw"]
        assert file["bytes"].shape == (2 * outputs[0].nbytes,)
        assert file["xor"].id.get_storage_size() < outputs[0].nbytes / 20
    with RunReader(path) as reader:
        for repeat, output in enumerate(outputs):
            np.testing.assert_array_equal(reader.arm("a").output(trial.trial_id, repeat, 0), output)
    assert verify(path) == []


def test_joining_keeps_a_difference_whose_base_another_shard_stored(tmp_path: Path) -> None:
    trial = make_trial(XOR_LEAST // 2)
    base, changed, *_ = near_outputs(trial)
    make_plan(tmp_path, {"a": [trial]})
    for rank, pair in enumerate([(base, changed), (changed, base), (base, changed)]):
        with make_shard(tmp_path, "a", rank) as writer:
            for repeat, output in enumerate(pair):
                writer.append(trial, seen(trial, repeat, rank, output), output)
    store.join(tmp_path)
    assert verify(tmp_path) == []
    with RunReader(tmp_path) as reader:
        np.testing.assert_array_equal(reader.arm("a").output(trial.trial_id, 0, 1), changed)
        np.testing.assert_array_equal(reader.arm("a").output(trial.trial_id, 1, 2), changed)


def test_of_two_attempts_the_later_one_counts_and_a_crash_stays(tmp_path: Path, joined: Callable[[Path], Path]) -> None:
    trial = make_trial(4)
    make_plan(tmp_path, {"a": [trial]})
    for attempt in (0, 1):
        with make_shard(tmp_path, "a", 0, attempt) as writer:
            for repeat in range(2):
                output = codes_of(trial, 10 * attempt + repeat)
                writer.append(trial, seen(trial, repeat, 0, output), output)
    crash = seen(trial, 1, 0, None, status="crash", message="SIGSEGV")
    killed = seen(trial, 0, 0, None, status="crash", message="SIGKILL")
    append_event(events_path(tmp_path, "a"), store.observation_to_json(crash) | {"attempt": 0})
    append_event(events_path(tmp_path, "a"), store.observation_to_json(killed) | {"attempt": 0, "machinery": True})
    with RunReader(joined(tmp_path)) as reader:
        view = reader.arm("a")
        rows = view.observations(trial.trial_id)
        assert [(row.repeat, row.status) for row in rows] == [(0, "ok"), (1, "ok"), (1, "crash")]
        assert rows[2].message == "SIGSEGV"
        np.testing.assert_array_equal(view.output(trial.trial_id, 1, 0), codes_of(trial, 11))
        assert [event["machinery"] for event in view.events].count(True) == 1
        assert reader.problems == []


def test_a_trial_cut_short_from_outside_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    trial = make_trial(4)
    make_plan(tmp_path, {"a": [trial]})
    killed = seen(trial, 0, 2, None, status="crash", message="SIGTERM")
    append_event(events_path(tmp_path, "a"), store.observation_to_json(killed) | {"machinery": True})
    with RunReader(tmp_path) as reader:
        assert reader.arm("a").observations(trial.trial_id) == ()
        assert re.search(r"repeat 0, rank 2 was cut short \(SIGTERM\); run it again with --resume", reader.problems[0])


def test_a_torn_last_event_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = events_path(tmp_path, "a")
    rows = [store.observation_to_json(seen(make_trial(), repeat, 0, None, status="hang")) for repeat in range(3)]
    append_event(path, rows[0])
    path.write_bytes(path.read_bytes() + json.dumps(rows[1]).encode()[:40])
    assert store.read_events(path) == rows[:1]
    append_event(path, rows[2])
    assert store.read_events(path) == [rows[0], rows[2]]
    assert store.read_events(tmp_path / "none") == []
    assert store.observation_from_json(rows[2]) == seen(make_trial(), 2, 0, None, status="hang")


WRITER = """
import sys, itertools
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_store import make_shard, make_trial, codes_of, seen
from pathlib import Path
with make_shard(Path(sys.argv[1]), "a", 0, int(sys.argv[3])) as writer:
    for number in itertools.count():
        trial = make_trial(int(sys.argv[4]), seed=number)
        for rank in range(2):
            output = codes_of(trial, number + rank)
            writer.append(trial, seen(trial, 0, rank, output), output)
        writer.flush()
        print(number, flush=True)
"""


@pytest.mark.parametrize(("attempt", "count"), [(0, 7), (1, 7), (2, 5000), (3, 60_000)])
def test_kill_9_loses_at_most_the_trial_in_flight(tmp_path: Path, attempt: int, count: int) -> None:
    make_plan(tmp_path, {"a": []})
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(ROOT / "tests"), str(attempt), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            time.sleep(0.15 + 0.03 * attempt)
            with RunReader(tmp_path) as reader:  # readable while it is being written
                assert reader.arm("a").observations(make_trial(count, seed=0).trial_id)
        finally:
            process.kill()
        finished = int((b"0 " + process.stdout.read()).split()[-1])
    with RunReader(tmp_path) as reader:
        assert reader.problems == []
        for number in range(finished + 1):
            trial = make_trial(count, seed=number)
            assert [row.rank for row in reader.arm("a").observations(trial.trial_id)] == [0, 1]
            np.testing.assert_array_equal(reader.arm("a").output(trial.trial_id, 0, 1), codes_of(trial, number + 1))
        assert len(reader.files[0].rows) - 2 * (finished + 1) in (0, 2)
    shard = shard_path(tmp_path, "a", 0, attempt)
    store.join(tmp_path)
    assert shard.exists(), "nobody can tell a killed writer from one that still writes"
    with RunReader(tmp_path / "run.h5") as reader:
        assert len(reader.files[0].rows) >= 2 * (finished + 1)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.99])
def test_a_truncated_shard_is_named_and_the_rest_is_read(tmp_path: Path, kept: float) -> None:
    trial = make_trial(1000)
    make_plan(tmp_path, {"a": [trial]})
    record(tmp_path, "a", trial, salt=lambda repeat, rank: 100 * rank + repeat)
    torn = shard_path(tmp_path, "a", 2, 0)
    with torn.open("r+b") as stream:
        stream.truncate(int(torn.stat().st_size * kept))
    with RunReader(tmp_path) as reader:
        lines = [line for line in reader.problems if "rank0002.0.h5" in line]
        assert len(lines) == 1
        assert "torn" in lines[0]
        assert "\n" not in lines[0]
        for row in reader.arm("a").observations(trial.trial_id):
            np.testing.assert_array_equal(
                reader.arm("a").output(trial.trial_id, row.repeat, row.rank),
                codes_of(trial, 100 * row.rank + row.repeat),
            )
        assert {row.rank for row in reader.arm("a").observations(trial.trial_id)} >= {0, 1, 3}
    assert verify(tmp_path)
    store.join(tmp_path)
    assert torn.exists()
    assert not shard_path(tmp_path, "a", 1, 0).exists()
    assert verify(tmp_path / "run.h5") == []


def test_a_shard_truncated_after_a_kill_keeps_what_is_whole(tmp_path: Path) -> None:
    """A copy cut off while SWMR's mark was still set: HDF5 opens it, and the tail of the outputs is not there."""
    trial = make_trial(1 << 19)
    make_plan(tmp_path, {"a": [trial]})
    writer = make_shard(tmp_path, "a")
    for repeat in range(4):
        output = codes_of(trial, repeat)
        writer.append(trial, seen(trial, repeat, 0, output), output)
        writer.flush()
    source = shard_path(tmp_path, "a", 0, 0)
    copy = tmp_path / "copy"
    make_plan(copy, {"a": [trial]})
    target = shard_path(copy, "a", 0, 0)
    target.parent.mkdir(parents=True)
    shutil.copyfile(source, target)
    writer.close()
    with target.open("r+b") as stream:
        stream.truncate(target.stat().st_size - (3 << 19))
    with RunReader(copy) as reader:
        assert re.search("torn, its end is missing; . complete observations are read", reader.problems[0])
        rows = reader.arm("a").observations(trial.trial_id)
        assert 1 <= len(rows) < 4
        for row in rows:
            np.testing.assert_array_equal(
                reader.arm("a").output(trial.trial_id, row.repeat, 0), codes_of(trial, row.repeat)
            )


def test_a_torn_run_h5_falls_back_on_the_shards_and_is_an_error_without(tmp_path: Path) -> None:
    trial = small_run(tmp_path)
    run = store.join(tmp_path, keep_shards=True)
    with run.open("r+b") as stream:
        stream.truncate(run.stat().st_size // 2)
    with RunReader(tmp_path) as reader:
        assert "torn beyond reading" in reader.problems[0]
        assert len(reader.arm("ring").observations(trial.trial_id)) == 20
    shutil.rmtree(tmp_path / "shards")
    with pytest.raises(EvidenceError, match=r"run\.h5: torn beyond reading .*restore it from a copy"):
        RunReader(tmp_path)


def no_run(path: Path) -> None:
    path.mkdir()


def text_file(path: Path) -> None:
    path.write_text("hello\n")


def foreign_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = [1]


def newer_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "auditor-run", "encoding-version": "2"})


def without_plan(path: Path) -> None:
    small_run(path)
    (path / "plan.json").unlink()


def torn_plan(path: Path) -> None:
    small_run(path)
    (path / "plan.json").write_text('{"schema": "audi')


def other_plan(path: Path) -> None:
    small_run(path)
    make_plan(path, {"ring": []}, plan_id="plan2")


def foreign_json(path: Path) -> None:
    small_run(path)
    (path / "plan.json").write_text("[]")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (None, "no such run"),
        (no_run, "neither plan.json nor run.h5"),
        (text_file, "not an HDF5 file"),
        (foreign_file, "no auditor run"),
        (newer_file, "encoding-version '2' is newer"),
        (without_plan, "plan.json: missing"),
        (torn_plan, "plan.json: not JSON"),
        (foreign_json, "is not 'auditor-plan/1'"),
        (other_plan, "recorded under plan plan1, but plan.json is plan2"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, make: Callable[[Path], None] | None, words: str) -> None:
    path = tmp_path / "thing"
    if make is not None:
        make(path)
    with pytest.raises(EvidenceError, match=re.escape(words)) as caught:
        RunReader(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert verify(path) == [str(caught.value)]


def test_a_locked_file_says_what_to_set(tmp_path: Path) -> None:
    import fcntl

    small_run(tmp_path)
    run = store.join(tmp_path)
    with run.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(EvidenceError, match=r"run\.h5: cannot be opened .*set HDF5_USE_FILE_LOCKING=FALSE"):
            RunReader(tmp_path)
    RunReader(tmp_path).close()


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run(tmp_path)
    run = store.join(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(EvidenceError, match=r"run\.h5: may not be read"):
        RunReader(run)


def test_a_shard_is_never_opened_again(tmp_path: Path) -> None:
    make_shard(tmp_path, "a").close()
    with pytest.raises(EvidenceError, match="never reopened; use the next attempt number"):
        make_shard(tmp_path, "a")
    with pytest.raises(EvidenceError, match="cannot be created"):
        ShardWriter(tmp_path / "shards/a/rank0000.0.h5/x.h5", {**META, "environment": {}})


META = {"run_id": "run1", "plan_id": "plan1", "arm": "a", "ranks": [0], "attempt": 0}


def test_codes_of_another_width_are_refused(tmp_path: Path) -> None:
    trial = make_trial(3, "binary32")
    with (
        make_shard(tmp_path, "a") as writer,
        pytest.raises(ValueError, match="binary32 codes have dtype uint32, not uint16"),
    ):
        writer.append(trial, seen(trial, 0, 0, None), np.zeros(3, np.uint16))


def test_the_lines_in_the_format_description_work(tmp_path: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "results/README.md").read_text(), re.DOTALL)
    assert snippet is not None
    near = make_trial(XOR_LEAST // 2)
    trials = [make_trial(33), make_trial(33, "binary64"), make_trial(33, "float8_e5m2"), near]
    make_plan(tmp_path, {"ring": trials, "tree": trials})
    outputs = {trial.trial_id: codes_of(trial, number) for number, trial in enumerate(trials)}
    changed = outputs[near.trial_id].copy()
    changed[5] ^= 3
    for arm in ("ring", "tree"):
        with make_shard(tmp_path, arm, 0) as writer:
            for trial in trials:
                writer.append(trial, seen(trial, 0, 0, outputs[trial.trial_id]), outputs[trial.trial_id])
                last = changed if trial is near else outputs[trial.trial_id]
                writer.append(trial, seen(trial, 4, 3, last), last)
    run = store.join(tmp_path)
    for trial in trials:
        names: dict[str, Any] = {"TRIAL": trial.trial_id.encode(), "ARM": b"tree"}
        exec(snippet.group(1).replace("run.h5", str(run)), names)
        np.testing.assert_array_equal(names["codes"], changed if trial is near else outputs[trial.trial_id])
        text = names["row"]
        with h5py.File(run) as file:
            raw = file["text"][text["trial_at"] : text["trial_at"] + text["trial_n"]].tobytes()
        assert Trial.from_json(json.loads(raw)) == trial


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        value = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([value ^ 0x10]))


def test_a_flipped_byte_of_an_output_is_named(tmp_path: Path, joined: Callable[[Path], Path]) -> None:
    trial = small_run(tmp_path)
    path = joined(tmp_path)
    file = path if path.is_file() else shard_path(path, "ring", 2, 0)
    wanted = codes_of(trial, 203).tobytes()
    flip(file, file.read_bytes().index(wanted) + 700)
    problems = verify(path)
    assert len(problems) == 1
    assert f"arm ring, trial {trial.trial_id}, repeat 3, rank 2: the bytes give SHA-256" in problems[0]


def test_a_flipped_byte_of_a_difference_is_named(tmp_path: Path) -> None:
    trial = make_trial(XOR_LEAST // 2)
    make_plan(tmp_path, {"a": [trial]})
    with make_shard(tmp_path, "a") as writer:
        for repeat, output in enumerate(near_outputs(trial)[:2]):
            writer.append(trial, seen(trial, repeat, 0, output), output)
    file = shard_path(tmp_path, "a", 0, 0)
    with h5py.File(file) as opened:
        chunk = opened["xor"].id.get_chunk_info(0)
    flip(file, chunk.byte_offset + chunk.size - 1)
    problems = verify(tmp_path)
    assert len(problems) == 1
    assert f"trial {trial.trial_id}, repeat 1, rank 0" in problems[0]


def test_a_flipped_byte_of_a_row_or_its_text_is_named(tmp_path: Path) -> None:
    trial = make_trial(50)
    make_plan(tmp_path, {"a": [trial]})
    with make_shard(tmp_path, "a") as writer:
        for repeat in range(2):
            output = codes_of(trial, repeat)
            writer.append(trial, seen(trial, repeat, 0, output, path=f"PATH{repeat}", seconds=3.0 + repeat), output)
    clean = shard_path(tmp_path, "a", 0, 0).read_bytes()
    for needle in (np.float64(4.0).tobytes(), b"PATH1"):
        shard_path(tmp_path, "a", 0, 0).write_bytes(clean)
        flip(shard_path(tmp_path, "a", 0, 0), clean.index(needle))
        problems = verify(tmp_path)
        assert "1 complete observations are read, 1 are lost" in problems[0]
        assert (
            f"arm a, trial {trial.trial_id}, repeat 1, rank 0: this index row, or its text, is damaged" in problems[1]
        )
        with RunReader(tmp_path) as reader:
            assert [row.repeat for row in reader.arm("a").observations(trial.trial_id)] == [0]


def test_joining_what_contradicts_its_digests_keeps_the_shards(tmp_path: Path) -> None:
    trial = small_run(tmp_path)
    file = shard_path(tmp_path, "ring", 1, 0)
    flip(file, file.read_bytes().index(codes_of(trial, 100).tobytes()))
    with pytest.raises(
        EvidenceError, match=r"repeat 0, rank 1: the bytes give .*; run\.h5 was not written, the shards are kept"
    ):
        store.join(tmp_path)
    assert file.exists()
    assert [path.name for path in tmp_path.iterdir() if "run.h5" in path.name] == []


def test_rows_of_an_arm_that_the_plan_has_not_are_not_dropped_in_silence(tmp_path: Path) -> None:
    small_run(tmp_path)
    make_shard(tmp_path, "tree").close()
    rewrite(shard_path(tmp_path, "ring", 3, 0), lambda rows: rows["arm"].__setitem__(0, b"x"))
    with pytest.raises(EvidenceError, match="holds arm x, which the plan has not"):
        store.join(tmp_path)
    assert shard_path(tmp_path, "ring", 3, 0).exists()


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Change rows of a closed file and give them a right checksum again."""
    from auditor.store import schema

    with h5py.File(path, "r+") as file:
        rows, text = file["index"][:], file["text"][:]
        change(rows)
        texts = [text[int(r["text_at"]) : int(r["text_at"]) + int(r["text_n"])].tobytes() for r in rows]
        file["index"][:] = schema.seal(rows, texts)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("arm", b"tree", "the plan has no such arm"),
        ("status", b"fine", "status 'fine' is none of"),
        ("trial", b"0" * 12, "the trial's text has the id"),
        ("format", b"binary16", "format 'binary16' is not the trial's 'bfloat16'"),
        ("encoding", b"zip", "encoding b'zip' is none of"),
        ("encoding", b"none", "status is ok, but no output is stored"),
        ("encoding", b"xor", "difference from an output that is not in the file"),
        ("nbytes", 1998, "1998 bytes are stored, 1000 elements of bfloat16 take 2000"),
        ("offset", 1 << 40, "bytes lie past the end"),
        ("digest", b"", "its bytes have no digest"),
        ("repeat", 3, "recorded twice"),
        ("trial_n", 0, "the trial's own text cannot be read"),
    ],
)
def test_verify_names_rows_that_contradict_the_plan_or_each_other(
    tmp_path: Path, column: str, value: Any, words: str
) -> None:
    small_run(tmp_path)

    def change(rows: Any) -> None:
        rows[column][4] = value
        if words.startswith("difference"):
            rows["reference"][4] = 1

    rewrite(shard_path(tmp_path, "ring", 3, 0), change)
    assert any(words in line and "rank 3" in line for line in verify(tmp_path)), verify(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.attrs.__setitem__("run_id", "x"), "run_id is x, the plan's is run1"),
        (lambda file: file.attrs.__setitem__("kind", "x"), "kind 'x' is none of"),
        (lambda file: file.attrs.__setitem__("environment", "{"), "environment is missing or not JSON"),
        (lambda file: file.attrs.__setitem__("observations", 19), "observations is 19, the index has 20 rows"),
        (lambda file: file.__delitem__("sources"), "dataset 'sources' is missing"),
    ],
)
def test_verify_names_attributes_that_are_wrong(
    tmp_path: Path, change: Callable[[h5py.File], None], words: str
) -> None:
    small_run(tmp_path)
    run = store.join(tmp_path)
    with h5py.File(run, "r+") as file:
        change(file)
    assert any(words in line for line in verify(run)), verify(run)


def test_run_h5_stands_alone(tmp_path: Path) -> None:
    trial = small_run(tmp_path / "run")
    elsewhere = tmp_path / "elsewhere.h5"
    shutil.move(store.join(tmp_path / "run"), elsewhere)
    assert not (tmp_path / "run/shards").exists()
    with RunReader(elsewhere) as reader:
        assert reader.run_id == "run1"
        assert [source["environment"]["host"] for source in reader.sources()] == ["n0", "n1", "n2", "n3"]
        np.testing.assert_array_equal(reader.arm("ring").output(trial.trial_id, 4, 3), codes_of(trial, 304))
    assert verify(elsewhere) == []


def test_joining_again_changes_nothing_and_a_later_attempt_is_added(tmp_path: Path) -> None:
    trial = small_run(tmp_path)
    run = store.join(tmp_path)
    before = run.read_bytes()
    assert store.join(tmp_path).read_bytes() == before
    assert store.next_attempt(tmp_path, "ring") == 1
    with make_shard(tmp_path, "ring", 0, 1) as writer:
        output = codes_of(trial, 999)
        writer.append(trial, seen(trial, 2, 0, output), output)
    crash = seen(trial, 4, 1, None, status="crash", message="SIGABRT")
    append_event(events_path(tmp_path, "ring"), store.observation_to_json(crash) | {"attempt": 1})
    assert store.next_attempt(tmp_path, "ring") == 2
    for _ in range(2):
        with RunReader(tmp_path) as reader:
            rows = reader.arm("ring").observations(trial.trial_id)
            assert len(rows) == 21
            assert [row.status for row in rows].count("crash") == 1
            np.testing.assert_array_equal(reader.arm("ring").output(trial.trial_id, 2, 0), codes_of(trial, 999))
        store.join(tmp_path)
    assert verify(tmp_path) == []


def test_a_run_without_rows_joins_to_a_file_that_says_so(tmp_path: Path) -> None:
    make_plan(tmp_path, {"a": [make_trial()]})
    with RunReader(store.join(tmp_path)) as reader:
        assert reader.arm("a").observations(make_trial().trial_id) == ()
        assert reader.environment == {}
    assert verify(tmp_path) == []


def test_a_run_too_large_to_join_lists_its_shards(tmp_path: Path) -> None:
    trial = small_run(tmp_path)
    run = store.join(tmp_path, size_limit=10_000)
    with h5py.File(run) as file:
        assert file.attrs["kind"] == "listing"
    with RunReader(tmp_path) as reader:
        np.testing.assert_array_equal(reader.arm("ring").output(trial.trial_id, 4, 3), codes_of(trial, 304))
    assert verify(tmp_path) == []
    shard = shard_path(tmp_path, "ring", 2, 0)
    flip(shard, shard.read_bytes().index(codes_of(trial, 200).tobytes()))
    assert any("rank0002.0.h5: its SHA-256 is not the one" in line for line in verify(tmp_path))
    shard.unlink()
    assert any("lists shards/ring/rank0002.0.h5, which is missing" in line for line in verify(tmp_path))


def apart(tmp_path: Path) -> tuple[Path, Path, Trial]:
    """Two runs of one plan, each with one arm recorded."""
    trial = make_trial(100)
    paths = (tmp_path / "one", tmp_path / "two")
    for path, arm in zip(paths, ("ring", "tree"), strict=True):
        plan = make_plan(path, {"ring": [trial], "tree": [trial]}, run_id=f"of_{arm}")
        for entry in plan["arms"]:
            entry["status"] = "ok" if entry["name"] == arm else "not_run"
        (path / "plan.json").write_text(json.dumps(plan))
        for rank in range(RANK_N):
            with make_shard(path, arm, rank, run_id=f"of_{arm}") as writer:
                for repeat in range(5):
                    output = codes_of(trial, len(arm) + repeat + 10 * (arm == "tree"))
                    writer.append(trial, seen(trial, repeat, rank, output), output)
    return *paths, trial


@pytest.mark.parametrize("form", ["shards", "joined", "mixed"])
def test_arms_run_apart_become_one_run(tmp_path: Path, form: str) -> None:
    one, two, trial = apart(tmp_path)
    crash = seen(trial, 4, 1, None, status="crash", message="SIGABRT")
    append_event(events_path(two, "tree"), store.observation_to_json(crash))
    if form != "shards":
        store.join(one)
    if form == "joined":
        store.join(two)
    out = tmp_path / "out"
    store.join_runs([one, two], out)
    assert verify(out) == []
    with RunReader(out) as reader:
        assert [reader.arm(name).status for name in reader.arm_names] == ["ok", "ok"]
        assert len(reader.arm("ring").observations(trial.trial_id)) == 20
        assert len(reader.arm("tree").observations(trial.trial_id)) == 21
        np.testing.assert_array_equal(reader.arm("tree").output(trial.trial_id, 2, 3), codes_of(trial, 16))
        assert len(reader.sources()) == 2 * RANK_N
        run_id = reader.run_id
    store.join_runs([two, one], tmp_path / "again")
    assert json.loads((tmp_path / "again/plan.json").read_text())["run_id"] == run_id
    assert verify(one) == verify(two) == []


def test_plain_directories_of_shards_of_one_run_join(tmp_path: Path) -> None:
    trial = make_trial(100)
    make_plan(tmp_path / "node0", {"ring": [trial]})
    for node, ranks in (("node0", range(2)), ("node1", range(2, 4))):
        record(tmp_path / node, "ring", trial, ranks=ranks, salt=lambda repeat, rank: 10 * rank + repeat)
    plain = tmp_path / "plain"
    shutil.copytree(tmp_path / "node1/shards/ring", plain)
    store.join_runs([plain, tmp_path / "node0"], tmp_path / "out")
    with RunReader(tmp_path / "out") as reader:
        assert [row.rank for row in reader.arm("ring").observations(trial.trial_id)] == [0, 1, 2, 3] * 5
        np.testing.assert_array_equal(reader.arm("ring").output(trial.trial_id, 4, 3), codes_of(trial, 34))
    assert verify(tmp_path / "out") == []
    with pytest.raises(EvidenceError, match=r"plan\.json: missing"):
        store.join_runs([plain], tmp_path / "alone")


def test_an_arm_recorded_twice_is_refused(tmp_path: Path) -> None:
    one, two, trial = apart(tmp_path)
    record(two, "ring", trial, salt=lambda repeat, rank: 0)
    with pytest.raises(EvidenceError, match=r"arm ring was recorded in .*one and in .*two; join one of them"):
        store.join_runs([one, two], tmp_path / "out")
    with pytest.raises(EvidenceError, match="arm ring was recorded in"):
        store.join_runs([one, one], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"title": "other"}, "title: 't' against 'other'"),
        ({"expect": {}}, "expect: {'nan': True} against {}"),
        ({}, "the same arms with other trials"),
    ],
)
def test_runs_of_two_plans_are_refused_with_the_difference(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    one, _, trial = apart(tmp_path)
    other = tmp_path / "other"
    make_plan(other, {"ring": [trial], "tree": [trial]}, plan_id="plan2", **change)
    with pytest.raises(EvidenceError, match=re.escape(words)):
        store.join_runs([one, other], tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "x"}, "arms: ring, tree against ring, x"),
        ({"rank_n": 8}, "arm tree, rank_n: 4 against 8"),
        ({"trials": []}, "arm tree: 1 trials against 0"),
    ],
)
def test_plans_whose_arms_differ_say_where(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    one, two, _ = apart(tmp_path)
    plan = json.loads((two / "plan.json").read_text())
    plan["arms"][1].update(change)
    shutil.rmtree(two / "shards")
    (two / "plan.json").write_text(json.dumps({**plan, "plan_id": "plan2"}))
    with pytest.raises(EvidenceError, match=re.escape(words)):
        store.join_runs([one, two], tmp_path / "out")


def test_join_runs_refuses_a_full_directory_and_too_much(tmp_path: Path) -> None:
    one, two, _ = apart(tmp_path)
    with pytest.raises(EvidenceError, match="exists and is not empty"):
        store.join_runs([one, two], one)
    with pytest.raises(EvidenceError, match="exceed the size limit of 10"):
        store.join_runs([one, two], tmp_path / "out", size_limit=10)


def test_a_digest_needs_no_copy_and_matches_hashlib() -> None:
    import hashlib

    for values in (np.arange(7, dtype=np.uint16), np.empty(0, np.uint32), np.arange(20, dtype=np.uint8)[::3]):
        assert digest(values) == hashlib.sha256(values.tobytes()).hexdigest()
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()
