"""NVML as far as the auditor asks it: two H200s with 18 links to switches, or what ``FAKE_NVML`` says is wrong."""

from __future__ import annotations

import ctypes
import os
import time
from types import SimpleNamespace

NVML_NVLINK_MAX_LINKS = 18
WRONG = os.environ.get("FAKE_NVML", "")


class NVMLError(Exception):
    def __str__(self):
        return type(self).__name__.removeprefix("NVMLError_")


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class c_nvmlGpuFabricInfoV_t(ctypes.Structure):
    _fields_ = (
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint),
    )


def nvmlInit():
    if WRONG == "hang":
        time.sleep(60)
    if WRONG == "crash":
        os.abort()
    if WRONG == "no driver":
        raise NVMLError_LibraryNotFound
    if WRONG == "unloaded":
        raise NVMLError_DriverNotLoaded
    if WRONG == "babble":
        os.write(1, b"loading...")
        os._exit(0)
    if WRONG == "bug":
        raise RuntimeError("something else")


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return b"580.159.04"


def nvmlSystemGetNVMLVersion():
    return "13.580.159.04"


def nvmlSystemGetCudaDriverVersion_v2():
    return 13000


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    if WRONG == "lost" and index == 1:
        raise NVMLError_GpuIsLost
    return SimpleNamespace(index=index)


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle.index:032x}"


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=b"00000000:%02X:00.0" % (0x18 + handle.index))


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=141 << 30)


def nvmlDeviceGetCudaComputeCapability(handle):
    return 9, 0


def nvmlDeviceGetPersistenceMode(handle):
    return 1


def nvmlDeviceGetComputeMode(handle):
    return 0


def nvmlDeviceGetMigMode(handle):
    return [0, 1]


def nvmlDeviceGetEccMode(handle):
    return [1, 1]


def nvmlDeviceGetTotalEccErrors(handle, kind, since):
    if WRONG == "old":
        raise NVMLError_NotSupported
    return 10 * kind + since


def nvmlDeviceGetRemappedRows(handle):
    return 3, 1, 0, 0


def nvmlDeviceGetNvLinkState(handle, link):
    if WRONG == "old":
        raise NVMLError_NotSupported
    return int(link != 7)


def nvmlDeviceGetNvLinkVersion(handle, link):
    return 6


def nvmlDeviceGetNvLinkRemoteDeviceType(handle, link):
    return 2


def nvmlDeviceGetNvLinkRemotePciInfo(handle, link):
    return SimpleNamespace(busId=b"00000000:%02X:00.0" % (0xC0 + link % 2))


def nvmlDeviceGetNvLinkErrorCounter(handle, link, counter):
    if counter == 3:
        raise NVMLError_NotSupported
    return link if counter == 0 else 0


def nvmlDeviceGetGpuFabricInfoV(handle, reference):
    if WRONG == "old":
        raise NVMLError_FunctionNotFound
    info = reference._obj
    info.state, info.status, info.cliqueId, info.healthMask = 3, 0, 5, 0x2A
    info.clusterUuid[15] = 0xAB


def nvmlDeviceGetTopologyCommonAncestor(a, b):
    return 40


def nvmlDeviceGetP2PStatus(a, b, index):
    assert index == 2
    return 0


# nvmlDeviceGetVbiosVersion is missing: an older binding
