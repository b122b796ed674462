"""Asks the driver's management library about every GPU that it shows: ``python -m auditor.environment.nvml`` prints JSON.

NVML makes no CUDA context. What a GPU or driver does not offer is recorded as ``not supported``, a call that a library does not
have as ``not in this library``, any other refusal in NVML's words: nothing is left out.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable
from ctypes import byref
from itertools import combinations
from typing import Any

TOPOLOGY = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
NVLINK_VERSIONS = ("invalid", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")
REMOTE_KINDS = {0: "GPU", 1: "IBM NPU", 2: "switch"}
LINK_ERRORS = ("replay", "recovery", "crc_flit", "crc_data")
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
P2P_STATES = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "IOH topology",
    "disabled by registry",
    "not supported",
)
ENDS_AFTER = 60  # seconds
NVLINK_P2P = 2  # NVML_P2P_CAPS_INDEX_NVLINK


class Questions:
    """One loaded library. ``nvml``: the module pynvml."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of the function ``nvml<name>`` as a JSON value, or words why there is none."""
        return self.tried(lambda: _plain(getattr(self.nvml, f"nvml{name}")(*arguments)))

    def tried(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self.nvml.NVMLError_NotSupported:
            return "not supported"
        except (AttributeError, self.nvml.NVMLError_FunctionNotFound):
            return "not in this library"
        except self.nvml.NVMLError as error:
            return f"refused: {error}"

    def named(self, name: str, values: tuple[str, ...] | dict[int, str], *arguments: Any) -> Any:
        """An answer that is a number with a name."""
        return _name(self.ask(name, *arguments), values)

    def everything(self) -> dict[str, Any]:
        """All facts: of the driver, of each GPU, and of each pair of GPUs."""
        count = self.ask("DeviceGetCount")
        version = self.ask("SystemGetNVMLVersion")
        found = {
            "management_library": f"NVML {version}",
            "driver_version": self.ask("SystemGetDriverVersion"),
            "cuda_driver": self.ask("SystemGetCudaDriverVersion_v2"),
        }
        if not isinstance(count, int):
            return {**found, "devices": count}
        handles = [self.ask("DeviceGetHandleByIndex", number) for number in range(count)]
        devices = [self.device(number, handle) for number, handle in enumerate(handles)]
        models = [str(device.get("name", device.get("refused"))) for device in devices]
        pairs = {
            f"{a}-{b}": self.pair(handles[a], handles[b])
            for a, b in combinations(range(count), 2)
            if not (isinstance(handles[a], str) or isinstance(handles[b], str))
        }
        return {**found, "models": models, "devices": devices, "pairs": pairs}

    def device(self, number: int, handle: Any) -> dict[str, Any]:
        """One GPU. A handle that is a text is NVML's refusal of it: a GPU that fell off the bus."""
        if isinstance(handle, str):
            return {"index": number, "refused": handle}
        ask = self.ask
        return {
            "index": number,
            "name": ask("DeviceGetName", handle),
            "uuid": ask("DeviceGetUUID", handle),
            "pci": self.tried(lambda: _plain(self.nvml.nvmlDeviceGetPciInfo(handle).busId)),
            "vbios": ask("DeviceGetVbiosVersion", handle),
            "memory_bytes": self.tried(lambda: int(self.nvml.nvmlDeviceGetMemoryInfo(handle).total)),
            "compute_capability": ask("DeviceGetCudaComputeCapability", handle),
            "persistence_mode": ask("DeviceGetPersistenceMode", handle),
            "compute_mode": self.named("DeviceGetComputeMode", COMPUTE_MODES, handle),
            "mig_mode": _pair(ask("DeviceGetMigMode", handle), ("current", "pending")),
            "ecc_mode": _pair(ask("DeviceGetEccMode", handle), ("current", "pending")),
            "ecc_errors": self.ecc_errors(handle),
            "remapped_rows": _pair(
                ask("DeviceGetRemappedRows", handle), ("correctable", "uncorrectable", "pending", "failed")
            ),
            "nvlink": self.nvlink(handle),
            "fabric": self.tried(lambda: self.fabric(handle)),
        }

    def ecc_errors(self, handle: Any) -> dict[str, Any]:
        """Counts since the driver was loaded (volatile) and over the GPU's life (aggregate)."""
        return {
            f"{kind}_{since}": self.ask("DeviceGetTotalEccErrors", handle, kind_number, since_number)
            for kind_number, kind in enumerate(("corrected", "uncorrected"))
            for since_number, since in enumerate(("volatile", "aggregate"))
        }

    def nvlink(self, handle: Any) -> dict[str, Any]:
        """Links by state, versions, what is at the other end, and error counters summed over the active links."""
        states = {link: self.ask("DeviceGetNvLinkState", handle, link) for link in range(self._links())}
        active = [link for link, state in states.items() if state == 1]
        ends = Counter(self._end(handle, link) for link in active)
        versions = sorted({str(self.named("DeviceGetNvLinkVersion", NVLINK_VERSIONS, handle, link)) for link in active})
        errors = {name: self._summed(handle, active, number) for number, name in enumerate(LINK_ERRORS)}
        kinds = Counter({0: "inactive", 1: "active"}.get(state, str(state)) for state in states.values())
        return {
            "links": dict(sorted(kinds.items())),
            **({"versions": versions, "ends": dict(sorted(ends.items())), "errors": errors} if active else {}),
        }

    def _links(self) -> int:
        return int(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", 18))

    def _end(self, handle: Any, link: int) -> str:
        kind = self.named("DeviceGetNvLinkRemoteDeviceType", REMOTE_KINDS, handle, link)
        address = self.tried(lambda: _plain(self.nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
        return f"{kind} {address}"

    def _summed(self, handle: Any, links: list[int], counter: int) -> Any:
        """The sum over the links, or the words of the first that gives no number."""
        counts = [self.ask("DeviceGetNvLinkErrorCounter", handle, link, counter) for link in links]
        return next((count for count in counts if not isinstance(count, int)), None) or sum(counts)

    def fabric(self, handle: Any) -> Any:
        """Where a fabric manager joins GPUs: state, its status, clique and health. Raises NVML's refusals."""
        info = self.nvml.c_nvmlGpuFabricInfoV_t()
        self.nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        state = _name(int(info.state), FABRIC_STATES)
        if state == "not supported":
            return state
        return {
            "state": state,
            "status": int(info.status),
            "clique": int(info.cliqueId),
            "cluster": bytes(info.clusterUuid).hex(),
            "health_mask": f"{int(info.healthMask):#x}",
        }

    def pair(self, a: Any, b: Any) -> dict[str, Any]:
        """How two GPUs are joined beside NVLink, and whether they reach each other over NVLink."""
        return {
            "ancestor": self.named("DeviceGetTopologyCommonAncestor", TOPOLOGY, a, b),
            "nvlink": self.named("DeviceGetP2PStatus", P2P_STATES, a, b, NVLINK_P2P),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _name(value: Any, names: tuple[str, ...] | dict[int, str]) -> Any:
    known = dict(enumerate(names)) if isinstance(names, tuple) else names
    return known.get(value, f"unknown ({value})") if isinstance(value, int) else value


def _pair(value: Any, names: tuple[str, ...]) -> Any:
    return dict(zip(names, value, strict=True)) if isinstance(value, list) else value


def facts() -> dict[str, Any]:
    """Everything, or why there is nothing; the library is loaded here."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return {"management_library": "no driver: NVML's shared library is not found"}
    except pynvml.NVMLError as error:
        return {"management_library": f"no answer: {error}"}
    try:
        return Questions(pynvml).everything()
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    signal.alarm(ENDS_AFTER)  # whoever asked has given up by then
    json.dump(facts(), sys.stdout)
