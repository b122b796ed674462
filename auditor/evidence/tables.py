"""The table of a bug report: the figures of a finding beside those of its like in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.evidence.words import cell_of
from auditor.model import Finding, Verdict

MOST_ROWS = 12
Cells = list[str]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines; pipes inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def table(finding: Finding, findings: Sequence[Finding], like: Sequence[str]) -> list[str]:
    """Lines of the table that suits the kind; none where there is nothing to tabulate. ``like``: arms of the same library."""
    if finding.kind == "rounding_mode":
        return _rounding(finding, findings, like)
    if isinstance(finding.measure.get("by_point"), Mapping):
        return [*_points(finding), *_siblings(finding, findings, like)]
    if "observations_looked_at" in finding.measure:
        return [*_observed(finding), *_siblings(finding, findings, like)]
    return _siblings(finding, findings, like)


def _rounding(finding: Finding, findings: Sequence[Finding], like: Sequence[str]) -> list[str]:
    some = [one for one in findings if one.kind == "rounding_mode" and one.arm in like and one.measure.get("inexact")]
    some.sort(key=lambda one: (one.id != finding.id, one.arm != finding.arm))
    head = ["arm", "type", "inexact sums", "of them ties", "round-to-nearest-even", "toward zero", "away from zero"]
    rows = []
    for one in some[:MOST_ROWS]:
        measure, inexact = one.measure, int(one.measure["inexact"])
        shares = [_share(measure.get(name, 0), inexact) for name in ("nearest", "toward_zero", "away")]
        rows.append([one.arm, str(one.scope.get("format")), f"{inexact:,}", f"{measure.get('ties', 0):,}", *shares])
    return markdown(head, rows)


def _share(part: int, whole: int) -> str:
    return "0" if not part else "100 %" if part == whole else f"{100 * part / whole:.2f} % ({part:,})"


def _points(finding: Finding) -> list[str]:
    """By count and shift: the points that changed first, the others in one line."""
    points = {name: pair for name, pair in finding.measure["by_point"].items() if pair[1]}
    changed = sorted((item for item in points.items() if item[1][0]), key=lambda item: -item[1][0] / item[1][1])
    still = [pair for pair in points.values() if not pair[0]]
    rows = [[*_place(name), f"{n}", f"{k}"] for name, (k, n) in changed[:MOST_ROWS]]
    more = changed[MOST_ROWS:]
    if more:
        rows.append(["others", "", f"{sum(p[1][1] for p in more)}", f"{sum(p[1][0] for p in more)}"])
    if still:
        rows.append([f"{len(still)} further points", "", f"{sum(pair[1] for pair in still)}", "0"])
    return markdown(["count", "shift (elements)", "compared", "differ"], rows)


def _place(name: str) -> list[str]:
    count, _, shift = name.partition(" shift=")
    return [count.removeprefix("count="), shift]


def _observed(finding: Finding) -> list[str]:
    measure = finding.measure
    keys = (
        ("elements", "elements"),
        ("observations", "results with it"),
        ("observations_looked_at", "results looked at"),
    )
    rows = [[words, f"{measure[key]:,}"] for key, words in keys if isinstance(measure.get(key), int)]
    rows += [["ranks", ", ".join(map(str, measure.get("ranks", [])))], ["trials", str(measure.get("trials", ""))]]
    return markdown(["", "number"], rows)


def _siblings(finding: Finding, findings: Sequence[Finding], like: Sequence[str]) -> list[str]:
    """The same question about other formats and arms of the same library."""
    some = [one for one in findings if one.kind == finding.kind and one.arm in like and one.id != finding.id]
    rows = [[one.arm, cell_of(one), _found(one)] for one in [finding, *some[: MOST_ROWS - 1]]]
    return ["", *markdown(["arm", "call", "the same question"], rows)] if some else []


def _found(finding: Finding) -> str:
    words = {Verdict.PASS: "not there", Verdict.INCONCLUSIVE: "could not be told", Verdict.WAIVED: "not looked at"}
    if finding.verdict in words:
        return words[finding.verdict]
    measure: Mapping[str, Any] = finding.measure
    if isinstance(measure.get("pairs"), int):
        return f"there: {measure.get('changed_pairs')} of {measure['pairs']} comparisons"
    return "there"
