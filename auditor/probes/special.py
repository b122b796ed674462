"""What becomes of NaN, infinities, -0, subnormals and sums past the maximum, whichever rank holds them.

A table of cases (``inputs.cases``), every rank slot, in one small call; again at an odd shift and with an odd count, in a call
of a few elements, and in a long one, since the paths that libraries choose by size and alignment treat specials differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from auditor.config import Scope
from auditor.inputs import cases as table
from auditor.model import ArmView, Evidence, Family, Finding, Trial, Verdict
from auditor.numerics.formats import Format
from auditor.probes import special_words as words
from auditor.probes.common import (
    MAX_ROWS,
    cell,
    evidence_rows,
    finding,
    inconclusive,
    no_data_reason,
    plural,
    refused,
    trials_of,
    verdict_for,
    verdict_for_value,
    where,
)
from auditor.probes.outcomes import Beside, Outcome, Outcomes, beside, gather, is_table
from auditor.probes.special_claims import claim_of
from auditor.probes.special_words import Told

NAME = "special"
KINDS = ("nan", "infinity", "negative_zero", "subnormal_flush", "overflow")
KINDS_OF_AVG = ("nan", "infinity", "negative_zero")  # what else an average does is scaling's to say
REPEATS = 2
LARGEST = 1 << 20
TAIL = 13  # elements past whole rounds: an odd end


# ------------------------------------------------------------------------------------------------------------------ plan


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """At most eight trials a cell: the table, unshifted and shifted, a handful of elements, the largest counts, two controls."""
    for point, shifts in _points(scope):
        size = table.layout(point.call.fmt, len(point.members), "table").size
        few = table.layout(point.call.fmt, len(point.members), "short").size
        for number, (send, recv) in enumerate(shifts):
            at = point.with_(send_shift=send, recv_shift=recv)
            yield _trial(at, size + TAIL * bool(number)), REPEATS
            yield _trial(at, few | 1, part="short"), REPEATS
        for count in _long(scope, size):
            yield point.with_(count=count, family=Family("special_cases"), prefill="finite"), REPEATS
        if point.call.op in ("sum", "avg"):
            for name in table.BESIDE[1:]:
                yield _trial(point, size, beside=name), REPEATS


def _trial(point: Trial, elements: int, **arguments: str) -> Trial:
    """The finite prefill: a NaN that comes back must not look like an element that was never written."""
    shares = len(point.members) if point.call.collective == "reduce_scatter" else 1
    family = Family("special_cases", tuple(sorted(arguments.items())))
    return point.with_(count=-(-elements // shares), family=family, prefill="finite")


def _points(scope: Scope) -> Iterator[tuple[Trial, list[tuple[int, int]]]]:
    """One unshifted, out-of-place point a cell, with the least and the first odd shift of the sweep that it may have."""
    best: dict[tuple[Any, ...], list[Trial]] = {}
    for point in scope.points():
        if point.call.count:
            best.setdefault((*cell(point), point.call.group), []).append(point)
    for points in best.values():
        first = min(points, key=lambda p: (p.in_place, p.send_shift + p.recv_shift))
        pairs = dict.fromkeys((p.send_shift, p.recv_shift) for p in points if p.in_place == first.in_place)
        odd = [pair for pair in pairs if pair[0] % 2 or pair[1] % 2]
        least = (first.send_shift, first.recv_shift)
        yield first, list(dict.fromkeys([least, *odd[:1]]))


def _long(scope: Scope, size: int) -> list[int]:
    """At most two counts of the sweep that are longer than the table: the largest, and one between."""
    longer = sorted({n for n in scope.sweep.count if 2 * size < n <= LARGEST})
    return sorted({longer[-1], longer[(len(longer) - 1) // 2]}) if longer else []


# --------------------------------------------------------------------------------------------------------------- analyze


def analyze(view: ArmView) -> Iterator[Finding]:
    """A finding for each cell (collective, op, format, group) and kind; what is as usual in many cells is said once."""
    cells: dict[tuple[Any, ...], list[Trial]] = {}
    for planned in trials_of(view, NAME):
        trial = planned.trial
        cells.setdefault((*cell(trial), trial.call.group), []).append(trial)
    usual: dict[tuple[str, str, str], list[Finding]] = {}
    for trials in cells.values():
        tables = [trial for trial in trials if is_table(trial)]
        found = gather(view, tables)
        if not found.by_case and all(refused(view, trial) for trial in tables):
            continue  # the harness says so
        if not found.by_case:
            reason = no_data_reason(view, tables)
            if found.left_out:
                reason = "no element of the cases was written"
            yield inconclusive(
                view, NAME, "nan", tables, f"the special cases of {where(tables)} gave nothing: {reason}"
            )
            continue
        for kind in KINDS if tables[0].call.op != "avg" else KINDS_OF_AVG:
            for one in _kind(view, trials, found, kind):
                if one.verdict is Verdict.PASS and one.kind not in view.expect:
                    said = one.claim.removeprefix(where(found.trials))
                    usual.setdefault((kind, tables[0].call.op, said), []).append(one)
                else:
                    yield one
    trial_of = {planned.trial.trial_id: planned.trial for planned in view.planned}
    for (_, _, said), alike in usual.items():
        yield _together(view, alike, said, trial_of)


def _together(view: ArmView, alike: Sequence[Finding], said: str, trial_of: Mapping[str, Trial]) -> Finding:
    """One finding for the cells that are alike."""
    trials = [trial_of[name] for one in alike for name in one.measure["trial_ids"]]
    first = alike[0]
    measure = {
        "behaviour": first.measure["behaviour"],
        "by_cell": {_cell_name(one): dict(one.measure) for one in alike},
    }
    measure = dict(first.measure) if len(alike) == 1 else measure
    claim = f"{where(trials)}{said}"
    return finding(view, NAME, first.kind, first.verdict, claim, trials=trials, measure=measure, limits=first.limits)


def _cell_name(one: Finding) -> str:
    return " ".join(
        str(one.scope[axis]) for axis in ("collective", "op", "format", "group") if one.scope.get(axis) is not None
    )


def _kind(view: ArmView, trials: Sequence[Trial], found: Outcomes, kind: str) -> Iterator[Finding]:
    call, fmt = found.trials[0].call, found.trials[0].call.fmt
    seen = [(case, outcomes) for case, outcomes in found.of_kind(kind)]
    told = [
        one for case, outcomes in seen if (one := _told(call.collective, call.op, fmt, case, outcomes)).words != {""}
    ]
    if not told:
        return
    name = words.behaviour(call.op, kind, told)
    near = beside(view, trials, kind) if call.op in ("sum", "avg") and kind in ("nan", "infinity") else None
    measure = _measure(found, kind, told, name, near)
    yield finding(
        view,
        NAME,
        kind,
        _verdict(view, fmt, kind, name, near),
        claim_of(found.trials, kind, name, told, measure),
        trials=found.trials,
        measure=measure,
        evidence=_evidence(view, seen, told, kind, name),
        limits=_limits(kind, found),
    )


def _told(collective: str, op: str, fmt: Format, case: table.Case, outcomes: Sequence[Outcome]) -> Told:
    by_place: dict[str, set[str]] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for o in outcomes:
        word = words.word(fmt, op, case, o.code)
        for place, receivers in o.places.items():
            by_place.setdefault(place, set()).add(word)
            ranks.setdefault((place, words.coarse(word)), set()).update(receivers)
    split = any(ranks[place, word] != ranks[place, words.coarse(min(by_place[place]))] for place, word in ranks)
    return Told(case, {p: frozenset(w) for p, w in by_place.items()}, split and collective == "all_reduce")


def _verdict(view: ArmView, fmt: Format, kind: str, name: str, near: Beside | None) -> Verdict:
    """``[expect]`` may name the behaviour, or say with true or false whether any but IEEE 754's is allowed."""
    if isinstance(view.expect.get(kind), (str, list, tuple)):
        return verdict_for_value(view, kind, name)
    changed = near is not None and near.changed > 0 and not near.control
    return verdict_for(view, kind, name not in (words.usual(fmt, kind), "unchanged") or changed)


def _measure(found: Outcomes, kind: str, told: Sequence[Told], name: str, near: Beside | None) -> dict[str, Any]:
    first = found.trials[0]
    measure: dict[str, Any] = {"behaviour": name, "cases": _table(first, told)}
    if kind == "nan":
        measure["payloads"] = _payloads(found)
    if differ := words.slots_that_differ(told):
        measure["differ_by_rank"] = list(differ)
    if places := _by_place(found, kind):
        measure["differ_by_place"] = places
    if split := words.receivers_that_differ(told):
        measure["receivers_disagree"] = split
    if near is not None:
        measure["beside"] = {
            "compared": near.compared,
            "changed": near.changed,
            "changed_beside_ordinary": near.control,
        }
    slots = len({one.case.slot for one in told} - {-1})
    counts = {"slots": slots, "elements_left_out": found.left_out, "trial_ids": [t.trial_id for t in found.trials]}
    return {**measure, **counts}


def _table(trial: Trial, told: Sequence[Told]) -> dict[str, Any]:
    """Case -> word; where the slots differ, the rank that holds the special value -> word."""
    rows: dict[str, dict[str, str]] = {}
    for one in told:
        slot = "all" if one.case.slot < 0 else str(trial.members[one.case.slot])
        rows.setdefault(one.case.name, {})[slot] = " or ".join(sorted(one.words))
    return {name: row if len(set(row.values())) > 1 else next(iter(row.values())) for name, row in rows.items()}


def _payloads(found: Outcomes) -> dict[str, Any]:
    """Case -> what became of the NaN's bits, by the rank that holds it where that differs."""
    first = found.trials[0]
    rows: dict[str, dict[str, str]] = {}
    for case, outcomes in found.of_kind("nan"):
        codes = [o.code for o in outcomes if words.is_nan(first.call.fmt, o.code)]
        held = [int(c) for c in case.codes]
        seen = sorted({words.payload_word(first.call.fmt, held, code, first.members) for code in codes})
        if seen:
            slot = "all" if case.slot < 0 else str(first.members[case.slot])
            rows.setdefault(case.name, {})[slot] = " or ".join(seen)
    return {name: row if len(set(row.values())) > 1 else next(iter(row.values())) for name, row in rows.items()}


def _by_place(found: Outcomes, kind: str) -> dict[str, dict[str, list[str]]]:
    """Case -> word -> places, for the cases that gave several words (at most eight)."""
    rows: dict[str, dict[str, list[str]]] = {}
    for case, outcomes in found.of_kind(kind):
        by_word: dict[str, set[str]] = {}
        for o in outcomes:
            by_word.setdefault(words.word(o.trial.call.fmt, o.trial.call.op, case, o.code), set()).update(o.places)
        if len(by_word) > 1 and len(rows) < 8:
            rows[case.name] = {name: sorted(places) for name, places in by_word.items()}
    return rows


def _evidence(
    view: ArmView,
    seen: Sequence[tuple[table.Case, list[Outcome]]],
    told: Sequence[Told],
    kind: str,
    name: str,
) -> list[Evidence]:
    """One row for each case and word, the first slot that shows it; none where all is as IEEE 754 has it."""
    fmt = seen[0][1][0].trial.call.fmt
    if name in (words.usual(fmt, kind), "unchanged"):
        return []
    known = {id(one.case) for one in told}
    shown: set[tuple[str, str]] = set()
    rows: list[Evidence] = []
    for case, outcomes in seen:
        for o in outcomes:
            op = o.trial.call.op
            key = (case.name, words.word(fmt, op, case, o.code))
            want = words.expected_code(fmt, op, [int(c) for c in case.codes])
            as_ieee = o.code == want or (words.is_nan(fmt, want) and words.is_nan(fmt, o.code))
            if id(case) not in known or key in shown or len(rows) >= MAX_ROWS or (as_ieee and "depends" not in name):
                continue
            shown.add(key)
            output = view.output(o.trial.trial_id, o.seen.repeat, o.seen.rank)
            text = words.hexed(fmt, want) if op != "avg" else ""
            rows += evidence_rows(o.trial, o.seen, [o.index], output, text, 1)
    return rows


def _limits(kind: str, found: Outcomes) -> str:
    texts = {
        "nan": "Which NaN comes back, and what min and max do with one, is specified nowhere.",
        "infinity": "",
        "negative_zero": "The sign of a zero result is specified by no collective.",
        "subnormal_flush": "Subnormals of the element format; those of a wider accumulator are not asked for.",
        "overflow": "Saturation and rounding toward zero give the same bits past the maximum.",
    }
    tried = f"Tried at {plural(len(found.trials), 'place')} (count and shift)."
    members = len(found.trials[0].members)
    if members > table.MOST_SLOTS:
        tried += f" {table.MOST_SLOTS} of {members} ranks hold the special value in turn."
    return " ".join(part for part in (texts[kind], tried) if part)
