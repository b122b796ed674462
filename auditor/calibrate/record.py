"""The record of a measured bound: one small JSON file (schema ``auditor-bound/1``), and what differs between it and here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from auditor.analysis import plain, write_whole
from auditor.errors import EvidenceError

SCHEMA = "auditor-bound/1"
KEYS = (
    "workload",
    "request",
    "conditions",
    "bound",
    "orders",
    "rules",
    "curves",
    "law",
    "held_out",
    "assumptions",
    "gates",
    "verdict",
)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its schema first and its digest last."""
    whole = {"schema": SCHEMA, **plain(content)}
    return {**whole, "digest": digest(whole)}


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 hex of the canonical JSON of everything but the digest itself."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def save(path: Path, record: Mapping[str, Any]) -> Path:
    """Write a sealed record whole or not at all. Raises EvidenceError."""
    return write_whole(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> dict[str, Any]:
    """A record as written. Raises EvidenceError where it is missing, torn, of another kind, or was changed afterwards."""
    again = "make one with: auditor calibrate WORKLOAD --out FILE"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror}; {again}") from error
    except ValueError as error:
        raise EvidenceError(f"{path}: is not JSON ({error}); {again}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise EvidenceError(f"{path}: is not of schema {SCHEMA!r}; {again}")
    if gone := [key for key in KEYS if key not in content]:
        raise EvidenceError(f"{path}: lacks {', '.join(gone)}; restore it from a copy")
    if digest(content) != content.get("digest"):
        raise EvidenceError(
            f"{path}: was changed after it was written (its digest does not hold); restore it from a copy"
        )
    return content


def differences(bound: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """One line for each condition of ``here`` that is not that of the bound, or that only one of them has.

    Only the top-level conditions that ``here`` names are compared, so that what is asked for can be refused before anything
    runs. Of another workload nothing else is told.
    """
    now = plain(here)
    lines = list(_unlike("", {key: bound[key] for key in now if key in bound}, now))
    other = [line for line in lines if line.startswith("workload: ")]
    return other or lines


def _unlike(name: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            inner = f"{name}.{key}" if name else str(key)
            if key not in now:
                yield f"{inner}: not here; the bound was measured with it"
            elif key not in was:
                yield f"{inner}: {_shown(now[key])} here; the bound was measured without it"
            else:
                yield from _unlike(inner, was[key], now[key])
    elif was != now:
        yield f"{name}: {_shown(now)} here; the bound was measured with {_shown(was)}"


def _shown(value: Any) -> str:
    parts = (
        value
        if isinstance(value, list)
        else [f"{k} {v}" for k, v in value.items()]
        if isinstance(value, Mapping)
        else []
    )
    text = ", ".join(map(str, parts)) if parts else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
