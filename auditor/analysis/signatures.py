"""Publicly reported behaviour, as marks that a finding may bear: "matches NVSHMEM issue 132", never "is".

A match says that the figures of one finding are those that a report describes. Other causes may give the same figures; what a
match is good for is knowing whose thread to read, and to write in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from auditor.model import Finding, Verdict
from auditor.numerics.formats import FORMATS

Row = Mapping[str, Any]  # a finding as findings.json holds it

GROUP = 8  # bytes that round together in NVSHMEM issue 132
SHARES_132 = {
    "nearest": 0.6957,
    "toward_zero": 0.1771,
    "away": 0.1272,
}  # of inexact sums of family report132 (NUMERICS §1.1)
WEIGHTS_132 = [(f"q+{d}", bit) for bit in ("b22", "b21") for d in (1, 2, 3)]
SLACK, DEVIATIONS = 0.0025, 4.0  # of a share: the band of NUMERICS §1.4, and sampling
LEAST = 1000  # inexact sums from which shares tell anything


@dataclass(frozen=True, slots=True)
class Signature:
    """One mark. ``report``: where it was reported; ``reported``: what for; ``matched_by``: what in a run bears it."""

    id: str
    name: str
    report: str
    reported: str
    kind: str
    matched_by: str
    bears: Callable[[Row], bool]

    @property
    def words(self) -> str:
        """For a page: ``matches NVSHMEM issue 132 (https://...)``."""
        return f"matches {self.name} ({self.report})"


def matches(finding: Finding | Row) -> Signature | None:
    """The first of :func:`known_signatures` that the finding bears; only what FAILs or is INFORMATION bears any."""
    row = finding.to_json() if isinstance(finding, Finding) else finding
    if row.get("verdict") not in (Verdict.FAIL, Verdict.INFORMATION):
        return None
    return next((one for one in known_signatures() if row.get("kind") == one.kind and one.bears(row)), None)


def known_signatures() -> tuple[Signature, ...]:
    """Every mark, in the order in which they are tried."""
    return _KNOWN


# ----------------------------------------------------------------------------------------------------------------- marks


def _measure(row: Row, key: str) -> Any:
    return (row.get("measure") or {}).get(key)


def _listed(row: Row, key: str) -> list[Any]:
    """A scope's value as a list."""
    value = (row.get("scope") or {}).get(key)
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _of_two_bytes(row: Row) -> bool:
    names = _listed(row, "format")
    return bool(names) and all(name in FORMATS and FORMATS[name].itemsize == 2 for name in names)


def _rule_of_132(row: Row) -> bool:
    """The six heaviest weights are 1/2 to 1/64 of b22 and b21 of the next three elements; lighter ones may follow."""
    weights = _measure(row, "weights") or []
    told = [(one.get("neighbour"), one.get("bit"), one.get("log2")) for one in weights[: len(WEIGHTS_132)]]
    wanted = [(*pair, -k) for k, pair in enumerate(WEIGHTS_132, 1)]
    return told == wanted and _measure(row, "group_bytes") == GROUP


def _shares_of_132(row: Row) -> bool:
    inexact = _measure(row, "inexact")
    if _listed(row, "family") != ["report132"] or not isinstance(inexact, int) or inexact < LEAST:
        return False
    wide = {name: SLACK + DEVIATIONS * sqrt(p * (1 - p) / inexact) for name, p in SHARES_132.items()}
    seen = {name: _measure(row, name) for name in SHARES_132}
    return all(isinstance(n, int) and abs(n / inexact - SHARES_132[name]) <= wide[name] for name, n in seen.items())


def _shifts_of_132(row: Row) -> bool:
    """Shifts by whole groups of 8 bytes change nothing, all others tried do; both were tried."""
    moved, still = (_measure(row, key) or [] for key in ("changed_shifts", "unchanged_shifts"))
    whole = [name for name in (*moved, *still) if not any(int(part) * 2 % GROUP for part in str(name).split("/"))]
    return _of_two_bytes(row) and bool(moved) and bool(still) and sorted(whole) == sorted(still)


def _tail_of_132(row: Row) -> bool:
    """Only elements that share a group of 8 bytes with foreign bytes change."""
    far = [_measure(row, f"changed_by_distance_from_{end}") or {} for end in ("end", "start")]
    reach = [int(distance) for some in far for distance in some]
    return _of_two_bytes(row) and bool(reach) and max(reach) < GROUP // 2 - 1


def _nothing_from_odd_starts(row: Row) -> bool:
    """Whole ranges are unwritten, all of them where a range begins at an odd element."""
    odd = [
        bool(shifts) and all(n % 2 for n in shifts)
        for shifts in (_listed(row, s) for s in ("send_shift", "recv_shift"))
    ]
    counts = _listed(row, "count")
    whole = _measure(row, "first_index") == 0 and bool(counts) and _measure(row, "last_index") == max(counts) - 1
    return _of_two_bytes(row) and any(odd) and whole


def _points(row: Row) -> Iterator[tuple[int, int]]:
    """(count, changed calls) of every point that was compared."""
    for name, pair in (_measure(row, "by_point") or {}).items():
        count = str(name).partition("count=")[2].partition(" ")[0]
        if count.isdigit():
            yield int(count), int(pair[0])


def _odd_counts_change(row: Row) -> bool:
    """Every count that changes between identical calls is no multiple of 4, and some that are were tried."""
    changed = [count for count, n in _points(row) if n]
    return bool(changed) and all(count % 4 for count in changed) and any(count % 4 == 0 for count, _ in _points(row))


def _parity_of_communicators(row: Row) -> bool:
    """Beside the plain call, which has none, every odd number of other communicators changes bits and no even one does."""
    changed: dict[int, list[bool]] = {0: [], 1: []}
    for name, one in (_measure(row, "by_variant") or {}).items():
        word, _, k = str(name).partition(":")
        if word == "history" and k.isdigit() and one.get("calls"):
            changed[int(k) % 2].append(one["calls_changed"] > 0)
    return bool(changed[0]) and not any(changed[0]) and bool(changed[1]) and all(changed[1])


def _ties_away_in_bfloat16(row: Row) -> bool:
    return _listed(row, "format") == ["bfloat16"] and _measure(row, "mode") == "ties_to_away"


_NVSHMEM, _NCCL = "https://github.com/NVIDIA/nvshmem/issues/", "https://github.com/NVIDIA/nccl/issues/"
_132 = (
    "NVSHMEM issue 132",
    f"{_NVSHMEM}132",
    "16-bit sums in the switch of 8 B300 are rounded by their neighbours' bits",
)
_KNOWN = (
    Signature(
        "nvshmem-132-rule",
        *_132,
        "neighbour_dependence",
        "a formula whose heaviest terms are b22 and b21 of the next three elements of an aligned 8-byte group, 1/2 to 1/64",
        _rule_of_132,
    ),
    Signature(
        "nvshmem-132-shares",
        *_132,
        "rounding_mode",
        "inexact sums of family report132: 69.6 % to nearest, 17.7 % toward zero, 12.7 % away, within sampling and 0.25 %",
        _shares_of_132,
    ),
    Signature(
        "nvshmem-132-shift",
        *_132,
        "shift_dependence",
        "16-bit formats: other bits at every shift but those by whole groups of 8 bytes",
        _shifts_of_132,
    ),
    Signature(
        "nvshmem-132-tail",
        *_132,
        "foreign_read",
        "16-bit formats: foreign bytes change elements within three of an end of the range, and no others",
        _tail_of_132,
    ),
    Signature(
        "nvshmem-131",
        "NVSHMEM issue 131",
        f"{_NVSHMEM}131",
        "16-bit sums whose range starts at an odd element are not written at all",
        "unwritten",
        "16-bit formats: whole ranges unwritten, every one of them with a send or a receive range that begins at an odd element",
        _nothing_from_odd_starts,
    ),
    Signature(
        "nccl-2479",
        "NCCL issue 2479",
        f"{_NCCL}2479",
        "results were not repeatable where count % 4 != 0, until NCCL padded its scatter buffers with zeros",
        "not_repeatable",
        "calls change between identical repeats at counts that are no multiple of 4 alone, multiples of 4 having been tried",
        _odd_counts_change,
    ),
    Signature(
        "nccl-2360",
        "NCCL issue 2360",
        f"{_NCCL}2360",
        "a bfloat16 sum in the switch has one of two results, by the parity of other communicators that are alive",
        "history_dependence",
        "other bits with every odd number of other communicators alive that was tried, and with no even one",
        _parity_of_communicators,
    ),
    Signature(
        "mpich-bfloat16-ties",
        "MPICH's bfloat16 sum",
        "https://github.com/pmodels/mpich",
        "MPICH 5.0.2 rounds ties of bfloat16 away from zero (measured here), those of binary16 and binary32 to even",
        "rounding_mode",
        "bfloat16: mode ties_to_away",
        _ties_away_in_bfloat16,
    ),
)
