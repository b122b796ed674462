"""The zip: every file made from the run and the reduced case, checked for what must not leave, the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from auditor import store
from auditor.analysis import plain
from auditor.analysis.signatures import matches
from auditor.errors import EvidenceError
from auditor.evidence import bits, excerpt, issue, script
from auditor.evidence.privacy import Privacy
from auditor.evidence.recorded import step_of
from auditor.evidence.reduce import LIVE, Reduced, reported
from auditor.evidence.words import words_for
from auditor.model import Finding
from auditor.plan import ArmPlan, Plan

SCHEMA = "auditor-case/1"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the zip format's own; no time of day may tell two bundles of one run apart
SUMS = "SHA256SUMS"
DESCRIPTIONS = {
    "issue.md": "this page",
    "reproduce.py": "shows the smallest case by itself",
    "case.json": "the smallest case, code by code, and how it was found",
    "bits.csv": "raw bits of every rank: whole 16-byte groups, what lies outside the range included",
    "environment.json": "machine, versions and settings, of every process",
    "run/plan.json": "what was planned",
    "run/run.h5": "the recorded outputs of {trials} (HDF5; any library reads it)",
    "run/findings.json": "what follows from them (`auditor verify run`, `auditor analyze run`)",
    SUMS: "check with `sha256sum -c SHA256SUMS`",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What the script did here. ``text`` "": it was not run, and ``why`` says why not."""

    text: str = ""
    why: str = ""
    shown: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was written. ``script``: lines of reproduce.py, 0 where there is none."""

    path: Path
    nbytes: int
    finding: Finding
    reduced: Reduced
    script: int
    no_script: str
    ran: Ran


RunScript = Callable[[Path, int], Ran]  # (directory with reproduce.py, ranks)


def make(
    reader: store.RunReader,
    finding: Finding,
    findings: Sequence[Finding],
    reduced: Reduced,
    target: Path,
    *,
    privacy: Privacy,
    scratch: Path,
    run_script: RunScript,
    process_model: str = "",
) -> Bundle:
    """Write the bundle of one finding to ``target``. Raises EvidenceError where a file would give away what must not leave, or
    where ``target`` cannot be written.
    """
    part = excerpt.cut(reader, finding, privacy, scratch)
    plan = excerpt.without_names(Plan.from_json(reader.plan), privacy)
    mine = replace(part.finding if part.finding and part.alike else _rewritten(finding, privacy), id=finding.id)
    arm = plan.arm(finding.arm)
    subject = subject_of(arm, process_model)
    text, no_script, ran = _scripted(mine, subject, reduced, reader.run_id, scratch, run_script)
    files = {"case.json": _case_json(mine, reduced, subject), "bits.csv": _bits(reader, finding, reduced)}
    if text:
        files["reproduce.py"] = text
    files["environment.json"] = _environment(reader, arm, privacy)
    for name in ("plan.json", "findings.json"):
        files[f"run/{name}"] = (part.directory / name).read_text(encoding="utf-8")
    facts = issue.Facts(
        run_id=reader.run_id,
        finding=mine,
        findings=[_rewritten(one, privacy) for one in findings],
        subject=subject,
        rank_n=arm.rank_n,
        like=[other.name for other in plan.arms if other.backend == arm.backend],
        environment=privacy.json(reader.environment),
        reduced=_private(reduced, privacy),
        signature=matches(finding),
        no_script=no_script,
        ran=ran.text,
        not_run=ran.why,
        reworded="" if part.alike else part.finding.claim if part.finding else "no such finding",
        files=_described({*files, "issue.md", "run/run.h5", SUMS}, part.words, reduced),
    )
    files["issue.md"] = issue.page(facts)
    nbytes = _write(target, _checked(files, part.directory / "run.h5", privacy))
    return Bundle(target, nbytes, mine, reduced, text.count("\n"), no_script, ran)


def _described(there: set[str], trials: str, reduced: Reduced) -> list[tuple[str, str]]:
    """What each file is, in the order in which they are read."""
    described = [(name, text.format(trials=trials)) for name, text in DESCRIPTIONS.items() if name in there]
    if reduced.case is None:
        described = [
            (name, "why there is no smallest case" if name == "case.json" else text) for name, text in described
        ]
    return described


def _checked(files: Mapping[str, str], record: Path, privacy: Privacy) -> dict[str, bytes]:
    """The files as bytes, once none of them gives away what must not leave."""
    for name, content in files.items():
        privacy.check(name, content)
    privacy.check("run/run.h5", store.texts(record))
    return {name: content.encode() for name, content in files.items()} | {"run/run.h5": record.read_bytes()}


def subject_of(arm: ArmPlan, process_model: str = "") -> script.Subject:
    offer = arm.capabilities
    return script.Subject(
        backend=arm.backend,
        options=arm.options,
        env=arm.env,
        describe=arm.describe,
        memory=offer.memory if offer is not None else "host",
        process_model=process_model,
    )


def _rewritten(finding: Finding, privacy: Privacy) -> Finding:
    raw = finding.to_json()
    texts = {name: privacy.text(raw[name]) for name in ("claim", "limits", "reproduce")}
    rows = [
        {**row, "observed": privacy.text(row["observed"]), "expected": privacy.text(row["expected"])}
        for row in raw["evidence"]
    ]
    return Finding.from_json({**raw, **texts, "measure": privacy.json(raw["measure"]), "evidence": rows})


def _private(reduced: Reduced, privacy: Privacy) -> Reduced:
    """What was said while cases were tried may name files and hosts."""
    shrunk = reduced.shrunk
    if shrunk is not None:
        troubles = type(shrunk.troubles)({privacy.text(words): n for words, n in shrunk.troubles.items()})
        shrunk = replace(shrunk, troubles=troubles, stopped=privacy.text(shrunk.stopped))
    return replace(reduced, why=privacy.text(reduced.why), shrunk=shrunk)


# ---------------------------------------------------------------------------------------------------------------- files


def _scripted(
    finding: Finding, subject: script.Subject, reduced: Reduced, run_id: str, scratch: Path, run_script: RunScript
) -> tuple[str, str, Ran]:
    """(reproduce.py, why there is none, what it did here). A script that does not show a live case is no script."""
    case, relation = reduced.case, reduced.relation
    if case is None or relation is None:
        return "", reduced.why, Ran()
    origin = f"From run {run_id}, finding {finding.id}: {finding.kind} is {finding.verdict}."
    try:
        places = words_for(finding, str(dict(relation.arguments).get("mode"))).places
        text = script.script(case, relation, subject, issue.title(finding, subject), origin, places)
    except script.NoScript as error:
        return "", str(error), Ran()
    directory = scratch / "script"
    directory.mkdir()
    (directory / "reproduce.py").write_text(text, encoding="utf-8")
    (directory / script.CASE_FILE).write_text(_case_json(finding, reduced, subject), encoding="utf-8")
    ran = run_script(directory, case.rank_n)
    ended = relation.name == "ends" and "NOT REPRODUCED" not in ran.text  # what it shows is that it does not come back
    if ran.text and not (ran.shown or ended) and (reduced.how == LIVE or subject.kind == "simulator"):
        said = ran.text.strip().splitlines()[-1]
        return "", f"the script that was made does not show it here ({said})", Ran()
    return text, "", ran


def _case_json(finding: Finding, reduced: Reduced, subject: script.Subject) -> str:
    case, outcome = reduced.case, reduced.outcome
    content: dict[str, Any] = {"schema": SCHEMA, "finding": finding.id, "kind": finding.kind, "arm": finding.arm}
    content["found"] = reported(reduced)
    if case is not None and reduced.relation is not None:
        digits = case.fmt.bits // 4
        content |= {
            "shows": {"relation": reduced.relation.name, **dict(reduced.relation.arguments)},
            "format": case.fmt.name,
            "rank_n": case.rank_n,
            "rounds": case.repeats,
            "steps": _steps(case, subject),
            "seen": [
                {
                    "round": place[0],
                    "step": place[1],
                    "rank": place[2],
                    "output": " ".join(f"{int(code):0{digits}x}" for code in seen.output),
                }
                for place, seen in sorted(outcome.seen.items())
                if seen.output is not None
            ],
            "places": [
                {"round": one.round, "step": one.step, "rank": one.rank, "index": one.index}
                for one in reduced.sightings[:64]
            ],
            "records": bits.failure_records(case, outcome, reduced.sightings),
        }
    return json.dumps(plain(content), indent=1) + "\n"


def _steps(case: Any, subject: script.Subject) -> list[dict[str, Any]]:
    if subject.kind == "simulator":
        return script.steps_json(case, subject)
    return script.steps_json(case, replace(subject, backend="mpi"))  # the plain form: no pieces of a model


def _bits(reader: store.RunReader, finding: Finding, reduced: Reduced) -> str:
    view = reader.arm(finding.arm)
    trials = {planned.trial.trial_id: planned.trial for planned in view.planned}
    wanted = {(row.trial, row.repeat) for row in finding.evidence[: bits.GROUPS] if row.repeat is not None}
    steps = {(t, r): step_of(trials[t], r) for t, r in sorted(wanted) if t in trials}
    rows = list(bits.of_record(view, finding, steps))
    if reduced.case is not None and reduced.how != "recorded":
        rows = [*bits.of_case(reduced.case, reduced.outcome, f"smallest ({reduced.how})"), *rows]
    elif reduced.case is not None and reduced.case.elements <= 64:
        rows = [*bits.of_case(reduced.case, reduced.outcome, "smallest (recorded)"), *rows]
    return bits.csv_text(rows)


def _environment(reader: store.RunReader, arm: ArmPlan, privacy: Privacy) -> str:
    """Each different surrounding once, with the processes that had it."""
    found: dict[str, dict[str, Any]] = {}
    for source in reader.sources():
        if source["arm"] == arm.name:
            environment: Mapping[str, Any] = privacy.json(source["environment"])
            key = json.dumps({k: v for k, v in environment.items() if k != "date"}, sort_keys=True)
            entry = found.setdefault(key, {"processes": [], "environment": environment})
            entry["processes"].append({"ranks": source["ranks"], "attempt": source["attempt"]})
    content = {
        "run_id": reader.run_id,
        "arm": arm.name,
        "backend": arm.backend,
        "rank_n": arm.rank_n,
        "options": dict(arm.options),
        "env": dict(arm.env),
        "describe": dict(arm.describe),
        "surroundings": list(found.values()),
    }
    return json.dumps(plain(content), indent=1) + "\n"


# ------------------------------------------------------------------------------------------------------------------ zip


def _write(target: Path, files: Mapping[str, bytes]) -> int:
    """A zip with fixed times, names in order; whole or not at all. Returns its size."""
    sums = "".join(f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in sorted(files.items()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, raw in sorted({**files, SUMS: sums.encode()}.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3
            entry.external_attr = (0o755 if name.endswith(".py") else 0o644) << 16
            archive.writestr(entry, raw, zipfile.ZIP_DEFLATED, 9)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(out.getvalue())
        os.replace(beside, target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise EvidenceError(f"{target}: cannot be written: {error.strerror}; give another -o") from error
    return len(out.getvalue())
