"""Where a run was recorded: machine, GPUs, versions, steering variables, hosts and their ranks; and the digests of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.report import gpus
from auditor.report.cards import Hosts
from auditor.report.words import listed, number, one_line, part, plural, spans

if TYPE_CHECKING:
    from auditor.store import RunReader  # loads h5py, which the terminal's summary does without

HOST_ROWS = GPU_ROWS = 64  # hosts and GPUs in the tables; the page states the total
NO_HOST = "an unrecorded host"


def environment(reader: RunReader) -> dict[str, Any]:
    """Of the first recording process, and of every host; variables that differ between processes are marked."""
    sources = reader.sources()
    every = [source["environment"] for source in sources]
    by_host = hosts(sources)
    cards = _gpu_rows(by_host)
    return {
        "facts": list(_facts(reader.environment)),
        "gpus": cards[:GPU_ROWS],
        "gpus_total": len(cards),
        "gpu_head": gpus.HEAD,
        "packages": [(one_line(k), one_line(v)) for k, v in part(reader.environment, "packages").items()],
        "variables": list(_variables(every)),
        "processes": plural(len(sources), "recording process").replace("processs", "processes"),
        "hosts": [_host_row(host, mine) for host, mine in list(by_host.items())[:HOST_ROWS]]
        if len(by_host) > 1
        else [],
        "hosts_total": len(by_host),
    }


def hosts(sources: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The recording processes by the host that they ran on."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for source in sources:
        found.setdefault(host_of(source["environment"]), []).append(source)
    return found


def host_of(env: Mapping[str, Any]) -> str:
    return one_line(part(env, "system").get("host") or NO_HOST)


def rank_hosts(sources: Sequence[Mapping[str, Any]]) -> Hosts:
    """(arm, rank) -> host; empty where one host recorded everything, since naming it tells nothing."""
    found = {
        (str(source.get("arm", "")), rank): host_of(source["environment"])
        for source in sources
        for rank in source.get("ranks", ())
    }
    return found if len(set(found.values())) > 1 else {}


def _host_row(host: str, mine: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str, str]:
    """Host, its ranks with the arms that they ran in, GPUs, driver, CPU and kernel."""
    env = spokesman(mine)
    system = part(env, "system")
    ranks: dict[str, set[int]] = {}
    for source in mine:
        ranks.setdefault(one_line(source.get("arm", "")), set()).update(source.get("ranks", ()))
    arms: dict[str, list[str]] = {}
    for arm, some in ranks.items():
        arms.setdefault(spans(some), []).append(arm)
    told = "; ".join(f"{some} ({listed(names, 3)})" for some, names in arms.items())
    cpu = " · ".join(str(x) for x in (part(env, "cpu").get("model"), system.get("kernel")) if x)
    return host, one_line(told), gpus.models(env) or "none seen", gpus.driver(env), one_line(cpu)


def spokesman(mine: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of a host's processes, the environment of the one that asked its GPUs; the first where none did."""
    told: list[Mapping[str, Any]] = [source["environment"] for source in mine]
    return next((env for env in told if gpus.devices(env)), told[0])


def _gpu_rows(by_host: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[gpus.GpuRow]:
    several = len(by_host) > 1
    return [
        gpus.row(host if several else "", one)
        for host, mine in by_host.items()
        for one in gpus.devices(spokesman(mine))
    ]


def facts_of(env: Mapping[str, Any]) -> dict[str, str]:
    """What should be alike on every host of a cluster, by name."""
    system = part(env, "system")
    told = {
        "GPU driver": gpus.driver(env),
        "GPU models": gpus.models(env),
        "CPU model": part(env, "cpu").get("model"),
        "kernel": system.get("kernel"),
        "Python": env.get("python"),
        **{f"package {name}": version for name, version in part(env, "packages").items()},
    }
    return {name: one_line(value) for name, value in told.items() if value}


def _facts(env: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    made, system, cpu = (part(env, key) for key in ("auditor", "system", "cpu"))
    memory = env.get("memory_bytes")
    told = {
        "GPUs": gpus.models(env) or "none seen",
        "GPU driver": gpus.driver(env),
        "asked of the GPUs": part(env, "gpus").get("management_library"),
        "host": system.get("host"),
        "CPU": f"{cpu.get('model')} ({cpu.get('usable')} of {cpu.get('count')} usable)" if cpu else None,
        "memory": f"{memory / 2**30:.1f} GiB" if isinstance(memory, (int, float)) else None,
        "operating system": " · ".join(
            str(system[key]) for key in ("os", "kernel", "machine", "libc") if system.get(key)
        ),
        "Python": env.get("python"),
        "auditor": " ".join(str(one) for one in (made.get("version"), made.get("commit")) if one),
    }
    yield from ((key, one_line(value)) for key, value in told.items() if value)


def _variables(every: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    """Name, value(s), and whether processes differ in it."""
    found: dict[str, dict[str | None, None]] = {}
    told = [part(env, "variables") for env in every]
    for name in sorted({name for variables in told for name in variables}):
        found[name] = dict.fromkeys(variables.get(name) for variables in told)
    for name, seen in found.items():
        texts = [one_line(value) if value is not None else "(not set)" for value in seen]
        yield one_line(name), listed(texts, 4), len(texts) > 1


def digests(run_dir: Path, reader: RunReader) -> list[tuple[str, str]]:
    """What ties a page to the files of its run."""
    told = [("run", reader.run_id), ("plan", str(reader.plan["plan_id"]))]
    for name in ("run.h5", "findings.json", "plan.json"):
        path = run_dir / name
        told.append((f"SHA-256 of {name}", sha256(path) if path.is_file() else "there is no such file"))
    if not (run_dir / "run.h5").is_file():
        told.append(
            ("shards", listed([f"{source['file']} ({number(source['size'])} bytes)" for source in reader.sources()], 8))
        )
    return told


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
