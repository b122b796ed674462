"""A failure record stands alone: it replays in the simulator, bit by bit, and shrinks to what its class needs."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from driven_view import drive

from auditor import inputs
from auditor.backends.simulator import Simulator
from auditor.config import Sweep
from auditor.errors import EvidenceError
from auditor.model import Call, Codes, Family, Trial
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import round_sums, split
from auditor.probes import common, expected, tail
from auditor.probes.failure import FailureRecord, failure_record, replay, shrink

BF16 = FORMATS["bfloat16"]
B300 = {"preset": "b300"}
RULE = {"final": "neighbour_keyed", "keyed_formats": ["bfloat16", "binary16"], "noise_bits": 3, "group_bytes": 16}


def run(options: dict[str, Any], **axes: Any) -> Any:
    sweep = Sweep(
        **{"format": ("bfloat16",), "count": (26,), "shift": ((0, 0), (3, 1)), "repeats": 2, "seed": (5,), **axes}
    )
    return drive(Simulator, sweep, [tail], rank_n=axes.get("ranks", 2), options=options)


# ---------------------------------------------------------------------------------------------------------------- replay


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        (B300, {}),
        (RULE, {"format": ("binary16",)}),
        (B300, {"collective": ("reduce_scatter",)}),
        (B300, {"in_place": (True,)}),
        ({"final": "toward_zero"}, {"format": ("binary32",)}),
    ],
)
def test_every_element_replays_alone(options: dict[str, Any], axes: dict[str, Any]) -> None:
    """Ranges that end within a group, foreign bytes of every kind beside them: 100 records and more."""
    view, seen, partial = run(options, **axes), 0, 0
    for planned in view.planned[::2]:
        trial = planned.trial
        first = common.receiving(view, trial)[-1]
        codes = view.output(trial.trial_id, first.repeat, first.rank)
        for index in {0, 1, trial.call.count // 2, trial.call.count - 1}:
            record = failure_record(trial, first.repeat, first.rank, index, int(codes[index]))
            again = FailureRecord.from_json(json.loads(json.dumps(record.to_json())))
            assert again == record
            if record.kind == "special":
                continue  # foreign NaN never reach a sum, but families may hold some
            assert replay(again, Simulator, options) == record.out
            seen, partial = seen + 1, partial + (record.stop - record.start < len(record.inputs))
    assert seen >= 100
    assert partial >= 30


def test_a_record_says_what_numerics_says() -> None:
    """NUMERICS §1.4, the first group of seed 0: sums in units of 2**-11, and which of them go up."""
    sums, rem, up = [-47279, 7262, -24032, -19603], [0.68359375, 0.9375, 0.75, 0.1484375], [True, True, False, False]
    trial = Trial(
        call=Call(collective="all_reduce", op="sum", format="bfloat16", count=64),
        rank_n=2,
        family=Family("report132"),
        seed=0,
    )
    view = driven(trial)
    codes = view.output(trial.trial_id, 0, 0)
    for place in range(4):
        record = failure_record(trial, 0, 0, place, int(codes[place]), group_bytes=8)
        assert len(record.inputs) == 4
        integer, k = record.exact or (0, 0)
        assert Fraction(integer) * Fraction(2) ** k == Fraction(sums[place], 1 << 11)
        assert record.rem == Fraction(rem[place])
        assert record.out == (record.hi if up[place] else record.lo)
        assert record.to_json()["rem"] == str(Fraction(rem[place]))


def driven(trial: Trial) -> Any:
    from types import SimpleNamespace

    only = SimpleNamespace(NAME="rounding", plan=lambda scope: [(trial, 1)])
    return drive(
        Simulator,
        Sweep(format=(trial.call.format,), count=(trial.call.count,)),
        [only],
        rank_n=trial.rank_n,
        options=B300,
    )


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "binary32", "float8_e4m3fn"])
def test_lo_hi_rem_and_class_agree_with_the_vectorised_twin(name: str) -> None:
    fmt = FORMATS[name]
    family = Family("wide") if name != "float8_e4m3fn" else Family("exhaustive")
    trial = Trial(call=Call(collective="all_reduce", op="sum", format=name, count=512), rank_n=2, family=family, seed=3)
    data = expected.block(trial, 0, 0, 512)
    seen = split(fmt, data.sums)
    by_class: dict[str, int] = {}
    for mode in ("ties_to_even", "toward_zero", "away_from_zero"):
        codes: Codes = round_sums(fmt, data.sums, mode)
        for index in range(0, 512, 9):
            record = failure_record(trial, 0, 0, index, int(codes[index]))
            by_class[record.kind] = by_class.get(record.kind, 0) + 1
            if not seen.finite[index]:
                assert record.kind == "special"
                continue
            assert record.lo is not None
            assert record.lo & fmt.magnitude_mask == seen.lo[index]
            if not seen.past_max[index]:
                assert record.rem == Fraction(int(seen.rem[index]), 1 << 64) or seen.sticky[index]
            if mode == "ties_to_even":
                assert record.kind in ("exact", "nearest")
    assert {"exact", "nearest", "toward_zero", "away"} <= set(by_class)
    off = failure_record(trial, 0, 0, 0, int(round_sums(fmt, data.sums, "ties_to_even")[0]) ^ 4)
    assert off.kind in ("outside", "special")


def test_special_sums_have_no_neighbours() -> None:
    record = FailureRecord(format="bfloat16", inputs=((0x7F80, 0xFF80),), start=0, stop=1, place=0, out=0x7FC0)
    assert (record.kind, record.exact, record.lo, record.hi, record.rem) == ("special", None, None, None, None)
    assert FailureRecord.from_json(record.to_json()) == record
    zero = FailureRecord(format="bfloat16", inputs=((0x3F80, 0xBF80),), start=0, stop=1, place=0, out=0x8000)
    assert (zero.kind, zero.rem) == ("exact", 0)  # the sign of a zero is another question


def test_past_the_maximum() -> None:
    top = BF16.max_code
    record = FailureRecord(format="bfloat16", inputs=((top, top),), start=0, stop=1, place=0, out=BF16.overflow_code)
    assert (record.lo, record.hi, record.kind) == (top, BF16.overflow_code, "nearest")
    assert record.rem is not None
    assert record.rem > 1


# ---------------------------------------------------------------------------------------------------------------- shrink


def test_shrinking_keeps_the_class_and_leaves_what_decides() -> None:
    """A sum that a neighbour's bit takes up: the neighbour stays, the others go, and the low bits with them."""
    view = run(B300, count=(1024,), shift=((0, 0),))
    trial = next(p.trial for p in view.planned if p.trial.tail == "zero" and p.trial.family.name == "wide")
    codes = view.output(trial.trial_id, 0, 0)
    records = [failure_record(trial, 0, 0, i, int(codes[i]), group_bytes=8) for i in range(8, 200)]
    away = next(record for record in records if record.kind == "away")
    small = shrink(away, lambda record: replay(record, Simulator, B300))
    assert small.kind == "away"
    assert replay(small, Simulator, B300) == small.out
    assert weight(small) < weight(away)
    beside = [row for at, row in enumerate(small.inputs) if at != small.place]
    assert any(any(row) for row in beside)  # without a neighbour nothing takes it away from zero
    assert sum(any(row) for row in beside) == 1
    zeros = FailureRecord.from_json({**small.to_json()})
    assert shrink(zeros, lambda record: replay(record, Simulator, B300)) == small  # nothing more to take


def weight(record: FailureRecord) -> int:
    return sum(code.bit_count() for row in record.inputs for code in row)


# ---------------------------------------------------------------------------------------------------------------- refusals


def test_what_is_no_sum_or_lands_nowhere_is_refused() -> None:
    trial = Trial(
        call=Call(collective="reduce", op="min", format="bfloat16", count=4), rank_n=2, family=Family("wide"), seed=1
    )
    with pytest.raises(EvidenceError, match="of a sum, not of min"):
        failure_record(trial, 0, 0, 0, 0)
    with pytest.raises(EvidenceError, match="rank 1 receives nothing"):
        failure_record(trial.with_(op="sum"), 0, 1, 0, 0)
    with pytest.raises(EvidenceError, match="index 4"):
        failure_record(trial.with_(op="sum"), 0, 0, 4, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rem": "1/3"}, "rem does not follow"),
        ({"class": "away", "lo": "0x0000"}, "lo, class does not follow"),
        ({"dtype": "bf17"}, "is damaged"),
        ({"group": None}, "is damaged"),
    ],
)
def test_a_changed_record_is_refused(change: dict[str, Any], words: str) -> None:
    trial = Trial(
        call=Call(collective="all_reduce", op="sum", format="bfloat16", count=9),
        rank_n=2,
        family=Family("ties"),
        seed=1,
    )
    nearest = int(expected.nearest_code(trial, expected.block(trial, 0, 0, 9))[3])
    record = failure_record(trial, 0, 0, 3, nearest)
    with pytest.raises(EvidenceError, match=words):
        FailureRecord.from_json({**record.to_json(), **change})


def test_the_group_holds_what_lies_outside_the_range() -> None:
    trial = Trial(
        call=Call(collective="all_reduce", op="sum", format="bfloat16", count=5),
        rank_n=2, family=Family("wide"), seed=1, send_shift=1, head="huge", tail="trigger:B",
    )  # fmt: skip
    first, last = failure_record(trial, 0, 0, 0, 0), failure_record(trial, 0, 0, 4, 0)
    assert first.inputs == last.inputs  # eight elements: one before, five in range, two after
    assert (first.start, first.stop, first.place, last.place) == (1, 6, 1, 5)
    assert first.inputs[0] == (BF16.max_code, BF16.max_code)
    assert first.inputs[6] == (0x3F80, 0x3F40)
    for member in (0, 1):
        mine = [element[member] for element in first.inputs[1:6]]
        assert mine == [int(code) for code in inputs.send_codes(trial, 0, member, 0, 5)]
    assert first.to_json()["address_mod_16"] == 2
    small = failure_record(trial, 0, 0, 4, 0, group_bytes=8)
    assert (small.address, small.start, small.stop, small.place) == (8, 0, 2, 1)
    assert np.array_equal(small.inputs, first.inputs[4:])
