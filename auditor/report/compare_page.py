"""A comparison as one offline page: the verdict first, then the likely causes, the bits, and every finding that changed."""

from __future__ import annotations

from typing import Any

from auditor import __version__
from auditor.compare.records import Beside, Change, Comparison, Pair, Run
from auditor.model import Verdict
from auditor.report.compare_rows import (
    BITS,
    CHANGED,
    bits_notes,
    cell_words,
    change_words,
    headline,
    names_of,
    notes,
    policy_line,
    tables,
    title,
)
from auditor.report.page import render
from auditor.report.words import one_line

# Which of a report's colours a comparison's verdict takes; the word is always beside it.
LOOKS = {
    "worse": Verdict.FAIL,
    "changed": Verdict.INFORMATION,
    "accepted": Verdict.WAIVED,
    "same": Verdict.PASS,
    "nothing in common": Verdict.INCONCLUSIVE,
}
NEXT = {
    "worse": "Look at what differs around the runs first: the library, the driver and the variables are the likely cause. Then "
    "take the first finding for the worse to whoever changed them.",
    "changed": "Look at what differs around the runs first. If a change is legal and wanted, write it into an --accept file with "
    "an owner, a reason and a date, and it pages nobody again.",
    "accepted": "Nothing: somebody answers for every change. The file that was given to --accept says who, and until when.",
    "same": "Nothing: in what both runs tried, the two are the same to the bit.",
    "nothing in common": "Run both with one config and the same number of ranks: only equal trials can be compared.",
}


def page(comparison: Comparison) -> str:
    """HTML of the whole comparison; needs no network and no scripts."""
    return render(gather(comparison), "compare.html.j2")


def gather(comparison: Comparison) -> dict[str, Any]:
    """All that the template shows."""
    pairs = [(beside, pair) for beside in comparison.besides for pair in beside.pairs]
    labels = [comparison.base.label, *(one.other.label for one in comparison.besides)]
    only = title(*pairs[0], comparison.base.label) if len(pairs) == 1 else " and ".join(labels)
    return {
        "title": one_line(only),
        "verdict": comparison.verdict,
        "look": LOOKS[comparison.verdict],
        "headline": headline(comparison),
        "policy": policy_line(comparison),
        "next_step": NEXT[comparison.verdict],
        "trouble": [one_line(line) for line in comparison.trouble],
        "runs": [_run(comparison.base, "base"), *(_run(one.other, "beside it") for one in comparison.besides)],
        "pairs": [
            _pair(beside, pair, comparison.base.label, f"p{number}") for number, (beside, pair) in enumerate(pairs)
        ],
        "notes": [note for beside in comparison.besides for note in notes(beside)],
        "auditor_version": __version__,
    }


def _run(run: Run, part: str) -> dict[str, str]:
    return {
        "label": one_line(run.label),
        "part": part,
        "run_id": one_line(run.run_id),
        "plan_id": one_line(run.plan_id),
        "date": one_line(run.date or "not recorded"),
        "findings": "derived for this page" if run.derived else "as findings.json holds them",
    }


def _pair(beside: Beside, pair: Pair, base: str, anchor: str) -> dict[str, Any]:
    names = names_of(beside, pair, base)
    return {
        "anchor": anchor,
        "title": one_line(title(beside, pair, base)),
        "tables": [
            (table, list(bits_notes(pair, names)) if table.title == BITS else []) for table in tables(pair, names)
        ],
        "changes": [_card(change) for change in pair.changes],
    }


def _card(change: Change) -> dict[str, Any]:
    """A finding that changed, with both claims."""
    return {
        "word": "worse" if change.worse else CHANGED[change.what],
        "look": Verdict.WAIVED if change.accepted else Verdict.FAIL if change.worse else Verdict.INFORMATION,
        "kind": one_line(change.kind),
        "probe": one_line(change.probe),
        "cell": cell_words(change),
        "base": (change.base_verdict, change.base_id, one_line(change.base_claim)),
        "other": (change.other_verdict, change.other_id, one_line(change.other_claim)),
        "words": change_words(change, cap=40),
    }
