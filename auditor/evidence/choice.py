"""Which finding a bundle is about."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.analysis.signatures import matches
from auditor.errors import ConfigError
from auditor.model import Finding, Verdict

MOST = 24  # ids that an error lists


def choose(findings: Sequence[Finding], wanted: str | None) -> Finding:
    """The finding of that id; without one the first that FAILs, else the first INFORMATION that matches a known signature.

    Raises ConfigError where there is none, or where there is nothing to show: what was looked for and not found, left open or not
    looked at has no failing case, and its record is all the evidence there is.
    """
    if wanted is None:
        return _worst(findings)
    for one in findings:
        if one.id == wanted:
            return _showable(one)
    raise ConfigError(f"--finding {wanted}: the run has no such finding; it has {_ids(findings)}")


def _worst(findings: Sequence[Finding]) -> Finding:
    failed = [one for one in findings if one.verdict is Verdict.FAIL]
    known = [one for one in findings if one.verdict is Verdict.INFORMATION and matches(one) is not None]
    if failed or known:
        return (failed or known)[0]
    legal = [one for one in findings if one.verdict is Verdict.INFORMATION]
    rest = f"; choose one of the legal properties with --finding: {_ids(legal)}" if legal else ""
    raise ConfigError(f"nothing FAILs, and no finding matches what is known{rest}")


def _showable(finding: Finding) -> Finding:
    reason = {
        Verdict.PASS: "was looked for and not found: no case shows it. Its bound stands in findings.json; hand over the run",
        Verdict.INCONCLUSIVE: "could not be told: there is nothing to show yet. Run it again with more repeats or counts",
        Verdict.WAIVED: "was not looked at: there is nothing to show",
    }.get(finding.verdict)
    if reason is not None:
        raise ConfigError(f"--finding {finding.id}: {finding.kind} is {finding.verdict} and {reason}")
    if finding.kind == "rounding_mode" and finding.verdict is not Verdict.FAIL and _as_usual(finding):
        raise ConfigError(
            f"--finding {finding.id}: every result is rounded to nearest, ties to even: there is nothing to show"
        )
    return finding


def _as_usual(finding: Finding) -> bool:
    return finding.measure.get("mode") == "ties_to_even"


def _ids(findings: Sequence[Finding]) -> str:
    """Ids with their kinds, those with something to show first; the flood capped."""
    some = [one for one in findings if one.verdict in (Verdict.FAIL, Verdict.INFORMATION)]
    names = [f"{one.id} ({one.verdict} {one.kind})" for one in some[:MOST]]
    rest = len(findings) - len(names)
    return ", ".join(names) + (f", and {rest} more" if names and rest > 0 else f"{rest} findings" if rest else "none")
