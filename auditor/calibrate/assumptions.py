"""What a measured bound rests on, and which of it holds: stated in the record, not left to the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from auditor.calibrate.measured import Measured, Models
from auditor.calibrate.planted import Law

CANCELS = 4.0  # sum of magnitudes over the sum: past it two leading bits are lost, and an ulp of the result says little
UNCERTAIN = 0.01  # of an ulp, or of an absolute bound, by which a reference may itself be off
Assumption = dict[str, Any]


def assumptions(
    measured: Measured, legal: Models, rows: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]
) -> list[Assumption]:
    """Name, whether it holds (None: cannot be told), and what that means here."""
    return [
        *([] if measured.absolute is not None else [_coverage(measured, rows, held_out)]),
        _cancellation(measured),
        _reference(measured),
        _repeats(measured),
        *([] if measured.absolute is not None else [_orders_differ(measured, rows)]),
        _finite_set(legal),
    ]


def _said(name: str, holds: bool | None, says: str) -> Assumption:
    return {"name": name, "holds": holds, "says": says}


def _coverage(
    measured: Measured, rows: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]
) -> Assumption:
    """Of k + 1 exchangeable orders the last is the farthest with a probability of 1 / (k + 1) at most; no margin enters that."""
    name, k = "coverage of margin x worst", len(rows)
    if measured.trees == 1:
        return _said(name, True, "Two terms have one order, so that the calibration has seen every one.")
    says = (
        f"The bound is a margin times the largest of {k} observed maxima, an extreme-value statistic. If orders are "
        f"exchangeable, one more exceeds the largest of {k} with a probability of up to {1 / (k + 1):.3g}, averaged over what "
        f"the {k} may have been; what the margin adds to that rests on the tail of a distribution that nobody knows."
    )
    for group in held_out:
        beyond, over = group["beyond_calibrated_worst"], group["rejected_orders"]["measured"]
        says += (
            f" Held out, {group['group']}: {beyond['count']:,} of {group['orders']:,} orders lie beyond that largest one, and "
            f"{over['count']:,} beyond the bound (95 %: {over['low']:.3g} to {over['high']:.3g})."
        )
    return _said(name, False, says)


def _cancellation(measured: Measured) -> Assumption:
    name = "nothing cancels"
    condition = measured.reference.condition
    if condition is None:
        return _said(name, None, "The terms are not known here, so it is not known how far they cancel.")
    worst, middle = float(np.max(condition)), float(np.median(condition))
    told = (
        f"The sum of magnitudes is {_figure(worst)} times the result at worst, {_figure(middle)} times in the middle."
    )
    if worst <= CANCELS:
        return _said(name, True, f"{told} An ulp of the result measures the additions.")
    if measured.absolute is not None:
        words = "The absolute bound does not scale with the result, so it is not concerned; every rule that does is."
        return _said(name, False, f"{told} {words}")
    return _said(
        name,
        False,
        f"{told} Where terms of both signs cancel, the distance in ulp of a small result grows without limit and says nothing "
        "of the additions: the bound in steps is no more than an alarm that something changed. The a-priori bound, which scales "
        "with the sum of magnitudes, stands beside it and holds for every order.",
    )


def _figure(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "infinitely many"


def _reference(measured: Measured) -> Assumption:
    name, reference = "the reference is better than what is measured", measured.reference
    if reference.kind == "exact":
        return _said(name, True, "The reference is the exact sum, made in integers and rounded once.")
    off = reference.uncertainty_ulp()
    if np.isnan(off):
        return _said(
            name,
            None,
            f"The reference is what {reference.kind} gives in binary64; how far it is off is not known here.",
        )
    if measured.absolute is not None:
        far = off * float(np.max(reference.ulp, initial=0.0))
        says = f"A binary64 product: off by {far:.2g} at the very worst, {far / measured.absolute:.2g} of the bound."
        return _said(name, far <= UNCERTAIN * measured.absolute, says)
    says = f"A binary64 sum in one stated order: off by {off:.2g} ulp of {reference.fmt.name} at the very worst."
    return _said(name, off <= UNCERTAIN, says)


def _repeats(measured: Measured) -> Assumption:
    name = "an order gives the same bits again"
    if measured.repeats is None:
        return _said(name, None, "No order was run twice.")
    if measured.repeats:
        return _said(name, True, "The first order was run twice, bit by bit alike.")
    return _said(
        name,
        False,
        "The first order gave other bits when it was run again: what is measured is a sample, not an order.",
    )


def _orders_differ(measured: Measured, rows: Sequence[Mapping[str, Any]]) -> Assumption:
    name, different = "the orders really differ", len({row["digest"] for row in rows})
    if measured.trees == 1:
        return _said(name, None, "Two terms have one order: a + b is b + a, bit by bit.")
    if different > 1:
        return _said(name, True, f"{len(rows)} orders gave {different} different outputs.")
    says = f"All of {len(rows)} orders gave the same bits: their distance says nothing of other orders."
    return _said(name, False, says)


def _finite_set(legal: Models) -> Assumption:
    known = legal.codes is not None
    says = f"{legal.says}. " + (
        "Membership in it is preferred to any distance: it accepts every legal output and nothing else."
        if known
        else "So no set of legal outputs stands beside the bound."
    )
    return _said("the legal outputs can be listed", known, says)


def planting(law: Law, measured: Measured, steps: int | None, count: int, of: int) -> str:
    """What the share that a narrow band accepts really measures."""
    if steps is None:
        return ""
    reference = measured.reference
    with np.errstate(divide="ignore", invalid="ignore"):
        half = (steps + 0.5) * reference.ulp / np.abs(reference.value)
    expected = float(np.mean(np.minimum(2 * half * law.density_at_zero(), 1.0))) * of
    return (
        f"The share that a narrow band accepts is the density of the planted errors at zero times its width: that predicts "
        f"{expected:.3g} of {of:,}, and {count:,} were accepted. It measures the law that was planted, not the workload."
    )
