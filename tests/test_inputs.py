"""Input families: pure, cut-free, golden where NUMERICS has goldens, and true to what each promises."""

from __future__ import annotations

import itertools
import json
import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from auditor import inputs
from auditor.errors import ConfigError
from auditor.inputs.coded import exact_code, place_numbers, position_plan
from auditor.inputs.scaled import order_exact_window
from auditor.inputs.structured import significand_lists, special_codes, testfloat_operands
from auditor.model import Call, Family, Trial
from auditor.numerics.exact import decode_reference, exact_sum_reference, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.recipes import truncate
from auditor.numerics.rounding import round_reference, split

GOLDEN = json.loads((Path(__file__).parent / "golden" / "b300_rule.json").read_text())
ALL = sorted(inputs.FAMILIES)
NOT_FINITE = ("specials", "special_cases", "average_ties", "testfloat1", "testfloat2", "exhaustive")
FINITE = [name for name in ALL if name not in NOT_FINITE]
testfloat_operands.__test__ = False  # not a test, whatever its name


def family(text: str) -> Family:
    return Family.parse(text)


def codes(text: str, fmt: Format, seed: int, rank_n: int, rank: int, start: int, stop: int) -> np.ndarray:
    return inputs.generate(family(text), fmt, seed, rank_n, rank, start, stop)


def columns(text: str, fmt: Format, rank_n: int, stop: int, seed: int = 3, start: int = 0) -> np.ndarray:
    return np.stack([codes(text, fmt, seed, rank_n, rank, start, stop) for rank in range(rank_n)])


def value(fmt: Format, code: int) -> Fraction:
    numerator, exponent = decode_reference(fmt, int(code))
    return Fraction(numerator) * Fraction(2) ** exponent


def trial(**changes: object) -> Trial:
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=64)
    return Trial(call=call, rank_n=4, family=family("order_exact"), seed=7).with_(**changes)


# --- every family ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fmt"), [(name, fmt) for name in ALL for fmt in FORMATS.values() if name != "exhaustive" or fmt.bits <= 16]
)
def test_any_cut_gives_the_same_elements(name: str, fmt: Format) -> None:
    for base in (0, (1 << 32) - 100, (1 << 40) - 37):
        whole = codes(name, fmt, 5, 3, 1, base, base + 300)
        parts = [codes(name, fmt, 5, 3, 1, base + a, base + b) for a, b in ((0, 1), (1, 99), (99, 100), (100, 300))]
        assert whole.dtype == fmt.dtype
        assert np.array_equal(np.concatenate(parts), whole)
        assert len(codes(name, fmt, 5, 3, 1, base, base)) == 0


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*FINITE, "wide:dist=lognormal"])
@pytest.mark.parametrize("rank_n", [2, 300])
def test_values_are_finite(name: str, fmt: Format, rank_n: int) -> None:
    got = codes(name, fmt, 1, rank_n, 1, 0, 2048)
    assert int((got & fmt.dtype.type(fmt.magnitude_mask)).max()) <= fmt.max_code


@pytest.mark.parametrize("name", ["order_exact", "wide", "rank_coded", "position_coded", "smooth"])
def test_high_index_word_and_rank_and_seed_matter(name: str) -> None:
    fmt = FORMATS["binary32"]
    base = codes(name, fmt, 1, 2, 0, 0, 256)
    assert (codes(name, fmt, 1, 2, 0, 1 << 32, (1 << 32) + 256) != base).mean() > 0.9
    assert (codes(name, fmt, 2, 2, 0, 0, 256) != base).mean() > 0.9
    if name != "position_coded":
        assert (codes(name, fmt, 1, 2, 1, 0, 256) != base).mean() > 0.9


@pytest.mark.parametrize(
    ("text", "fmt", "rank_n", "message"),
    [
        ("nonsense", "bfloat16", 2, "is unknown; there are"),
        ("report132:span=3", "bfloat16", 2, "no argument"),
        ("order_exact:spam=3", "bfloat16", 2, "no argument"),
        ("order_exact:format=float16", "bfloat16", 2, "is none of"),
        ("order_exact:span=1.5", "bfloat16", 2, "whole number"),
        ("order_exact:span=-1", "bfloat16", 2, "whole number"),
        ("order_exact:format=binary32,span=16", "bfloat16", 2, "largest legal span is 15"),
        ("order_exact:format=binary32,span=13", "binary16", 2, "largest legal span is 12"),
        ("order_exact:span=0", "bfloat16", 256, "no span is legal"),
        ("order_exact:format=binary64,span=40", "binary16", 2, "largest legal span is"),
        ("wide:dist=cauchy", "bfloat16", 2, "normal or lognormal"),
        ("rank_coded:pass=1", "bfloat16", 8, "need passes 0..0"),
        ("rank_coded:pass=x", "bfloat16", 8, "need passes 0..0"),
        ("constant:value=1.001", "bfloat16", 2, "no finite value"),
        ("constant:value=nan", "bfloat16", 2, "no finite value"),
        ("constant:value=500", "float8_e4m3fn", 2, "no finite value"),
        ("constant:value=many", "bfloat16", 2, "no finite value"),
        ("exhaustive", "binary32", 2, "too many pairs"),
        ("exhaustive:chunk=4096", "bfloat16", 2, "chunks 0..4095"),
        ("exhaustive:chunk=1", "float8_e5m2", 2, "chunks 0..0"),
        ("ties", "bfloat16", 1, "needs 2 contributors"),
        ("testfloat1", "bfloat16", 1, "needs 2 contributors"),
    ],
)
def test_check_refuses(text: str, fmt: str, rank_n: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inputs.check(family(text), FORMATS[fmt], rank_n)


# --- report132 ------------------------------------------------------------------------------------


def report_sums(fmt: Format, seed: int, n: int) -> np.ndarray:
    """Sums in units of 2**(-4 - p + 1), straight from NUMERICS §1.4."""
    total = np.zeros(n, np.int64)
    for rank in (0, 1):
        code = codes("report132", fmt, seed, 2, rank, 0, n).astype(np.int64)
        significand = (code & ((1 << fmt.mantissa_bits) - 1)) | (1 << fmt.mantissa_bits)
        exponent = ((code >> fmt.mantissa_bits) & ((1 << (fmt.bits - 1 - fmt.mantissa_bits)) - 1)) - fmt.bias
        assert exponent.min() == -4
        assert exponent.max() == 4 or n < 100
        total += np.where(code >> (fmt.bits - 1), -1, 1) * (significand << (exponent + 4))
    return total


def test_report132_first_group() -> None:
    assert report_sums(FORMATS["bfloat16"], 0, 1000)[:4].tolist() == [-47279, 7262, -24032, -19603]
    assert report_sums(FORMATS["binary16"], 0, 1000)[:4].tolist() == [-343471, 42078, -163296, -247187]


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in ("bfloat16", "binary16") for seed in (0, 1)])
def test_report132_golden_counts(name: str, seed: int) -> None:
    fmt, golden = FORMATS[name], GOLDEN[f"{name}_seed{seed}"]
    total = np.abs(report_sums(fmt, seed, 1 << 20))
    drop = np.maximum(np.frexp(total.astype(np.float64))[1] - fmt.precision, 0)
    below = total & ((1 << drop) - 1)
    assert int((below != 0).sum()) == golden["inexact"]
    assert int(((below != 0) & (2 * below == 1 << drop)).sum()) == golden["ties"]
    assert int((total == 0).sum()) == golden["zero_sums"]


# --- order_exact ----------------------------------------------------------------------------------


def fits(fmt: Format, total: Fraction) -> bool:
    """Whether the format holds the value exactly, as a normal number or zero."""
    if total == 0:
        return True
    top = math.floor(math.log2(abs(total)))
    in_range = fmt.emin <= top <= fmt.emax
    return in_range and (total / Fraction(2) ** (top - fmt.precision + 1)).denominator == 1


def subsets_fit(fmt: Format, terms: list[Fraction]) -> bool:
    """Every partial sum of every order and every tree is the sum of a subset of the terms."""
    sizes = range(1, len(terms) + 1)
    return all(fits(fmt, sum(some, Fraction(0))) for k in sizes for some in itertools.combinations(terms, k))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("target", [None, "binary32", "binary64", "bfloat16"])
@pytest.mark.parametrize("rank_n", [1, 2, 3, 4])
def test_order_exact_all_orders_and_trees(fmt: Format, target: str | None, rank_n: int) -> None:
    text = "order_exact" if target is None else f"order_exact:format={target}"
    table = columns(text, fmt, rank_n, 64)
    for column in table.T:
        assert subsets_fit(FORMATS[target or fmt.name], [value(fmt, code) for code in column])


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("target", [None, "binary32"])
@pytest.mark.parametrize("rank_n", [5, 32, 100, 256, 1024])
def test_order_exact_random_orders(fmt: Format, target: str | None, rank_n: int) -> None:
    text = "order_exact" if target is None else f"order_exact:format={target}"
    shuffle = random.Random(rank_n)
    for column in columns(text, fmt, rank_n, 2).T:
        terms = [value(fmt, code) for code in column]
        orders = [sorted(terms), sorted(terms, key=abs), shuffle.sample(terms, len(terms)), terms]
        assert all(fits(FORMATS[target or fmt.name], part) for order in orders for part in itertools.accumulate(order))


@pytest.mark.parametrize(
    ("fmt", "rank_n", "span"),
    [(f, n, w) for f, row in {
        "bfloat16": {2: 15, 4: 14, 8: 13, 16: 12, 32: 11, 64: 10, 128: 9, 256: 8, 1024: 6},
        "binary16": {2: 12, 4: 11, 8: 10, 16: 9, 32: 8, 64: 7, 128: 6, 256: 5, 1024: 3},
    }.items() for n, w in row.items()],
)  # fmt: skip
def test_default_span_is_the_table_of_numerics_2(fmt: str, rank_n: int, span: int) -> None:
    text = f"order_exact:format=binary32,span={span}"
    assert order_exact_window(family("order_exact:format=binary32"), FORMATS[fmt], rank_n).span == span
    inputs.check(family(text), FORMATS[fmt], rank_n)
    with pytest.raises(ConfigError):
        inputs.check(family(text.replace(f"={span}", f"={span + 1}")), FORMATS[fmt], rank_n)


@pytest.mark.parametrize("span", [0, 3, 6])
def test_explicit_span_in_the_element_format_stays_exact(span: int) -> None:
    fmt = FORMATS["bfloat16"]
    for column in columns(f"order_exact:span={span}", fmt, 2, 200).T:
        assert subsets_fit(fmt, [value(fmt, code) for code in column])


def test_order_exact_uses_the_whole_window() -> None:
    got = codes("order_exact:format=binary32", FORMATS["bfloat16"], 1, 2, 0, 0, 1 << 16)
    assert len(np.unique(got)) == 2 * 16 * 128


def test_order_exact_sums_in_binary32_are_often_inexact_in_the_format() -> None:
    fmt = FORMATS["bfloat16"]
    got = split(fmt, exact_sums(fmt, list(columns("order_exact:format=binary32", fmt, 2, 4096))))
    assert 0.4 < got.inexact.mean() < 0.9


# --- rank_coded -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("rank_n", [1, 2, 3, 8, 11, 30])
def test_rank_coded_decodes(fmt: Format, rank_n: int) -> None:
    """In every pass |sum| / 2**unit is the set of the pass's contributors, as bits; every contributor is in exactly one pass."""
    seen = 0
    layout = inputs.rank_coded_layout(fmt, 9, 0, 40)
    for number in range(inputs.rank_coded_passes(fmt, rank_n)):
        table = columns(f"rank_coded:pass={number}", fmt, rank_n, 40, seed=9)
        for index, column in enumerate(table.T):
            numerator, exponent = exact_sum_reference(fmt, [int(code) for code in column])
            members = [rank for rank in range(rank_n) if column[rank]]
            word = Fraction(abs(numerator)) * Fraction(2) ** (exponent - int(layout.unit[index]))
            bits = [inputs.rank_coded_bits(fmt, 9, rank, index, index + 1) for rank in members]
            assert word == sum(1 << int(bit[0]) for bit, _, _ in bits)
            assert (numerator < 0) == bool(layout.negative[index])
            assert fits(fmt, Fraction(numerator) * Fraction(2) ** exponent)
        seen += len(members)
    assert seen == rank_n


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("rank_n", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("name", ["rank_coded", "position_coded"])
def test_the_next_seed_changes_every_sum(name: str, fmt: Format, rank_n: int) -> None:
    """So data left over from the call before show at every element."""
    for seed in (0, 7, 63, 64, (1 << 40) + 5):
        first, second = (exact_sums(fmt, list(columns(name, fmt, rank_n, 500, seed=s))) for s in (seed, seed + 1))
        same = (first.sig == second.sig) & (first.exp == second.exp) & (first.negative == second.negative)
        assert not same.any()


def test_rank_coded_varies_by_element() -> None:
    layout = inputs.rank_coded_layout(FORMATS["bfloat16"], 0, 0, 4096)
    assert len(np.unique(layout.rotation)) == 8
    assert len(np.unique(layout.unit)) == 64
    assert 0.4 < layout.negative.mean() < 0.6


# --- position_coded -------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("rank_n", [1, 2, 4, 7, 64, 1000])
def test_position_coded_is_exact_in_every_order(fmt: Format, rank_n: int) -> None:
    for column in columns("position_coded", fmt, rank_n, 30).T:
        terms = {value(fmt, code) for code in column if code}
        active = int(np.count_nonzero(column))
        assert len(terms) == 1
        assert all(fits(fmt, k * next(iter(terms))) for k in range(1, active + 1))


@pytest.mark.parametrize("width", range(5, 33))
def test_places_differ_from_their_neighbours_and_at_powers_of_two(width: int) -> None:
    size, base = 2048, (1 << 32) - 1024
    here = place_numbers(3, width, base, base + size)
    for k in range(34):
        there = place_numbers(3, width, base + (1 << k), base + (1 << k) + size)
        assert (here == there).mean() <= 2.0 ** (-3 * width)


@pytest.mark.parametrize("offset", [255, 257, 1021, 4095, 4097, 65535, 1 << 20, 262144 + 5, 999983])
def test_places_differ_at_chunk_offsets(offset: int) -> None:
    fmt = FORMATS["bfloat16"]
    here = codes("position_coded", fmt, 1, 4, 0, 0, 1 << 14)
    there = codes("position_coded", fmt, 1, 4, 0, offset, offset + (1 << 14))
    assert (here == there).mean() < 0.01


def test_position_plan_uses_many_places() -> None:
    assert {name: position_plan(fmt, 4).width for name, fmt in FORMATS.items()} == {
        "binary64": 57, "binary32": 28, "binary16": 13, "bfloat16": 12, "float8_e4m3fn": 5, "float8_e5m2": 5,
    }  # fmt: skip


# --- ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_ties_cover_their_classes(fmt: Format) -> None:
    table = columns("ties", fmt, 3, 1 << 14)
    assert not table[2].any()
    got = split(fmt, exact_sums(fmt, list(table)))
    half, odd = np.uint64(1 << 63), (got.lo & fmt.dtype.type(1)) != 0
    tie = (got.rem == half) & ~got.sticky
    near = max(1 << (66 - fmt.precision), 1 << 54)  # 4 * 2**-p, or what is left of rem in a sum of 64 bits
    edge = (got.lo & fmt.dtype.type((1 << fmt.mantissa_bits) - 1)) == (1 << fmt.mantissa_bits) - 1
    classes = {
        "tie even": tie & ~odd, "tie odd": tie & odd, "tie into next binade": tie & edge,
        "just above": (got.rem >= half) & ~tie & (got.rem <= np.uint64(min((1 << 63) + near, (1 << 64) - 1))),
        "just below": (got.rem < half) & (got.rem >= np.uint64((1 << 63) - near // 2)),
        "barely": got.inexact & (got.rem < np.uint64(1 << 61)), "almost": got.rem > np.uint64(7 << 61),
    }  # fmt: skip
    for name, mask in classes.items():
        for negative in (False, True):
            assert (mask & (got.negative == negative)).sum() > 50, name
    assert got.inexact.mean() > 0.95


# --- testfloat, specials, exhaustive --------------------------------------------------------------


def test_testfloat_lists_have_their_sizes() -> None:
    half, brain = FORMATS["binary16"], FORMATS["bfloat16"]
    assert [len(side) for side in significand_lists(half)] == [4, 36]
    assert [len(side) for side in significand_lists(brain)] == [4, 24]
    assert len(testfloat_operands(half, 1)) == 88
    assert len(testfloat_operands(half, 2)) == 22 * 36
    assert len(testfloat_operands(brain, 2)) == 22 * 24
    assert {0x3380, 0x4B80, 0x7F00, 0x7F80, 0x0080, 0x8000 | 0x7E} <= set(testfloat_operands(brain, 2).tolist())


def test_testfloat1_enumerates_every_pair_once() -> None:
    table = columns("testfloat1", FORMATS["bfloat16"], 3, 2 * 88 * 88, seed=0)
    first = {tuple(pair) for pair in table[:2, : 88 * 88].T.tolist()}
    second = {tuple(pair) for pair in table[:2, 88 * 88 :].T.tolist()}
    assert len(first) == 88 * 88
    assert second == first
    assert not table[2].any()
    assert not np.array_equal(table[:, : 88 * 88], table[:, 88 * 88 :])


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_specials_reach_every_contributor(fmt: Format) -> None:
    values = special_codes(fmt)
    table = columns("specials", fmt, 3, 3 * len(values) * (len(values) + 4))
    assert len(values) == len(set(values))
    for row in table:
        assert set(values) <= set(row.tolist())
    if fmt.has_infinity:
        plus, minus = fmt.overflow_code, fmt.overflow_code | fmt.sign_mask
        assert ((table == plus).any(axis=0) & (table == minus).any(axis=0)).any()


def test_exhaustive_is_every_pair() -> None:
    table = columns("exhaustive", FORMATS["float8_e4m3fn"], 3, 1 << 16)
    assert len({tuple(pair) for pair in table[:2].T.tolist()}) == 1 << 16
    assert not table[2].any()
    last = columns("exhaustive:chunk=4095", FORMATS["bfloat16"], 2, 1 << 20)
    assert last[:, -1].tolist() == [0xFFFF, 0xFFFF]
    assert last[:, 0].tolist() == [0, 0xFFF0]


# --- constant, smooth, wide -----------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_exact_code_inverts_decoding(fmt: Format) -> None:
    step = max(1, fmt.max_code // 997)
    for magnitude in [*range(0, fmt.max_code + 1, step), fmt.max_code, 1]:
        for code in (magnitude, magnitude | fmt.sign_mask):
            numerator, exponent = decode_reference(fmt, code)
            real = math.copysign(math.ldexp(abs(numerator), exponent), -1 if code & fmt.sign_mask else 1)
            assert exact_code(fmt, real) == code
    assert exact_code(fmt, math.inf) is None


def test_constant_default_is_one() -> None:
    assert set(codes("constant", FORMATS["bfloat16"], 1, 2, 0, 0, 5).tolist()) == {0x3F80}
    assert set(codes("constant:value=-1.5", FORMATS["binary16"], 1, 2, 0, 0, 5).tolist()) == {0xBE00}


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_truncate_is_toward_zero_and_handles_subnormals(fmt: Format) -> None:
    shuffle = random.Random(1)
    magnitudes = [shuffle.getrandbits(shuffle.randint(1, 53)) for _ in range(500)]
    exponent = fmt.emin - 53 if fmt.emin > -1000 else -60
    exponents = np.array([exponent + shuffle.randint(0, 12) for _ in magnitudes])
    got = truncate(fmt, np.zeros(500, bool), np.array(magnitudes, np.uint64), exponents)
    want = [round_reference(fmt, m, int(e), "toward_zero") for m, e in zip(magnitudes, exponents, strict=True)]
    assert got.tolist() == want


def test_wide_spreads() -> None:
    fmt = FORMATS["binary32"]
    normal = codes("wide", fmt, 1, 2, 0, 0, 1 << 15).view(np.float32)
    assert abs(normal.mean()) < 0.03
    assert 1.1 < normal.std() < 1.2
    assert np.abs(normal).max() < 4
    exponents = np.log2(np.abs(codes("wide:dist=lognormal", fmt, 1, 2, 0, 0, 1 << 15).view(np.float32)))
    assert 4 < exponents.std() < 5.5
    assert np.abs(exponents).max() <= 17


def test_smooth_neighbours_are_close() -> None:
    got = codes("smooth", FORMATS["binary32"], 1, 2, 0, 0, 1 << 14).view(np.float32)
    assert np.abs(np.diff(got)).max() < 0.01
    assert got.min() < -0.2
    assert got.max() > 0.2


# --- trials ---------------------------------------------------------------------------------------


def test_all_active_is_the_family_itself() -> None:
    got = inputs.terms(trial(), 0, 10, 50)
    want = [codes("order_exact", FORMATS["bfloat16"], 7, 4, rank, 10, 50) for rank in range(4)]
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_positions_are_renumbered_and_others_send_zero() -> None:
    some = trial(active="1,3", group=(5, 0, 2, 4), rank_n=6)
    got = inputs.terms(some, 0, 0, 32)
    assert not got[0].any()
    assert not got[2].any()
    assert np.array_equal(got[1], codes("order_exact", FORMATS["bfloat16"], 7, 2, 0, 0, 32))
    assert np.array_equal(
        inputs.send_codes(some, 0, 4, 0, 32), codes("order_exact", FORMATS["bfloat16"], 7, 2, 1, 0, 32)
    )


def test_pairs_take_turns_by_index() -> None:
    table = np.stack(inputs.terms(trial(active="pairs", family=family("report132")), 0, 0, 64))
    pairs = list(itertools.combinations(range(4), 2))
    for index in range(64):
        first, second = pairs[index % 6]
        assert table[first, index] == codes("report132", FORMATS["bfloat16"], 7, 2, 0, index, index + 1)[0]
        assert table[second, index] == codes("report132", FORMATS["bfloat16"], 7, 2, 1, index, index + 1)[0]
        assert np.count_nonzero(table[:, index]) == 2


def test_tiled_repeats_a_block_and_any_cut_agrees() -> None:
    some = trial(tiled=4, collective="reduce_scatter", count=16, active="pairs")
    whole = inputs.send_codes(some, 0, 1, 0, 64)
    assert np.array_equal(whole, np.tile(whole[:16], 4))
    cuts = [inputs.send_codes(some, 0, 1, a, b) for a, b in ((0, 5), (5, 37), (37, 64))]
    assert np.array_equal(np.concatenate(cuts), whole)
    assert len(inputs.send_codes(some, 0, 1, 9, 9)) == 0


def test_alternate_inputs_use_the_next_seed() -> None:
    some = trial(inputs="alternate")
    zeroth, first, second = (inputs.send_codes(some, repeat, 0, 0, 32) for repeat in range(3))
    assert np.array_equal(zeroth, second)
    assert np.array_equal(first, codes("order_exact", FORMATS["bfloat16"], 8, 4, 0, 0, 32))


def test_receiver_ranges() -> None:
    assert inputs.receiver_range(trial(), 2) == (0, 64)
    some = trial(collective="reduce_scatter", group=(3, 1), count=10)
    assert inputs.receiver_range(some, 1) == (10, 20)
    assert inputs.receiver_range(some, 3) == (0, 10)


@pytest.mark.parametrize("active", ["0,0", "4", "-1", "zero", ""])
def test_bad_active_is_refused(active: str) -> None:
    with pytest.raises(ConfigError, match="active"):
        inputs.send_codes(trial(active=active), 0, 0, 0, 4)


def test_pairs_of_one_and_bad_tiling_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs 2 ranks"):
        inputs.send_codes(trial(active="pairs", group=(1,)), 0, 1, 0, 4)
    with pytest.raises(ConfigError, match="does not divide"):
        inputs.send_codes(trial(tiled=3), 0, 0, 0, 4)
