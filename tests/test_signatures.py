"""Signatures: what simulated and misbehaving subjects show is recognised where it is what a report describes, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import outside_subjects
import pytest
from driven_view import drive

from auditor.analysis.signatures import known_signatures, matches
from auditor.backends.simulator import Simulator
from auditor.config import KINDS, Sweep
from auditor.model import Finding, Verdict
from auditor.probes import Probe, coverage, neighbours, placement, repeatability, rounding, tail

B300 = {"preset": "b300"}


def found(
    probe: Probe, kind: str, options: dict[str, Any] | None = None, backend: Any = Simulator, **axes: Any
) -> Finding:
    sweep = Sweep(**{"format": ("bfloat16",), "count": (1026,), "repeats": 2, "seed": (5,), **axes})
    view = drive(backend, sweep, [probe], rank_n=2, options=options)
    return next(one for one in probe.analyze(view) if one.kind == kind)


def named(finding: Finding) -> str | None:
    """By the record and by the row of findings.json alike."""
    mark = matches(finding)
    assert mark == matches(finding.to_json())
    return mark and mark.id


# ----------------------------------------------------------------------------------------------------- NVSHMEM issue 132


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (B300, "nvshmem-132-rule"),
        ({**B300, "noise_bits": 3}, "nvshmem-132-rule"),  # lighter weights may follow: the report cannot exclude them
        ({**B300, "neighbour_order": "reversed"}, None),
        ({**B300, "group_bytes": 16}, None),
        ({"final": "ties_to_even"}, None),
    ],
)
def test_the_rule(options: dict[str, Any], mark: str | None) -> None:
    assert named(found(neighbours, "neighbour_dependence", options, count=(1 << 15,))) == mark


@pytest.mark.parametrize(
    ("options", "family", "mark"),
    [
        (B300, "report132", "nvshmem-132-shares"),
        (B300, "wide", None),  # the shares are those of one distribution
        ({"final": "stochastic"}, "report132", None),
        ({"final": "toward_zero"}, "report132", None),
    ],
)
def test_the_shares(options: dict[str, Any], family: str, mark: str | None) -> None:
    from auditor.model import Family

    mode = found(rounding, "rounding_mode", options, count=(1 << 17,), family=(Family(family),))
    assert named(mode) == mark


@pytest.mark.parametrize(
    ("options", "shifts", "mark"),
    [
        (B300, (0, 1, 2, 3, 4, 8), "nvshmem-132-shift"),
        (B300, (0, 1), None),  # no shift by a whole group was tried
        ({**B300, "group_bytes": 4}, (0, 1, 2, 3, 4, 8), None),
        ({**B300, "group_bytes": 16}, (0, 1, 2, 3, 4, 8), None),
    ],
)
def test_the_shifts(options: dict[str, Any], shifts: tuple[int, ...], mark: str | None) -> None:
    finding = found(placement, "shift_dependence", options, shift=tuple((n, n) for n in shifts))
    assert named(finding) == mark


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (B300, "nvshmem-132-tail"),
        ({**B300, "group_bytes": 32}, None),  # reaches further
        ({**B300, "read_past": False}, None),
    ],
)
def test_the_tail(options: dict[str, Any], mark: str | None) -> None:
    assert named(found(tail, "foreign_read", options, shift=((0, 0), (1, 1)))) == mark


# ------------------------------------------------------------------------------------------------------------- the others


class LeavesAll(outside_subjects.Clean):
    def run(self, call: Any, send: Any, recv: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize(
    ("backend", "shifts", "mark"),
    [
        (outside_subjects.SkipsOddStarts, (0, 1, 2), "nvshmem-131"),
        (LeavesAll, (0, 1, 2), None),  # even starts are unwritten as well
        (outside_subjects.LeavesTail, (1,), None),  # a part of a range
    ],
)
def test_unwritten_from_odd_starts(backend: Any, shifts: tuple[int, ...], mark: str | None) -> None:
    finding = found(coverage, "unwritten", backend=backend, shift=tuple((n, n) for n in shifts))
    assert finding.verdict is Verdict.FAIL
    assert named(finding) == mark


class FlipsOddCounts(outside_subjects.Clean):
    """Every other call, the lowest bit of the first element; only where the count is no multiple of 4."""

    every = 4

    def run(self, call: Any, send: Any, recv: Any) -> None:
        super().run(call, send, recv)
        if self.calls % 2 and call.count % self.every:
            for rank in call.receivers(2):
                recv[rank].buffer[recv[rank].offset] ^= 1


class FlipsOddCountsOf8(FlipsOddCounts):
    every = 8


@pytest.mark.parametrize(
    ("backend", "counts", "mark"),
    [
        (FlipsOddCounts, (7, 12, 1026), "nccl-2479"),
        (FlipsOddCounts, (7, 1026), None),  # no multiple of 4 was tried
        (FlipsOddCountsOf8, (7, 12, 1026), None),
    ],
)
def test_counts_that_do_not_repeat(backend: Any, counts: tuple[int, ...], mark: str | None) -> None:
    assert named(found(repeatability, "not_repeatable", backend=backend, count=counts)) == mark


class ByParity(Simulator):
    """Toward zero with an odd number of side communicators alive."""

    odd = (1,)

    def run(self, call: Any, send: Any, recv: Any) -> None:
        kept = self.options
        if self._side_communicators % 2 in self.odd and self._side_communicators:
            self.options = type(kept).parse({"final": "toward_zero"})
        super().run(call, send, recv)
        self.options = kept


class ByAny(ByParity):
    odd = (0, 1)


@pytest.mark.parametrize(("backend", "mark"), [(ByParity, "nccl-2360"), (ByAny, None)])
def test_parity_of_other_communicators(backend: Any, mark: str | None) -> None:
    finding = found(repeatability, "history_dependence", backend=backend)
    assert finding.verdict is Verdict.FAIL or finding.verdict is Verdict.INFORMATION
    assert named(finding) == mark


@pytest.mark.parametrize(
    ("mode", "name", "mark"),
    [
        ("ties_to_away", "bfloat16", "mpich-bfloat16-ties"),
        ("ties_to_away", "binary16", None),
        ("ties_to_even", "bfloat16", None),
    ],
)
def test_ties(mode: str, name: str, mark: str | None) -> None:
    assert named(found(rounding, "rounding_mode", {"final": mode}, format=(name,))) == mark


# -------------------------------------------------------------------------------------------------------------- the table


def test_what_passes_bears_no_mark() -> None:
    finding = found(rounding, "rounding_mode", {"final": "ties_to_away"})
    row = {**finding.to_json(), "verdict": "PASS"}
    assert matches(row) is None
    assert matches({"verdict": "FAIL", "kind": "unwritten"}) is None  # a row without figures
    assert matches({}) is None


def test_every_mark_can_be_read_and_stands_in_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "docs" / "findings.md").read_text()
    first = text.partition("## Special values")[0]
    for one in known_signatures():
        assert one.kind in KINDS
        assert one.report.startswith("https://")
        assert one.words.startswith("matches ")
        for told in (one.id, one.kind, one.report, one.matched_by, one.reported):
            assert told in first, f"docs/findings.md lacks {told!r}"
    assert len({one.id for one in known_signatures()}) == len(known_signatures())
