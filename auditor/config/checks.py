"""What a value of a config may be: one check a key, each giving "" or what is wrong; and the list of mistakes."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from auditor.errors import ConfigError
from auditor.model import COLLECTIVES, OPS, Family
from auditor.numerics.formats import FORMATS

RANKS_MAX = 1 << 20  # exact sums hold up to this many terms (NUMERICS §2)


class Mistakes:
    """Collects every mistake, so that a person mends the file once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[str] = []

    def add(self, path: str, text: str) -> None:
        self.lines.append(f"{self.source}: {path} {text}")

    def unknown(self, table: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
        for key in table:
            if key not in known:
                self.add(prefix + key, f"is unknown{nearest(key, known, prefix)}")

    def table(self, raw: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
        value = raw.get(key, {})
        if isinstance(value, dict):
            return value
        self.add(prefix + key, f"= {show(value)} is not a table")
        return {}

    def raise_if_any(self) -> None:
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; known: {', '.join(known)}"


def show(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


Check = Callable[[Any], str]  # "" or what is wrong with the value, to follow "key = value "


def one_of(names: Sequence[str], what: str) -> Check:
    def check(value: Any) -> str:
        if isinstance(value, str) and value in names:
            return ""
        return f"is not {what}{nearest(value if isinstance(value, str) else '', names)}"

    return check


def whole(what: str, low: int, high: int, below: str) -> Check:
    def check(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            return f"is written as a float; write {int(value)}"
        if not isinstance(value, int) or isinstance(value, bool):
            return f"is not {what}"
        return below if value < low else "" if value <= high else f"is above {high}"

    return check


def flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "is not true or false"


def plain_text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "is not a text"


def _group(value: Any) -> str:
    if value == "all":
        return ""
    if not isinstance(value, list) or not value or any(whole_root(member) for member in value):
        return 'is not a list of ranks, nor "all"'
    return "" if len(set(value)) == len(value) else "names a rank twice"


def _family(value: Any) -> str:
    """Form only; whether the family exists and its arguments hold is asked when the plan is made."""
    try:
        Family.parse(value if isinstance(value, str) else "")
    except ValueError:
        return "is not of the form name or name:key=value,key=value"
    return ""


def arm_name(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        return ""
    return "cannot name a folder; use letters, digits, '.', '_' and '-', 64 at most"


def backend_spec(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w.-]+(:[A-Za-z_][\w.]*)?", value):
        return ""
    return "is neither a backend's name nor package.module:ClassName"


rank_count = whole("a whole number of ranks", 1, RANKS_MAX, "is below 1")
whole_root = whole("a whole number", 0, RANKS_MAX, "is negative")
_shift = whole("a whole number of elements", 0, 1 << 40, "is negative")
AXES: dict[str, Check] = {
    "collective": one_of(COLLECTIVES, "a collective"),
    "op": one_of(OPS, "an operation"),
    "format": one_of(tuple(FORMATS), "a format"),
    "count": whole("a whole number of elements", 0, 1 << 48, "is negative"),
    "shift": _shift,
    "send_shift": _shift,
    "recv_shift": _shift,
    "in_place": flag,
    "root": whole_root,
    "group": _group,
    "family": _family,
    "repeats": whole("a whole number of repeats", 1, 1_000_000, "is below 1"),
    "seed": whole("a whole number", 0, (1 << 63) - 1, "is negative"),
}
ARM_KEYS: dict[str, Check] = {"name": arm_name, "backend": backend_spec, "ranks": rank_count, "path": plain_text}
