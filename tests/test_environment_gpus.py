"""What is recorded of the GPUs, from a fake management library: every fact, every absence, and nothing that stops a run."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

from auditor import environment
from auditor.environment import gpus, machine, variables

FAKE = Path(__file__).parent / "fake_nvml"


@pytest.fixture
def nvml(monkeypatch):
    """Puts the fake library where this process and its children find it; gives the answer with something wrong."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), *(path for path in sys.path if path)]))

    def answer(wrong="", limit=20.0):
        monkeypatch.setenv("FAKE_NVML", wrong)
        return json.loads(
            json.dumps(environment.collect({})["gpus"] if limit == 20 else environment.ask().answer(limit))
        )

    return answer


def test_every_fact_of_every_gpu_is_recorded(nvml):
    found = nvml()
    assert found["management_library"] == "NVML 13.580.159.04"
    assert (found["driver_version"], found["cuda_driver"]) == ("580.159.04", 13000)
    assert found["models"] == ["NVIDIA H200", "NVIDIA H200"]
    first, second = found["devices"]
    assert (first["index"], second["index"]) == (0, 1)
    assert (first["uuid"], second["pci"]) == ("GPU-" + "0" * 32, "00000000:19:00.0")
    assert first["compute_capability"] == [9, 0]
    assert first["ecc_mode"] == {"current": 1, "pending": 1}
    assert first["ecc_errors"] == {
        "corrected_volatile": 0,
        "corrected_aggregate": 1,
        "uncorrected_volatile": 10,
        "uncorrected_aggregate": 11,
    }
    assert first["remapped_rows"] == {"correctable": 3, "uncorrectable": 1, "pending": 0, "failed": 0}
    assert first["mig_mode"] == {"current": 0, "pending": 1}
    assert first["compute_mode"] == "default"
    assert first["persistence_mode"] == 1


def test_links_are_counted_by_state_and_by_what_is_at_their_end(nvml):
    link = nvml()["devices"][0]["nvlink"]
    assert link["links"] == {"active": 17, "inactive": 1}
    assert link["versions"] == ["4.0"]
    assert link["ends"] == {"switch 00000000:C0:00.0": 9, "switch 00000000:C1:00.0": 8}
    assert link["errors"] == {
        "replay": sum(range(18)) - 7,
        "recovery": 0,
        "crc_flit": 0,
        "crc_data": "not supported",
    }


def test_the_fabric_and_each_pair_are_recorded(nvml):
    found = nvml()
    assert found["devices"][0]["fabric"] == {
        "state": "completed",
        "status": 0,
        "clique": 5,
        "cluster": "0" * 30 + "ab",
        "health_mask": "0x2a",
    }
    assert found["pairs"] == {"0-1": {"ancestor": "one NUMA node", "nvlink": "ok"}}


def test_what_is_not_there_is_said_and_not_left_out(nvml):
    first = nvml("old")["devices"][0]
    assert first["vbios"] == "not in this library"
    assert set(first["ecc_errors"].values()) == {"not supported"}
    assert first["nvlink"] == {"links": {"not supported": 18}}
    assert first["fabric"] == "not in this library"


def test_a_lost_gpu_is_told_and_the_others_are_asked(nvml):
    found = nvml("lost")
    assert found["devices"][1] == {"index": 1, "refused": "refused: GpuIsLost"}
    assert found["devices"][0]["name"] == "NVIDIA H200"
    assert found["models"] == ["NVIDIA H200", "refused: GpuIsLost"]
    assert found["pairs"] == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("no driver", "no driver: NVML's shared library is not found"),
        ("unloaded", "no answer: DriverNotLoaded"),
        ("crash", "its process died by SIGABRT"),
        ("babble", "its process gave no answer"),
        ("bug", "its process ended with status 1: RuntimeError: something else"),
    ],
)
def test_a_library_that_gives_nothing_stops_nothing(nvml, wrong, words):
    found = nvml(wrong)
    assert found["management_library"] == words
    assert "devices" not in found


def test_a_library_that_hangs_is_left_behind(nvml):
    started = time.monotonic()
    assert nvml("hang", 0.5)["management_library"] == "did not answer within 0.5 s"
    assert time.monotonic() - started < 5


def test_without_the_package_or_elsewhere_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    assert "nvidia-ml-py is not installed" in environment.ask().answer()["management_library"]
    assert "first process of this node" in environment.not_asked_here().answer()["management_library"]


def test_a_process_that_cannot_be_started_is_said(nvml, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert (
        environment.ask().answer()["management_library"].startswith("not asked: no process could be started (No such")
    )


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py")
def test_the_real_library_answers_or_says_why_not():
    """With a driver: facts without a refusal of the driver's own questions. Without one: the reason."""
    found = environment.ask().answer()
    if found["management_library"].startswith("NVML "):
        assert found["devices"]
        assert all(device["uuid"].startswith("GPU-") for device in found["devices"])
    else:
        assert found["management_library"].startswith(("no driver", "no answer"))


def test_address_translation_is_read_from_the_system(tmp_path):
    units, groups, line = tmp_path / "iommu", tmp_path / "groups", tmp_path / "cmdline"
    assert machine.iommu(units, groups, line) == dict.fromkeys(("units", "groups", "command_line"), "not shown")
    (units / "dmar0").mkdir(parents=True)
    for number, kind in enumerate(("DMA-FQ", "identity", "DMA-FQ")):
        (groups / str(number)).mkdir(parents=True)
        (groups / str(number) / "type").write_text(f"{kind}\n")
    line.write_text("root=/dev/x password=hunter2 intel_iommu=on iommu=pt quiet\n")
    assert machine.iommu(units, groups, line) == {
        "units": ["dmar0"],
        "groups": {"DMA-FQ": 2, "identity": 1},
        "command_line": ["intel_iommu=on", "iommu=pt"],
    }


@pytest.mark.parametrize(
    "value",
    [
        "https://me:hunter2@host/x",
        "a,password=hunter2,b",
        'x --api-key="hunter2 hunter2"',
        "Authorization: Bearer hunter2hunter2",
        "header=Bearer hunter2hunter2",
        "{'auth_token': 'hunter2'}",
        "ghp_hunter2hunter2hunter2",
        "hf_hunter2hunter2hunter2",
        "AKIAHUNTER2HUNTER2XX".replace("HUNTER2HUNTER2XX", "ABCDEFGHIJKLMNOP"),
        "eyJhunter2hunter2.hunter2.hunter2",
        "https://host/file?X-Amz-Signature=hunter2&x=1",
    ],
)
def test_a_secret_inside_a_value_is_not_recorded(value):
    kept = json.dumps(environment.collect({"NCCL_X": value}, gpus={})["variables"])
    assert "NCCL_X" in kept
    assert "hunter2" not in kept
    assert "ABCDEFGHIJKLMNOP" not in kept


def test_ordinary_settings_are_kept_as_they_are():
    given = {
        "NCCL_ALGO": "allreduce:tree,ring;broadcast:ring",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "LD_LIBRARY_PATH": "/opt/nccl/lib:/usr/lib",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "CUPY_ACCELERATORS": "cub",
        "NVSHMEM_BOOTSTRAP": "UID",
    }
    assert variables.steering_variables(given) == dict(sorted(given.items()))
