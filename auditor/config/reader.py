"""TOML and ``--set`` -> Config. Every mistake is reported at once, one a line, with file and key path (DESIGN §7)."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from auditor.config.checks import ARM_KEYS, AXES, Check, Mistakes, flag, one_of, plain_text, show
from auditor.config.records import ALL_PROBES, BUILT_IN, KINDS, PROBE_KINDS, ArmSpec, Config, Sweep, checked
from auditor.errors import ConfigError
from auditor.model import Family
from auditor.numerics.rounding import MODES

ALL_MODES = (*MODES, "stochastic", "neighbour_keyed")
EXPECT_TEXT = ("accumulator", "hop_rounding", "summation_tree", "average_scaling", *PROBE_KINDS["special"])


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config; None: the built-in quickstart.

    ``overrides``: texts ``key.path=value``; the value is TOML, or bare text where it is not.
    Raises ConfigError whose text has one line for each mistake.
    """
    source = BUILT_IN if path is None else str(path)
    raw = _parse(_read(path, source), source)
    mistakes = Mistakes(source)
    for text in overrides:
        _override(raw, text, mistakes)
    config = _build(raw, mistakes, source)
    arguments = tuple(itertools.chain.from_iterable(("--set", text) for text in overrides))
    return checked(replace(config, arguments=arguments))


def _read(path: str | Path | None, source: str) -> str:
    try:
        if path is None:
            return resources.files("auditor").joinpath("quickstart.toml").read_text(encoding="utf-8")
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from None


def _override(raw: dict[str, Any], text: str, mistakes: Mistakes) -> None:
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
    if keys in (["sweep", "send_shift"], ["sweep", "recv_shift"]):
        target.pop("shift", None)  # the two ways to say it exclude each other; the last one said holds
    if keys == ["sweep", "shift"]:
        target.pop("send_shift", None)
        target.pop("recv_shift", None)
    target[keys[-1]] = toml_value(value.strip())


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


def toml_value(text: str) -> Any:
    """A TOML value; what is none is a bare string."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["v"] if set(parsed) == {"v"} else text


def _build(raw: Mapping[str, Any], mistakes: Mistakes, source: str) -> Config:
    mistakes.unknown(raw, ("title", "arm", "sweep", "expect", "probes"))
    title = raw.get("title", source)
    if wrong := plain_text(title):
        mistakes.add("title", f"= {show(title)} {wrong}")
    arms = _arms(raw.get("arm"), mistakes)
    sweep = _sweep(mistakes.table(raw, "sweep"), mistakes)
    expect = mistakes.table(raw, "expect")
    _check_expect(expect, mistakes)
    probes = _probes(mistakes.table(raw, "probes"), mistakes)
    mistakes.raise_if_any()
    return Config(title=title, arms=arms, sweep=sweep, expect=expect, probes=probes, source=source)


def _arms(raw: Any, mistakes: Mistakes) -> tuple[ArmSpec, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(arm, dict) for arm in raw):
        mistakes.add("arm", "is missing: write at least one [[arm]] with name, backend and ranks")
        return ()
    arms = [_arm(arm, f"arm[{number}].", mistakes) for number, arm in enumerate(raw)]
    names = [str(arm.get("name")).casefold() for arm in raw if "name" in arm]
    for number, arm in enumerate(raw):
        if names.count(name := str(arm.get("name")).casefold()) > 1 and names.index(name) != number:
            mistakes.add(f"arm[{number}].name", f"= {show(arm['name'])} is taken by an arm above")
    return tuple(arm for arm in arms if arm is not None)


def _arm(raw: Mapping[str, Any], prefix: str, mistakes: Mistakes) -> ArmSpec | None:
    mistakes.unknown(raw, ("name", "backend", "ranks", "options", "env", "path"), prefix)
    before = len(mistakes.lines)
    for key, check in ARM_KEYS.items():
        if key in raw and (wrong := check(raw[key])):
            mistakes.add(prefix + key, f"= {show(raw[key])} {wrong}")
        elif key not in raw and key != "path":
            mistakes.add(prefix + key, "is missing")
    options = mistakes.table(raw, "options", prefix)
    for key, value in options.items():
        if not _plain(value):
            mistakes.add(
                f"{prefix}options.{key}", f"= {show(value)} is not a text, a number, true, false or a list of them"
            )
    env = mistakes.table(raw, "env", prefix)
    for key, value in env.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            mistakes.add(f"{prefix}env.{key}", f"= {show(value)} is not a text")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            mistakes.add(f"{prefix}env.{key}", "cannot name an environment variable")
    if len(mistakes.lines) > before:
        return None
    rest = {key: raw[key] for key in ARM_KEYS if key in raw}
    return ArmSpec(**rest, options=options, env={key: str(value) for key, value in env.items()})


def _plain(value: Any) -> bool:
    """Whether a value survives JSON, and so the plan's file."""
    return isinstance(value, str | int | float) or (isinstance(value, list) and all(map(_plain, value)))


def _sweep(raw: Mapping[str, Any], mistakes: Mistakes) -> Sweep:
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


def _axis(key: str, raw: Any, check: Check, mistakes: Mistakes) -> tuple[Any, ...]:
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
            mistakes.add(where, f"= {show(value)} {wrong}")
    return tuple(values)


def _check_expect(raw: Mapping[str, Any], mistakes: Mistakes) -> None:
    mistakes.unknown(raw, KINDS, "expect.")
    for key, value in raw.items():
        if key == "rounding_mode":
            wrong = one_of(ALL_MODES, "a rounding mode")(value)
        elif key == "ulp_bound":
            wrong = "" if isinstance(value, int | float) and value >= 0 else "is not a number of ulp"
        elif key in EXPECT_TEXT:
            wrong = flag(value) and plain_text(value) and "is neither a text nor true or false"
        else:
            wrong = flag(value)
        if key in KINDS and wrong:
            mistakes.add(f"expect.{key}", f"= {show(value)} {wrong}")


def _probes(raw: Mapping[str, Any], mistakes: Mistakes) -> tuple[str, ...]:
    mistakes.unknown(raw, ("run",), "probes.")
    run = raw.get("run", "all")
    names = run if isinstance(run, list) else [run]
    check = one_of((*PROBE_KINDS, *ALL_PROBES), "a probe")
    if not names:
        mistakes.add("probes.run", 'is empty; name a probe or write "all"')
    for number, name in enumerate(names):
        if wrong := check(name):
            mistakes.add(f"probes.run[{number}]" if isinstance(run, list) else "probes.run", f"= {show(name)} {wrong}")
    return ALL_PROBES if "all" in names else tuple(dict.fromkeys(names))
