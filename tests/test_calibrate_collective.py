"""Collectives: calibrated from a recorded run, applied to another, refused where a condition differs; simulator and MPI."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrate_cli import Cli, cli
from driven_run import DrivenRun, driven

from auditor import calibrate, store
from auditor.calibrate import collective, legal
from auditor.calibrate.algorithms import toml_of
from auditor.config import ArmSpec
from auditor.errors import AuditError, Unavailable
from auditor.model import Verdict
from auditor.numerics.formats import FORMATS
from auditor.probes import tolerance

__all__ = ["cli"]
SMALL: dict[str, Any] = {"backend": "simulator", "count": 300, "seed": 7, "orders": 4}


def made(workload: str = "all_reduce", held_out: int = 20, record: Any = driven, **options: Any) -> dict[str, Any]:
    """A record, from a run in this process."""
    given = {**SMALL, **options}
    work = calibrate.build(workload, calibrate.resolved(workload, given), record)
    request = calibrate.request_of(workload, given, {})
    law = calibrate.Law.parse("normal:0.03")
    return calibrate.calibrated(work, request, margin=4, law=law, seed=given["seed"], orders_held_out=held_out)


def assumption(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(one for one in record["assumptions"] if one["name"] == name)


def test_a_simulated_library_is_calibrated() -> None:
    record = made()
    assert record["conditions"]["orders"]["ways"] == tolerance.laid_out(4, 4)
    assert [row["order"] for row in record["orders"]][:2] == [
        "default, data in rank order",
        "default, data on ranks 0,1,3,2",
    ]
    assert record["replay"].startswith(
        "the schedule rank (one shot, sums kept in binary32) gives every bit of 4 orders"
    )
    groups = {group["group"]: group for group in record["held_out"]}
    assert groups["other ways of laying the data, on the target"]["orders"] == 20
    trees = groups["trees drawn at random, added on the host, sums kept in binary32"]
    assert (trees["orders"], trees["rejected_orders"]["legal_outputs"]["count"]) == (20, 0)
    assert trees["rejected_orders"]["replay"]["count"] > 10
    accepted = record["law"]["accepted"]
    assert accepted["legal_outputs"]["count"] == 0
    assert assumption(record, "nothing cancels")["holds"] is False
    assert assumption(record, "an order gives the same bits again")["holds"] is True
    assert record["verdict"] == "PASS"
    assert {gate["kind"] for gate in record["gates"]} >= {"unwritten", "wrong_value", "missing_term"}


def test_the_recorded_outputs_are_what_is_measured() -> None:
    """The worst distance again, from the run's outputs and the data alone."""
    runs: list[DrivenRun] = []

    @contextlib.contextmanager
    def kept(text: str, plans: Mapping[str, Any]) -> Iterator[DrivenRun]:
        with driven(text, plans) as run:
            runs.append(run)
            yield run

    record, worst = made(record=kept), 0
    view: Any = runs[0].arm("default")
    for planned in tolerance.trials_of(view, "tolerance"):
        if planned.trial.active in tolerance.laid_out(4, 4):
            got = view.output(planned.trial.trial_id, 0, 2).view(np.float32)
            ref = collective.reference_of(planned.trial)
            steps = np.abs(got.view(np.int32).astype(np.int64) - ref.nearest.view(np.int32).astype(np.int64))
            worst = max(worst, int(steps[(got < 0) == (ref.value < 0)].max()))
    assert record["bound"]["worst"]["ulp_steps"] == worst > 0


def test_reduce_scatter_is_judged_over_all_shares() -> None:
    record = made("reduce_scatter", count=60, option=["order=ring"])
    assert record["orders"][0]["elements"] == 240
    assert "the schedule ring" in record["replay"]
    assert record["conditions"]["orders"]["arms"] == {"default": {"backend": "simulator", "options": {"order": "ring"}}}


def test_a_library_that_rounds_otherwise_has_no_legal_set_but_a_bound() -> None:
    record = made(format="bfloat16", option=["final=toward_zero"])
    finite = assumption(record, "the legal outputs can be listed")
    assert finite["holds"] is False
    assert "the library rounds otherwise" in finite["says"]
    assert "legal_outputs" not in record["law"]["accepted"]
    assert record["replay"] == "none of the known schedules explains the first arm's outputs bit by bit"
    (other, *trees) = record["held_out"]
    assert len(trees) == 2, "sums kept in binary32, and in the format"
    assert other["rejected_orders"]["a_priori"]["count"] == 0


def test_many_ranks_have_too_many_trees_and_many_elements_too_many_outputs() -> None:
    words = assumption(made(ranks=8), "the legal outputs can be listed")["says"]
    assert "8 terms have 135,135 trees" in words
    assert legal.tree_count(8) == 135135
    words = assumption(made(ranks=6, count=20000, held_out=0, orders=1), "the legal outputs can be listed")["says"]
    assert "946 models of 20,000 elements are too many to be kept" in words


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_calibrated(name: str) -> None:
    record = made(format=name, count=64, held_out=3)
    for group in record["held_out"]:
        for rule in ("a_priori", "legal_outputs"):
            assert group["rejected_orders"][rule]["count"] == 0, (group["group"], rule)
    assert record["verdict"] == "PASS"


def test_two_ranks_have_one_order() -> None:
    record = made(ranks=2)
    assert record["bound"]["ulp_steps"] == 0
    assert record["bound"]["worst"]["err_ulp"] <= 0.5
    assert assumption(record, "coverage of margin x worst")["holds"] is True
    assert assumption(record, "the orders really differ")["holds"] is None


def test_a_bound_is_applied_to_new_outputs() -> None:
    """The same library passes; the simulator with another rounding stands for one that went wrong."""
    record = made()
    for option, verdict in (([], Verdict.PASS), (["final=toward_zero"], Verdict.FAIL)):
        work = calibrate.build("all_reduce", calibrate.resolved("all_reduce", {**SMALL, "option": option}), driven)
        found, lines = calibrate.applied(record, work.measure(0))
        assert found is verdict
        assert bool(lines) is (verdict is Verdict.FAIL)


def test_arms_may_come_from_a_config(tmp_path: Path) -> None:
    arms = [ArmSpec(name=name, backend="simulator", ranks=3, options={"order": name}) for name in ("rank", "ring")]
    path = tmp_path / "arms.toml"
    path.write_text(toml_of("arms", arms, {"count": [1]}, ["tolerance"]))
    record = made(arms=str(path), orders=6)
    assert len(record["orders"]) == 12
    assert record["conditions"]["rank_n"] == 3
    assert set(record["conditions"]["library"]) == {"rank", "ring"}, "each arm says of itself what it is"
    unequal = [*arms[:1], ArmSpec(name="more", backend="simulator", ranks=4)]
    path.write_text(toml_of("arms", unequal, {"count": [1]}, ["tolerance"]))
    with pytest.raises(AuditError, match="different rank counts"):
        made(arms=str(path))


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [("unavailable", Unavailable, "arm default: no switch"), ("failed", AuditError, "arm default failed: no switch")],
)
def test_an_arm_that_did_not_run_is_told(status: str, error: type[Exception], words: str) -> None:
    @contextlib.contextmanager
    def spoilt(text: str, plans: Mapping[str, Any]) -> Iterator[DrivenRun]:
        with driven(text, plans) as run:
            view: Any = run.arm("default")
            view.status, view.reason = status, "no switch"
            yield run

    with pytest.raises(error, match=words):
        made(record=spoilt)


def test_ranks_that_disagree_are_orders_of_their_own_and_repeats_are_compared() -> None:
    @contextlib.contextmanager
    def spoilt(text: str, plans: Mapping[str, Any]) -> Iterator[DrivenRun]:
        with driven(text, plans) as run:
            memory = run.arm("default")._memory
            for rows in memory.rows.values():
                for k, seen in enumerate(rows):
                    if seen.rank == 3 and seen.repeat == 0 and seen.digest:
                        rows[k] = type(seen)(**{name: getattr(seen, name) for name in seen.__slots__} | {"digest": "x"})
            yield run

    record = made(record=spoilt)
    assert "default, data in rank order, rank 3" in [row["order"] for row in record["orders"]]
    assert assumption(record, "an order gives the same bits again")["holds"] is False


# ------------------------------------------------------------------------------------------- whole commands, real runs

# A library that is well, until a file says otherwise: what a bad upgrade looks like from outside.
PLUGIN = """
from pathlib import Path
from auditor.backends.simulator import Simulator

class Upgraded(Simulator):
    name = "upgraded"

    def run(self, call, send, recv):
        super().run(call, send, recv)
        if Path("{folder}/broken").exists():
            for window in recv.values():
                window.buffer[window.offset + 4 * 9 + 1] ^= 0x10

    def describe(self):
        version = Path("{folder}/version")
        return {{"version": version.read_text() if version.exists() else "1.0", "hosts": str(id(self)), "order": "rank"}}
"""


def test_a_bound_is_made_applied_and_refused_by_the_commands(cli: Cli) -> None:
    (cli.folder / "upgraded.py").write_text(PLUGIN.format(folder=cli.folder))
    words = (
        "all_reduce",
        "--backend",
        "upgraded:Upgraded",
        "--count",
        200,
        "--held-out",
        5,
        "--orders",
        2,
        "--seed",
        7,
    )
    assert cli("calibrate", *words, "--out", "bound.json", "--run", "run") == 0, cli.err
    record = cli.record()
    assert record["conditions"]["library"] == {"version": "1.0", "order": "rank"}, "what changes by itself is left out"
    assert {"unwritten", "early_return"} <= {gate["kind"] for gate in record["gates"]}
    with store.RunReader(Path("run")) as reader:
        assert reader.run_id == record["run_id"]
    for more, line in REFUSED.items():
        assert cli("check", "--bound", "bound.json", *more) == 5, more
        assert line in cli.out
        assert "auditor: arm" not in cli.err, "nothing may have run"
    (cli.folder / "broken").touch()
    assert cli("check", "--bound", "bound.json") == 1
    assert cli.out.startswith("FAIL  all_reduce")
    for part in ("set of legal outputs", "measured bound", "index 9: 0x", "wrong_value: arm upgraded"):
        assert part in cli.out.replace("default", "upgraded")
    (cli.folder / "broken").unlink()
    (cli.folder / "version").write_text("2.0")
    cli.change(device="an abacus", nodes=3)
    assert cli("check", "--bound", "bound.json") == 5
    for line in ("library.version: 2.0 here; the bound was measured with 1.0", "device: ", "nodes: 1 here"):
        assert line in cli.out
    assert cli("calibrate", *words, "--out", "again.json", "--run", "run") == 2
    assert "run exists already" in cli.err


REFUSED: dict[tuple[Any, ...], str] = {
    ("--format", "bfloat16"): "format: bfloat16 here; the bound was measured with binary32",
    ("--count", 301): "size.count: 301 here; the bound was measured with 200",
    ("--ranks", 3): "rank_n: 3 here; the bound was measured with 4",
    ("--orders", 3): "orders.ways: all, 0,1,3,2, 0,2,1,3 here",
    ("--distribution", "report132"): "distribution: report132 here",
    ("--seed", 8): "seed: 8 here; the bound was measured with 7",
    ("--backend", "mpi"): "backend: mpi here; the bound was measured with upgraded:Upgraded",
    ("--env", "A=1"): "orders.arms.default.env: A 1 here; the bound was measured without it",
    ("reduce_scatter",): "workload: reduce_scatter here; the bound was measured with all_reduce",
}


def test_a_backend_that_is_not_here_is_unavailable(cli: Cli) -> None:
    (cli.folder / "absent.py").write_text("import no_such_library\n")
    assert cli("calibrate", "all_reduce", "--backend", "absent:Backend", "--out", "bound.json", "--run", "run") == 3
    assert "no_such_library" in cli.err


@pytest.mark.mpi
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_real_mpi_is_calibrated_and_its_bound_applied(cli: Cli) -> None:
    words = ("--ranks", 4, "--count", 4096, "--seed", 7, "--algorithms", "default", "--held-out", 20)
    assert cli("calibrate", "all_reduce", *words, "--out", "bound.json", "--run", "run") == 0, cli.err
    record = cli.record()
    assert record["bound"]["worst"]["ulp_steps"] > 0
    assert record["verdict"] == "PASS"
    assert record["held_out"][0]["orders"] == 18, "the other ways of laying data on four ranks"
    assert "legal_outputs" in record["law"]["accepted"], "every output of the library is one of the legal ones"
    assert (cli.folder / "bound.html").is_file()
    assert cli("check", "--bound", "bound.json") == 0, cli.out
    assert cli.out.startswith("PASS  all_reduce: 6 orders of 4,096 elements")
