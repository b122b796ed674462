"""What shows a kind and what does not: by hand-made outcomes; and the edits that make cases smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evidence_cases import case, everywhere, outcome, step

from auditor.evidence import edits, relations
from auditor.evidence.cases import Case, Outcome, Seen, complexity, seen_from_json, seen_to_json
from auditor.evidence.relations import relation_for
from auditor.layout import prefill_code
from auditor.model import Evidence, Finding, OutsideByte, Verdict
from auditor.numerics.formats import FORMATS

BF16 = FORMATS["bfloat16"]
ONE, TINY, UP, TIE_AWAY = 0x3F80, 0x3B80, 0x3F82, 0x3F81  # 1, 2**-8; 1 + 2**-8 is a tie between ONE and TIE_AWAY
TIE = case(step([[ONE, ONE], [TINY, 0]]))


def places(found: list[relations.Sighting]) -> list[tuple[int, int, int, int]]:
    return [(one.round, one.step, one.rank, one.index) for one in found]


def rounded(given: Case, got: Outcome, **more: Any) -> list[relations.Sighting]:
    return relations.not_rounded(given, got, **{"mode": "ties_to_even", "faithful": True, **more})


# -------------------------------------------------------------------------------------------------- against the exact sum


def test_a_tie_that_goes_away_is_not_nearest_even() -> None:
    assert places(rounded(TIE, everywhere(TIE, [TIE_AWAY, ONE]))) == [(0, 0, 0, 0), (0, 0, 1, 0)]
    assert rounded(TIE, everywhere(TIE, [ONE, ONE])) == []
    assert rounded(TIE, everywhere(TIE, [TIE_AWAY, ONE]), mode="ties_to_away") == []


def test_neither_neighbour_is_another_matter() -> None:
    got = everywhere(TIE, [UP, ONE])
    assert rounded(TIE, got) == []
    assert places(rounded(TIE, got, faithful=False)) == [(0, 0, 0, 0), (0, 0, 1, 0)]


def test_sums_of_three_terms_and_subnormals_tell_nothing_of_one_rounding() -> None:
    three = case(step([[ONE], [TINY], [0x3B00]]))
    assert rounded(three, everywhere(three, [UP])) == []
    small = case(step([[1], [2]]))
    assert rounded(small, everywhere(small, [0])) == []


def test_missing_and_doubled_terms_are_told_apart() -> None:
    given = case(step([[0x4000], [0x4080], [ONE]]))  # 2 + 4 + 1 = 7
    lacks, twice = everywhere(given, [0x40A0]), everywhere(given, [0x4110])  # 5 (without 2), 9 (2 once more)
    assert len(relations.not_exact(given, lacks, term=-1)) == 3
    assert relations.not_exact(given, lacks, term=1) == []
    assert len(relations.not_exact(given, twice, term=1)) == 3
    assert relations.not_exact(given, twice, term=-1) == []
    assert len(relations.not_exact(given, everywhere(given, [0x4160]), term=1)) == 3  # 14: every term twice
    assert relations.not_exact(given, everywhere(given, [0x4160]), term=-1) == []
    assert relations.not_exact(given, everywhere(given, [0x40E0])) == []
    assert len(relations.not_exact(given, everywhere(given, [0]))) == 3


def test_an_element_that_holds_its_prefill_is_not_a_wrong_value() -> None:
    given = case(step([[0x4000], [ONE]]))
    assert relations.not_exact(given, everywhere(given, [prefill_code(BF16, "snan_a")])) == []


def test_a_reduce_scatter_is_looked_at_share_by_share() -> None:
    given = case(step([[ONE, 0x4000], [0, 0x4000]], collective="reduce_scatter"))
    right = outcome(given, {(0, 0, 0): [ONE], (0, 0, 1): [0x4080]})
    assert relations.not_exact(given, right) == []
    turned = outcome(given, {(0, 0, 0): [0x4080], (0, 0, 1): [ONE]})
    assert places(relations.not_exact(given, turned)) == [(0, 0, 0, 0), (0, 0, 1, 0)]


# -------------------------------------------------------------------------------------------------- output against output


def test_two_calls_differ_where_their_inputs_are_the_same() -> None:
    given = case(step([[ONE, ONE], [0, 1]]), step([[ONE, ONE], [0, 2]]), repeats=2)
    same = {(r, s, k): [ONE, s] for r in (0, 1) for s in (0, 1) for k in (0, 1)}
    assert relations.steps_differ(given, outcome(given, same)) == []
    other = same | {(r, 1, 0): [UP, 1] for r in (0, 1)}
    found = relations.steps_differ(given, outcome(given, other))
    assert places(found) == [(0, 1, 0, 0)]
    assert found[0].beside == (0, 0, 0, 0)
    assert (found[0].observed, found[0].expected) == (UP, ONE)


def test_nothing_is_said_between_calls_that_do_not_repeat_themselves() -> None:
    given = case(step([[ONE], [0]]), step([[ONE], [0]]), repeats=2)
    rows = {(r, s, k): [UP if (r, s) == (1, 1) else ONE] for r in (0, 1) for s in (0, 1) for k in (0, 1)}
    rows |= {(0, 1, k): [TIE_AWAY] for k in (0, 1)}
    assert relations.steps_differ(given, outcome(given, rows)) == []


def test_equal_columns_of_one_call() -> None:
    given = case(step([[ONE, TINY, ONE], [0, 0, 0]]))
    assert relations.columns_differ(given, everywhere(given, [ONE, TINY, ONE])) == []
    found = relations.columns_differ(given, everywhere(given, [ONE, TINY, UP]))
    assert [(one.index, one.beside) for one in found] == [(2, (0, 0, 0, 0))]


def test_repeats_and_ranks() -> None:
    given = case(step([[ONE], [0]]), repeats=2)
    got = outcome(given, {(0, 0, 0): [ONE], (0, 0, 1): [ONE], (1, 0, 0): [ONE], (1, 0, 1): [UP]})
    assert places(relations.repeats_differ(given, got)) == [(1, 0, 1, 0)]
    assert places(relations.ranks_differ(given, got)) == [(1, 0, 1, 0)]
    assert relations.repeats_differ(given, everywhere(given, [ONE])) == []
    assert relations.ranks_differ(given, everywhere(given, [ONE])) == []


# ---------------------------------------------------------------------------------------------------- bytes and endings


def test_unwritten_needs_every_prefill() -> None:
    names = ("snan_a", "snan_b", "finite")
    given = case(*(step([[ONE], [0]], prefill=name) for name in names))
    kept = {(0, s, k): [prefill_code(BF16, name)] for s, name in enumerate(names) for k in (0, 1)}
    assert places(relations.unwritten(given, outcome(given, kept))) == [(0, 0, 0, 0), (0, 0, 1, 0)]
    assert relations.unwritten(given, outcome(given, kept | {(0, 2, 0): [ONE], (0, 2, 1): [ONE]})) == []


def test_unwritten_in_place_is_the_ranks_own_input() -> None:
    given = case(step([[ONE], [0x4000]], in_place=True))
    own = outcome(given, {(0, 0, 0): [ONE], (0, 0, 1): [0x4000]})
    assert places(relations.unwritten(given, own)) == [(0, 0, 0, 0), (0, 0, 1, 0)]
    assert relations.unwritten(given, everywhere(given, [0x4040])) == []


def test_bytes_outside_a_changed_send_range_and_endings() -> None:
    byte = OutsideByte(buffer="recv", offset=6, expected=1, found=2)
    got = everywhere(TIE, [ONE, ONE])
    assert relations.bytes_outside(TIE, got) == []
    assert relations.send_changed(TIE, got) == []
    marked = outcome(TIE, {(0, 0, 0): [ONE, ONE]}, outside=(byte,), outside_total=1, send_after=False)
    assert [(one.index, one.observed) for one in relations.bytes_outside(TIE, marked)] == [(3, 2)]
    assert len(relations.send_changed(TIE, marked)) == 1
    assert len(relations.ends(TIE, Outcome(ended="crash"), "crash")) == 1
    assert relations.ends(TIE, Outcome(ended="hang"), "crash") == []
    other = Outcome(ended="error", words="KeyError: 3")
    assert len(relations.ends(TIE, other, "error", ["KeyError"])) == 1
    assert relations.ends(TIE, other, "error", ["RuntimeError"]) == []


def test_the_same_bits_again() -> None:
    def look(got: Outcome) -> int:
        return len(relations.same_again(TIE, got, column=(ONE, TINY), observed=UP, expected=ONE))

    assert look(everywhere(TIE, [UP, ONE])) == 2
    assert look(everywhere(TIE, [ONE, UP])) == 0


# ------------------------------------------------------------------------------------------------------- kind -> relation


def finding(kind: str, **more: Any) -> Finding:
    scope = {"collective": "all_reduce", "op": "sum", "format": "bfloat16"}
    return Finding(arm="a", probe="p", kind=kind, verdict=Verdict.FAIL, claim="c", scope=scope, **more)


def test_the_mode_that_results_are_held_against() -> None:
    def mode(*given: Any) -> Any:
        found = relation_for(*given)
        assert found is not None
        return dict(found.arguments)["mode"]

    assert mode(finding("rounding_mode"), {}) == "ties_to_even"
    assert mode(finding("rounding_mode"), {"rounding_mode": "toward_zero"}) == "toward_zero"
    assert mode(finding("rounding_mode"), {"rounding_mode": True}) == "ties_to_even"
    known = [finding("rounding_mode", measure={"mode": "toward_zero"})]
    assert mode(finding("double_rounding"), {}, known) == "toward_zero"


def test_a_kind_without_a_rule_needs_rows_of_codes() -> None:
    row = Evidence(
        trial="t", rank=0, repeat=0, index=0, inputs=("0x3f80", "0x0000"), observed="0x3f81", expected="0x3f80"
    )
    found = relation_for(finding("overflow", evidence=(row,)), {})
    assert found is not None
    assert found.name == "same_again"
    same = Evidence(trial="t", rank=0, repeat=0, index=0, inputs=("0x3f80",), observed="0x3f80", expected="0x3f80")
    words = Evidence(trial="t", rank=0, repeat=0, index=0, inputs=("0x3f80",), observed="0x3f80", expected="a word")
    assert relation_for(finding("overflow", evidence=(same, words)), {}) is None
    assert relation_for(finding("early_return"), {}) is None


# ------------------------------------------------------------------------------------------------------------------ edits


def around(given: Case) -> list[list[int]]:
    return given.steps[0].around().tolist()


SIX = case(
    step([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]], head=[[13], [14]], tail=[[15], [16]], send_shift=6, recv_shift=1)
)


@pytest.mark.parametrize(("spill", "first"), [(False, 4), (True, 4)])
def test_columns_are_kept_at_their_address(spill: bool, first: int) -> None:
    cut = edits.kept(SIX.steps[0], first, first + 2, spill=spill)
    assert cut.data.tolist() == [[5, 6], [11, 12]]
    assert (cut.send_shift, cut.recv_shift) == ((6 + first) % 8, (1 + first) % 8)
    assert cut.head.tolist() == (
        [[13, 1, 2, 3, 4], [14, 7, 8, 9, 10]] if spill else [[13, 0, 0, 0, 0], [14, 0, 0, 0, 0]]
    )
    assert cut.tail.tolist() == [[15], [16]]


def test_a_reduce_scatter_loses_the_column_of_every_share() -> None:
    one = step([[1, 2, 3, 4], [5, 6, 7, 8]], collective="reduce_scatter")
    assert edits.without_columns(one, 0, 1).data.tolist() == [[2, 4], [6, 8]]
    assert edits.kept(one, 0, 1, spill=True).data.tolist() == [[1, 3], [5, 7]]


def test_a_reduce_scatter_loses_the_share_with_the_member() -> None:
    three = case(step([[1, 2, 3], [4, 5, 6], [7, 8, 9]], collective="reduce_scatter"))
    two = edits.only_members(three, [0, 2])
    assert two.rank_n == 2
    assert two.steps[0].data.tolist() == [[1, 3], [7, 9]]
    assert two.steps[0].call.count == 1


def test_a_group_becomes_a_world_and_the_root_stays() -> None:
    given = case(step([[1], [2], [3]], collective="reduce", root=2, group=(4, 1, 3)), rank_n=5)
    two = edits.only_members(given, [0, 2])
    assert (two.rank_n, two.steps[0].call.group, two.steps[0].call.root) == (2, None, 1)
    assert edits.only_members(given, [0, 1]).steps[0].call.root == 0


def test_a_format_must_hold_every_value() -> None:
    assert edits.in_format(case(step([[0x3F800000]], fmt="binary32")), "binary16") is not None
    assert edits.in_format(case(step([[0x3F800001]], fmt="binary32")), "binary16") is None
    assert edits.in_format(case(step([[0x7FA00000]], fmt="binary32")), "binary16") is None


@pytest.mark.parametrize("name", ["bfloat16", "binary16", "binary32", "float8_e4m3fn"])
def test_simpler_codes_are_finite_and_other_codes(name: str) -> None:
    fmt = FORMATS[name]
    for code in (fmt.power_of_two(0) | 3, fmt.max_code | fmt.sign_mask, 1, fmt.nan_code, fmt.sign_mask):
        some = edits.simpler(fmt, code)
        assert len(some) == len(set(some))
        assert all(value != code and value & fmt.magnitude_mask <= fmt.max_code for value in some)
        assert 0 in some


def test_one_is_the_simplest_code_but_zero() -> None:
    order = [0, ONE, 0x4000, ONE | 0x40, ONE | 1, ONE | 0x55]
    sizes = [complexity(BF16, np.array([code], np.uint16)) for code in order]
    assert sizes == sorted(sizes)


def test_a_column_is_rescaled_exactly_or_not_at_all() -> None:
    given = case(step([[0x4180], [0xBF80]]))  # 16 and -1
    scaled = edits.rescaled(given, 0)
    assert scaled is not None
    assert scaled.steps[0].data.tolist() == [[ONE], [0xBD80]]  # 1 and -1/16
    assert edits.rescaled(case(step([[0x0001], [ONE]])), 0) is None
    assert edits.rescaled(case(step([[ONE], [0]])), 0) is None


def test_trimming_changes_no_byte() -> None:
    wide = case(step([[1]], head=[[0, 0, 5]], tail=[[6, 0, 0]]))
    thin = edits.trimmed(wide)
    assert around(thin) == [[5, 1, 6]]


# ---------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("make", [lambda: SIX, lambda: TIE])
def test_a_case_survives_json(make: Callable[[], Case]) -> None:
    given = make()
    again = Case.from_json(given.to_json())
    assert around(again) == around(given)
    assert again.size() == given.size()


def test_what_a_rank_saw_survives_json() -> None:
    byte = OutsideByte(buffer="send", offset=-1, expected=0, found=9)
    seen = Seen(output=np.array([1, 2], np.uint16), outside=(byte,), outside_total=3, send_after=False, path="RING")
    again = seen_from_json(seen_to_json(seen), BF16)
    assert again.output is not None
    assert again.output.tolist() == [1, 2]
    assert (again.outside, again.outside_total, again.send_after, again.path) == ((byte,), 3, False, "RING")
    with pytest.raises(KeyError):
        seen_from_json({}, BF16)
