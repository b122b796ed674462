"""What a rounding does to equal sums, to slowly varying and to random ones, and to sums among zeros (NUMERICS §7.1).

A rule that is nearly unbiased on random data need not be on a gradient: where neighbours are alike, what they lend is alike too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from auditor.inputs.contexts import RUN
from auditor.numerics.rounding import MODES, up_by_mode
from auditor.probes.neighbours.formula import Mask, Seen
from auditor.probes.neighbours.ladder import Reading, inexact_pairs
from auditor.probes.statistics import clopper_pearson, mean_interval

# Elements that share what decides them are one draw: runs of equal sums, stretches of slowly varying ones, groups of any size.
CLUSTERS = {"constant": RUN, "smooth": 1024, "wide": 64, "padded": 64}


def experiments(first: Mapping[str, Reading]) -> dict[str, Any]:
    """Measure: ``bias``, mean signed errors by data, with ties_to_even's on the same sums for comparison; and of equal sums
    by their top bits.
    """
    names = [name for name in ("constant", "smooth", "wide") if name in first]
    rows: dict[str, Any] = {"bias": {name: signed_error(first[name].seen, CLUSTERS[name]) for name in names}}
    if "constant" in first:
        rows["bias_of_equal_sums_by_top_bits"] = by_top_bits(first["constant"].seen)
    return rows


def signed_error(seen: Seen, cluster: int, mask: Mask | None = None) -> dict[str, Any]:
    """Mean of (output - sum) in magnitude, in ulp, over inexact elements; ``cluster`` elements count as one draw."""
    use = seen.inexact if mask is None else seen.inexact & mask
    n = int(use.sum())
    if not n:
        return {"elements": 0, "mean_signed_error_ulp": None}
    rem = seen.split.rem.astype(np.float64) * 2.0**-64
    error = np.where(use, seen.up - rem, 0.0)
    nearest = np.where(use, up_by_mode("ties_to_even", seen.split) - rem, 0.0)
    starts = np.arange(0, len(error), cluster)
    found = mean_interval(np.add.reduceat(error, starts), np.add.reduceat(use.astype(np.float64), starts))
    return {
        "elements": n,
        "mean_signed_error_ulp": float(error.sum()) / n,
        "mean_signed_error_95": None if found is None else list(found),
        "ties_to_even_ulp": float(nearest.sum()) / n,
    }


def by_top_bits(seen: Seen) -> dict[str, Any]:
    """Of runs of equal sums: the mean signed error for each of the two top mantissa bits; rem averages 1/2 in each."""
    top = (seen.field >> np.uint64(62)).astype(np.int64)
    return {f"{value:02b}": signed_error(seen, RUN, top == value) for value in range(4) if (top == value).any()}


def padding(first: Mapping[str, Reading], again: list[tuple[Reading, Reading]]) -> dict[str, Any]:
    """Sums whose neighbours are all zero, as a library that pads makes them: do they repeat, which modes fit, their bias."""
    if "padded" not in first:
        return {}
    base = first["padded"]
    pairs = [inexact_pairs(a, b) for a, b in again if a is base]
    changed, kept = sum(k for k, _ in pairs), sum(n for _, n in pairs)
    modes = [mode for mode in MODES if (up_by_mode(mode, base.seen.split) == base.seen.up).all()]
    return {
        **signed_error(base.seen, CLUSTERS["padded"]),
        "changed_between_repeats": changed,
        "repeated": kept,
        "changed_between_repeats_95": list(clopper_pearson(changed, kept)),
        "modes": modes,
    }
