"""Planted sums: the fast paths against exact integers, and against Python integers one by one."""

import numpy as np
import pytest

from auditor.backends import mpi_ops
from auditor.backends.mpi_ops import NOISE_BITS, ROUNDINGS, PlantedSum, add_reference, noise
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import MODES, split, sum_reference


def planted(fmt, a, b, rounding, seed=0):
    total = b.copy()
    PlantedSum(fmt, rounding, seed)(a, total, None)
    return total


def pairs_of(fmt, n=1 << 15):
    """Random codes over everything, the same within a few binades, and all pairs of telling codes."""
    rng = np.random.default_rng(5)
    whole = [rng.integers(0, 1 << fmt.bits, n, dtype=fmt.dtype) for _ in range(2)]
    near = [code.copy() for code in whole]
    for code in near:
        exponent = rng.integers(fmt.bias - 2, fmt.bias + 3, n).astype(fmt.dtype) << fmt.dtype.type(fmt.mantissa_bits)
        code &= fmt.dtype.type(fmt.sign_mask | ((1 << fmt.mantissa_bits) - 1))
        code |= exponent
    one = fmt.power_of_two(0)
    hidden = 1 << fmt.mantissa_bits
    edges = [0, 1, 2, hidden - 1, hidden, hidden + 1, one - 1, one, one + 1, fmt.max_code - 1, fmt.max_code]
    edges += [fmt.overflow_code, fmt.nan_code, one - fmt.precision * hidden, one - (fmt.precision + 1) * hidden]
    edges += [max(fmt.max_code - fmt.precision * hidden, 0), max(fmt.max_code - (fmt.precision + 1) * hidden, 0)]
    edges = [code & fmt.magnitude_mask for code in edges if code >= 0]
    signed = np.array([*edges, *(code | fmt.sign_mask for code in edges)], fmt.dtype)
    left, right = np.meshgrid(signed, signed)
    return [np.concatenate(part) for part in zip(whole, near, (left.ravel(), right.ravel()), strict=True)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["binary32", "binary16", "bfloat16"])
def test_binary64_path_agrees_with_exact_integers(name, rounding):
    fmt = FORMATS[name]
    a, b = pairs_of(fmt)
    got, expected = planted(fmt, a, b, rounding, 3), add_reference(fmt, a, b, rounding, 3)
    wrong = np.flatnonzero(got != expected)
    assert not len(wrong), [(hex(a[i]), hex(b[i]), hex(got[i]), hex(expected[i])) for i in wrong[:5]]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_bfloat16_exponent_gap_keeps_what_lies_below_binary64(rounding):
    """1 + tiny and 1.5 ulp + tiny, down to the smallest subnormal: the sticky part decides in the directed modes."""
    fmt = FORMATS["bfloat16"]
    tiny = np.arange(1, fmt.max_code, 37, dtype=fmt.dtype)
    tiny = np.concatenate([tiny, tiny | fmt.dtype.type(fmt.sign_mask)])
    for large in (0x3F80, 0x3F81, 0xBF80, 0x4B00, 0x7F7F):
        a = np.full_like(tiny, large)
        assert (planted(fmt, a, tiny, rounding, 1) == add_reference(fmt, a, tiny, rounding, 1)).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_planted_sum_is_the_scalar_sum_rounded_once(name, mode):
    fmt = FORMATS[name]
    a, b = (part[np.linspace(0, len(part) - 1, 300).astype(int)] for part in pairs_of(fmt, 1 << 10))
    expected = [sum_reference(fmt, [int(x), int(y)], mode) for x, y in zip(a, b, strict=True)]
    assert planted(fmt, a, b, mode).tolist() == expected


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_every_8_bit_pair_in_every_mode(name):
    fmt = FORMATS[name]
    for mode in MODES:
        expected = np.array([[sum_reference(fmt, [a, b], mode) for b in range(0, 256, 5)] for a in range(256)])
        a = np.repeat(np.arange(256, dtype=np.uint8), expected.shape[1])
        b = np.tile(np.arange(0, 256, 5, dtype=np.uint8), 256)
        assert (planted(fmt, a, b, mode) == expected.ravel()).all(), mode


def test_a_block_boundary_does_not_show():
    fmt = FORMATS["bfloat16"]
    a, b = pairs_of(fmt, mpi_ops.BLOCK + 3)
    whole = planted(fmt, a, b, "ties_to_even")
    single = np.concatenate(
        [planted(fmt, a[i : i + 1], b[i : i + 1], "ties_to_even") for i in range(mpi_ops.BLOCK - 2, len(a), 911)]
    )
    assert (whole[mpi_ops.BLOCK - 2 :: 911] == single).all()


@pytest.mark.parametrize("name", FORMATS)
def test_stochastic_is_symmetric_seeded_and_proportional(name):
    fmt = FORMATS[name]
    a, b = pairs_of(fmt, 1 << 14)
    a, b = a[1 << 14 : 1 << 15], b[1 << 14 : 1 << 15]  # the part within a few binades
    first = planted(fmt, a, b, "stochastic", 1)
    assert (planted(fmt, b, a, "stochastic", 1) == first).all()
    assert (planted(fmt, a, b, "stochastic", 2) != first).any()
    seen = split(fmt, exact_sums(fmt, [a, b]))
    inexact = seen.inexact
    up = (first & fmt.dtype.type(fmt.magnitude_mask)) != seen.lo
    assert not up[~inexact].any()
    share, rem = up[inexact].mean(), (seen.rem[inexact] / 2.0**64).mean()
    assert abs(share - rem) < 4 * 0.5 / np.sqrt(inexact.sum())


def test_noise_fills_its_bits_evenly():
    fmt = FORMATS["binary32"]
    a, b = pairs_of(fmt, 1 << 14)
    bits = noise(fmt, a, b, 7)
    assert bits.max() < 1 << NOISE_BITS
    shares = [((bits >> np.uint64(k)) & np.uint64(1)).mean() for k in range(NOISE_BITS)]
    assert all(abs(share - 0.5) < 0.02 for share in shares), shares


def test_a_failure_is_kept_and_its_range_is_nan():
    planted_sum = PlantedSum(FORMATS["bfloat16"], "ties_to_even")
    total = np.zeros(4, np.uint16)
    planted_sum(np.zeros(3, np.uint16), total, None)  # operands of different lengths
    assert isinstance(planted_sum.failure, ValueError)
    assert total.tolist() == [FORMATS["bfloat16"].nan_code] * 4
