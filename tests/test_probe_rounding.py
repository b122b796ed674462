"""Rounding: each rule by its name, from the data of two active ranks, and nothing made of outputs that are wrong otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_view import FakeView, before, correct, planned

from auditor import inputs
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import Call, Capabilities, Family, Finding, Planned, Trial, Verdict
from auditor.numerics.exact import exact_sums, exact_sums_of_integers
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import MODES, join, round_sums, split, up_by_mode, up_by_noise
from auditor.probes import coverage, mode, rounding

EVERYTHING = Capabilities(
    collectives=frozenset(("all_reduce", "reduce_scatter", "reduce")),
    ops=frozenset(("sum", "avg")),
    formats=frozenset(FORMATS),
)
GOLDEN = json.loads((Path(__file__).parent / "golden" / "b300_rule.json").read_text())


def scope_of(ranks: int = 2, **axes: object) -> Scope:
    sweep = {"format": ("bfloat16",), "count": (9, 4096), "shift": ((0, 0), (1, 1)), "repeats": 3, "seed": (0,), **axes}
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), EVERYTHING, Sweep(**sweep))


def plan_of(ranks: int = 2, **axes: object) -> list[Planned]:
    return planned(rounding.plan(scope_of(ranks, **axes)), "rounding")


def audit(output, plan=None, **more) -> dict[str, Finding]:
    found = list(rounding.analyze(FakeView(plan or plan_of(), output, **more)))
    assert len({f.kind for f in found}) == len(found)
    return {f.kind: f for f in found}


def by_rule(rule):
    """A subject whose direction for each sum is ``rule(trial, repeat, split, sums)``."""

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        sums = exact_sums(trial.call.fmt, inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank)))
        seen = split(trial.call.fmt, sums)
        return join(trial.call.fmt, seen, rule(trial, repeat, seen, sums))

    return output


def b300(trial: Trial, repeat: int, seen, sums) -> np.ndarray:
    """NUMERICS §1: bits 22 and 21 of the three neighbours' binary32 sums in the aligned 8-byte group."""
    words = round_sums(FORMATS["binary32"], sums, "ties_to_even").astype(np.uint64)
    words = np.concatenate([words, np.zeros(-len(words) % 4, np.uint64)]).reshape(-1, 4)
    noise = np.zeros(words.shape, np.uint64)
    for k in (1, 2, 3):
        other = np.roll(words, -k, axis=1)
        noise += ((other >> np.uint64(22)) & np.uint64(1)) << np.uint64(64 - k)
        noise += ((other >> np.uint64(21)) & np.uint64(1)) << np.uint64(64 - 3 - k)
    return up_by_noise(seen, noise.reshape(-1)[: len(seen)])


def stochastic(bits: int = 64, form: str = "SRFF"):
    def rule(trial: Trial, repeat: int, seen, sums) -> np.ndarray:
        rng = np.random.default_rng([repeat, int(trial.trial_id, 16)])
        noise = rng.integers(0, 1 << 64, len(seen), dtype=np.uint64, endpoint=False)
        noise &= np.uint64(~((1 << (64 - bits)) - 1) & (2**64 - 1))
        if form == "SRF":
            noise |= np.uint64(1 << (63 - bits))
        if form == "SRC":
            steps = np.rint(seen.rem.astype(np.float64) * 2.0 ** (bits - 64))
            return seen.inexact & (rng.random(len(seen)) < steps / 2.0**bits)
        return up_by_noise(seen, noise)

    return by_rule(rule)


# -------------------------------------------------------------------------------------------------------------- plan


def test_plan_takes_one_point_a_cell() -> None:
    scope = scope_of(
        4,
        format=("bfloat16", "float8_e5m2"),
        count=(3, 1 << 20, 1 << 21),
        in_place=(True, False),
        collective=("all_reduce", "reduce"),
    )
    trials = [t for t, _ in rounding.plan(scope)]
    assert {(t.call.count, t.send_shift, t.in_place, t.active) for t in trials} == {(1 << 20, 0, False, "pairs")}
    per_cell = [str(t.family) for t in trials if t.call.collective == "reduce" and t.call.format == "float8_e5m2"]
    assert per_cell == ["report132", "ties", "exhaustive"]
    assert len(trials) == 2 * (2 + 3)


def test_plan_follows_the_sweep_and_leaves_out_what_cannot_be() -> None:
    trials = [t for t, _ in rounding.plan(scope_of(family=(Family.parse("wide"),), op=("sum", "avg"), shift=((2, 2),)))]
    assert [str(t.family) for t in trials] == ["wide", "ties"]
    assert {t.active for t in trials} == {"all"}
    assert not list(rounding.plan(scope_of(1)))
    assert not list(rounding.plan(scope_of(count=(0,))))
    assert [t.call.count for t, _ in rounding.plan(scope_of(count=(1 << 21, 1 << 22)))] == [1 << 21] * 2


# -------------------------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize("name", [*FORMATS])
@pytest.mark.parametrize("rule", MODES)
def test_each_mode_by_its_name(name: str, rule: str) -> None:
    found = audit(correct(rule), plan_of(format=(name,)))
    measure = found["rounding_mode"].measure
    assert (measure["mode"], measure["consistent_modes"]) == (rule, [rule])
    assert measure["outside"] == measure["exact_wrong"] == 0
    assert measure["nearest"] + measure["toward_zero"] + measure["away"] == measure["inexact"]
    assert {f.verdict for f in found.values()} == {Verdict.INFORMATION, Verdict.PASS}


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_pairs_of_many_ranks(collective: str) -> None:
    found = audit(correct("ties_to_away"), plan_of(4, collective=(collective,), root=(2,)))
    assert found["rounding_mode"].measure["mode"] == "ties_to_away"
    assert found["rounding_mode"].scope["active"] == "pairs"
    assert found["rounding_mode"].measure["rank"] == (2 if collective == "reduce" else 0)


@pytest.mark.parametrize("name", ["bfloat16", "binary16"])
def test_golden_counts_of_the_b300_rule(name: str) -> None:
    call = Call(collective="all_reduce", op="sum", format=name, count=1 << 20)
    trial = Trial(call=call, rank_n=2, family=Family("report132"), seed=0)
    golden = GOLDEN[f"{name}_seed0"]
    measure = audit(by_rule(b300), [Planned(trial=trial, repeats=1, probes=("rounding",))])["rounding_mode"].measure
    assert measure["elements"] == 1 << 20
    assert measure["outside"] == 0
    for mine, theirs in (("inexact", "inexact"), ("nearest", "rne"), ("toward_zero", "toward_zero"), ("away", "away")):
        assert measure[mine] == golden[theirs]
    assert measure["mode"] == "mixed"
    assert measure["consistent_modes"] == []
    assert -0.053 < measure["mean_signed_error_ulp"] < -0.048


def test_a_neighbour_keyed_rule_on_few_elements_is_mixed_too() -> None:
    assert audit(by_rule(b300), plan_of(count=(2048,)))["rounding_mode"].measure["mode"] == "mixed"


@pytest.mark.parametrize(("bits", "form"), [(64, "SRFF"), (6, "SRFF"), (4, "SRFF"), (4, "SRF"), (5, "SRC")])
def test_stochastic_rounding_is_recognised(bits: int, form: str) -> None:
    found = audit(stochastic(bits, form), plan_of(count=(1 << 16,), repeats=2, seed=(2,)))["rounding_mode"]
    assert found.measure["mode"] == "stochastic"
    if bits < 5:
        assert found.measure["stochastic"]["noise_bits"] == bits
    assert found.verdict is Verdict.INFORMATION


def test_choices_by_a_coin_that_rem_does_not_weigh_are_mixed() -> None:
    rng = np.random.default_rng(1)
    subject = by_rule(lambda trial, repeat, seen, sums: seen.inexact & (rng.random(len(seen)) < 0.5))
    assert audit(subject, plan_of(count=(1 << 16,), repeats=2))["rounding_mode"].measure["mode"] == "mixed"


def test_another_rule_in_the_tail_is_mixed() -> None:
    def rule(trial: Trial, repeat: int, seen, sums) -> np.ndarray:
        up = up_by_mode("ties_to_even", seen)
        up[-1000:] = up_by_mode("toward_zero", seen)[-1000:]
        return up

    assert audit(by_rule(rule))["rounding_mode"].measure["mode"] == "mixed"


def test_few_data_leave_several_modes() -> None:
    found = audit(correct(), plan_of(count=(2,)))["rounding_mode"].measure
    assert found["mode"] in ("undetermined", "ties_to_even")
    trial = Trial(
        call=Call(collective="all_reduce", op="sum", format="bfloat16", count=64),
        rank_n=2,
        family=Family("order_exact"),
        seed=0,
    )
    exact = audit(correct(), [Planned(trial=trial, repeats=2, probes=("rounding",))])
    assert exact["rounding_mode"].verdict is Verdict.INCONCLUSIVE
    assert "has to be rounded" in exact["rounding_mode"].claim


def test_ties_narrow_what_the_main_trial_leaves() -> None:
    plan = plan_of(family=(Family.parse("wide:dist=lognormal"),), format=("binary32",), count=(64,))
    found = audit(correct("ties_to_away"), plan)["rounding_mode"].measure
    assert found["mode"] == "ties_to_away"
    assert len(found["narrowed_by"]) == 1


# ------------------------------------------------------------------------------------------------------- expectations


@pytest.mark.parametrize(("stated", "verdict"), [("ties_to_even", Verdict.PASS), ("toward_zero", Verdict.FAIL)])
def test_expected_mode(stated: str, verdict: Verdict) -> None:
    assert audit(correct(), expect={"rounding_mode": stated})["rounding_mode"].verdict is verdict


def test_expected_mode_that_the_data_do_not_decide() -> None:
    def first_only(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        return correct()(trial, repeat, rank)

    plan = [p for p in plan_of(count=(3,), family=(Family.parse("wide"),)) if p.trial.family.name == "wide"]
    found = audit(first_only, plan, expect={"rounding_mode": "ties_to_even"})["rounding_mode"]
    assert (found.measure["mode"], found.verdict) == ("undetermined", Verdict.INCONCLUSIVE)


# ------------------------------------------------------------------------------------------------ faults of other kinds


def test_a_bit_that_flips_in_every_tenth_call_does_not_spoil_the_mode() -> None:
    calls: dict[tuple, int] = {}

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct()(trial, repeat, rank).copy()
        if calls.setdefault((trial.trial_id, repeat), len(calls)) % 10 == 0:
            codes[7] ^= 1
        return codes

    found = audit(output)
    assert found["rounding_mode"].measure["mode"] == "ties_to_even"
    assert found["rounding_mode"].measure["unstable"] == 1
    assert found["not_faithful"].verdict is Verdict.PASS


def lacking_rank_1(trial: Trial, repeat: int, rank: int) -> np.ndarray:
    terms = inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))
    return round_sums(trial.call.fmt, exact_sums(trial.call.fmt, [terms[0], *terms[2:]]), "ties_to_even")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_missing_term_is_not_called_a_rounding(ranks: int) -> None:
    found = audit(lacking_rank_1, plan_of(ranks))
    assert {f.verdict for f in found.values()} <= {Verdict.INCONCLUSIVE, Verdict.INFORMATION, Verdict.PASS}
    assert found["not_faithful"].verdict is Verdict.INCONCLUSIVE
    assert "missing term" in found["not_faithful"].claim
    assert found["rounding_mode"].verdict is Verdict.INCONCLUSIVE


def test_unwritten_elements_are_left_out() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct()(trial, repeat, rank).copy()
        codes[::2] = before(trial, repeat, rank)[::2]
        return codes

    found = audit(output)
    assert found["rounding_mode"].measure["mode"] == "ties_to_even"
    assert found["rounding_mode"].measure["elements"] == 2048
    assert found["not_faithful"].verdict is Verdict.PASS


def test_damaged_values_are_left_to_coverage() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct()(trial, repeat, rank).copy()
        codes[3] ^= 0x0C40
        return codes

    plan = [*plan_of(), *planned(coverage.plan(scope_of()), "coverage")]
    assert audit(output, plan)["not_faithful"].verdict is Verdict.INCONCLUSIVE
    assert audit(output)["not_faithful"].verdict is Verdict.FAIL  # without exact data nothing else is known


def test_neither_neighbour_is_not_faithful() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct()(trial, repeat, rank)
        sums = exact_sums(trial.call.fmt, inputs.terms(trial, repeat, 0, trial.call.count))
        return codes + split(trial.call.fmt, sums).inexact.astype(codes.dtype) * codes.dtype.type(2)

    found = audit(output)
    assert found["not_faithful"].verdict is Verdict.FAIL
    assert found["not_faithful"].evidence
    assert found["rounding_mode"].verdict is Verdict.INCONCLUSIVE


def test_changing_exact_sums_is_not_faithful() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct("toward_zero")(trial, repeat, rank).copy()
        sums = exact_sums(trial.call.fmt, inputs.terms(trial, repeat, 0, trial.call.count))
        exact = ~split(trial.call.fmt, sums).inexact & (codes != 0)
        exact[5:] = False
        exact[np.flatnonzero(~split(trial.call.fmt, sums).inexact)[:3]] = True
        codes[exact] += 1
        return codes

    assert audit(output)["not_faithful"].verdict is Verdict.FAIL


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "binary16"])
def test_flushing_and_saturation_are_specials(name: str) -> None:
    fmt = FORMATS[name]

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        codes = correct()(trial, repeat, rank).copy()
        magnitude = codes & codes.dtype.type(fmt.magnitude_mask)
        codes[magnitude < (1 << fmt.mantissa_bits)] = 0
        codes[magnitude == fmt.overflow_code] -= 1
        return codes

    found = audit(output, plan_of(format=(name,), count=(1 << 16,), repeats=2))
    assert found["not_faithful"].verdict is Verdict.PASS
    assert found["rounding_mode"].measure["mode"] == "ties_to_even"


def test_no_output_is_inconclusive() -> None:
    found = audit(correct(), details=lambda t, j, r: {"status": "hang"})
    assert {f.verdict for f in found.values()} == {Verdict.INCONCLUSIVE}
    assert "hang" in found["rounding_mode"].claim


# ----------------------------------------------------------------------------------------------------- double rounding


@pytest.mark.parametrize(("name", "bits"), [("float8_e4m3fn", 8), ("bfloat16", 11), ("binary16", 16), ("binary64", 64)])
def test_rounding_twice_is_found(name: str, bits: int) -> None:
    extra = bits - FORMATS[name].precision
    subject = by_rule(lambda trial, repeat, seen, sums: mode.twice(seen, extra, to_even=True))
    found = audit(subject, plan_of(format=(name,), count=(1 << 15,)))
    assert found["double_rounding"].measure["first_rounding_bits"] == bits
    assert found["double_rounding"].verdict is Verdict.INFORMATION


def test_rounding_once_passes_with_what_was_resolved() -> None:
    found = audit(correct(), plan_of(count=(1 << 15,)))["double_rounding"]
    assert found.verdict is Verdict.PASS
    assert 11 in found.measure["resolved_bits"]
    assert "18 or more bits" in found.limits


def test_twice_agrees_with_two_casts() -> None:
    """bfloat16 through 11 bits, by two roundings of integers."""
    values = np.random.default_rng(2).integers(1 << 20, 1 << 21, 5000)
    seen = split(FORMATS["bfloat16"], exact_sums_of_integers(values, -20))
    half = round_sums(FORMATS["binary16"], exact_sums_of_integers(values, -20), "ties_to_even")
    again = round_sums(FORMATS["bfloat16"], exact_sums_of_integers(_integers(half), -20), "ties_to_even")
    assert (join(FORMATS["bfloat16"], seen, mode.twice(seen, 3, to_even=True)) == again).all()


def _integers(half: np.ndarray) -> np.ndarray:
    return (half.view(np.float16).astype(np.float64) * 2.0**20).astype(np.int64)
