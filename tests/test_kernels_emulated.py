"""The device kernels' own lines, compiled by g++ and run on the host: bit equality with the host twins, everywhere."""

from __future__ import annotations

from typing import Any

import emulated_cuda
import kernel_cases
import numpy as np
import pytest
from kernel_cases import CASES, SENDERS, STARTS, Device, named

from auditor import inputs
from auditor.inputs.programs import program
from auditor.kernels import engine as engine_module
from auditor.kernels.engine import cuts
from auditor.kernels.packing import packed, rule_words
from auditor.model import Family
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.programs import Program, add_in_binary32
from auditor.numerics.rounding import round_sums

pytestmark = pytest.mark.skipif(emulated_cuda.compiler() is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def device() -> Device:
    made = emulated_cuda.engine()
    return Device(made, lambda data: data, lambda array: array.copy(), made.runtime.address)


@pytest.mark.parametrize(("text", "fmt"), CASES, ids=named)
def test_fills_equal_the_host(device: Device, text: str, fmt: Format) -> None:
    for start in STARTS:
        kernel_cases.check_fill(device, text, fmt, start, 333)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=named)
@pytest.mark.parametrize("changes", SENDERS, ids=str)
def test_what_ranks_send(device: Device, fmt: Format, changes: dict[str, Any]) -> None:
    for text in ("report132", "rank_coded", "order_exact"):
        kernel_cases.check_sender(device, fmt, text, **changes)


@pytest.mark.parametrize(("text", "fmt"), CASES, ids=named)
def test_tables_and_mismatches_equal_the_host(device: Device, text: str, fmt: Format) -> None:
    for rank_n in (2, 8):
        kernel_cases.check_classes(device, text, fmt, rank_n, (1 << 32) - 800)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=named)
@pytest.mark.parametrize("rank_n", [3, 4, 300])
def test_more_contributors(device: Device, fmt: Format, rank_n: int) -> None:
    for text in ("order_exact:format=binary32", "wide:dist=lognormal", "specials"):
        kernel_cases.check_classes(device, text, fmt, rank_n, 0, 300)


def test_bytes_and_patterns(device: Device) -> None:
    kernel_cases.check_bytes(device)
    kernel_cases.check_patterns(device)


def test_the_fast_way_is_taken_and_given_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt, n = FORMATS["bfloat16"], 4000
    family, launched = Family.parse("order_exact:format=binary32"), device.engine.runtime.launched
    programs = [program(family, fmt, 1, 2, rank) for rank in (0, 1)]
    terms = [inputs.generate(family, fmt, 1, 2, rank, 0, n) for rank in (0, 1)]
    array, address = device.place(round_sums(fmt, exact_sums(fmt, terms), "ties_to_even"), 2)
    launched.clear()
    table = device.engine.tabulate(programs, 0, address, n)
    assert launched == ["classify_bfloat16_scaled", "classify_rest"]
    assert table.mismatches("ties_to_even") == 0
    monkeypatch.setattr(engine_module, "ROOM", 1)  # the two ends of the range do not fit any more
    launched.clear()
    assert device.engine.tabulate(programs, 0, address, n) == table
    assert launched[-1] == "classify_bfloat16"
    assert device.engine.expect(programs, 0, address, n)[0] == 0
    assert launched[-1] == "expect_bfloat16"
    del array


def test_when_binary32_holds_every_sum() -> None:
    def fits(text: str, name: str, rank_n: int) -> bool:
        made = [program(Family.parse(text), FORMATS[name], 1, rank_n, rank) for rank in range(rank_n)]
        return add_in_binary32(made)

    for name in ("bfloat16", "binary16", "float8_e4m3fn", "float8_e5m2"):
        for rank_n in (1, 2, 3, 8, 16):
            assert fits("order_exact:format=binary32", name, rank_n), (name, rank_n)
    assert not fits("order_exact:format=binary64", "bfloat16", 2)
    assert not fits("wide", "bfloat16", 2)
    assert not fits("order_exact", "binary32", 2)


def test_a_range_is_cut_where_the_high_word_changes() -> None:
    found = [(cut.first, cut.count, cut.start, cut.high) for cut in cuts((1 << 32) - 5, (1 << 31) + 10)]
    assert found == [(0, 5, (1 << 32) - 5, 0), (5, 1 << 31, 1 << 32, 1), (5 + (1 << 31), 5, (1 << 32) + (1 << 31), 1)]
    assert [(cut.start, cut.period, cut.count) for cut in cuts(10, 100, 7)] == [(3, 7, 100)]
    period = (1 << 32) + 3
    assert [(cut.start, cut.period, cut.count, cut.high) for cut in cuts(period - 1, 3, period)] == [
        (period - 1, 0, 1, 1),
        (0, 0, 2, 0),
    ]


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="7 arguments, a rule has room for 6"):
        rule_words(Program("scaled", FORMATS["bfloat16"], small=(1,) * 7), 0, lambda data: 0)
    assert packed([-1, 1 << 63]).tolist() == [(1 << 64) - 1, 1 << 63]


def test_an_unknown_mode_is_refused(device: Device) -> None:
    one = program(Family.parse("wide"), FORMATS["bfloat16"], 1, 2, 0)
    with pytest.raises(ValueError, match="unknown rounding mode"):
        device.engine.expect([one], 0, 0, 0, mode="nearest")
    with pytest.raises(ValueError, match="unknown rounding mode"):
        device.engine.expect([one, one], 0, 0, 8, mode="up")


def test_wide_sums_need_all_words(device: Device) -> None:
    """Both ends of binary64's range in one sum: 2100 bits between the largest and the least term."""
    fmt = FORMATS["binary64"]
    codes = [fmt.max_code, 1, fmt.sign_mask | fmt.max_code, fmt.sign_mask | 3]
    made = [Program("constant", fmt, wide=(code,)) for code in codes[:2]]
    for some in (made, [Program("constant", fmt, wide=(code,)) for code in codes]):
        terms = [np.full(9, one.wide[0], np.uint64) for one in some]
        right = round_sums(fmt, exact_sums(fmt, terms), "away_from_zero")
        array, address = device.place(right, 8)
        assert device.engine.expect(some, 0, address, 9, mode="away_from_zero")[0] == 0
        count, first = device.engine.expect(some, 0, address, 9, mode="toward_zero")
        assert count == (9 if some is made else 0)
        assert len(first) == count
        del array
