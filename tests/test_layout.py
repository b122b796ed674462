"""The arena: where ranges lie, what stands around them, and the codes of fills and prefills."""

from __future__ import annotations

import numpy as np
import pytest

from auditor.errors import ConfigError
from auditor.layout import (
    ALIGNMENT,
    GUARD,
    PERIOD,
    Background,
    arena_bytes,
    fill_codes,
    prefill_code,
    recv_range,
    send_range,
)
from auditor.model import Call, Family, Trial
from auditor.numerics.formats import FORMATS


def trial(collective="all_reduce", count=5, fmt="bfloat16", **rest):
    call = Call(collective=collective, op="sum", format=fmt, count=count)
    return Trial(call=call, rank_n=4, family=Family("rank_coded"), seed=0, **rest)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shift", [0, 1, 3, 8, 300])
def test_a_shift_moves_the_first_element_by_whole_elements_from_an_aligned_base(name, shift):
    place = send_range(trial(fmt=name, send_shift=shift))
    assert place.offset % ALIGNMENT == shift * FORMATS[name].itemsize % ALIGNMENT
    assert place.fenced.start >= 0


def test_reduce_scatter_sends_a_share_for_every_member_and_receives_one():
    case = trial("reduce_scatter", count=5)
    assert send_range(case).nbytes == 4 * 5 * 2
    assert recv_range(case, 2).nbytes == 5 * 2


def test_in_place_reduce_scatter_receives_at_the_position_of_its_share():
    case = trial("reduce_scatter", count=5, send_shift=3, recv_shift=3, in_place=True)
    assert [recv_range(case, rank).offset - send_range(case).offset for rank in range(4)] == [0, 10, 20, 30]
    same = trial("all_reduce", count=5, send_shift=3, recv_shift=3, in_place=True)
    assert recv_range(same, 3) == send_range(same)


def test_an_arena_holds_the_largest_trial_with_both_guards():
    cases = [trial(count=1), trial("reduce_scatter", count=1000, send_shift=7, recv_shift=9)]
    size = arena_bytes(cases)
    assert size % ALIGNMENT == 0
    assert all(send_range(case).fenced.stop <= size and recv_range(case, 3).fenced.stop <= size for case in cases)
    assert size < 4000 * 2 + 2 * GUARD + 2 * ALIGNMENT


def test_the_background_is_the_same_read_at_once_or_in_pieces_and_differs_by_rank_and_arena():
    ground = Background(1, "send")
    whole = ground.bytes(100, PERIOD + 5000)
    pieces = np.concatenate([ground.bytes(100, 777), ground.bytes(777, PERIOD + 5000)])
    assert np.array_equal(whole, pieces)
    for other in (Background(2, "send"), Background(1, "recv")):
        assert np.mean(other.bytes(0, 4096) == ground.bytes(0, 4096)) < 0.02


@pytest.mark.parametrize("name", FORMATS)
def test_prefills_are_three_different_codes_two_of_them_nan(name):
    fmt = FORMATS[name]
    a, b, finite = (prefill_code(fmt, which) for which in ("snan_a", "snan_b", "finite"))
    assert len({a, b, finite}) == 3
    assert finite & fmt.magnitude_mask < fmt.max_code
    nan_from = fmt.overflow_code + (1 if fmt.has_infinity else 0)
    assert a & fmt.magnitude_mask >= nan_from
    assert b & fmt.magnitude_mask >= nan_from
    if fmt.bits > 8:  # signalling: the top fraction bit is clear
        assert not (a | b) & (1 << (fmt.mantissa_bits - 1))


def test_an_unknown_prefill_is_refused():
    with pytest.raises(ConfigError, match="prefill 'zeros' is none of"):
        prefill_code(FORMATS["bfloat16"], "zeros")


@pytest.mark.parametrize(("name", "total"), [("trigger:A", 1.0), ("trigger:B", 1.75)])
def test_the_triggers_sum_to_their_value_over_the_ranks(name, total):
    fmt = FORMATS["binary16"]
    codes = [fill_codes(fmt, name, rank, after=True).view(np.float16).astype(float) for rank in range(4)]
    assert set(sum(codes)) == {total}


def test_random_fills_differ_by_rank_number_and_side():
    fmt = FORMATS["bfloat16"]
    base = fill_codes(fmt, "random:0", 0, after=True)
    assert base.size == GUARD // 2
    for other in (("random:1", 0, True), ("random:0", 1, True), ("random:0", 0, False)):
        assert np.mean(fill_codes(fmt, other[0], other[1], after=other[2]) == base) < 0.01


@pytest.mark.parametrize("fill", ["ones", "trigger:C", "zero:1"])
def test_an_unknown_fill_is_refused(fill):
    with pytest.raises(ConfigError, match="fill"):
        fill_codes(FORMATS["bfloat16"], fill, 0, after=True)


def test_the_fills_are_the_codes_that_their_names_say():
    fmt = FORMATS["binary16"]
    values = {name: fill_codes(fmt, name, 0, after=False).view(np.float16)[0] for name in ("zero", "finite", "huge")}
    assert values == {"zero": 0.0, "finite": 1.5, "huge": 65504.0}
    assert np.isnan(fill_codes(fmt, "nan", 0, after=False).view(np.float16)).all()
