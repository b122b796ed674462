"""TOML -> Config, and Scope: what one arm's probes may plan from.

Every mistake of a file is reported at once, one line each, with the file and the key path (DESIGN §7):
``configs/nccl.toml: sweep.count[3] = 1.5 is not a whole number of elements``.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from auditor.errors import ConfigError
from auditor.model import COLLECTIVES, OPS, Call, Capabilities, Family, Trial
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import MODES

BUILT_IN = "built-in quickstart"
ALL_MODES = (*MODES, "stochastic", "neighbour_keyed")
WORD = 16  # bytes: the widest load that the libraries use; counts and shifts are told apart by their residue in it
RANKS_MAX = 1 << 20  # exact sums hold up to this many terms (NUMERICS §2)

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
HARNESS_KINDS = ("crash", "hang", "backend_error", "unsupported", "path_not_taken", "input_corrupt")
KINDS = (*itertools.chain.from_iterable(PROBE_KINDS.values()), *HARNESS_KINDS)
ALL_PROBES = ("all",)


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
            raise ConfigError(f"{self.source}: arm {name!r} is unknown{_nearest(name, names)}")
        return self.arms[names.index(name)]

    def with_arm(self, name: str) -> Config:
        """Only that arm. Raises ConfigError where there is none of that name or it makes the axes illegal."""
        return _checked(replace(self, arms=(self.arm(name),)))

    def with_backend(self, spec: str) -> Config:
        """All arms replaced by one that is named after the backend; ranks are the first arm's. Raises ConfigError."""
        if wrong := _backend(spec):
            raise ConfigError(f"--backend = {_show(spec)} {wrong}")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", spec.replace(":", "."))
        arm = ArmSpec(name=name, backend=spec, ranks=self.arms[0].ranks)
        return _checked(replace(self, arms=(arm,), arguments=(*self.arguments, "--backend", spec)))

    def with_ranks(self, ranks: int) -> Config:
        """Every arm with that many ranks. Raises ConfigError where it is no rank count or a group no longer fits."""
        if wrong := _ranks(ranks):
            raise ConfigError(f"--ranks = {_show(ranks)} {wrong}")
        arms = tuple(replace(arm, ranks=ranks) for arm in self.arms)
        return _checked(replace(self, arms=arms, arguments=(*self.arguments, "--ranks", str(ranks))))


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
        """The whole product that fits this arm's ranks; capabilities are not asked. May repeat itself."""
        axes = self.sweep
        for collective, op, name, root, group in itertools.product(
            axes.collective, axes.op, axes.format, axes.root, axes.group
        ):
            members = range(self.arm.ranks) if group is None else group
            if max(members) >= self.arm.ranks or (collective == "reduce" and root >= len(members)):
                continue
            root = root if collective == "reduce" else 0  # else it means nothing, and would make copies
            for count, in_place, pair, seed in itertools.product(axes.count, axes.in_place, axes.shift, axes.seed):
                if in_place and pair[0] != pair[1]:
                    continue  # one range cannot begin at two places
                call = Call(collective=collective, op=op, format=name, count=count, root=root, group=group)
                yield Trial(
                    call=call,
                    rank_n=self.arm.ranks,
                    send_shift=pair[0],
                    recv_shift=pair[1],
                    in_place=in_place,
                    family=Family("rank_coded"),
                    seed=seed,
                )

    def excluded(self, trial: Trial) -> tuple[str, Mapping[str, Any]] | None:
        """Why the capabilities exclude a trial, with the fields to blame; None where they allow it."""
        offer, call = self.capabilities, trial.call
        if trial.rank_n < offer.rank_n_min or (offer.rank_n_max is not None and trial.rank_n > offer.rank_n_max):
            top = "or more" if offer.rank_n_max is None else f"to {offer.rank_n_max}"
            return f"{self.arm.backend} takes {offer.rank_n_min} {top} ranks", {"rank_n": trial.rank_n}
        for name, value, offered in (
            ("collective", call.collective, offer.collectives),
            ("op", call.op, offer.ops),
            ("format", call.format, offer.formats),
        ):
            if value not in offered:
                return f"{self.arm.backend} does not offer {name} {value}", {name: value}
        if trial.in_place and not offer.in_place:
            return f"{self.arm.backend} does not reduce in place", {"in_place": True}
        if call.group is not None and "groups" not in offer.features:
            return f"{self.arm.backend} does not reduce over a group of ranks", {"group": list(call.group)}
        return self._misaligned(trial)

    def _misaligned(self, trial: Trial) -> tuple[str, Mapping[str, Any]] | None:
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
        return tuple(sorted(self._telling(first + positive, lambda count: count, k)))

    def telling_shifts(self, k: int) -> tuple[tuple[int, int], ...]:
        """At most ``k`` pairs, ascending: the smallest (0 if there), the next, the largest, then new residues."""
        pairs = sorted(set(self.sweep.shift))
        moved = [pair for pair in pairs if pair != (0, 0)] or pairs
        return tuple(sorted(self._telling([pairs[0], moved[0], moved[-1], *pairs], lambda pair: pair, k, forced=3)))

    def _telling(self, ordered: Sequence[Any], key: Callable[[Any], Any], k: int, forced: int = 2) -> list[Any]:
        """The first ``forced`` values and, after them, those whose residue is new."""
        word = WORD // min(FORMATS[name].itemsize for name in self.sweep.format)
        chosen: list[Any] = []
        for number, value in enumerate(ordered):
            residues = {_residue(key(other), word) for other in chosen}
            if value not in chosen and (number < forced or _residue(key(value), word) not in residues):
                chosen.append(value)
        return chosen[:k]


def _residue(value: Any, word: int) -> Any:
    return tuple(part % word for part in value) if isinstance(value, tuple) else value % word


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config; None: the built-in quickstart.

    ``overrides``: texts ``key.path=value``; the value is TOML, or bare text where it is not.
    Raises ConfigError whose text has one line for each mistake.
    """
    source = BUILT_IN if path is None else str(path)
    raw = _parse(_read(path, source), source)
    mistakes = _Mistakes(source)
    for text in overrides:
        _override(raw, text, mistakes)
    config = _build(raw, mistakes, source)
    arguments = tuple(itertools.chain.from_iterable(("--set", text) for text in overrides))
    return _checked(replace(config, arguments=arguments))


def _read(path: str | Path | None, source: str) -> str:
    try:
        if path is None:
            return resources.files("auditor").joinpath("quickstart.toml").read_text(encoding="utf-8")
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from None


class _Mistakes:
    """Collects every mistake, so that a person mends the file once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[str] = []

    def add(self, path: str, text: str) -> None:
        self.lines.append(f"{self.source}: {path} {text}")

    def unknown(self, table: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
        for key in table:
            if key not in known:
                self.add(prefix + key, f"is unknown{_nearest(key, known, prefix)}")

    def table(self, raw: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
        value = raw.get(key, {})
        if isinstance(value, dict):
            return value
        self.add(prefix + key, f"= {_show(value)} is not a table")
        return {}

    def raise_if_any(self) -> None:
        if self.lines:
            raise ConfigError("\n".join(self.lines))


def _nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else f"; known: {', '.join(known)}"


def _show(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _override(raw: dict[str, Any], text: str, mistakes: _Mistakes) -> None:
    key, eq, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not eq or not all(keys):
        mistakes.lines.append(f"--set {text}: is not of the form key.path=value")
        return
    target: Any = raw
    for number, part in enumerate(keys[:-1]):
        target = _step(target, part)
        if not isinstance(target, dict | list):
            mistakes.lines.append(f"--set {text}: there is no {'.'.join(keys[: number + 1])}{_arm_names(raw, keys)}")
            return
    if isinstance(target, list):
        mistakes.lines.append(f"--set {text}: name a key of one arm, as in arm.0.ranks=4{_arm_names(raw, keys)}")
        return
    target[keys[-1]] = _value(value.strip())


def _step(target: Any, part: str) -> Any:
    if isinstance(target, dict):
        return target.setdefault(part, {})
    named = [arm for arm in target if isinstance(arm, dict) and arm.get("name") == part]
    if named:
        return named[0]
    return target[int(part)] if part.isdecimal() and int(part) < len(target) else None


def _arm_names(raw: Mapping[str, Any], keys: Sequence[str]) -> str:
    arms = raw.get("arm")
    names = [str(arm.get("name")) for arm in arms if isinstance(arm, dict)] if isinstance(arms, list) else []
    return f"; arms: {', '.join(names)}" if keys[0] == "arm" and names else ""


def _value(text: str) -> Any:
    """A TOML value; what is none is a bare string."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["v"] if set(parsed) == {"v"} else text


Check = Callable[[Any], str]  # "" or what is wrong with the value, to follow "key = value "


def _one_of(names: Sequence[str], what: str) -> Check:
    def check(value: Any) -> str:
        if isinstance(value, str) and value in names:
            return ""
        return f"is not {what}{_nearest(value if isinstance(value, str) else '', names)}"

    return check


def _whole(what: str, low: int, high: int, below: str) -> Check:
    def check(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            return f"is written as a float; write {int(value)}"
        if not isinstance(value, int) or isinstance(value, bool):
            return f"is not {what}"
        return below if value < low else "" if value <= high else f"is above {high}"

    return check


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "is not true or false"


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "is not a text"


def _group(value: Any) -> str:
    if value == "all":
        return ""
    if not isinstance(value, list) or not value or any(_root(member) for member in value):
        return 'is not a list of ranks, nor "all"'
    return "" if len(set(value)) == len(value) else "names a rank twice"


def _family(value: Any) -> str:
    """Form only; whether the family exists and its arguments hold is asked when the plan is made."""
    try:
        Family.parse(value if isinstance(value, str) else "")
    except ValueError:
        return "is not of the form name or name:key=value,key=value"
    return ""


def _arm_name(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        return ""
    return "cannot name a folder; use letters, digits, '.', '_' and '-', 64 at most"


def _backend(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w.-]+(:[A-Za-z_][\w.]*)?", value):
        return ""
    return "is neither a backend's name nor package.module:ClassName"


_ranks = _whole("a whole number of ranks", 1, RANKS_MAX, "is below 1")
_root = _whole("a whole number", 0, RANKS_MAX, "is negative")
_shift = _whole("a whole number of elements", 0, 1 << 40, "is negative")
AXES: dict[str, Check] = {
    "collective": _one_of(COLLECTIVES, "a collective"),
    "op": _one_of(OPS, "an operation"),
    "format": _one_of(tuple(FORMATS), "a format"),
    "count": _whole("a whole number of elements", 0, 1 << 48, "is negative"),
    "shift": _shift,
    "send_shift": _shift,
    "recv_shift": _shift,
    "in_place": _flag,
    "root": _root,
    "group": _group,
    "family": _family,
    "repeats": _whole("a whole number of repeats", 1, 1_000_000, "is below 1"),
    "seed": _whole("a whole number", 0, (1 << 63) - 1, "is negative"),
}
ARM_KEYS: dict[str, Check] = {"name": _arm_name, "backend": _backend, "ranks": _ranks, "path": _text}
EXPECT_TEXT = ("accumulator", "hop_rounding", "summation_tree", "average_scaling", *PROBE_KINDS["special"])


def _build(raw: Mapping[str, Any], mistakes: _Mistakes, source: str) -> Config:
    mistakes.unknown(raw, ("title", "arm", "sweep", "expect", "probes"))
    title = raw.get("title", source)
    if wrong := _text(title):
        mistakes.add("title", f"= {_show(title)} {wrong}")
    arms = _arms(raw.get("arm"), mistakes)
    sweep = _sweep(mistakes.table(raw, "sweep"), mistakes)
    expect = mistakes.table(raw, "expect")
    _check_expect(expect, mistakes)
    probes = _probes(mistakes.table(raw, "probes"), mistakes)
    mistakes.raise_if_any()
    return Config(title=title, arms=arms, sweep=sweep, expect=expect, probes=probes, source=source)


def _arms(raw: Any, mistakes: _Mistakes) -> tuple[ArmSpec, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(arm, dict) for arm in raw):
        mistakes.add("arm", "is missing: write at least one [[arm]] with name, backend and ranks")
        return ()
    arms = [_arm(arm, f"arm[{number}].", mistakes) for number, arm in enumerate(raw)]
    names = [str(arm.get("name")).casefold() for arm in raw if "name" in arm]
    for number, arm in enumerate(raw):
        if names.count(name := str(arm.get("name")).casefold()) > 1 and names.index(name) != number:
            mistakes.add(f"arm[{number}].name", f"= {_show(arm['name'])} is taken by an arm above")
    return tuple(arm for arm in arms if arm is not None)


def _arm(raw: Mapping[str, Any], prefix: str, mistakes: _Mistakes) -> ArmSpec | None:
    mistakes.unknown(raw, ("name", "backend", "ranks", "options", "env", "path"), prefix)
    before = len(mistakes.lines)
    for key, check in ARM_KEYS.items():
        if key in raw and (wrong := check(raw[key])):
            mistakes.add(prefix + key, f"= {_show(raw[key])} {wrong}")
        elif key not in raw and key != "path":
            mistakes.add(prefix + key, "is missing")
    options = mistakes.table(raw, "options", prefix)
    env = mistakes.table(raw, "env", prefix)
    for key, value in env.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            mistakes.add(f"{prefix}env.{key}", f"= {_show(value)} is not a text")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            mistakes.add(f"{prefix}env.{key}", "cannot name an environment variable")
    if len(mistakes.lines) > before:
        return None
    rest = {key: raw[key] for key in ARM_KEYS if key in raw}
    return ArmSpec(**rest, options=options, env={key: str(value) for key, value in env.items()})


def _sweep(raw: Mapping[str, Any], mistakes: _Mistakes) -> Sweep:
    mistakes.unknown(raw, tuple(AXES), "sweep.")
    axes = {key: _axis(key, raw[key], check, mistakes) for key, check in AXES.items() if key in raw}
    apart = [axes.pop(name, None) for name in ("send_shift", "recv_shift")]
    if any(part is not None for part in apart):
        if "shift" in axes:
            mistakes.add("sweep.shift", "stands beside send_shift or recv_shift; give either the one or the others")
        axes["shift"] = tuple(itertools.product(*(part or (0,) for part in apart)))
    elif "shift" in axes:
        axes["shift"] = tuple((shift, shift) for shift in axes["shift"])
    if mistakes.lines:
        return Sweep()
    convert: dict[str, Callable[[tuple[Any, ...]], Any]] = {
        "group": lambda groups: tuple(None if group == "all" else tuple(group) for group in groups),
        "family": lambda families: tuple(Family.parse(family) for family in families),
        "repeats": max,
    }
    return Sweep(**{key: convert.get(key, tuple)(values) for key, values in axes.items()})


def _axis(key: str, raw: Any, check: Check, mistakes: _Mistakes) -> tuple[Any, ...]:
    """The axis' values; a single one may stand without brackets, a single group too."""
    single = not isinstance(raw, list) or (
        key == "group" and bool(raw) and not any(isinstance(v, list | str) for v in raw)
    )
    values = [raw] if single else raw
    if not values:
        mistakes.add(f"sweep.{key}", "is empty; give at least one value or leave the key out")
    for number, value in enumerate(values):
        if wrong := check(value):
            where = f"sweep.{key}" if single else f"sweep.{key}[{number}]"
            mistakes.add(where, f"= {_show(value)} {wrong}")
    return tuple(values)


def _check_expect(raw: Mapping[str, Any], mistakes: _Mistakes) -> None:
    mistakes.unknown(raw, KINDS, "expect.")
    for key, value in raw.items():
        if key == "rounding_mode":
            wrong = _one_of(ALL_MODES, "a rounding mode")(value)
        elif key == "ulp_bound":
            wrong = "" if isinstance(value, int | float) and value >= 0 else "is not a number of ulp"
        elif key in EXPECT_TEXT:
            wrong = _flag(value) and _text(value) and "is neither a text nor true or false"
        else:
            wrong = _flag(value)
        if key in KINDS and wrong:
            mistakes.add(f"expect.{key}", f"= {_show(value)} {wrong}")


def _probes(raw: Mapping[str, Any], mistakes: _Mistakes) -> tuple[str, ...]:
    mistakes.unknown(raw, ("run",), "probes.")
    run = raw.get("run", "all")
    names = run if isinstance(run, list) else [run]
    check = _one_of((*PROBE_KINDS, *ALL_PROBES), "a probe")
    if not names:
        mistakes.add("probes.run", 'is empty; name a probe or write "all"')
    for number, name in enumerate(names):
        if wrong := check(name):
            mistakes.add(f"probes.run[{number}]" if isinstance(run, list) else "probes.run", f"= {_show(name)} {wrong}")
    return ALL_PROBES if "all" in names else tuple(dict.fromkeys(names))


def _checked(config: Config) -> Config:
    """Groups and roots against rank counts: a value that no arm can take is a mistake. Raises ConfigError."""
    mistakes = _Mistakes(config.source)
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
