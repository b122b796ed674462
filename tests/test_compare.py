"""Two recorded runs side by side: which trials differ, where, by how much, and of what nothing is claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import ENVIRONMENT, Arm, finding, make_run, make_trial, one_up, planned, right

from auditor import compare
from auditor.compare.bits import Apart, differing
from auditor.compare.operands import Operand
from auditor.errors import ConfigError, EvidenceError
from auditor.model import Codes, Trial
from auditor.numerics.formats import FORMATS

TRIALS = [make_trial(count, shift) for count in (1, 7, 40) for shift in (0, 1)]


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Compares two one-armed runs that differ in what is given."""

    def run(base: dict[str, Any] | None = None, other: dict[str, Any] | None = None, **more: Any) -> Any:
        usual = {"planned": planned(*TRIALS)}
        make_run(tmp_path / "a", Arm(**{**usual, **(base or {})}), **more.get("a", {}))
        make_run(tmp_path / "b", Arm(**{**usual, **(other or {})}), **more.get("b", {}))
        return compare.compare([str(tmp_path / "a"), str(tmp_path / "b")], policy=more.get("policy", ""))

    return run


def only_pair(comparison: Any) -> Any:
    (found,) = comparison.pairs
    return found


# ------------------------------------------------------------------------------------------------------------------- bits


def test_equal_runs_are_the_same(pair: Any) -> None:
    comparison = pair(policy="changed")
    assert (comparison.verdict, comparison.exit_code) == ("same", 0)
    (bits,) = only_pair(comparison).bits
    assert (bits.equal, bits.changed, bits.silent, bits.elements_changed) == (6, 0, {}, 0)
    assert only_pair(comparison).environment == ()


def test_a_difference_is_named_by_trial_rank_index_and_bits(pair: Any) -> None:
    comparison = pair(other={"output": one_up(5, 6, ranks=[1])}, policy="changed")
    assert (comparison.verdict, comparison.exit_code) == ("changed", 1)
    (bits,) = only_pair(comparison).bits
    assert (bits.equal, bits.changed, bits.ranks, bits.counts) == (2, 4, (1,), (7, 40))
    assert (bits.index_first, bits.index_last) == (5, 6)
    assert bits.ulps == {"histogram": {"1": 4}, "max": 1}
    # Equal outputs count once: 1, 7 and 40 elements of each side's distinct outputs, at both shifts the same data.
    assert (bits.elements, bits.elements_changed) == (1 + 7 + 7 + 40 + 40, 4)
    first = bits.examples[0]
    trial = next(t for t in TRIALS if t.trial_id == first.trial)
    want = right(trial, 0, 1)
    assert (trial.call.count, first.rank, first.index, first.ulps) == (7, 1, 5, 1)
    assert (first.base, first.other) == (f"0x{want[5]:04x}", f"0x{want[5] + 1:04x}")
    assert first.nearest == first.base
    assert bits.rounded == {"looked": 4, "base": 4, "other": 0}
    assert len(first.inputs) == 2


def test_positions_are_counted_by_address(pair: Any) -> None:
    (bits,) = only_pair(pair(other={"output": one_up(0, ranks=[0])})).bits
    # Index 0 lies at byte 0 unshifted and at byte 2 shifted by one; three counts each.
    assert bits.by_address_mod_16 == {"0": 3, "2": 3}


def test_nothing_is_claimed_of_a_trial_that_does_not_repeat_itself(pair: Any) -> None:
    small = TRIALS[0].trial_id

    def flips(trial: Trial, repeat: int, rank: int) -> Codes:
        return one_up(0)(trial, repeat, rank) if trial.trial_id == small and repeat == 1 else right(trial, repeat, rank)

    comparison = pair(other={"output": flips}, policy="changed")
    (bits,) = only_pair(comparison).bits
    assert bits.changed == 0
    assert bits.equal == 5
    ((reason, n),) = bits.silent.items()
    assert "does not repeat itself" in reason
    assert "b:ring" in reason
    assert n == 1
    assert comparison.exit_code == 0


def test_changes_that_flips_explain_are_not_claimed(pair: Any) -> None:
    """A subject that flips in a third of its calls: of many trials some look steady and changed."""

    def flips(trial: Trial, repeat: int, rank: int) -> Codes:
        odd = (int(trial.trial_id, 16) >> (2 * repeat)) % 3 == 0
        return one_up(0)(trial, repeat, rank) if odd else right(trial, repeat, rank)

    many = [make_trial(7, seed=seed) for seed in range(60)]
    (bits,) = only_pair(
        pair({"planned": planned(*many, repeats=2)}, {"planned": planned(*many, repeats=2), "output": flips})
    ).bits
    assert bits.changed > 0
    assert bits.by_chance > 1
    assert not bits.claimed
    assert not bits.counts_as_change


def test_one_observation_is_not_enough_for_a_difference(pair: Any) -> None:
    once = {"planned": planned(*TRIALS, repeats=1)}
    (bits,) = only_pair(pair(once, {**once, "output": one_up(6)})).bits
    assert (bits.equal, bits.changed) == (2, 0)
    assert sum(n for reason, n in bits.silent.items() if "recorded once" in reason) == 4


def test_alternating_inputs_are_compared_input_by_input(pair: Any) -> None:
    alternate = planned(make_trial(7, inputs="alternate"), repeats=4)
    comparison = pair({"planned": alternate}, {"planned": alternate, "output": one_up(3, repeats=[1, 3])})
    (bits,) = only_pair(comparison).bits
    assert (bits.equal, bits.changed, bits.silent) == (0, 1, {})
    assert bits.examples[0].repeat == 1


def test_a_trial_without_results_is_said(pair: Any) -> None:
    comparison = pair(other={"status": lambda trial, repeat, rank: "error" if trial.call.count == 40 else "ok"})
    (bits,) = only_pair(comparison).bits
    assert bits.equal == 4
    ((reason, n),) = bits.silent.items()
    assert n == 2
    assert "no call returned a result (status error)" in reason


def test_ranks_that_only_one_run_recorded_are_said(pair: Any) -> None:
    comparison = pair(other={"status": lambda trial, repeat, rank: "absent" if rank == 1 else "ok"})
    (bits,) = only_pair(comparison).bits
    assert (bits.equal, bits.partial) == (6, 6)


def test_other_trials_are_only_in_one(pair: Any) -> None:
    comparison = pair({"planned": planned(*TRIALS[:4])}, {"planned": planned(*TRIALS[2:])})
    one = only_pair(comparison)
    assert (one.common, one.only_base.total, one.only_other.total) == (2, 2, 2)
    assert one.only_base.by_probe == {"placement": 2}
    assert [(d.name, d.base, d.other) for d in one.plan] == [("count", "1", "40")]


def test_other_rank_counts_have_nothing_in_common(pair: Any) -> None:
    four = {"planned": planned(make_trial(7, rank_n=4)), "rank_n": 4}
    comparison = pair({}, four, policy="worse")
    assert (comparison.verdict, comparison.exit_code) == ("nothing in common", 5)
    assert any("No trial is the same in both (2 and 4 ranks)" in note for note in only_pair(comparison).notes)


def test_large_outputs_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither output is ever held whole; what differs at the far end is found all the same."""
    trial = make_trial(5_000_000)

    def zeros(at: int) -> Any:
        def output(trial: Trial, repeat: int, rank: int) -> Codes:
            codes = np.zeros(trial.call.count, np.uint16)
            codes[at] = 1
            return codes

        return output

    runs = [
        make_run(tmp_path / str(at), Arm(planned=planned(trial, repeats=2), output=zeros(at))) for at in (2, 4_999_999)
    ]

    def whole(*_: Any) -> Any:
        raise AssertionError("an output was read whole")

    monkeypatch.setattr("auditor.store.reader.RunReader.read", whole)
    (bits,) = only_pair(compare.compare([str(run) for run in runs])).bits
    assert (bits.changed, bits.elements_changed) == (1, 2)
    assert (bits.index_first, bits.index_last) == (2, 4_999_999)


def test_differing_elements_over_several_pieces() -> None:
    fmt = FORMATS["binary16"]
    a = np.arange(40, dtype=np.uint16)
    b = a.copy()
    b[[3, 20, 39]] ^= np.uint16(0x8000)
    cuts = [a[:16], a[16:32], a[32:]], [b[:16], b[16:32], b[32:]]
    found = differing(fmt, *cuts)
    assert (found.elements, found.changed, found.first, found.last) == (40, 3, 3, 39)
    assert found.at.tolist() == [3, 20, 39]
    assert found.lanes[[3, 4, 7]].tolist() == [1, 1, 1]
    assert found.by_address(2, 2).nonzero()[0].tolist() == [0, 8, 10]
    with pytest.raises(ValueError, match="side by side"):
        differing(fmt, [a], [b[:7]])


def test_distances_go_into_bins() -> None:
    fmt = FORMATS["binary16"]
    apart = Apart()
    apart.add(fmt, np.array([0, 5, 5, 5, 0x7E00], np.uint16), np.array([0x8000, 6, 7, 25, 5], np.uint16))
    assert apart.measure() == {"histogram": {"0": 1, "1": 1, "2": 1, "17-32": 1}, "max": 20, "nan": 1}
    wide, far = FORMATS["binary64"], Apart()
    far.add(wide, np.array([0x7FEFFFFFFFFFFFFF], np.uint64), np.array([0xFFEFFFFFFFFFFFFF], np.uint64))
    assert far.most == 2 * 0x7FEFFFFFFFFFFFFF
    (name,) = far.measure()["histogram"]
    assert name == f"{(1 << 63) + 1} or more"


# ---------------------------------------------------------------------------------------------------------------- operands


def test_arms_of_the_same_name_stand_side_by_side(tmp_path: Path) -> None:
    arms = [Arm(name, planned(*TRIALS)) for name in ("ring", "tree", "nvls")]
    a, b = make_run(tmp_path / "a", *arms[:2]), make_run(tmp_path / "b", *arms[1:])
    comparison = compare.compare([str(a), str(b)])
    assert [(p.base_arm, p.other_arm, p.matched) for p in comparison.pairs] == [("tree", "tree", "same name")]
    assert comparison.besides[0].notes == (f"Only {a} has the arm ring.", f"Only {b} has the arm nvls.")


@pytest.mark.parametrize(
    ("texts", "matched"),
    [
        (("a:ring", "a:tree"), ("ring", "tree", "named")),
        (("a:ring", "c"), ("ring", "alone", "only arm")),
        (("c", "a:tree"), ("alone", "tree", "only arm")),
        (("a:ring", "b"), ("ring", "ring", "same name")),
        (("c", "d"), ("alone", "other", "only arm")),
    ],
)
def test_how_arms_are_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: tuple[str, str], matched: tuple[str, str, str]
) -> None:
    two = [Arm(name, planned(*TRIALS[:2])) for name in ("ring", "tree")]
    for name, arms in (("a", two), ("b", two), ("c", [Arm("alone", planned(*TRIALS[:2]))])):
        make_run(tmp_path / name, *arms)
    make_run(tmp_path / "d", Arm("other", planned(*TRIALS[:2])))
    monkeypatch.chdir(tmp_path)
    one = only_pair(compare.compare(texts))
    assert (one.base_arm, one.other_arm, one.matched) == matched


def test_operands_that_cannot_be_matched_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a", *[Arm(name, planned(TRIALS[0])) for name in ("ring", "tree")])
    make_run(tmp_path / "b", *[Arm(name, planned(TRIALS[0])) for name in ("nvls", "off")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"no arm has the same name .*ring, tree.*nvls, off.*auditor compare a:ARM b:ARM"
    ):
        compare.compare(["a", "b"])
    with pytest.raises(ConfigError, match="no arm has the same name"):
        compare.compare(["a:ring", "b"])
    with pytest.raises(ConfigError, match="a:rung: the run has no arm 'rung'; it has ring, tree"):
        compare.compare(["a:rung", "b"])
    with pytest.raises(ConfigError, match="needs two runs"):
        compare.compare(["a"])
    with pytest.raises(EvidenceError, match="c: no such run"):
        compare.compare(["a", "c"])


def test_a_colon_may_be_part_of_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "12:30"
    odd.mkdir()
    assert Operand.parse(str(odd)) == Operand(str(odd), odd, None)
    assert Operand.parse(f"{odd}:ring").arm == "ring"
    assert Operand.parse(f"{odd}:ring").path == odd


def test_the_first_of_three_is_the_base(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, Arm(planned=planned(*TRIALS), output=output))
        for name, output in (("a", right), ("b", right), ("c", one_up(0)))
    ]
    comparison = compare.compare([str(run) for run in runs], policy="changed")
    assert [[one.changed for one in pair.bits] for pair in comparison.pairs] == [[0], [6]]
    assert comparison.base.run_id == "a"
    assert comparison.exit_code == 1


def test_a_run_beside_itself_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", Arm(planned=planned(*TRIALS)))
    (beside,) = compare.compare([str(run), str(run)]).besides
    assert any("same run" in note for note in beside.notes)


def test_findings_are_derived_where_there_are_none(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, Arm(planned=planned(*TRIALS)), write=name == "a") for name in "ab"]
    comparison = compare.compare([str(run) for run in runs])
    assert [comparison.base.derived, comparison.besides[0].other.derived] == [False, True]
    assert any("--recompute" in note for note in only_pair(comparison).notes)
    again = compare.compare([str(run) for run in runs], recompute=True)
    assert again.base.derived
    assert only_pair(again).findings_alike > 0


def test_findings_of_another_run_are_refused(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", Arm(planned=planned(TRIALS[0])))
    b = make_run(tmp_path / "b", Arm(planned=planned(TRIALS[0])))
    (b / "findings.json").write_text((a / "findings.json").read_text())
    with pytest.raises(EvidenceError, match=r"is of run a, the record of run b; make it again with: auditor analyze"):
        compare.compare([str(a), str(b)])


def test_a_finding_of_another_shape_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", Arm(planned=planned(TRIALS[0])), findings=[finding("path_split", "PASS")])
    content = json.loads((run / "findings.json").read_text())
    content["findings"][0]["verdict"] = "MAYBE"
    (run / "findings.json").write_text(json.dumps(content))
    with pytest.raises(EvidenceError, match=r"findings.json: findings\[0\] cannot be read .*MAYBE.*auditor analyze"):
        compare.compare([str(run), str(run)])


# ------------------------------------------------------------------------------------------------------------ surroundings


def test_surroundings_come_with_the_likely_cause_first(pair: Any) -> None:
    newer = {
        **ENVIRONMENT,
        "packages": {"numpy": "2.5.0", "mpich": "5.1.0"},
        "gpus": {"driver_version": "580.1", "models": ["H200", "H200"], "devices": [{"index": 0, "vbios": "96.1"}]},
        "system": {"host": "node8", "kernel": "6.1"},
        "variables": {"NCCL_ALGO": "Tree", "HYDRA_BSTRAP_PGID": "12", "SLURM_PROCID": "0"},
        "memory_bytes": (1 << 34) + 4096,
    }
    one = only_pair(pair({}, {"describe": {"library_version": "5.1"}}, b={"environment": newer}))
    told = [(d.group, d.name, d.base, d.other) for d in one.environment]
    assert told == [
        ("library", "mpich", "5.0.2", "5.1.0"),
        ("library", "library_version", "(not recorded)", "5.1"),
        ("driver", "driver_version", "(not recorded)", "580.1"),
        ("GPU", "GPU vbios", "(not recorded)", "96.1"),
        ("GPU", "models", "(not recorded)", "2 x H200"),
        ("topology", "ranks by host", "node7: 0-1", "node8: 0-1"),
        ("variables", "NCCL_ALGO", "Ring", "Tree"),
        ("software", "numpy", "2.4.6", "2.5.0"),
        ("launcher", "variables of its own", "(not set)", "HYDRA_BSTRAP_PGID, SLURM_PROCID"),
    ]


def test_different_backends_are_allowed_and_said(pair: Any) -> None:
    one = only_pair(pair({"backend": "nccl"}, {"backend": "nvshmem", "env": {"NVSHMEM_SYMMETRIC_SIZE": "1G"}}))
    assert any(note.startswith("Different backends, nccl and nvshmem") for note in one.notes)
    assert [(d.group, d.name) for d in one.environment] == [
        ("library", "backend"),
        ("settings", "env.NVSHMEM_SYMMETRIC_SIZE"),
    ]


def test_an_arm_that_did_not_run_is_said(pair: Any) -> None:
    absent = {"planned": [], "plan_status": "unavailable", "reason": "no GPU"}
    comparison = pair({}, absent, policy="changed")
    assert any("b:ring is unavailable: no GPU." in note for note in only_pair(comparison).notes)
    assert comparison.exit_code == 5
