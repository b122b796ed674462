"""The published histogram study that this command follows, and goes beyond: what of its text can be had again.

Kernelwitness (Computelab.co), a histogram of 4,096 bins in binary32. Its text gives counts and a few conditions, and names a
file with the rest that is not at hand. So its numbers can be compared with, not reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from auditor.calibrate.planted import Law, bounds

BINS, ORDERS, SEED = 4096, 3, 7
WORST, MARGIN = 108, 4
ONE_PERCENT, MEASURED = 1091, 4
WEIGHTS = 16384
SEEN = (80, 130)  # steps that running binary32 sums of 16,384 positive weights give, over many seeds and orders
OPEN = (
    "the random generator",
    "the weights and their number a bin",
    "how samples are binned",
    "the three orders",
    "how an ulp is counted",
    "how wrong outputs were planted",
    "which order is the output that is spoilt",
    "whether 1 % is of the reference",
    "the device",
)
Row = dict[str, Any]


def compared(content: Mapping[str, Any], law: Law) -> dict[str, Any] | None:
    """The comparison, for a histogram of the study's size; None for any other workload."""
    conditions = content["conditions"]
    if content["workload"] != "histogram" or conditions["size"]["bins"] != BINS or len(conditions["orders"]) != ORDERS:
        return None
    return {
        "source": "Kernelwitness histogram study (Computelab.co)",
        "claims": [_fixed(conditions), *_counts(content, law)],
        "not_reproducible": (
            f"The text leaves open {', '.join(OPEN)}. With {len(OPEN)} unknowns its counts cannot be reproduced bit by bit; the "
            "file that holds them, evidence-example.json, is named in the text and was not at hand. Here they are chosen and "
            "recorded: see the conditions."
        ),
        "one_model": (
            "Both of its counts follow from one assumption: independent relative errors, normal with standard deviation 3 %. "
            f"Then 1 % accepts {_within_percent(Law('normal', 0.03)) * BINS:,.0f} of {BINS:,} on average, and a band accepts in "
            "proportion to its width. The count of 4 says how dense the planted errors lie near zero, not how good the "
            "histogram is."
        ),
    }


def _within_percent(law: Law) -> float:
    """Share of the law's errors that are at most 1 %."""
    if law.kind == "uniform":
        return min(1.0, 0.01 / law.width)
    return 2 * NormalDist(0.0, law.width).cdf(0.01) - 1


def _fixed(conditions: Mapping[str, Any]) -> Row:
    same = conditions["seed"] == SEED and conditions["reference"] == "float64" and conditions["format"] == "binary32"
    return {
        "text": f"{BINS:,} bins, float32, float64 reference, three orders, seed {SEED}",
        "here": "taken as stated" if same else "another seed, reference or format was asked for",
        "agrees": same,
    }


def _counts(content: Mapping[str, Any], law: Law) -> list[Row]:
    steps, weights = content["bound"]["worst"]["ulp_steps"], content["conditions"]["size"]["weights"]
    accepted = content["law"]["accepted"]
    percent, measured = accepted["one_percent"], accepted["measured"]
    expected = _within_percent(law)
    margin = content["bound"]["margin"]
    return [
        {
            "text": f"worst correct order {WORST} ULP",
            "here": f"{steps} steps with {weights:,} weights a bin; such sums give {SEEN[0]} to {SEEN[1]}",
            "agrees": SEEN[0] <= steps <= SEEN[1],
        },
        {
            "text": f"bound {MARGIN} times the worst, {MARGIN * WORST} ULP",
            "here": f"{margin:g} times the worst, {content['bound']['ulp_steps']} steps",
            "agrees": margin == MARGIN,
        },
        {
            "text": f"1 % accepts {ONE_PERCENT:,} of {BINS:,} wrong bins",
            "here": f"{_share(percent)}; the planted law gives {expected:.3g}",
            "agrees": _overlap(percent, ONE_PERCENT),
        },
        {
            "text": f"the measured rule accepts {MEASURED} of {BINS:,}",
            "here": _share(measured),
            "agrees": _overlap(measured, MEASURED),
        },
    ]


def _share(found: Mapping[str, Any]) -> str:
    return f"{found['count']:,} of {found['of']:,} (95 %: {found['low'] * 100:.3g} to {found['high'] * 100:.3g} %)"


def _overlap(found: Mapping[str, Any], count: int) -> bool:
    """Whether the study's share lies within the interval found here, or that of the study holds what was found."""
    low, high = bounds(count, BINS)
    return bool(low <= found["count"] / found["of"] <= high or found["low"] <= count / BINS <= found["high"])
