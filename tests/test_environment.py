"""Provenance: what is recorded, and above all what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from auditor import environment, multicast

SECRETS = (
    "NCCL_API_KEY",
    "SLURM_JOB_TOKEN",
    "TORCH_SECRET",
    "OMPI_MCA_PASSWORD",
    "AUDITOR_CREDENTIALS",
    "UCX_AUTH",
    "FI_pass",
)


def test_the_steering_variables_are_kept_sorted_and_others_are_not() -> None:
    given = {
        "UCX_TLS": "rc",
        "NCCL_ALGO": "Ring",
        "PATH": "/bin",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_ACCOUNT": "x",
        "MPIR_CVAR_A": "1",
    }
    assert list(environment.steering_variables(given).items()) == [
        ("MPIR_CVAR_A", "1"),
        ("NCCL_ALGO", "Ring"),
        ("SLURM_NTASKS", "8"),
        ("UCX_TLS", "rc"),
    ]


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_that_speaks_of_a_secret_is_dropped_with_its_value(name: str) -> None:
    recorded = json.dumps(environment.collect({name: "hunter2", "NCCL_ALGO": "Ring"}))
    assert name not in recorded
    assert "hunter2" not in recorded
    assert "NCCL_ALGO" in recorded


def test_what_a_launcher_tells_its_own_job_is_no_setting() -> None:
    """Seen in a record: addresses, session folders and the transports' key of a finished job, which differ in every run."""
    job = {
        "OMPI_MCA_orte_precondition_transports": "0bc118173a7e2ed0-9d37f15c3e79649d",
        "OMPI_MCA_orte_hnp_uri": "1772158976.0;tcp://192.0.2.2:42795",
        "OMPI_MCA_ess_base_jobid": "1772158977",
        "OMPI_MCA_ess": "^singleton",
        "OMPI_MCA_initial_wdir": "/data",
        "OMPI_MCA_pmix": "^s1,s2",
        "OMPI_MCA_shmem_RUNTIME_QUERY_hint": "mmap",
    }
    settings = {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4", "OMPI_MCA_pml": "ob1", "PMIX_MCA_gds": "hash"}
    assert environment.steering_variables({**job, **settings}) == settings


def test_home_directories_and_user_names_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/export/people/ada")
    monkeypatch.setenv("USER", "ada")
    given = {
        "NCCL_TOPO_FILE": "/export/people/ada/topo.xml",
        "NCCL_DEBUG_FILE": "/home/grace/nccl.log",
        "UCX_LOG_FILE": "/scratch/ada/x",
    }
    kept = json.dumps(environment.steering_variables(given))
    assert "ada" not in kept
    assert "grace" not in kept
    assert "topo.xml" in kept


def test_collect_is_json_and_names_versions_machine_and_date() -> None:
    found = json.loads(json.dumps(environment.collect({})))
    assert found["packages"]["numpy"]
    assert found["packages"]["h5py"]
    assert found["auditor"]["version"]
    assert found["cpu"]["count"] >= found["cpu"]["usable"] >= 1
    assert found["memory_bytes"] > 1 << 28
    assert found["system"]["kernel"]
    assert found["system"]["host"]
    assert found["date"].endswith("+00:00")
    assert found["variables"] == {}
    assert found["gpus"]["management_library"]
    assert set(found["iommu"]) == {"units", "groups", "command_line"}


def test_collect_imports_no_vendor_library_and_no_h5py() -> None:
    code = "import sys; from auditor.environment import collect; collect(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "auditor.environment" in loaded
    assert not {"h5py", "numba", "mpi4py", "cupy", "pynvml"} & set(loaded)


def test_the_commit_is_that_of_the_checkout_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(environment.__file__).parents[2]
    asked = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    found = environment.source_commit()
    assert (found is None) == (asked.returncode != 0 or not (root / ".git").exists())
    assert found is None or asked.stdout.startswith(found.rstrip("+"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.source_commit() is None


def test_a_multicast_switch_forbids_and_says_which() -> None:
    assert multicast.multicast_forbidden({}) is None
    assert multicast.multicast_forbidden({"NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "0"}) is None
    for name, value in multicast.MULTICAST_OFF.items():
        assert f"{name}={value}" in (multicast.multicast_forbidden({name: value}) or "")
    assert multicast.multicast_forbidden({"NCCL_NVLS_ENABLE": "off"}), "NCCL reads a word as 0"
    assert multicast.multicast_forbidden({"NVSHMEM_DISABLE_NVLS": "yes"})
    assert multicast.multicast_forbidden({"NCCL_NVLS_ENABLE": "2", "TORCH_SYMM_MEM_DISABLE_MULTICAST": ""}) is None


def test_missing_system_files_are_no_error(tmp_path: Path) -> None:
    assert environment.first_line(tmp_path / "none") is None
    (tmp_path / "empty").write_text("")
    assert environment.first_line(tmp_path / "empty") is None
    assert environment.model_of(tmp_path) == "unreadable"
    (tmp_path / "card").write_text("Model: \t NVIDIA H200\nIRQ: 1\n")
    assert environment.model_of(tmp_path / "card") == "NVIDIA H200"
    assert environment.version_of("no-such-package-anywhere") is None
