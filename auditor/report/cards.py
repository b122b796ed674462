"""One finding as a page shows it: key figures, small tables, scope, evidence rows with decoded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.model import Trial, Verdict
from auditor.numerics.formats import FORMATS, Format
from auditor.report import values
from auditor.report.figures import ADDRESSES, SEND_ADDRESSES
from auditor.report.kinds import About, about
from auditor.report.words import Row, listed, many, measure, number, one_line, percent, scope, spans, verdict_of

TABLE_ROWS, EVIDENCE_ROWS, INPUTS = 16, 16, 8  # shown at most; totals are stated
# Parts of a measure that a figure shows, or that stand elsewhere on the card.
DRAWN = {ADDRESSES, SEND_ADDRESSES, "compared_by_address_mod_16", "by_point", "evidence_total"} | {
    *("dose_response", "coverage", "influence", "ulps_apart"),
}
SHARES = ("share", "rate")
NAMES = {"share": "share of elements changed", "mean_signed_error_ulp": "mean signed error (ulp)"}

# Values that every trial has unless something was asked for; they are not worth a line.
DEFAULTS: Mapping[str, Any] = {
    "group": None,
    "active": "all",
    "inputs": "same",
    "head": "zero",
    "tail": "zero",
    "prefill": "snan_a",
    "tiled": 1,
    "variant": "plain",
}
Hosts = Mapping[tuple[str, int], str]  # (arm, rank) -> host
HOSTS = 6  # hosts of a finding that are named
FIRST = ("collective", "op", "format", "rank_n", "count", "send_shift", "recv_shift", "in_place", "family", "seed")


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of a measure; ``bounds``: its 95 % bounds in words, or empty."""

    name: str
    value: str
    bounds: str


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Code:
    """A code in hex with its value; ``value`` is empty where the text is no code."""

    text: str
    value: str


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    trial: str
    point: str
    rank: str
    repeat: str
    index: str
    byte: str
    inputs: tuple[Code, ...]
    inputs_left_out: int
    observed: Code
    expected: Code
    apart: str


@dataclass(frozen=True, slots=True)
class Card:
    """``where``: the ranks, and where there are several the hosts, that the evidence names; ``columns``: which optional columns
    of the evidence table hold anything.
    """

    id: str
    arm: str
    probe: str
    kind: str
    verdict: Verdict
    claim: str
    about: About
    where: str
    limits: str
    reproduce: str
    facts: tuple[Fact, ...]
    tables: tuple[Table, ...]
    scope: tuple[tuple[str, str], ...]
    evidence: tuple[EvidenceRow, ...]
    evidence_total: str
    columns: frozenset[str]


def card(row: Row, trials: Mapping[str, Trial], rows_kept: int = EVIDENCE_ROWS, hosts: Hosts | None = None) -> Card:
    """``trials``: those of the finding's arm, by id; ``hosts``: where ranks ran, where that was not one host."""
    rows = evidence(row)
    shown = tuple(evidence_row(one, trials) for one in rows[:rows_kept])
    total = measure(row).get("evidence_total")
    optional = ("index", "byte", "inputs", "apart", "expected")
    return Card(
        id=str(row.get("id", "")),
        arm=one_line(row.get("arm", "")),
        probe=one_line(row.get("probe", "")),
        kind=one_line(row.get("kind", "")),
        verdict=verdict_of(row),
        claim=one_line(row.get("claim", "")),
        about=about(one_line(row.get("kind", ""))),
        where=where(row, hosts or {}),
        limits=one_line(row.get("limits", "")),
        reproduce=str(row.get("reproduce", "")),
        facts=facts(measure(row)),
        tables=tables(measure(row)),
        scope=scope_words(scope(row)),
        evidence=shown,
        evidence_total=number(total if isinstance(total, int) and total > len(rows) else len(rows)),
        columns=frozenset(name for name in optional if any(_holds(one, name) for one in shown)),
    )


def evidence(row: Row) -> list[Mapping[str, Any]]:
    """A finding's rows of evidence, as far as they are any."""
    rows = row.get("evidence")
    return [one for one in rows if isinstance(one, Mapping)] if isinstance(rows, (list, tuple)) else []


def where(row: Row, hosts: Hosts) -> str:
    """``ranks 0–7 on node00; 8 on node01``: whom a FAIL's evidence names; empty where nobody, or for another verdict."""
    if verdict_of(row) is not Verdict.FAIL:
        return ""
    ranks = sorted({rank for one in evidence(row) if isinstance(rank := one.get("rank"), int)})
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts.get((str(row.get("arm", "")), rank), ""), []).append(rank)
    told = [f"{spans(some)} on {host}" if host else spans(some) for host, some in by_host.items()]
    shown = "; ".join(told[:HOSTS]) + (f"; and {len(told) - HOSTS} more hosts" if len(told) > HOSTS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" if told else ""


def _holds(row: EvidenceRow, name: str) -> bool:
    found = getattr(row, name)
    return bool(found.text) if isinstance(found, Code) else bool(found)


# ----------------------------------------------------------------------------------------------------------------- measure


def label(key: Any) -> str:
    return one_line(key).replace("_", " ")


def facts(found: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Single figures and short lists, in the measure's order; bounds stand with the figure that they bound."""
    told = []
    for key, value in found.items():
        if key in DRAWN or (key.endswith("_95") and _bounded(key) in found):
            continue
        if _flat(value):
            bounds = found.get(f"{key}_bounds_95", found.get(f"{key}_95"))
            told.append(Fact(NAMES.get(key, label(_bounded(key))), _figure(key, value), _bounds(bounds, key)))
    return tuple(told)


def _bounded(key: str) -> str:
    """The figure that a key of bounds speaks of; the key itself where it is none."""
    return key.removesuffix("_95").removesuffix("_bounds")


def _flat(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(not isinstance(item, Mapping) for item in value)
    return not isinstance(value, Mapping)


def _is_share(key: Any) -> bool:
    return any(word in SHARES for word in str(key).split("_"))


def _figure(key: Any, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        if _is_share(key) and str(key).endswith("_95") and len(value) == 2:
            return f"{_figure(key, value[0])} to {_figure(key, value[1])} (95 %)"
        return (
            listed(
                ["–".join(number(part) for part in item) if isinstance(item, list) else number(item) for item in value]
            )
            or "none"
        )
    if _is_share(key) and isinstance(value, (int, float)) and 0 <= value <= 1:
        return percent(float(value))
    return number(value)


def _bounds(value: Any, key: str) -> str:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return ""
    share = "share" if all(isinstance(end, (int, float)) and 0 <= end <= 1 for end in value) else key
    return f"{_figure(share, value[0])} to {_figure(share, value[1])} (95 %)"


def tables(found: Mapping[str, Any]) -> tuple[Table, ...]:
    """Nested parts of a measure, each a small table."""
    made = []
    for key, value in found.items():
        if key in DRAWN or _flat(value) or not value:
            continue
        if isinstance(value, Mapping):
            made.append(_of_mapping(key, value))
        else:
            made.append(_of_rows(key, [("", item) for item in value], ""))
    return tuple(made)


def _of_mapping(key: str, value: Mapping[str, Any]) -> Table:
    head = label(key).removeprefix("by ") or label(key)
    if any(isinstance(item, Mapping) for item in value.values()):
        return _of_rows(key, list(value.items()), head)
    rows = tuple((one_line(name), _figure(key if _is_share(key) else "", item)) for name, item in value.items())
    return Table(label(key), (head, "value"), rows[:TABLE_ROWS], max(0, len(rows) - TABLE_ROWS))


def _of_rows(key: str, items: Sequence[tuple[Any, Any]], head: str) -> Table:
    """Mappings of equal keys as rows; ``head`` names the first column, or is empty where rows have no names."""
    columns = list(dict.fromkeys(name for _, item in items if isinstance(item, Mapping) for name in item))
    rows = []
    for name, item in items[:TABLE_ROWS]:
        told = item if isinstance(item, Mapping) else {columns[0]: item}
        cells = [_cell(column, told.get(column, "")) for column in columns]
        rows.append(tuple([one_line(name), *cells] if head else cells))
    names = [label(column) for column in columns]
    return Table(label(key), tuple([head, *names] if head else names), tuple(rows), max(0, len(items) - TABLE_ROWS))


def _cell(key: Any, value: Any) -> str:
    if isinstance(value, Mapping):
        return listed([f"{label(name)} {number(item)}" for name, item in value.items()], 4)
    return _figure(key, value)


# ------------------------------------------------------------------------------------------------------------------- scope


def scope_words(told: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Field and values; both shifts are said once where they are alike, values that go without saying are not."""
    some = dict(told)
    if some.get("collective") != "reduce" and "reduce" not in many(some.get("collective")):
        some.pop("root", None)
    if "send_shift" in some and some.get("send_shift") == some.get("recv_shift"):
        some = {("shift" if key == "send_shift" else key): value for key, value in some.items() if key != "recv_shift"}
    order = ["shift" if key == "send_shift" and "shift" in some else key for key in FIRST]
    keys = [key for key in order if key in some] + [key for key in some if key not in order]
    return tuple(
        (label(key).replace("rank n", "ranks"), _scope_value(some[key]))
        for key in keys
        if key not in DEFAULTS or some[key] != DEFAULTS[key]
    )


def _scope_value(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, list) or item is None for item in value):
        return listed("all ranks" if item is None else f"[{listed(item)}]" for item in value)
    return listed(number(item) for item in many(value))


# ---------------------------------------------------------------------------------------------------------------- evidence


def evidence_row(one: Mapping[str, Any], trials: Mapping[str, Trial]) -> EvidenceRow:
    trial = trials.get(str(one.get("trial")))
    fmt = trial.call.fmt if trial is not None and trial.call.format in FORMATS else None
    inputs = [str(text) for text in one.get("inputs") or ()]
    observed, expected = str(one.get("observed") or ""), str(one.get("expected") or "")
    return EvidenceRow(
        trial=one_line(one.get("trial", "")),
        point=_point(trial) if trial is not None else "",
        rank=_maybe(one.get("rank")),
        repeat=_maybe(one.get("repeat")),
        index=_maybe(one.get("index")),
        byte=_byte(one, trial),
        inputs=tuple(code(text, fmt) for text in inputs[:INPUTS]),
        inputs_left_out=max(0, len(inputs) - INPUTS),
        observed=code(observed, fmt),
        expected=code(expected, fmt),
        apart=_apart(observed, expected, fmt),
    )


def _point(trial: Trial) -> str:
    shift = f"{trial.send_shift}" if trial.send_shift == trial.recv_shift else f"{trial.send_shift}/{trial.recv_shift}"
    fills = [f"{side} {getattr(trial, side)}" for side in ("head", "tail") if getattr(trial, side) != "zero"]
    place = ["in place"] if trial.in_place else []
    prefill = [f"prefill {trial.prefill}"] if trial.prefill != DEFAULTS["prefill"] else []
    variant = [trial.variant] if trial.variant != "plain" else []
    return ", ".join([f"count {trial.call.count:,}", f"shift {shift}", *place, *fills, *prefill, *variant])


def _maybe(value: Any) -> str:
    return "" if value is None else number(value)


def _byte(one: Mapping[str, Any], trial: Trial | None) -> str:
    rank, index = one.get("rank"), one.get("index")
    if trial is None or not isinstance(rank, int) or not isinstance(index, int):
        return ""
    return _maybe(values.byte_in_word(trial, rank, index))


def code(text: str, fmt: Format | None) -> Code:
    """A hex text with its value in the trial's format; other text (a path, a message) as it is."""
    found = None if fmt is None else values.code_of(text, fmt)
    return Code(one_line(text), "" if found is None or fmt is None else values.value_text(fmt, found))


def _apart(observed: str, expected: str, fmt: Format | None) -> str:
    if fmt is None:
        return ""
    codes = [values.code_of(text, fmt) for text in (observed, expected)]
    if codes[0] is None or codes[1] is None:
        return ""
    distance = values.apart(fmt, codes[0], codes[1])
    return "" if distance is None else f"{distance:+,}" if distance else "0"
