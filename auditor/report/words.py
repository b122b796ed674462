"""Words and numbers for people: verdicts, short claims, labels. No library but the standard one; nothing is escaped here."""

from __future__ import annotations

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

_WHERE = re.compile(r"^(?P<collective>\S[^:]*?) (?P<op>\S+) of (?P<format>\S[^:]*?) on \S[^:]*? ranks: ")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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
    """A share of one as a percentage, never rounded to 0 or 100 where it is neither."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 1e-4:
        return f"{share * 100:.2g} %"
    text = f"{share * 100:.1f} %"
    return text if text not in ("0.0 %", "100.0 %") else f"{share * 100:.4g} %" if share < 0.99995 else "> 99.99 %"


# ------------------------------------------------------------------------------------------------------------------ claims


class Labels:
    """Names for cells of one run: only what differs within it is said."""

    AXES = ("format", "collective", "op")

    def __init__(self, rows: Sequence[Row]) -> None:
        seen = {axis: {str(v) for row in rows for v in many(scope(row).get(axis, ()))} for axis in self.AXES}
        self.axes = [axis for axis in self.AXES if len(seen[axis]) > 1]

    def of(self, row: Row) -> str:
        """``bfloat16 all_reduce``; empty where the whole run is one cell."""
        parts = (" and ".join(str(v) for v in many(scope(row)[axis])) for axis in self.axes if axis in scope(row))
        return one_line(" ".join(parts))


def scope(row: Row) -> Mapping[str, Any]:
    found = row.get("scope")
    return found if isinstance(found, Mapping) else {}


def measure(row: Row) -> Mapping[str, Any]:
    found = row.get("measure")
    return found if isinstance(found, Mapping) else {}


def bare_claim(row: Row) -> str:
    """The claim without the cell that it begins with: labels say that shorter."""
    return _WHERE.sub("", one_line(row.get("claim", "")))


def mode_text(row: Row) -> str:
    """The rounding mode that a rounding_mode finding names."""
    mode = str(measure(row).get("mode", "undetermined"))
    left = many(measure(row).get("consistent_modes") or [])
    return f"{mode} ({' or '.join(str(name) for name in left)})" if mode == "undetermined" and left else mode


def gist(rows: Sequence[Row], labels: Labels) -> str:
    """What some findings of one verdict amount to, in one line: the first ones by claim, the others as a number."""
    if verdict_of(rows[0]) is Verdict.PASS and not any(row.get("kind") == "rounding_mode" for row in rows):
        return "looked for and not there: " + ", ".join(dict.fromkeys(one_line(row.get("kind", "")) for row in rows))
    first = next((row for row in rows if row.get("kind") == "rounding_mode"), rows[0])
    text = mode_text if first.get("kind") == "rounding_mode" else bare_claim
    alike = [row for row in rows if row.get("kind") == first.get("kind")]
    said: dict[str, list[str]] = {}
    for row in alike:
        said.setdefault(text(row), []).append(labels.of(row))
    chosen = list(said.items()) if text is mode_text else list(said.items())[:1]
    told = "; ".join(_labelled(names, words) for words, names in chosen)
    others = [one_line(row.get("kind", "")) for row in rows if row not in alike]
    also = f" (also {listed(dict.fromkeys(others), 4)})" if others else ""
    left = len(alike) - sum(len(names) for _, names in chosen)
    more = f" and {left} more" if left else ""
    return f"{one_line(first.get('kind', ''))} {first.get('id', '')}{more}{also}: {told}"


def _labelled(names: Sequence[str], words: str) -> str:
    some = list(dict.fromkeys(name for name in names if name))
    return f"{listed(some, 4)}: {words}" if some else words
