"""``--accept FILE``: changes that somebody answers for, until a date. A TOML file of ``[[accept]]`` tables:

    [[accept]]
    kind = "rounding_mode"                  # or several; "bits" for results that differ
    format = "bfloat16"                     # any of arm, probe, collective, op, format; left out: any
    measure = { mode = "ties_to_even" }     # what the later run must show, so that a further change is seen
    owner = "numerics team"
    reason = "Intel MPI rounds ties to even, MPICH away from zero; both are legal"
    expires = 2027-06-30                    # the last day on which it holds

An entry covers a FAIL only where it says ``verdict = "FAIL"``.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from auditor.compare.records import Beside, Bits, Change, Comparison, Pair
from auditor.config.checks import AXES, Check, Mistakes, one_of, plain_text, show
from auditor.config.records import KINDS, PROBE_KINDS
from auditor.errors import ConfigError
from auditor.model import Verdict

BITS = "bits"
CELL = ("collective", "op", "format")
PLACES: dict[str, Check] = {
    "kind": one_of((*KINDS, BITS), f"a kind of finding, nor {BITS!r}"),
    "probe": one_of((*PROBE_KINDS, "harness"), "a probe"),
    "arm": plain_text,
    **{axis: AXES[axis] for axis in CELL},
}
REQUIRED = ("kind", "owner", "reason", "expires")
KEYS = (*PLACES, "measure", "verdict", "owner", "reason", "expires")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One ``[[accept]]``. ``places``: key -> the values that it covers, for the keys that it gives."""

    name: str
    places: Mapping[str, tuple[str, ...]]
    measure: Mapping[str, Any] = field(default_factory=dict)
    fail: bool = False
    owner: str = ""
    reason: str = ""
    expires: datetime.date = datetime.date.max

    def covers(self, one: Change | Bits, arms: tuple[str, str]) -> bool:
        """Whether the entry is about this change between two arms, whatever the date."""
        if isinstance(one, Bits):
            told: dict[str, tuple[str, ...]] = {"kind": (BITS,), **{axis: (str(getattr(one, axis)),) for axis in CELL}}
        else:
            told = {"kind": (one.kind,), "probe": (one.probe,), **one.cell}
            if one.other_verdict is Verdict.FAIL and not self.fail:
                return False
            if any(one.measured.get(key) != value for key, value in self.measure.items()):
                return False
        for key, values in self.places.items():
            if key == "arm":
                if not set(arms) & set(values):
                    return False
            elif not told.get(key) or not set(told[key]) <= set(values):
                return False
        return True

    def said(self) -> str:
        kinds = ", ".join(self.places["kind"])
        return f"{self.name} ({kinds}; {self.owner}: {self.reason})"


def load(path: Path) -> tuple[Entry, ...]:
    """Read and check an accept file. Raises ConfigError whose text has one line for each mistake, with its key path."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    mistakes = Mistakes(str(path))
    mistakes.unknown(raw, ("accept",))
    rows = raw.get("accept", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        mistakes.add("accept", "is not a list of tables; write [[accept]]")
        rows = []
    entries = [_entry(row, f"accept[{number}]", mistakes) for number, row in enumerate(rows)]
    mistakes.raise_if_any()
    return tuple(entries)


def _entry(raw: Mapping[str, Any], name: str, mistakes: Mistakes) -> Entry:
    prefix = f"{name}."
    mistakes.unknown(raw, KEYS, prefix)
    for key in REQUIRED:
        if key not in raw:
            mistakes.add(prefix + key, f"is missing{_why(key)}")
    for key in ("owner", "reason"):
        if key in raw and (wrong := plain_text(raw[key])):
            mistakes.add(prefix + key, f"= {show(raw[key])} {wrong}{_why(key)}")
    places = {key: _values(raw[key], prefix + key, check, mistakes) for key, check in PLACES.items() if key in raw}
    if "verdict" in raw and raw["verdict"] != "FAIL":
        mistakes.add(f"{prefix}verdict", f'= {show(raw["verdict"])} can only be "FAIL": all else is covered without it')
    measure = mistakes.table(raw, "measure", prefix)
    if measure and BITS in places.get("kind", ()):
        mistakes.add(f"{prefix}measure", f"does not go with kind {BITS!r}: write two entries")
    expires = raw.get("expires", datetime.date.max)
    if type(expires) is not datetime.date:
        mistakes.add(f"{prefix}expires", f"= {show(expires)} is not a date; write it as 2027-06-30, without quotes")
        expires = datetime.date.max
    return Entry(
        name=name,
        places=places,
        measure=measure,
        fail="verdict" in raw,
        owner=str(raw.get("owner", "")),
        reason=str(raw.get("reason", "")),
        expires=expires,
    )


def _why(key: str) -> str:
    return {
        "kind": "; name the kind of finding that is accepted",
        "owner": "; say who answers for it",
        "reason": "; say why it is no trouble",
        "expires": "; say until when, as in expires = 2027-06-30",
    }[key]


def _values(raw: Any, where: str, check: Check, mistakes: Mistakes) -> tuple[str, ...]:
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        mistakes.add(where, "is empty; give at least one value or leave the key out")
    for number, value in enumerate(values):
        if wrong := check(value):
            mistakes.add(f"{where}[{number}]" if isinstance(raw, list) else where, f"= {show(value)} {wrong}")
    return tuple(map(str, values))


# ----------------------------------------------------------------------------------------------------------------- applying


def apply(comparison: Comparison, entries: Iterable[Entry], where: str, today: datetime.date) -> Comparison:
    """The comparison with what the entries cover marked as accepted. ``trouble`` gains a line for each expired entry that would
    have covered something, and for each that covers nothing.
    """
    entries = tuple(entries)
    used: dict[str, int] = dict.fromkeys((entry.name for entry in entries), 0)

    def marked(one: Any, pair: Pair) -> Any:
        if isinstance(one, Bits) and not one.counts_as_change:
            return one
        mine = [entry for entry in entries if entry.covers(one, (pair.base_arm, pair.other_arm))]
        for entry in mine:
            used[entry.name] += 1
        valid = next((entry for entry in mine if today <= entry.expires), None)
        return replace(one, accepted=valid.said()) if valid else one

    def pair_marked(pair: Pair) -> Pair:
        bits, changes = (tuple(marked(one, pair) for one in some) for some in (pair.bits, pair.changes))
        return replace(pair, bits=bits, changes=changes)

    besides: list[Beside] = [replace(one, pairs=tuple(map(pair_marked, one.pairs))) for one in comparison.besides]
    trouble = [line for entry in entries if (line := _trouble(entry, used[entry.name], where, today))]
    return replace(comparison, besides=tuple(besides), trouble=(*comparison.trouble, *trouble))


def _trouble(entry: Entry, used: int, where: str, today: datetime.date) -> str:
    if today > entry.expires:
        covers = (
            f"{used} change{'' if used == 1 else 's'} that it covered count again" if used else "it covers nothing now"
        )
        what = f"EXPIRED on {entry.expires}: {covers}"
        return f"{where}: {entry.said()} {what}; look at it anew, then change its date or take it out"
    return "" if used else f"{where}: {entry.said()} is not used: nothing that changed matches it; take it out"
