"""Config + capabilities + probes -> Plan: what is run once each, in order, and what is not, with the reason.

An axis that the capabilities exclude, a variant whose feature is missing, memory that is not there, a switch reduction
that somebody forbade: each becomes a Waiver, so that an absence is a result (DESIGN §3).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from auditor import inputs, layout, probes
from auditor.config import ALL_PROBES, ArmSpec, Config, Exclusion, Scope, Sweep
from auditor.errors import ConfigError, Unavailable
from auditor.model import COLLECTIVES, OPS, Capabilities, Family, Planned, Trial, Waiver
from auditor.numerics.formats import FORMATS
from auditor.plan.multicast import multicast_waiver
from auditor.plan.records import ArmPlan, Plan, short_digest
from auditor.plan.summary import size

VARIANT_FEATURES = {
    "registered": "registration",
    "graph": "graph",
    "history": "history",
    "recreate": "recreate",
    "queued": "queue",
}
MEMORY_SHARE = 0.2  # of the machine, for all arenas: a process may hold four times its arenas at its peak
PlanOf = Callable[[Scope], Iterable[tuple[Trial, int]]]


def build(
    config: Config,
    capabilities: Mapping[str, Capabilities | Unavailable],
    *,
    launcher: str | None = None,
    probes: Mapping[str, PlanOf] | None = None,
    environ: Mapping[str, str] | None = None,
    memory: int | None = None,
    local_n: int | None = None,
    run_id: str = "",
) -> Plan:
    """The plan of every arm.

    ``capabilities``: by arm name; an arm that is missing was not asked and will not run. ``launcher``: the outer
    launcher's name, where there is one. ``memory``: bytes of this machine. ``local_n``: ranks on this machine (None:
    all of the arm's). ``probes``: their plans by name (this version's, where left out).
    Raises ConfigError where a family of the config is refused everywhere.
    """
    chosen, absent = _chosen(config, probes)
    _check_families(config)
    limits = _Limits(launcher, memory if memory is not None else machine_memory(), local_n)
    surroundings = os.environ if environ is None else environ
    arms = []
    for arm in config.arms:
        offer = capabilities.get(arm.name)
        forbidden = multicast_waiver(arm, surroundings)
        arms.append(_arm(config, arm, offer, forbidden, chosen, absent, limits))
    return Plan(
        title=config.title,
        arms=tuple(arms),
        expect=dict(config.expect),
        run_id=run_id,
        config=config.source,
        arguments=config.arguments,
        sweep=_axes(config.sweep),
        plan_id=_plan_id(config),
    )


def _plan_id(config: Config) -> str:
    content = {"sweep": asdict(config.sweep), "expect": dict(config.expect), "probes": config.probes}
    return short_digest({**content, "arms": [asdict(arm) for arm in config.arms]})


def _axes(sweep: Sweep) -> dict[str, Any]:
    """The axes in JSON's terms, under the Trial's field names."""
    names = ("collective", "op", "format", "count", "in_place", "root", "seed")
    return {
        **{name: list(getattr(sweep, name)) for name in names},
        "send_shift": sorted({send for send, _ in sweep.shift}),
        "recv_shift": sorted({recv for _, recv in sweep.shift}),
        "group": [None if group is None else list(group) for group in sweep.group],
        "repeats": sweep.repeats,
    }


def _chosen(config: Config, known: Mapping[str, PlanOf] | None) -> tuple[dict[str, PlanOf], tuple[str, ...]]:
    """The planning half of the probes that were asked for and exist, and the names of those that do not exist yet."""
    here = probes.PROBES if known is None else known
    names = tuple(here) if config.probes == ALL_PROBES else config.probes
    plans = {n: probes.get(n).plan if known is None else known[n] for n in names if n in here}
    return plans, tuple(n for n in names if n not in here)


@dataclass(frozen=True, slots=True)
class _Limits:
    launcher: str | None
    memory: int
    local_n: int | None

    def against(self, trial: Trial, offer: Capabilities) -> Exclusion | None:
        """Why a trial that the capabilities' axes allow still cannot be run."""
        name = trial.variant.partition(":")[0]
        if name == "fresh" and self.launcher is not None:
            reason = f"started under {self.launcher}: an MPI cannot be started twice, so no repeat gets fresh processes"
            return f"{reason}; run this arm without a launcher", {"variant": trial.variant}
        need = VARIANT_FEATURES.get(name)
        if need is not None and need not in offer.features:
            return f"the backend does not have the feature {need}", {"variant": trial.variant}
        bytes_ = 2 * layout.arena_bytes([trial]) * (self.local_n or trial.rank_n)
        if bytes_ > MEMORY_SHARE * self.memory:
            share = f"{MEMORY_SHARE:.0%} of this machine's {size(self.memory)}"
            scope = {"collective": trial.call.collective, "format": trial.call.format, "count": trial.call.count}
            return f"the arenas would take {size(bytes_)}, more than {share}", scope
        return None


def _arm(
    config: Config,
    arm: ArmSpec,
    offer: Capabilities | Unavailable | None,
    forbidden: str | None,
    chosen: Mapping[str, PlanOf],
    absent: Sequence[str],
    limits: _Limits,
) -> ArmPlan:
    base = ArmPlan(
        name=arm.name, backend=arm.backend, rank_n=arm.ranks, options=arm.options, env=arm.env, path=arm.path
    )
    if forbidden:
        return replace(base, status="waived", reason=forbidden)
    if offer is None:
        return replace(base, status="not_run", reason="this run was not asked for it")
    if isinstance(offer, Unavailable):
        return replace(base, status="unavailable", reason=str(offer))
    scope = Scope(arm, offer, config.sweep)
    waivers = _Waivers(arm.name)
    for name in absent:
        waivers.add(f"the probe {name} is not part of this version", {"probe": name})
    _waive_axes(scope, waivers)
    trials = _trials(scope, chosen, limits, waivers)
    base = replace(base, capabilities=offer, trials=trials, waivers=waivers.merged())
    if trials:
        return base
    reasons = "; ".join(dict.fromkeys(waiver.reason for waiver in base.waivers)) or "no probe asked for a trial"
    return replace(base, status="waived", reason=reasons)


def _waive_axes(scope: Scope, waivers: _Waivers) -> None:
    axes = replace(scope.sweep, count=scope.sweep.count[:1], seed=scope.sweep.seed[:1])  # these two exclude nothing
    for trial in Scope(scope.arm, scope.capabilities, axes).product():
        if (why := scope.excluded(trial)) is not None:
            waivers.add(*why)


def _trials(scope: Scope, chosen: Mapping[str, PlanOf], limits: _Limits, waivers: _Waivers) -> tuple[Planned, ...]:
    """Every probe's trials, those of the same content once: the larger repeat count, all probes that asked."""
    found: dict[str, Planned] = {}
    for name, plan_of in chosen.items():
        wanted = list(plan_of(scope))
        if not wanted and any(True for _ in scope.points()):
            needs = getattr(sys.modules.get(plan_of.__module__), "NEEDS", "")
            why_not = f"it needs {needs}" if needs else "at these ranks, counts and operations"
            waivers.add(f"the probe {name} has nothing to try: {why_not}", {"probe": name})
        for trial, repeats in wanted:
            why = scope.excluded(trial) or limits.against(trial, scope.capabilities) or _refused(trial)
            if why is not None:
                waivers.add(why[0], {**why[1], "probe": name})
                continue
            known = found.get(trial.trial_id, Planned(trial=trial, repeats=0, probes=()))
            asked = known.probes if name in known.probes else (*known.probes, name)
            found[trial.trial_id] = Planned(trial=trial, repeats=max(known.repeats, repeats), probes=asked)
    return tuple(sorted(found.values(), key=_order))


def _order(planned: Planned) -> tuple[Any, ...]:
    """Fresh processes last; by cell, so that a cell that crashes is left quickly; small counts first; plain before variants."""
    trial, call = planned.trial, planned.trial.call
    cell = (COLLECTIVES.index(call.collective), OPS.index(call.op), list(FORMATS).index(call.format), call.count)
    return (trial.variant.startswith("fresh"), *cell, trial.variant != "plain", trial.variant)


def active_n(trial: Trial) -> int:
    """How many members send data in each element."""
    if trial.active == "all":
        return len(trial.members)
    return 2 if trial.active == "pairs" else len(trial.active.split(","))


def _refused(trial: Trial) -> Exclusion | None:
    try:
        inputs.check(trial.family, trial.call.fmt, active_n(trial))
    except ConfigError as error:
        return str(error), {"family": str(trial.family), "format": trial.call.format}
    return None


def _check_families(config: Config) -> None:
    """A family of the config that no format and no number of senders can take is a mistake. Raises ConfigError, a line each."""
    senders = {2, *(arm.ranks for arm in config.arms), *(len(group) for group in config.sweep.group if group)}
    lines = []
    for number, family in enumerate(config.sweep.family or ()):
        words = [_words(family, name, n) for name in config.sweep.format for n in sorted(senders)]
        if all(words):
            lines.append(f'{config.source}: sweep.family[{number}] = "{family}" cannot be used: {words[0]}')
    if lines:
        raise ConfigError("\n".join(lines))


def _words(family: Family, name: str, ranks: int) -> str:
    try:
        inputs.check(family, FORMATS[name], ranks)
    except ConfigError as error:
        return str(error)
    return ""


class _Waivers:
    """Gathers exclusions; those of one reason become one waiver whose scope lists the values."""

    def __init__(self, arm: str) -> None:
        self.arm = arm
        self.by_reason: dict[tuple[str, tuple[str, ...]], dict[str, list[Any]]] = {}

    def add(self, reason: str, scope: Mapping[str, Any]) -> None:
        values = self.by_reason.setdefault((reason, tuple(sorted(scope))), {key: [] for key in scope})
        for key, value in scope.items():
            if value not in values[key]:
                values[key].append(value)

    def merged(self) -> tuple[Waiver, ...]:
        def single(values: list[Any]) -> Any:
            return values[0] if len(values) == 1 else values

        return tuple(
            Waiver(arm=self.arm, reason=reason, scope={key: single(values) for key, values in scope.items()})
            for (reason, _), scope in self.by_reason.items()
        )


def machine_memory() -> int:
    """Bytes of memory that this machine, or the container that we run in, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total
