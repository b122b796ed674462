"""What differs around two arms, the likely cause of all the rest: library, driver, GPU, topology, variables, versions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from auditor.compare.records import Difference
from auditor.probes.common import listed
from auditor.store import RecordedArm, RunReader

# Groups in the order in which a person should look at them.
GROUPS = ("library", "driver", "GPU", "topology", "variables", "settings", "software", "machine", "launcher", "auditor")
LIBRARIES = re.compile(r"mpi|nccl|nvshmem|cupy|^cuda", re.IGNORECASE)
DESCRIBED = (  # what a backend's describe() tells, by the name of the key
    ("driver", re.compile(r"driver", re.IGNORECASE)),
    ("GPU", re.compile(r"gpu|device|compute_capability|vbios", re.IGNORECASE)),
    ("topology", re.compile(r"host|node|topology|nvlink|fabric|pci|numa", re.IGNORECASE)),
)
# Variables that a launcher sets for its own processes: they differ from start to start and steer no sum.
OWN = re.compile(
    r"^(HYDRA_|I_MPI_(INFO|HYDRA|PIN_INFO|PIN_MAPPING|INTERNAL|RETURN)|PMIX_|OMPI_COMM_WORLD_)|UUID|_(PID|FD|PGID)$"
    r"|^SLURM_(PROCID|LOCALID|NODEID|GTIDS|NODELIST|STEP_NODELIST|TOPOLOGY_ADDR)$"
)
PATHS = 12  # named at most
Fact = tuple[str, str, str]  # group, name, what it is
Facts = dict[tuple[str, str], str]


def differences(base: tuple[RunReader, RecordedArm], other: tuple[RunReader, RecordedArm]) -> tuple[Difference, ...]:
    """What is not the same around two arms, the likeliest cause first."""
    x, y = facts(*base), facts(*other)
    names = sorted(
        dict.fromkeys((*x, *y)), key=lambda name: GROUPS.index(name[0])
    )  # else in the order in which they are told
    return tuple(
        Difference(name[0], name[1], x.get(name, _absent(name[0])), y.get(name, _absent(name[0])))
        for name in names
        if x.get(name) != y.get(name)
    )


def _absent(group: str) -> str:
    return "(not set)" if group in ("variables", "settings", "launcher") else "(not recorded)"


def facts(reader: RunReader, view: RecordedArm) -> Facts:
    """Everything that is known of where and how an arm ran, as text."""
    sources = [source for source in reader.sources() if source["arm"] == view.arm]
    told: Facts = {}
    for group, name, value in (*_settings(view), *_described(view), *_processes(sources), *_surroundings(sources)):
        told[group, name] = value
    for group, name in list(told):
        if group == "settings" and ("variables", name.removeprefix("env.")) in told:
            del told[group, name]  # the processes saw it
    return told


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _settings(view: RecordedArm) -> Iterator[Fact]:
    yield "library", "backend", view.backend
    yield "topology", "ranks", str(view.rank_n)
    for table in ("options", "env"):
        for key, value in (view.plan.get(table) or {}).items():
            yield "settings", f"{table}.{key}", _text(value)
    if view.plan.get("path"):
        yield "settings", "path", str(view.plan["path"])
    seen = (one for planned in view.planned for one in view.observations(planned.trial.trial_id))
    if paths := sorted({one.path for one in seen if one.path}):
        yield "settings", "paths taken", listed(paths, PATHS)


def _described(view: RecordedArm) -> Iterator[Fact]:
    for key, value in (view.plan.get("describe") or {}).items():
        group = next((group for group, pattern in DESCRIBED if pattern.search(key)), "library")
        yield group, key, _text(value)


def _processes(sources: Iterable[Mapping[str, Any]]) -> Iterator[Fact]:
    """Which ranks ran on which host, and how many a process."""
    by_host: dict[str, set[int]] = {}
    sizes: set[int] = set()
    for source in sources:
        host = str((source["environment"].get("system") or {}).get("host", "an unrecorded host"))
        by_host.setdefault(host, set()).update(source["ranks"])
        sizes.add(len(source["ranks"]))
    if by_host:
        yield "topology", "ranks by host", "; ".join(f"{host}: {_ranges(by_host[host])}" for host in sorted(by_host))
        yield "topology", "ranks of one process", ", ".join(map(str, sorted(sizes)))


def _ranges(ranks: Iterable[int]) -> str:
    """``0-3, 7``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _surroundings(sources: Iterable[Mapping[str, Any]]) -> Iterator[Fact]:
    """Facts of the recording processes; where these differ among each other, every value."""
    seen: dict[tuple[str, str], dict[str, None]] = {}
    launcher: dict[str, None] = {}
    for source in sources:
        for group, name, value in _of_process(source["environment"]):
            if group == "variables" and OWN.search(name):
                launcher[name] = None
            else:
                seen.setdefault((group, name), {})[value] = None
    for (group, name), values in seen.items():
        yield group, name, " | ".join(sorted(values))
    if launcher:
        yield "launcher", "variables of its own", ", ".join(sorted(launcher))


def _of_process(environment: Mapping[str, Any]) -> Iterator[Fact]:
    for key, value in environment.items():
        if key == "gpus" and isinstance(value, Mapping):
            yield from _gpus(value)
        elif isinstance(value, Mapping):
            for name, one in value.items():
                if key != "system" or name != "host":  # hosts are told with their ranks
                    yield _group(key, name), name if key in OWN_NAMES else f"{key} {name}", _text(one)
        elif key == "memory_bytes" and isinstance(value, int):
            yield "machine", "memory", f"{value / 2**30:.1f} GiB"  # two starts of one machine differ by some pages
        elif key != "date":
            yield _group(key, key), key, _text(value)


OWN_NAMES = ("packages", "variables", "system")  # tables whose keys say by themselves what they are of


def _group(table: str, name: str) -> str:
    if table == "packages":
        return "library" if LIBRARIES.search(name) else "software"
    return {"variables": "variables", "auditor": "auditor", "python": "software", "hdf5": "software"}.get(
        table, "machine"
    )


def _gpus(told: Mapping[str, Any]) -> Iterator[Fact]:
    """Driver, models and links; of several GPUs every value that one of them has. Error counters are no setting."""
    for name, value in told.items():
        if "driver" in name:
            yield "driver", name, _text(value)
        elif name == "models" and isinstance(value, list):
            counts = Counter(map(str, value))
            yield "GPU", "models", ", ".join(f"{n} x {model}" for model, n in sorted(counts.items()))
        elif name == "devices" and isinstance(value, list):
            yield from _devices([one for one in value if isinstance(one, Mapping)])
        elif name == "pairs":
            yield "topology", "GPU pairs", _text(value)


def _devices(devices: list[Mapping[str, Any]]) -> Iterator[Fact]:
    names = dict.fromkeys(name for one in devices for name in one if name not in COUNTERS)
    for name in names:
        values = sorted({_text(one[name]) for one in devices if name in one})
        yield ("topology" if name in ("fabric", "pci") else "GPU"), f"GPU {name}", " | ".join(values)
    links = sorted(
        {_text([one["nvlink"].get(key) for key in LINKS]) for one in devices if isinstance(one.get("nvlink"), Mapping)}
    )
    if links:
        yield "topology", "NVLink (links, versions)", " | ".join(links)


LINKS = ("links", "versions")
COUNTERS = (
    "index",
    "name",
    "nvlink",
    "ecc_errors",
    "remapped_rows",
)  # told elsewhere, or counts of what happened so far
