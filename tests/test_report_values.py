"""Codes as numbers, numbers and shares as people read them, a finding's figures, tables and scope."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_runs import TRIALS

from auditor.numerics.formats import FORMATS
from auditor.report import cards, values
from auditor.report.words import clean, number, percent


@pytest.mark.parametrize("name", ["binary16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_values_of_all_codes_agree_with_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    fmt = FORMATS[name]
    dtype = np.float16 if name == "binary16" else getattr(ml_dtypes, name)
    codes = np.arange(1 << fmt.bits, dtype=fmt.dtype)
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtype).astype(np.float64)
    found = np.array([values.value(fmt, int(code)) for code in codes])
    np.testing.assert_array_equal(
        found.view(np.uint64)[~np.isnan(expected)], expected.view(np.uint64)[~np.isnan(expected)]
    )
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("name", ["binary32", "binary64"])
def test_values_of_wide_codes_agree_with_numpy(name: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(0)
    codes = np.concatenate(
        [rng.integers(0, 1 << fmt.bits, 500, dtype=np.uint64, endpoint=False), np.arange(4, dtype=np.uint64)]
    ).astype(fmt.dtype)
    for code, expected in zip(codes, codes.view(np.dtype(f"f{fmt.itemsize}")), strict=True):
        found = values.value(fmt, int(code))
        assert found == float(expected) or (math.isnan(found) and np.isnan(expected))


def test_value_texts_tell_neighbours_apart() -> None:
    for name, code in (
        ("binary32", 0x3F800001),
        ("binary64", 0x3FF0000000000001),
        ("bfloat16", 0x0001),
        ("float8_e5m2", 0x01),
    ):
        fmt = FORMATS[name]
        texts = [values.value_text(fmt, code + step) for step in (-1, 0, 1)]
        assert len(set(texts)) == 3
    assert [values.value_text(FORMATS["binary16"], code) for code in (0x7C00, 0xFC00, 0x7E00, 0x8000)] == [
        "+inf",
        "-inf",
        "NaN",
        "-0",
    ]


def test_distance_counts_codes_across_zero() -> None:
    fmt = FORMATS["bfloat16"]
    assert values.apart(fmt, 0x3F81, 0x3F80) == 1
    assert values.apart(fmt, 0xBF81, 0xBF80) == -1
    assert values.apart(fmt, 0x0001, 0x8001) == 2
    assert values.apart(fmt, 0x0000, 0x8000) == 0
    assert values.apart(fmt, fmt.nan_code, 0x3F80) is None


def test_text_that_is_no_code_is_left_as_it_is() -> None:
    fmt = FORMATS["float8_e5m2"]
    assert [values.code_of(text, fmt) for text in ("0x3c", "0x13c", "RING/LL", "-0x1", "")] == [
        0x3C,
        None,
        None,
        None,
        None,
    ]
    assert cards.code("TREE/LL", fmt) == cards.Code("TREE/LL", "")


def test_figures_of_a_measure_are_readable() -> None:
    found = {
        "elements": 1234567,
        "share": 0.154,
        "share_bounds_95": [0.15, 0.16],
        "ranks": [0, 1],
        "by_point": {"x": 1},
        "changed_between": [[3, 7]],
        "rate_95": [0.0, 1e-5],
        "mean": 1.23456789e-7,
        "ok": True,
        "none": None,
        "empty": [],
        "lonely_bounds_95": [1, 2],
        "long": list(range(99)),
        "evidence_total": 5,
    }
    assert [(fact.name, fact.value, fact.bounds) for fact in cards.facts(found)] == [
        *(("elements", "1,234,567", ""), ("share of elements changed", "15.4 %", "15.0 % to 16.0 % (95 %)")),
        *(("ranks", "0, 1", ""), ("changed between", "3–7", ""), ("rate", "0 % to 0.001 % (95 %)", "")),
        *(
            ("mean", "1.23e-07", ""),
            ("ok", "yes", ""),
            ("none", "none", ""),
            ("empty", "none", ""),
            ("lonely", "1, 2", ""),
        ),
        ("long", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (99 in all)", ""),
    ]


def test_nested_parts_of_a_measure_become_tables() -> None:
    found = {
        "by_shift": {"1": {"changed": 2, "compared": 1000}, "2": {"changed": 0}},
        "by_rank": {"0": 5},
        "rows": [{"a": 1}, {"b": 2}],
    }
    by_shift, by_rank, rows = cards.tables(found)
    assert (by_shift.head, by_shift.rows) == (("shift", "changed", "compared"), (("1", "2", "1,000"), ("2", "0", "")))
    assert (by_rank.caption, by_rank.rows) == ("by rank", (("0", "5"),))
    assert (rows.head, rows.rows) == (("a", "b"), (("1", ""), ("", "2")))


def test_scopes_leave_out_what_goes_without_saying() -> None:
    told = dict(cards.scope_words({**TRIALS[1].to_json(), "count": [1, 1026], "tail": "nan"}))
    assert told == {
        "collective": "all_reduce",
        "op": "sum",
        "format": "bfloat16",
        "ranks": "2",
        "count": "1, 1,026",
        "shift": "1",
        "in place": "no",
        "family": "wide",
        "seed": "7",
        "tail": "nan",
    }
    apart = dict(
        cards.scope_words(
            {"send_shift": 1, "recv_shift": 2, "group": [None, [0, 1]], "collective": "reduce", "root": 0}
        )
    )
    assert apart == {
        "collective": "reduce",
        "send shift": "1",
        "recv shift": "2",
        "group": "all ranks, [0, 1]",
        "root": "0",
    }


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (1e-9, "1e-07 %"),
        (0.00868, "0.87 %"),
        (0.5, "50.0 %"),
        (0.9996, "99.96 %"),
        (0.9999951, "99.99951 %"),
    ],
)
def test_shares_are_never_rounded_to_none_or_all(share: float, text: str) -> None:
    assert percent(share) == text


def test_numbers_and_texts() -> None:
    assert [number(value) for value in (12345, 0.5, 3.0, 1e-9, True, None)] == [
        "12,345",
        "0.5",
        "3",
        "1e-09",
        "yes",
        "none",
    ]
    assert clean("a\x00b\x1b[1m\u202e") == "a\ufffdb\ufffd[1m\ufffd"
