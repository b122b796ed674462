"""What makes a finding the same in the next run: its arm, its question and the call that it asks about, not what it found.

Counts, shifts, seeds and fills that a finding lists may change from run to run with the evidence; its id does whenever another
finding comes before it. Systems that follow findings over time need a name that does neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

from auditor.model import Call, Trial
from auditor.report.words import Row, listed, many, one_line, scope

CELL = ("collective", "op", "format")
VARIES = {field.name for record in (Call, Trial) for field in fields(record)} - set(CELL)


def cell(row: Row) -> str:
    """``all_reduce sum bfloat16``, and what else the scope says that is no coordinate of a trial; empty for a whole arm."""
    told = scope(row)
    words = [listed(many(told[axis]), 6) for axis in CELL if axis in told]
    words += [f"{key} {listed(many(value), 6)}" for key, value in told.items() if key not in VARIES and key not in CELL]
    return one_line(" ".join(words))


def identity(row: Row) -> tuple[str, str, str, str]:
    """Arm, probe, kind and cell."""
    arm, probe, kind = (one_line(row.get(key, "")) for key in ("arm", "probe", "kind"))
    return arm, probe, kind, cell(row)


def numbered(rows: Iterable[Row]) -> list[tuple[Row, int]]:
    """Each finding with its number among those of the same identity, from 1, in the order given."""
    seen: dict[tuple[str, ...], int] = {}
    told = []
    for row in rows:
        key = identity(row)
        seen[key] = seen.get(key, 0) + 1
        told.append((row, seen[key]))
    return told


def fingerprint(row: Row, number: int = 1) -> str:
    """32 hex digits: SHA-256 of the identity and of the finding's number among its likes."""
    text = json.dumps([*identity(row), number], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
