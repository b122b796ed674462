"""What it means that a case shows a finding: pure functions of the case's bytes and of what came back.

A shrinker that only asked "is anything odd?" would slip from one fault into another, so each kind has the relation that defines
it: an output against the exact sum, two outputs that ought to be the same bits, a byte that ought to have stayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.evidence.cases import Case, Outcome, Step
from auditor.layout import prefill_code
from auditor.model import Codes, Finding, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.rounding import MODES, join, round_sums, split, up_by_mode
from auditor.probes import legal
from auditor.probes.expected import Block, is_faithful

Mask = npt.NDArray[np.bool_]
REPEATS = 20  # of a call whose repeats differ
TAKEN = 64  # sightings kept of one output


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place at which a case shows the finding. ``index``: receive index, -1 where it is no element.

    ``observed`` and ``expected`` are codes (of bytes where the relation is about bytes outside a range); ``beside``: the (round,
    step, rank, index) whose output ``expected`` is, where it is another output.
    """

    round: int
    step: int
    rank: int
    index: int
    observed: int | None = None
    expected: int | None = None
    beside: tuple[int, int, int, int] | None = None


Look = Callable[[Case, Outcome], list[Sighting]]


@dataclass(frozen=True, slots=True)
class Relation:
    """``look`` gives the places; none: the case does not show it. ``repeats``: rounds that it needs. ``arguments``: what the
    stand-alone script is told beside the name.
    """

    name: str
    look: Look
    repeats: int = 1
    arguments: tuple[tuple[str, Any], ...] = ()


# ------------------------------------------------------------------------------------------------------------- the facts


def block_of(step: Step, rank_n: int, position: int) -> tuple[Trial, Block]:
    """Terms, exact sums and their neighbours of what the member at ``position`` receives."""
    terms = tuple(np.ascontiguousarray(row) for row in step.sent_to(position))
    sums = exact_sums(step.fmt, terms)
    return step.trial(rank_n), Block(0, step.call.count, terms, sums, split(step.fmt, sums))


def receivers(case: Case, step: Step) -> Iterator[tuple[int, int]]:
    """(position in the group, global rank) of each member that gets a result."""
    members = case.members
    return ((members.index(rank), rank) for rank in step.call.receivers(case.rank_n))


def _ordinary(step: Step, block: Block) -> Mask:
    """Finite sums with normal terms and results, below the last gap before the maximum: the rest is for ``special``."""
    fmt = step.fmt
    least = fmt.power_of_two(fmt.emin)
    kind = step.fmt.dtype.type
    sizes = [term & kind(fmt.magnitude_mask) for term in block.terms]
    normal = np.logical_and.reduce([(size == 0) | (size >= kind(least)) for size in sizes])
    inside = (block.split.lo >= kind(least)) & (block.split.lo < kind(fmt.max_code))
    return np.asarray(block.split.finite & normal & inside, np.bool_)


def _at_most_two(block: Block) -> Mask:
    """One addition: at most two members send something else than a zero."""
    kind = block.terms[0].dtype.type
    magnitude = kind((1 << (8 * block.terms[0].itemsize - 1)) - 1)
    return np.asarray(np.sum([(term & magnitude) != 0 for term in block.terms], axis=0) <= 2, np.bool_)


def _outputs(case: Case, outcome: Outcome, step: int = 0) -> Iterator[tuple[int, int, int, Codes]]:
    """(round, position, rank, output) of every output of one step."""
    for position, rank in receivers(case, case.steps[step]):
        for number, output in outcome.outputs(step, rank):
            yield number, position, rank, output


def _sightings(
    mask: Any, number: int, step: int, rank: int, output: Codes, expected: Codes | int | None, beside: Any = None
) -> list[Sighting]:
    """One sighting an element that ``mask`` marks."""
    found = []
    for index in np.flatnonzero(mask)[:TAKEN].tolist():
        want = int(expected[index]) if isinstance(expected, np.ndarray) else expected
        at = None if beside is None else (*beside, index)
        found.append(Sighting(number, step, rank, index, int(output[index]), want, at))
    return found


# ------------------------------------------------------------------------------------------------ against the exact sum


def not_rounded(case: Case, outcome: Outcome, mode: str, *, faithful: bool) -> list[Sighting]:
    """One addition whose result is not the exact sum rounded by ``mode``: the other neighbour (``faithful``), or neither."""
    found: list[Sighting] = []
    step = case.steps[0]
    for number, position, rank, output in _outputs(case, outcome):
        trial, block = block_of(step, case.rank_n, position)
        want = round_sums(step.fmt, block.sums, mode)
        off = (output != want) & _ordinary(step, block) & _at_most_two(block) & block.split.inexact
        off &= is_faithful(trial, output, block) == faithful
        found += _sightings(off, number, 0, rank, output, want)
    return found


def not_exact(case: Case, outcome: Outcome, term: int = 0) -> list[Sighting]:
    """A sum of which every partial sum is exact, and another value came back. ``term`` -1: the value lacks one member's term;
    +1: it holds one, or all of them, twice.
    """
    found: list[Sighting] = []
    for index, step in enumerate(case.steps):
        for number, position, rank, output in _outputs(case, outcome, index):
            trial, block = block_of(step, case.rank_n, position)
            want = join(step.fmt, block.split, up_by_mode("ties_to_even", block.split))
            off = legal.wrong(trial, block, output)[0]
            if not step.in_place:
                off &= output != step.fmt.dtype.type(prefill_code(step.fmt, step.prefill))
            if term:
                off &= _by_a_term(step, block, output, term)
            found += _sightings(off, number, index, rank, output, want)
    return found


def _by_a_term(step: Step, block: Block, output: Codes, way: int) -> Mask:
    """Outputs that are the sum without (-1) or with once more (+1) one member's non-zero term, or with all of them twice (+1)."""
    magnitude = step.fmt.dtype.type(step.fmt.magnitude_mask)
    fits = np.zeros(len(output), np.bool_)
    if way > 0:
        fits = output == round_sums(step.fmt, exact_sums(step.fmt, [*block.terms, *block.terms]), "ties_to_even")
    for position, term in enumerate(block.terms):
        rest = [other for number, other in enumerate(block.terms) if number != position]
        terms = rest if way < 0 else [*block.terms, term]
        value = round_sums(step.fmt, exact_sums(step.fmt, terms or [np.zeros_like(term)]), "ties_to_even")
        fits |= (output == value) & ((term & magnitude) != 0)
    return fits


# -------------------------------------------------------------------------------------------------- output against output


def steps_differ(case: Case, outcome: Outcome) -> list[Sighting]:
    """Elements with the same inputs in the first two steps whose outputs differ, though each step repeats itself."""
    found: list[Sighting] = []
    first, second = case.steps[:2]
    size = min(first.call.count, second.call.count)
    for position, rank in receivers(case, first):
        columns = [step.sent_to(position)[:, :size] for step in (first, second)]
        rows = [outcome.outputs(index, rank) for index in (0, 1)]
        if not all(rows) or any(not np.array_equal(rows[k][0][1], other) for k in (0, 1) for _, other in rows[k]):
            continue
        before, after = rows[0][0][1][:size], rows[1][0][1][:size]
        mask = (before != after) & (columns[0] == columns[1]).all(axis=0)
        found += _sightings(mask, 0, 1, rank, after, before, (0, 0, rank))
    return found


def columns_differ(case: Case, outcome: Outcome) -> list[Sighting]:
    """Elements of one call with the same inputs and different outputs: by place in the range, or by receiver's share."""
    step = case.steps[0]
    known: dict[bytes, tuple[int, tuple[int, int, int, int]]] = {}
    found: list[Sighting] = []
    for number, position, rank, output in _outputs(case, outcome):
        if number or (step.shares == 1 and position != next(receivers(case, step))[0]):
            continue  # the ranks of an all_reduce hold the same sums; their disagreement is another kind
        for index, column in enumerate(step.sent_to(position).T):
            code = int(output[index])
            before, place = known.setdefault(column.tobytes(), (code, (0, 0, rank, index)))
            if before != code and len(found) < TAKEN:
                found.append(Sighting(0, 0, rank, index, code, before, place))
    return found


def repeats_differ(case: Case, outcome: Outcome) -> list[Sighting]:
    """The same call in the same process, and other bits."""
    found: list[Sighting] = []
    for index, step in enumerate(case.steps):
        for _, rank in receivers(case, step):
            rows = outcome.outputs(index, rank)
            for number, output in rows[1:]:
                found += _sightings(output != rows[0][1], number, index, rank, output, rows[0][1], (0, index, rank))
    return found


def ranks_differ(case: Case, outcome: Outcome) -> list[Sighting]:
    """Receivers of one all_reduce that hold different bits."""
    found: list[Sighting] = []
    for index, step in enumerate(case.steps):
        if step.call.collective != "all_reduce":
            continue
        seen: dict[int, tuple[int, Codes]] = {}
        for number, _, rank, output in _outputs(case, outcome, index):
            first, codes = seen.setdefault(number, (rank, output))
            found += _sightings(output != codes, number, index, rank, output, codes, (number, index, first))
    return found


# ---------------------------------------------------------------------------------------------------- bytes and endings


def unwritten(case: Case, outcome: Outcome) -> list[Sighting]:
    """Elements that hold what they held before, whatever that was: under every step's prefill; in place, the rank's own input
    where the sum is another.
    """
    first = case.steps[0]
    if first.in_place:
        return _unwritten_in_place(case, outcome, first)
    found: list[Sighting] = []
    for _, rank in receivers(case, first):
        rows = [outcome.outputs(index, rank) for index in range(len(case.steps))]
        if not all(rows):
            continue
        codes = [step.fmt.dtype.type(prefill_code(step.fmt, step.prefill)) for step in case.steps]
        size = min(len(row[0][1]) for row in rows)
        same = [row[0][1][:size] == code for row, code in zip(rows, codes, strict=True)]
        output = rows[0][0][1][:size]
        found += _sightings(np.logical_and.reduce(same), 0, 0, rank, output, int(codes[0]))
    return found


def _unwritten_in_place(case: Case, outcome: Outcome, step: Step) -> list[Sighting]:
    found: list[Sighting] = []
    for number, position, rank, output in _outputs(case, outcome):
        trial, block = block_of(step, case.rank_n, position)
        want = join(step.fmt, block.split, up_by_mode("ties_to_even", block.split))
        mask = legal.wrong(trial, block, output)[0] & (output == block.terms[position])
        found += _sightings(mask, number, 0, rank, output, want)
    return found


def bytes_outside(case: Case, outcome: Outcome) -> list[Sighting]:
    """Bytes outside the receive range that the call changed (index: in elements from the range's first)."""
    size = case.fmt.itemsize
    return [
        Sighting(number, step, rank, row.offset // size, row.found, row.expected)
        for (number, step, rank), seen in sorted(outcome.seen.items())
        for row in seen.outside[:TAKEN]
    ]


def send_changed(_case: Case, outcome: Outcome) -> list[Sighting]:
    """Ranks whose send range was changed by an out-of-place call."""
    places = sorted(outcome.seen.items())
    return [Sighting(number, step, rank, -1) for (number, step, rank), seen in places if not seen.send_after]


def ends(case: Case, outcome: Outcome, how: str, kinds: Sequence[str] = ()) -> list[Sighting]:
    """The call does not come back with a result: crash, hang or error. ``kinds``: the first words of the errors that count."""
    counts = outcome.ended == how and (not kinds or _first_word(outcome.words) in kinds)
    return [Sighting(0, 0, case.members[0], -1)] if counts else []


def _first_word(text: str) -> str:
    """The exception's name, of what the harness notes of an error."""
    return text.partition(":")[0]


def same_again(case: Case, outcome: Outcome, column: Sequence[int], observed: int, expected: int) -> list[Sighting]:
    """An element with these very inputs whose output is the recorded one. Inputs are not changed by shrinking then: what would
    be expected of others is not known here.
    """
    found: list[Sighting] = []
    step = case.steps[0]
    for number, position, rank, output in _outputs(case, outcome):
        columns = step.sent_to(position)
        if len(columns) != len(column):
            continue
        mine = (columns == np.array(column, step.fmt.dtype)[:, None]).all(axis=0) & (output == observed)
        found += _sightings(mine, number, 0, rank, output, expected)
    return found


# ------------------------------------------------------------------------------------------------------ kind -> relation

_PAIRED = Relation("steps_differ", steps_differ, repeats=2)
_BY_KIND: dict[str, Relation] = {
    "wrong_value": Relation("not_exact", not_exact),
    "stale_term": Relation("not_exact", not_exact, repeats=2),
    "missing_term": Relation("not_exact", partial(not_exact, term=-1)),
    "duplicate_term": Relation("not_exact", partial(not_exact, term=1)),
    "unwritten": Relation("unwritten", unwritten),
    "overrun": Relation("bytes_outside", bytes_outside),
    "send_modified": Relation("send_changed", send_changed),
    "foreign_read": _PAIRED,
    "prefill_leak": _PAIRED,
    "neighbour_dependence": _PAIRED,
    "shift_dependence": _PAIRED,
    "count_dependence": _PAIRED,
    "in_place_difference": _PAIRED,
    "position_dependence": Relation("columns_differ", columns_differ),
    "not_repeatable": Relation("repeats_differ", repeats_differ, repeats=REPEATS),
    "rank_disagreement": Relation("ranks_differ", ranks_differ),
    "crash": Relation("ends", partial(ends, how="crash"), arguments=(("how", "crash"),)),
    "hang": Relation("ends", partial(ends, how="hang"), arguments=(("how", "hang"),)),
}


def relation_for(finding: Finding, expect: Mapping[str, Any], findings: Sequence[Finding] = ()) -> Relation | None:
    """The relation that defines a finding's kind; None where no single case could show it (a time, a path, a tree).

    ``expect``: the run's [expect]; ``findings``: all of the run, for what one finding says of another.
    """
    if finding.kind in ("rounding_mode", "double_rounding", "not_faithful"):
        mode = _reference(finding, expect, findings)
        faithful = finding.kind != "not_faithful"
        arguments = (("mode", mode), ("faithful", faithful))
        return Relation("not_rounded", partial(not_rounded, mode=mode, faithful=faithful), arguments=arguments)
    if finding.kind == "backend_error":
        kinds = sorted({_first_word(str(text)) for text in finding.measure.get("messages", ())})
        return Relation("ends", partial(ends, how="error", kinds=kinds), arguments=(("how", "error"),))
    return _BY_KIND.get(finding.kind) or _from_rows(finding)


def _reference(finding: Finding, expect: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The mode that results are held against: nearest-even unless the config states another; of a subject that rounds twice,
    the mode that it has otherwise.
    """
    stated = expect.get("rounding_mode")
    if finding.kind == "rounding_mode" and stated in MODES:
        return str(stated)
    if finding.kind == "double_rounding":
        for one in findings:
            same = all(one.scope.get(axis) == finding.scope.get(axis) for axis in ("collective", "op", "format"))
            if one.kind == "rounding_mode" and one.arm == finding.arm and same and one.measure.get("mode") in MODES:
                return str(one.measure["mode"])
    return "ties_to_even"


def _from_rows(finding: Finding) -> Relation | None:
    """The same bits again, for a kind that has rows of elements but no rule of its own here."""
    for row in finding.evidence:
        if row.index is not None and row.inputs and _is_code(row.observed) and _is_code(row.expected):
            column = tuple(int(code, 16) for code in row.inputs)
            observed, expected = int(row.observed, 16), int(row.expected, 16)
            if observed != expected:
                told = {"column": column, "observed": observed, "expected": expected}
                look = partial(same_again, column=column, observed=observed, expected=expected)
                return Relation("same_again", look, arguments=tuple(told.items()))
    return None


def _is_code(text: str) -> bool:
    return text.startswith("0x") and all(digit in "0123456789abcdef" for digit in text[2:].lower()) and len(text) > 2
