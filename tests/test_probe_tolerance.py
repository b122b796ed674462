"""The probe tolerance: which ways it lays data on ranks, the distances that it measures, and what [expect] makes of them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from fake_view import FakeView

from auditor import inputs
from auditor.config import ArmSpec, Scope, Sweep
from auditor.model import COLLECTIVES, Capabilities, Codes, Family, Finding, Planned, Trial, Verdict
from auditor.numerics import trees
from auditor.numerics.exact import decode_reference, exact_sum_reference
from auditor.numerics.formats import FORMATS
from auditor.probes import tolerance


def scope(ranks: int = 4, **axes: Any) -> Scope:
    offer = Capabilities(collectives=frozenset(COLLECTIVES), ops=frozenset({"sum", "max"}), formats=frozenset(FORMATS))
    sweep = Sweep(**{"format": ("binary32",), "count": (0, 7, 301), "seed": (7,), **axes})
    return Scope(ArmSpec(name="a", backend="fake", ranks=ranks), offer, sweep)


def planned(some: Scope) -> list[Planned]:
    return [Planned(trial=trial, repeats=n, probes=("tolerance",)) for trial, n in tolerance.plan(some)]


def along(tree: Callable[[int], trees.Tree]) -> Callable[[Trial, int, int], Codes]:
    """A library that adds the ranks' data along a tree, in the format."""

    def output(trial: Trial, repeat: int, rank: int) -> Codes:
        fmt = trial.call.fmt
        first, last = inputs.receiver_range(trial, rank)
        terms = inputs.terms(trial, repeat, first, last)
        nearest = "ties_to_even"
        return trees.evaluate(tree(len(terms)), terms, fmt, accumulator=fmt, hop=nearest, final=nearest)

    return output


def chain(n: int) -> trees.Tree:
    return trees.chain(range(n))


def only(view: FakeView) -> Finding:
    (found,) = tolerance.analyze(view)
    return found


def test_the_same_data_are_laid_on_the_ranks_in_other_ways() -> None:
    """Every way's exact sums are those of the plain one, and no two ways give every rank the same data."""
    trials = [one.trial for one in planned(scope())]
    assert [trial.active for trial in trials][:2] == ["all", "0,1,3,2"]
    assert len(trials) == len({trial.active for trial in trials}) == tolerance.WAYS
    assert {(trial.call.count, trial.send_shift, trial.in_place) for trial in trials} == {(301, 0, False)}
    sent = [tuple(codes.tobytes() for codes in inputs.terms(trial, 0, 0, 301)) for trial in trials]
    assert len(set(sent)) == len(trials)
    assert len({tuple(sorted(one)) for one in sent}) == 1


@pytest.mark.parametrize("members", [2, 3, 5, 8, 40])
def test_ways_are_permutations_and_none_comes_twice(members: int) -> None:
    ways = tolerance.laid_out(members, 24)
    assert ways[0] == "all"
    assert len(ways) == len(set(ways)) == min(24, {2: 2, 3: 6}.get(members, 24))
    for way in ways[1:]:
        assert sorted(map(int, way.split(","))) == list(range(members))
        assert way != ",".join(map(str, range(members)))
    assert ways == tolerance.laid_out(members, 24)


def test_only_sums_of_two_ranks_and_more_are_asked_for() -> None:
    assert not planned(scope(1))
    assert not planned(scope(count=(0,)))
    assert {one.trial.call.op for one in planned(scope(op=("sum", "max")))} == {"sum"}


def test_the_distance_is_that_of_rational_arithmetic() -> None:
    """The worst element, looked for element by element in integers, is the one that is claimed and shown."""
    fmt = FORMATS["binary32"]
    view = FakeView(planned(scope(3, collective=("all_reduce",), count=(200,))), along(chain))
    worst = Fraction(0)
    for one in view.planned:
        terms, output = inputs.terms(one.trial, 0, 0, 200), view.output(one.trial.trial_id, 0, 0)
        for index in range(200):
            numerator, exponent = exact_sum_reference(fmt, [int(term[index]) for term in terms])
            exact = Fraction(numerator) * Fraction(2) ** exponent
            if not exact:
                continue
            n, e = decode_reference(fmt, int(output[index]))
            size = int(np.floor(np.log2(float(abs(exact)))))
            worst = max(worst, abs(Fraction(n) * Fraction(2) ** e - exact) / Fraction(2) ** (size - 23))
    found = only(view)
    assert found.verdict is Verdict.INFORMATION
    assert found.measure["worst_error_ulp"] == pytest.approx(float(worst), rel=1e-12)
    assert found.measure["worst_steps"] == round(found.measure["worst_error_ulp"])
    assert found.measure["ways"] == 6
    assert "Terms of both signs cancel" in found.limits
    row = found.evidence[0]
    assert int(row.observed, 16) != int(row.expected, 16)
    assert len(row.inputs) == 3


def test_a_stated_bound_passes_or_fails() -> None:
    some = planned(scope(4, collective=("reduce_scatter",)))
    worst = only(FakeView(some, along(chain))).measure["worst_steps"]
    assert worst > 2
    for bound, verdict in (
        (worst, Verdict.PASS),
        (worst - 1, Verdict.FAIL),
        (0, Verdict.FAIL),
        (True, Verdict.INFORMATION),
    ):
        found = only(FakeView(some, along(chain), expect={"ulp_bound": bound}))
        assert found.verdict is verdict, bound
    assert found.measure["elements"] == 6 * 4 * 301


def test_one_rounding_lies_within_half_an_ulp() -> None:
    found = only(FakeView(planned(scope(4, collective=("all_reduce",))), along(trees.fused)))
    assert found.measure["worst_steps"] == 0
    assert 0.4 < found.measure["worst_error_ulp"] <= 0.5
    assert not found.evidence


def test_sums_of_one_sign_are_not_said_to_cancel() -> None:
    some = planned(scope(4, collective=("all_reduce",), family=(Family.parse("constant:value=1.5"),)))
    found = only(FakeView(some, along(chain)))
    assert "cancel" not in found.limits
    assert found.measure["cancellation"] == 1.0


def test_a_nan_is_counted_and_breaks_a_bound() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = along(chain)(trial, repeat, rank)
        codes[3] = trial.call.fmt.nan_code
        return codes

    found = only(FakeView(planned(scope(4, collective=("all_reduce",))), output, expect={"ulp_bound": 1e9}))
    assert found.measure["nan"] == 6
    assert found.verdict is Verdict.FAIL


def test_ranks_that_disagree_are_all_looked_at() -> None:
    def output(trial: Trial, repeat: int, rank: int) -> Codes:
        codes = along(trees.fused)(trial, repeat, rank)
        codes[5] += trial.call.fmt.dtype.type(9 if rank == 2 else 0)
        return codes

    found = only(FakeView(planned(scope(4, collective=("all_reduce",))), output))
    assert found.measure["worst_steps"] == 9
    assert (found.evidence[0].rank, found.evidence[0].index) == (2, 5)


def test_without_a_result_nothing_is_said() -> None:
    some = planned(scope(4, collective=("all_reduce",)))
    found = only(FakeView(some, along(chain), details=lambda *_: {"status": "error"}))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "status error" in found.claim
