"""What is done ahead of a job or beside it, so that an arm starts sooner, and that it changes nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditor import pipeline, profiling
from auditor.config import load
from auditor.errors import ConfigError, EvidenceError
from auditor.model import Capabilities
from auditor.plan import Plan, build
from auditor.processes import Server

HERE = Path(__file__).parent
CONFIG = """
[[arm]]
name = "subject"
backend = "ahead_subjects:{cls}"
ranks = 2
[sweep]
collective = ["all_reduce"]
format = ["binary32"]
count = [5]
shift = [0]
repeats = 2
seed = 7
[probes]
run = ["repeatability"]
"""


def audited(folder, cls, **environ):
    """(exit code, standard error, the subject's lines) of a run."""
    log, config = folder / "ahead.jsonl", folder / "ahead.toml"
    config.write_text(CONFIG.format(cls=cls))
    command = [sys.executable, "-m", "auditor", "run", str(config), "--out", str(folder / "run")]
    env = {**os.environ, "AHEAD_LOG": str(log), "PYTHONPATH": str(HERE), **environ}
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=120, check=False)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return done.returncode, done.stderr, lines


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(the subject's lines, the profile's folder) of a run that goes well."""
    folder = tmp_path_factory.mktemp("profiled")
    profile = folder / "profile"
    code, said, lines = audited(folder, "Loads", AUDITOR_PROFILE=str(profile), AUDITOR_PROFILE_FUNCTIONS="1")
    assert code == 0, said
    return lines, profile


def test_fresh_processes_load_ahead_and_are_fresh(profiled):
    """Each in a process of its own under a parent of its own, and the backend is made where its libraries were loaded."""
    lines, _ = profiled
    loaded = {line["pid"]: line["parent"] for line in lines if line["step"] == "preload"}
    started = {line["pid"]: line["parent"] for line in lines if line["step"] == "start"}
    assert len(loaded) == 3
    assert len(started) == 4  # the first job is not loaded ahead: nothing runs beside it
    assert loaded.items() <= started.items()
    assert len(set(started.values())) == 4


def test_what_cannot_be_loaded_ahead_is_loaded_when_it_is_needed(tmp_path):
    code, said, lines = audited(tmp_path, "CannotLoad")
    assert code == 0, said
    assert [line["step"] for line in lines].count("start") == 4


def test_a_subject_that_dies_while_it_loads_is_a_crash_while_starting(tmp_path):
    code, said, _ = audited(tmp_path, "DiesLoading")
    assert code == 1
    assert "died by SIGABRT while starting" in said


def test_a_child_that_waits_ends_with_its_server(tmp_path, monkeypatch):
    monkeypatch.setenv("AHEAD_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    server = Server({}, tmp_path / "out.log")
    server.prepare("ahead_subjects:Loads", {})
    until = time.monotonic() + 30
    while not (tmp_path / "log").exists() and time.monotonic() < until:
        time.sleep(0.02)
    waiting = json.loads((tmp_path / "log").read_text())["pid"]
    assert Path(f"/proc/{waiting}").exists()
    server.close()
    while Path(f"/proc/{waiting}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{waiting}").exists()


# ---- arms are asked side by side -----------------------------------------------------------------------------------------


ARM = '[[arm]]\nname = "a{n}"\nbackend = "simulator"\nranks = {n}\noptions = {{ {more} }}\n'


def configured(folder, more=""):
    path = folder / "c.toml"
    arms = "".join(ARM.format(n=n, more=more) for n in range(2, 7))
    path.write_text(arms + CONFIG[CONFIG.index("[sweep]") :])
    return load(path)


def test_answers_come_in_the_order_of_the_arms(tmp_path):
    offers = pipeline.probe_arms(configured(tmp_path))
    assert list(offers) == ["a2", "a3", "a4", "a5", "a6"]
    assert all(isinstance(offer.offered, Capabilities) for offer in offers.values())


def test_the_first_arm_that_is_wrong_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"^arm a2: .*no_such_option"):
        pipeline.probe_arms(configured(tmp_path, "no_such_option = 1"))


# ---- a worker reads its own part of the plan -----------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path):
    config = configured(tmp_path)
    offer = Capabilities(collectives=frozenset({"all_reduce"}), ops=frozenset({"sum"}), formats=frozenset({"binary32"}))
    plan = build(config, {arm.name: offer for arm in config.arms}).with_run_id("r")
    plan.save(tmp_path)
    return plan


def test_a_part_of_a_plan_is_one_arm_with_the_trials_asked_for(planned, tmp_path):
    whole = planned.arm("a3")
    wanted = [one.trial.trial_id for one in whole.trials[1:4]]
    part = Plan.load_part(tmp_path, "a3", wanted)
    assert (part.run_id, part.plan_id) == ("r", planned.plan_id)
    assert [arm.name for arm in part.arms] == ["a3"]
    assert part.arm("a3").trials == whole.trials[1:4]
    assert part.arm("a3").capabilities == whole.capabilities


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text[:-9], "is not JSON"),
        (lambda text: text.replace("auditor-plan/1", "x"), "written by another tool"),
        (lambda text: text.replace('"seed": 7', '"seed": 8'), "has the content of"),
        (lambda text: text.replace('"trials"', '"trails"'), "is damaged"),
        (lambda text: "[]", "written by another tool"),
    ],
)
def test_a_part_of_a_damaged_plan_is_refused(planned, tmp_path, spoil, words):
    path = tmp_path / "plan.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(EvidenceError, match=words):
        Plan.load_part(tmp_path, "a3", [one.trial.trial_id for one in planned.arm("a3").trials])


# ---- where the time goes -------------------------------------------------------------------------------------------------


def test_every_process_notes_its_steps_where_somebody_asks(profiled):
    _, profile = profiled
    notes = [json.loads(line) for line in (profile / profiling.NOTES).read_text().splitlines()]
    done = [note["what"] for note in notes]
    for what in ("probed", "planned", "supervisor: job asked for", "server: ready", "joined", "analyzed", "reported"):
        assert what in done
    for what in (
        "worker: backend made",
        "worker: first call returned",
        "worker: trials done",
        "worker: backend closed",
    ):
        assert done.count(what) == 4
    assert {path.name for path in profile.glob("*.pstats")} == {f"subject.{n}.rank0.pstats" for n in range(4)}


def test_nothing_is_noted_where_nobody_asks(tmp_path, monkeypatch):
    monkeypatch.delenv("AUDITOR_PROFILE", raising=False)
    profiling.note("x")
    with profiling.functions("x"):
        pass
    assert list(tmp_path.iterdir()) == []
