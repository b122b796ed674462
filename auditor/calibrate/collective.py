"""Collectives of any backend: the calibration is a recorded run like any other, and what is measured is read from its record.

Orders are ways of laying the same data on the ranks, under each algorithm that the library can be asked for; more ways, and trees
drawn at random and added on the host, are held out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from auditor import probes
from auditor.backends.simulator.schedule import pieces
from auditor.calibrate.algorithms import arms_of, toml_of
from auditor.calibrate.gates import Gate
from auditor.calibrate.held_out import HeldOut
from auditor.calibrate.legal import (
    MODELS_MAX,
    accumulators,
    legal_outputs,
    model_count,
    random_tree,
    summed,
    tree_count,
)
from auditor.calibrate.measured import Measured, Models
from auditor.calibrate.reference import EXACT, Reference
from auditor.config import ArmSpec, Scope, load
from auditor.errors import AuditError, ConfigError, Unavailable
from auditor.inputs import check, terms
from auditor.model import Call, Codes, Family, Trial, Verdict
from auditor.numerics.exact import Sums
from auditor.numerics.formats import FORMATS
from auditor.probes import tolerance
from auditor.probes.common import receiving, trials_of
from auditor.probes.expected import block, step_of
from auditor.probes.values import to_float64

WAYS_MAX = 24  # of laying the data on the ranks, calibrated and held out together: every one of four ranks'
REPEATS = 2
LEGAL_ELEMENTS = 1 << 24  # outputs of all legal models together that are kept
BESIDE = ("coverage", "timing")  # probes that stand in for the gates of a local workload
VOLATILE = re.compile(r"^(hosts?|path_from|gpus)$")
Plans = Mapping[str, Callable[[Scope], Iterator[tuple[Trial, int]]]]
Recorded = AbstractContextManager[Any]  # a run's reader, with ``findings`` beside it
Record = Callable[[str, Plans], Recorded]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOptions:
    """``orders``: ways of laying the data that are calibrated, of each arm. ``arms``: a config whose arms are taken instead."""

    collective: str = "all_reduce"
    backend: str = "mpi"
    ranks: int = 4
    format: str = "binary32"
    count: int = 65536
    orders: int = 6
    distribution: str = "wide"
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    arms: str = ""
    algorithms: str = "all"


class Collective:
    """See :class:`~auditor.calibrate.measured.Workload`. ``record(config text, plans)`` runs a config and gives its record.

    Raises ConfigError on what cannot be, Unavailable where no arm can run.
    """

    def __init__(self, options: CollectiveOptions, record: Record) -> None:
        if options.format not in FORMATS:
            raise ConfigError(f"--format {options.format}: is none of {', '.join(FORMATS)}")
        if options.algorithms not in ("all", "default"):
            raise ConfigError(f"--algorithms {options.algorithms}: is neither all nor default")
        self.options, self.fmt, self._record = options, FORMATS[options.format], record
        self.arms = self._arms()
        self.ranks = self.arms[0].ranks
        if any(arm.ranks != self.ranks for arm in self.arms):
            raise ConfigError(f"--arms {options.arms}: its arms have different rank counts; a bound is tied to one")
        if self.ranks < 2:
            raise ConfigError("--ranks 1: one rank adds nothing; ask for two or more")
        try:
            family = Family.parse(options.distribution)
            check(family, self.fmt, self.ranks)
        except ValueError as error:
            raise ConfigError(f"--distribution {options.distribution}: {error}") from None

    def _arms(self) -> list[ArmSpec]:
        o = self.options
        if o.arms:
            return list(load(o.arms).arms)
        known = arms_of(o.backend, o.collective, o.ranks, dict(o.options), dict(o.env))
        return known if o.algorithms == "all" else known[:1]

    def asked(self) -> dict[str, Any]:
        o = self.options
        return {
            "workload": o.collective,
            "backend": sorted({arm.backend for arm in self.arms}),
            "format": o.format,
            "rank_n": self.ranks,
            "size": {"count": o.count},
            "op": "sum",
            "orders": {
                "arms": {arm.name: _settings(arm) for arm in self.arms},
                "ways": tolerance.laid_out(self.ranks, o.orders),
            },
            "distribution": o.distribution,
            "reference": EXACT,
            "seed": o.seed,
        }

    def elements(self) -> int:
        return self._call().send_count(self.ranks)

    def _call(self) -> Call:
        o = self.options
        return Call(collective=o.collective, op="sum", format=o.format, count=o.count)

    def config(self) -> str:
        """The run as a config's text."""
        o = self.options
        sweep = {
            "collective": [o.collective],
            "op": ["sum"],
            "format": [o.format],
            "count": [o.count],
            "family": [o.distribution],
            "shift": [0],
            "repeats": REPEATS,
            "seed": o.seed,
        }
        names = [name for name in BESIDE if name in probes.PROBES]
        return toml_of(f"Calibration of {o.collective}, {o.format}", self.arms, sweep, [*names, tolerance.NAME])

    def _plans(self, ways: int) -> Plans:
        beside = {name: probes.get(name).plan for name in BESIDE if name in probes.PROBES}
        return {**beside, tolerance.NAME: partial(tolerance.plan_ways, ways=ways, repeats=REPEATS)}

    def measure(self, held_out: int) -> Measured:
        mine = self.options.orders
        with self._record(self.config(), self._plans(max(mine, WAYS_MAX) if held_out else mine)) as run:
            views = [run.reader.arm(arm.name) for arm in self.arms]
            for view in views:
                _must_have_run(view)
            outputs = [_outputs(view, mine) for view in views]
            base = next(iter(outputs[0].calibrated))
            trial = outputs[0].trials[base]
            orders = {name: codes for one in outputs for name, codes in one.calibrated.items()}
            target = [codes for one in outputs for codes in one.others]
            return Measured(
                conditions={**self.asked(), **_observed(run.reader, views)},
                reference=reference_of(trial),
                orders=orders,
                gates=_gates(run.findings),
                replay=known_schedule(outputs[0]),
                legal=self._legal(trial),
                held_out=self._held_out(trial, target, held_out),
                directed=True,
                repeats=all(_same_twice(view, mine) for view in views),
                environment=run.reader.environment,
                run_id=run.reader.run_id,
                trees=tree_count(self.ranks),
            )

    def _legal(self, trial: Trial) -> Models:
        """Every legal output, where the trees can be listed."""
        n, models = self.ranks, model_count(self.fmt, self.ranks)
        if models > MODELS_MAX + 1:
            return Models(None, f"{n} terms have {tree_count(n):,} trees, too many to be tried one by one")
        if models * trial.send_count > LEGAL_ELEMENTS:
            many = f"{models:,} models of {trial.send_count:,} elements are too many to be kept"
            return Models(None, f"{many}; ask for a smaller --count")
        codes = legal_outputs(self.fmt, terms(trial, 0, 0, trial.send_count))
        kept = " and ".join(fmt.name for fmt in accumulators(self.fmt))
        says = f"All {tree_count(n):,} trees over {n} terms with sums kept in {kept}, and one fused sum, rounded to nearest"
        return Models(codes, says)

    def _held_out(self, trial: Trial, target: Sequence[Codes], n: int) -> Iterator[HeldOut]:
        for codes in target:
            yield HeldOut("other ways of laying the data, on the target", codes)
        data = terms(trial, 0, 0, trial.send_count) if n else []
        for accumulator in accumulators(self.fmt):
            for number in range(n):
                tree = random_tree(self.ranks, self.options.seed, number)
                group = f"trees drawn at random, added on the host, sums kept in {accumulator.name}"
                yield HeldOut(group, summed(tree, data, self.fmt, accumulator))


def _settings(arm: ArmSpec) -> dict[str, Any]:
    return {key: value for key in ("backend", "options", "env") if (value := getattr(arm, key))}


@dataclass(frozen=True, slots=True, eq=False)
class _Outputs:
    """One arm's outputs, whole: of the ways that are calibrated, by name, with their trials; and of the others."""

    calibrated: Mapping[str, Codes]
    trials: Mapping[str, Trial]
    others: Sequence[Codes]


def _outputs(view: Any, mine: int) -> _Outputs:
    calibrated: dict[str, Codes] = {}
    trials: dict[str, Trial] = {}
    others: list[Codes] = []
    chosen = set(tolerance.laid_out(view.rank_n, mine))
    for planned in trials_of(view, tolerance.NAME):
        trial = planned.trial
        for ending, codes in _whole(view, trial):
            if trial.active in chosen:
                name = f"{view.arm}, {_way(trial)}{ending}"
                calibrated[name], trials[name] = codes, trial
            else:
                others.append(codes)
    if not calibrated:
        raise AuditError(f"arm {view.arm}: no call of the calibration returned a result; see the run's report")
    return _Outputs(calibrated, trials, others)


def _way(trial: Trial) -> str:
    return "data in rank order" if trial.active == "all" else f"data on ranks {trial.active}"


def _whole(view: Any, trial: Trial) -> Iterator[tuple[str, Codes]]:
    """The output over all sums: of reduce_scatter the shares in rank order; of all_reduce every different output."""
    found = list(tolerance.outputs(view, trial))
    if trial.call.collective == "reduce_scatter":
        if len(found) == len(trial.members):
            yield "", np.concatenate([codes for _, codes in found])
        return
    for number, (seen, codes) in enumerate(found):
        yield (f", rank {seen.rank}" if number else ""), codes


def _must_have_run(view: Any) -> None:
    if view.status in ("unavailable", "waived", "not_run"):
        raise Unavailable(f"arm {view.arm}: {view.reason}")
    if view.status != "ok":
        raise AuditError(f"arm {view.arm} failed: {view.reason}")


def _same_twice(view: Any, mine: int) -> bool:
    """Whether each calibrated way gave every rank the same bits in all its repeats."""
    chosen = set(tolerance.laid_out(view.rank_n, mine))
    for planned in trials_of(view, tolerance.NAME):
        digests: dict[int, set[str]] = {}
        if planned.trial.active in chosen:
            for seen in receiving(view, planned.trial):
                digests.setdefault(seen.rank, set()).add(seen.digest)
        if any(len(some) > 1 for some in digests.values()):
            return False
    return True


def _observed(reader: Any, views: Sequence[Any]) -> dict[str, Any]:
    """Versions, devices and nodes, as the run found them; what changes from run to run (paths, host names) is left out."""
    environment = reader.environment
    described = {view.arm: _steady(view.describe) for view in views}
    same = all(one == described[views[0].arm] for one in described.values())
    gpus = sorted({re.sub(r"\s*\([0-9A-Fa-f:.]+\)", "", str(view.describe.get("gpus", ""))) for view in views} - {""})
    hosts = {str(source["environment"].get("system", {}).get("host", "")) for source in reader.sources()}
    return {
        "library": described[views[0].arm] if same else described,
        "device": "; ".join(gpus) or str(environment.get("cpu", {}).get("model", "unknown")),
        "nodes": len(hosts),
    }


def _steady(described: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in described.items() if not VOLATILE.match(key)}


def _gates(findings: Sequence[Mapping[str, Any]]) -> list[Gate]:
    """What the run's other probes found: each FAIL, and the kinds that were looked for and not there."""
    gates: dict[str, Gate] = {}
    for row in findings:
        verdict, kind = Verdict(row["verdict"]), str(row["kind"])
        if row["probe"] == tolerance.NAME or verdict not in (Verdict.FAIL, Verdict.PASS):
            continue
        if kind not in gates or (verdict is Verdict.FAIL and gates[kind].verdict is not Verdict.FAIL):
            gates[kind] = Gate(kind, verdict, f"arm {row['arm']}: {row['claim']}")
    return list(gates.values())


def reference_of(trial: Trial) -> Reference:
    """The exact sums of all send indices. Every way of laying the data has the same."""
    fmt, n = trial.call.fmt, trial.send_count
    sums, magnitude = Sums.zeros(n), np.zeros(n)
    for start in range(0, n, step_of(trial)):
        part = slice(start, min(start + step_of(trial), n))
        data = block(trial, 0, part.start, part.stop)
        sums[part] = data.sums
        magnitude[part] = sum(np.abs(to_float64(fmt, term)) for term in data.terms)
    return Reference(fmt, EXACT, sums, magnitude, len(trial.members) - 1)


def known_schedule(outputs: _Outputs) -> Models:
    """The first of some known schedules that gives every bit of every calibrated way of the first arm."""
    candidates = [
        (order, shot) for order in ("rank", "ring", "recursive_doubling", "tree") for shot in ("one_shot", "two_shot")
    ]
    fmt = next(iter(outputs.trials.values())).call.fmt
    for accumulator in accumulators(fmt):
        for order, shot in candidates:
            first: Codes | None = None
            for name, trial in outputs.trials.items():
                codes = _scheduled(trial, order, shot, accumulator)
                if not np.array_equal(codes, outputs.calibrated[name]):
                    break
                first = codes if first is None else first
            else:
                says = f"the schedule {order} ({shot.replace('_', ' ')}, sums kept in {accumulator.name}) gives every bit of"
                return Models(first, f"{says} {len(outputs.trials)} orders of the first arm")
    return Models(None, "none of the known schedules explains the first arm's outputs bit by bit")


def _scheduled(trial: Trial, order: str, shot: str, accumulator: Any) -> Codes:
    out = np.empty(trial.send_count, trial.call.fmt.dtype)
    for piece in pieces(trial.call, trial.members, order, shot):
        data = terms(trial, 0, piece.start, piece.stop)
        out[piece.start : piece.stop] = summed(piece.tree, data, trial.call.fmt, accumulator)
    return out
