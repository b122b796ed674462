"""The GPUs of a run's hosts as the driver's management library described them: a row each, and what speaks against one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from auditor.report.words import listed, number, one_line, part

GpuRow = tuple[str, str, str, str, str, str]
HEAD = ("GPU", "model", "memory", "NVLink", "uncorrected ECC errors", "PCI address")


def driver(env: Mapping[str, Any]) -> str:
    """The driver's version, from whoever said it."""
    told = part(env, "gpus")
    return one_line(told.get("driver_version") or told.get("driver") or "")


def models(env: Mapping[str, Any]) -> str:
    """``8 x NVIDIA H200``; empty where no GPU was seen."""
    told = part(env, "gpus").get("models")
    counts = Counter(one_line(model) for model in told) if isinstance(told, (list, tuple)) else {}
    return listed(f"{n} x {model}" for model, n in counts.items())


def devices(env: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The described GPUs; none where the library was not asked or gave no answer."""
    told = part(env, "gpus").get("devices")
    return [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []


def row(host: str, device: Mapping[str, Any]) -> GpuRow:
    """Cells under :data:`HEAD`. ``host``: empty where the run has one."""
    memory, since = device.get("memory_bytes"), part(device, "ecc_errors").get("uncorrected_volatile")
    return (
        f"{host} {_index(device)}".strip(),
        one_line(device.get("name") or device.get("refused") or "unknown"),
        f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) else one_line(memory or ""),
        _links(part(device, "nvlink")),
        number(since) if since is not None else "",
        one_line(device.get("pci") or ""),
    )


def _index(device: Mapping[str, Any]) -> str:
    return one_line(device.get("index", "?"))


def _links(link: Mapping[str, Any]) -> str:
    """``18 active; version 4.0; errors: replay 3``."""
    parts = [f"{number(n)} {one_line(state)}" for state, n in part(link, "links").items()]
    versions = link.get("versions")
    parts += [f"version {listed(versions)}"] if isinstance(versions, list) and versions else []
    errors = _errors(link)
    return "; ".join([*parts, *([f"errors: {errors}"] if errors else [])])


def _errors(link: Mapping[str, Any]) -> str:
    return listed(f"{one_line(name)} {n:,}" for name, n in part(link, "errors").items() if isinstance(n, int) and n)


def ailments(device: Mapping[str, Any]) -> Iterator[str]:
    """What speaks against one GPU, in words: refusals, uncorrected memory errors, failing rows, links down or with errors."""
    if "refused" in device:
        yield f"does not answer ({one_line(device['refused'])})"
    uncorrected = part(device, "ecc_errors").get("uncorrected_volatile")
    if _some(uncorrected):
        yield f"{uncorrected:,} uncorrected memory errors since its driver was loaded"
    rows = part(device, "remapped_rows")
    for key, words in (
        ("failed", "a memory row could not be remapped"),
        ("pending", "memory rows wait to be remapped"),
    ):
        if _some(rows.get(key)):
            yield words
    link = part(device, "nvlink")
    links = part(link, "links")
    if _some(links.get("active")) and _some(links.get("inactive")):
        yield f"{links['inactive']} of {sum(n for n in links.values() if isinstance(n, int))} NVLinks are inactive"
    if errors := _errors(link):
        yield f"NVLink errors ({errors})"
    state = part(device, "fabric").get("state")
    if state in ("not started", "in progress"):
        yield f"its NVLink fabric is {state}"
    if part(device, "mig_mode").get("current") == 1:
        yield "it is partitioned (MIG)"


def _some(count: Any) -> bool:
    return isinstance(count, int) and count > 0
