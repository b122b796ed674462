"""The parts of a page that list findings: at a glance, by verdict, what passed, what was not audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.model import Trial, Verdict
from auditor.probes import PROBES
from auditor.report.cards import Card, Hosts, card
from auditor.report.kinds import about
from auditor.report.words import (
    Labels,
    Row,
    bare_claim,
    gist,
    listed,
    one_line,
    tally_text,
    verdict_of,
    worst_of,
)
from auditor.store import RunReader

FULL_CARDS = 80  # findings worse than PASS that are shown in full; after these, one line each
FULL_EVIDENCE = 24  # of these, cards with all their evidence rows; later ones keep a few
LINES = 600  # one-line findings of a section
Place = tuple[str, str]  # arm, probe
Trials = Mapping[str, Mapping[str, Trial]]  # arm -> trial_id -> trial


def overview(rows: Sequence[Row], labels: Labels) -> list[dict[str, Any]]:
    """By arm and probe: the worst verdict, what it amounts to, and the first finding that says so."""
    known = ["harness", *PROBES]
    probes = list(dict.fromkeys([*known, *(str(row.get("probe", "")) for row in rows)]))
    groups: dict[Place, list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row.get("arm", "")), str(row.get("probe", ""))), []).append(row)
    arms = dict.fromkeys(
        str(row.get("arm", "")) for row in sorted(rows, key=lambda row: verdict_of(row) is Verdict.WAIVED)
    )
    return [
        {"arm": arm, "lines": [_line(probe, groups[arm, probe], labels) for probe in probes if (arm, probe) in groups]}
        for arm in arms
    ]


def _line(probe: str, rows: Sequence[Row], labels: Labels) -> dict[str, Any]:
    worst = [row for row in rows if verdict_of(row) is worst_of(rows)]
    return {
        "probe": probe,
        "verdict": worst_of(rows),
        "finding": worst[0].get("id", ""),
        "gist": gist(worst, labels),
        "counts": tally_text(rows),
    }


def sections(rows: Sequence[Row], trials: Trials, hosts: Hosts) -> dict[str, Any]:
    """Findings by verdict: cards for what is worse than PASS, lines for the rest."""
    made, room = [], FULL_CARDS
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.INFORMATION):
        mine = [row for row in rows if verdict_of(row) is verdict]
        full, room = mine[:room], room - len(mine[:room])
        lines = mine[len(full) :]
        made.append(
            {
                "verdict": verdict,
                "total": len(mine),
                "cards": [_card(row, trials, hosts, FULL_CARDS - room) for row in full],
                "lines": [_card(row, trials, hosts, FULL_CARDS) for row in lines[:LINES]],
                "left_out": max(0, len(lines) - LINES),
            }
        )
    passed = [row for row in rows if verdict_of(row) is Verdict.PASS]
    return {
        "sections": [section for section in made if section["total"]],
        "passed": _passed(passed),
        "passed_total": len(passed),
    }


def _passed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """PASS findings by probe and kind: each claim once, and each limit once."""
    groups: dict[Place, list[Row]] = {}
    for row in rows[:LINES]:
        groups.setdefault((one_line(row.get("probe", "")), one_line(row.get("kind", ""))), []).append(row)
    return [
        {
            "probe": probe,
            "kind": kind,
            "about": about(kind).looks_for,
            "arms": listed(dict.fromkeys(one_line(row.get("arm", "")) for row in some)),
            "rows": [(row.get("id", ""), one_line(row.get("arm", "")), one_line(row.get("claim", ""))) for row in some],
            "limits": [text for text in dict.fromkeys(one_line(row.get("limits", "")) for row in some) if text][:4],
        }
        for (probe, kind), some in groups.items()
    ]


def _card(row: Row, trials: Trials, hosts: Hosts, before: int) -> Card:
    kept = 16 if before <= FULL_EVIDENCE else 4
    return card(row, trials.get(str(row.get("arm", "")), {}), kept, hosts)


def absent(rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    """WAIVED findings once each by claim, with the arms that they hold for; and what nobody asked for."""
    waived: dict[str, list[Row]] = {}
    for row in rows:
        if verdict_of(row) is Verdict.WAIVED:
            waived.setdefault(bare_claim(row), []).append(row)
    asked = {probe for name in reader.arm_names for one in reader.arm(name).planned for probe in one.probes}
    return {
        "waived": [
            {
                "claim": claim,
                "arms": listed(dict.fromkeys(one_line(row.get("arm", "")) for row in some)),
                "ids": [str(row.get("id", "")) for row in some],
                "commands": list(dict.fromkeys(str(row.get("reproduce", "")) for row in some if row.get("reproduce")))[
                    :2
                ],
            }
            for claim, some in list(waived.items())[:LINES]
        ],
        "waived_left_out": max(0, len(waived) - LINES),
        "unasked": [name for name in PROBES if name not in asked],
    }
