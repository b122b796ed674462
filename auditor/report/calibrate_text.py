"""The record of a measured bound as text: what the terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from auditor.report.words import number, percent, plural

CHECKED = ("max_abs_error_float64", "max_abs_difference_unchunked")
HEAD = ("rule", "planted errors accepted", "legal orders rejected", "blind up to")


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The bound, one line a rule, what of the assumptions does not hold, and the gates."""
    yield headline(record)
    rows = [HEAD, *(tuple(row.values()) for row in rule_rows(record))]
    widths = [max(len(str(row[k])) for row in rows) for k in range(len(HEAD))]
    for row in rows:
        yield "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for one in record["assumptions"]:
        if one["holds"] is not True:
            yield f"{'does not hold' if one['holds'] is False else 'not known'}: {one['name']}. {one['says']}"
    for gate in record["gates"]:
        if gate["verdict"] != "PASS":
            yield f"{gate['verdict']} {gate['kind']}: {gate['says']}"


def headline(record: Mapping[str, Any]) -> str:
    """``PASS histogram: bound 396 steps, 4 times the worst of 3 orders (99 steps, 99.1 ulp)``."""
    bound, worst = record["bound"], record["bound"]["worst"]
    named = f"{record['verdict']}  {record['workload']}"
    if bound["kind"] == "absolute":
        checks = record["checks"]
        worst_of = [max(checks, key=lambda row: _size(row[name]))[name] for name in CHECKED]
        return (
            f"{named}: absolute bound {bound['absolute']:g}; over {len(checks)} checks the largest error is "
            f"{figure(worst_of[0])} against float64 and {figure(worst_of[1])} against the product in one piece"
        )
    steps, orders = number(bound["ulp_steps"]), len(record["orders"])
    seen = f"{number(worst['ulp_steps'])} steps, {worst['err_ulp']:.4g} ulp"
    return f"{named}: bound {steps} steps, {bound['margin']:g} times the worst of {orders} orders ({seen})"


def figure(value: float | None) -> str:
    """Three figures; an error that is not finite has none in the record."""
    return "not finite" if value is None else f"{value:.3g}"


def _size(value: float | None) -> float:
    return float("inf") if value is None else value


def rule_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """For each rule: what of the planted law it accepts, what of the held-out orders it rejects, and the size up to which it is
    blind: the largest planted error that it still accepts in most outputs.
    """
    return [
        {
            "label": rule["label"],
            "accepted": share_text(record["law"]["accepted"][rule["name"]]),
            "rejected": "; ".join(_rejected(group, rule["name"]) for group in record["held_out"]) or "not tried",
            "blind": blind_text(record["curves"], rule["name"]),
        }
        for rule in record["rules"]
    ]


def share_text(found: Mapping[str, Any]) -> str:
    """``4 of 4,096 (0.027 % to 0.25 %)``."""
    return f"{found['count']:,} of {found['of']:,} ({percent(found['low'])} to {percent(found['high'])})"


def _rejected(group: Mapping[str, Any], rule: str) -> str:
    found = group["rejected_orders"].get(rule)
    return share_text(found) if found else "not tried"


def blind_text(curves: Mapping[str, Any], rule: str) -> str:
    """The largest planted size, in steps and in percent, of which more than half is accepted."""
    steps = _largest(curves["steps"], rule, curves["of"])
    relative = _largest(curves["percent"], rule, curves["of"])
    words = [plural(steps, "step") if steps else "", f"{relative:g} %" if relative else ""]
    return ", ".join(word for word in words if word) or "nothing"


def _largest(curve: Mapping[str, Any], rule: str, of: int) -> Any:
    counts = curve["rules"][rule]
    passed: Sequence[Any] = [
        size
        for k, size in enumerate(curve["sizes"])
        if max(counts[sign]["count"][k] for sign in ("away", "toward")) * 2 > of
    ]
    return max(passed, default=0)
