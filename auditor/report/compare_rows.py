"""What a comparison says, as sentences and tables of text: the terminal, Markdown and the page show these same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from auditor.compare.records import Beside, Bits, Change, Comparison, Difference, Example, MeasureChange, OnlyIn, Pair
from auditor.numerics.formats import FORMATS
from auditor.report.tables import Table
from auditor.report.values import code_of, value_text
from auditor.report.words import listed, number, one_line, percent, plural

MEASURES = 5  # named in a row; the JSON file has all
EXAMPLES = 8
BITS = "The same trials, bit by bit"
LONGEST = 160  # characters of a fact
CHANGED = {"verdict": "verdict", "measure": "figures", "extent": "places", "new": "new", "gone": "gone"}
VERDICTS = {
    "worse": "Something is worse",
    "changed": "Something changed",
    "accepted": "What changed has been accepted",
    "same": "Nothing that was compared changed",
    "nothing in common": "The runs have nothing in common",
}


def headline(comparison: Comparison) -> str:
    """One sentence: the verdict and what it rests on."""
    pairs = list(comparison.pairs)
    changed = sum(one.changed for pair in pairs for one in pair.bits if one.claimed)
    trials = sum(pair.compared for pair in pairs)
    findings = [change for pair in pairs for change in pair.changes]
    parts = [
        f"{number(changed)} of {plural(trials, 'trial')} give other bits",
        f"{plural(len(findings), 'finding')} changed",
    ]
    if comparison.worse:
        parts.append(f"{number(len(comparison.worse))} for the worse")
    accepted = len(comparison.changes) - len(comparison.open)
    if accepted:
        parts.append(f"{number(accepted)} of all that accepted")
    return f"{VERDICTS[comparison.verdict]}: {', '.join(parts)}."


def policy_line(comparison: Comparison) -> str:
    """Which changes count and what the exit code is."""
    code = comparison.exit_code
    why = {1: f"--fail-on {comparison.policy}", 5: "nothing in common"}.get(code, "")
    if not comparison.policy:
        why = why or "without --fail-on no change counts"
    return f"exit code {code}" + (f" ({why})" if why else "")


def names_of(beside: Beside, pair: Pair, base: str) -> tuple[str, str]:
    """What the two are called in a table: as little of ``RUN:ARM`` as tells them apart."""
    labels = base, beside.other.label
    last = tuple(one_line(PurePath(label).name or label) for label in labels)
    x, y = last if last[0] != last[1] or labels[0] == labels[1] else labels
    return (x, y) if pair.base_arm == pair.other_arm and x != y else (f"{x}:{pair.base_arm}", f"{y}:{pair.other_arm}")


def title(beside: Beside, pair: Pair, base: str) -> str:
    """``runs/mpich:mpi and runs/intel:mpi``: the arms that stand side by side, the base first."""
    return f"{base}:{pair.base_arm} and {beside.other.label}:{pair.other_arm}"


def tables(pair: Pair, names: tuple[str, str]) -> Iterator[Table]:
    """Everything of one pair, in the order in which it should be read. ``names``: those of :func:`names_of`."""
    yield _around(pair.environment, names)
    if pair.plan or pair.only_base.total or pair.only_other.total:
        yield _plan(pair, names)
    yield _bits(pair)
    if examples := [(one, example) for one in pair.bits if one.changed for example in one.examples]:
        yield _examples(examples, names)
    yield _findings(pair, names)


# ------------------------------------------------------------------------------------------------------- around and plan


def _around(environment: Sequence[Difference], names: tuple[str, str]) -> Table:
    rows = tuple((one.group, one_line(one.name), _short(one.base), _short(one.other)) for one in environment)
    says = "The likely cause of whatever differs below, the likeliest first."
    empty = "Nothing that was recorded differs: library, driver, GPUs, topology, variables and settings are the same."
    return Table("What differs around them", says, ("what", "name", *names), rows, empty, frozenset({0, 1}))


def _plan(pair: Pair, names: tuple[str, str]) -> Table:
    """What only one plan has; trials are told apart by content, so only equal ones can be compared."""
    rows = [
        ("trials in both", number(pair.common), number(pair.common)),
        ("trials in one alone", _alone(pair.only_base), _alone(pair.only_other)),
    ]
    rows += [(f"{one.name}, in one alone", _short(one.base), _short(one.other)) for one in pair.plan]
    says = "Trials are the same where call, data and place are; the others have nothing to be compared with."
    return Table("What only one of them ran", says, ("", *names), tuple(rows), whole=frozenset({0}))


def _short(text: str) -> str:
    """One line that a table has room for; the JSON file has the whole."""
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[:LONGEST].rstrip()} … ({len(line):,} characters)"


def _alone(one: OnlyIn) -> str:
    if not one.total:
        return "none"
    return f"{number(one.total)} ({listed(f'{probe} {n}' for probe, n in one.by_probe.items())})"


# ------------------------------------------------------------------------------------------------------------------- bits


def _bits(pair: Pair) -> Table:
    head = (
        "collective",
        "op",
        "format",
        "trials equal",
        "other bits",
        "elements that differ",
        "ulp apart",
        "ranks",
        "where",
    )
    rows = tuple((one.collective, one.op, one.format, *_bits_row(one)) for one in pair.bits)
    says = "Outputs of the same trials, compared as bits; equal outputs are counted once in the elements."
    return Table(BITS, says, head, rows, "No trial is in both.", frozenset(range(3)))


def _bits_row(one: Bits) -> tuple[str, ...]:
    silent = sum(one.silent.values())
    changed = (
        number(one.changed)
        + ("" if one.claimed else " (chance not excluded)")
        + (" (accepted)" if one.accepted else "")
    )
    share = one.elements_changed / one.elements if one.elements else 0.0
    differ = f"{number(one.elements_changed)} of {number(one.elements)} ({percent(share)})" if one.changed else "none"
    return (
        number(one.equal) + (f" ({number(silent)} not compared)" if silent else ""),
        changed,
        differ,
        _apart(one.ulps),
        listed(one.ranks, 8),
        _place(one),
    )


def _apart(ulps: Mapping[str, Any]) -> str:
    """``1: 102,693; 2: 15,512; more: 11,300, at most 15,616``."""
    bins = dict(ulps.get("histogram", {}))
    parts = [f"{name}: {number(bins.pop(name))}" for name in ("0", "1", "2") if name in bins]
    if bins:
        parts.append(f"more: {number(sum(bins.values()))}, at most {number(ulps['max'])}")
    if ulps.get("nan"):
        parts.append(f"NaN: {number(ulps['nan'])}")
    return "; ".join(parts)


def _place(one: Bits) -> str:
    if one.index_first is None:
        return ""
    span = f"index {number(one.index_first)}"
    if one.index_last != one.index_first:
        span = f"indices {number(one.index_first)} to {number(one.index_last)}"
    return f"{span}; count {listed(map(number, one.counts), 6)}"


def bits_notes(pair: Pair, names: tuple[str, str]) -> Iterator[str]:
    """What the table leaves open, and whose the correctly rounded results are where bits differ."""
    for one in pair.bits:
        cell = f"{one.collective} {one.op} of {one.format}"
        if looked := one.rounded.get("looked", 0):
            base, other = one.rounded["base"], one.rounded["other"]
            yield (
                f"{cell}: of {number(looked)} elements that differ and were looked at, {number(base)} are the exact sum rounded "
                f"once in {names[0]}, {number(other)} in {names[1]}, {number(looked - base - other)} in neither."
            )
        for reason, n in one.silent.items():
            yield f"{cell}: nothing is claimed of {plural(n, 'trial')}: {one_line(reason)}."
        if one.partial:
            yield f"{cell}: {plural(one.partial, 'trial')} compared in part: not every rank and input was recorded in both."
        if not one.claimed:
            yield (
                f"{cell}: {plural(one.changed, 'trial')} differ, but calls also flip between repeats, which explains up to "
                f"{one.by_chance:.2g}: no change is claimed."
            )


def _examples(some: Sequence[tuple[Bits, Example]], names: tuple[str, str]) -> Table:
    head = ("call", "trial", "rank", "index", "inputs, by rank", *names, "exact sum, rounded once", "ulp apart")
    first = [one for one in some if one[1] is one[0].examples[0]]
    rest = [one for one in some if one[1] is not one[0].examples[0]]
    rows = tuple(_example(bits, one) for bits, one in [*first, *rest][:EXAMPLES])
    says = f"The smallest trials that differ, in hex with values; {len(rows)} of {len(some)} kept."
    return Table("First elements that differ", says, head, rows, whole=frozenset({1}))


def _example(bits: Bits, one: Example) -> tuple[str, ...]:
    fmt = FORMATS[bits.format]

    def said(text: str) -> str:
        code = code_of(text, fmt)
        return text if code is None else f"{text} = {value_text(fmt, code)}"

    shown = ", ".join(one.inputs[:8]) + (f", ... ({len(one.inputs)} in all)" if len(one.inputs) > 8 else "")
    return (
        f"{bits.collective} {bits.op} {bits.format}, count {number(one.count)}, shift {one.shift}",
        one.trial,
        str(one.rank),
        number(one.index),
        shown,
        said(one.base),
        said(one.other),
        said(one.nearest) if one.nearest else "not made",
        "NaN" if one.ulps is None else number(one.ulps),
    )


# --------------------------------------------------------------------------------------------------------------- findings


def _findings(pair: Pair, names: tuple[str, str]) -> Table:
    head = ("change", "finding", "of", *names, "what changed")
    rows = tuple(_change(one) for one in pair.changes)
    says = f"A figure has changed where its 95 % intervals lie apart. {plural(pair.findings_alike, 'finding')} did not change."
    empty = "No finding changed."
    return Table("Findings that changed", says, head, rows, empty, frozenset({0, 1}))


def _change(one: Change) -> tuple[str, ...]:
    kind = f"worse: {CHANGED[one.what]}" if one.worse else CHANGED[one.what]
    return (
        f"{kind}{' (accepted)' if one.accepted else ''}",
        one_line(one.kind),
        cell_words(one),
        f"{one.base_verdict} {one.base_id}" if one.base_verdict else "no such finding",
        f"{one.other_verdict} {one.other_id}" if one.other_verdict else "no such finding",
        "; ".join(change_words(one)),
    )


def cell_words(one: Change) -> str:
    """``all_reduce sum bfloat16``: what the finding speaks of."""
    return " ".join(listed(values, 6) for values in one.cell.values() if values)


def change_words(one: Change, cap: int = MEASURES) -> list[str]:
    """What changed about a finding, in words."""
    told = [measure_words(measure) for measure in one.measures[:cap]]
    if len(one.measures) > cap:
        told.append(f"and {len(one.measures) - cap} more figures")
    told += [f"{place.name}: {place.base} → {place.other}" for place in one.extent]
    if not told and one.what in ("new", "gone"):
        told.append(one_line(one.other_claim or one.base_claim))
    if one.limits:
        told.append(one.limits.rstrip("."))
    if one.accepted:
        told.append(f"accepted by {one.accepted}")
    return told


def measure_words(one: MeasureChange) -> str:
    """``mode: ties_to_away → ties_to_even``; with intervals where there are any."""
    return f"{one_line(one.name)}: {_figure(one.base, one.base_95)} → {_figure(one.other, one.other_95)}"


def _figure(value: Any, interval: tuple[float, float] | None) -> str:
    """A figure with its interval; an interval that stands for itself alone is said once."""
    if interval is None:
        return one_line(listed(map(number, value), 8) or "none" if isinstance(value, (list, tuple)) else number(value))
    bounds = f"{interval[0]:.6g} to {interval[1]:.6g}"
    if not isinstance(value, (int, float)):
        return bounds
    share = isinstance(value, int) and 0 <= interval[0] <= interval[1] <= 1
    return f"{number(value)} ({'share ' if share else ''}{bounds})"


def notes(beside: Beside) -> list[str]:
    """What could not be compared, and trouble with the records."""
    told = [*beside.notes, *(note for pair in beside.pairs for note in pair.notes)]
    return [
        *told,
        *(f"Trouble with the record of {beside.other.label}: {problem}" for problem in beside.other.problems),
    ]
