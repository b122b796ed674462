"""Which backends there are, and the class behind a name. Nothing here imports a vendor library or picks a substitute.

A backend is an entry point of group ``auditor.backends``, or ``package.module:ClassName`` anywhere; the current directory is
importable.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from auditor.backends.base import Backend
from auditor.errors import ConfigError, Unavailable
from auditor.model import Capabilities

GROUP = "auditor.backends"
PROCESS_MODELS = ("all", "one")
VERBS = {"probe": 1, "allocate": 1, "run": 3, "describe": 0, "close": 0}  # arguments beside self or cls
NEXT = "`auditor backends` lists what is here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One listed backend.

    ``status``: ``ok`` (loads and keeps the contract), ``unavailable`` (probed, and cannot run here) or ``broken``.
    ``capabilities`` are those of a probe without options; None where it was not probed or did not succeed.
    """

    name: str
    spec: str
    status: str
    reason: str = ""
    remedy: str = ""
    capabilities: Capabilities | None = None


def resolve(spec: str) -> type[Backend]:
    """The backend class behind an entry-point name or ``package.module:ClassName``.

    Raises ConfigError where there is no such backend or it does not keep the contract, Unavailable where its module fails to
    import.
    """
    return _class_at(spec) if ":" in spec else _named(spec)


def choose(spec: str, options: Mapping[str, Any]) -> type[Backend]:
    """The class behind ``spec`` for these options: a backend with several process models has ``for_options(options)``.

    A class derived from such a backend inherits that choice, which knows nothing of it: the derived class is what was asked for,
    and is what is audited. Raises what :func:`resolve` raises, and ConfigError where the backend refuses an option, or where a
    derived class drives its ranks in another way than the options ask.
    """
    found = resolve(spec)
    for_options = getattr(found, "for_options", None)
    if for_options is None:
        return found
    chosen: type[Backend] = for_options(options)
    if issubclass(chosen, found) or "for_options" in vars(found):
        return chosen
    if chosen.process_model != found.process_model:
        models = f"{found.process_model!r}, and these options ask for {chosen.process_model!r}"
        raise ConfigError(
            f"backend {spec}: its process_model is {models} (by {chosen.__name__}); derive it from that class"
        )
    return found


def listing(*, probe: bool = False) -> list[Entry]:
    """All installed backends by name. Their modules are imported; vendor libraries only if ``probe`` asks what is offered."""
    return [_entry(point, probe) for point in _installed()]


def gaps(candidate: Any) -> list[str]:
    """What keeps an object from being a backend class (DESIGN §4); empty where nothing does."""
    if not inspect.isclass(candidate):
        return [f"it is a {type(candidate).__name__}, not a class"]
    found = []
    name = getattr(candidate, "name", None)
    if not isinstance(name, str) or not name:
        found.append("`name` is not a text")
    model = getattr(candidate, "process_model", None)
    if model not in PROCESS_MODELS:
        found.append(f'`process_model` = {model!r} is neither "all" nor "one"')
    missing = [verb for verb in VERBS if not callable(getattr(candidate, verb, None))]
    found += [f"`{verb}` is missing" for verb in missing]
    if candidate.__init__ is object.__init__:
        found.append("`__init__(world, options)` is missing")
    else:
        found += _misfit(candidate.__init__, "__init__", 3)
    for verb in VERBS.keys() - missing:
        found += _misfit(getattr(candidate, verb), verb, VERBS[verb] + (verb != "probe"))
    return sorted(found)


def _misfit(function: Any, name: str, arguments: int) -> list[str]:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        kind = "a class method of (options)" if name == "probe" else f"callable with {arguments - 1} arguments"
        return [f"`{name}` is not {kind}"]
    except ValueError:  # a builtin without a signature
        return []
    return []


def _installed() -> list[EntryPoint]:
    """Entry points by name; one that is found twice on the path (an editable install and a wheel) counts once."""
    unique = {(point.name, point.value): point for point in entry_points(group=GROUP)}
    return [unique[key] for key in sorted(unique)]


def _named(name: str) -> type[Backend]:
    points = [point for point in _installed() if point.name == name]
    if not points:
        known = ", ".join(sorted({point.name for point in _installed()})) or "none"
        raise ConfigError(
            f"there is no backend {name!r}; installed: {known}; or write package.module:ClassName; {NEXT}"
        )
    if len(points) > 1:
        values = " and ".join(point.value for point in points)
        raise ConfigError(f"backend {name!r} is claimed by {values}; write the one that you mean in its place")
    return _class_at(points[0].value, name)


def _class_at(spec: str, name: str = "") -> type[Backend]:
    """The class at ``module:Class``; ``name`` is its entry point's, "" where a person wrote the spec."""
    module_name, _, class_name = spec.partition(":")
    label = f"backend {name!r} ({spec})" if name else f"backend {spec!r}"
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), *class_name.split("."))):
        raise ConfigError(f"{label} is not of the form package.module:ClassName; {NEXT}")
    found: Any = _module(module_name, label)
    for part in class_name.split("."):
        if not hasattr(found, part):
            offered = ", ".join(sorted(n for n, v in vars(found).items() if not gaps(v))) or "no backend class"
            raise ConfigError(f"{label}: {found.__name__} has no {part}; it has {offered}")
        found = getattr(found, part)
    if missing := gaps(found):
        raise ConfigError(f"{label} does not keep the backend contract: {'; '.join(missing)}; see docs/backends.md")
    backend: type[Backend] = found
    return backend


def _module(module_name: str, label: str) -> Any:
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # at the end: a file here never hides an installed module
    invalidate_caches()  # the file may have been written since the directory was last looked at
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ConfigError(f"{label}: there is no module {error.name}, here ({here}) or installed; {NEXT}") from None
        raise Unavailable(f"{label} needs {error.name}, which is not installed", f"install {error.name}") from error
    except (Exception, SystemExit) as error:  # whatever a foreign module does when imported
        raise Unavailable(f"{label} fails to import: {_said(error)}", f"mend {module_name}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")


def _entry(point: EntryPoint, probe: bool) -> Entry:
    try:
        backend = _class_at(point.value, point.name)
    except ConfigError as error:
        return Entry(name=point.name, spec=point.value, status="broken", reason=str(error))
    except Unavailable as error:
        return Entry(name=point.name, spec=point.value, status="broken", reason=error.reason, remedy=error.remedy)
    if not probe:
        return Entry(name=point.name, spec=point.value, status="ok")
    try:
        capabilities = backend.probe({})
    except Unavailable as error:
        return Entry(name=point.name, spec=point.value, status="unavailable", reason=error.reason, remedy=error.remedy)
    except Exception as error:
        return Entry(name=point.name, spec=point.value, status="broken", reason=f"probe raised {_said(error)}")
    return Entry(name=point.name, spec=point.value, status="ok", capabilities=capabilities)
