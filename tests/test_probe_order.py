"""order: named schedules replayed bit for bit, wrong ones named by their first mismatch, nothing where none shows."""

from __future__ import annotations

import numpy as np
import pytest
from driven_view import drive, of_kind
from fake_view import FakeView, planned

from auditor import inputs
from auditor.backends.simulator import Simulator
from auditor.config import ArmSpec, Scope, Sweep
from auditor.numerics import trees
from auditor.numerics.formats import FORMATS
from auditor.numerics.schedules import (
    bank,
    canonical,
    chain_of,
    every_tree,
    name_of,
    recursive_halving,
    rotation_of,
    text_of,
)
from auditor.numerics.trees import binary_tree, chain, fused, recursive_doubling, ring_order
from auditor.probes import order
from auditor.probes.order_search import arithmetics, replay, search

BF16 = FORMATS["bfloat16"]


# -------------------------------------------------------------------------------------------------------------- schedules


def test_every_tree_of_a_few_terms_once():
    assert [len(every_tree(n)) for n in (1, 2, 3, 4, 5)] == [1, 1, 3, 15, 105]  # (2n - 3)!!
    for n in (3, 4, 5):
        some = every_tree(n)
        assert len(set(some)) == len(some)
        assert all(canonical(tree) == tree and sorted(trees.leaves(tree)) == list(range(n)) for tree in some)
        assert {canonical(tree) for tree in (recursive_doubling(n), recursive_halving(n), chain(range(n)))} <= set(some)


@pytest.mark.parametrize("n", [6, 7, 8, 16])
def test_the_bank_of_many_terms(n):
    some = set(bank(n))
    wanted = [chain(ring_order(n, k)[::step]) for k in range(n) for step in (1, -1)]
    wanted += [recursive_doubling(n), recursive_halving(n)]
    assert {canonical(tree) for tree in wanted} <= some
    assert all(sorted(trees.leaves(tree)) == list(range(n)) for tree in some)


def test_texts_and_chains():
    assert text_of(canonical(chain([2, 1, 3, 0]))) == "((1+2)+3)+0"
    assert text_of(canonical(recursive_halving(4))) == "(0+2)+(1+3)"
    assert text_of(fused(3)) == "0+1+2"
    assert chain_of(canonical(chain([3, 1, 2, 0]))) == (1, 3, 2, 0)
    assert chain_of(recursive_doubling(4)) == chain_of(fused(3)) == ()
    assert recursive_halving(6) == (((0, 4), 2), ((1, 5), 3))


def test_names():
    up, down = ([[canonical(chain(ring_order(4, k)[::step]))] for k in range(4)] for step in (1, -1))
    assert rotation_of(up[1][0], 4) == 1
    assert rotation_of(down[1][0], 4) == -1
    assert rotation_of(canonical(chain([0, 2, 1, 3])), 4) == 0
    assert name_of(up, 4) == name_of(down[:2], 4) == "ring"
    assert name_of([up[0]], 4) == name_of([up[0], up[0]], 4) == "sequential"
    assert name_of([up[0], down[1]], 4) == "chains"
    assert name_of([[canonical(chain([0, 2, 1, 3]))]], 4) == "chain"
    assert name_of([[canonical(binary_tree(4))]], 4) == "recursive_doubling"
    assert name_of([[canonical(recursive_halving(8))]], 8) == "recursive_halving"
    assert name_of([[canonical(((0, 3), (1, 2)))]], 4) == "tree"
    assert name_of([[canonical(((0, 3), (1, 2)))], up[0]], 4) == "trees"
    assert name_of([[canonical(fused(5))]], 5) == "fused"


def test_shared_parts_change_nothing():
    rng = np.random.default_rng(3)
    terms = [rng.integers(0x3F00, 0x4100, 300).astype(np.uint16) for _ in range(4)]
    for accumulator, hop in (("bfloat16", "ties_to_away"), ("binary32", "ties_to_even")):
        common = {"accumulator": FORMATS[accumulator], "hop": hop, "final": "ties_to_even"}
        each = trees.evaluate_each(every_tree(4), terms, BF16, **common)
        assert all(
            np.array_equal(one, trees.evaluate(tree, terms, BF16, **common))
            for tree, one in zip(every_tree(4), each, strict=True)
        )
    with pytest.raises(ValueError, match="nearest"):
        trees.evaluate_each([0], terms, BF16, accumulator=BF16, hop="nearest", final="ties_to_even")


# ----------------------------------------------------------------------------------------------------------------- search


def data(n, count, seed=5):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0x3E80, 0x4180, count).astype(np.uint16) ^ (rng.integers(0, 2, count) << 15).astype(np.uint16)
        for _ in range(n)
    ]


def summed(terms, parts, hop="ties_to_even"):
    """Terms added along (tree, first element) pieces, rounded at each hop."""
    out = np.empty(len(terms[0]), np.uint16)
    for number, (tree, start) in enumerate(parts):
        stop = parts[number + 1][1] if number + 1 < len(parts) else len(out)
        some = [term[start:stop] for term in terms]
        out[start:stop] = trees.evaluate(tree, some, BF16, accumulator=BF16, hop=hop, final=hop)
    return out


def test_a_ring_is_cut_into_its_chunks():
    terms = data(4, 8_000)
    parts = [(chain(ring_order(4, k)), start) for k, start in enumerate((0, 2_000, 4_000, 6_000))]
    output = summed(terms, parts, "ties_to_away")
    found = search(BF16, 4, output, lambda a, b: [term[a:b] for term in terms])
    (account,) = found.accounts
    assert str(account.arithmetic) == "rounded to bfloat16 at each hop, ties_to_away"
    assert account.matched == account.elements == 8_000
    assert [canonical(part[0]) for part in parts] == [one.trees[0] for one in account.segments]
    for (_, start), segment in zip(parts, account.segments, strict=True):
        assert start <= segment.start < start + 40  # later by what both orders round alike
    assert name_of([one.trees for one in account.segments], 4) == "ring"
    assert found.explained["rounded to bfloat16 at each hop, ties_to_even"] < 1


def test_one_wrong_bit_is_not_explained_away():
    terms = data(4, 4096)
    output = summed(terms, [(chain(range(4)), 0)])
    output[2000] ^= 0x10
    arithmetic = arithmetics(BF16)[0]
    account = replay(arithmetic, 4, output, lambda a, b: [term[a:b] for term in terms])
    assert account.matched < account.elements
    assert not account.holds
    assert not search(BF16, 4, output, lambda a, b: [term[a:b] for term in terms]).accounts


def test_random_orders_are_not_an_order():
    """Each element in an order of its own: some tree explains every one, and no segment means anything."""
    terms, rng = data(4, 4096), np.random.default_rng(1)
    each = trees.evaluate_each(every_tree(4), terms, BF16, accumulator=BF16, hop="ties_to_even", final="ties_to_even")
    output = np.choose(rng.integers(0, 15, 4096), each)
    found = search(BF16, 4, output, lambda a, b: [term[a:b] for term in terms])
    assert found.explained["rounded to bfloat16 at each hop, ties_to_even"] == 1
    assert not found.accounts


# --------------------------------------------------------------------------------------------------- through the simulator

SWEEP = Sweep(
    collective=("all_reduce", "reduce_scatter", "reduce"),
    format=("bfloat16",),
    count=(1, 1500),
    shift=((0, 0),),
    repeats=2,
)
ORDERS = {  # simulator's order: (name of all_reduce's, ranks)
    "ring": ("ring", 4),
    "rank": ("sequential", 4),
    "recursive_doubling": ("recursive_doubling", 4),
    "fused": ("undetermined", 4),  # binary32 holds these sums as well
}


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.parametrize(("accumulator", "hop"), [("same", "ties_to_even"), ("same", "toward_zero")])
def test_the_simulator_s_orders(schedule, accumulator, hop):
    name, ranks = ORDERS[schedule]
    options = {"order": schedule, "accumulator": accumulator, "hop": hop, "final": hop}
    view = drive(Simulator, SWEEP, [order], rank_n=ranks, options=options)
    found = {one.scope["collective"]: one for one in of_kind(order, view, "summation_tree")}
    assert set(found) == {"all_reduce", "reduce_scatter", "reduce"}
    for one in found.values():
        assert str(one.verdict) == "INFORMATION"
        assert one.measure["elements_matched"] == one.measure["elements"] >= 1500
        assert hop in one.measure["arithmetic"]
    measure = found["all_reduce"].measure
    assert measure["schedule"] == name, found["all_reduce"].claim
    if schedule in ("rank", "recursive_doubling"):
        assert measure["trees_left"] == 1
        assert measure["evidence_total"] == 14  # every other tree fails somewhere, and is shown where first
        row = found["all_reduce"].evidence[0]
        assert row.expected.startswith("0x")
        assert " by " in row.expected
        assert row.expected.split()[0] != row.observed


@pytest.mark.parametrize("ranks", [3, 5, 8])
def test_a_ring_of_other_sizes(ranks):
    sweep = Sweep(format=("bfloat16",), count=(2048,), shift=((0, 0),), repeats=2)
    view = drive(Simulator, sweep, [order], rank_n=ranks, options={"order": "ring", "accumulator": "same"})
    (found,) = of_kind(order, view, "summation_tree")
    assert found.measure["schedule"] == "ring"
    assert found.measure["by_trial"][0]["segments_total"] == ranks
    assert found.measure["elements_matched"] == 2048


def test_a_wide_accumulator_hides_the_order():
    sweep = Sweep(format=("bfloat16",), count=(4096,), shift=((0, 0),), repeats=2)
    options = {"order": "ring", "accumulator": "binary32"}
    for expect, verdict in (
        ({}, "INFORMATION"),
        ({"summation_tree": "ring"}, "INCONCLUSIVE"),
        ({"summation_tree": "nothing"}, "FAIL"),
    ):
        view = drive(Simulator, sweep, [order], rank_n=4, options=options, expect=expect)
        (found,) = of_kind(order, view, "summation_tree")
        assert found.measure["schedule"] == "undetermined"
        assert "does not show" in found.claim
        assert str(found.verdict) == verdict


@pytest.mark.parametrize(("expect", "verdict"), [("ring", "PASS"), ("sequential", "FAIL")])
def test_what_is_expected(expect, verdict):
    sweep = Sweep(format=("bfloat16",), count=(4096,), shift=((0, 0),), repeats=2)
    view = drive(
        Simulator,
        sweep,
        [order],
        rank_n=4,
        options={"order": "ring", "accumulator": "same"},
        expect={"summation_tree": expect},
    )
    assert str(of_kind(order, view, "summation_tree")[0].verdict) == verdict


# ------------------------------------------------------------------------------------------------------------- plan, absence


def a_scope(ranks, **axes):
    sweep = Sweep(**{"format": ("bfloat16",), "shift": ((1, 1), (0, 0)), "in_place": (True, False), **axes})
    return Scope(ArmSpec(name="a", backend="simulator", ranks=ranks), Simulator.probe({}), sweep)


def test_what_is_planned():
    assert not list(order.plan(a_scope(2)))
    assert not list(order.plan(a_scope(4, op=("max",))))
    trials = [trial for trial, _ in order.plan(a_scope(4, count=(1, 300, 5000, 70, 600, 1026)))]
    assert [trial.call.count for trial in trials] == [600, 1026, 5000]
    assert {(trial.in_place, trial.send_shift) for trial in trials} == {(False, 0)}
    assert [trial.call.count for trial, _ in order.plan(a_scope(4, count=(1, 7)))] == [order.OWN]


def a_view(output, details=None):
    return FakeView(planned(order.plan(a_scope(4, count=(512,))), "order"), output, details=details)


def test_bits_of_no_order_are_inconclusive():
    def output(trial, repeat, rank):
        terms = inputs.terms(trial, repeat, 0, trial.call.count)
        return trees.evaluate(
            chain(range(4)), terms, BF16, accumulator=BF16, hop="toward_positive", final="toward_positive"
        )

    (found,) = order.analyze(a_view(output))
    assert str(found.verdict) == "INCONCLUSIVE"
    assert found.measure["schedule"] == "unknown"
    assert "no order that was tried gives these bits; the nearest, " in found.claim


def test_a_subject_that_does_not_repeat_itself_has_no_order():
    def output(trial, repeat, rank):
        return np.full(trial.call.count, 0x3F80 + repeat, np.uint16)

    (found,) = order.analyze(a_view(output))
    assert str(found.verdict) == "INCONCLUSIVE"
    assert "no trial repeats itself" in found.claim
    (found,) = order.analyze(a_view(output, details=lambda *_: {"status": "error"}))
    assert "status error" in found.claim
