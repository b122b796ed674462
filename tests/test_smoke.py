"""The smoke test of the GPU extras tells what is missing, and what it chooses by."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
from pathlib import Path

import pytest
import smoke

SCRIPT = Path(__file__).parent / "smoke.py"
EXTRAS = {
    "cuda12": "cupy-cuda12x",
    "cuda13": "cupy-cuda13x",
    "nvshmem-cu12": "cupy-cuda12x",
    "nvshmem-cu13": "cupy-cuda13x",
}


def played(*words):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_package_of_an_extra_is_looked_at(extra):
    """The one of nvshmem holds the other's."""
    lines = [line for _, line in smoke.packages(extra)]
    names = [line.partition(" ")[0].rstrip(":") for line in lines]
    assert EXTRAS[extra] in names
    assert "nvidia-ml-py" in names
    assert any(name.startswith("nvshmem4py") for name in names) is extra.startswith("nvshmem")
    assert len(set(names)) == len(names) >= 7


@pytest.mark.parametrize(("version", "fits"), [("14.2.0", True), ("13.9", False), ("15.0", False)])
def test_a_version_must_be_one_that_the_extra_allows(version, fits):
    assert smoke.fits(version, ">=14,<15") is fits


@pytest.mark.parametrize(("version", "extra"), [(0, ""), (12080, "cuda12"), (13000, "cuda13"), (13020, "cuda13")])
def test_the_driver_chooses(monkeypatch, version, extra):
    monkeypatch.setattr(smoke, "driver", lambda: version)
    assert smoke.fitting() == extra


def test_without_a_driver_an_extra_must_be_named(monkeypatch, capsys):
    monkeypatch.setattr(smoke, "driver", lambda: 0)
    assert smoke.main([]) == 3
    assert "no NVIDIA driver here" in capsys.readouterr().err
    assert smoke.main(["cuda12", "--which"]) == 0
    assert capsys.readouterr().out == "cuda12\n"


def test_what_is_missing_is_told_and_fails():
    try:
        metadata.version("cupy-cuda13x")
    except metadata.PackageNotFoundError:
        done = played("cuda13")
        assert done.returncode == 1
        assert "FAIL  cupy-cuda13x: not installed" in done.stdout
        assert "FAIL  import cupy: ModuleNotFoundError" in done.stdout
        assert "ok    auditor backends: exit code 0" in done.stdout
    else:
        pytest.skip("cupy-cuda13x is installed here: nothing of the extra is missing")
