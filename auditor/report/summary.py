"""What the terminal shows after a run: the verdict, a line an (arm, probe), what was not looked at, what to know and to do next.

Lines fit the terminal. What fails or stayed open is wrapped, what passed is cut; a command is neither, so that it can be copied.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.model import Verdict
from auditor.report.advice import code_words, place, plan_of, steps
from auditor.report.notices import notices
from auditor.report.words import (
    Labels,
    Row,
    bare_claim,
    gist,
    listed,
    one_line,
    tally,
    tally_text,
    verdict_of,
    worst_of,
)

PAPER = 160  # columns where nobody says how many there are
LEAST = 40
OPEN_LINES = 8  # reasons that are listed
HEAD_LINES, OPEN_WRAP = 3, 3  # lines at most of the verdict, of a reason
FOUND_LINES = {Verdict.FAIL: 4, Verdict.INCONCLUSIVE: 4, Verdict.INFORMATION: 2}  # lines at most of what was found
NARROW = 36  # columns below which what was found goes to lines of its own
ANSI = {
    Verdict.FAIL: "1;31",
    Verdict.INCONCLUSIVE: "1;33",
    Verdict.INFORMATION: "1;36",
    Verdict.PASS: "1;32",
    Verdict.WAIVED: "1",
}


def summary_lines(content: Mapping[str, Any], width: int | None, run_dir: Path | None = None) -> list[str]:
    """Lines for the content of findings.json. ``width``: columns of the terminal; None: no terminal, so no colour either.
    ``run_dir``: where the content is from, so that the next commands can name it; None: none are printed.

    NO_COLOR (set and not empty) and TERM=dumb switch colour off; it marks verdict words alone and never stands for one.
    """
    colour = width is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = PAPER if width is None else max(width, LEAST)
    rows: Sequence[Row] = content.get("findings", ())
    groups = groups_of(content.get("arms", ()), rows)
    lines = _wrapped(_verdict_line(content, rows), columns, "  ", HEAD_LINES)
    lines += _table(groups, Labels(rows), columns)
    lines += _listed("not looked at:", _not_looked_at(groups), columns)
    lines += _listed("know this first:", notices(content, {}, (), ()), columns)
    lines += _next(content, rows, run_dir, columns) if run_dir is not None else []
    return [_painted(line) for line in lines] if colour else lines


def _wrapped(text: str, columns: int, indent: str, most: int, first: str = "") -> list[str]:
    """Text in at most ``most`` lines of ``columns``, the later ones indented; what is left out is marked by dots."""
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=indent,
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def _verdict_line(content: Mapping[str, Any], rows: Sequence[Row]) -> str:
    code = content.get("exit_code")
    words = code_words(code)
    meaning = f" ({words})" if words else ""
    run = one_line(content.get("run_id", ""))
    return f"{content.get('verdict', 'WAIVED')}  exit code {code}{meaning}: {tally_text(rows)}; run {run}"


def groups_of(arms: Iterable[Mapping[str, Any]], rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Findings by (arm, probe): arms in the run's order, probes as the findings' kinds first name them, harness first."""
    order = list(dict.fromkeys([one_line(arm.get("name", "")) for arm in arms] + [_name(row, "arm") for row in rows]))
    probes = ["harness", *_probe_order(rows)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (order.index(_name(row, "arm")), probes.index(_name(row, "probe")))):
        groups.setdefault((_name(row, "arm"), _name(row, "probe")), []).append(row)
    return groups


def _probe_order(rows: Sequence[Row]) -> list[str]:
    from auditor.probes import PROBES

    return list(dict.fromkeys([*PROBES, *(_name(row, "probe") for row in rows)]))


def _name(row: Row, key: str) -> str:
    return one_line(row.get(key, ""))


# ------------------------------------------------------------------------------------------------------------------- table


def _table(groups: Mapping[tuple[str, str], Sequence[Row]], labels: Labels, columns: int) -> list[str]:
    """Arm, probe, verdict, counts, what was found; a group of WAIVED findings alone has its place further down."""
    shown = {key: rows for key, rows in groups.items() if worst_of(rows) is not Verdict.WAIVED}
    cells = [
        [arm, probe, str(worst_of(rows)), _counts(rows, short=columns < 110), _found(rows, labels)]
        for (arm, probe), rows in shown.items()
    ]
    if not cells:
        return []
    cells.insert(0, ["arm", "probe", "verdict", "findings", "what was found"])
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    widths[0] = min(widths[0], max(8, columns // 6))
    return [line for row in cells for line in _lines(row, widths, columns)]


def _lines(row: Sequence[str], widths: Sequence[int], columns: int) -> list[str]:
    """One row: in one line where it passed, in a few where there is something to tell."""
    start = "  ".join([*(_padded(row[i], widths[i]) for i in range(4)), ""])
    most = FOUND_LINES.get(Verdict(row[2])) if row[2] in ANSI else None
    if most is None:
        return [_fit((start + row[4]).rstrip(), columns)]
    if columns - len(start) >= NARROW:
        return _wrapped(row[4], columns, " " * len(start), most, first=start)
    return [_fit(start.rstrip(), columns), *_wrapped(row[4], columns, "    ", most, first="    ")]


def _counts(rows: Sequence[Row], *, short: bool) -> str:
    counts = tally(rows)
    if short:
        return f"{counts[worst_of(rows)]} of {len(rows)}"
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items())


def _found(rows: Sequence[Row], labels: Labels) -> str:
    worst = worst_of(rows)
    return gist([row for row in rows if verdict_of(row) is worst], labels)


def _padded(text: str, width: int) -> str:
    return _fit(text, width).ljust(width)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


# -------------------------------------------------------------------------------------------------------- not looked at


def _listed(head: str, told: Sequence[str], columns: int) -> list[str]:
    """Some sentences under a heading, the first few of many."""
    kept = told if len(told) <= OPEN_LINES else told[: OPEN_LINES - 1]
    more = [f"  and {len(told) - len(kept)} more; the report lists them"] if len(kept) < len(told) else []
    lines = [line for text in kept for line in _wrapped(text, columns, "    ", OPEN_WRAP, first="  ")]
    return [head, *lines, *more] if told else []


def _not_looked_at(groups: Mapping[tuple[str, str], Sequence[Row]]) -> list[str]:
    """What is WAIVED, and what stayed open where the table shows something worse; each reason once, with its arms."""
    said: dict[tuple[str, Verdict, str], list[tuple[str, Row]]] = {}
    for (arm, probe), rows in groups.items():
        for row in rows:
            verdict = verdict_of(row)
            told = verdict is Verdict.INCONCLUSIVE is not worst_of(rows)  # the table says it otherwise
            if verdict is Verdict.WAIVED or told:
                said.setdefault((probe, verdict, bare_claim(row)), []).append((arm, row))
    lines = []
    for (probe, verdict, claim), some in said.items():
        arms = list(dict.fromkeys(arm for arm, _ in some))
        times = f" ({len(some)} findings)" if len(some) > len(arms) else ""
        lines.append(f"{listed(arms, 6)}, {probe}: {verdict}{times}: {claim}")
    return sorted(lines, key=lambda line: f": {Verdict.WAIVED}" in line)


def _next(content: Mapping[str, Any], rows: Sequence[Row], run_dir: Path, columns: int) -> list[str]:
    lines = ["next:"]
    for number, step in enumerate(steps(content, rows, plan_of(run_dir), place(run_dir)), 1):
        lines += _wrapped(step.words, columns, "     ", OPEN_WRAP, first=f"  {number}. ")
        lines += [f"     {step.command}"] if step.command else []
    return lines


def _painted(line: str) -> str:
    """The line with its first verdict word in bold colour."""
    at = min(((line.find(word), word) for word in ANSI if _stands_alone(line, word)), default=None)
    if at is None:
        return line
    start, word = at
    return f"{line[:start]}\033[{ANSI[word]}m{word}\033[0m{line[start + len(word) :]}"


def _stands_alone(line: str, word: str) -> bool:
    """Whether the word is in the line, between the places where a verdict stands."""
    at = line.find(word)
    before, after = line[at - 1 : at], line[at + len(word) : at + len(word) + 1]
    return at >= 0 and before in ("", " ") and after in ("", " ", ":")
