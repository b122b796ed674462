"""Tail: bytes around the send range that reach results inside it are found, and nothing else is laid at them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from driven_view import drive, of_kind, verdicts
from fake_view import FakeView, a_trial, correct, one
from outside_subjects import Clean, FlipsEveryTenth, LeavesTail, ReadsPast

from auditor import inputs
from auditor.backends.simulator.backend import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.errors import ConfigError
from auditor.model import Capabilities, Codes, Family, Finding, Trial, Verdict
from auditor.numerics import triggers
from auditor.numerics.exact import exact_sum_reference
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import round_reference, sum_reference
from auditor.probes import neighbours, repeatability, tail
from auditor.probes.fills import cells_of, deep_points

SWEEP = Sweep(
    collective=("all_reduce", "reduce_scatter"),
    format=("bfloat16",),
    count=(0, 1, 3, 9, 1026),
    shift=((0, 0), (1, 1), (4, 4)),
    in_place=(False, True),
    repeats=3,
    seed=(7,),
)
FEW = replace(SWEEP, collective=("all_reduce",), count=(0, 3, 9, 1026), shift=((0, 0), (1, 1)), repeats=2)
NCCL = replace(
    SWEEP,
    format=("bfloat16", "binary16", "binary32"),
    count=(1, 2, 3, 7, 1021, 1026, 2046, 1048576),
    shift=tuple((k, k) for k in (0, 1, 2, 3, 4, 8)),
)


def scope(sweep: Sweep = SWEEP, ranks: int = 4) -> Scope:
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), Clean.probe({}), sweep)


def finding(view: Any) -> Finding:
    (found,) = tail.analyze(view)
    return found


def with_fills(*fills: str, **changes: Any) -> list[Any]:
    return [one("wide", 2, "tail", head=fill, tail=fill, **changes) for fill in ("zero", *fills)]


def if_filled(change: Any) -> Any:
    """A subject that applies ``change(codes, trial)`` where the fill after the range is not zero."""

    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        if trial.tail != "zero":
            change(codes, trial)
        return codes

    return subject


def last_bit(codes: Codes, trial: Trial) -> None:
    codes[-1] ^= 1


# ------------------------------------------------------------------------------------------------------------------ plan


def test_plan_is_affordable_on_a_large_sweep_and_shares_its_baselines() -> None:
    mine = dict(tail.plan(scope(NCCL, 2)))
    shared = set(dict(repeatability.plan(scope(NCCL, 2))))
    own = {t: n for t, n in mine.items() if t not in shared}
    assert 300 <= len(own) <= 520
    assert set(own.values()) == {2}
    assert sum(t.call.count == 1048576 for t in mine) <= 2 * 6
    for form in NCCL.format:
        fills = {t.tail for t in own if t.call.format == form}
        assert {"nan", "huge", "finite", "random:0", "trigger:A", "trigger:B"} <= fills
    assert {f"random:{k}" for k in range(64)} <= {t.tail for t in own}


def test_every_trial_has_a_partner_that_differs_in_fills_alone() -> None:
    by_ground: dict[Trial, set[tuple[str, str]]] = {}
    for trial, _ in tail.plan(scope()):
        by_ground.setdefault(trial.with_(head="zero", tail="zero"), set()).add((trial.head, trial.tail))
    for ground, fills in by_ground.items():
        assert len(fills) > 1 or ground.prefill == "snan_b"


def test_sides_are_varied_alone_and_data_are_varied_under_the_random_fills() -> None:
    trials = [t for t, _ in tail.plan(scope())]
    assert any(t.head != "zero" and t.tail == "zero" for t in trials)
    assert any(t.tail != "zero" and t.head == "zero" for t in trials)
    randoms = [t for t in trials if t.tail.startswith("random") and t.seed != 7]
    assert len({t.seed for t in randoms}) >= 4
    assert len({(t.call.count, t.send_shift) for t in randoms}) >= 2


def test_many_fills_go_where_the_range_ends_within_a_word_once_aligned_and_once_not() -> None:
    for points in cells_of(scope(NCCL, 2)):
        first, moved, other = deep_points(points)
        size = first.call.fmt.itemsize
        assert first.send_count * size % 16
        assert first.send_shift == 0
        assert not first.in_place
        assert moved.call.count == first.call.count
        assert moved.send_shift * size % 16
        assert other.in_place


def test_triggers_need_ranks_zero_and_one_and_huge_sweeps_stay_small() -> None:
    assert not [t for t, _ in tail.plan(scope(ranks=1)) if t.family.name == "tail_trigger"]
    large = replace(SWEEP, count=(1 << 24,), collective=("all_reduce",))
    assert len(list(tail.plan(scope(large)))) < 60
    assert not list(tail.plan(scope(replace(SWEEP, count=(0,)))))


@pytest.mark.parametrize("name", [fmt.name for fmt in FORMATS.values() if fmt.precision < 24])
def test_single_bits_and_sums_that_they_tip(name: str) -> None:
    fmt, wide = FORMATS[name], FORMATS["binary32"]
    words = {
        bit: sum_reference(fmt, triggers.beside(fmt, bit) or (), "toward_zero", to=wide)
        for bit in ("0", "all", *triggers.bits(fmt))
    }
    for bit in triggers.bits(fmt):
        place = 31 if bit == "s" else 23 + int(bit[1:]) if bit[0] == "e" else int(bit[1:])
        assert words["0"] ^ words[bit] == 1 << place
    assert (words["0"] ^ words["all"]).bit_count() >= 2 * fmt.precision - 2
    for rem, wanted in (("high", 1 - Fraction(1, 1 << fmt.precision)), ("low", Fraction(1, 1 << fmt.precision))):
        codes = triggers.tipped(fmt, rem)
        if codes is None:
            continue
        numerator, exponent = exact_sum_reference(fmt, codes)
        gap = Fraction(2) ** (triggers.exponent(fmt) - fmt.mantissa_bits)
        assert (Fraction(numerator) * Fraction(2) ** exponent / gap) % 1 == wanted
        trial = a_trial(f"tail_trigger:rem={rem}", format=name, rank_n=3, count=2)
        assert [int(term[1]) for term in inputs.terms(trial, 0, 0, 2)] == [*codes, 0]


def test_a_remainder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of high, low"):
        inputs.check(Family.parse("tail_trigger:rem=middle"), FORMATS["bfloat16"], 2)
    assert triggers.beside(FORMATS["binary32"], "b22") is None
    assert triggers.beside(FORMATS["bfloat16"], "b23") is None


@pytest.mark.parametrize("name", list(FORMATS))
def test_trigger_family_sums_to_one_and_seven_eighths_ulp(name: str) -> None:
    fmt = FORMATS[name]
    trial = a_trial("tail_trigger", format=name, rank_n=3, count=2)
    codes = [int(term[1]) for term in inputs.terms(trial, 0, 0, 2)]
    numerator, exponent = exact_sum_reference(fmt, codes)
    eighth = -(fmt.precision - 1) - 3  # exponent of an eighth of an ulp of 1
    assert Fraction(numerator) * Fraction(2) ** (exponent - eighth) == (1 << (fmt.precision + 2)) + 7
    assert codes[2] == 0


# ------------------------------------------------------------------------------------------------------------ whole subjects


@pytest.mark.parametrize("subject", [Clean, LeavesTail, FlipsEveryTenth])
def test_subjects_that_read_nothing_foreign_do_not_fail(subject: type[Clean]) -> None:
    view = drive(subject, FEW, [tail])
    assert verdicts(tail, view) == {"foreign_read": {"PASS"}}


def test_reading_past_the_end_is_found_everywhere() -> None:
    view = drive(ReadsPast, FEW, [tail])
    for found in of_kind(tail, view, "foreign_read"):
        assert found.verdict is Verdict.FAIL
        by_side = found.measure["by_side"]
        assert by_side["tail"]["changed_pairs"] == by_side["tail"]["pairs"] > 0
        assert "past the end" in found.claim
        assert "before" not in found.claim
        assert list(found.measure["changed_by_distance_from_end"]) == ["0"]
        assert by_side["head"]["changed_pairs"] == 0


class AddsForeign(Clean):
    """One lane too many on one side is added to the element next to it, at one residue of the range alone."""

    before = False

    def run(self, call: Any, send: Any, recv: Any) -> None:
        super().run(call, send, recv)
        dtype = np.dtype({"bfloat16": ml_dtypes.bfloat16}[call.format])
        item = dtype.itemsize
        first = next(iter(send.values()))
        edge = first.offset if self.before else first.offset + first.nbytes
        if edge % 8 != 2 or not call.count:
            return
        lanes = [w.offset - item if self.before else w.offset + w.nbytes for w in send.values()]
        with np.errstate(all="ignore"):
            extra = sum(
                w.buffer[at : at + item].view(dtype).astype(np.float64)
                for w, at in zip(send.values(), lanes, strict=True)
            )
            window = recv[0] if self.before else recv[max(recv)]
            at = window.offset if self.before else window.offset + window.nbytes - item
            code = window.buffer[at : at + item].view(dtype)
            code[:] = (code.astype(np.float64) + extra).astype(dtype)


class AddsHead(AddsForeign):
    before = True


@pytest.mark.parametrize(("subject", "words"), [(AddsForeign, "past the end"), (AddsHead, "before the start")])
def test_one_foreign_lane_at_one_residue_is_found_on_its_side(subject: type[Clean], words: str) -> None:
    view = drive(subject, FEW, [tail, repeatability])
    for found in of_kind(tail, view, "foreign_read"):
        assert found.verdict is Verdict.FAIL
        assert words in found.claim
    assert "FAIL" not in {v for seen in verdicts(repeatability, view).values() for v in seen}


@pytest.mark.parametrize("options", [{}, {"neighbour_order": "reversed"}, {"noise_bits": 3}, {"form": "SRC"}])
def test_rounding_by_neighbours_past_the_end_is_found(options: dict[str, Any]) -> None:
    sweep = Sweep(format=("bfloat16", "binary32"), shift=((0, 0),), count=(8, 1026), repeats=2, seed=(7,))
    view = drive(Simulator, sweep, [tail], rank_n=2, options={"preset": "b300", **options})
    seen = {found.scope["format"]: found for found in of_kind(tail, view, "foreign_read")}
    assert seen["bfloat16"].verdict is Verdict.FAIL
    assert seen["binary32"].verdict is Verdict.PASS
    assert max(int(k) for k in seen["bfloat16"].measure["changed_by_distance_from_end"]) < 4  # the last 8-byte group


@pytest.mark.parametrize("options", [{"rule": False}, {"read_past": "zero"}, {"read_past": False}])
def test_the_same_models_that_read_nothing_foreign_pass(options: dict[str, Any]) -> None:
    sweep = replace(SWEEP, shift=((0, 0), (1, 1)), in_place=(False,), count=(3, 1026))
    view = drive(Simulator, sweep, [tail], rank_n=2, options={"preset": "b300", **options})
    assert verdicts(tail, view) == {"foreign_read": {"PASS"}}


def single_bit(bit: int, *, lowers: bool = False) -> Any:
    """A subject whose last element takes 1/4 of a gap of noise from one bit of what follows it, or gives that up for it."""

    class Subject(Clean):
        def run(self, call: Any, send: Any, recv: Any) -> None:
            super().run(call, send, recv)
            if call.format != "bfloat16" or not call.count:
                return
            windows = list(send.values())
            words = np.array([[_word(w, call.count - 1), _word(w, call.count)] for w in windows], np.uint16)
            total = [exact_sum_reference(FORMATS["bfloat16"], [int(c) for c in words[:, k]]) for k in (0, 1)]
            foreign = sum_reference(
                FORMATS["bfloat16"], [int(c) for c in words[:, 1]], "toward_zero", to=FORMATS["binary32"]
            )
            noise = Fraction(1, 4) if bool(foreign >> bit & 1) is not lowers else Fraction(0)
            lo = round_reference(FORMATS["bfloat16"], *total[0], "toward_zero")
            low, _ = exact_sum_reference(FORMATS["bfloat16"], [lo])
            high, _ = exact_sum_reference(FORMATS["bfloat16"], [lo + 1])
            rem = Fraction(total[0][0] - low, high - low)
            for rank in call.receivers(len(windows)):
                window = recv[rank]
                at = window.offset + (call.count - 1) * 2
                window.buffer[at : at + 2] = np.array([lo + (rem + noise >= 1)], np.uint16).view(np.uint8)

    return Subject


def _word(window: Any, index: int) -> int:
    at = window.offset + index * 2
    return int(window.buffer[at : at + 2].view(np.uint16)[0])


@pytest.mark.parametrize("bit", [31, 23, 22, 19, 16, 15, 9])
@pytest.mark.parametrize("lowers", [False, True])
def test_whichever_single_bit_decides_it_is_named(bit: int, lowers: bool) -> None:
    """A rule of another bit than b22 and b21, or one that takes sums down: no luck is needed."""
    sweep = Sweep(format=("bfloat16",), shift=((0, 0),), count=(21,), repeats=2, seed=(7,))
    view = drive(single_bit(bit, lowers=lowers), sweep, [tail], rank_n=2)
    view.planned = [p for p in view.planned if p.trial.family.name == "tail_trigger" and p.trial.family.args]
    (found,) = of_kind(tail, view, "foreign_read")
    assert found.verdict is Verdict.FAIL
    name = "s" if bit == 31 else f"e{bit - 23}" if bit > 22 else f"b{bit}"
    moved = found.measure["foreign_bits_that_matter"]
    assert list(moved) == [name]
    # Beside sums of 2**-1 the lowest exponent bit is clear, and so is every other; turned, it is set.
    assert moved[name] == ({"up": 0, "down": 1} if lowers else {"up": 1, "down": 0})
    assert f"one bit of the foreign sum is enough, {name} of its word" in found.claim


def test_the_bits_that_decide_inside_the_range_are_recognised() -> None:
    sweep = Sweep(format=("bfloat16",), shift=((0, 0),), count=(1026, 1 << 15), repeats=2, seed=(7,))
    view = drive(Simulator, sweep, [tail, neighbours], rank_n=2, options={"preset": "b300"})
    (found,) = of_kind(tail, view, "foreign_read")
    assert "b22 and b21 of its word, the very bits by which elements inside the range are rounded" in found.claim


def test_the_trigger_alone_decides() -> None:
    sweep = replace(
        SWEEP, collective=("all_reduce",), shift=((0, 0),), in_place=(False,), count=(1, 2, 3, 1025, 1026, 1027)
    )
    view = drive(Simulator, sweep, [tail], rank_n=2, options={"preset": "b300"})
    high = ("tail_trigger", "tail_trigger:rem=high")  # by rem=low, six bits of noise take nothing up
    view.planned = [p for p in view.planned if str(p.trial.family) in high]
    (found,) = of_kind(tail, view, "foreign_read")
    assert found.verdict is Verdict.FAIL
    assert found.measure["points_changed"] == found.measure["points"] >= 3
    assert found.measure["by_fill"].keys() == {"trigger"}


# --------------------------------------------------------------------------------------------------------------- analyze


def test_evidence_shows_both_codes_and_where() -> None:
    found = finding(FakeView(with_fills("nan", count=21, send_shift=1), if_filled(last_bit)))
    assert found.verdict is Verdict.FAIL
    (row,) = found.evidence
    assert (row.index, row.rank) == (20, 0)
    assert int(row.observed, 16) ^ int(row.expected, 16) == 1
    assert found.measure["changed_by_send_address_mod_16"] == {"10": 1}  # (1 + 20) * 2 bytes
    assert found.measure["changed_by_send_address_mod_8"] == {"2": 1}
    assert found.measure["changed_pairs"] == found.measure["pairs"] == 1
    assert {found.scope["tail"][0], found.scope["tail"][1]} == {"nan", "zero"}


def test_nan_that_leaks_is_a_foreign_read() -> None:
    def leak(codes: Codes, trial: Trial) -> None:
        codes[-1] = trial.call.fmt.nan_code

    assert finding(FakeView(with_fills("nan"), if_filled(leak))).verdict is Verdict.FAIL


def test_pass_names_the_path_or_its_absence_in_limits() -> None:
    silent = finding(FakeView(with_fills("nan", "huge"), correct()))
    assert silent.verdict is Verdict.PASS
    assert "no path" in silent.limits
    spoken = finding(FakeView(with_fills("nan"), correct(), details=lambda *_: {"path": "RING/LL/4"}))
    assert "RING/LL/4" in spoken.limits
    assert spoken.measure["paths"] == ["RING/LL/4"]


def test_an_unstable_trial_is_no_basis() -> None:
    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[-1] ^= repeat if trial.tail != "zero" else 0
        return codes

    found = finding(FakeView(with_fills("nan"), subject))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "repeat themselves" in found.claim


def flipping(rate: float) -> Any:
    """Each call flips one bit with probability ``rate``, on all ranks alike, whatever the fills."""

    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        draw = np.random.default_rng([int(trial.trial_id, 16), repeat]).random()
        codes[0] ^= 1 if draw < rate else 0
        return codes

    return subject


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.5])
def test_flips_that_happen_to_agree_are_not_laid_at_the_fills(rate: float) -> None:
    trials = [p for seed in range(3) for p in with_fills(*(f"random:{k}" for k in range(30)), seed=seed)]
    assert finding(FakeView(trials, flipping(rate))).verdict in (Verdict.PASS, Verdict.INCONCLUSIVE)


def test_a_foreign_read_is_found_in_spite_of_rare_flips() -> None:
    rare = flipping(0.02)

    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = rare(trial, repeat, rank).copy()
        codes[-1] ^= 1 if trial.tail.endswith(("1", "3", "5", "7")) else 0
        return codes

    trials = [p for seed in range(3) for p in with_fills(*(f"random:{k}" for k in range(30)), seed=seed)]
    assert finding(FakeView(trials, subject)).verdict is Verdict.FAIL


def test_a_drift_that_the_control_shows_too_is_not_laid_at_the_fills() -> None:
    control = one("wide", 2, "tail", prefill="snan_b")

    def subject(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = correct()(trial, repeat, rank).copy()
        codes[0] ^= 1 if trial.tail == "nan" or trial.prefill == "snan_b" else 0  # an order that changed with time
        return codes

    found = finding(FakeView([*with_fills("huge", "nan"), control], subject))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "prefill" in found.claim


def test_expectation_makes_it_legal_and_a_crash_inconclusive() -> None:
    allowed = FakeView(with_fills("nan"), if_filled(last_bit), expect={"foreign_read": True})
    assert finding(allowed).verdict is Verdict.INFORMATION
    crashed = finding(FakeView(with_fills("nan"), correct(), details=lambda *_: {"status": "crash"}))
    assert crashed.verdict is Verdict.INCONCLUSIVE
    assert "crash" in crashed.claim


def test_only_the_members_shares_matter_in_a_reduce() -> None:
    offer = Capabilities(collectives=frozenset({"reduce"}), ops=frozenset({"sum"}), formats=frozenset({"bfloat16"}))
    sweep = replace(SWEEP, collective=("reduce",), root=(1,), count=(9,))
    plan = list(tail.plan(Scope(ArmSpec(name="a", backend="fake", ranks=4), offer, sweep)))
    assert plan
    trials = with_fills("nan", collective="reduce", root=1)
    found = finding(FakeView(trials, if_filled(last_bit)))
    assert {row.rank for row in found.evidence} == {1}
