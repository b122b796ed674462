"""What a verdict means in words, and what a person does next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.model import Verdict
from auditor.report.words import Row, verdict_of, worst_of

VERDICT_WORDS = {
    Verdict.FAIL: "At least one fault was found",
    Verdict.INCONCLUSIVE: "No fault was found, but questions stayed open",
    Verdict.INFORMATION: "No fault was found; properties that are legal were",
    Verdict.PASS: "No fault was found in what was looked at",
    Verdict.WAIVED: "Nothing could be looked at",
}
NEXT = {
    Verdict.FAIL: "Start with {first}: run its command again to see whether the fault repeats, then send that finding with its "
    "evidence to whoever maintains the library, and keep this directory.",
    Verdict.INCONCLUSIVE: "Read what stayed open, from {first} on; more repeats, or running again what was cut short, answers "
    "most of it.",
    Verdict.INFORMATION: "Read the properties below; state the ones that you rely on under [expect] in the config, and a later "
    "change becomes a FAIL.",
    Verdict.PASS: "Keep this directory, to compare with after the next driver or library upgrade.",
    Verdict.WAIVED: "Read why under “Not audited, and why”, mend it, and run again; this page shows nothing about the subject.",
}
INTERRUPTED = (
    "The run was interrupted: go on with auditor run, --resume and --out with this directory, then read the findings."
)


def next_step(content: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """One sentence: what a person does now. ``content``: that of findings.json."""
    if content.get("exit_code") == 130:
        return INTERRUPTED
    verdict = worst_of([content])
    first = next((str(row.get("id", "")) for row in rows if verdict_of(row) is verdict), "the first")
    return NEXT[verdict].format(first=first)
