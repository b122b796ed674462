"""What must be known before a verdict is believed: models, shared GPUs, one host, paths switched off, hosts that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from auditor.multicast import multicast_forbidden
from auditor.report import gpus
from auditor.report.surroundings import NO_HOST, facts_of, hosts, spokesman
from auditor.report.words import listed, one_line, part, plural

NOTICES = 12  # lines at most
Sources = Sequence[Mapping[str, Any]]


def notices(
    content: Mapping[str, Any], reasons: Mapping[str, str], sources: Sources, problems: Sequence[str]
) -> list[str]:
    """One sentence each. ``content``: that of findings.json; ``reasons``: arm -> why it did not run; ``sources``: the recording
    processes; ``problems``: what is torn in the record.
    """
    arms = [arm for arm in content.get("arms", ()) if isinstance(arm, Mapping)]
    told = [*_problems(problems), *_not_run(arms, reasons), *_models(arms), *_shared(arms)]
    told += [*_sick(sources), *_one_host(arms, sources), *_switched_off(arms, sources), *_unlike(sources)]
    if len(told) <= NOTICES:
        return told
    return [*told[: NOTICES - 1], f"and {len(told) - NOTICES + 1} more: see “What was audited” and “Environment”."]


def _problems(problems: Sequence[str]) -> Iterator[str]:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield f"The record is damaged or was cut short: {one_line(problems[0])}{more}"


def _not_run(arms: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> Iterator[str]:
    """Arms that were to run and did not, those of one reason together. What was waived has a list of its own."""
    words = {"unavailable": "not available here", "failed": "cut short by a failure"}
    said: dict[str, list[Mapping[str, Any]]] = {}
    for arm in arms:
        if how := words.get(str(arm.get("status"))):
            reason = one_line(reasons.get(one_line(arm.get("name", "")), "")).rstrip(".")
            said.setdefault(f"{how}{': ' if reason else ''}{reason}.", []).append(arm)
    for told, some in said.items():
        yield f"{listed(_names(some))}: {told}"


def _models(arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = _names(arm for arm in arms if part(arm, "describe").get("simulated") is True)
    if names:
        yield f"{listed(names)}: a model on this machine's processor, no hardware. It speaks of the rule that it models alone."


def _shared(arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a subject itself says that it cannot show (``limits`` of its description): GPUs that ranks share, for one."""
    said: dict[str, list[Mapping[str, Any]]] = {}
    for arm in arms:
        told = part(arm, "describe")
        shared = told.get("ranks_per_gpu")
        words = one_line(told.get("limits") or "")
        if not words and isinstance(shared, int) and shared > 1:
            words = f"{shared} ranks share one GPU: no link between GPUs lay between them."
        if words:
            said.setdefault(words, []).append(arm)
    for words, some in said.items():
        yield f"{listed(_names(some))}: {words}"


def _sick(sources: Sources) -> Iterator[str]:
    """What the driver's library said against a GPU: the first suspect where a rank of it differs."""
    for host, mine in hosts(sources).items():
        for device in gpus.devices(spokesman(mine)):
            if said := list(gpus.ailments(device)):
                yield f"GPU {one_line(device.get('index', '?'))} of {host}: {'; '.join(said)}."


def _one_host(arms: Sequence[Mapping[str, Any]], sources: Sources) -> Iterator[str]:
    """Arms of several ranks that one host held, where ranks are processes: no network took part."""
    alone = []
    for arm in arms:
        mine = [source for source in sources if source.get("arm") == arm.get("name")]
        ranks = {rank for source in mine for rank in source.get("ranks", ())}
        apart = len(mine) > 1 and all(len(source.get("ranks", ())) == 1 for source in mine)
        where = hosts(mine)
        if apart and len(ranks) > 1 and len(where) == 1 and NO_HOST not in where:
            alone.append(arm)
    if alone:
        yield f"{listed(_names(alone))}: all ranks ran on one host, so no network between hosts took part."


def _switched_off(arms: Sequence[Mapping[str, Any]], sources: Sources) -> Iterator[str]:
    """In-switch sums that nobody could ask for; said where a GPU took part at all."""
    if not any(part(arm, "describe").get("gpus") for arm in arms):
        return
    variables = [part(source["environment"], "variables") for source in sources]
    reasons = [multicast_forbidden({name: str(value) for name, value in some.items()}) for some in variables]
    for reason in dict.fromkeys(reason for reason in reasons if reason):
        yield f"{reason[0].upper()}{reason[1:]}: no sum of this run was made inside a switch."


def _unlike(sources: Sources) -> Iterator[str]:
    """Versions and models that differ between hosts: the likely cause of a rank that differs."""
    found: dict[str, dict[str, list[str]]] = {}
    for host, mine in hosts(sources).items():
        for name, value in facts_of(spokesman(mine)).items():
            found.setdefault(name, {}).setdefault(value, []).append(host)
    for name, by_value in found.items():
        if len(by_value) > 1:
            told = "; ".join(f"{value} on {_some(some)}" for value, some in list(by_value.items())[:4])
            yield f"The hosts differ in {name}: {told}."


def _some(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= 3 else f"{names[0]} and {plural(len(names) - 1, 'more host')}"


def _names(arms: Any) -> list[str]:
    return [one_line(arm.get("name", "")) for arm in arms]
