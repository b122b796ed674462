"""The record as a file: sealed, refused where it is torn or changed, and compared condition by condition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import ROOT, Session, blocks

from auditor import calibrate
from auditor.calibrate import record, requests, study
from auditor.calibrate.algorithms import ALGORITHMS, arms_of, toml_of
from auditor.config import load
from auditor.errors import ConfigError, EvidenceError

CONDITIONS: dict[str, Any] = {
    "workload": "all_reduce",
    "backend": ["mpi"],
    "format": "binary32",
    "rank_n": 4,
    "size": {"count": 1024},
    "op": "sum",
    "orders": {"arms": {"default": {"backend": "mpi"}}, "ways": ["all", "1,0,2,3"]},
    "distribution": "wide",
    "reference": "exact",
    "seed": 7,
    "library": {"library_version": "MPICH 5.0.2", "mpi4py": "4.1.2"},
    "device": "a processor",
    "nodes": 1,
}


def some() -> dict[str, Any]:
    content = {key: {} for key in record.KEYS} | {"workload": "all_reduce", "conditions": CONDITIONS, "verdict": "PASS"}
    return record.sealed(content)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = record.save(tmp_path / "b.json", some())
    assert record.load(path) == some()
    assert some()["schema"] == "auditor-bound/1"
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "is not of schema 'auditor-bound/1'"),
        ('{"schema": "auditor-plan/1"}', "is not of schema 'auditor-bound/1'"),
        ('{"schema": "auditor-bound/1", "workload": "x"}', "lacks request, conditions"),
        (json.dumps({**some(), "verdict": "FAIL"}), "was changed after it was written"),
        (
            json.dumps({key: value for key, value in some().items() if key != "digest"}),
            "was changed after it was written",
        ),
    ],
)
def test_what_is_no_record_is_told_in_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "b.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EvidenceError, match=words) as told:
        record.load(path)
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be written"):
        record.save(tmp_path / "no" / "b.json", some())


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("backend", ["nccl"], "backend: nccl here; the bound was measured with mpi"),
        ("format", "bfloat16", "format: bfloat16 here; the bound was measured with binary32"),
        ("rank_n", 2, "rank_n: 2 here; the bound was measured with 4"),
        ("size.count", 1025, "size.count: 1025 here; the bound was measured with 1024"),
        ("op", "avg", "op: avg here; the bound was measured with sum"),
        ("orders.ways", ["all"], "orders.ways: all here; the bound was measured with all, 1,0,2,3"),
        (
            "orders.arms.ring",
            {"backend": "mpi"},
            "orders.arms.ring: backend mpi here; the bound was measured without it",
        ),
        ("orders.arms.default", None, "orders.arms.default: not here; the bound was measured with it"),
        ("distribution", "report132", "distribution: report132 here; the bound was measured with wide"),
        ("reference", "float64", "reference: float64 here; the bound was measured with exact"),
        ("seed", 8, "seed: 8 here; the bound was measured with 7"),
        (
            "library.library_version",
            "MPICH 5.0.3",
            "library.library_version: MPICH 5.0.3 here; the bound was measured with MPICH 5.0.2",
        ),
        ("library.mpi4py", None, "library.mpi4py: not here; the bound was measured with it"),
        ("device", "another", "device: another here; the bound was measured with a processor"),
        ("nodes", 2, "nodes: 2 here; the bound was measured with 1"),
    ],
)
def test_each_condition_that_differs_is_told(path: str, value: Any, line: str) -> None:
    assert calibrate.differences(CONDITIONS, CONDITIONS) == []
    here = json.loads(json.dumps(CONDITIONS))
    *way, last = path.split(".")
    place = here
    for part in way:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    assert calibrate.differences(CONDITIONS, here) == [line]


def test_only_what_is_known_is_compared_and_of_another_workload_nothing_else_is_told() -> None:
    asked = {key: CONDITIONS[key] for key in ("workload", "format", "size")}
    assert calibrate.differences(CONDITIONS, asked) == []
    assert calibrate.differences(CONDITIONS, {**asked, "checks": 9}) == [
        "checks: 9 here; the bound was measured without it"
    ]
    other = {"workload": "histogram", "format": "binary64", "size": {"bins": 3}}
    assert calibrate.differences(CONDITIONS, other) == [
        "workload: histogram here; the bound was measured with all_reduce"
    ]


def test_a_request_says_how_to_make_it_again() -> None:
    given = {"count": 4096, "env": ["A=1", "B=two words"], "backend": "mpi"}
    made = requests.request_of("all_reduce", given, {"margin": "4"})
    assert made["command"] == (
        "auditor calibrate all_reduce --count 4096 --env A=1 --env 'B=two words' --backend mpi --margin 4"
    )
    assert made["options"]["ranks"] == 4
    assert made["options"]["count"] == 4096
    with pytest.raises(ConfigError, match="--bins is not for matmul; it takes --device"):
        requests.resolved("matmul", {"bins": 3})


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"env": ["A"]}, "--env A: is not of the form key=value"),
        ({"option": ["=1"]}, "--option =1: is not of the form key=value"),
        ({"format": "binary31"}, "--format binary31: is none of binary64"),
        ({"ranks": 1}, "one rank adds nothing"),
        ({"distribution": "wide:dist"}, "--distribution wide:dist"),
        ({"distribution": "nothing"}, "family 'nothing' is unknown"),
        ({"algorithms": "some"}, "is neither all nor default"),
        ({"arms": "no_such.toml"}, "no_such.toml: cannot be read"),
    ],
)
def test_mistakes_about_collectives_are_told_before_anything_runs(option: dict[str, Any], words: str) -> None:
    def record_(text: str, plans: Any) -> Any:
        raise AssertionError("nothing may run")

    with pytest.raises(ConfigError) as told:
        requests.build("all_reduce", requests.resolved("all_reduce", option), record_)
    assert words in str(told.value)


def test_a_calibration_s_config_is_one_that_auditor_run_takes(tmp_path: Path) -> None:
    arms = arms_of("simulator", "all_reduce", 3, {"order": "ring", "seed": 4, "rule": True}, {"X": 'a "b"'})
    sweep = {"collective": ["all_reduce"], "count": [7], "seed": 3}
    path = tmp_path / "c.toml"
    path.write_text(toml_of("A 'title'", arms, sweep, ["tolerance"]))
    config = load(path)
    assert config.arms == tuple(arms)
    assert (config.title, config.probes, config.sweep.count) == ("A 'title'", ("tolerance",), (7,))


def test_algorithms_are_arms_with_the_path_that_must_have_run() -> None:
    names = [arm.name for arm in arms_of("nccl", "all_reduce", 2, {}, {})]
    assert names == ["default", "ring", "tree"]
    ring = arms_of("nccl", "all_reduce", 2, {}, {"NCCL_DEBUG": "INFO"})[1]
    assert ring.env == {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    assert ring.path == "RING"
    assert [arm.name for arm in arms_of("unknown", "all_reduce", 2, {}, {})] == ["default"]
    assert all("NVLS" not in str(rows) for rows in ALGORITHMS.values()), "nothing here asks for multicast"


# ------------------------------------------------------------------------------------------------ what is published

PUBLISHED = sorted((ROOT / "results" / "evidence" / "bounds").glob("*.json"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_record_holds_and_has_its_page(path: Path) -> None:
    found = calibrate.load(path)
    assert found["verdict"] == "PASS"
    assert found["digest"] in path.with_suffix(".html").read_text(encoding="utf-8")
    assert found["conditions"]["workload"] == found["workload"]
    resolved = requests.resolved(found["workload"], found["request"]["options"])
    assert resolved == found["request"]["options"], "every option is still known"


def test_the_published_histogram_says_what_the_docs_say() -> None:
    found = calibrate.load(next(path for path in PUBLISHED if path.stem == "histogram"))
    text = " ".join((ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8").split())
    worst, accepted = found["bound"]["worst"]["ulp_steps"], found["law"]["accepted"]
    assert study.SEEN[0] <= worst <= study.SEEN[1]
    assert f"lies {worst} steps from the reference, the bound is {found['bound']['ulp_steps']}." in text
    assert f"1 % relative accepts {accepted['one_percent']['count']:,} (" in text
    assert f"the bound {accepted['measured']['count']} (" in text
    beyond = found["held_out"][0]["beyond_calibrated_worst"]["count"]
    assert f"although {beyond} lie beyond the worst of the three" in text
    assert all(row["agrees"] for row in found["study"]["claims"])


def test_the_docs_commands_do_what_they_say(tmp_path: Path) -> None:
    session, followed = Session(tmp_path), 0
    for block in blocks((ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")):
        if block.needs != "hardware":
            assert session.follow(block) == []
            followed += block.language == "console"
    assert followed == 2
