"""Rules, legal outputs, planted errors and held-out orders, each against an independent way to the same answer."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest

from auditor import inputs
from auditor.calibrate import held_out, legal, planted, reference, rules
from auditor.calibrate.held_out import HeldOut
from auditor.calibrate.planted import Law
from auditor.calibrate.reference import Reference
from auditor.calibrate.rules import Known
from auditor.errors import ConfigError
from auditor.model import Family
from auditor.numerics.exact import decode_reference, exact_sum_reference
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_reference
from auditor.numerics.trees import leaves
from auditor.numerics.ulp_error import from_ordinals, ordinals

B32, BF16 = FORMATS["binary32"], FORMATS["bfloat16"]
SOME = pytest.mark.parametrize("fmt", [B32, BF16, FORMATS["binary16"], FORMATS["binary64"]], ids=lambda fmt: fmt.name)


def terms_of(fmt: Format, terms: int = 4, n: int = 150, family: str = "wide") -> list[np.ndarray]:
    return [inputs.generate(Family.parse(family), fmt, 5, terms, k, 0, n) for k in range(terms)]


def reference_of(fmt: Format, terms: list[np.ndarray]) -> Reference:
    from auditor.numerics.exact import exact_sums
    from auditor.probes.values import to_float64

    magnitude = sum(np.abs(to_float64(fmt, term)) for term in terms)
    return Reference(fmt, "exact", exact_sums(fmt, terms), np.asarray(magnitude), len(terms) - 1)


def rational(fmt: Format, code: int) -> Fraction:
    n, e = decode_reference(fmt, code)
    return Fraction(n) * Fraction(2) ** e


def exact_at(fmt: Format, terms: list[np.ndarray], index: int) -> Fraction:
    n, e = exact_sum_reference(fmt, [int(term[index]) for term in terms])
    return Fraction(n) * Fraction(2) ** e


def by_name(some: list[rules.Rule]) -> dict[str, rules.Rule]:
    return {rule.name: rule for rule in some}


# --------------------------------------------------------------------------------------------------------- reference


@SOME
def test_the_reference_is_the_exact_sum(fmt: Format) -> None:
    terms = terms_of(fmt)
    found = reference_of(fmt, terms)
    for index in range(0, 150, 7):
        exact = exact_at(fmt, terms, index)
        assert found.value[index] == pytest.approx(float(exact), rel=1e-15, abs=0)
        n, e = exact_sum_reference(fmt, [int(term[index]) for term in terms])
        assert int(found.nearest[index]) == round_reference(fmt, n, e, "ties_to_even")
    part = found.at(slice(10, 20))
    assert np.array_equal(part.nearest, found.nearest[10:20])
    assert np.array_equal(part.value, found.value[10:20])
    assert found.uncertainty_ulp() == 0.0


def test_rows_give_the_same_sums_in_integers_and_nearly_in_binary64() -> None:
    rows = np.stack(terms_of(B32, 300, 40)).view(np.float32)
    exact, float64 = (reference.of_rows(B32, rows, kind) for kind in ("exact", "float64"))
    for index in range(40):
        want = sum(Fraction(float(row[index])) for row in rows)
        assert exact.value[index] == pytest.approx(float(want), rel=1e-15)
    off = np.abs(float64.value - exact.value) / exact.ulp
    assert 0 < float64.uncertainty_ulp() < 1e-3
    assert off.max() <= float64.uncertainty_ulp()
    assert exact.magnitude is not None
    assert np.allclose(exact.magnitude, np.abs(rows.astype(np.float64)).sum(axis=0), rtol=1e-14)
    assert exact.condition is not None
    assert (exact.condition > 1).all()
    assert np.isnan(Reference(B32, "user:m.f", exact.sums).uncertainty_ulp())
    zeros = reference.of_rows(B32, np.zeros((3, 2), np.float32), "exact")
    cancelled = reference.of_rows(B32, np.array([[1.0], [-1.0]], np.float32), "exact")
    assert zeros.condition is not None
    assert cancelled.condition is not None
    assert (list(zeros.condition), list(cancelled.condition)) == ([1.0, 1.0], [np.inf])


# ------------------------------------------------------------------------------------------------------------- rules


@SOME
def test_every_rule_decides_as_its_definition_does(fmt: Format) -> None:
    """Outputs moved by 0, 1, ... steps, judged in rational arithmetic."""
    terms = terms_of(fmt)
    ref = reference_of(fmt, terms)
    every = legal.legal_outputs(fmt, terms)
    replay = legal.summed(legal.random_tree(4, 3, 0), terms, fmt, fmt)
    made = by_name(rules.rules(ref, Known(steps=3, replay=replay, legal=every)))
    rtol, atol = rules.TORCH[fmt.name]
    slack = rules.a_priori_slack(ref, directed=False)
    for steps in (0, 1, -1, 3, 4, -40, 3000):
        codes = from_ordinals(fmt, ordinals(fmt, ref.nearest) + steps)
        for index in range(0, 150, 11):
            exact, code = exact_at(fmt, terms, index), int(codes[index])
            if (code & fmt.magnitude_mask) > fmt.max_code:
                continue
            error = abs(rational(fmt, code) - exact)
            want = {
                "one_percent": error <= abs(exact) / 100,
                "numpy_allclose": error <= Fraction(1e-8) + Fraction(1e-5) * abs(exact),
                "numpy_assert_allclose": error <= Fraction(1e-7) * abs(exact),
                "torch_assert_close": error <= Fraction(atol) + Fraction(rtol) * abs(exact),
                "a_priori": error <= Fraction(float(slack[index])),
                "measured": abs(steps) <= 3,
                "nccl_tests": steps == 0,
                "faithful": steps == 0 or code in _around(fmt, terms, index),
                "legal_outputs": code in every[:, index],
                "replay": code == int(replay[index]),
            }
            for name, yes in want.items():
                assert bool(made[name].accepts(codes)[index]) == yes, (name, steps, index)
    assert [rule.name for rule in rules.rules(ref, Known())] == [
        *("one_percent", "numpy_allclose", "numpy_assert_allclose", "torch_assert_close", "a_priori", "faithful"),
        "nccl_tests",
    ]


def _around(fmt: Format, terms: list[np.ndarray], index: int) -> set[int]:
    n, e = exact_sum_reference(fmt, [int(term[index]) for term in terms])
    return {round_reference(fmt, n, e, mode) for mode in ("toward_positive", "toward_negative")}


def test_numpy_itself_agrees_about_its_defaults() -> None:
    ref = reference_of(B32, terms_of(B32))
    made = by_name(rules.rules(ref, Known()))
    for steps in range(0, 400, 13):
        codes = from_ordinals(B32, ordinals(B32, ref.nearest) + steps)
        got = codes.view(np.float32).astype(np.float64)
        assert np.array_equal(made["numpy_allclose"].accepts(codes), np.isclose(got, ref.value))
        assert np.array_equal(
            made["numpy_assert_allclose"].accepts(codes), np.isclose(got, ref.value, rtol=1e-7, atol=0)
        )


def test_nothing_accepts_a_nan() -> None:
    terms = terms_of(B32)
    ref = reference_of(B32, terms)
    known = Known(steps=1 << 62, absolute=1e30, replay=ref.nearest, legal=ref.nearest[None])
    codes = np.full(len(ref), B32.nan_code, B32.dtype)
    for rule in rules.rules(ref, known):
        assert not rule.accepts(codes).any(), rule.name


@pytest.mark.parametrize("terms", [2, 3, 4, 5])
@SOME
def test_the_a_priori_bound_holds_for_every_tree(fmt: Format, terms: int) -> None:
    data = terms_of(fmt, terms, 120, "wide:dist=lognormal")
    ref = reference_of(fmt, data)
    rule = by_name(rules.rules(ref, Known()))["a_priori"]
    for row in legal.legal_outputs(fmt, data):
        assert rule.accepts(row).all()
    with pytest.raises(ValueError, match="nothing bounds"):
        rules.a_priori_slack(Reference(fmt, "exact", ref.sums), directed=True)


# ------------------------------------------------------------------------------------------------------ legal outputs


def _shape(tree: Any) -> Any:
    """A tree up to the order of the two sides of an addition."""
    return tree if isinstance(tree, int) else frozenset(_shape(part) for part in tree)


@pytest.mark.parametrize(("terms", "count"), [(1, 1), (2, 1), (3, 3), (4, 15), (5, 105), (6, 945)])
def test_every_tree_is_listed_once(terms: int, count: int) -> None:
    every = list(legal.every_tree(terms))
    assert len(every) == len({_shape(tree) for tree in every}) == legal.tree_count(terms) == count
    assert all(sorted(leaves(tree)) == list(range(terms)) for tree in every)


def test_trees_drawn_at_random_are_of_all_shapes_and_come_again() -> None:
    drawn = [legal.random_tree(4, 7, number) for number in range(400)]
    assert len({_shape(tree) for tree in drawn}) == 15
    assert drawn == [legal.random_tree(4, 7, number) for number in range(400)]
    assert drawn != [legal.random_tree(4, 8, number) for number in range(400)]
    assert sorted(leaves(legal.random_tree(33, 7, 5))) == list(range(33))


def test_the_legal_set_is_every_way_of_adding_four_numbers() -> None:
    """In binary32 by the machine's own additions, every permutation and both shapes."""
    terms = terms_of(B32, 4, 60)
    values = [term.view(np.float32) for term in terms]
    want = set()
    for a, b, c, d in itertools.permutations(range(4)):
        for total in (
            ((values[a] + values[b]) + values[c]) + values[d],
            (values[a] + values[b]) + (values[c] + values[d]),
        ):
            want.add(total.tobytes())
    found = {row.tobytes() for row in legal.legal_outputs(B32, terms)[1:]}
    assert found == want
    assert len(legal.legal_outputs(BF16, terms_of(BF16))) == 2 * 15 + 1 == legal.model_count(BF16, 4)


def test_too_many_trees_are_refused() -> None:
    with pytest.raises(ValueError, match="10,395 trees over 7 terms"):
        legal.legal_outputs(B32, terms_of(B32, 7, 4))


# ----------------------------------------------------------------------------------------------------- planted errors


def test_laws_have_the_distribution_that_they_name() -> None:
    normal, uniform = Law.parse("normal:0.03").draw(7, 40000), Law.parse("uniform:0.0375").draw(7, 40000)
    assert abs(normal.mean()) < 5 * 0.03 / 200
    assert normal.std() == pytest.approx(0.03, rel=0.02)
    assert np.mean(np.abs(normal) < 0.01) == pytest.approx(0.2611, abs=0.01)
    assert np.abs(uniform).max() <= 0.0375
    assert np.mean(np.abs(uniform) < 0.01) == pytest.approx(0.2667, abs=0.01)
    assert np.array_equal(normal[:100], Law.parse("normal:0.03").draw(7, 100))
    assert not np.array_equal(normal[:100], Law.parse("normal:0.03").draw(8, 100))
    assert Law.parse("normal:0.03").density_at_zero() == pytest.approx(13.298, rel=1e-3)
    assert Law.parse("uniform:0.0375").density_at_zero() == pytest.approx(13.333, rel=1e-3)


@pytest.mark.parametrize("text", ["normal", "normal:", "normal:0", "normal:-1", "normal:1", "cauchy:0.1", "uniform:x"])
def test_other_laws_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not normal:WIDTH or uniform:WIDTH"):
        Law.parse(text)


@SOME
def test_errors_are_planted_as_large_as_they_say(fmt: Format) -> None:
    base = reference_of(fmt, terms_of(fmt)).nearest
    signs = np.where(ordinals(fmt, base) < 0, -1, 1)
    for steps in (1, 64, 1 << 9):
        moved = ordinals(fmt, planted.by_steps(fmt, base, steps, "away")) - ordinals(fmt, base)
        assert (moved == np.where(np.abs(ordinals(fmt, base)) + steps > fmt.overflow_code, moved, signs * steps)).all()
        back = ordinals(fmt, planted.by_steps(fmt, base, steps, "toward"))
        assert (back == ordinals(fmt, base) - signs * steps).all()
    for index, error in ((3, 0.1), (5, -0.002)):
        moved_code = int(planted.by_relative(fmt, base, np.full(len(base), error))[index])
        want = rational(fmt, int(base[index])) * Fraction(1 + error)
        spare = Fraction(1, 10**9) * abs(want)
        low, high = (rational(fmt, moved_code + d) for d in (-1, 1))
        assert min(low, high) - spare <= want <= max(low, high) + spare


def test_curves_count_what_each_rule_accepts() -> None:
    """Against the same counts done one output at a time; and a looser bound never accepts less."""
    terms = terms_of(B32, 4, 90)
    ref = reference_of(B32, terms)
    base = legal.summed(legal.random_tree(4, 1, 1), terms, B32, B32)
    known = {steps: rules.rules(ref, Known(steps=steps)) for steps in (4, 64)}
    found = {steps: planted.curves(B32, some, base) for steps, some in known.items()}
    curve = found[4]["steps"]
    assert curve["sizes"] == [1 << k for k in range(21)]
    assert found[4]["percent"]["sizes"] == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    for k in (0, 2, 6, 20):
        for sign, direction in (("away", 1), ("toward", -1)):
            places = ordinals(B32, base)
            moved = places + direction * np.where(places < 0, -1, 1) * (1 << k)
            near = np.abs(moved - ordinals(B32, ref.nearest)) <= 4
            assert curve["rules"]["measured"][sign]["count"][k] == int(near.sum())
    tight, loose = (found[steps]["steps"]["rules"]["measured"]["away"]["count"] for steps in (4, 64))
    assert all(a <= b for a, b in zip(tight, loose, strict=True))
    assert loose[0] > 0


def test_bounds_are_exact() -> None:
    """Clopper-Pearson by its definition: at the bound the tail beyond what was seen has 2.5 %."""

    def at_most(k: int, n: int, p: float) -> float:
        return sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k + 1))

    for k, n in ((4, 60), (0, 30), (30, 30), (1, 7)):
        low, high = planted.bounds(k, n)
        if k < n:
            assert at_most(k, n, high) == pytest.approx(0.025, rel=1e-3)
        if k:
            assert 1 - at_most(k - 1, n, low) == pytest.approx(0.025, rel=1e-3)
    assert planted.share(4, 4096) == {"count": 4, "of": 4096, "low": 0.000266142, "high": 0.00249848}


def test_a_known_law_gives_the_expected_share() -> None:
    rows = np.full((1, 4000), 3.0, np.float32)
    ref = reference.of_rows(B32, rows, "exact")
    errors = Law.parse("normal:0.03").draw(3, 4000)
    found = planted.under_law(B32, rules.rules(ref, Known(steps=0)), ref.nearest, errors)
    want = int((np.abs(errors) <= 0.01).sum())
    assert abs(found["one_percent"]["count"] - want) <= 1  # one may fall on the edge when it is rounded to binary32
    assert found["measured"]["count"] == 0


# ------------------------------------------------------------------------------------------------------ held-out orders


def test_held_out_orders_are_counted_by_group() -> None:
    terms = terms_of(B32, 4, 50)
    ref = reference_of(B32, terms)
    far = from_ordinals(B32, ordinals(B32, ref.nearest) + 7)
    near = ref.nearest.copy()
    near[3:5] += 2
    some = [HeldOut("a", near), HeldOut("b", far), HeldOut("a", ref.nearest), HeldOut("a", near)]
    first, second = held_out.judged(some, rules.rules(ref, Known(steps=2)), ref, 1)
    assert (first["group"], first["orders"], first["different_outputs"], first["worst_ulp_steps"]) == ("a", 3, 2, 2)
    assert first["beyond_calibrated_worst"]["count"] == 2
    assert first["rejected_orders"]["measured"]["count"] == 0
    assert first["rejected_orders"]["nccl_tests"]["count"] == 2
    assert first["rejected_elements"]["nccl_tests"] == planted.share(4, 150)
    assert second["rejected_orders"]["measured"] == planted.share(1, 1)
    assert second["worst_ulp_steps"] == 7
    nan = np.full(50, B32.nan_code, B32.dtype)
    assert held_out.judged([HeldOut("c", nan)], [], ref, 1)[0]["worst_ulp_steps"] is None
