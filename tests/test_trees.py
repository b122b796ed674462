"""Summation trees: their shapes, scalar against array, integers against hardware, and the feature tests of NUMERICS §5."""

from __future__ import annotations

import ctypes
import itertools
import platform
from collections.abc import Iterator

import numpy as np
import pytest
from golden_data import column_arrays, random_codes, records, spread_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.numerics import trees
from auditor.numerics.exact import Codes, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import MODES, round_reference, round_sums
from auditor.numerics.trees import (
    Tree,
    binary_tree,
    chain,
    evaluate,
    evaluate_reference,
    evaluate_to_sums,
    fused,
    leaves,
    recursive_doubling,
    ring_order,
)

BF16, FP16, FP32, FP64 = (FORMATS[name] for name in ("bfloat16", "binary16", "binary32", "binary64"))
RNE = "ties_to_even"


def code(fmt: Format, x: float) -> int:
    """Code of a value that the format holds."""
    numerator, denominator = float(x).as_integer_ratio()
    found = round_reference(fmt, numerator, 1 - denominator.bit_length(), "toward_zero")
    assert found == round_reference(fmt, numerator, 1 - denominator.bit_length(), "away_from_zero")
    return found


def total(
    tree: Tree, values: tuple[float, ...], fmt: Format, accumulator: Format, hop: str = RNE, final: str = RNE
) -> float:
    """The sum as a float, by both twins, which must agree."""
    codes = [code(fmt, x) for x in values]
    found = evaluate(tree, column_arrays(fmt, [codes]), fmt, accumulator=accumulator, hop=hop, final=final)
    assert found[0] == evaluate_reference(tree, codes, fmt, accumulator=accumulator, hop=hop, final=final)
    sums = exact_sums(fmt, [found])
    return float(np.ldexp(float(sums.sig[0]), int(sums.exp[0]))) * (-1 if sums.negative[0] else 1)


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_shapes() -> None:
    assert chain((2, 0, 1)) == ((2, 0), 1)
    assert binary_tree(5) == (((0, 1), (2, 3)), 4)
    assert binary_tree(8) == recursive_doubling(8)
    assert recursive_doubling(4) == ((0, 1), (2, 3))
    assert recursive_doubling(3) == ((0, 1), 2)
    assert recursive_doubling(5) == (((0, 1), 2), (3, 4))
    assert recursive_doubling(6) == (((0, 1), (2, 3)), (4, 5))
    assert recursive_doubling(7) == (((0, 1), (2, 3)), ((4, 5), 6))
    assert fused(4) == (0, 1, 2, 3)
    assert [ring_order(4, chunk) for chunk in range(4)] == [(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2), (0, 1, 2, 3)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 1024])
def test_every_tree_holds_every_term_once(n: int) -> None:
    for tree in (chain(range(n)), binary_tree(n), recursive_doubling(n), fused(n), chain(ring_order(n, n // 2))):
        assert sorted(leaves(tree)) == list(range(n))


def test_one_term_is_no_addition() -> None:
    assert chain([0]) == binary_tree(1) == recursive_doubling(1) == fused(1) == 0


# --- twins -----------------------------------------------------------------------------------------------------------


def some_trees(term_n: int) -> st.SearchStrategy[Tree]:
    leaf: st.SearchStrategy[Tree] = st.integers(0, term_n - 1)
    return st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=4).map(tuple), max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_twins_agree(data: st.DataObject) -> None:
    fmt, accumulator = (data.draw(st.sampled_from(list(FORMATS.values()))) for _ in range(2))
    codes = data.draw(st.lists(st.integers(0, (1 << fmt.bits) - 1), min_size=1, max_size=5))
    tree = data.draw(some_trees(len(codes)))
    hop, final = (data.draw(st.sampled_from((RNE, *MODES))) for _ in range(2))
    found = evaluate(tree, column_arrays(fmt, [codes]), fmt, accumulator=accumulator, hop=hop, final=final)
    assert found.tolist() == [evaluate_reference(tree, codes, fmt, accumulator=accumulator, hop=hop, final=final)]


TREES = {"chain": chain(range(4)), "doubling": recursive_doubling(4), "fused": fused(4), "mixed": ((0, 1, 2), 3)}


def data_of(fmt: Format) -> Iterator[list[Codes]]:
    """Four terms: any codes (NaN, infinities, overflow), close exponents (carries, ties), subnormals and their border."""
    n = trees.BLOCK + 100 if fmt.bits == 32 else 3000
    yield [random_codes(fmt, n, seed) for seed in range(4)]
    yield [spread_codes(fmt, 3000, seed, low=fmt.bias, span=3) for seed in range(4)]
    yield [spread_codes(fmt, 3000, seed, low=0, span=1) for seed in range(4)]
    pattern = [0, 1, fmt.sign_mask, fmt.max_code, fmt.max_code | fmt.sign_mask, fmt.overflow_code]
    pattern += [fmt.overflow_code | fmt.sign_mask, fmt.nan_code, fmt.overflow_code | 1, fmt.power_of_two(fmt.emin)]
    yield column_arrays(fmt, list(itertools.product(pattern, repeat=4)))


@pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))
@pytest.mark.parametrize(
    ("fmt", "accumulator"), [(FP32, FP32), (FP64, FP64), (BF16, FP32), (FP16, FP32), (FP32, FP64)], ids=lambda f: f.name
)
def test_hardware_additions_equal_integer_ones(
    fmt: Format, accumulator: Format, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trees.hardware_is_ieee()
    for terms in data_of(fmt):
        fast = evaluate_to_sums(tree, terms, fmt, accumulator=accumulator, hop=RNE)
        codes = evaluate(tree, terms, fmt, accumulator=accumulator, hop=RNE, final=RNE)
        with monkeypatch.context() as patch:
            patch.setattr(trees, "hardware_is_ieee", lambda: False)
            slow = evaluate_to_sums(tree, terms, fmt, accumulator=accumulator, hop=RNE)
            assert (evaluate(tree, terms, fmt, accumulator=accumulator, hop=RNE, final=RNE) == codes).all()
        assert all((getattr(fast, name) == getattr(slow, name)).all() for name in fast.__slots__)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the rounding-direction constants are x86's")
@pytest.mark.parametrize("direction", [0x400, 0x800, 0xC00], ids=["down", "up", "zero"])
def test_another_rounding_direction_of_the_thread_changes_nothing(direction: int) -> None:
    terms = [random_codes(FP32, 2000, seed) for seed in (1, 2)]
    expected = evaluate((0, 1), terms, FP32, accumulator=FP32, hop=RNE, final=RNE)
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(direction) == 0
    try:
        noticed = not trees.hardware_is_ieee()
        found = evaluate((0, 1), terms, FP32, accumulator=FP32, hop=RNE, final=RNE)
    finally:
        libm.fesetround(0)
    assert noticed
    assert (found == expected).all()


def test_sums_before_the_final_rounding() -> None:
    terms = column_arrays(BF16, [[code(BF16, 256), code(BF16, 1), code(BF16, 2**-15)]])
    sums = evaluate_to_sums(chain(range(3)), terms, BF16, accumulator=FP32, hop=RNE)
    assert records(sums) == [(0, ((257 << 15) + 1) << 40, -55, 0, 0)]
    assert round_sums(BF16, sums, RNE).tolist() == [code(BF16, 258)]


def test_a_chain_of_thousands_needs_no_recursion() -> None:
    terms = [np.full(2, code(FP32, 1), np.uint32)] * 5000
    found = evaluate(chain(range(5000)), terms, FP32, accumulator=FP32, hop=RNE, final=RNE)
    assert found.tolist() == [code(FP32, 5000)] * 2


def test_no_elements() -> None:
    assert evaluate((0, 1), [np.zeros(0, np.uint16)] * 2, BF16, accumulator=FP32, hop=RNE, final=RNE).shape == (0,)


# --- what the accumulator and the hops do (NUMERICS §5, FAULTS D1, K9, K11) -------------------------------------------


def permutations(values: tuple[float, ...]) -> list[tuple[float, ...]]:
    return list(itertools.permutations(values))


def test_d1_wide_sum_and_rounded_hops() -> None:
    values = (256.0, 1.0, 1.0)
    assert total(chain(range(3)), values, BF16, FP32) == 258
    assert total(chain(range(3)), values, BF16, BF16) == 256
    assert total(chain((1, 2, 0)), values, BF16, BF16) == 258
    assert total(fused(3), values, BF16, BF16) == 258


def test_k11_double_rounding() -> None:
    """256 + 1 + 2**-20 in bfloat16: 258 rounded once; by way of binary32 it falls on the tie and becomes 256."""
    values = (256.0, 1.0, 2.0**-20)
    assert total(chain(range(3)), values, BF16, FP64) == 258
    assert total(fused(3), values, BF16, BF16) == 258
    assert total(chain(range(3)), values, BF16, FP32) == 256
    assert total(fused(3), values, BF16, FP32) == 256


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_t1_hop(fmt: Format) -> None:
    h = 2.0**-fmt.precision
    for values in permutations((1.0, h, h)):
        assert total(chain(range(3)), values, fmt, FP32) == 1 + 2 * h
        together = values[2] == 1
        assert total(chain(range(3)), values, fmt, fmt) == (1 + 2 * h if together else 1)


@pytest.mark.parametrize(("accumulator", "widths"), [(BF16, {7, 8, 60}), (FP32, {23, 24, 60})], ids=["hops", "wide"])
def test_t2_width(accumulator: Format, widths: set[int]) -> None:
    """Largest k with (1, 2**-k, -1) giving 2**-k, by permutation; 60 is the end of the sweep: no bound."""
    found = set()
    for order in itertools.permutations(range(3)):
        kept = [total(chain(order), (1.0, 2.0**-k, -1.0), BF16, accumulator) == 2.0**-k for k in range(1, 61)]
        assert kept == sorted(kept, reverse=True)
        found.add(sum(kept))
    assert found == widths


@pytest.mark.parametrize(
    ("hop", "positive", "negative"),
    [
        ("ties_to_even", (0, 0, 1, 1, 2, 2), (0, 0, 1, 1, 2, 2)),
        ("toward_zero", (0, 0, 0, 1, 1, 1), (0, 0, 0, 1, 1, 1)),
        ("ties_to_away", (0, 1, 1, 1, 2, 2), (0, 1, 1, 1, 2, 2)),
        ("toward_positive", (1, 1, 1, 2, 2, 2), (0, 0, 0, 1, 1, 1)),
        ("toward_negative", (0, 0, 0, 1, 1, 1), (1, 1, 1, 2, 2, 2)),
        ("away_from_zero", (1, 1, 1, 2, 2, 2), (1, 1, 1, 2, 2, 2)),
    ],
)
def test_t3_accumulator_rounding(hop: str, positive: tuple[int, ...], negative: tuple[int, ...]) -> None:
    for sign, expected in ((1, positive), (-1, negative)):
        for t, units in zip((0.25, 0.5, 0.75, 1.25, 1.5, 1.75), expected, strict=True):
            values = (sign * 1.0, sign * t * 2.0**-23, -sign * 1.0)
            assert total(chain(range(3)), values, BF16, FP32, hop) == sign * units * 2.0**-23


def test_t4_sticky() -> None:
    values = (1.0, -(2.0**-29), -1 + 2.0**-23)
    assert total(chain(range(3)), values, FP32, FP32, "toward_zero") == 2.0**-24
    assert total(chain(range(3)), values, FP32, FP32, RNE) == 2.0**-23


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_t8_double_rounding(fmt: Format) -> None:
    values = (1.0, 2.0**-fmt.precision, 2.0**-24)
    above = 1 + 2.0 ** (1 - fmt.precision)
    for tree in (chain(range(3)), fused(3)):
        assert total(tree, values, fmt, FP32) == 1
        assert total(tree, values, fmt, FP64) == above
    assert total(fused(3), values, fmt, fmt) == above


def test_t9_subnormals_are_kept() -> None:
    for fmt in (BF16, FP16, FP32, FP64):
        small, normal = 1, fmt.power_of_two(fmt.emin)
        rows = [[small, small], [normal, small | fmt.sign_mask], [normal - 1, small]]
        found = evaluate((0, 1), column_arrays(fmt, rows), fmt, accumulator=fmt, hop=RNE, final=RNE)
        assert found.tolist() == [2, normal - 1, normal]


def test_t10_overflow_on_the_way() -> None:
    values = (65504.0, 65504.0, -65504.0)
    assert total(chain(range(3)), values, FP16, FP32) == 65504
    terms = column_arrays(FP16, [[code(FP16, x) for x in values]])
    found = evaluate(chain(range(3)), terms, FP16, accumulator=FP16, hop=RNE, final=RNE)
    assert found.tolist() == [FP16.overflow_code]


@pytest.mark.parametrize("hop", MODES)
def test_t11_zeros(hop: str) -> None:
    minus, one = FP32.sign_mask, code(FP32, 1)
    rows = [[minus, minus], [0, minus], [one, one | minus], [0, 0]]
    found = evaluate((0, 1), column_arrays(FP32, rows), FP32, accumulator=FP32, hop=hop, final=RNE)
    mixed = minus if hop == "toward_negative" else 0
    assert found.tolist() == [minus, mixed, mixed, 0]


@pytest.mark.parametrize(
    ("fmt", "n", "span"), [(BF16, 4, 14), (BF16, 7, 13), (FP16, 4, 11)], ids=["bf16", "bf16_7", "fp16"]
)
def test_sums_that_the_accumulator_holds_do_not_depend_on_the_tree(fmt: Format, n: int, span: int) -> None:
    """W <= 24 - p - c (NUMERICS §2): every partial sum is exact in binary32, so every tree gives the same bits."""
    low = fmt.bias - span // 2
    terms = [spread_codes(fmt, 3000, seed, low=low, span=span) for seed in range(n)]
    rng = np.random.default_rng(1)
    shapes = [chain(range(n)), chain(rng.permutation(n).tolist()), binary_tree(n), recursive_doubling(n), fused(n)]
    outputs = [
        evaluate(tree, terms, fmt, accumulator=FP32, hop=hop, final=RNE)
        for tree in shapes
        for hop in (RNE, "toward_zero")
    ]
    once = round_sums(fmt, exact_sums(fmt, terms), RNE)
    assert all((output == once).all() for output in outputs)
    hopped = evaluate(shapes[0], terms, fmt, accumulator=fmt, hop=RNE, final=RNE)
    assert 0.05 < (hopped != once).mean() < 0.9


def test_a_narrower_accumulator_rounds_the_terms_first() -> None:
    """bfloat16 by way of binary16 (FAULTS E4): past 65504 there is only infinity."""
    terms = column_arrays(BF16, [[code(BF16, 2.0**100), code(BF16, 1)], [code(BF16, 3), code(BF16, 1)]])
    found = evaluate((0, 1), terms, BF16, accumulator=FP16, hop=RNE, final=RNE)
    assert found.tolist() == [BF16.overflow_code, code(BF16, 4)]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "hop", "final", "message"),
    [
        ((0, 2), RNE, RNE, "leaf 2, but there are 2 terms"),
        ((-1, 0), RNE, RNE, "leaf -1"),
        ((0, ()), RNE, RNE, "an addition of nothing"),
        ((0, 1), "nearest", RNE, "unknown rounding mode 'nearest'"),
        ((0, 1), RNE, "stochastic", "unknown rounding mode 'stochastic'"),
    ],
)
def test_bad_trees_and_modes(tree: Tree, hop: str, final: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(tree, [np.zeros(1, np.uint16)] * 2, BF16, accumulator=FP32, hop=hop, final=final)


def test_trees_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one term"):
        chain([])
    for maker in (binary_tree, recursive_doubling, fused):
        with pytest.raises(ValueError, match="at least one is needed"):
            maker(0)
    with pytest.raises(ValueError, match="at least one is needed"):
        ring_order(0, 0)
