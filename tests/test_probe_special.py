"""Special: every behaviour by its word, from subjects written outside the package, and nothing made of clean ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from driven_view import DrivenView, drive
from outside_subjects import DTYPES, Clean

from auditor.backends.simulator import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.inputs import cases as table
from auditor.model import Call, Capabilities, Finding, Observation, Verdict, Window
from auditor.numerics.formats import FORMATS
from auditor.probes import coverage, special, special_words
from auditor.probes.outcomes import is_table


class Any4(Clean):
    """Sums, minima and maxima of all ranks, in binary32, folded by rank order."""

    ops: ClassVar[frozenset[str]] = frozenset({"sum", "min", "max"})

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        return Capabilities(
            collectives=frozenset({"all_reduce", "reduce_scatter"}), ops=cls.ops, formats=frozenset(DTYPES)
        )

    def run(self, call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        self.call = call
        super().run(call, send, recv)

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        values = [self.enter(term) for term in terms.values()]
        total = values[0]
        with np.errstate(all="ignore"):
            for value in values[1:]:
                total = self.fold(total, value)
        return total

    def enter(self, term: Any) -> Any:
        return term

    def fold(self, a: Any, b: Any) -> Any:
        return a + b if self.call.op == "sum" else np.minimum(a, b) if self.call.op == "min" else np.maximum(a, b)


class Ternary(Any4):
    """a < b ? a : b: whichever operand is the NaN decides."""

    def fold(self, a: Any, b: Any) -> Any:
        if self.call.op == "sum":
            return a + b
        return np.where(a < b if self.call.op == "min" else a > b, a, b)


class OwnFirst(Ternary):
    """Each rank begins with its own term."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        order = [terms[(rank + k) % len(terms)] for k in range(len(terms))]
        return super().total(dict(enumerate(order)), rank)


class IgnoresNan(Any4):
    def fold(self, a: Any, b: Any) -> Any:
        best = super().fold(a, b)  # np.fmin treats a signalling NaN by where it stands in the array
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, best)) if self.call.op != "sum" else best


class LosesNan(Any4):
    """A NaN counts as 1.0 in a sum."""

    def enter(self, term: Any) -> Any:
        return np.where(np.isnan(term), np.float32(1), term)


def _tiny(fmt: str) -> float:
    return float(2.0 ** FORMATS[fmt].emin)


class FlushesInputs(Any4):
    def enter(self, term: Any) -> Any:
        return np.where(np.abs(term) < _tiny(self.call.format), np.float32(0), term)


class FlushesOutputs(Any4):
    def round(self, total: Any, dtype: Any) -> Any:
        return super().round(np.where(np.abs(total) < _tiny(self.call.format), np.copysign(0, total), total), dtype)


class Saturates(Any4):
    def round(self, total: Any, dtype: Any) -> Any:
        fmt = FORMATS[self.call.format]
        top = np.float32((2 - 2.0 ** (1 - fmt.precision)) * 2.0**fmt.emax)
        return super().round(np.where(np.isnan(total), total, np.clip(total, -top, top)), dtype)


class ThroughBinary16(Any4):
    def enter(self, term: Any) -> Any:
        with np.errstate(all="ignore"):
            return term.astype(np.float16).astype(np.float32)


class FromZero(Any4):
    """An accumulator that begins at +0."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        total = super().total(terms, rank)
        return total + np.float32(0) if self.call.op == "sum" else total


class TailIgnoresNan(Any4):
    """NaN counts as 0 in what is left after whole 16-byte words."""

    def total(self, terms: Mapping[int, Any], rank: int) -> Any:
        size = len(next(iter(terms.values())))
        whole = size // 8 * 8
        total = super().total(terms, rank)
        if self.call.op == "sum":
            clean = {r: np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf) for r, t in terms.items()}
            total[whole:] = super().total(clean, rank)[whole:]
        return total


class NanMovesNeighbours(Any4):
    """Beside a NaN of the same 8-byte word a sum is cut toward zero."""

    def round(self, total: Any, dtype: Any) -> Any:
        near = super().round(total, dtype)
        codes = near.view(f"u{near.itemsize}").copy()
        over = np.abs(near.astype(np.float32)) > np.abs(total)
        group = np.arange(len(total)) // (8 // near.itemsize)
        beside = np.isin(group, group[np.isnan(total)]) & ~np.isnan(total)
        codes[over & beside] -= 1
        return codes.view(dtype)


def view_of(subject: type[Any], *, rank_n: int = 4, options: Any = None, expect: Any = None, **axes: Any) -> DrivenView:
    sweep = {"op": ("sum",), "format": ("bfloat16",), "count": (3, 1026, 4099), "repeats": 2, **axes}
    return drive(subject, Sweep(**sweep), [special, coverage], rank_n=rank_n, options=options, expect=expect)


def kinds(view: DrivenView) -> dict[str, Finding]:
    found = list(special.analyze(view))
    assert len({f.kind for f in found}) == len(found)
    return {f.kind: f for f in found}


def words(view: DrivenView) -> dict[str, str]:
    return {kind: f.measure["behaviour"] for kind, f in kinds(view).items()}


IEEE = {
    "nan": "propagates",
    "infinity": "ieee",
    "negative_zero": "ieee",
    "subnormal_flush": "none",
    "overflow": "infinity",
}


# --------------------------------------------------------------------------------------------------------------- clean


@pytest.mark.parametrize("options", [{}, {"accumulator": "same", "order": "ring"}, {"preset": "b300"}])
def test_clean_subjects_pass(options: dict[str, Any]) -> None:
    view = view_of(
        Simulator,
        options=options,
        op=("sum", "min", "max", "avg"),
        collective=("all_reduce", "reduce_scatter", "reduce"),
        format=("bfloat16", "float8_e4m3fn", "binary64"),
        count=(3, 1026),
    )
    found = list(special.analyze(view))
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert {f.kind for f in found} == set(special.KINDS)
    assert {f.verdict for f in coverage.analyze(view)} == {Verdict.PASS}
    assert all(not f.evidence for f in found)


def test_an_outside_subject_in_hardware_floats_passes() -> None:
    assert words(view_of(Any4)) == IEEE
    payloads = kinds(view_of(Any4, format=("binary32",)))["nan"].measure["payloads"]
    assert payloads["quiet NaN"] == "kept"
    assert payloads["signalling NaN"] == "quieted"


def test_formats_without_infinity_have_no_infinity_and_their_own_overflow() -> None:
    found = words(view_of(Simulator, format=("float8_e4m3fn",)))
    assert "infinity" not in found
    assert found["overflow"] == "nan"


# -------------------------------------------------------------------------------------------------------- each behaviour


@pytest.mark.parametrize(
    ("subject", "kind", "word"),
    [
        (LosesNan, "nan", "lost"),
        (FlushesInputs, "subnormal_flush", "inputs"),
        (FlushesOutputs, "subnormal_flush", "outputs"),
        (Saturates, "overflow", "saturates"),
        (Saturates, "infinity", "saturates"),
        (FromZero, "negative_zero", "positive_zero"),
        (ThroughBinary16, "overflow", "narrower_range"),
        (TailIgnoresNan, "nan", "depends_on_place"),
    ],
)
def test_what_a_sum_does_is_named(subject: type[Any], kind: str, word: str) -> None:
    found = kinds(view_of(subject))[kind]
    assert (found.measure["behaviour"], found.verdict) == (word, Verdict.INFORMATION)
    assert found.evidence
    assert all(row.observed != row.expected or "depends" in word for row in found.evidence)


def test_a_narrower_range_is_wrong_values_to_coverage() -> None:
    wrong = [f for f in coverage.analyze(view_of(ThroughBinary16)) if f.verdict is Verdict.FAIL]
    assert {f.kind for f in wrong} == {"wrong_value"}


def test_flushed_zeros_keep_their_sign_or_not() -> None:
    assert "becomes -0" in kinds(view_of(FlushesOutputs))["subnormal_flush"].claim
    assert "becomes +0" in kinds(view_of(FlushesInputs))["subnormal_flush"].claim


@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_by_the_rank_that_holds_the_nan(op: str) -> None:
    found = kinds(view_of(Ternary, op=(op,)))["nan"]
    assert found.measure["behaviour"] == "depends_on_rank"
    quiet = found.measure["cases"]["quiet NaN"]
    assert quiet["3"] == "NaN"  # the last operand is returned where the comparison is false
    assert quiet["0"] == "ignored"
    assert "NaN from rank 3" in found.claim
    assert words(view_of(IgnoresNan, op=(op,)))["nan"] == "ignored"
    assert words(view_of(Any4, op=(op,)))["nan"] == "propagates"


def test_minimum_that_loses_the_true_one() -> None:
    """E1: (1, NaN, 3, 4) gives 3: the NaN swallows what came before it, and is swallowed by what comes after."""
    quiet = kinds(view_of(Ternary, op=("min",)))["nan"].measure["cases"]["quiet NaN"]
    assert quiet["1"] == "lost"


def test_receivers_that_disagree() -> None:
    found = kinds(view_of(OwnFirst, op=("min",)))["nan"]
    assert found.measure["behaviour"] == "depends_on_receiver"
    assert "different receivers" in found.claim


def test_a_nan_that_changes_its_neighbours() -> None:
    found = kinds(view_of(NanMovesNeighbours))["nan"]
    near = found.measure["beside"]
    assert near["changed"] > 0
    assert near["changed_beside_ordinary"] == 0
    assert found.verdict is Verdict.INFORMATION
    assert "which beside ordinary values they do not" in found.claim
    assert kinds(view_of(Any4))["nan"].measure["beside"]["changed"] == 0


def test_a_rule_keyed_by_neighbours_is_not_blamed_on_the_nan() -> None:
    near = kinds(view_of(Simulator, rank_n=2, options={"preset": "b300"}))["nan"].measure["beside"]
    assert near["changed_beside_ordinary"] > 0


def test_directed_rounding_shows_in_zeros_and_past_the_maximum() -> None:
    found = words(view_of(Simulator, options={"final": "toward_negative"}))
    assert (found["negative_zero"], found["overflow"]) == ("toward_negative", "toward_negative")
    assert words(view_of(Simulator, options={"final": "toward_positive"}))["overflow"] == "toward_positive"


# ------------------------------------------------------------------------------------------------------------- expect


def test_expect_names_a_behaviour_or_forbids_others() -> None:
    assert kinds(view_of(Saturates, expect={"overflow": "saturates"}))["overflow"].verdict is Verdict.PASS
    assert kinds(view_of(Saturates, expect={"overflow": "infinity"}))["overflow"].verdict is Verdict.FAIL
    assert kinds(view_of(FlushesInputs, expect={"subnormal_flush": False}))["subnormal_flush"].verdict is Verdict.FAIL
    assert kinds(view_of(Any4, expect={"nan": "propagates"}))["nan"].verdict is Verdict.PASS


# ------------------------------------------------------------------------------------------------------------- the plan


def scope_of(**axes: Any) -> Scope:
    offer = Capabilities(
        collectives=frozenset({"all_reduce", "reduce_scatter"}),
        ops=frozenset({"sum", "min"}),
        formats=frozenset(FORMATS),
        element_alignment=axes.pop("alignment", 1),
    )
    sweep = {"op": ("sum",), "format": ("bfloat16",), "count": (0, 7, 1 << 16, 1 << 20), **axes}
    return Scope(ArmSpec(name="a", backend="fake", ranks=4), offer, Sweep(**sweep))


def test_the_plan_is_small_and_follows_the_sweep() -> None:
    plan = list(special.plan(scope_of(shift=((0, 0), (1, 1), (3, 3), (2, 4)))))
    assert len(plan) == 8
    assert {t.prefill for t, _ in plan} == {"finite"}  # a NaN that comes back must not look unwritten
    assert {(t.send_shift, t.recv_shift) for t, _ in plan} == {(0, 0), (1, 1)}
    assert {t.call.count for t, _ in plan} >= {1 << 16, 1 << 20}
    assert len(list(special.plan(scope_of(op=("min",), count=(7,), shift=((0, 0),))))) == 2
    assert not list(special.plan(scope_of(count=(0,))))
    assert {t.send_shift for t, _ in special.plan(scope_of(shift=((0, 0), (1, 1)), alignment=16))} == {0}


def test_every_case_is_tried_at_every_slot() -> None:
    fmt = FORMATS["bfloat16"]
    layout = table.layout(fmt, 4, "table")
    assert set(layout.number.tolist()) == {-1, *range(len(layout.cases))}
    assert {c.slot for c in layout.cases if c.name == "quiet NaN"} == {0, 1, 2, 3}
    for group in range(0, layout.size, 16):  # 32 bytes
        seen = {layout.cases[k].kind for k in layout.number[group : group + 16] if k >= 0}
        assert len(seen) <= 1
    assert len(table.slots(1000)) == table.MOST_SLOTS
    assert {0, 999} <= set(table.slots(1000))


# ------------------------------------------------------------------------------------------------------- without results


class Silent(DrivenView):
    def __init__(self, view: DrivenView, status: str) -> None:
        self.planned, self.rank_n, self.expect, self.arm, self.backend = view.planned, 4, {}, "subject", "driven"
        self.status = status

    def observations(self, trial_id: str) -> list[Observation]:
        return [Observation(trial_id=trial_id, repeat=0, rank=rank, status=self.status) for rank in range(4)]


def test_where_nothing_came_back() -> None:
    view = view_of(Any4, count=(7,))
    (one,) = special.analyze(Silent(view, "crash"))
    assert one.verdict is Verdict.INCONCLUSIVE
    assert "crash" in one.claim
    assert not list(special.analyze(Silent(view, "unsupported")))  # the harness has said so


def test_nothing_written_is_not_a_lost_nan() -> None:
    class WritesNothing(Any4):
        def write(self, window: Window, values: Any) -> None: ...

    (one,) = special.analyze(view_of(WritesNothing, count=(7,)))
    assert one.verdict is Verdict.INCONCLUSIVE
    assert "written" in one.claim


# ---------------------------------------------------------------------------------------------------------------- words


def test_the_words_of_single_codes() -> None:
    fmt = FORMATS["binary16"]
    nan, one = table.payload_nan(fmt, 0), fmt.power_of_two(0)
    ranks = (5, 7)
    assert special_words.payload_word(fmt, (nan, one), nan, ranks) == "kept"
    assert special_words.payload_word(fmt, (0x7C01, one), 0x7E01, ranks) == "quieted"
    assert special_words.payload_word(fmt, (nan, one), nan | fmt.sign_mask, ranks) == "kept, sign changed"
    assert special_words.payload_word(fmt, (nan, one), 0x7FFF, ranks) == "0x7fff"
    assert special_words.payload_word(fmt, (nan, table.payload_nan(fmt, 1)), nan, ranks) == "kept, of the lower rank"
    assert special_words.expected_code(fmt, "min", (0, fmt.sign_mask)) == fmt.sign_mask
    assert special_words.expected_code(fmt, "max", (0, fmt.sign_mask)) == 0
    assert special_words.expected_code(fmt, "max", (nan, 0)) == fmt.nan_code


def test_tables_are_told_from_their_controls() -> None:
    trials = [t for t, _ in special.plan(scope_of(count=(7,)))]
    assert [str(t.family) for t in trials if not is_table(t)] == [
        "special_cases:beside=plain",
        "special_cases:beside=other",
    ]
