"""The page: gathers what the template shows, from findings.json and the record, and writes it whole or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from auditor import __version__
from auditor.analysis import read_findings, write_whole
from auditor.model import Trial, Verdict
from auditor.probes import PROBES
from auditor.report import figures, grid
from auditor.report.advice import VERDICT_WORDS, next_step
from auditor.report.cards import Card, card, label
from auditor.report.words import (
    CLASSES,
    SYMBOLS,
    Labels,
    Row,
    bare_claim,
    clean,
    gist,
    listed,
    many,
    number,
    one_line,
    plural,
    tally_text,
    verdict_of,
    worst_of,
)
from auditor.store import RunReader

NAME = "report.html"
FULL_CARDS = 80  # findings worse than PASS that are shown in full; after these, one line each
FULL_EVIDENCE = 24  # of these, cards with all their evidence rows; later ones keep a few
LINES = 600  # one-line findings of a section
Place = tuple[str, str]  # arm, probe
VERSION = re.compile(r"version|^numpy$|mpi4py|nccl|nvshmem|cuda|cupy|driver|gpu|device|standard", re.IGNORECASE)


def write(run_dir: Path) -> Path:
    """Write ``report.html`` beside findings.json. Raises EvidenceError."""
    content = read_findings(run_dir)
    with RunReader(run_dir) as reader:
        context = gather(run_dir, content, reader)
    return write_whole(run_dir / NAME, render(context))


def render(context: Mapping[str, Any], template: str = "report.html.j2") -> str:
    """A template filled in. Everything is escaped; only drawings made by ``svg`` are marked as safe there."""
    folder = files("auditor.report") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters["ticks"] = ticks
    return environment.get_template(template).render(context)


def ticks(text: str) -> Markup:
    """Prose in which `name` stands for code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(clean(text)))))  # escaped first


def gather(run_dir: Path, content: Mapping[str, Any], reader: RunReader) -> dict[str, Any]:
    """All that the template shows."""
    rows = identified([row for row in content.get("findings", ()) if isinstance(row, Mapping)])
    labels = Labels(rows)
    trials = {name: {one.trial.trial_id: one.trial for one in reader.arm(name).planned} for name in reader.arm_names}
    every = {key: trial for mine in trials.values() for key, trial in mine.items()}
    bars, charts = figures.rounding_bars(rows, labels), figures.word_charts(rows, labels, every)
    sections = _sections(rows, trials)
    return {
        **_head(content, rows, reader),
        **sections,
        "shown": {one.id for section in sections["sections"] for one in (*section["cards"], *section["lines"])},
        **_grids(rows, reader),
        "overview": _overview(rows, labels),
        "symbols": SYMBOLS,
        "bars": bars[: figures.BARS],
        "bars_total": len(bars),
        "classes": CLASSES,
        "charts": charts[: figures.CHARTS],
        "charts_total": len(charts),
        "unchanged": figures.unchanged(rows, labels),
        "absent": _absent(rows, reader),
        "environment": _environment(reader),
        "digests": _digests(run_dir, reader),
        "problems": [one_line(problem) for problem in reader.problems],
        "auditor_version": __version__,
    }


def identified(rows: Sequence[Row]) -> list[Row]:
    """The findings, numbered anew where their ids would not do as anchors of a page."""
    ids = [str(row.get("id", "")) for row in rows]
    if len(set(ids)) == len(ids) and all(re.fullmatch(r"[A-Za-z][\w-]*", one) for one in ids):
        return list(rows)
    return [{**row, "id": f"N{number}"} for number, row in enumerate(rows, 1)]


# -------------------------------------------------------------------------------------------------------------------- head


def _head(content: Mapping[str, Any], rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    verdict = verdict_of(content)
    surroundings = reader.environment
    return {
        "title": one_line(reader.plan.get("title") or "Audit of collective sums"),
        "verdict": verdict,
        "verdict_words": VERDICT_WORDS[verdict],
        "exit_code": content.get("exit_code"),
        "counts": tally_text(rows),
        "next_step": next_step(content, rows),
        "host": one_line(_part(surroundings, "system").get("host") or "an unrecorded host"),
        "date": one_line(surroundings.get("date") or "an unrecorded date"),
        "arms": [_arm(arm, rows, reader) for arm in content.get("arms", ())],
    }


def _part(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def _arm(arm: Mapping[str, Any], rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    name = str(arm.get("name", ""))
    mine = [row for row in rows if row.get("arm") == name]
    planned = reader.arm(name) if name in reader.arm_names else None
    plan = planned.plan if planned is not None else {}
    path, says = plan.get("path"), _described(_part(arm, "describe"))
    return {
        "name": name,
        "backend": arm.get("backend", ""),
        "ranks": arm.get("rank_n", ""),
        "status": arm.get("status", ""),
        "reason": planned.reason if planned is not None else "",
        "verdict": worst_of(mine) if mine else None,
        "counts": tally_text(mine),
        "settings": [(name, lines) for name in ("env", "options") if (lines := _settings(_part(plan, name)))],
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


# ---------------------------------------------------------------------------------------------------------------- findings


def _overview(rows: Sequence[Row], labels: Labels) -> list[dict[str, Any]]:
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


def _sections(rows: Sequence[Row], trials: Mapping[str, Mapping[str, Trial]]) -> dict[str, Any]:
    """Findings by verdict: cards for what is worse than PASS, lines for the rest."""
    sections, room = [], FULL_CARDS
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.INFORMATION):
        mine = [row for row in rows if verdict_of(row) is verdict]
        full, room = mine[:room], room - len(mine[:room])
        lines = mine[len(full) :]
        sections.append(
            {
                "verdict": verdict,
                "total": len(mine),
                "cards": [_card(row, trials, FULL_CARDS - room) for row in full],
                "lines": [_card(row, trials, FULL_CARDS) for row in lines[:LINES]],
                "left_out": max(0, len(lines) - LINES),
            }
        )
    passed = [row for row in rows if verdict_of(row) is Verdict.PASS]
    return {
        "sections": [section for section in sections if section["total"]],
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
            "arms": listed(dict.fromkeys(one_line(row.get("arm", "")) for row in some)),
            "rows": [(row.get("id", ""), one_line(row.get("arm", "")), one_line(row.get("claim", ""))) for row in some],
            "limits": [text for text in dict.fromkeys(one_line(row.get("limits", "")) for row in some) if text][:4],
        }
        for (probe, kind), some in groups.items()
    ]


def _card(row: Row, trials: Mapping[str, Mapping[str, Trial]], before: int) -> Card:
    kept = 16 if before <= FULL_EVIDENCE else 4
    return card(row, trials.get(str(row.get("arm", "")), {}), kept)


# ------------------------------------------------------------------------------------------------------------------- grids


def _grids(rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
    """The grids of counts and shifts, as many as fit; the others in a line each."""
    known: dict[tuple[str, grid.Cell], grid.Known] = {}
    for name in reader.arm_names:
        view = reader.arm(name)
        for planned in view.planned:
            call = planned.trial.call
            one = known.setdefault((name, (call.collective, call.op, call.format)), grid.Known(name))
            one.add(planned, any(seen.status == "ok" for seen in view.observations(planned.trial.trial_id)))
    kept, quiet = grid.drawn(grid.grids(known, rows))
    return {"grids": kept, "quiet_grids": quiet[:LINES], "quiet_left_out": max(0, len(quiet) - LINES)}


# ------------------------------------------------------------------------------------------------------------- not audited


def _absent(rows: Sequence[Row], reader: RunReader) -> dict[str, Any]:
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


# ------------------------------------------------------------------------------------------------------------- environment


def _environment(reader: RunReader) -> dict[str, Any]:
    """Of the first recording process, with every host; variables that differ between processes are marked."""
    first = reader.environment
    sources = [source["environment"] for source in reader.sources()]
    hosts = dict.fromkeys(one_line(_part(env, "system").get("host") or "?") for env in sources)
    return {
        "facts": list(_surroundings(first)) + ([("hosts", listed(hosts, 16))] if len(hosts) > 1 else []),
        "packages": [(one_line(k), one_line(v)) for k, v in _part(first, "packages").items()],
        "variables": list(_variables(sources)),
        "processes": plural(len(sources), "recording process").replace("processs", "processes"),
    }


def _surroundings(env: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    made, system, cpu, cards = (_part(env, key) for key in ("auditor", "system", "cpu", "gpus"))
    memory = env.get("memory_bytes")
    told = {
        "auditor": " ".join(str(part) for part in (made.get("version"), made.get("commit")) if part),
        "Python": env.get("python"),
        "operating system": " · ".join(
            str(system[key]) for key in ("os", "kernel", "machine", "libc") if system.get(key)
        ),
        "CPU": f"{cpu.get('model')} ({cpu.get('usable')} of {cpu.get('count')} usable)" if cpu else None,
        "memory": f"{memory / 2**30:.1f} GiB" if isinstance(memory, (int, float)) else None,
        "GPUs": listed([str(model) for model in many(cards.get("models") or [])]) or "none seen",
        "GPU driver": cards.get("driver"),
    }
    yield from ((key, one_line(value)) for key, value in told.items() if value)


def _variables(sources: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    """Name, value(s), and whether processes differ in it."""
    found: dict[str, dict[str | None, None]] = {}
    every = [_part(env, "variables") for env in sources]
    for name in sorted({name for variables in every for name in variables}):
        found[name] = dict.fromkeys(variables.get(name) for variables in every)
    for name, seen in found.items():
        texts = [one_line(value) if value is not None else "(not set)" for value in seen]
        yield one_line(name), listed(texts, 4), len(texts) > 1


# ----------------------------------------------------------------------------------------------------------------- digests


def _digests(run_dir: Path, reader: RunReader) -> list[tuple[str, str]]:
    """What ties this page to its files."""
    told = [("run", reader.run_id), ("plan", str(reader.plan["plan_id"]))]
    for name in ("run.h5", "findings.json", "plan.json"):
        path = run_dir / name
        told.append((f"SHA-256 of {name}", _sha256(path) if path.is_file() else "there is no such file"))
    if not (run_dir / "run.h5").is_file():
        told.append(
            ("shards", listed([f"{source['file']} ({number(source['size'])} bytes)" for source in reader.sources()], 8))
        )
    return told


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
