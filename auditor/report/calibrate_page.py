"""The page of a measured bound: one offline file beside the record, made from the record alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from auditor import __version__
from auditor.analysis import write_whole
from auditor.report import curves
from auditor.report.calibrate_text import figure, headline, rule_rows
from auditor.report.page import render
from auditor.report.words import many, number, one_line, percent

HOLDS = {True: "holds", False: "does not hold", None: "not known"}
TEMPLATE = "calibrate.html.j2"


def write(path: Path, record: Mapping[str, Any]) -> Path:
    """Write the page of the record at ``path`` beside it, as ``.html``. Raises EvidenceError."""
    return write_whole(path.with_suffix(".html"), render(gather(path, record), TEMPLATE))


def gather(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """All that the template shows."""
    environment = record["environment"]
    return {
        "title": f"Measured bound: {one_line(record['workload'])}",
        "verdict": record["verdict"],
        "headline": headline(record).split("  ", 1)[1],
        "host": one_line(environment.get("system", {}).get("host") or "an unrecorded host"),
        "date": one_line(environment.get("date") or "an unrecorded date"),
        "command": record["request"]["command"],
        "check": f"auditor check --bound {path.name}",
        "conditions": list(flat(record["conditions"])),
        "orders": record["orders"],
        "checks": record["checks"],
        "bound": record["bound"],
        "planted": record["planted"],
        "law_says": record["law"]["says"],
        "rules": [{**row, "name": rule["name"], "says": rule["says"]} for row, rule in _rules(record)],
        "groups": _groups(record),
        "panels": curves.panels(record),
        "of": record["curves"]["of"],
        "replay": record["replay"],
        "assumptions": [{**one, "word": HOLDS[one["holds"]]} for one in record["assumptions"]],
        "gates": record["gates"],
        "study": record["study"],
        "environment": list(_surroundings(environment)),
        "run_id": record["run_id"],
        "digest": record["digest"],
        "number": number,
        "figure": figure,
        "auditor_version": __version__,
    }


def _rules(record: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], Mapping[str, Any]]]:
    yield from zip(rule_rows(record), record["rules"], strict=True)


def _groups(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Held-out orders: what they are, and how far the farthest lies."""
    told = []
    for group in record["held_out"]:
        beyond = group["beyond_calibrated_worst"]
        told.append(
            {
                "group": group["group"],
                "orders": number(group["orders"]),
                "different": number(group["different_outputs"]),
                "worst": number(group["worst_ulp_steps"]),
                "beyond": f"{number(beyond['count'])} ({percent(beyond['low'])} to {percent(beyond['high'])})",
            }
        )
    return told


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested mapping as pairs of a dotted name and a text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, ", ".join(_plain(item) for item in many(value))


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else one_line(number(value))


def _surroundings(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What of the environment a reader asks for first; the record has the rest."""
    system, cpu = environment.get("system", {}), environment.get("cpu", {})
    told = {
        "auditor": " ".join(str(part) for part in environment.get("auditor", {}).values() if part),
        "Python": environment.get("python"),
        "operating system": " ".join(str(system.get(key, "")) for key in ("os", "kernel", "machine")).strip(),
        "CPU": f"{cpu.get('model')} ({cpu.get('usable')} of {cpu.get('count')} usable)" if cpu else None,
        "packages": ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items()),
        "variables": ", ".join(f"{name}={value}" for name, value in environment.get("variables", {}).items()),
    }
    yield from ((key, one_line(value)) for key, value in told.items() if value)
