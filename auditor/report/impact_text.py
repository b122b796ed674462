"""Does it matter? One paragraph for the person who decides, and the tables behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from auditor.impact.records import Accumulation, Impact, Interval, Measured, PerSum, Scenario
from auditor.report.tables import Table, show_table
from auditor.report.words import clean, number, percent


def paragraph(impact: Impact) -> str:
    """Rounding, bias, spread, accumulation and shift, with the data that they hold for; what follows from them says advice."""
    found, added = impact.chosen, impact.accumulation
    told = [_rounding(found), _bias(found), _spread(found), *_accumulated(added), _shifted(impact.shifts, added)]
    return " ".join(sentence for sentence in told if sentence)


def _rounding(found: PerSum) -> str:
    how = {"mixed": "by no single IEEE mode", "undetermined": "by a mode that the data leave open"}.get(
        found.mode, found.mode
    )
    name = f"{found.collective} {found.op} of {found.format} over {found.ranks} ranks"
    return f"On arm {found.arm}, {name} rounds {how} ({found.finding})."


def _bias(found: PerSum) -> str:
    basis = f"{number(found.inexact)} inexact sums of {number(found.elements)}, {found.data}"
    if found.mean_95 is None:
        return f"Too few sums were recorded for a bias with its interval ({basis})."
    if found.unbiased:
        return (
            f"No bias was seen: the mean error is {found.mean:+.2g} ulp, and none beyond {found.bound:.2g} ulp either way agrees "
            f"with the data (95 %; {basis})."
        )
    way = "nearer to zero" if found.mean < 0 else "farther from zero"
    size = "small" if found.relative < 0 else "large"
    return (
        f"An inexact result lies on average {abs(found.mean):.4f} ulp {way} than the exact sum (95 %: {_bounds(found.mean_95)}; "
        f"{basis}), so that results are {percent(abs(found.relative))} too {size} altogether."
    )


def _bounds(interval: Interval) -> str:
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}"


def _spread(found: PerSum) -> str:
    own = f"The error of an inexact sum has a standard deviation of {found.sd:.3f} ulp"
    return f"{own}; rounding to nearest, ties to even, has {found.nearest_sd:.3f} on the same sums."


def _accumulated(added: Accumulation) -> Iterator[str]:
    model = f"{added.independent_mean:+.3g} ± {added.independent_sd:.3g} ulp"
    if added.replayed_mean is None or added.replayed_sd is None or added.curve is None:
        yield (
            f"Over {number(added.steps)} steps independent errors of that size would add up to {model}; nothing was replayed, "
            f"because {added.why}."
        )
        return
    nearest = added.curve.nearest[-1]
    yield (
        f"Over {number(added.steps)} steps with new data in each, replayed with that rule, the errors add up to "
        f"{added.replayed_mean:+.3g} ± {added.replayed_sd:.3g} ulp (mean ± standard deviation over elements; independent errors "
        f"would: {model}; rounding to nearest: {nearest[0]:+.2g}, nine in ten within {nearest[1]:+.3g} to {nearest[2]:+.3g})."
    )
    for scenario in added.scenarios:
        yield _scenario(scenario)


def _scenario(one: Scenario) -> str:
    start = {
        "fresh": "Totals that are added up exactly elsewhere end",
        "running": "A running total that itself goes through the collective ends",
        "running, one sign": "Where all inputs have one sign, it ends",
    }[one.name]
    return f"{start} {_off(one.rule.bias)} (to nearest: {_off(one.nearest.bias)})."


def _off(bias: float) -> str:
    return "exact" if bias == 0 else f"{percent(abs(bias))} too {'small' if bias < 0 else 'large'}"


def _shifted(shifts: Sequence[Measured], added: Accumulation) -> str:
    """What another place in memory does to an answer: as measured, and in the replay."""
    moved = [one for one in shifts if one.value]
    if shifts and not moved:
        high = max(one.value_95[1] for one in shifts if one.value_95)
        names = ", ".join(one.name for one in shifts)
        return f"Placing a bucket {names} elements later changes nothing: fewer than {high:.2g} of the results (95 %)."
    first = added.scenarios[0] if added.scenarios else None
    replayed = ""
    if first is not None and first.shifted_totals:
        replayed = (
            f"in the replay a bucket {added.shift} elements later changes {percent(first.shifted_totals)} of the totals, by "
            f"{percent(first.shifted_spread)} of their size (root mean square)"
        )
    if not moved:
        return f"{replayed[:1].upper()}{replayed[1:]}." if replayed else ""
    most = max(moved, key=lambda one: one.value)
    bounds = (
        f" (95 %: {percent(most.value_95[0])} to {percent(most.value_95[1])}; {most.finding})" if most.value_95 else ""
    )
    said = f"Placing a bucket {most.name} elements later changes {percent(most.value)} of single results{bounds}"
    return f"{said}; {replayed}." if replayed else f"{said}."


def advice(impact: Impact) -> str:
    """What follows for a decision; never more than the figures carry."""
    found = impact.chosen
    moves = any(one.value for one in impact.shifts)
    if found.mean_95 is None:
        return "Record more elements before deciding anything."
    if found.unbiased and not moves:
        steady = " and nothing moves with the place of a bucket" if impact.shifts else ""
        return f"Nothing here speaks against it: no drift was seen{steady}."
    told = []
    if not found.unbiased:
        told.append("where many results of one direction add up, or a total is carried through the collective")
    if moves:
        told.append("where two layouts of the same buckets must give the same bits")
    single = "a single result is off by less than one ulp either way"
    return f"It matters {', and '.join(told)}; elsewhere {single}, and a wider format for totals takes most of it away."


# ------------------------------------------------------------------------------------------------------------------ tables


def tables(impact: Impact) -> Iterator[Table]:
    """What the paragraph rests on."""
    yield _findings(impact)
    if impact.accumulation.scenarios:
        yield _scenarios(impact.accumulation)
    if impact.shifts:
        yield _measured("Results that a shift changes, as measured", "elements later", impact.shifts, percent)
    if impact.other_data:
        yield _measured(
            "Bias on other data, as measured (ulp)", "data", impact.other_data, lambda value: f"{value:+.4f}"
        )


def _findings(impact: Impact) -> Table:
    head = (
        "finding",
        "arm",
        "format",
        "collective",
        "rounds",
        "bias, ulp",
        "95 %",
        "spread, ulp",
        "to nearest",
        "of the sums",
    )
    rows = tuple(_finding(one) for one in (impact.chosen, *impact.others))
    says = "Of inexact sums, in ulp of the sum; negative is toward zero. The first one is what the paragraph is about."
    return Table("Single sums, as recorded", says, head, rows, whole=frozenset({0, 2, 4}))


def _finding(one: PerSum) -> tuple[str, ...]:
    bounds = _bounds(one.mean_95) if one.mean_95 else "too few sums"
    relative = percent(abs(one.relative)) if one.relative else "0 %"
    return (
        one.finding,
        one.arm,
        one.format,
        one.collective,
        one.mode,
        f"{one.mean:+.4f}",
        bounds,
        f"{one.sd:.3f}",
        f"{one.nearest_sd:.3f}",
        f"{'-' if one.relative < 0 else '+'}{relative}",
    )


def _scenarios(added: Accumulation) -> Table:
    moved = f"shift {added.shift}: "
    head = ("totals", "bias", "to nearest", "spread", "to nearest", f"{moved}totals changed", f"{moved}by")
    rows = tuple(
        (
            one.says,
            _signed(one.rule.bias),
            _signed(one.nearest.bias),
            percent(one.rule.spread),
            percent(one.nearest.spread),
            percent(one.shifted_totals),
            percent(one.shifted_spread),
        )
        for one in added.scenarios
    )
    says = f"{number(added.steps)} steps replayed with: {added.rule}. Shares of the totals' size; spread is root mean square."
    return Table("Totals, replayed", says, head, rows)


def _signed(share: float) -> str:
    return "0 %" if share == 0 else f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _measured(title: str, what: str, some: Sequence[Measured], said: Callable[[float], str]) -> Table:
    rows = tuple(
        (
            one.name,
            said(one.value),
            f"{said(one.value_95[0])} to {said(one.value_95[1])}" if one.value_95 else "none",
            number(one.elements),
            one.finding,
        )
        for one in some
    )
    return Table(
        title, "With two-sided 95 % bounds.", (what, "value", "95 %", "elements", "finding"), rows, whole=frozenset({0})
    )


def show(impact: Impact, to: Console) -> None:
    """Print what follows for a decision, the paragraph, the tables, and what they do not show."""
    to.print(Text(clean(advice(impact)), "bold"))
    to.print()
    to.print(Text(clean(paragraph(impact))))
    for table in tables(impact):
        show_table(table, to)
    to.print()
    for line in impact.limits:
        to.print(Text(f"  limit: {clean(line)}"))
