"""The first screen: what was audited, the worst verdict and what it amounts to, what must be known first, what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.model import Verdict
from auditor.report.advice import VERDICT_WORDS, code_words, place, steps
from auditor.report.cards import label
from auditor.report.notices import notices
from auditor.report.surroundings import hosts
from auditor.report.words import (
    Labels,
    Row,
    gist,
    listed,
    number,
    one_line,
    part,
    plural,
    tally_text,
    verdict_of,
    worst_of,
)
from auditor.store import RunReader

WORST = 3  # probes whose worst findings the first screen names
SUBJECTS = 6  # subjects that it names
VERSION = re.compile(r"version|^numpy$|mpi4py|nccl|nvshmem|cuda|cupy|driver|gpu|device|standard", re.IGNORECASE)


def head(
    run_dir: Path, content: Mapping[str, Any], rows: Sequence[Row], labels: Labels, reader: RunReader
) -> dict[str, Any]:
    """What the banner and the arms show."""
    verdict, sources = verdict_of(content), reader.sources()
    arms = [arm for arm in content.get("arms", ()) if isinstance(arm, Mapping)]
    reasons = {name: reader.arm(name).reason for name in reader.arm_names}
    return {
        "title": one_line(reader.plan.get("title") or "Audit of collective sums"),
        "verdict": verdict,
        "verdict_words": VERDICT_WORDS[verdict],
        "exit_code": content.get("exit_code"),
        "exit_words": code_words(content.get("exit_code")),
        "counts": tally_text(rows),
        "subjects": subjects(arms),
        "worst": worst_lines(rows, labels),
        "steps": steps(content, rows, reader.plan, place(run_dir)),
        "notices": notices(content, reasons, sources, reader.problems),
        "recorded": recorded(list(hosts(sources)), reader.environment.get("date")),
        "arms": [_arm(arm, rows, reader) for arm in arms],
    }


def recorded(hosts: Sequence[str], date: Any) -> str:
    """``On node7, 2026-01-02 03:04 UTC.``"""
    return f"On {listed(hosts, 4)}, {day(date)}." if hosts else "Nothing was recorded."


def day(date: Any) -> str:
    """``2026-01-02 03:04 UTC`` of an ISO date in UTC; other text as it is."""
    text = one_line(date or "an unrecorded date")
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(\.\d+)?(\+00:00|Z)$", r"\1 \2 UTC", text)


def subjects(arms: Sequence[Mapping[str, Any]]) -> str:
    """``MPICH 5.0.2 on 4 ranks (mpi, mpi-ring); nccl on 8 ranks (ring: unavailable)``: arms of one subject together."""
    found: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        ranks, status = arm.get("rank_n"), one_line(arm.get("status", ""))
        of = f" on {plural(ranks, 'rank')}" if isinstance(ranks, int) else ""
        found.setdefault((f"{subject(arm)}{of}", status), []).append(one_line(arm.get("name", "")))
    told = [
        f"{words} ({listed(names, 4)}{'' if status in ('ok', '') else f': {status}'})"
        for (words, status), names in found.items()
    ]
    more = f"; and {len(told) - SUBJECTS} more" if len(told) > SUBJECTS else ""
    return "; ".join(told[:SUBJECTS]) + more


def subject(arm: Mapping[str, Any]) -> str:
    """An arm's library with its version, as its backend described it; the backend's name where it did not."""
    told, backend = part(arm, "describe"), one_line(arm.get("backend", ""))
    if told.get("simulated") is True:
        preset = one_line(told.get("preset") or "")
        return f"the model {preset}" if preset and preset != "none" else "a model"
    version = one_line(told.get(backend) or "")
    if version and len(version) <= 24:
        return f"{backend.upper()} {version}"
    named = one_line(told.get("library_version") or "")
    return named if re.search("[A-Za-z]", named) else f"{backend} {named}".strip()


def worst_lines(rows: Sequence[Row], labels: Labels) -> dict[str, Any]:
    """What the run's worst verdict amounts to, a line a probe with its arms, and how many more there are. PASS and WAIVED need
    no words.
    """
    verdict = worst_of(rows)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if verdict_of(row) is verdict and verdict not in (Verdict.PASS, Verdict.WAIVED):
            groups.setdefault(one_line(row.get("probe", "")), []).append(row)
    told = [
        {
            "arms": listed(dict.fromkeys(one_line(row.get("arm", "")) for row in some), 3),
            "finding": str(some[0].get("id", "")),
            "gist": gist(some, labels),
        }
        for some in groups.values()
    ]
    return {"lines": told[:WORST], "more": max(0, len(told) - WORST)}


# -------------------------------------------------------------------------------------------------------------------- arms


def _arm(arm: Mapping[str, Any], rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    name = str(arm.get("name", ""))
    mine = [row for row in rows if row.get("arm") == name]
    planned = reader.arm(name) if name in reader.arm_names else None
    plan = planned.plan if planned is not None else {}
    path, says = plan.get("path"), _described(part(arm, "describe"))
    return {
        "name": name,
        "backend": arm.get("backend", ""),
        "ranks": arm.get("rank_n", ""),
        "status": arm.get("status", ""),
        "reason": planned.reason if planned is not None else "",
        "verdict": worst_of(mine) if mine else None,
        "counts": tally_text(mine),
        "settings": [(name, lines) for name in ("env", "options") if (lines := _settings(part(plan, name)))],
        "path": one_line(path or ""),
        "versions": [pair for pair in says if VERSION.search(pair[0])],
        "says": [pair for pair in says if not VERSION.search(pair[0])],
        "trials": number(len(planned.planned)) if planned is not None else "0",
    }


def _settings(told: Mapping[str, Any]) -> list[str]:
    return [one_line(f"{key}={_setting(value)}") for key, value in told.items()]


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else number(value) if isinstance(value, (int, float)) else one_line(value)


def _described(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the backend says of itself, flat, long texts cut; all of it is in findings.json."""
    pairs = []
    for key, value in told.items():
        text = listed((f"{k} {_setting(v)}" for k, v in value.items()), 8) if isinstance(value, Mapping) else None
        text = listed([_setting(item) for item in value], 8) if isinstance(value, list) else text
        text = one_line(_setting(value) if text is None else text)
        pairs.append((label(key), text if len(text) <= 160 else text[:157] + "…"))
    return [(key, text) for key, text in pairs if text and text != "none"]
