"""Does it matter? From a recorded run's measured rounding: bias and spread of a sum, what they add up to, what a shift changes.

Pure over the record. Where the run knows the rule, the accumulation is done for real, step by step, with that rule and exact
sums; where it does not, only what independent errors of the measured size would add up to is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

from auditor import analysis
from auditor.errors import ConfigError
from auditor.impact.per_sum import per_sum
from auditor.impact.records import SCHEMA, Accumulation, Impact, Measured, PerSum
from auditor.impact.replay import Replay, fresh, running
from auditor.impact.rules import rule_of
from auditor.model import Family, Finding
from auditor.numerics.formats import FORMATS
from auditor.probes.statistics import clopper_pearson
from auditor.store import RunReader

__all__ = ["SCHEMA", "Impact", "PerSum", "assess"]

STEPS = 1000
ROUNDING, NEIGHBOURS, SHIFT = "rounding_mode", "neighbour_dependence", "shift_dependence"


def assess(run: Path, finding: str = "", steps: int = STEPS) -> Impact | None:
    """``finding``: the id of a rounding_mode, neighbour_dependence or shift_dependence finding; left out, the rounding whose bias
    is the greatest beside the sums themselves. None where the run has no rounding_mode finding with an inexact sum.

    Raises EvidenceError on a record that cannot be read, ConfigError on a finding that is not there or of another kind.
    """
    with RunReader(run) as reader:
        rows = analysis.findings_of(analysis.read_findings(reader.directory), reader.directory)
        asked = _asked(rows, finding, run) if finding else None
        told = [
            (one, found)
            for one in rows
            if one.kind == ROUNDING and "trial" in one.measure
            if (found := per_sum(reader.arm(one.arm), one)) is not None
        ]
        run_id = reader.run_id
    if not told:
        return None
    chosen = next((pair for pair in told if asked is not None and pair[0].id == asked.id), None)
    if chosen is None and asked is not None:
        raise ConfigError(f"{run}: finding {finding} has no inexact sum, so that there is nothing to say of it")
    chosen = chosen or max(told, key=lambda pair: _weight(pair[1]))
    one, found = chosen
    beside = {kind: _beside(rows, one, kind) for kind in (NEIGHBOURS, SHIFT)}
    shifts = _shifts(beside[SHIFT])
    accumulation = _accumulate(one, found, beside[NEIGHBOURS], shifts, steps)
    return Impact(
        run=str(run),
        run_id=run_id,
        chosen=found,
        others=tuple(other for _, other in told if other is not found),
        accumulation=accumulation,
        other_data=_other_data(beside[NEIGHBOURS]),
        shifts=shifts,
        limits=tuple(_limits(found, accumulation, beside[SHIFT])),
    )


def _asked(rows: Sequence[Finding], finding: str, run: Path) -> Finding:
    """The rounding_mode finding that a finding leads to."""
    named = next((one for one in rows if one.id == finding), None)
    useful = [one.id for one in rows if one.kind in (ROUNDING, NEIGHBOURS, SHIFT)]
    hint = f"those that impact can use: {', '.join(useful[:12]) or 'none'}"
    if named is None:
        raise ConfigError(f"{run}: there is no finding {finding}; {hint}")
    if named.kind not in (ROUNDING, NEIGHBOURS, SHIFT):
        raise ConfigError(f"{run}: finding {finding} is of kind {named.kind}; {hint}")
    partner = named if named.kind == ROUNDING else _beside(rows, named, ROUNDING)
    if partner is None:
        raise ConfigError(f"{run}: beside finding {finding} stands no {ROUNDING} finding of its arm and format; {hint}")
    return partner


def _weight(found: PerSum) -> tuple[bool, float]:
    """What decides which finding the paragraph is about: a bias that was seen, then its size beside the sums."""
    return not found.unbiased, abs(found.relative)


def _beside(rows: Sequence[Finding], one: Finding, kind: str) -> Finding | None:
    """The finding of a kind on the same arm, format and op; of the same collective where there is one."""

    def same(other: Finding, axis: str) -> bool:
        return bool(set(_many(other.scope.get(axis))) & set(_many(one.scope.get(axis))))

    some = [row for row in rows if row.kind == kind and row.arm == one.arm and same(row, "format") and same(row, "op")]
    return next((row for row in some if same(row, "collective")), next(iter(some), None))


def _many(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


# ------------------------------------------------------------------------------------------------- what the run says besides


def _shifts(one: Finding | None) -> tuple[Measured, ...]:
    """By shift in elements: the share of results that change, with exact bounds."""
    table = one.measure.get("by_shift", {}) if one else {}
    return tuple(
        Measured(
            finding=one.id,
            name=name,
            value=row["changed"] / row["compared"],
            value_95=clopper_pearson(row["changed"], row["compared"]),
            elements=row["compared"],
        )
        for name, row in table.items()
        if one and row.get("compared")
    )


def _other_data(one: Finding | None) -> tuple[Measured, ...]:
    """Mean signed errors that the neighbours probe measured on other kinds of data."""
    names = {
        "wide": "random sums (family wide)",
        "smooth": "slowly varying sums",
        "constant": "equal sums, all together",
    }
    table = one.measure.get("bias", {}) if one else {}
    rows = [(names[name], table[name]) for name in names if name in table]
    tops = table.get("constant", {}).get("by_top_bits", {})
    rows += [(f"equal sums, top mantissa bits {bits}", row) for bits, row in tops.items()]
    return tuple(
        Measured(
            finding=one.id,
            name=name,
            value=float(row["mean_signed_error_ulp"]),
            value_95=_interval(row.get("mean_signed_error_95")),
            elements=int(row["elements"]),
        )
        for name, row in rows
        if one and row.get("elements") and row.get("mean_signed_error_ulp") is not None
    )


def _interval(value: Any) -> tuple[float, float] | None:
    return (float(value[0]), float(value[1])) if isinstance(value, (list, tuple)) and len(value) == 2 else None


# ------------------------------------------------------------------------------------------------------------ accumulation


def _accumulate(
    one: Finding, found: PerSum, neighbours: Finding | None, shifts: Sequence[Measured], steps: int
) -> Accumulation:
    fmt = FORMATS[found.format]
    measured: Mapping[str, Any] = neighbours.measure if neighbours else {}
    rule, why = rule_of(fmt, one.measure, measured)
    alone = Accumulation(
        steps=steps,
        independent_mean=steps * found.result_mean,
        independent_sd=sqrt(steps) * found.result_sd,
        rule="",
        why=why,
    )
    if rule is None:
        return alone
    shift = _shift(shifts, rule.group)
    replay = Replay(fmt, rule, Family.parse(found.family), int(one.scope["seed"]), steps, shift)
    first, curve, mean, sd = fresh(replay)
    more = [running(replay, one_sign=one_sign) for one_sign in (False, True)]
    return replace(
        alone,
        rule=rule.name,
        replayed_mean=mean,
        replayed_sd=sd,
        shift=shift,
        scenarios=(first, *(scenario for scenario in more if scenario is not None)),
        curve=curve,
    )


def _shift(shifts: Sequence[Measured], group: int) -> int:
    """The shift to replay: of those measured, the one that changes most; else half a group, or one element."""
    plain = [one for one in shifts if one.name.isdecimal() and int(one.name)]
    most = max(plain, key=lambda one: one.value, default=None)
    return int(most.name) if most is not None and most.value else max(1, group // 2)


def _limits(found: PerSum, accumulation: Accumulation, shift: Finding | None) -> list[str]:
    """What the figures do not show."""
    said = [f"All figures of single sums hold for one kind of data: {found.data}. Other data have another bias."]
    if found.ranks > 2:
        said.append(
            f"Two of {found.ranks} ranks send data, so that one addition decides a result: a sum over more ranks may be rounded "
            "at every hop, and then has more of it."
        )
    else:
        said.append(
            "Two ranks: one addition decides a result. More ranks may round at every hop, and then have more of it."
        )
    if accumulation.scenarios:
        said.append(f"The steps were replayed on this machine with the rule as the run shows it: {accumulation.why}.")
        if len(accumulation.scenarios) < 3:
            said.append("Running totals leave the range of the format within these steps, so that they are not told.")
    else:
        said.append(
            f"No step was replayed: {accumulation.why}. Independent errors are an assumption here, not a measurement."
        )
    said.append("Where the same data come back in every step, so does the same error: then nothing averages out.")
    if shift is None:
        said.append(
            "The run did not ask whether a shift changes results: there is no shift_dependence finding beside this one."
        )
    return said
