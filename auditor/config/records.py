"""A checked config, and Scope: what one arm's probes may plan from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from auditor.config.checks import Mistakes, backend_spec, nearest, rank_count, show
from auditor.errors import ConfigError
from auditor.model import Call, Capabilities, Family, Trial
from auditor.numerics.formats import FORMATS

BUILT_IN = "built-in quickstart"
WORD = 16  # bytes: the widest load that the libraries use; counts and shifts are told apart by their residue in it

PROBE_KINDS: dict[str, tuple[str, ...]] = {  # DESIGN §5; known names, whether or not this version implements them
    "coverage": (
        *("unwritten", "overrun", "send_modified", "wrong_value"),
        *("missing_term", "duplicate_term", "stale_term", "prefill_leak"),
    ),
    "rounding": ("rounding_mode", "not_faithful", "double_rounding"),
    "accumulator": ("accumulator", "hop_rounding"),
    "special": ("nan", "infinity", "negative_zero", "subnormal_flush", "overflow"),
    "repeatability": ("not_repeatable", "rank_disagreement", "fresh_process", "history_dependence"),
    "placement": ("shift_dependence", "count_dependence", "position_dependence", "in_place_difference", "path_split"),
    "tail": ("foreign_read",),
    "neighbours": ("neighbour_dependence",),
    "order": ("summation_tree",),
    "scaling": ("average_scaling",),
    "timing": ("early_return", "false_time"),
    "paths": ("path_difference",),
    "tolerance": ("ulp_bound",),
}
HARNESS_KINDS = ("crash", "hang", "backend_error", "unsupported", "path_not_taken", "input_corrupt", "not_run")
KINDS = (*itertools.chain.from_iterable(PROBE_KINDS.values()), *HARNESS_KINDS)
ALL_PROBES = ("all",)
Exclusion = tuple[str, Mapping[str, Any]]  # a reason, and the Trial fields to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """One subject under one setting. ``path``: what must really have run (a part of what ``Backend.path`` reports)."""

    name: str
    backend: str
    ranks: int
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The axes. ``shift``: (send, receive) pairs in elements. ``group``: global ranks in order; None: all.

    ``family`` None: each probe takes what it needs. ``repeats``: the largest where the file lists several, since trials
    of the same content share the larger repeat count.
    """

    collective: tuple[str, ...] = ("all_reduce",)
    op: tuple[str, ...] = ("sum",)
    format: tuple[str, ...] = ("bfloat16", "binary16", "binary32")
    count: tuple[int, ...] = (1, 2, 3, 7, 1021, 1026)
    shift: tuple[tuple[int, int], ...] = ((0, 0), (1, 1))
    in_place: tuple[bool, ...] = (False,)
    root: tuple[int, ...] = (0,)
    group: tuple[tuple[int, ...] | None, ...] = (None,)
    family: tuple[Family, ...] | None = None
    repeats: int = 5
    seed: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A checked config. ``source``: the file's path as given, or BUILT_IN. ``probes`` is ("all",) or names.

    ``arguments``: the command-line arguments that changed it, so that a finding can print how to come back to it.
    """

    title: str
    arms: tuple[ArmSpec, ...]
    sweep: Sweep
    expect: Mapping[str, Any] = field(default_factory=dict)
    probes: tuple[str, ...] = ALL_PROBES
    source: str = BUILT_IN
    arguments: tuple[str, ...] = ()

    def arm(self, name: str) -> ArmSpec:
        """The arm of that name. Raises ConfigError."""
        names = [arm.name for arm in self.arms]
        if name not in names:
            raise ConfigError(f"{self.source}: arm {name!r} is unknown{nearest(name, names)}")
        return self.arms[names.index(name)]

    def with_arm(self, name: str) -> Config:
        """Only that arm. Raises ConfigError where there is none of that name or it makes the axes illegal."""
        return checked(replace(self, arms=(self.arm(name),)))

    def with_backend(self, spec: str) -> Config:
        """All arms replaced by one that is named after the backend; ranks are the first arm's. Raises ConfigError."""
        if wrong := backend_spec(spec):
            raise ConfigError(f"--backend = {show(spec)} {wrong}")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", spec.replace(":", "."))
        arm = ArmSpec(name=name, backend=spec, ranks=self.arms[0].ranks)
        return checked(replace(self, arms=(arm,), arguments=(*self.arguments, "--backend", spec)))

    def with_ranks(self, ranks: int) -> Config:
        """Every arm with that many ranks. Raises ConfigError where it is no rank count or a group no longer fits."""
        if wrong := rank_count(ranks):
            raise ConfigError(f"--ranks = {show(ranks)} {wrong}")
        arms = tuple(replace(arm, ranks=ranks) for arm in self.arms)
        return checked(replace(self, arms=arms, arguments=(*self.arguments, "--ranks", str(ranks))))


@dataclass(frozen=True, slots=True)
class Scope:
    """What a probe's ``plan`` sees: one arm, what its backend offers, and the axes."""

    arm: ArmSpec
    capabilities: Capabilities
    sweep: Sweep

    def points(self) -> Iterator[Trial]:
        """Base trials (family rank_coded, every other field at its default): the axes' product less what cannot be."""
        seen = set()
        for trial in self.product():
            if self.excluded(trial) is None and trial not in seen:
                seen.add(trial)
                yield trial

    def product(self) -> Iterator[Trial]:
        """The whole product, whether or not this arm can do it; may repeat itself."""
        axes = self.sweep
        calls = itertools.product(axes.collective, axes.op, axes.format, axes.root, axes.group)
        for collective, op, name, root, group in calls:
            root = root if collective == "reduce" else 0  # else it means nothing, and would make copies
            for count, in_place, pair, seed in itertools.product(axes.count, axes.in_place, axes.shift, axes.seed):
                yield Trial(
                    call=Call(collective=collective, op=op, format=name, count=count, root=root, group=group),
                    rank_n=self.arm.ranks,
                    send_shift=pair[0],
                    recv_shift=pair[1],
                    in_place=in_place,
                    family=Family("rank_coded"),
                    seed=seed,
                )

    def excluded(self, trial: Trial) -> Exclusion | None:
        """Why a trial cannot be run here, with the fields to blame; None where nothing stands against it."""
        return self._unfit(trial) or self._not_offered(trial) or self._misaligned(trial)

    def _unfit(self, trial: Trial) -> Exclusion | None:
        """What no backend could do with this arm's ranks."""
        call, members = trial.call, trial.members
        if max(members) >= trial.rank_n:
            return f"the arm has {trial.rank_n} ranks", {"group": list(members)}
        if call.collective == "reduce" and call.root >= len(members):
            return f"root is a position among {len(members)} members", {"root": call.root}
        if trial.in_place and trial.send_shift != trial.recv_shift:
            shifts = {"send_shift": trial.send_shift, "recv_shift": trial.recv_shift}
            return "in place, one range cannot begin at two shifts", {"in_place": True, **shifts}
        return None

    def _not_offered(self, trial: Trial) -> Exclusion | None:
        offer, call, backend = self.capabilities, trial.call, self.arm.backend
        if trial.rank_n < offer.rank_n_min or (offer.rank_n_max is not None and trial.rank_n > offer.rank_n_max):
            top = "or more" if offer.rank_n_max is None else f"to {offer.rank_n_max}"
            return f"{backend} takes {offer.rank_n_min} {top} ranks", {"rank_n": trial.rank_n}
        asked = {"collective": offer.collectives, "op": offer.ops, "format": offer.formats}
        for name, offered in asked.items():
            if (value := getattr(call, name)) not in offered:
                return f"{backend} does not offer {name} {value}", {name: value}
        if trial.in_place and not offer.in_place:
            return f"{backend} does not reduce in place", {"in_place": True}
        if call.group is not None and "groups" not in offer.features:
            return f"{backend} does not reduce over a group of ranks", {"group": list(call.group)}
        return None

    def _misaligned(self, trial: Trial) -> Exclusion | None:
        for name, shift in (("send_shift", trial.send_shift), ("recv_shift", trial.recv_shift)):
            if shift * trial.call.fmt.itemsize % self.capabilities.element_alignment:
                need = f"{self.arm.backend} needs ranges that begin at multiples of"
                scope = {"format": trial.call.format, name: shift}
                return f"{need} {self.capabilities.element_alignment} bytes", scope
        return None

    def calls(self) -> tuple[Call, ...]:
        """The distinct (collective, op, format, root, group) that the capabilities allow, as calls of count 0."""
        return tuple(dict.fromkeys(replace(trial.call, count=0) for trial in self.points()))

    def families(self, *default: str) -> tuple[Family, ...]:
        """The file's families where it names some; else the probe's own."""
        return self.sweep.family or tuple(Family.parse(text) for text in default)

    def telling_counts(self, k: int) -> tuple[int, ...]:
        """At most ``k`` counts, ascending: the largest, the smallest above 0, then new residues mod 16 bytes."""
        counts = sorted(set(self.sweep.count))
        positive = [count for count in counts if count] or counts
        first = [positive[-1], positive[0]]
        return tuple(sorted(self._telling(first + positive, k)))

    def telling_shifts(self, k: int) -> tuple[tuple[int, int], ...]:
        """At most ``k`` pairs, ascending: the smallest (0 if there), the next, the largest, then new residues."""
        pairs = sorted(set(self.sweep.shift))
        moved = [pair for pair in pairs if pair != (0, 0)] or pairs
        return tuple(sorted(self._telling([pairs[0], moved[0], moved[-1], *pairs], k, forced=3)))

    def _telling(self, ordered: Sequence[Any], k: int, forced: int = 2) -> list[Any]:
        """The first ``forced`` values and, after them, those whose residue is new."""
        word = WORD // min(FORMATS[name].itemsize for name in self.sweep.format)
        chosen: list[Any] = []
        for number, value in enumerate(ordered):
            residues = {_residue(other, word) for other in chosen}
            if value not in chosen and (number < forced or _residue(value, word) not in residues):
                chosen.append(value)
        return chosen[:k]


def _residue(value: Any, word: int) -> Any:
    return tuple(part % word for part in value) if isinstance(value, tuple) else value % word


def checked(config: Config) -> Config:
    """Groups and roots against rank counts: a value that no arm can take is a mistake. Raises ConfigError."""
    mistakes = Mistakes(config.source)
    most = max(arm.ranks for arm in config.arms)
    for number, group in enumerate(config.sweep.group):
        if group is not None and max(group) >= most:
            mistakes.add(
                f"sweep.group[{number}]", f"= {list(group)} names rank {max(group)}; no arm has more than {most}"
            )
    sizes = [most if group is None else len(group) for group in config.sweep.group]
    for number, root in enumerate(config.sweep.root):
        if root >= max(sizes):
            mistakes.add(f"sweep.root[{number}]", f"= {root} is not a position within a group of {max(sizes)}")
    mistakes.raise_if_any()
    return config
