"""Two of the three figures: how inexact elements were rounded, and where in a 16-byte word changed elements lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.model import Trial, Verdict
from auditor.numerics.formats import FORMATS
from auditor.report import svg
from auditor.report.values import WORD, byte_in_word
from auditor.report.words import CLASSES, Labels, Row, measure, mode_text, number, one_line, percent, scope, verdict_of

BAR_HEIGHT, CHART_HEIGHT = 26, 128
BARS, CHARTS = 60, 24  # shown at most; the page states the total

ADDRESSES = "changed_by_address_mod_16"
SEND_ADDRESSES = "changed_by_send_address_mod_16"


def whole(value: Any) -> int:
    """A count of a measure; what is missing or no number counts as none."""
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


# ---------------------------------------------------------------------------------------------------------- rounding classes


@dataclass(frozen=True, slots=True)
class Part:
    """One class of a bar."""

    slug: str
    name: str
    count: str
    share: str


@dataclass(frozen=True, slots=True)
class RoundingBar:
    """One finding's inexact elements by class. ``drawing`` is empty where no element was inexact."""

    finding: str
    arm: str
    label: str
    mode: str
    elements: str
    inexact: str
    ties: str
    parts: tuple[Part, ...]
    drawing: str


def rounding_bars(rows: Iterable[Row], labels: Labels) -> list[RoundingBar]:
    """One bar a rounding_mode finding that has counts, by arm as the findings name them, then by cell."""
    told = [row for row in rows if row.get("kind") == "rounding_mode" and "inexact" in measure(row)]
    arms = list(dict.fromkeys(row.get("arm") for row in told))
    ordered = sorted(told, key=lambda row: (arms.index(row.get("arm")), labels.of(row)))
    return [_bar(row, labels) for row in ordered]


def _bar(row: Row, labels: Labels) -> RoundingBar:
    found, inexact = measure(row), whole(measure(row).get("inexact"))
    counts = {slug: whole(found.get(slug)) for slug, _ in CLASSES}
    shares = {slug: n / inexact if inexact else 0.0 for slug, n in counts.items()}
    parts = tuple(Part(slug, name, number(counts[slug]), percent(shares[slug])) for slug, name in CLASSES)
    name = f"{one_line(row.get('arm', ''))} {labels.of(row)}".strip()
    says = f"{name}: " + ", ".join(f"{part.name} {part.share}" for part in parts)
    return RoundingBar(
        finding=str(row.get("id", "")),
        arm=one_line(row.get("arm", "")),
        label=labels.of(row),
        mode=mode_text(row),
        elements=number(found.get("elements")),
        inexact=number(inexact),
        ties=number(found.get("ties")),
        parts=parts,
        drawing=svg.drawing(BAR_HEIGHT, says, *_segments(shares, parts)) if inexact else "",
    )


def _segments(shares: Mapping[str, float], parts: Sequence[Part]) -> Iterator[str]:
    at = 0.0
    for part in parts:
        share = shares[part.slug]
        if share > 0:
            tip = f"{part.name}: {part.count} ({part.share})"
            yield svg.rect(svg.pct(at), "0", svg.pct(share), "100%", f"c-{part.slug}", tip)
        if share > 0.16:  # wide enough for its text on the narrowest page
            yield svg.label(part.share, svg.pct(at + share / 2), "18", "on-bar")
        at += share


# -------------------------------------------------------------------------------------------------- place in a 16-byte word


@dataclass(frozen=True, slots=True)
class WordChart:
    """Where the elements that a finding speaks of begin within a 16-byte word."""

    finding: str
    arm: str
    kind: str
    label: str
    basis: str  # what the bars are: shares of compared elements, counts, or a sample
    address: str  # "receive" | "send"
    numbers: tuple[tuple[str, str], ...]  # byte, what was found there
    drawing: str


def word_charts(rows: Iterable[Row], labels: Labels, trials: Mapping[str, Trial]) -> list[WordChart]:
    """One chart a finding whose measure tells addresses of changed elements; for a FAIL without, from its evidence rows."""
    charts = []
    for row in rows:
        changed, compared = _by_byte(row, ADDRESSES), _by_byte(row, "compared_by_address_mod_16")
        if any(changed.values()):
            charts.append(_chart(row, labels, changed, compared, "receive"))
        elif not changed and verdict_of(row) is Verdict.FAIL and (sample := _sampled(row, trials)):
            charts.append(_chart(row, labels, sample, {}, "receive", sample=True))
        sent = _by_byte(row, SEND_ADDRESSES)
        if any(sent.values()) and sent != changed:
            charts.append(_chart(row, labels, sent, {}, "send"))
    return charts


def unchanged(rows: Iterable[Row], labels: Labels) -> list[str]:
    """``shift_dependence (nvls_off: bfloat16, binary16)``: findings that counted addresses and found nothing changed."""
    said: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        changed = _by_byte(row, ADDRESSES)
        if changed and not any(changed.values()):
            cells = said.setdefault(one_line(row.get("kind", "")), {}).setdefault(one_line(row.get("arm", "")), [])
            cells.append(labels.of(row))
    return [
        f"{kind} ({'; '.join(_of_arm(arm, cells) for arm, cells in by_arm.items())})" for kind, by_arm in said.items()
    ]


def _of_arm(arm: str, cells: Sequence[str]) -> str:
    named = list(dict.fromkeys(cell for cell in cells if cell))
    return f"{arm}: {', '.join(named)}" if named else arm


def _by_byte(row: Row, key: str) -> dict[int, int]:
    found = measure(row).get(key)
    if not isinstance(found, Mapping):
        return {}
    return {int(byte): whole(n) for byte, n in found.items() if str(byte).isdigit() and int(byte) < WORD}


def _sampled(row: Row, trials: Mapping[str, Trial]) -> dict[int, int]:
    """Evidence rows counted by the byte at which their element begins."""
    counts: dict[int, int] = {}
    for one in row.get("evidence", ()):
        trial, rank, index = trials.get(str(one.get("trial"))), one.get("rank"), one.get("index")
        if trial is None or rank is None or index is None:
            continue
        byte = byte_in_word(trial, rank, index)
        if byte is not None:
            counts[byte] = counts.get(byte, 0) + 1
    return counts


def _chart(
    row: Row,
    labels: Labels,
    changed: Mapping[int, int],
    compared: Mapping[int, int],
    address: str,
    *,
    sample: bool = False,
) -> WordChart:
    shares = {byte: n / compared[byte] for byte, n in changed.items() if compared.get(byte)}
    heights: Mapping[int, float] = shares or {byte: float(n) for byte, n in changed.items()}
    texts = {byte: percent(h) if shares else number(int(h)) for byte, h in heights.items()}
    basis = "% of the elements compared at that byte" if shares else "elements"
    basis = f"elements among {number(sum(changed.values()))} evidence rows, a sample" if sample else basis
    of = {byte: f"{number(changed[byte])} of {number(compared[byte])}" if shares else texts[byte] for byte in heights}
    numbers = tuple((f"byte {byte}", f"{of[byte]} ({texts[byte]})" if shares else of[byte]) for byte in sorted(heights))
    arm, kind = one_line(row.get("arm", "")), one_line(row.get("kind", ""))
    says = f"{arm} {kind} {labels.of(row)}: " + ", ".join(f"{byte} {words}" for byte, words in numbers)
    drawing = svg.drawing(CHART_HEIGHT, says, *_columns(heights, texts, _itemsize(row)))
    return WordChart(str(row.get("id", "")), arm, kind, labels.of(row), basis, address, numbers, drawing)


def _itemsize(row: Row) -> int:
    """Bytes of an element where the finding is of one format; 1 where it is not, so that bars cannot overlap."""
    fmt = FORMATS.get(str(scope(row).get("format")))
    return fmt.itemsize if fmt else 1


def _columns(heights: Mapping[int, float], texts: Mapping[int, str], itemsize: int) -> Iterator[str]:
    """Bars from the base line up, one unit of 1/16 a byte; an element's bar covers its bytes."""
    top, base, unit = 16, CHART_HEIGHT - 18, 1 / WORD
    for byte in (4, 8, 12):
        yield svg.line(
            svg.pct(byte * unit), str(top - 8), svg.pct(byte * unit), str(base), "word" if byte == 8 else "half"
        )
    high = max(heights.values()) or 1.0
    for byte, height in sorted(heights.items()):
        size = round((base - top) * height / high, 1)
        size = max(size, 1.5) if height else 0.0
        wide = min(itemsize, WORD - byte) * unit
        tip = f"byte {byte}: {texts[byte]}"
        if size:
            yield svg.rect(
                svg.pct((byte + 0.08) * unit), f"{base - size:g}", svg.pct(wide - 0.16 * unit), f"{size:g}", "col", tip
            )
        if len(heights) <= 8:
            yield svg.label(
                texts[byte].removesuffix(" %"), svg.pct(byte * unit + wide / 2), f"{base - size - 3:g}", "tick"
            )
    yield svg.line("0", str(base), "100%", str(base), "axis")
    for byte in range(WORD):
        yield svg.label(byte, svg.pct((byte + 0.5) * unit), str(CHART_HEIGHT - 4), "tick")
