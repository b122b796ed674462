"""findings.json as Markdown for a job's log or summary page: the first screen of the report, a table, what was not audited.

Its size is bounded whatever the run, since pages that take Markdown cut or refuse what is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from auditor.model import Verdict
from auditor.report.advice import VERDICT_WORDS, code_words, place
from auditor.report.head import recorded, subjects, worst_lines
from auditor.report.source import RunFacts
from auditor.report.summary import groups_of
from auditor.report.words import Labels, Row, bare_claim, gist, listed, one_line, tally_text, verdict_of, worst_of

TABLE, FINDINGS, WAIVED = 48, 20, 20  # rows at most; the totals are stated
CLAIM = 300  # characters of a claim
LIMIT = 60_000  # characters of the whole: code hosts take 65,536 in a comment


def text(run: RunFacts) -> str:
    """The document, in the Markdown that code hosts share (tables, fences)."""
    labels = Labels(run.rows)
    head, foot = _head(run, labels), _foot(run)
    room = LIMIT - sum(len(line) + 1 for line in [*head, *foot])
    lines, left = head, 0
    for part in [_table(run, labels), *_findings(run.rows), _waived(run.rows)]:
        size = sum(len(line) + 1 for line in part)
        if size <= room - CLAIM:
            lines, room = lines + part, room - size
        else:
            left += 1
    return "\n".join([*lines, *_left(left, "parts"), *foot]) + "\n"


def _head(run: RunFacts, labels: Labels) -> list[str]:
    worst = worst_lines(run.rows, labels)
    lines = [f"## {run.verdict}: {_cut(run.title)}", "", f"{VERDICT_WORDS[run.verdict]}. {_counts(run)}", ""]
    lines += [f"- **{_md(one['arms'])}**: {_cut(one['gist'])}" for one in worst["lines"]]
    lines += [f"- and {worst['more']} more, in the table"] if worst["more"] else []
    where = _md(recorded(run.hosts, run.environment.get("date")))
    audited = f"**Audited:** {_cut(subjects(run.arms) or 'no arm')}. {where}"
    lines += [*([""] if worst["lines"] else []), audited, "", "**What to do next**", ""]
    for number, step in enumerate(run.steps, 1):
        lines += [f"{number}. {_md(step.words)}", *_fence(step.command, "   ")]
    if run.notices:
        lines += ["", "**Know this first**", "", *(f"- {_cut(words)}" for words in run.notices)]
    return lines


def _counts(run: RunFacts) -> str:
    words = code_words(run.exit_code)
    return f"{tally_text(run.rows)}. Exit code {run.exit_code}{f' ({words})' if words else ''}."


def _table(run: RunFacts, labels: Labels) -> list[str]:
    """One row an arm and probe, as the terminal shows it."""
    every = groups_of(run.arms, run.rows).items()
    groups = [
        (key, rows) for key, rows in every if worst_of(rows) is not Verdict.WAIVED
    ]  # those have a list of their own
    if not groups:
        return [] if run.rows else ["", "The run has no findings."]
    lines = ["", "| arm | probe | verdict | findings | what was found |", "|---|---|---|---|---|"]
    for (arm, probe), rows in groups[:TABLE]:
        worst = worst_of(rows)
        found = gist([row for row in rows if verdict_of(row) is worst], labels)
        lines.append(f"| {_md(arm)} | {_md(probe)} | {worst} | {tally_text(rows)} | {_cut(found)} |")
    return [*lines, *_left(len(groups) - TABLE, "rows")]


def _findings(rows: Sequence[Row]) -> list[list[str]]:
    """What fails or stayed open, each with its claim and its command: a part each."""
    mine = [row for row in rows if verdict_of(row) in (Verdict.FAIL, Verdict.INCONCLUSIVE)]
    parts = []
    for row in mine[:FINDINGS]:
        name = " ".join(one_line(row.get(key, "")) for key in ("id", "kind"))
        told = f"**{verdict_of(row)} {_md(name)}** on {_md(row.get('arm', ''))}: {_cut(row.get('claim', ''))}"
        parts.append(["", told, *_fence(_short(row.get("reproduce", "")), "")])
    return [*parts, _left(len(mine) - FINDINGS, "findings")]


def _waived(rows: Iterable[Row]) -> list[str]:
    said: dict[str, list[str]] = {}
    for row in rows:
        if verdict_of(row) is Verdict.WAIVED:
            said.setdefault(bare_claim(row), []).append(one_line(row.get("arm", "")))
    if not said:
        return []
    lines = [f"- {_md(listed(dict.fromkeys(arms), 6))}: {_cut(claim)}" for claim, arms in list(said.items())[:WAIVED]]
    return ["", "**Not audited, and why**", "", *lines, *_left(len(said) - WAIVED, "reasons")]


def _left(number: int, noun: str) -> list[str]:
    return ["", f"{number:,} more {noun} are in the report."] if number > 0 else []


def _foot(run: RunFacts) -> list[str]:
    digest = run.digest("run.h5")
    record = f"; SHA-256 of run.h5 `{digest}`" if digest else ""
    return ["", f"Run `{_code(run.run_id)}` in `{_code(place(run.run_dir))}`{record}."]


def _fence(command: str, indent: str) -> list[str]:
    """A block of one command, with a fence longer than any that it holds."""
    if not command:
        return []
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return [f"{indent}{ticks}sh", f"{indent}{one_line(command)}", f"{indent}{ticks}"]


def _short(command: Any) -> str:
    """A command, or none where it is too long for a log: half a command is worse than none."""
    words = one_line(command)
    return words if len(words) <= 2 * CLAIM else ""


def _cut(words: Any) -> str:
    told = one_line(words)
    return _md(told if len(told) <= CLAIM else told[: CLAIM - 1].rstrip() + "…")


def _code(words: str) -> str:
    return one_line(words).replace("`", "'")


def _md(words: Any) -> str:
    """Text in which nothing is markup: a subject's message cannot make a link, a heading, a mention or a new table cell."""
    told = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
    return re.sub(r"([\\`*\[\]|#~])", r"\\\1", told)
