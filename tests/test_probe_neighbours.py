"""Neighbours: a hidden rule is named from results alone, and nothing is called keyed by neighbours that is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import outside_subjects
import pytest
from driven_view import drive
from fake_view import FakeView, planned

from auditor import inputs
from auditor.backends.simulator import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.errors import BackendError, ConfigError
from auditor.inputs import contexts
from auditor.model import Capabilities, Family, Finding, Planned, Trial, Verdict
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import join, round_sums, split, up_by_mode
from auditor.probes import neighbours
from auditor.probes.neighbours import formula as formulas
from auditor.probes.neighbours import influence
from auditor.probes.neighbours.formula import ONE, Formula, Seen, predict, regular, seen_from, structure, text

BF16, FP16 = FORMATS["bfloat16"], FORMATS["binary16"]
EVERYTHING = Capabilities(
    collectives=frozenset(("all_reduce", "reduce_scatter", "reduce")),
    ops=frozenset(("sum", "avg")),
    formats=frozenset(FORMATS),
)
N = 1 << 15
B300 = (
    "up iff rem + b22(q+1)/2 + b22(q+2)/4 + b22(q+3)/8 + b21(q+1)/16 + b21(q+2)/32 + b21(q+3)/64 >= 1, in aligned "
    "groups of 8 bytes"
)


def audit(
    options: dict[str, Any], *, backend: Any = Simulator, ranks: int = 2, expect: Any = None, **axes: Any
) -> Finding:
    sweep = Sweep(**{"format": ("bfloat16",), "count": (N,), "repeats": 3, "seed": (5,), **axes})
    (found,) = neighbours.analyze(drive(backend, sweep, [neighbours], rank_n=ranks, options=options, expect=expect))
    return found


def keyed(**options: Any) -> dict[str, Any]:
    return {"final": "neighbour_keyed", "keyed_formats": ["bfloat16", "binary16"], **options}


# ------------------------------------------------------------------------------------------------------------- the data


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("rank_n", [2, 3, 5])
def test_sums_are_what_was_chosen(fmt: Format, rank_n: int) -> None:
    room = contexts.space(fmt)
    fine = min(room.depth, contexts.pieces_of(fmt, rank_n) * fmt.precision)
    narrow = fmt.precision < 24
    for part in ("sparse", "dense", "constant", *(("scan",) if narrow else ())):
        want = contexts.chosen(fmt, 3, part, "none", fine)
        family = Family.parse(f"neighbours:part={part}")
        terms = [inputs.generate(family, fmt, 3, rank_n, rank, 0, 4096) for rank in range(rank_n)]
        sums = exact_sums(fmt, terms)
        seen = split(fmt, sums)
        assert np.array_equal(seen.rem >> np.uint64(64 - room.depth), want.rest[:4096])
        assert np.array_equal(sums.sig << np.uint64(1) >> np.uint64(64 - room.bits), want.kept[:4096])
        assert np.array_equal(sums.exp + 63, room.low + want.above[:4096])
        assert np.array_equal(sums.negative, want.negative[:4096])
        assert not seen.sticky.any()
        magnitudes = np.stack(terms) & fmt.dtype.type(fmt.magnitude_mask)
        assert ((magnitudes == 0) | (magnitudes >= 1 << fmt.mantissa_bits)).all(), (
            "a flushed subnormal would be another sum"
        )


def test_redraws_leave_the_others_and_a_turn_keeps_the_sums() -> None:
    base, one, odd = (contexts.chosen(BF16, 3, "dense", which, 8) for which in contexts.REDRAWS)
    at = np.arange(contexts.PERIOD)
    drawn = at % 32 == np.repeat(contexts.picked(BF16, 3), 32)
    assert np.array_equal(base.rest[~drawn], one.rest[~drawn])
    assert np.array_equal(base.kept[~drawn], one.kept[~drawn])
    assert (base.rest[drawn] != one.rest[drawn]).mean() > 0.9
    assert np.array_equal(base.kept[::2], odd.kept[::2])
    assert (base.kept[1::2] != odd.kept[1::2]).mean() > 0.9
    terms = [
        [inputs.generate(Family.parse(f"neighbours:turn={k}"), BF16, 3, 2, r, 0, 512) for r in (0, 1)] for k in (0, 1)
    ]
    assert np.array_equal(terms[0][0], terms[1][1])
    assert not np.array_equal(terms[0][0], terms[1][0])


def test_a_sparse_block_has_few_sources() -> None:
    data = contexts.chosen(FP16, 3, "sparse", "none", 11)
    sources = ((data.kept != 0) | data.negative | (data.above != 0)).reshape(-1, 32).sum(axis=1)
    assert np.bincount(sources)[:4].argmax() == 1
    assert sources.max() == 3
    assert (sources == 0).any()


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("rank_n", [2, 3])
def test_a_scan_turns_one_bit_of_one_word_in_64_or_keeps_the_sum(name: str, rank_n: int) -> None:
    fmt, words, terms = FORMATS[name], {}, {}
    for toggle in contexts.TOGGLES:
        family = Family.parse(f"neighbours:part=scan,toggle={toggle}")
        terms[toggle] = [inputs.generate(family, fmt, 3, rank_n, rank, 0, contexts.PERIOD) for rank in range(rank_n)]
        words[toggle] = round_sums(FORMATS["binary32"], exact_sums(fmt, terms[toggle]), "toward_zero")
        assert not split(FORMATS["binary32"], exact_sums(fmt, terms[toggle])).inexact.any()
    layout, bits = contexts.scan_of(fmt, 3), contexts.scanned_bits(fmt)
    places = [31 if b == "s" else 23 + int(b[1:]) if b[0] == "e" else int(b[1:]) for b in bits]
    turned = words["none"] ^ words["bit"]
    assert np.array_equal(np.flatnonzero(turned), layout.at)
    assert np.array_equal(turned[layout.at], np.array([1 << place for place in places], np.uint32)[layout.which])
    assert np.array_equal(words["none"], words["terms"])
    other = np.any([terms["none"][rank] != terms["terms"][rank] for rank in range(rank_n)], axis=0)
    assert np.array_equal(np.flatnonzero(other), layout.at[layout.zero])
    assert ((layout.at % 64 >= 16) & (layout.at % 64 < 48)).all()
    assert (np.bincount(layout.which) >= contexts.PERIOD // 64 // len(bits)).all()


def test_bits_that_can_be_turned() -> None:
    assert contexts.scanned_bits(BF16) == (
        "s",
        *(f"e{k}" for k in range(7, -1, -1)),
        *(f"b{k}" for k in range(22, -1, -1)),
    )
    assert [name for name in influence.WORD if name not in contexts.scanned_bits(FP16)] == ["e7", "e6", "e5", "e4"]
    with pytest.raises(ConfigError, match="8- and 16-bit formats"):
        inputs.check(Family.parse("neighbours:part=scan"), FORMATS["binary32"], 2)


def test_padded_sums_stand_alone() -> None:
    family = Family.parse("neighbours:part=padded")
    terms = np.stack([inputs.generate(family, BF16, 3, 2, rank, 0, 1 << 15) for rank in (0, 1)])
    blocks = (terms != 0).any(axis=0).reshape(-1, 32)
    assert blocks.sum() > 1000
    assert (blocks.sum(axis=1) <= 1).all()
    assert not terms[:, ~contexts.alone(BF16, 3)[: 1 << 15]].any()  # +0, as a library pads


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("part=dense,toggle=bit", "part=scan takes none, bit, terms"),
        ("part=scan,toggle=both", "part=scan takes"),
        ("part=scan,redraw=odd", "part=dense"),
        ("part=thick", "sparse, dense"),
        ("redraw=all", "none, one, odd"),
        ("part=sparse,redraw=odd", "part=dense"),
        ("turn=x", "turn"),
    ],
)
def test_arguments_that_do_not_exist_are_refused(wrong: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        inputs.check(Family.parse(f"neighbours:{wrong}"), BF16, 2)


# ----------------------------------------------------------------------------------------------------------------- plan


def plan_of(ranks: int = 2, capabilities: Capabilities = EVERYTHING, **axes: Any) -> list[Planned]:
    sweep = Sweep(**{"format": ("bfloat16",), "count": (9, 1 << 20), "seed": (4, 7), **axes})
    return planned(
        neighbours.plan(Scope(ArmSpec(name="a", backend="fake", ranks=ranks), capabilities, sweep)), "neighbours"
    )


def test_one_cell_a_format_is_looked_at_in_full() -> None:
    plan = plan_of(4, collective=("reduce_scatter", "all_reduce"), format=("bfloat16", "binary32"), op=("sum", "avg"))
    cells: dict[tuple[str, str], list[Trial]] = {}
    for one in plan:
        cells.setdefault((one.trial.call.collective, one.trial.call.format), []).append(one.trial)
    assert {name: len(trials) for name, trials in cells.items()} == {
        ("all_reduce", "bfloat16"): 23,
        ("all_reduce", "binary32"): 5,
        ("reduce_scatter", "bfloat16"): 5,
        ("reduce_scatter", "binary32"): 5,
    }
    assert {t.call.count for t in cells["all_reduce", "bfloat16"]} == {1 << 17}
    assert {t.call.count for t in cells["reduce_scatter", "bfloat16"]} == {1 << 14}
    assert sum(one.repeats for one in plan if one.trial in cells["all_reduce", "bfloat16"]) <= 29
    assert {t.active for t in cells["all_reduce", "bfloat16"]} == {"0,1", "0,1,2"}  # two pieces of 8 bits make 16
    assert {t.call.op for trials in cells.values() for t in trials} == {"sum"}


def test_what_cannot_be_is_not_planned() -> None:
    assert plan_of(1) == []
    aligned = Capabilities.from_json({**EVERYTHING.to_json(), "element_alignment": 4})
    assert not any(one.trial.send_shift for one in plan_of(2, aligned))
    assert any(one.trial.send_shift for one in plan_of(2))


def test_a_small_sweep_plans_nothing_and_what_it_needs_is_stated() -> None:
    scope = Scope(ArmSpec(name="a", backend="simulator", ranks=2), EVERYTHING, Sweep(count=(1, 1026)))
    assert list(neighbours.plan(scope)) == []
    assert "count of at least 32,768" in neighbours.NEEDS


# ------------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("fmt", ["bfloat16", "binary16"])
def test_the_b300_rule_is_stated(fmt: str) -> None:
    found = audit({"preset": "b300"}, format=(fmt,), count=(1 << 17,))
    measure = found.measure
    assert found.verdict is Verdict.INFORMATION
    assert B300 in found.claim
    assert measure["held_out_agreement"] == 1.0
    assert measure["held_out_agreement_95"][0] > 0.9999
    assert (measure["group_bytes"], measure["order"], measure["noise_bits"], measure["form"]) == (
        8,
        "forward",
        2,
        "SRFF",
    )
    assert [row["log2"] for row in measure["weights"]] == [-1, -2, -3, -4, -5, -6]
    assert measure["groups_begin_by"] == "address"
    assert measure["keyed_by_the_sum"]
    rivals = measure["separated_from"]
    assert rivals["reversed order"]["elements"] > 10_000
    assert not rivals["reversed order"]["for_it"]
    assert set(measure["redrawn_by_offset"]) <= {str(k) for k in range(-3, 4)}
    assert "two ranks give no finer ones" in found.limits
    assert len(found.evidence) == 2
    assert all(row.observed != row.expected for row in found.evidence)


def test_the_scan_shows_which_bits_of_which_neighbours_matter_and_no_others() -> None:
    found = audit({"preset": "b300"})
    rows = {(row["offset"], row["bit"]): row for row in found.measure["influence"] if row["changed"]}
    assert set(rows) == {(offset, bit) for offset in (-3, -2, -1, 1, 2, 3) for bit in ("b22", "b21")}
    assert all(row["up_where_set"] == row["changed"] for row in rows.values())  # a set bit is noise, never less of it
    assert rows[1, "b22"]["changed"] > rows[3, "b22"]["changed"] > 0
    low, high = rows[1, "b22"]["rate_95"]
    assert low < rows[1, "b22"]["changed"] / rows[1, "b22"]["tested"] < high
    quiet = {row["bit"]: row for row in found.measure["influence"] if not row["changed"]}
    assert set(quiet) == set(contexts.scanned_bits(BF16))
    assert len(quiet["b20"]["offset"]) == 33
    assert sorted(quiet["b22"]["offset"]) == [k for k in range(-16, 17) if not 1 <= abs(k) <= 3]
    assert len(quiet["b0"]["offset"]) == 32  # the element's own remainder is not turned
    assert quiet["s"]["rate_95"][1] < 0.002
    tested = found.measure["influence_tested"]
    assert (tested["cells_that_matter"], tested["bits_not_tested"]) == (12, [])
    assert tested["toggles"] == sum(row["tested"] for row in found.measure["influence"])
    assert tested["further_off_changed"] == 0 < tested["further_off_tested"]
    assert (found.measure["raises"], found.measure["lowers"]) == (["b22", "b21"], [])
    kept = found.measure["terms_changed_sum_kept"]
    assert kept["changed"] == 0 < kept["tested"]


def test_zero_padding_is_measured_and_bias_has_intervals() -> None:
    found = audit({"preset": "b300"}, count=(1 << 17,))
    padded = found.measure["padding"]
    assert padded["modes"] == ["toward_zero"]
    assert (padded["changed_between_repeats"], padded["elements"] > 3000) == (0, True)
    low, high = padded["mean_signed_error_95"]
    assert low < padded["mean_signed_error_ulp"] < high < -0.4
    assert abs(padded["ties_to_even_ulp"]) < 0.05
    assert "zeros all around are the same in every repeat, as toward_zero, and off by -0.5" in found.limits
    top = found.measure["bias_of_equal_sums_by_top_bits"]
    # Noise 0, 7/64, 7/8 and 63/64 on remainders 1/32, 3/32, ...
    means = {name: row["mean_signed_error_ulp"] for name, row in top.items()}
    assert means == pytest.approx({"00": -0.5, "01": -0.375, "10": 0.375, "11": 0.5})
    assert all(
        row["mean_signed_error_95"][0] < means[name] < row["mean_signed_error_95"][1] for name, row in top.items()
    )
    assert found.measure["bias"]["wide"]["mean_signed_error_95"][1] < 0
    low, high = found.measure["bias"]["smooth"]["mean_signed_error_95"]
    assert low < found.measure["bias"]["smooth"]["mean_signed_error_ulp"] < high
    assert "from -0.500 to +0.500 on equal ones" in found.claim


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"noise_bits": 3}, (8, "forward", 3, 3, "SRFF")),
        ({"neighbour_order": "reversed"}, (8, "reversed", 2, 2, "SRFF")),
        ({"form": "SRC"}, (8, "forward", 2, 2, "SRC")),
        ({"form": "SRF"}, (8, "forward", 2, 2, "SRF")),
        ({"form": "SRC", "noise_bits": 5, "neighbour_order": "reversed"}, (8, "reversed", 5, 5, "SRC")),
        ({"group_bytes": 4, "noise_bits": 4}, (4, "either", 4, 4, "SRFF")),
        ({"group_bytes": 16, "form": "SRF"}, (16, "forward", 2, 2, "SRF")),
        ({"group_bytes": 32, "noise_bits": 3}, (32, "forward", 2, None, "undetermined")),
    ],
)
def test_other_rules_are_stated(options: dict[str, Any], name: tuple[Any, ...]) -> None:
    found = audit(keyed(**options), ranks=4, count=(1 << 16,))
    keys = ("group_bytes", "order", "noise_bits", "noise_bits_max", "form")
    assert tuple(found.measure[key] for key in keys) == name
    assert found.measure["held_out_agreement"] == 1.0
    if name[3] is None:
        assert "Further bits of a neighbour" in found.limits
        assert "SRFF, SRC and SRF" in found.limits


def test_an_element_that_takes_part_itself() -> None:
    found = audit(keyed(keyed_by="self_and_neighbours"))
    assert found.measure["own_bits_take_part"]
    assert "b22(q)/2 + b22(q+1)/4" in found.claim


@pytest.mark.parametrize("collective", ["reduce_scatter", "reduce"])
def test_other_collectives_and_ranks(collective: str) -> None:
    found = audit({"preset": "b300"}, collective=(collective,), ranks=3, count=(1 << 16,))
    assert B300 in found.claim


def test_a_dependence_that_is_forbidden_fails() -> None:
    assert audit({"preset": "b300"}, expect={"neighbour_dependence": False}).verdict is Verdict.FAIL


# -------------------------------------------------------------------------------------------- what is not by neighbours


@pytest.mark.parametrize("mode", ["ties_to_even", "ties_to_away", "toward_zero", "toward_negative"])
def test_modes(mode: str) -> None:
    found = audit({"final": mode})
    assert found.verdict is Verdict.PASS
    assert found.measure["modes"] == [mode]
    assert mode in found.claim
    assert found.measure["redrawn"]["one"]["changed"] == 0
    assert found.measure["redrawn"]["one"]["rate_95"][1] == pytest.approx(1.2e-4, rel=0.1)
    matter = {(row["offset"], row["bit"]) for row in found.measure["influence"] if row["changed"]}
    # The element's own last bit decides a tie to even, its sign where a directed mode goes; nobody else's bits do.
    assert matter == {"ties_to_even": {(0, "b16")}, "toward_negative": {(0, "s")}}.get(mode, set())
    assert "when one bit of an element at most 16 off is turned" in found.claim


@pytest.mark.parametrize(
    ("generator", "name"),
    [("call", "generator"), ("fixed", "index"), ("address", "send address"), ("value", "own bits")],
)
@pytest.mark.parametrize("noise_bits", [5, 16])
def test_generators(generator: str, name: str, noise_bits: int) -> None:
    found = audit({"final": "stochastic", "generator": generator, "noise_bits": noise_bits})
    assert found.verdict is Verdict.PASS
    assert found.measure["keyed_by"] == name
    assert ("influence" in found.measure) == (
        generator != "call"
    )  # nothing between trials that do not repeat themselves
    assert not any(row["offset"] for row in found.measure.get("influence", []) if row["changed"])


def test_place_is_open_without_shifts() -> None:
    class Aligned(Simulator):
        @classmethod
        def probe(cls, options: Any) -> Capabilities:
            return Capabilities.from_json({**Simulator.probe(options).to_json(), "element_alignment": 16})

    found = audit({"final": "stochastic"}, backend=Aligned)
    assert found.measure["keyed_by"] == "place"
    assert "is open" in found.claim


class FlipsOften(outside_subjects.Clean):
    """Every other call, the lowest bit of the first element."""

    def write(self, window: Any, values: Any) -> None:
        super().write(window, values)
        if self.calls % 2:
            window.buffer[window.offset] ^= 1


class Fails(outside_subjects.Clean):
    def run(self, call: Any, send: Any, recv: Any) -> None:
        raise BackendError("unhandled status 5: internal error")


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (outside_subjects.CountsTwice, "neither the exact sum"),
        (outside_subjects.SkipsOddStarts, "neither the exact sum"),
        (outside_subjects.AddsToPrefill, "neither the exact sum"),
        (FlipsOften, "neither the exact sum"),
        (Fails, "no call returned a result"),
    ],
)
def test_faults_are_not_called_rules(backend: Any, words: str) -> None:
    found = audit({}, backend=backend)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert words in found.claim


# ------------------------------------------------------------------------------------------------ rules of another kind


def by_rule(rule: Any) -> Any:
    """A subject whose directions are ``rule(trial, seen)``; groups of four by address."""

    def output(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        terms = inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))
        sums = exact_sums(trial.call.fmt, terms)
        seen = split(trial.call.fmt, sums)
        up = rule(trial, repeat, seen_from(seen, sums, np.zeros(len(seen), np.bool_), trial.send_shift))
        return join(trial.call.fmt, seen, up & seen.inexact)

    return output


def judged(rule: Any, count: int = N) -> Finding:
    (found,) = neighbours.analyze(FakeView(plan_of(count=(count,)), by_rule(rule)))
    return found


def neighbours_bits(seen: Seen, which: int, distance: int) -> np.ndarray:
    """That feature of the element ``distance`` further in the group of four that holds it, by index."""
    return np.roll(seen.feature(which).reshape(-1, 4), -distance, axis=1).reshape(-1)


def test_a_rule_that_is_not_additive_is_said_to_be() -> None:
    def parity(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        odd = neighbours_bits(seen, 0, 1) ^ neighbours_bits(seen, 0, 2) ^ neighbours_bits(seen, 0, 3)
        return seen.split.rem + np.where(odd, np.uint64(1 << 63), np.uint64(0)) < seen.split.rem

    found = judged(parity)
    assert found.verdict is Verdict.INFORMATION
    assert "not additive in these bits" in found.claim
    assert found.measure["held_out_agreement"] < 0.99


def test_bits_that_rem_holds_are_not_made_a_formula_of() -> None:
    def low(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        noise = np.where(neighbours_bits(seen, 7, 1), np.uint64(1 << 63), np.uint64(0))  # the first bit below bfloat16
        return seen.split.rem + noise < noise

    found = judged(low)
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["formula"] is None
    assert found.measure["redrawn"]["one"]["changed"] > 100
    assert set(found.measure["redrawn_by_offset"]) == {"1", "-3"}
    assert {row["bit"] for row in found.measure["influence"] if row["changed"]} == {
        "b15"
    }  # the scan sees what spectroscopy cannot


def test_over_one_and_weights_that_are_no_powers_of_two() -> None:
    def strict(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        return predict(Formula(4, regular(4, "forward", False, 2, "planes", 16), form="over 1"), seen, 0)[0]

    assert "> 1, in aligned groups of 8 bytes" in judged(strict).claim

    def third(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        return predict(Formula(4, {(1, 0): ONE // 3, (2, 0): ONE // 5}), seen, 0)[0]

    found = judged(third, 1 << 17)
    assert found.measure["order"] == "irregular"
    assert found.measure["groups_begin_by"] == "index"
    assert [row["weight"] for row in found.measure["weights"]] == pytest.approx([1 / 3, 1 / 5], rel=0.06)


def test_bits_that_lower_a_sum_and_terms_that_matter_by_themselves() -> None:
    def lowers(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        noise = np.where(neighbours_bits(seen, 0, 1), np.uint64(0), np.uint64(1 << 63))
        return seen.split.rem + noise < noise

    found = judged(lowers)
    assert (found.measure["raises"], found.measure["lowers"]) == ([], ["b22"])

    def by_terms(trial: Trial, repeat: int, rank: int) -> np.ndarray:
        """Keyed by the exclusive-or of what the ranks send, one element further on: equal sums need not round alike."""
        terms = inputs.terms(trial, repeat, *inputs.receiver_range(trial, rank))
        sums = exact_sums(trial.call.fmt, terms)
        seen = split(trial.call.fmt, sums)
        odd = np.roll(((terms[0] ^ terms[1]) & 1).reshape(-1, 4), -1, axis=1).reshape(-1) != 0
        noise = np.where(odd, np.uint64(1 << 63), np.uint64(0))
        return join(trial.call.fmt, seen, (seen.rem + noise < noise) & seen.inexact)

    (found,) = neighbours.analyze(FakeView(plan_of(count=(N,)), by_terms))
    assert found.measure["keyed_by"] == "neighbours"
    assert found.measure["terms_changed_sum_kept"]["changed"] > 0
    assert found.measure.get("keyed_by_the_sum") is not True


def test_a_butterfly_is_told_from_a_ring() -> None:
    def butterfly(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        weights = {(d, 0): ONE >> d for d in (1, 2, 3)}
        return predict(Formula(4, weights, "xor"), seen, 0)[0]

    assert "b22(q^1)/2 + b22(q^2)/4 + b22(q^3)/8" in judged(butterfly).claim


def test_a_few_odd_sums_are_no_rule() -> None:
    def damaged(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        up = up_by_mode("ties_to_even", seen.split)
        up[::4096] = False
        return up

    found = judged(damaged)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "too few for a rule" in found.claim


def test_rare_changes_between_calls_are_no_generator() -> None:
    def flips(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        up = up_by_mode("ties_to_even", seen.split)
        up[::400] = repeat % 2
        return up

    assert "change between identical calls" in judged(flips).claim


def test_flips_that_neighbours_add_to_are_left_open() -> None:
    def both(trial: Trial, repeat: int, seen: Seen) -> np.ndarray:
        rng = np.random.default_rng([repeat, trial.send_shift])
        noise = rng.integers(0, 1 << 60, len(seen), dtype=np.uint64)
        noise += np.where(neighbours_bits(seen, 0, 1), np.uint64(1 << 63), np.uint64(0))
        return seen.split.rem + noise < noise

    found = judged(both)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "more often when neighbours are drawn anew" in found.claim


# ------------------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize("layout", ["planes", "elements"])
@pytest.mark.parametrize("order", ["forward", "reversed"])
@pytest.mark.parametrize("own", [False, True])
def test_structure_is_read_back(layout: str, order: str, own: bool) -> None:
    found = structure(Formula(8, regular(8, order, own, 2, layout, 16)), 16, 7)
    assert found is not None
    assert (found.layout, found.order, found.own, found.bits, found.bits_max) == (layout, order, own, 2, 2)
    cut = structure(Formula(8, regular(8, order, own, 3, layout, 16)), 16, 7)
    assert cut is not None
    assert cut.bits_max is None


def test_texts() -> None:
    odd = Formula(4, {(1, formulas.EXPONENT): ONE >> 1, (2, formulas.SIGN): ONE // 3}, form="SRF", noise_n=2)
    assert text(odd) == "up iff rem + e0(q+1)/2 + s(q+2)*0.333333 + 1/8 >= 1"
    assert text(odd.with_form("SRC")).startswith("up iff rem rounded to 2 bits + e0")
    assert structure(odd, 16, 7) is None


@pytest.mark.parametrize("form", ["SRFF", "SRC", "SRF"])
def test_predictions_agree_with_the_simulator(form: str) -> None:
    from auditor.backends.simulator.keyed import up_by_form

    rng = np.random.default_rng(3)
    terms = [rng.integers(0x3F00, 0x4000, 4096).astype(np.uint16) for _ in range(2)]
    sums = exact_sums(BF16, terms)
    seen = split(BF16, sums)
    noise = rng.integers(0, 64, 4096).astype(np.uint64) << np.uint64(58)
    made = formulas.up_of(Formula(4, {}, form=form, noise_n=6), seen, noise)
    assert np.array_equal(made, up_by_form(seen, noise, 6, form))


def test_the_confusion_table_is_printed() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "confusion.py"
    command = [sys.executable, str(script), "--seed", "3", "--rules", "3", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "| neighbours |" in done.stdout
    assert "3 of 3 named exactly" in done.stdout
