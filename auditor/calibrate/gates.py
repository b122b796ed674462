"""Gates that a local workload must pass before a bound measured on it means anything.

Every element is written (poison), the inputs of this very call are read (stale input), the results are there when the call
returns (early return), and the time that the workload claims is one that its work can have taken (false time).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditor.calibrate.device import Array, Device
from auditor.calibrate.reference import Reference
from auditor.calibrate.rules import PERCENT, Mask, a_priori_slack
from auditor.model import Codes, Verdict
from auditor.numerics.formats import Format
from auditor.probes.values import F64, to_float64

REPEATS, REPEATS_LEAST = 5, 2  # calls whose times are looked at; the least where they are slow
PATIENCE = 8.0  # seconds of calls after which no more are made
EARLY_REPEATS = 3
SAMPLE = 256  # elements at the end of the output that are looked at first
LINGER = (0.25, 2.0)  # least and most seconds that an output is watched after the return
SLACK = 1e-3  # seconds by which the two clocks may differ whatever the ratio


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate's answer; ``kind`` is the finding's kind of the same meaning."""

    kind: str
    verdict: Verdict
    says: str
    measure: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "verdict": str(self.verdict), "says": self.says, "measure": dict(self.measure)}


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload with its inputs laid out. ``call(out)`` fills ``out`` and returns the seconds that it claims, or None.

    ``nbytes``: of inputs and output together, each touched at least once. ``n``: elements of the output.
    """

    device: Device
    fmt: Format
    n: int
    nbytes: int
    call: Callable[[Any], float | None]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"f{self.fmt.itemsize}")

    def poisons(self) -> tuple[int, int]:
        """Two signalling NaNs: no addition returns one."""
        return self.fmt.overflow_code | 1, self.fmt.overflow_code | 2

    def blank(self, code: int) -> Any:
        """An output full of one code."""
        return self.device.put(np.full(self.n, code, self.fmt.dtype).view(self.dtype))

    def codes(self, array: Array) -> Codes:
        return np.ascontiguousarray(array).view(self.fmt.dtype)

    def result(self, code: int | None = None) -> Codes:
        """The output of one call into a poisoned buffer, complete."""
        out = self.blank(self.poisons()[0] if code is None else code)
        self.call(out)
        return self.codes(self.device.get(out))

    def settled(self, out: Any, seconds: float) -> Array:
        """What stands in ``out`` once the device has settled and ``seconds`` more have passed."""
        self.device.settle()
        time.sleep(seconds)
        return self.device.get(out)


def every_element_written(subject: Subject) -> Gate:
    """Two calls into buffers of different poison: what is poison in both was not written."""
    first, second = (subject.result(code) for code in subject.poisons())
    left = (first == subject.fmt.dtype.type(subject.poisons()[0])) & (
        second == subject.fmt.dtype.type(subject.poisons()[1])
    )
    count = int(left.sum())
    where = [int(k) for k in np.flatnonzero(left)[:16]]
    if count:
        says = (
            f"{count:,} of {subject.n:,} elements keep the poison that was there before, the first at index {where[0]}."
        )
        return Gate("unwritten", Verdict.FAIL, says, {"elements": count, "of": subject.n, "first": where})
    return Gate("unwritten", Verdict.PASS, f"All {subject.n:,} elements are written over two different poisons.")


@dataclass(frozen=True, slots=True, eq=False)
class Right:
    """What is right for some data, shape (n,). ``slack``: the largest legal error, where it is known."""

    value: F64
    slack: F64 | None = None

    @staticmethod
    def of(reference: Reference) -> Right:
        known = reference.magnitude is not None
        return Right(reference.value, a_priori_slack(reference, directed=True) if known else None)

    def near(self, value: F64) -> Mask:
        """Elements within the slack; within 1 % where it is not known."""
        allowed = PERCENT * np.abs(self.value) if self.slack is None else self.slack
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(value - self.value) <= allowed, np.bool_)


def read_again(fmt: Format, earlier: Codes, was: Right, now: Codes, should: Right) -> Gate:
    """``earlier``: the output for other data in the same memory; ``now``: that for the data that replaced it there.

    Stale: the very bits of before, which were right then, and are nearer to what was right then than to what is right now.
    """
    value = to_float64(fmt, now)
    with np.errstate(invalid="ignore"):
        nearer = np.abs(value - was.value) < np.abs(value - should.value)
    stale = (now == earlier) & was.near(value) & nearer
    wrong = ~should.near(value) if should.slack is not None else np.zeros(len(now), np.bool_)
    for kind, mask, words in (
        (
            "stale_term",
            stale,
            "still the result of the data that lay in the same memory before: the input is not read again",
        ),
        ("wrong_value", wrong, "no sum of the input in any order, nor the result of before"),
    ):
        if mask.any():
            found = {"elements": int(mask.sum()), "of": len(now)}
            return Gate(kind, Verdict.FAIL, f"{found['elements']:,} of {found['of']:,} elements are {words}.", found)
    return Gate("stale_term", Verdict.PASS, "Replaced in the same memory, the input is read again.")


def inputs_unchanged(found: Array, given: Array) -> Gate:
    """The inputs after some calls against what was laid down, byte for byte."""
    changed = int(np.count_nonzero(found.view(np.uint8) != given.view(np.uint8)))
    if changed:
        says = f"{changed:,} bytes of the input are not what was laid down: the workload writes to it."
        return Gate("send_modified", Verdict.FAIL, says, {"bytes": changed})
    return Gate("send_modified", Verdict.PASS, "The input is as it was laid down, byte for byte.")


def complete_on_return(subject: Subject) -> Gate:
    """The output right after the return, its end first, against what stands there after everything has come to rest."""
    late, watched = 0, 0.0
    spent, calls = 0.0, 0
    while calls < EARLY_REPEATS and (not calls or spent < PATIENCE):
        out = subject.blank(subject.poisons()[0])
        began = time.perf_counter()
        subject.call(out)
        took = time.perf_counter() - began
        spent, calls = spent + took, calls + 1
        # The end alone is read within microseconds; both are contiguous, so that no kernel queues behind the subject's own.
        glimpses = [subject.codes(subject.device.peek(part)) for part in (out[-SAMPLE:], out)]
        watched = max(watched, min(max(LINGER[0], 3 * took), LINGER[1]))
        final = subject.codes(subject.settled(out, watched))
        late = max(late, *(int((seen != final[-len(seen) :]).sum()) for seen in glimpses))
    if late:
        says = (
            f"The call returns before its results are there: {late:,} elements read right after the return differ from what "
            "stands there once everything has come to rest."
        )
        return Gate("early_return", Verdict.FAIL, says, {"elements": late, "watched_seconds": round(watched, 3)})
    says = f"Nothing changes in the {watched:.3g} s after the return, in {calls} calls."
    return Gate("early_return", Verdict.PASS, says, {"watched_seconds": round(watched, 3)})


def honest_time(subject: Subject) -> Gate:
    """The claimed seconds against the host's clock around the completed call, and against what memory allows."""
    host, claimed = _times(subject)
    told = {"host_seconds": [float(f"{t:.4g}") for t in host], "bytes": subject.nbytes}
    if any(one is None for one in claimed):
        return Gate("false_time", Verdict.WAIVED, "The workload claims no time, so there is none to be judged.", told)
    own = [float(one) for one in claimed if one is not None]
    limit, known = subject.device.limit(subject.nbytes)
    told |= {"claimed_seconds": [float(f"{t:.4g}") for t in own], "limit_bytes_per_second": float(f"{limit:.4g}")}
    says = _time_trouble(host, own, subject.nbytes, limit, known)
    if says:
        return Gate("false_time", Verdict.FAIL, says, told)
    rate = subject.nbytes / min(own) / 1e9
    says = f"The claimed times agree with the host's clock in {len(own)} calls; {rate:.3g} GB/s is below the limit ({known})."
    return Gate("false_time", Verdict.PASS, says, told)


def _times(subject: Subject) -> tuple[list[float], list[float | None]]:
    """(host clock, own clock) of some calls, the host's from before the call until its results are complete."""
    out = subject.blank(0)
    host: list[float] = []
    own: list[float | None] = []
    while len(host) < REPEATS and (len(host) < REPEATS_LEAST or sum(host) < PATIENCE):
        subject.device.settle()
        began = time.perf_counter()
        claimed = subject.call(out)
        subject.device.settle()
        host.append(time.perf_counter() - began)
        own.append(claimed)
    return host, own


def _time_trouble(host: Sequence[float], own: Sequence[float], nbytes: int, limit: float, known: str) -> str:
    """What is wrong with the claimed times; "" where nothing is. One slow call on a busy machine decides nothing."""
    pairs, least = list(zip(host, own, strict=True)), min(own)
    if least <= 0 or nbytes / least > limit:
        rate = f"{nbytes / least / 1e9:.4g} GB/s" if least > 0 else "no time at all"
        return f"The workload claims {least:.3g} s for {nbytes:,} bytes, {rate}; the limit is {limit / 1e9:.4g} GB/s ({known})."
    said = f"In each of {len(pairs)} calls the workload claims"
    if all(clock - one > max(0.5 * clock, SLACK) for clock, one in pairs):
        return f"{said} less than half of what the host's clock saw ({own[0]:.3g} s of {host[0]:.3g} s)."
    if all(one > 1.1 * clock + SLACK for clock, one in pairs):
        return f"{said} more than the host's clock saw ({own[0]:.3g} s of {host[0]:.3g} s)."
    return ""
