"""What can be moved at most: published peaks of GPUs, or a plain copy as the host's clock saw it.

A lower bound of the bytes: every rank's range must be read once and its result written once, and a rank that gets a sum of data
that it does not have must be sent at least as many bytes as the sum has. Both hold for every algorithm and every switch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from auditor.model import Trial

# Part of a GPU's name, memory bytes a second, NVLink bytes a second one way: the vendor's data sheets.
GPUS = (
    ("B300", 8.0e12, 900e9),
    ("B200", 8.0e12, 900e9),
    ("H200", 4.8e12, 450e9),
    ("H100 PCIe", 2.0e12, 300e9),
    ("H100 NVL", 3.9e12, 300e9),
    ("H100", 3.35e12, 450e9),
    ("A100", 2.04e12, 300e9),
)
CACHES = 4.0  # a range may come from a cache that is faster than memory
LINKS = 2.0
PROCESSORS = 32.0  # times one processor's plain copy, which is all that is known of a host


@dataclass(frozen=True, slots=True)
class Limit:
    """``least``: seconds that one call of a rank takes at least; ``words``: what says so."""

    least: float
    words: str


def limits(trial: Trial, rank: int, describe: Mapping[str, Any], copy_seconds: float | None) -> list[Limit]:
    """Everything known that bounds one call of ``rank``. ``copy_seconds``: of a copy of as many bytes as the rank receives."""
    received = trial.call.count * trial.call.fmt.itemsize if rank in trial.call.receivers(trial.rank_n) else 0
    moved = trial.send_count * trial.call.fmt.itemsize + received
    gpus = [text.strip() for text in str(describe.get("gpus", "")).split(";") if text.strip()]
    row = next((row for row in GPUS if gpus and all(row[0] in text for text in gpus)), None)
    if row is None:
        return _by_copy(moved, received, copy_seconds)
    name, memory, link = row
    found = [
        Limit(moved / (CACHES * memory), f"{CACHES:g} times the memory bandwidth of {name}, {memory / 1e12:g} TB/s")
    ]
    if len(trial.members) > 1 and _apart(gpus, trial.rank_n):
        found.append(
            Limit(received / (LINKS * link), f"{LINKS:g} times the NVLink bandwidth of {name}, {link / 1e9:g} GB/s")
        )
    return found


def _by_copy(moved: int, received: int, copy_seconds: float | None) -> list[Limit]:
    if not copy_seconds or not received:
        return []
    rate = 2 * received / copy_seconds  # a copy reads and writes
    return [Limit(moved / (PROCESSORS * rate), f"{PROCESSORS:g} times a plain copy here, {rate / 1e9:.3g} GB/s")]


def _apart(gpus: list[str], rank_n: int) -> bool:
    """Whether every rank has a GPU of its own: as many are named, with different numbers."""
    numbers = {match.group() for text in gpus if (match := re.match(r"\d+", text))}
    return len(numbers) == rank_n
