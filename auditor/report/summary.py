"""What the terminal shows after a run: the verdict, one line an (arm, probe), and what could not be looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from auditor.model import Verdict
from auditor.report.advice import code_words
from auditor.report.words import Labels, Row, bare_claim, gist, one_line, tally, tally_text, verdict_of, worst_of

PAPER = 160  # columns where nobody says how many there are
LEAST = 40
OPEN_LINES = 8
ANSI = {
    Verdict.FAIL: "1;31",
    Verdict.INCONCLUSIVE: "1;33",
    Verdict.INFORMATION: "1;36",
    Verdict.PASS: "1;32",
    Verdict.WAIVED: "1",
}


def summary_lines(content: Mapping[str, Any], width: int | None) -> list[str]:
    """Lines for the content of findings.json. ``width``: columns of the terminal; None: no terminal, so no colour either.

    NO_COLOR (set and not empty) and TERM=dumb switch colour off; it marks verdict words alone and never stands for one.
    """
    colour = width is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = PAPER if width is None else max(width, LEAST)
    rows: Sequence[Row] = content.get("findings", ())
    groups = _groups(content.get("arms", ()), rows)
    lines = [_verdict_line(content, rows)]
    lines += _table(groups, Labels(rows), columns)
    lines += _not_looked_at(groups, columns)
    cut = [_fit(line, columns) for line in lines]
    return [_painted(line) for line in cut] if colour else cut


def _verdict_line(content: Mapping[str, Any], rows: Sequence[Row]) -> str:
    code = content.get("exit_code")
    words = code_words(code)
    meaning = f" ({words})" if words else ""
    run = one_line(content.get("run_id", ""))
    return f"{content.get('verdict', 'WAIVED')}  exit code {code}{meaning}: {tally_text(rows)}; run {run}"


def _groups(arms: Iterable[Mapping[str, Any]], rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
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
    return ["  ".join([*(_padded(row[i], widths[i]) for i in range(4)), row[4]]).rstrip() for row in cells]


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


def _not_looked_at(groups: Mapping[tuple[str, str], Sequence[Row]], columns: int) -> list[str]:
    """What is WAIVED, and what stayed open where the table shows something worse."""
    lines = [line for key, rows in groups.items() for line in _open_lines(key, rows)]
    if not lines:
        return []
    kept = lines if len(lines) <= OPEN_LINES else lines[: OPEN_LINES - 1]
    rest = [f"  and {len(lines) - len(kept)} more; the report lists them"] if len(kept) < len(lines) else []
    return [_fit(line, columns) for line in ["not looked at:", *kept, *rest]]


def _open_lines(key: tuple[str, str], rows: Sequence[Row]) -> Iterator[str]:
    worst = worst_of(rows)
    for verdict in (Verdict.INCONCLUSIVE, Verdict.WAIVED):
        mine = [row for row in rows if verdict_of(row) is verdict]
        if verdict is Verdict.INCONCLUSIVE is worst:
            continue  # the table says it
        said: dict[str, int] = {}
        for row in mine:
            said[bare_claim(row)] = said.get(bare_claim(row), 0) + 1
        for claim, n in said.items():
            times = f" ({n} findings)" if n > 1 else ""
            yield f"  {key[0]}, {key[1]}: {verdict}{times}: {claim}"


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
