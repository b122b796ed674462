"""The exact command line that comes back to a finding."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from auditor.config import BUILT_IN
from auditor.model import Finding, Planned, Verdict

AXES = ("collective", "op", "format", "count", "send_shift", "recv_shift", "in_place", "root", "group", "seed")


def command(plan: Mapping[str, Any], finding: Finding, planned: Sequence[Planned], *, whole_run: bool = False) -> str:
    """``auditor run CONFIG --arm NAME --set ...``, quoted for a shell; for what was waived, ``auditor plan`` says it again.

    ``plan``: plan.json's content, with the config's path, the arguments that changed it and the axes. ``planned``: the arm's
    trials. The sweep is narrowed to the finding's scope where that is a part of an axis; what a probe chooses by itself
    (family, fills, variant, a count or shift of its own) it chooses again. ``whole_run``: the finding is about several arms, so
    that none of them is singled out.
    """
    waived = finding.verdict is Verdict.WAIVED
    sets = {} if waived else _sets(finding, planned, plan.get("sweep", {}))
    source = plan.get("config", BUILT_IN)
    words = ["auditor", "plan" if waived else "run", *([] if source in (None, "", BUILT_IN) else [str(source)])]
    words += _kept([str(word) for word in plan.get("arguments", ())], sets)
    if "--backend" not in words and not whole_run:  # that leaves one arm, named after the backend
        words += ["--arm", finding.arm]
    for key, value in sets.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _kept(arguments: Sequence[str], sets: Mapping[str, str]) -> list[str]:
    """The run's own arguments, less those that ``sets`` replaces."""
    replaced = set(sets)
    if replaced & {"sweep.shift", "sweep.send_shift"}:
        replaced |= {"sweep.shift", "sweep.send_shift", "sweep.recv_shift"}
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return [w for flag, value in pairs if not (flag == "--set" and _key(value) in replaced) for w in (flag, value)]


def _key(text: str) -> str:
    return ".".join(part.strip() for part in text.partition("=")[0].split("."))


def _sets(finding: Finding, planned: Sequence[Planned], sweep: Mapping[str, Any]) -> dict[str, str]:
    """Overrides that narrow the sweep and the probes to the finding."""
    scope = {axis: _values(axis, finding.scope[axis]) for axis in AXES if axis in finding.scope}
    sets = {f"sweep.{axis}": _toml(values) for axis, values in scope.items() if _is_part(values, sweep.get(axis))}
    sets = _with_shifts(sets, scope)
    mine = [one for one in planned if within(one, finding)]
    repeats = max((row.repeat + 1 for row in finding.evidence if row.repeat is not None), default=0)
    if repeats > sweep.get("repeats", 0):  # a repeat that only another probe asked for
        sets["sweep.repeats"] = str(repeats)
    names = [finding.probe] if finding.probe != "harness" else [n for one in mine for n in one.probes]
    names += _lenders(finding, planned)
    names = list(dict.fromkeys(names))
    return {**sets, "probes.run": json.dumps(names)} if names else sets


def _lenders(finding: Finding, planned: Sequence[Planned]) -> list[str]:
    """Probes that planned the evidence's trials, where the finding's own did not."""
    asked = {one.trial.trial_id: one.probes for one in planned}
    some = [asked.get(row.trial, ()) for row in finding.evidence] if finding.probe != "harness" else []
    return [probes[0] for probes in some if probes and finding.probe not in probes]


def _is_part(values: Sequence[Any], axis: Sequence[Any] | None) -> bool:
    """Whether the values narrow the axis (None: it is not known, so they are said)."""
    return axis is None or (all(value in axis for value in values) and any(value not in values for value in axis))


def _with_shifts(sets: dict[str, str], scope: Mapping[str, list[Any]]) -> dict[str, str]:
    """One key for both shifts where they are alike, else both: one alone would leave the other at 0."""
    pair = ("sweep.send_shift", "sweep.recv_shift")
    if not any(key in sets for key in pair):
        return sets
    rest = {key: value for key, value in sets.items() if key not in pair}
    send, recv = scope.get("send_shift", [0]), scope.get("recv_shift", [0])
    if send == recv:
        return {**rest, "sweep.shift": _toml(send)}
    return {**rest, pair[0]: _toml(send), pair[1]: _toml(recv)}


def within(planned: Planned, finding: Finding) -> bool:
    """Whether a trial lies in a finding's scope and was asked for by its probe."""
    if finding.probe != "harness" and finding.probe not in planned.probes:
        return False
    raw = planned.trial.to_json()
    return all(raw[key] in _values(key, value) for key, value in finding.scope.items() if key in raw)


def _values(axis: str, value: Any) -> list[Any]:
    """A scope's value as a list; one group is itself a list of ranks."""
    single = not isinstance(value, list | tuple)
    if axis == "group" and not single:
        single = not any(item is None or isinstance(item, list | tuple) for item in value)
    return [list(value) if isinstance(value, tuple) else value] if single else list(value)


def _toml(values: Sequence[Any]) -> str:
    return json.dumps(["all" if item is None else item for item in values], ensure_ascii=False)
