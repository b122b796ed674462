"""Rounding: golden data, every narrow code, two oracles that are not ours, and the published figures of NUMERICS §1."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
from golden_data import NARROW, column_arrays, finite_codes, golden, is_nan, random_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.numerics import exact
from auditor.numerics.exact import Codes, decode_reference, exact_sums, exact_sums_of_integers
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import splitmix64
from auditor.numerics.rounding import (
    MODES,
    Split,
    convert,
    join,
    round_reference,
    round_sums,
    split,
    sum_reference,
    up_by_mode,
    up_by_noise,
)

EVERY = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
MODE = pytest.mark.parametrize("mode", MODES)
Rounder = Callable[[Format, Sequence[Sequence[int]], str], list[int]]


def by_reference(fmt: Format, rows: Sequence[Sequence[int]], mode: str) -> list[int]:
    return [sum_reference(fmt, row, mode) for row in rows]


def by_arrays(fmt: Format, rows: Sequence[Sequence[int]], mode: str) -> list[int]:
    """Rows of any lengths: short ones are filled with a zero that does not change the sum (-0 beside a -0, else +0)."""
    width = max(len(row) for row in rows)
    full = [[*row, *[row[0] if row[0] == fmt.sign_mask else 0] * (width - len(row))] for row in rows]
    return round_sums(fmt, exact_sums(fmt, column_arrays(fmt, full)), mode).tolist()


def by_rows(fmt: Format, rows: Sequence[Sequence[int]], mode: str) -> list[int]:
    return [int(round_sums(fmt, exact_sums(fmt, column_arrays(fmt, [row])), mode)[0]) for row in rows]


TWINS = pytest.mark.parametrize("rounder", [by_reference, by_arrays, by_rows], ids=["scalar", "array", "array_rows"])


@TWINS
@EVERY
def test_golden_sums(fmt: Format, rounder: Rounder) -> None:
    cases = golden("rounding")["formats"][fmt.name]
    cases = cases[::8] if rounder is by_rows else cases
    for mode in MODES:
        assert rounder(fmt, [case["inputs"] for case in cases], mode) == [case[mode] for case in cases]


@TWINS
@EVERY
def test_golden_specials(fmt: Format, rounder: Rounder) -> None:
    cases = golden("rounding")["special"][fmt.name]
    for mode in MODES:
        found = rounder(fmt, [case["inputs"] for case in cases], mode)
        for case, code in zip(cases, found, strict=True):
            assert is_nan(fmt, code) if case.get("nan") else code == case[mode], (case, mode)


@EVERY
def test_golden_classes(fmt: Format) -> None:
    """The golden file's class of each sum is what the split says."""
    for case in golden("rounding")["formats"][fmt.name]:
        seen = split(fmt, exact_sums(fmt, column_arrays(fmt, [case["inputs"]])))
        tie = seen.rem[0] == 1 << 63 and not seen.sticky[0]
        over = abs(Fraction(*map(int, case["exact"]))) > value(fmt, fmt.max_code)
        name = "overflow" if over else "tie" if tie else "inexact" if seen.inexact[0] else "exact"
        assert name == case["class"]


def value(fmt: Format, code: int) -> Fraction:
    """Value of a code; max + 1 ulp has the value that the next code would have."""
    if code & fmt.magnitude_mask == fmt.overflow_code:
        size = 2 * value(fmt, fmt.max_code) - value(fmt, fmt.max_code - 1)
        return -size if code & fmt.sign_mask else size
    numerator, exponent = decode_reference(fmt, code)
    return Fraction(numerator) * Fraction(2) ** exponent


# --- every code of every 8- and 16-bit format, to every format ------------------------------------------------------


def widened(fmt: Format, codes: Codes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Exact values: NumPy and ml_dtypes widen to binary64 without rounding."""
    others = {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }
    other = others.get(fmt.name) or f"f{fmt.itemsize}"
    with np.errstate(invalid="ignore"):
        return codes.view(other).astype(np.float64)


def by_search(fmt: Format, values: np.ndarray[Any, Any], mode: str) -> Codes:
    """Independent oracle: look |x| up in the sorted table of all values of a narrow format (max + 1 ulp appended)."""
    table = widened(fmt, np.arange(fmt.max_code + 1).astype(fmt.dtype))
    table = np.append(table, 2 * table[-1] - table[-2])
    size, negative = np.abs(values), np.signbit(values)
    lo = np.clip(np.searchsorted(table, size, side="right") - 1, 0, fmt.max_code)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        below, above = size - table[lo], table[lo + 1] - size  # exact where they are within 40 binades of each other
    nearer_up, tie = below > above, below == above
    up = {
        "ties_to_even": nearer_up | (tie & (lo % 2 == 1)),
        "ties_to_away": nearer_up | tie,
        "toward_zero": np.zeros(len(lo), bool),
        "toward_positive": (below > 0) & ~negative,
        "toward_negative": (below > 0) & negative,
        "away_from_zero": below > 0,
    }[mode]
    codes = np.where(np.isinf(size), fmt.overflow_code, lo + up).astype(np.uint64)
    codes = np.where(np.isnan(size), fmt.nan_code, codes | np.where(negative, fmt.sign_mask, 0).astype(np.uint64))
    return codes.astype(fmt.dtype)


@MODE
@pytest.mark.parametrize("target", NARROW, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("source", NARROW, ids=lambda fmt: fmt.name)
def test_every_narrow_cast(source: Format, target: Format, mode: str) -> None:
    codes = np.arange(1 << source.bits).astype(source.dtype)
    expected = by_search(target, widened(source, codes), mode)
    assert (convert(source, codes, target, mode) == expected).all()
    step = 1 if source.bits == 8 else 23
    for code in range(MODES.index(mode), 1 << source.bits, step):
        assert sum_reference(source, [code], mode, to=target) == expected[code]


@MODE
@pytest.mark.parametrize("target", ["binary32", "binary64"])
@pytest.mark.parametrize("source", NARROW, ids=lambda fmt: fmt.name)
def test_every_widening_cast_is_exact(source: Format, target: str, mode: str) -> None:
    codes = np.arange(1 << source.bits).astype(source.dtype)
    found = convert(source, codes, FORMATS[target], mode)
    values = widened(source, codes)
    assert np.array_equal(widened(FORMATS[target], found), values, equal_nan=True)
    number = ~np.isnan(values)
    assert (np.signbit(values)[number] == (found >= FORMATS[target].sign_mask)[number]).all()


@pytest.mark.parametrize(
    ("source", "target", "other"),
    [
        ("binary32", "binary16", np.float16),
        ("binary64", "binary16", np.float16),
        ("binary64", "binary32", np.float32),
        ("binary32", "bfloat16", ml_dtypes.bfloat16),
        ("binary32", "float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("binary32", "float8_e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_casts_agree_with_numpy_and_ml_dtypes(source: str, target: str, other: Any) -> None:
    """Casts that those libraries round once. Their binary64 to bfloat16 and 8 bits goes through binary32: not an oracle."""
    wide, narrow = FORMATS[source], FORMATS[target]
    near = convert(narrow, random_codes(narrow, 1 << 15, 3), wide, "ties_to_even")
    half = wide.dtype.type(1 << (wide.mantissa_bits - narrow.mantissa_bits - 1))
    tied = np.concatenate([near + half, near + half + 1, near + half - 1, near - half])
    codes = np.concatenate([random_codes(wide, 1 << 15, 4), near, tied, np.arange(64).astype(wide.dtype)])
    with np.errstate(all="ignore"):
        expected = codes.view(f"f{wide.itemsize}").astype(other).view(narrow.dtype)
    found = convert(wide, codes, narrow, "ties_to_even")
    same = found == expected
    same |= np.array([is_nan(narrow, a) and is_nan(narrow, b) for a, b in zip(found, expected, strict=True)])
    assert same.all()


def test_a_cast_rounds_once() -> None:
    """1 + 2**-8 + 2**-30 lies above a bfloat16 tie; through binary32 it falls on it and goes to 1 (NUMERICS §2)."""
    wide = np.array([1 + 2.0**-8 + 2.0**-30]).view(np.uint64)
    assert convert(FORMATS["binary64"], wide, FORMATS["bfloat16"], "ties_to_even").tolist() == [0x3F81]


# --- oracles that are not ours ---------------------------------------------------------------------------------------

GFLOAT = {
    "binary64": gf.format_info_binary64,
    "binary32": gf.format_info_binary32,
    "binary16": gf.format_info_binary16,
    "bfloat16": gf.format_info_bfloat16,
    "float8_e4m3fn": gf.format_info_ocp_e4m3,
    "float8_e5m2": gf.format_info_ocp_e5m2,
}
GFLOAT_MODES = {
    "ties_to_even": gfloat.RoundMode.TiesToEven,
    "ties_to_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "toward_positive": gfloat.RoundMode.TowardPositive,
    "toward_negative": gfloat.RoundMode.TowardNegative,
}


def close_row(fmt: Format, rng: random.Random) -> list[int]:
    """2 to 5 codes within a few binades of each other, so that binary64 holds their exact sum; any part of the range."""
    room = max(53 - fmt.precision - 3, 0)
    top = fmt.max_code >> fmt.mantissa_bits
    start = rng.choice([0, 1, max(0, top - room), rng.randint(0, max(0, top - room))])
    fields = [rng.randint(start, min(start + room, top)) for _ in range(rng.randint(2, 5))]
    codes = [min((field << fmt.mantissa_bits) | rng.getrandbits(fmt.mantissa_bits), fmt.max_code) for field in fields]
    return [code | (fmt.sign_mask * rng.getrandbits(1)) for code in codes]


@pytest.mark.parametrize("mode", list(GFLOAT_MODES))
@EVERY
def test_random_sums_agree_with_gfloat(fmt: Format, mode: str) -> None:
    rng = random.Random(f"{fmt.name} {mode}")
    rows, expected = [], []
    while len(rows) < 300:
        row = close_row(fmt, rng)
        total = Fraction(exact.exact_sum_reference(fmt, row)[0]) * Fraction(2) ** fmt.lsb
        if total == 0 or abs(total) >= 2**1024 or Fraction(float(total)) != total:
            continue  # gfloat takes a binary64, so only sums that binary64 holds
        rounded = gfloat.round_float(GFLOAT[fmt.name], float(total), GFLOAT_MODES[mode])
        rows.append(row)
        expected.append(gfloat.encode_float(GFLOAT[fmt.name], rounded))
    found = by_rows(fmt, rows, mode)
    assert found == by_reference(fmt, rows, mode)
    for row, a, b in zip(rows, found, expected, strict=True):
        assert a == b or (is_nan(fmt, a) and is_nan(fmt, b)), (row, hex(a), hex(b))


def test_wide_sums_of_binary64_agree_with_fsum() -> None:
    rng = np.random.default_rng(8)
    for n in (2, 3, 9):
        values = np.ldexp(rng.standard_normal((n, 400)), rng.integers(-1060, 960, (n, 400)))
        values[:, ::3] = np.ldexp(rng.standard_normal((n, 134)), rng.integers(-60, 60, (n, 134)))
        found = round_sums(
            FORMATS["binary64"], exact_sums(FORMATS["binary64"], list(values.view(np.uint64))), "ties_to_even"
        )
        assert found.view(np.float64).tolist() == [math.fsum(column) for column in values.T]


# --- scalar and array agree on anything ------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from(list(FORMATS.values())),
    st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=9),
)
def test_twins_agree_from_any_format_to_any(source: Format, target: Format, words: list[int]) -> None:
    codes = [word & ((1 << source.bits) - 1) for word in words]
    sums = exact_sums(source, column_arrays(source, [codes]))
    for mode in MODES:
        assert round_sums(target, sums, mode).tolist() == [sum_reference(source, codes, mode, to=target)]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())),
    st.integers(-(2**62), 2**62),
    st.integers(-1200, 1100),
    st.sampled_from(MODES),
)
def test_twins_agree_on_integers(fmt: Format, numerator: int, exponent: int, mode: str) -> None:
    sums = exact_sums_of_integers(np.array([numerator], np.int64), exponent)
    minus = mode == "toward_negative"
    expected = round_reference(fmt, numerator, exponent, mode, negative_zero=minus)
    assert round_sums(fmt, sums, mode).tolist() == [expected]


@EVERY
def test_modes_follow_their_definition(fmt: Format) -> None:
    """lo, the middle and both sides of it, for codes of every binade and at the maximum, in exact rationals."""
    magnitudes = {
        0,
        1,
        2,
        3,
        fmt.max_code,
        fmt.max_code - 1,
        fmt.power_of_two(fmt.emin) - 1,
        fmt.power_of_two(fmt.emin),
    }
    magnitudes |= {int(code) & fmt.magnitude_mask for code in finite_codes(fmt, 40, 1)}
    steps = [Fraction(1, 2**70), Fraction(1, 4), Fraction(1, 2) - Fraction(1, 2**66), Fraction(1, 2)]
    steps += [Fraction(1, 2) + Fraction(1, 2**66), Fraction(1) - Fraction(1, 2**70)]
    for lo, step, sign in itertools.product(magnitudes, steps, (1, -1)):
        x = sign * (value(fmt, lo) + step * (value(fmt, lo + 1) - value(fmt, lo)))
        shift = x.denominator.bit_length() - 1
        ups = {
            "ties_to_even": step > Fraction(1, 2) or (step == Fraction(1, 2) and lo % 2 == 1),
            "ties_to_away": step >= Fraction(1, 2),
            "toward_zero": False,
            "toward_positive": sign > 0,
            "toward_negative": sign < 0,
            "away_from_zero": True,
        }
        for mode, up in ups.items():
            assert round_reference(fmt, x.numerator, -shift, mode) == (lo + up) | (fmt.sign_mask if sign < 0 else 0)


@EVERY
def test_split_and_join_at_the_maximum(fmt: Format) -> None:
    """Up to max + gap the sum is split as anywhere; from there on it is past the maximum, whatever its size."""
    gap = value(fmt, fmt.max_code) - value(fmt, fmt.max_code - 1)
    unit = int(math.log2(gap)) - 3
    top = int(value(fmt, fmt.max_code) / gap) << 3
    eighths = np.array([0, 1, 4, 7, 8, 9, 8000], np.int64)
    seen = split(fmt, exact_sums_of_integers(-(top + eighths), unit))
    assert seen.past_max.tolist() == [False] * 4 + [True] * 3
    assert seen.lo.tolist() == [fmt.max_code] * 7
    assert seen.rem.tolist() == [0, 1 << 61, 1 << 63, 7 << 61] + [(1 << 64) - 1] * 3
    assert seen.sticky.tolist() == [False] * 4 + [True] * 3
    over, most = fmt.overflow_code | fmt.sign_mask, fmt.max_code | fmt.sign_mask
    tie = most if fmt.max_code % 2 == 0 else over
    expected = {
        "ties_to_even": [most, most, tie, over, over, over, over],
        "ties_to_away": [most, most, over, over, over, over, over],
        "toward_zero": [most] * 7,
        "toward_positive": [most] * 7,
        "toward_negative": [most] + [over] * 6,
        "away_from_zero": [most] + [over] * 6,
    }
    for mode, codes in expected.items():
        assert join(fmt, seen, up_by_mode(mode, seen)).tolist() == codes


@EVERY
def test_split_holds_the_exact_value(fmt: Format) -> None:
    """lo + rem * gap is the sum; where sticky, it lies under a unit above, and rem has 64 - p true bits at least."""
    source = FORMATS["binary64"]
    codes = [finite_codes(source, 300, seed) for seed in (1, 2)]
    near = convert(fmt, finite_codes(fmt, 300, 3), source, "toward_zero")
    codes = [np.concatenate([codes[0], near]), np.concatenate([codes[1], (near << np.uint64(1)) >> np.uint64(2)])]
    seen = split(fmt, exact_sums(source, codes))
    for i, row in enumerate(zip(*(c.tolist() for c in codes), strict=True)):
        x = abs(Fraction(exact.exact_sum_reference(source, row)[0]) * Fraction(2) ** source.lsb)
        lo = value(fmt, int(seen.lo[i]))
        gap = value(fmt, int(seen.lo[i]) + 1) - lo
        if seen.past_max[i]:
            assert x >= lo + gap
            continue
        rest = x - lo - gap * Fraction(int(seen.rem[i]), 1 << 64)
        assert 0 < rest < gap / (1 << (64 - fmt.precision)) if seen.sticky[i] else rest == 0


def test_specials_in_a_split() -> None:
    fmt = FORMATS["float8_e4m3fn"]
    infinite = FORMATS["bfloat16"]
    codes = np.array(
        [infinite.overflow_code, infinite.overflow_code | infinite.sign_mask, infinite.nan_code, 0], np.uint16
    )
    seen = split(fmt, exact_sums(infinite, [codes]))
    assert seen.finite.tolist() == [False] * 3 + [True]
    assert seen.special.tolist() == [0x7F, 0xFF, 0x7F, 0]
    for field in (seen.lo, seen.rem, seen.negative, seen.past_max, seen.inexact):
        assert not field.any()


def test_unknown_modes_are_refused() -> None:
    seen = split(FORMATS["bfloat16"], exact_sums_of_integers(np.array([1], np.int64), 0))
    with pytest.raises(ValueError, match="unknown rounding mode 'nearest'; one of ties_to_even"):
        up_by_mode("nearest", seen)
    with pytest.raises(ValueError, match="unknown rounding mode"):
        round_reference(FORMATS["bfloat16"], 1, 0, "stochastic")


# --- rounding by noise -----------------------------------------------------------------------------------------------


def test_noise_adds_to_rem() -> None:
    rng = np.random.default_rng(2)
    fmt = FORMATS["bfloat16"]
    seen = split(fmt, exact_sums_of_integers(rng.integers(-(2**62), 2**62, 4000), -40))
    noise = rng.integers(0, 1 << 64, 4000, dtype=np.uint64)
    noise[:4] = [0, (1 << 64) - 1, 1, 1 << 63]
    expected = [int(r) + int(a) >= 1 << 64 for r, a in zip(seen.rem, noise, strict=True)]
    assert up_by_noise(seen, noise).tolist() == expected
    exact_only = split(fmt, exact_sums_of_integers(np.arange(-128, 128), 3))
    assert not up_by_noise(exact_only, np.full(256, (1 << 64) - 1, np.uint64)).any()


def test_no_noise_goes_toward_zero_but_not_past_the_maximum() -> None:
    fmt = FORMATS["float8_e5m2"]
    seen = split(fmt, exact_sums_of_integers(np.array([57344 + 8191, 57344 + 8192]), 0))
    assert up_by_noise(seen, np.zeros(2, np.uint64)).tolist() == [False, True]


def report132(fmt: Format, seed: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Sums of NUMERICS §1.4 in units of 2**(-4 - p + 1)."""
    total = np.zeros(n, np.int64)
    for rank in (0, 1):
        state = np.uint64((seed << 40) & (2**64 - 1)) ^ np.uint64(rank << 32) ^ np.arange(n).astype(np.uint64)
        h = splitmix64(state)
        mantissa = (h & np.uint64((1 << fmt.mantissa_bits) - 1)).astype(np.int64) + (1 << fmt.mantissa_bits)
        term = mantissa << ((h >> np.uint64(32)) % np.uint64(9)).astype(np.int64)
        total += np.where(h >> np.uint64(63), -term, term)
    return total


def neighbour_noise(fmt: Format, sums: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The printed rule: bits 22 and 21 of the binary32 words of the three other elements of the 8-byte group."""
    words = round_sums(FORMATS["binary32"], exact_sums_of_integers(sums, -4 - fmt.mantissa_bits), "ties_to_even")
    words = words.reshape(-1, 4)
    noise = np.zeros(words.shape, np.uint64)
    for k in (1, 2, 3):
        other = np.roll(words, -k, axis=1).astype(np.uint64)
        noise |= ((other >> np.uint64(22)) & np.uint64(1)) << np.uint64(64 - k)
        noise |= ((other >> np.uint64(21)) & np.uint64(1)) << np.uint64(61 - k)
    return noise.reshape(-1)


@pytest.mark.parametrize("case", list(golden("b300_rule")))
def test_published_rule_to_the_last_count(case: str) -> None:
    """Split and up_by_noise give the golden counts of the B300 rule, shifts included (NUMERICS §1.4)."""
    name, seed = case.split("_seed")
    fmt, n = FORMATS[name], 1 << 20
    sums = report132(fmt, int(seed), n + 64)

    def ups(values: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Split, np.ndarray[Any, np.dtype[np.bool_]]]:
        seen = split(fmt, exact_sums_of_integers(values, -4 - fmt.mantissa_bits))
        return seen, up_by_noise(seen, neighbour_noise(fmt, values))

    seen, up = ups(sums[:n])
    nearest = up_by_mode("ties_to_even", seen)
    wanted = golden("b300_rule")[case]
    found = {
        "inexact": seen.inexact.sum(),
        "rne": (seen.inexact & (up == nearest)).sum(),
        "toward_zero": (nearest & ~up).sum(),
        "away": (up & ~nearest).sum(),
        "ties": ((seen.rem == 1 << 63) & ~seen.sticky).sum(),
        "zero_sums": (seen.zero != 0).sum(),
    }
    for shift in (1, 2, 3, 4) if seed == "0" else ():
        moved = np.concatenate([sums[n : n + shift], sums[:n], sums[n + 20 : n + 20 + (-shift) % 4]])
        changed = seen.inexact & (ups(moved)[1][shift : shift + n] != up)
        assert changed.sum() == wanted["changed_by_shift"][str(shift)]
    assert found == {key: wanted[key] for key in found}


@pytest.mark.parametrize(
    ("name", "inexact", "total", "shares"),
    [
        ("bfloat16", 1_909_672, 2_654_208, (69.567, 17.714, 12.720, 44.889)),
        ("binary16", 122_303_136, 169_869_312, (69.567, 17.714, 12.719, 44.989)),
    ],
)
def test_enumeration_gives_the_printed_rationals(
    name: str, inexact: int, total: int, shares: tuple[float, ...]
) -> None:
    """All mantissa pairs, both relative signs, exponent differences 0 to 8 by their weight: no random numbers (§1.1)."""
    fmt = FORMATS[name]
    low = np.arange(1 << fmt.mantissa_bits) + (1 << fmt.mantissa_bits)
    counts: dict[tuple[int, bool], int] = {}
    top_bits = np.zeros(4)
    seen_total = 0
    for d, sign in itertools.product(range(9), (1, -1)):
        weight = 9 if d == 0 else 2 * (9 - d)
        values = ((low[:, None] << d) + sign * low[None, :]).reshape(-1)
        sums = exact_sums_of_integers(values, -4 - fmt.mantissa_bits)
        seen = split(fmt, sums)
        key = (seen.rem >> np.uint64(53)) | (seen.lo & 1)  # rem has at most 9 bits here
        assert not seen.sticky.any()
        assert not (seen.rem << np.uint64(11)).any()
        for k, count in zip(*np.unique(key, return_counts=True), strict=True):
            pair = (int(k) & ~1, bool(k & 1))
            counts[pair] = counts.get(pair, 0) + weight * int(count)
        top_bits += weight * np.bincount((sums.sig >> np.uint64(61)).astype(np.int64) & 3, minlength=4)
        seen_total += weight * len(values)
    by_rem = {key: count for key, count in counts.items() if key[0]}
    assert (sum(by_rem.values()), seen_total) == (inexact, total)

    share = top_bits / seen_total  # of b22 b21 = 00, 01, 10, 11; a zero sum has 00
    noise = np.zeros(64)
    for bits in itertools.product(range(4), repeat=3):
        at = sum((b >> 1) << (5 - k) | (b & 1) << (2 - k) for k, b in enumerate(bits))
        noise[at] += share[list(bits)].prod()
    tail = np.append(np.cumsum(noise[::-1])[::-1], 0)  # P(noise >= k / 64)
    nearest = toward_zero = away = 0.0
    for (rem, odd), count in by_rem.items():
        up = tail[-(-((1 << 11) - rem) // 32)] * count / inexact
        goes_up = rem > 1 << 10 or (rem == 1 << 10 and odd)
        nearest += up if goes_up else count / inexact - up
        toward_zero += count / inexact - up if goes_up else 0
        away += 0 if goes_up else up
    all_up = sum(tail[-(-((1 << 11) - rem) // 32)] * count for (rem, _), count in by_rem.items()) / inexact
    assert [round(100 * s, 3) for s in (nearest, toward_zero, away, all_up)] == pytest.approx(shares, abs=0.0011)
