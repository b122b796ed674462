"""Words and numbers for people: verdicts, short claims, labels. No library but the standard one; nothing is escaped here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from auditor.model import Verdict

Row = Mapping[str, Any]  # a finding as findings.json holds it

SYMBOLS = {
    Verdict.FAIL: "F",
    Verdict.INCONCLUSIVE: "?",
    Verdict.INFORMATION: "I",
    Verdict.PASS: "·",
    Verdict.WAIVED: "–",
}

# Where an inexact sum's result lies; keys of rounding_mode's measure.
CLASSES = (
    ("nearest", "nearest"),
    ("toward_zero", "toward zero"),
    ("away", "away from zero"),
    ("outside", "outside both neighbours"),
)

_WHERE = re.compile(r"^(?P<collective>\S[^:]*?) (?P<op>\S+) of (?P<format>\S[^:]*?) on \S[^:]*? ranks: ")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def clean(text: Any) -> str:
    """Text that may be shown: what a subject or a path slipped in of control or direction characters becomes U+FFFD."""
    return _CONTROL.sub("\ufffd", str(text).replace("\r\n", "\n"))


def one_line(text: Any) -> str:
    return clean(" ".join(str(text).split()))


def verdict_of(row: Row) -> Verdict:
    """A finding's verdict; an unknown word counts as open."""
    try:
        return Verdict(row.get("verdict", ""))
    except ValueError:
        return Verdict.INCONCLUSIVE


def worst_of(rows: Iterable[Row]) -> Verdict:
    return Verdict.worst([verdict_of(row) for row in rows])


def tally(rows: Iterable[Row]) -> dict[Verdict, int]:
    """Findings by verdict, worst first; verdicts that do not occur are left out."""
    verdicts = [verdict_of(row) for row in rows]
    return {verdict: n for verdict in Verdict if (n := verdicts.count(verdict))}


def tally_text(rows: Iterable[Row]) -> str:
    return ", ".join(f"{n:,} {verdict}" for verdict, n in tally(rows).items()) or "no findings"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(values: Iterable[Any], cap: int = 12) -> str:
    """``1, 2, 5``; long lists are cut and their length is stated."""
    texts = [str(value) for value in values]
    return ", ".join(texts) if len(texts) <= cap else ", ".join(texts[:cap]) + f", … ({len(texts):,} in all)"


def spans(numbers: Iterable[int]) -> str:
    """``0–3, 7``."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return listed(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def part(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a mapping that is a mapping itself; empty where it is missing or anything else."""
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def many(value: Any) -> list[Any]:
    """A scope's value as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def number(value: Any) -> str:
    """A number as people read it: thousands apart, six figures at most, no digits that mean nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e9 else f"{value:.3g}"
    return "none" if value is None else clean(value)


def percent(share: float) -> str:
    """A share of one as a percentage with as many digits as tell it from 0 and from 100."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    value, rest = share * 100, 100 - share * 100
    if value < 1:
        return f"{value:.2g} %"
    digits = 1 if rest >= 0.1 else 9 if rest <= 0 else min(9, 1 - math.floor(math.log10(rest)))
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0') if digits > 1 else text} %" if rest > 1e-9 else "> 99.9 %"


# ------------------------------------------------------------------------------------------------------------------ claims


class Labels:
    """Names for cells of one run: only what differs within it is said."""

    AXES = ("format", "collective", "op")

    def __init__(self, rows: Sequence[Row]) -> None:
        seen = {axis: {v for row in rows for v in _axis(row, axis)} for axis in self.AXES}
        self.seen = {axis: values for axis, values in seen.items() if len(values) > 1}

    def of(self, row: Row) -> str:
        """``bfloat16 all_reduce``; empty where the whole run is one cell."""
        return self._words({axis: list(_axis(row, axis)) for axis in self.seen})

    def all_of(self, rows: Sequence[Row]) -> str:
        """One name for the cells of several findings: where they are all combinations of some values, each value is said once,
        and an axis of which the run has no other values is not said.
        """
        cells = list(dict.fromkeys(tuple(_axis(row, axis) for axis in self.seen) for row in rows))
        values = {axis: list(dict.fromkeys(v for cell in cells for v in cell[i])) for i, axis in enumerate(self.seen)}
        if len(cells) < math.prod(len(some) for some in values.values()):
            return listed(dict.fromkeys(self.of(row) for row in rows), 4)
        return self._words({axis: some for axis, some in values.items() if set(some) != self.seen[axis]})

    def _words(self, values: Mapping[str, Sequence[str]]) -> str:
        return one_line(" ".join(listed(some, 6) for some in values.values() if some))


def _axis(row: Row, axis: str) -> tuple[str, ...]:
    found = scope(row)
    return tuple(str(value) for value in many(found[axis])) if axis in found else ()


def scope(row: Row) -> Mapping[str, Any]:
    return part(row, "scope")


def measure(row: Row) -> Mapping[str, Any]:
    return part(row, "measure")


def bare_claim(row: Row) -> str:
    """The claim without the cell, or the word for a waiver, that it begins with: labels and verdicts say that shorter."""
    return _WHERE.sub("", one_line(row.get("claim", ""))).removeprefix("Waived: ")


def mode_text(row: Row) -> str:
    """The rounding mode that a rounding_mode finding names; where no mode or several fit, what is known instead."""
    found = measure(row)
    mode, left = str(found.get("mode", "undetermined")), many(found.get("consistent_modes") or [])
    if mode == "undetermined" and left:
        return f"undetermined, {' or '.join(str(name) for name in left)}"
    shares = [(words, _share(found.get(key), found.get("inexact"))) for key, words in CLASSES]
    told = [f"{percent(share)} {words}" for words, share in shares if share]
    return f"mixed, {', '.join(told)}" if mode == "mixed" and told else mode


def _share(part: Any, whole: Any) -> float:
    known = isinstance(part, (int, float)) and isinstance(whole, (int, float)) and whole > 0
    return part / whole if known else 0.0


def gist(rows: Sequence[Row], labels: Labels) -> str:
    """What some findings of one verdict amount to, in one line: the first ones by claim, the others as a number."""
    kinds = list(dict.fromkeys(one_line(row.get("kind", "")) for row in rows))
    if verdict_of(rows[0]) is Verdict.PASS and "rounding_mode" not in kinds:
        return "not there: " + ", ".join(kinds)
    first = next((row for row in rows if row.get("kind") == "rounding_mode"), rows[0])
    named = first.get("kind") == "rounding_mode" and verdict_of(first) is not Verdict.INCONCLUSIVE
    text = mode_text if named else bare_claim
    alike = [row for row in rows if row.get("kind") == first.get("kind")]
    said: dict[str, list[Row]] = {}
    for row in alike:
        said.setdefault(text(row), []).append(row)
    chosen = list(said.items()) if text is mode_text else list(said.items())[:1]
    told = "; ".join(": ".join(part for part in (labels.all_of(some), words) if part) for words, some in chosen)
    others = [kind for kind in kinds if kind != one_line(first.get("kind", ""))]
    also = f" (also {listed(others, 4)})" if others else ""
    left = len(alike) - sum(len(some) for _, some in chosen)
    more = f" and {left} more" if left else ""
    return f"{one_line(first.get('kind', ''))} {first.get('id', '')}{more}{also}: {told}"
