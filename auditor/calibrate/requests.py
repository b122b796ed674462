"""What a person may ask of each workload, by the names of the command line, with the defaults; and the workload for a request."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from auditor.calibrate.collective import Collective, CollectiveOptions, Record
from auditor.calibrate.local import LocalOptions, LocalReduction
from auditor.calibrate.matmul import Matmul, MatmulOptions
from auditor.calibrate.measured import Workload
from auditor.config import toml_value
from auditor.errors import ConfigError

LOCAL = {
    "device": "cpu",
    "format": "binary32",
    "orders": 3,
    "distribution": "uniform",
    "reference": "float64",
    "seed": 0,
}
COLLECTIVE = {
    "backend": "mpi",
    "ranks": 4,
    "format": "binary32",
    "count": 65536,
    "orders": 6,
    "distribution": "wide",
    "seed": 0,
    "option": [],
    "env": [],
    "arms": "",
    "algorithms": "all",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "all_reduce": COLLECTIVE,
    "reduce_scatter": COLLECTIVE,
    "histogram": {**LOCAL, "bins": 4096, "weights": 16384},
    "matmul": {"device": "cpu", "size": 4096, "chunks": 8, "checks": 9, "bound_absolute": 1e-3, "seed": 0},
    "user:": {**LOCAL, "count": 4096, "terms": 1024},
}


def defaults(workload: str) -> dict[str, Any]:
    """Option -> default. Raises ConfigError on an unknown workload."""
    name = "user:" if workload.startswith("user:") else workload
    if name not in DEFAULTS:
        known = ", ".join(key if key != "user:" else "user:module.function" for key in DEFAULTS)
        raise ConfigError(f"there is no workload {workload!r}; there are {known}")
    return DEFAULTS[name]


def resolved(workload: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a workload, with what was given on top. Raises ConfigError on an option that it does not have."""
    known = defaults(workload)
    for key in given:
        if key not in known:
            takes = ", ".join(_flag(name) for name in known)
            raise ConfigError(f"{_flag(key)} is not for {workload}; it takes {takes}")
    return {**known, **given}


def request_of(workload: str, given: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """A request as the record keeps it. ``beside``: options of the calibration itself, for the command line that is shown."""
    words = ["auditor", "calibrate", workload]
    for key, value in {**given, **beside}.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [_flag(key), str(one)]
    return {"workload": workload, "options": resolved(workload, given), "command": shlex.join(words)}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def build(workload: str, options: Mapping[str, Any], record: Record) -> Workload:
    """The workload for all its options. Raises ConfigError, and Unavailable where what it needs is not here."""
    makers: dict[str, Callable[[dict[str, Any]], Workload]] = {
        "histogram": lambda o: LocalReduction(_local(o, "bins", "weights")),
        "matmul": lambda o: Matmul(
            MatmulOptions(**{("bound" if key == "bound_absolute" else key): v for key, v in o.items()})
        ),
        "user:": lambda o: LocalReduction(_local(o, "count", "terms", workload)),
    }
    defaults(workload)
    name = "user:" if workload.startswith("user:") else workload
    made = makers.get(name)
    return Collective(_collective(workload, options), record) if made is None else made(dict(options))


def _local(options: Mapping[str, Any], n: str, terms: str, function: str = "") -> LocalOptions:
    rest = {key: value for key, value in options.items() if key not in (n, terms)}
    return LocalOptions(function=function, n=options[n], terms=options[terms], **rest)


def _collective(workload: str, options: Mapping[str, Any]) -> CollectiveOptions:
    rest = {key: value for key, value in options.items() if key not in ("option", "env")}
    own = tuple((key, toml_value(value)) for key, value in _pairs("--option", options["option"]))
    return CollectiveOptions(collective=workload, options=own, env=tuple(_pairs("--env", options["env"])), **rest)


def _pairs(flag: str, texts: Any) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        key, equals, value = str(text).partition("=")
        if not key or not equals:
            raise ConfigError(f"{flag} {text}: is not of the form key=value")
        pairs.append((key, value))
    return pairs
