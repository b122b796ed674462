"""The simulator against the golden integers of the B300 rule and against scalar models in exact rationals."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from auditor import inputs
from auditor.backends.simulator import Simulator, arithmetic, backend, keyed
from auditor.backends.simulator.options import Options, Recipe
from auditor.errors import BackendError, ConfigError, Unsupported
from auditor.model import Call, Family, Window, World
from auditor.numerics.exact import exact_sums, exact_sums_of_integers
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import round_reference, split, sum_reference
from auditor.numerics.trees import evaluate_reference, ring_order

GOLDEN = json.loads((Path(__file__).parent / "golden" / "b300_rule.json").read_text())
N = 1 << 20
BF16, FP16, FP32 = FORMATS["bfloat16"], FORMATS["binary16"], FORMATS["binary32"]
BASE = 512


class Bench:
    """A simulator with its two arenas; ``call`` writes the codes of every rank and gives back what each receives."""

    def __init__(self, rank_n=2, nbytes=1 << 16, **options):
        self.rank_n = rank_n
        self.sim = Simulator(World(rank_n=rank_n, local_ranks=tuple(range(rank_n)), control=None), options)
        self.send, self.recv = self.sim.allocate(nbytes), self.sim.allocate(nbytes)

    def call(
        self, terms, fmt, collective="all_reduce", op="sum", shift=0, in_place=False, root=0, group=None, after=()
    ):
        """``after``: codes that lie past each rank's range, one array a rank."""
        members = group or tuple(range(self.rank_n))
        size, n = fmt.itemsize, len(terms[0])
        count = n // len(members) if collective == "reduce_scatter" else n
        call = Call(collective=collective, op=op, format=fmt.name, count=count, root=root, group=group)
        send, recv = {}, {}
        for position, rank in enumerate(members):
            at = BASE + shift * size
            send[rank] = Window(self.send[rank], at, n * size)
            self.send[rank][at : at + n * size] = np.asarray(terms[position]).view(np.uint8)
            if len(after):
                self.send[rank][at + n * size :][: len(after[position]) * size] = after[position].view(np.uint8)
            share = position * count * size if collective == "reduce_scatter" else 0
            recv[rank] = (
                Window(self.send[rank], at + share, count * size)
                if in_place
                else Window(self.recv[rank], at, count * size)
            )
        self.sim.run(call, send, recv)
        return {r: w.buffer[w.offset : w.offset + w.nbytes].copy().view(fmt.dtype) for r, w in recv.items()}


def report_codes(fmt, seed, n):
    return [inputs.generate(Family("report132"), fmt, seed, 2, rank, 0, n) for rank in (0, 1)]


def random_codes(fmt, seed, n, *, wide=False):
    """Random codes: a few binades about 1, or the whole format with its specials."""
    rng = np.random.default_rng(seed)
    if wide:
        return rng.integers(0, 1 << fmt.bits, n, dtype=np.uint64).astype(fmt.dtype)
    span = min(8, fmt.emax)
    magnitude = rng.integers(fmt.power_of_two(-span // 2), fmt.power_of_two(span // 2), n, dtype=np.uint64)
    return (magnitude | rng.integers(0, 2, n, dtype=np.uint64) << np.uint64(fmt.bits - 1)).astype(fmt.dtype)


def integer_sums(fmt, seed, n):
    """Sums of report132's data in units of 2**(-4 - p + 1) by NUMERICS §1.4, from the codes' own fields."""
    total = np.zeros(n, np.int64)
    for codes in report_codes(fmt, seed, n):
        wide = codes.astype(np.int64)
        exponent = ((wide & fmt.magnitude_mask) >> fmt.mantissa_bits) - fmt.bias
        significand = (wide & ((1 << fmt.mantissa_bits) - 1)) | 1 << fmt.mantissa_bits
        total += np.where(wide & fmt.sign_mask, -1, 1) * (significand << (exponent + 4))
    return total


def seen_from(fmt, total):
    """(lo as an integer significand, numerator of rem, bits dropped) of NUMERICS §1.4."""
    size = np.abs(total)
    lead = np.frexp(size.astype(np.float64))[1] - 1
    drop = np.maximum(lead - fmt.precision + 1, 0)
    return size >> drop, size & ((1 << drop) - 1), drop


def went_up(fmt, total, codes):
    """Whether each output is the upper neighbour; fails where it is neither."""
    lo, _, drop = seen_from(fmt, total)
    value = (codes.astype(np.int64) & ((1 << fmt.mantissa_bits) - 1)) | 1 << fmt.mantissa_bits
    exponent = ((codes.astype(np.int64) & fmt.magnitude_mask) >> fmt.mantissa_bits) - fmt.bias
    # In the sums' unit: value * 2**(exponent + 4), where zero stands for itself.
    units = np.where(codes & fmt.magnitude_mask, value << np.maximum(exponent + 4, 0), 0)
    units = np.where(exponent + 4 < 0, value >> np.maximum(-exponent - 4, 0), units) * (units != 0)
    steps = (units - (lo << drop)) >> drop
    assert set(np.unique(steps)) <= {0, 1}
    assert np.array_equal((codes & fmt.sign_mask) != 0, total < 0)
    return steps == 1


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_golden_integers_of_the_b300_rule(fmt, seed):
    golden = GOLDEN[f"{fmt.name}_seed{seed}"]
    data = report_codes(fmt, seed, N + 64)
    total = integer_sums(fmt, seed, N)
    bench = Bench(nbytes=2 * N + 8192, preset="b300")
    outputs = bench.call([term[:N] for term in data], fmt)
    assert np.array_equal(outputs[0], outputs[1])
    lo, rest, drop = seen_from(fmt, total)
    up = went_up(fmt, total, outputs[0])
    inexact, twice = rest != 0, 2 * rest
    nearest = (twice > 1 << drop) | ((twice == 1 << drop) & (lo % 2 == 1))
    found = {
        "inexact": inexact.sum(),
        "rne": (inexact & (up == nearest)).sum(),
        "toward_zero": (inexact & ~up & nearest).sum(),
        "away": (inexact & up & ~nearest).sum(),
        "ties": (inexact & (twice == 1 << drop)).sum(),
        "zero_sums": (total == 0).sum(),
    }
    assert found == {key: golden[key] for key in found}
    assert not up[~inexact].any()
    for k, changed in golden["changed_by_shift"].items():
        k = int(k)
        padding = -(N + k) % 4
        moved = [np.concatenate([t[N : N + k], t[:N], t[N + 20 : N + 20 + padding]]) for t in data]
        later = bench.call(moved, fmt)[0][k : k + N]
        assert ((later != outputs[0]) & inexact).sum() == changed
        assert np.array_equal(later[~inexact], outputs[0][~inexact])


FIRST_GROUPS = {
    "bfloat16": ([-47279, 7262, -24032, -19603], [0.68359375, 0.9375, 0.75, 0.1484375], "0100", "1110", "TTFF"),
    "binary16": ([-343471, 42078, -163296, -247187], None, "0001", "1101", "FTTF"),
}


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
def test_first_group_of_the_b300_rule(fmt):
    integers, rem, b22, b21, up = FIRST_GROUPS[fmt.name]
    assert integer_sums(fmt, 0, 4).tolist() == integers
    terms = report_codes(fmt, 0, 4)
    sums = exact_sums(fmt, terms)
    recipe = Recipe.of(Options.parse({"preset": "b300"}), fmt)
    field = keyed.top_bits(recipe.word, sums)
    assert [int(f) >> 63 for f in field] == [int(b) for b in b22]
    assert [int(f) >> 62 & 1 for f in field] == [int(b) for b in b21]
    seen = split(fmt, sums)
    if rem:
        assert [int(r) / 2**64 for r in seen.rem] == rem
    codes = Bench(preset="b300").call(terms, fmt)[0]
    assert (codes & fmt.magnitude_mask != seen.lo).tolist() == [letter == "T" for letter in up]


@pytest.mark.parametrize("inside", [1, 2, 3])
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce"])
def test_tail_trigger_decides_every_element_of_the_last_group(fmt, inside, collective):
    one, ulp = fmt.power_of_two(0), fmt.power_of_two(1 - fmt.precision)
    seven_eighths = fmt.power_of_two(-fmt.precision) | 3 << (fmt.mantissa_bits - 2)  # 1.75 * 2**-p = 7/8 ulp of 1
    assert seven_eighths < ulp
    terms = [np.full(4 + inside, one, fmt.dtype), np.full(4 + inside, seven_eighths, fmt.dtype)]
    three_quarters = fmt.power_of_two(-1) | 1 << (fmt.mantissa_bits - 1)
    results = {}
    for name, second in (("A", 0), ("B", three_quarters)):
        after = [np.full(16, one, fmt.dtype), np.full(16, second, fmt.dtype)]
        results[name] = Bench(preset="b300").call(terms, fmt, collective, after=after)[0]
    assert (results["A"][4:] == one).all()
    assert (results["B"][4:] == one + 1).all()
    assert np.array_equal(results["A"][:4], results["B"][:4])
    off = [
        Bench(preset="b300", rule=False).call(terms, fmt, after=[np.full(16, c, fmt.dtype)] * 2)[0] for c in (0, one)
    ]
    assert np.array_equal(off[0], off[1])


def value_of(fmt, code):
    magnitude = code & fmt.magnitude_mask
    scale = max((magnitude >> fmt.mantissa_bits) - 1, 0)
    sign = -1 if code & fmt.sign_mask else 1
    return sign * Fraction(magnitude - (scale << fmt.mantissa_bits)) * Fraction(2) ** (fmt.lsb + scale)


def keyed_model(fmt, words, q, options):
    """One element of a group by the formula as printed, in rationals; ``words``: binary32 codes of the group's sums."""
    g = len(words)
    way = 1 if options.get("neighbour_order", "forward") == "forward" else -1
    first = 0 if options.get("keyed_by") == "self_and_neighbours" else 1
    bits = [
        words[(q + way * d) % g] >> (22 - plane) & 1
        for plane in range(options["noise_bits"])
        for d in range(first, first + g - 1)
    ]
    noise_n = len(bits)
    noise = sum(Fraction(bit, 2 ** (k + 1)) for k, bit in enumerate(bits))
    x = value_of(FP32, words[q])
    lo = round_reference(fmt, *exact_ratio(abs(x)), "toward_zero")
    gap = value_of(fmt, lo + 1) - value_of(fmt, lo)
    rem = (abs(x) - value_of(fmt, lo)) / gap
    if options["form"] == "SRC":
        rem = Fraction(round(rem * 2**noise_n), 2**noise_n)  # Python rounds halves to even
    if options["form"] == "SRF":
        noise += Fraction(1, 2 ** (noise_n + 1))
    return (lo + (rem + noise >= 1)) | (fmt.sign_mask if x < 0 else 0)


def exact_ratio(x):
    """(numerator, exponent) of a dyadic rational."""
    return x.numerator, -(x.denominator.bit_length() - 1)


@pytest.mark.parametrize("form", ["SRFF", "SRC", "SRF"])
@pytest.mark.parametrize("noise_bits", [1, 2, 3])
@pytest.mark.parametrize("group_bytes", [4, 8, 16, 32])
def test_every_neighbour_keyed_variant_follows_the_formula(form, noise_bits, group_bytes):
    for fmt, order, by in ((BF16, "forward", "neighbours"), (FP16, "reversed", "self_and_neighbours")):
        options = {"form": form, "noise_bits": noise_bits, "neighbour_order": order, "keyed_by": by}
        full = {**options, "final": "neighbour_keyed", "group_bytes": group_bytes, "keyed_formats": [fmt.name]}
        terms = [random_codes(fmt, 100 + rank, 37) for rank in range(3)]
        shift, g = 3, group_bytes // 2
        found = Bench(3, **full, read_past="zero").call(terms, fmt, shift=shift)[0]
        words = [sum_as_binary32(fmt, [int(t[i]) for t in terms]) for i in range(37)]
        padded = [0] * (shift % g) + words + [0] * g
        for i in range(37):
            at = i + shift % g
            group = padded[at - at % g : at - at % g + g]
            assert found[i] == keyed_model(fmt, group, at % g, options), (fmt.name, i)


def sum_as_binary32(fmt, codes):
    """Rank-order sum of codes with every partial sum rounded to binary32, as a binary32 code."""
    word = round_reference(FP32, *exact_ratio(value_of(fmt, codes[0])), "ties_to_even")
    for code in codes[1:]:
        word = round_reference(FP32, *exact_ratio(value_of(FP32, word) + value_of(fmt, code)), "ties_to_even")
    return word


def test_foreign_bytes_before_and_after_the_range_key_the_rounding():
    terms = [random_codes(BF16, rank, 5) for rank in (0, 1)]
    bench = Bench(final="neighbour_keyed")
    for rank in (0, 1):
        bench.send[rank][:] = random_codes(BF16, 7 + rank, len(bench.send[rank]) // 2).view(np.uint8)
    around = [bench.send[rank].copy().view(np.uint16) for rank in (0, 1)]
    found = bench.call(terms, BF16, shift=2)[0]
    first = BASE // 2 + 2
    for rank in (0, 1):
        around[rank][first : first + 5] = terms[rank]
    words = [sum_as_binary32(BF16, [int(around[r][i]) for r in (0, 1)]) for i in range(first - 2, first + 6)]
    expected = [
        keyed_model(BF16, words[i - i % 4 :][:4], i % 4, {"noise_bits": 2, "form": "SRFF"}) for i in range(2, 7)
    ]
    assert found.tolist() == expected


def test_incomplete_groups_are_rounded_to_nearest_where_nothing_is_read_past():
    terms = [random_codes(BF16, 20 + rank, 27) for rank in (0, 1)]
    keyed_ = Bench(final="neighbour_keyed", read_past=False).call(terms, BF16, shift=1)[0]
    reading = Bench(final="neighbour_keyed").call(terms, BF16, shift=1)[0]
    nearest = Bench().call(terms, BF16, shift=1)[0]
    assert np.array_equal(keyed_[:3], nearest[:3])
    assert np.array_equal(keyed_[3:27], reading[3:27])
    assert not np.array_equal(keyed_, nearest)
    cut = Bench(final="neighbour_keyed", read_past=False).call([t[:26] for t in terms], BF16, shift=1)[0]
    assert np.array_equal(cut[23:], nearest[23:26])


def test_a_buffer_that_ends_inside_a_group_reads_as_zeros():
    terms = [random_codes(BF16, 30 + rank, 3) for rank in (0, 1)]
    ends = Bench(nbytes=BASE + 6, final="neighbour_keyed").call(terms, BF16)[0]
    padded = Bench(final="neighbour_keyed", read_past="zero").call(terms, BF16)[0]
    assert np.array_equal(ends, padded)


@pytest.mark.parametrize("order", ["rank", "ring", "recursive_doubling", "tree", "fused"])
@pytest.mark.parametrize("accumulator", ["same", "auto", "binary16", "exact"])
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_orders_and_accumulators_follow_their_trees(order, accumulator, fmt):
    rank_n, n = 5, 43
    terms = [
        np.concatenate([random_codes(fmt, 40 + r, n - 9), random_codes(fmt, 50 + r, 9, wide=True)])
        for r in range(rank_n)
    ]
    for hop, final in (("ties_to_even", "ties_to_away"), ("toward_negative", "toward_zero"), (None, "toward_positive")):
        options = {"order": order, "accumulator": accumulator, "final": final} | ({"hop": hop} if hop else {})
        found = Bench(rank_n, **options).call(terms, fmt)
        for i in range(n):
            codes = [int(t[i]) for t in terms]
            if accumulator == "exact":
                expected = sum_reference(fmt, codes, final)
            else:
                acc = {"same": fmt, "auto": FP32 if fmt.bits <= 16 else fmt}.get(accumulator) or FORMATS[accumulator]
                tree = tree_by_hand(order, i // math.ceil(n / rank_n))
                expected = evaluate_reference(tree, codes, fmt, accumulator=acc, hop=hop or final, final=final)
            assert found[0][i] == expected, (i, codes)
        assert all(np.array_equal(found[0], found[r]) for r in range(rank_n))


def tree_by_hand(order, chunk):
    """The trees of five ranks, written out."""
    if order == "ring":
        a, b, c, d, e = ((chunk + 1 + k) % 5 for k in range(5))
        return ((((a, b), c), d), e)
    return {
        "rank": ((((0, 1), 2), 3), 4),
        "recursive_doubling": (((0, 1), 2), (3, 4)),
        "tree": (((0, 1), (2, 3)), 4),
        "fused": (0, 1, 2, 3, 4),
    }[order]


def test_ring_order_by_collective():
    """bfloat16 partial sums: 256 + 1 is 256 (a tie), so that where 256 comes in the order tells."""
    terms = [np.full(6, BF16.power_of_two(8 if rank == 0 else 0), np.uint16) for rank in range(3)]
    by_chunk = {chunk: sum_in_bfloat16([int(terms[r][0]) for r in ring_order(3, chunk)]) for chunk in range(3)}
    assert len(set(by_chunk.values())) == 2
    bench = Bench(3, order="ring", accumulator="same")
    assert bench.call(terms, BF16)[1].tolist() == [by_chunk[i // 2] for i in range(6)]
    scattered = bench.call(terms, BF16, "reduce_scatter")
    assert [scattered[r].tolist() for r in range(3)] == [[by_chunk[r]] * 2 for r in range(3)]
    for root in range(3):
        assert bench.call(terms, BF16, "reduce", root=root)[root].tolist() == [by_chunk[root]] * 6


def sum_in_bfloat16(codes):
    total = codes[0]
    for code in codes[1:]:
        total = sum_reference(BF16, [total, code], "ties_to_even")
    return total


@pytest.mark.parametrize("formula", ["divide_after", "multiply_before", "multiply_after"])
@pytest.mark.parametrize("accumulator", ["same", "auto", "exact"])
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_average_formulas_against_rationals(formula, accumulator, fmt):
    for rank_n, mode in ((3, "ties_to_even"), (7, "toward_negative"), (4, "away_from_zero")):
        terms = [random_codes(fmt, 60 + r, 40) for r in range(rank_n)]
        if fmt is FORMATS["binary64"]:  # more than 64 bits in the exact sum
            terms[0][:8] = fmt.power_of_two(300)
        found = Bench(rank_n, average=formula, accumulator=accumulator, final=mode).call(terms, fmt, op="avg")[0]
        for i in range(40):
            expected = average_by_hand(fmt, [value_of(fmt, int(t[i])) for t in terms], formula, accumulator, mode)
            assert value_of(fmt, int(found[i])) == expected, (rank_n, i)


@pytest.mark.parametrize("bits", [53, 104])
def test_products_just_above_a_tie(bits):
    """binary64: a tie in the top 64 bits of sum * 1/7 and more below; or reached only by bits past the sum's 64th."""
    fmt, rng, n = FORMATS["binary64"], np.random.default_rng(5), 7
    factor, unit = value_of(fmt, arithmetic.inverse(fmt, n)), Fraction(2) ** (55 - bits)
    sums = []
    while len(sums) < 5:
        tie = int(rng.integers(1 << 51, 1 << 52)) * 2 + Fraction(1, 2)  # above an even significand
        close = math.ceil(tie / factor / unit) * unit
        if 0 < close * factor - tie < Fraction(1, 1 << 11):
            sums.append(close)
    tops = [rounded(fmt, x, "toward_zero") for x in sums]
    columns = [tops, [x - top for x, top in zip(sums, tops, strict=True)], *[[Fraction(0)] * 5] * (n - 2)]
    terms = [
        np.array([round_reference(fmt, *exact_ratio(v), "toward_zero") for v in column], np.uint64)
        for column in columns
    ]
    assert [sum(value_of(fmt, int(t[i])) for t in terms) for i in range(5)] == sums
    accumulator = "same" if bits == 53 else "exact"
    found = Bench(n, average="multiply_after", accumulator=accumulator).call(terms, fmt, op="avg")[0]
    for x, code in zip(sums, found, strict=True):
        assert value_of(fmt, int(code)) == rounded(fmt, x * factor, "ties_to_even") == math.ceil(x * factor)


def rounded(fmt, x, mode):
    """A rational rounded to the format's values."""
    scale = 1200 + 64
    numerator = math.floor(abs(x) * 2**scale)
    sticky = abs(x) * 2**scale != numerator
    code = round_reference(fmt, (2 * numerator + sticky) * (-1 if x < 0 else 1), -scale - 1, mode)
    assert code & fmt.magnitude_mask <= fmt.max_code
    return value_of(fmt, code)


def average_by_hand(fmt, values, formula, accumulator, mode):
    n = len(values)
    work = {"same": fmt, "auto": FP32 if fmt.bits <= 16 else fmt, "exact": fmt}[accumulator]
    hop = (lambda x: x) if accumulator == "exact" else (lambda x: rounded(work, x, mode))
    inverse = rounded(work, Fraction(1, n), "ties_to_even")
    if formula == "multiply_before":
        values = [rounded(work, v * inverse, mode) for v in values]
    total = hop(values[0])
    for v in values[1:]:
        total = hop(total + v)
    total = {"divide_after": hop(total / n), "multiply_after": hop(total * inverse)}.get(formula, total)
    return rounded(fmt, total, mode)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_minimum_and_maximum_by_class(fmt):
    rng = np.random.default_rng(3)
    zero, minus, top = 0, fmt.sign_mask, fmt.max_code
    special = [zero, minus, top, top | fmt.sign_mask, fmt.nan_code, fmt.overflow_code, 1, 1 | fmt.sign_mask]
    pairs = np.array(list(itertools.product(special, special)), fmt.dtype)
    more = rng.integers(0, 1 << fmt.bits, (200, 2), dtype=np.uint64).astype(fmt.dtype)
    terms = list(np.concatenate([pairs, more]).T)
    for op, pick in (("min", min), ("max", max)):
        found = Bench(preset="b300").call([np.ascontiguousarray(t) for t in terms], fmt, op=op)[0]
        for a, b, code in zip(*terms, found, strict=True):
            magnitudes = [int(c) & fmt.magnitude_mask for c in (a, b)]
            limit = fmt.overflow_code if fmt.has_infinity else fmt.max_code
            if max(magnitudes) > limit:
                assert code == fmt.nan_code
            else:
                signed = [
                    (-m - 1 if int(c) & fmt.sign_mask else m, int(c)) for m, c in zip(magnitudes, (a, b), strict=True)
                ]
                assert code == pick(signed)[1]


def test_specials_of_a_keyed_sum():
    inf, nan, top = BF16.overflow_code, BF16.nan_code, BF16.max_code
    pairs = [
        (inf, 0),
        (inf, inf | 0x8000),
        (nan, 0),
        (0x8000, 0x8000),
        (0x8000, 0),
        (top, top),
        (0x3F80, 0xBF80),
        (inf | 0x8000, 5),
    ]
    found = Bench(preset="b300").call(list(np.array(pairs, np.uint16).T.copy()), BF16)[0]
    assert found.tolist() == [inf, nan, nan, 0x8000, 0, inf, 0, inf | 0x8000]


def test_words_of_subnormal_and_special_neighbours():
    """The field is that of the binary32 word itself: subnormals have no hidden bit, a NaN has its quiet bit."""
    codes = np.array(
        [0, 1, 0x400000, 0x600000, 0x7FFFFF, 0x800000, 0xC00000, 0x7F800000, 0x7FC00000, 0xC0E00000], np.uint32
    )
    field = keyed.top_bits(FP32, exact_sums(FP32, [codes]))
    assert [int(f) >> 61 for f in field] == [(int(c) & 0x7FFFFF) >> 20 for c in codes]


@pytest.mark.parametrize("shot", ["one_shot", "two_shot"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
@pytest.mark.parametrize("read_past", [True, False, "zero"])
def test_in_place_gives_the_same_bits(shot, collective, read_past, monkeypatch):
    monkeypatch.setattr(backend, "BLOCK", 32)
    for count, shift in itertools.product((1, 2, 3, 5, 33, 70), (0, 1, 3)):
        n = count * 3 if collective == "reduce_scatter" else count
        terms = [random_codes(BF16, 70 + rank, n) for rank in range(3)]
        after = [random_codes(BF16, 80 + rank, 8) for rank in range(3)]
        options = {"shot": shot, "read_past": read_past, "final": "neighbour_keyed", "group_bytes": 16}
        apart = Bench(3, **options).call(terms, BF16, collective, shift=shift, root=2, after=after)
        same = Bench(3, **options).call(terms, BF16, collective, shift=shift, root=2, after=after, in_place=True)
        for rank in (2,) if collective == "reduce" else (0, 1, 2):
            assert np.array_equal(apart[rank], same[rank]), (count, shift, rank)


def test_blocks_do_not_show(monkeypatch):
    terms = [random_codes(BF16, 90 + rank, 1000) for rank in (0, 1)]
    for options in (
        {"preset": "b300"},
        {"final": "stochastic"},
        {"order": "ring", "shot": "two_shot", "final": "neighbour_keyed"},
    ):
        whole = Bench(**options).call(terms, BF16, shift=3)[0]
        monkeypatch.setattr(backend, "BLOCK", 64)
        assert np.array_equal(Bench(**options).call(terms, BF16, shift=3)[0], whole)
        monkeypatch.undo()


def test_shares_read_their_neighbours_or_zeros():
    """Two shots: each owner reads whole groups about its share; read_past = "zero" pads there, so share ends differ."""
    terms = [random_codes(BF16, 110 + rank, 42) for rank in (0, 1)]
    one = Bench(final="neighbour_keyed").call(terms, BF16)[0]
    two = Bench(final="neighbour_keyed", shot="two_shot").call(terms, BF16)[0]
    padded = Bench(final="neighbour_keyed", shot="two_shot", read_past="zero").call(terms, BF16)[0]
    assert np.array_equal(one, two)
    inner = [i for i in range(40) if i // 4 != 5]  # the shares meet at 21
    assert np.array_equal(padded[inner], one[inner])
    cut = Bench(final="neighbour_keyed", read_past="zero").call([t[:21] for t in terms], BF16)[0]
    assert np.array_equal(padded[:21], cut)


def test_stochastic_rounding_is_fair_and_its_generator_is_what_was_asked():
    n = 1 << 14
    terms = [np.full(n, BF16.power_of_two(0), np.uint16), np.full(n, 0x3B40, np.uint16)]  # 1 + 3/8 ulp
    assert value_of(BF16, 0x3B40) * 2**7 == Fraction(3, 8)
    fixed, call = Bench(final="stochastic"), Bench(final="stochastic", generator="call")
    first = fixed.call(terms, BF16)[0]
    share = (first == 0x3F81).mean()
    assert abs(share - 0.375) < 5 * math.sqrt(0.375 * 0.625 / n)
    assert set(np.unique(first)) == {0x3F80, 0x3F81}
    assert np.array_equal(fixed.call(terms, BF16)[0], first)
    assert not np.array_equal(Bench(final="stochastic", seed=1).call(terms, BF16)[0], first)
    assert not np.array_equal(call.call(terms, BF16)[0], call.call(terms, BF16)[0])


def test_noise_by_address_and_by_value():
    n = 1 << 12
    one = [np.full(n, BF16.power_of_two(0), np.uint16), np.full(n, 0x3B40, np.uint16)]  # equal sums everywhere
    address = Bench(final="stochastic", generator="address")
    plain, moved = address.call(one, BF16)[0], address.call(one, BF16, shift=1)[0]
    assert np.array_equal(plain[1:], moved[:-1])
    assert not np.array_equal(plain, moved)
    assert len(np.unique(Bench(final="stochastic", generator="value").call(one, BF16)[0])) == 1
    terms = random_codes(BF16, 1, n), random_codes(BF16, 2, n)
    mixed = np.random.default_rng(0).permutation(n)
    value = Bench(final="stochastic", generator="value")
    straight = value.call(terms, BF16)[0]
    assert np.array_equal(straight[mixed], value.call([t[mixed] for t in terms], BF16, shift=3)[0])
    other = Bench(final="stochastic", generator="value", seed=1).call(terms, BF16)[0]
    assert 0.05 < (straight != other).mean() < 0.5
    up = straight.astype(int) - Bench(final="toward_zero", hop="ties_to_even").call(terms, BF16)[0]
    fair = split(BF16, exact_sums(BF16, terms)).rem.astype(float).mean() / 2**64
    assert abs(up.mean() - fair) < 0.04


@pytest.mark.parametrize(
    ("sixteenths", "form", "share"),
    [
        *((7, "SRFF", 0.25), (7, "SRC", 0.5), (7, "SRF", 0.5)),
        *((10, "SRFF", 0.5), (10, "SRC", 0.5), (10, "SRF", 0.75)),
        *((15, "SRFF", 0.75), (15, "SRC", 1), (15, "SRF", 1)),
        *((0, "SRFF", 0), (0, "SRC", 0), (0, "SRF", 0)),
    ],
)
def test_forms_with_two_noise_bits(sixteenths, form, share):
    """rem * 4 = 1.75, 2.5 (a tie), 3.75, 0: SRFF floors it, SRC rounds it to nearest even, SRF adds half a step to the noise."""
    sums = exact_sums_of_integers(np.full(4, (1 << 11) + sixteenths), -11)
    noise = np.arange(4, dtype=np.uint64) << np.uint64(62)
    assert keyed.up_by_form(split(BF16, sums), noise, 2, form).mean() == share


def test_group_takes_part_alone_and_in_order():
    terms = [np.full(4, BF16.power_of_two(k), np.uint16) for k in (0, 8)]
    bench = Bench(3)
    before = bench.recv[1].copy()
    found = bench.call(terms, BF16, "reduce", root=1, group=(2, 0))
    assert value_of(BF16, int(found[0][0])) == 256  # 257 is a tie
    assert (found[2] == 0).all()
    assert np.array_equal(bench.recv[1], before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ordre": "rank"}, ["unknown option 'ordre'", "order", "neighbour_order"]),
        ({"order": "rng"}, ["order = 'rng'", "recursive_doubling"]),
        ({"group_bytes": 12}, ["group_bytes = 12", "4, 8, 16, 32"]),
        ({"group_bytes": 8.0}, ["group_bytes = 8.0"]),
        ({"rule": 0, "preset": "b300"}, ["rule = 0", "true, false"]),
        ({"rule": False}, ["preset"]),
        ({"read_past": "zeros"}, ["read_past = 'zeros'", "true, false, zero"]),
        ({"seed": -1}, ["seed = -1", "whole number from 0"]),
        ({"seed": True}, ["seed = True"]),
        ({"noise_bits": 0}, ["noise_bits = 0"]),
        ({"preset": "b200"}, ["preset = 'b200'", "b300"]),
        ({"keyed_formats": ["fp16"]}, ["keyed_formats", "binary16"]),
        ({"keyed_formats": "bfloat16"}, ["keyed_formats", "list"]),
        ({"final": "stochastic", "keyed_formats": ["binary32"]}, ["binary32", "no wider"]),
        ({"final": "neighbour_keyed", "noise_bits": 3, "group_bytes": 32}, ["93 noise bits", "keyed_formats"]),
        ({"final": "neighbour_keyed", "noise_bits": 11, "accumulator": "binary16"}, ["noise_bits = 11", "10"]),
        ({"order": "rng", "shot": "no"}, ["order = 'rng'", "shot = 'no'"]),
    ],
)
def test_bad_options_are_named_with_what_is_legal(options, words):
    with pytest.raises(ConfigError) as caught:
        Simulator.probe(options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        Bench(**options)


def test_preset_gives_way_to_explicit_options():
    preset = Options.parse({"preset": "b300"})
    assert (preset.final, preset.group_bytes, preset.noise_bits, preset.read_past) == ("neighbour_keyed", 8, 2, True)
    assert Options.parse({"preset": "b300", "noise_bits": 3, "neighbour_order": "reversed"}).noise_bits == 3
    assert Options.parse({"preset": "b300", "rule": False}).final == "ties_to_even"
    finals = {name: Recipe.of(preset, fmt).final for name, fmt in FORMATS.items()}
    assert {name for name, final in finals.items() if final == "neighbour_keyed"} == {"bfloat16", "binary16"}
    assert set(finals.values()) == {"neighbour_keyed", "ties_to_even"}


def test_path_names_what_was_taken():
    ones = [np.full(4, 0x3F80, np.uint16)] * 2
    bench = Bench(preset="b300")
    bench.call(ones, BF16)
    assert bench.sim.path() == "SIM/rank/one_shot/neighbour_keyed"
    bench.call([np.full(4, 0x3F800000, np.uint32)] * 2, FP32)
    assert bench.sim.path() == "SIM/rank/one_shot/ties_to_even"
    bench.call(ones, BF16, op="max")
    assert bench.sim.path() == "SIM/rank/one_shot/exact"
    other = Bench(order="ring", shot="two_shot", accumulator="same", hop="toward_zero")
    other.call(ones, BF16)
    assert other.sim.path() == "SIM/ring/two_shot/toward_zero"
    assert other.sim.last_seconds() > 0


def test_calls_that_cannot_be_served():
    bench = Bench()
    fitting = {r: Window(bench.send[r], 0, 8) for r in (0, 1)}
    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=4)

    def run(send=fitting, recv=fitting, **changes):
        base = {"collective": "all_reduce", "op": "sum", "format": "bfloat16", "count": 4, **changes}
        bench.sim.run(Call(**base), send, recv)

    with pytest.raises(Unsupported, match="all_gather"):
        run(collective="all_gather")
    with pytest.raises(Unsupported, match="prod"):
        run(op="prod")
    with pytest.raises(BackendError, match="group"):
        run(group=(0, 5))
    with pytest.raises(BackendError, match="group"):
        run(group=())
    with pytest.raises(BackendError, match="root 2"):
        run(collective="reduce", root=2)
    with pytest.raises(BackendError, match="no recv window of rank 1"):
        run(recv={0: fitting[0]})
    with pytest.raises(BackendError, match="send window of rank 0 has 6 bytes"):
        run(send={r: Window(bench.send[r], 0, 6) for r in (0, 1)})
    with pytest.raises(BackendError, match="offset 65532"):
        run(recv={r: Window(bench.recv[r], 65532, 8) for r in (0, 1)})
    bench.sim.run(call, fitting, fitting)


def test_an_inverse_that_is_zero_is_refused():
    with pytest.raises(Unsupported, match="1/2048 is zero"):
        arithmetic.total(
            Recipe.of(Options.parse({"accumulator": "same", "average": "multiply_after"}), FORMATS["float8_e4m3fn"]),
            "avg",
            tuple(range(2048)),
            [np.zeros(1, np.uint8)] * 2048,
        )


def test_describe_is_plain_and_says_what_was_set():
    described = Bench(preset="b300").sim.describe()
    assert described["keyed_formats"] == "binary16 bfloat16"
    assert described["simulated"] is True
    json.dumps(dict(described))
