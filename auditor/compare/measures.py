"""Two measures of one kind of finding side by side: which numbers and words changed by more than their uncertainty.

A figure that carries a 95 % interval has changed only where the intervals lie apart (for two intervals of equal width that is a
difference of 2.8 standard errors: such a change comes by chance once in 180 times, not once in 20). A bare count has changed
where k1 of k1 + k2 is out of line with one half (exact binomial test, 0.001). Words, flags and parameters have changed where
they are not the same. Below the first level only intervals, words and flags are looked at: finer counts belong to the figures
above them. A real number without an interval is never said to have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from auditor.compare.records import MeasureChange
from auditor.probes.statistics import binomial_two_sided

ALPHA = 1e-3
ABOUT_DATA = frozenset(  # what was looked at, not what was found
    (
        *("trial", "rank", "repeat", "repeats", "narrowed_by", "coverage", "dose_response", "by_point", "messages"),
        *(
            "observations",
            "trials",
            "planned",
            "not_reached",
            "cut_short",
            "evidence_total",
            "resolution",
            "compared_with",
        ),
        *("offsets_tried", "reference_shift", "elements_compared", "compared", "pairs", "resolved_bits", "told_apart"),
        "paths",  # told beside the settings
    )
)
COUNTS = frozenset(
    (
        *(
            "elements",
            "inexact",
            "nearest",
            "toward_zero",
            "away",
            "outside",
            "ties",
            "exact_wrong",
            "left_out",
            "unstable",
        ),
        *(
            "changed_pairs",
            "elements_changed",
            "changed",
            "told_apart",
            "sums",
            "explained",
            "calls",
            "agree",
            "orders",
        ),
    )
)
COUNT_ENDINGS = ("_total", "_elements", "_pairs", "_trials", "_calls", "_sums", "_count")
INTERVALS = ("_bounds_95", "_95")


def changes(base: Mapping[str, Any], other: Mapping[str, Any], *, same_data: bool) -> list[MeasureChange]:
    """What changed, words first. ``same_data``: both were measured on the same trials, so that bare counts may be compared."""
    return sorted(_level(base, other, "", same_data), key=lambda one: not isinstance(one.base, str))


def _level(base: Mapping[str, Any], other: Mapping[str, Any], prefix: str, same_data: bool) -> Iterator[MeasureChange]:
    bounded: set[str] = set()
    for key in base:
        stem = _stem(key)
        x, y = interval(base[key]), interval(other.get(key))
        if stem and x and y:
            named = next((name for name in (stem, f"{stem}_ulp") if name in base and name in other), key)
            bounded.add(named)
            if x[1] < y[0] or y[1] < x[0]:
                yield _apart(prefix, named, base[named], other[named], (x, y))
    for key, value in base.items():
        if key not in other or key in bounded or key in ABOUT_DATA or _stem(key):
            continue
        if isinstance(value, Mapping) and isinstance(other[key], Mapping):
            yield from _level(value, other[key], f"{prefix}{key}.", same_data)
        elif why := _why(key, value, other[key], same_data, top=not prefix):
            yield MeasureChange(name=prefix + key, base=value, other=other[key], why=why)


def _apart(
    prefix: str, name: str, base: Any, other: Any, bounds: tuple[tuple[float, float], tuple[float, float]]
) -> MeasureChange:
    x, y = bounds
    return MeasureChange(name=prefix + name, base=base, other=other, why="intervals apart", base_95=x, other_95=y)


def _stem(key: str) -> str:
    """The figure whose interval a key holds; empty where it holds none."""
    ending = next((ending for ending in INTERVALS if key.endswith(ending)), "")
    return key[: -len(ending)] if ending else ""


def interval(value: Any) -> tuple[float, float] | None:
    """(low, high) where the value is two numbers in order."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(map(_is_number, value)):
        return None
    return (float(value[0]), float(value[1])) if value[0] <= value[1] else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _why(key: str, base: Any, other: Any, same_data: bool, *, top: bool) -> str:
    """Why a figure without an interval has changed; empty where it has not, or where nothing can be said."""
    if base == other or isinstance(base, float) or isinstance(other, float):
        return ""
    if _is_number(base) and _is_number(other):
        if not top:
            return ""
        if key in COUNTS or key.endswith(COUNT_ENDINGS):
            return "counts too far apart" if same_data and count_changed(base, other) else ""
        return "another value"
    if isinstance(base, list) and isinstance(other, list):
        return "another value" if _telling(base, top) and _telling(other, top) and _as_set(base, other) else ""
    plain = (str, bool, int, type(None))
    return "another value" if isinstance(base, plain) and isinstance(other, plain) else ""


def count_changed(base: int, other: int) -> bool:
    """Whether two counts of the same exposure differ by more than chance: k1 of k1 + k2 against one half."""
    return base + other > 0 and binomial_two_sided(base, base + other, 0.5) < ALPHA


def _telling(values: list[Any], top: bool) -> bool:
    """Whether a list names things: words, or at the first level whole numbers such as ranks."""
    kinds = (str, int) if top else (str,)
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in values)


def _as_set(base: list[Any], other: list[Any]) -> bool:
    return set(base) != set(other)
