"""Exact sums: every container against Python integers, for every format."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from golden_data import column_arrays, finite_codes, random_codes, record_of, record_of_codes, records, spread_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.numerics import exact
from auditor.numerics.containers import BLOCK, CONTAINERS, leading_zeros
from auditor.numerics.exact import exact_sums, exact_sums_of_integers
from auditor.numerics.formats import FORMATS, Format

EVERY = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))


def expected(fmt: Format, terms: Any) -> list[tuple[int, ...]]:
    return [record_of_codes(fmt, row) for row in zip(*(term.tolist() for term in terms), strict=True)]


@st.composite
def code_rows(draw: st.DrawFn) -> tuple[Format, list[list[int]]]:
    """A format and rows of 1 to 9 codes: uniform ones, and ones near the edges of the format."""
    fmt = draw(st.sampled_from(list(FORMATS.values())))
    edges = [0, 1, 2, fmt.power_of_two(fmt.emin) - 1, fmt.power_of_two(fmt.emin), fmt.power_of_two(0)]
    edges += [fmt.max_code, fmt.overflow_code, fmt.nan_code]
    edges += [code | fmt.sign_mask for code in edges]
    code = st.one_of(st.integers(0, (1 << fmt.bits) - 1), st.sampled_from(edges))
    n = draw(st.integers(1, 9))
    return fmt, draw(st.lists(st.lists(code, min_size=n, max_size=n), min_size=1, max_size=6))


@settings(max_examples=200, deadline=None)
@given(code_rows(), st.randoms(use_true_random=False))
def test_any_codes_and_any_permutation(case: tuple[Format, list[list[int]]], shuffle: random.Random) -> None:
    fmt, rows = case
    terms = column_arrays(fmt, rows)
    found = records(exact_sums(fmt, terms))
    assert found == expected(fmt, terms)
    shuffle.shuffle(terms)
    assert records(exact_sums(fmt, terms)) == found
    assert records(exact_sums(fmt, terms, container="buckets")) == found


@EVERY
@pytest.mark.parametrize("term_n", [1, 2, 3, 8])
def test_uniform_codes(fmt: Format, term_n: int) -> None:
    terms = [random_codes(fmt, 700, seed) for seed in range(term_n)]
    assert records(exact_sums(fmt, terms)) == expected(fmt, terms)


def widest(fmt: Format, container: str, term_n: int) -> int:
    """Largest exponent span for which the container is exact, as far as the format has it."""
    room = CONTAINERS[container] - fmt.precision - (term_n - 1).bit_length()
    return min(room, (fmt.max_code >> fmt.mantissa_bits) - 1)


@EVERY
@pytest.mark.parametrize("container", list(CONTAINERS))
@pytest.mark.parametrize("term_n", [1, 2, 5, 64])
def test_each_container_at_its_widest_span(fmt: Format, container: str, term_n: int) -> None:
    span = widest(fmt, container, term_n)
    for low in {0, 1, 7, (fmt.max_code >> fmt.mantissa_bits) - span}:
        terms = [spread_codes(fmt, 25, seed, low=low, span=span - (low == 0)) for seed in range(term_n)]
        terms = [np.where((t & fmt.magnitude_mask) > fmt.max_code, 0, t).astype(fmt.dtype) for t in terms]
        assert records(exact_sums(fmt, terms, container=container)) == expected(fmt, terms)


@EVERY
def test_a_full_container_does_not_overflow(fmt: Format) -> None:
    for container in CONTAINERS:
        span = widest(fmt, container, 64)
        top = ((1 + span) << fmt.mantissa_bits) | ((1 << fmt.mantissa_bits) - 1)
        top = min(top, fmt.max_code)
        for sign in (0, fmt.sign_mask):
            terms = [np.array([top | sign, 1 << fmt.mantissa_bits], fmt.dtype)] * 63
            terms.append(np.array([1 << fmt.mantissa_bits, top | sign], fmt.dtype))
            assert records(exact_sums(fmt, terms, container=container)) == expected(fmt, terms)


@EVERY
def test_thousands_of_terms(fmt: Format) -> None:
    terms = [finite_codes(fmt, 3, seed) for seed in range(1 << 12)]
    assert records(exact_sums(fmt, terms)) == expected(fmt, terms)


def test_the_largest_rank_count_of_the_largest_value() -> None:
    fmt = FORMATS["binary64"]
    term = np.array([fmt.max_code, fmt.max_code | fmt.sign_mask, 1], fmt.dtype)
    other = np.array([1, 1, fmt.max_code], fmt.dtype)
    terms = [term] * (exact.TERM_LIMIT - 1) + [other]
    numerators = [exact.exact_sum_reference(fmt, [int(c)])[0] for c in (*term, *other)]
    totals = [(exact.TERM_LIMIT - 1) * numerators[i] + numerators[3 + i] for i in range(3)]
    assert records(exact_sums(fmt, terms)) == [record_of(total, fmt.lsb) for total in totals]


@EVERY
def test_many_short_terms_in_each_container(fmt: Format) -> None:
    """Short terms are stacked: a carry of one of them must reach the others' upper words."""
    for container in CONTAINERS:
        span = widest(fmt, container, 1 << 10)
        terms = [spread_codes(fmt, 3, seed, low=1, span=max(span - 1, 0)) for seed in range(1 << 10)]
        terms = [np.where((t & fmt.magnitude_mask) > fmt.max_code, 0, t).astype(fmt.dtype) for t in terms]
        assert records(exact_sums(fmt, terms, container=container)) == expected(fmt, terms)


@EVERY
def test_cancellation_leaves_the_smallest_value(fmt: Format) -> None:
    big, tiny, minus = fmt.max_code, 1, fmt.sign_mask
    rows = [[big, tiny, big | minus], [big | minus, big, tiny | minus], [big, big - 1 | minus, tiny | minus]]
    rows += [[big, big, big - 1 | minus], [big, tiny | minus, tiny | minus], [tiny, big | minus, tiny]]
    terms = column_arrays(fmt, rows)
    for container in (None, "buckets"):
        assert records(exact_sums(fmt, terms, container=container)) == expected(fmt, terms)


@EVERY
def test_two_terms_at_every_distance(fmt: Format) -> None:
    """Two terms take two limbs at any distance: the far one is replaced, and nothing in the sum may show it."""
    rows = []
    rng = random.Random(5)
    for biased in range((fmt.max_code >> fmt.mantissa_bits) + 1):
        for mantissa in (0, (1 << fmt.mantissa_bits) - 1, rng.getrandbits(fmt.mantissa_bits)):
            near = min((biased << fmt.mantissa_bits) | mantissa, fmt.max_code)
            for far in (1, fmt.max_code, fmt.max_code & ~((1 << fmt.mantissa_bits) - 1)):
                rows.append([near, far | (fmt.sign_mask * rng.getrandbits(1))])
    terms = column_arrays(fmt, rows)
    assert records(exact_sums(fmt, terms)) == expected(fmt, terms)
    assert records(exact_sums(fmt, terms[::-1])) == expected(fmt, terms)


@EVERY
def test_blocks_meet_without_a_seam(fmt: Format) -> None:
    terms = [random_codes(fmt, BLOCK + 3, seed) for seed in (1, 2, 3)]
    whole = exact_sums(fmt, terms)
    for part in (slice(0, 5), slice(BLOCK - 2, BLOCK + 3)):
        assert records(whole[part]) == records(exact_sums(fmt, [term[part] for term in terms]))


@EVERY
def test_zeros_tell_their_kind(fmt: Format) -> None:
    minus = fmt.sign_mask
    rows = [[0, 0], [minus, minus], [0, minus], [minus, 0], [5, 5 | minus], [5, 0]]
    kinds = [exact.PLUS_ZERO, exact.MINUS_ZERO, *[exact.OTHER_ZERO] * 3, exact.FINITE]
    assert exact_sums(fmt, column_arrays(fmt, rows)).kind.tolist() == kinds
    assert [exact.kind_reference(fmt, row) for row in rows] == kinds


def test_no_elements() -> None:
    fmt = FORMATS["bfloat16"]
    assert len(exact_sums(fmt, [np.zeros(0, fmt.dtype)] * 2)) == 0


def test_integers_with_a_unit() -> None:
    values = [0, 1, -1, 12345, (1 << 63) - 1, -(1 << 63), -(1 << 62)]
    found = records(exact_sums_of_integers(np.array(values, np.int64), -37))
    assert found == [record_of(value, -37) for value in values]


def test_leading_zeros_at_every_border() -> None:
    words = [0] + [w for k in range(64) for w in (1 << k, (1 << k) - 1, ((1 << k) - 1) << (63 - k), (1 << 64) - 1 >> k)]
    assert leading_zeros(np.array(words, np.uint64)).tolist() == [64 - word.bit_length() for word in words]


def test_scratch_memory_is_a_few_blocks() -> None:
    fmt = FORMATS["bfloat16"]
    terms = [spread_codes(fmt, 1 << 20, seed, low=120, span=8) for seed in range(2)]
    tracemalloc.start()
    sums = exact_sums(fmt, terms * 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - sum(getattr(sums, name).nbytes for name in sums.__slots__) < 4 << 20


@pytest.mark.parametrize(
    ("terms", "container", "message"),
    [
        ([], None, "0 terms"),
        ([np.zeros(2, np.uint16), np.zeros(3, np.uint16)], None, "one length"),
        ([np.zeros((2, 2), np.uint16)], None, "1-D"),
        ([np.zeros(2, np.uint32)], None, "have dtype uint16, not uint32"),
        ([np.array([1, 0x7F00], np.uint16)] * 3, "int64", "bits, int64 has 63"),
        ([np.array([1, 0x7F00], np.uint16)] * 3, "limbs", "bits, limbs has 127"),
    ],
)
def test_what_cannot_be_summed(terms: list[Any], container: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_sums(FORMATS["bfloat16"], terms, container=container)


def test_too_many_terms() -> None:
    with pytest.raises(ValueError, match="1 to 1048576"):
        exact_sums(FORMATS["bfloat16"], [np.zeros(1, np.uint16)] * (exact.TERM_LIMIT + 1))
