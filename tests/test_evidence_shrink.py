"""The shrinker on planted predicates: monotone, not monotone, flaky, crashing; it never slips to a case that does not show."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evidence_cases import case, step

from auditor.evidence import edits, passes
from auditor.evidence.cases import Case, complexity
from auditor.evidence.passes import Limits
from auditor.evidence.relations import Sighting
from auditor.evidence.shrink import Attempt, GiveUp, Shrunk, described, shrink
from auditor.numerics.formats import FORMATS

BF16 = FORMATS["bfloat16"]
ONE, HALF_ULP = 0x3F80, 0x3B80


def noisy(ranks: int = 4, count: int = 96, seed: int = 1, **more: Any) -> Case:
    """Codes of no meaning, heads and tails too."""
    random_ = np.random.default_rng(seed)
    rows = [random_.integers(0x3C00, 0x4400, (ranks, n)).tolist() for n in (count, 40, 40)]
    return case(step(rows[0], head=rows[1], tail=rows[2], send_shift=3, recv_shift=5, **more))


def trying(shows: Callable[[Case], Any]) -> Callable[[Case], Attempt]:
    """``shows`` gives the index at which a case shows, or None."""

    def try_case(given: Case) -> Attempt:
        at = shows(given)
        return Attempt((Sighting(0, 0, 0, int(at)),)) if at is not None and at is not False else Attempt()

    return try_case


def column_with(given: Case, wanted: Callable[[Any], bool]) -> int | None:
    return next((index for index, column in enumerate(given.steps[0].data.T) if wanted(column)), None)


# -------------------------------------------------------------------------------------------------------------- monotone


def test_one_bit_of_one_code_is_all_that_stays() -> None:
    """Shows wherever two members of a column have an odd mantissa."""
    found = shrink(noisy(), trying(lambda c: column_with(c, lambda column: (column % 2).sum() >= 2)))
    small = found.case
    assert small.rank_n == 2
    assert small.steps[0].call.count == 1
    assert small.steps[0].send_shift == small.steps[0].recv_shift == 0
    assert small.steps[0].head.size == small.steps[0].tail.size == 0
    assert (small.steps[0].data % 2 == 1).all()
    assert complexity(BF16, small.steps[0].data) <= 2 * complexity(BF16, np.array([ONE | 1], np.uint16))
    assert found.shown == (3, 3)
    assert found.start_shown == (6, 6)
    assert found.attempts < 400
    assert not found.stopped


def test_foreign_codes_are_cut_to_the_one_that_matters() -> None:
    def shows(given: Case) -> int | None:
        tail = given.steps[0].tail
        return 0 if tail.shape[1] > 1 and tail[1, 1] & 0x40 and given.steps[0].data.any() else None

    start = noisy()
    start.steps[0].tail[1, 1] = 0x3FC0
    small = shrink(start, trying(shows), Limits(rank_n_min=2)).case.steps[0]
    assert small.tail.shape == (2, 2)
    assert np.count_nonzero(small.tail) == 1
    assert small.head.size == 0
    assert np.count_nonzero(small.data) == 1


def test_what_is_cut_off_lies_outside_only_where_that_is_asked_for() -> None:
    """Needs the neighbour at the right; with a spill it may end up past the range."""

    def shows(given: Case) -> int | None:
        whole = given.steps[0].around()[0]
        first = given.steps[0].head.shape[1]
        for index in range(given.steps[0].call.count):
            if whole[first + index] == 0x4001 and first + index + 1 < len(whole) and whole[first + index + 1] == 0x4003:
                return index
        return None

    start = noisy()
    start.steps[0].data[0, 40:42] = 0x4001, 0x4003
    assert shrink(start, trying(shows), Limits(spill=True)).case.elements == 1
    assert shrink(start, trying(shows)).case.elements == 2


def test_a_pair_of_calls_shrinks_together() -> None:
    """Shows where the two calls differ in their counts and the shorter has a code that is not zero."""
    long = noisy().steps[0]
    short = edits.without_columns(long, 50, 96)

    def shows(given: Case) -> int | None:
        a, b = given.steps
        at = np.flatnonzero(a.data.any(axis=0))
        return int(at[0]) if a.call.count < b.call.count and at.size else None

    small = shrink(case(short, long), trying(shows), Limits(lengths=True)).case
    assert [one.call.count for one in small.steps] == [1, 2]


def test_equal_columns_stay_equal() -> None:
    start = noisy(count=64)
    start.steps[0].data[:, 48:] = start.steps[0].data[:, :16]

    def shows(given: Case) -> int | None:
        seen: dict[bytes, int] = {}
        for index, column in enumerate(given.steps[0].data.T):
            if column.all() and seen.setdefault(column.tobytes(), index) != index:
                return index
        return None

    small = shrink(start, trying(shows), Limits(rank_n_min=2)).case.steps[0]
    assert small.data.shape == (2, 2)
    assert (small.data[:, 0] == small.data[:, 1]).all()
    assert complexity(BF16, small.data) <= 8


def test_rounds_are_cut_down() -> None:
    found = shrink(noisy(count=2, ranks=2), trying(lambda c: 0 if c.repeats >= 3 else None))
    assert found.case.repeats == 1 * 20  # a start that one round does not show is gone through more often, and kept so
    steady = shrink(replace(noisy(count=2, ranks=2), repeats=64), trying(lambda c: 0 if c.repeats >= 3 else None))
    assert steady.case.repeats == 3


def test_a_narrower_format_is_taken_where_it_holds_the_values() -> None:
    start = case(step([[0x3FC00000, 0x40490FDB], [0x40000000, 0x3F800000]], fmt="binary32"))
    limits = Limits(formats=("binary16", "bfloat16", "binary32"))
    small = shrink(start, trying(lambda c: column_with(c, lambda column: column.all())), limits).case
    assert small.fmt.bits == 16
    kept = shrink(start, trying(lambda c: 0 if c.fmt.name == "binary32" else None), limits).case
    assert kept.fmt.name == "binary32"


def test_inputs_that_must_not_change_only_go() -> None:
    start = noisy(ranks=2, count=32)
    column = start.steps[0].data[:, 9].copy()
    shows = trying(lambda c: column_with(c, lambda some: np.array_equal(some, column)))
    small = shrink(start, shows, Limits(same_inputs=True, formats=("binary16",))).case
    assert small.steps[0].data.T.tolist() == [column.tolist()]


# ---------------------------------------------------------------------------------------------------------- not monotone


@pytest.mark.parametrize("counts", [{5, 12, 96}, {7}, {96}])
def test_a_fault_that_shows_at_some_counts_only(counts: set[int]) -> None:
    start = noisy(count=max(counts))
    found = shrink(start, trying(lambda c: 0 if c.steps[0].call.count in counts else None))
    assert found.case.steps[0].call.count in counts
    assert found.case.steps[0].call.count == min(counts)
    assert not found.case.steps[0].data.any()


def test_an_alignment_that_matters_stays() -> None:
    found = shrink(noisy(), trying(lambda c: 0 if c.steps[0].send_shift % 4 == 3 else None))
    assert found.case.steps[0].send_shift == 3
    assert found.case.steps[0].recv_shift == 0


def test_a_rank_count_that_matters_stays() -> None:
    found = shrink(noisy(ranks=5), trying(lambda c: 0 if c.rank_n in (3, 5) else None))
    assert found.case.rank_n == 3


# ------------------------------------------------------------------------------------------------- flaky, crashing, over


def test_a_flaky_fault_keeps_its_rate() -> None:
    """Shows in half of the runs where an odd code is there; never otherwise."""
    dice = random.Random(3)

    def shows(given: Case) -> int | None:
        at = column_with(given, lambda column: (column % 2).any())
        return at if at is not None and dice.random() < 0.5 else None

    found = shrink(noisy(ranks=2, count=16), trying(shows), attempts=20_000)
    assert 0 < found.start_shown[0] < found.start_shown[1]
    assert found.shown[0] > 0
    assert (found.case.steps[0].data % 2).any()
    assert found.case.steps[0].call.count <= 2


def test_a_case_that_shows_by_luck_is_not_believed() -> None:
    """Small cases show once in a hundred runs: that is no smaller case of a fault that shows every time."""
    dice = random.Random(5)

    def shows(given: Case) -> int | None:
        return 0 if given.steps[0].call.count >= 8 or dice.random() < 0.01 else None

    found = shrink(noisy(count=32, ranks=2), trying(shows), attempts=20_000)
    assert found.shown[0] == found.shown[1]
    assert found.case.steps[0].call.count >= 8


def test_every_tenth_call_is_waited_for() -> None:
    calls = [0]

    def play(given: Case) -> Attempt:
        calls[0] = 0  # a fresh process
        before = calls[0] // 10
        calls[0] += given.repeats
        return Attempt((Sighting(9, 0, 0, 0),)) if calls[0] // 10 > before else Attempt()

    found = shrink(noisy(count=4, ranks=2), play)
    assert found.start_shown == (0, 6)
    assert found.shown == (3, 3)
    assert found.case.repeats == 20


def test_what_never_shows_has_no_sightings() -> None:
    found = shrink(noisy(), trying(lambda _c: None))
    assert found.sightings == ()
    assert found.start_shown == (0, 6)
    assert found.attempts <= 18


def test_troubles_on_the_way_are_counted_and_not_taken() -> None:
    def play(given: Case) -> Attempt:
        if given.steps[0].call.count <= 1:
            return Attempt(trouble="crash: died by SIGSEGV")
        return Attempt((Sighting(0, 0, 0, 0),))

    found = shrink(noisy(), play)
    assert found.case.steps[0].call.count == 2
    assert found.troubles["crash: died by SIGSEGV"] > 0


def test_when_the_time_is_up_what_was_reached_is_kept() -> None:
    left = [12]

    def play(given: Case) -> Attempt:
        left[0] -= 1
        if left[0] < 0:
            raise GiveUp("the time was over")
        return Attempt((Sighting(0, 0, 0, 0),))

    found = shrink(noisy(), play)
    assert found.stopped == "the time was over"
    assert found.sightings
    assert found.case.size() < noisy().size()
    assert found.shown == (0, 0)


def test_a_subject_that_cannot_be_tried_at_all() -> None:
    def play(_given: Case) -> Attempt:
        raise GiveUp("it does not start")

    found = shrink(noisy(), play)
    assert (found.sightings, found.stopped) == ((), "it does not start")


def test_tries_are_bounded_and_confirming_is_not_cut_off() -> None:
    found = shrink(noisy(), trying(lambda c: column_with(c, lambda column: column.all())), attempts=9)
    assert "9 tries" in found.stopped
    assert found.shown == (3, 3)


def test_fresh_is_asked_for_before_each_confirming_run() -> None:
    asked: list[int] = []
    shrink(noisy(count=2), trying(lambda _c: 0), fresh=lambda: asked.append(1))
    assert len(asked) == 3


def test_a_result_that_a_fresh_process_does_not_show_is_gone_back_from() -> None:
    """A subject with a memory: once it was asked a small case, it shows anything until it is started anew."""
    memory = [False]

    def play(given: Case) -> Attempt:
        memory[0] |= given.steps[0].call.count <= 8
        return Attempt((Sighting(0, 0, 0, 0),)) if given.steps[0].call.count >= 16 or memory[0] else Attempt()

    def fresh() -> None:
        memory[0] = False

    def honest(given: Case) -> bool:
        return given.steps[0].call.count >= 16

    found: Shrunk = shrink(noisy(count=32, ranks=2), lambda c: play(c), fresh=fresh)
    # A count of 8 or less wakes the memory itself and shows in a fresh process too: that is the subject's fault, kept.
    assert found.shown[0] == found.shown[1]
    assert honest(found.case) or found.case.steps[0].call.count <= 8


def test_the_log_says_what_each_pass_did() -> None:
    found = shrink(noisy(), trying(lambda c: column_with(c, lambda column: (column % 2).any())))
    names = [line.partition(":")[0] for line in found.steps]
    assert names[0] == "elements"
    assert set(names) <= {name for name, _ in passes.PASSES}
    assert described(found.case) in found.steps[-1]
    assert all(names[k] != names[k + 1] for k in range(len(names) - 1))
