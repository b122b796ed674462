"""The plumbing of ``--device cuda`` on a stand-in for CuPy; limits and copies of both devices."""

from __future__ import annotations

import numpy as np
import pytest
import stand_in_cupy
from calibrate_cli import Cli, cli
from emulated_cuda import compiler

from auditor.calibrate import device, matmul
from auditor.calibrate.device import Gpu, Host

__all__ = ["cli"]


def test_the_host_copies_and_never_shares() -> None:
    host, rows = Host(), np.arange(6.0)
    there = host.put(rows)
    there[0] = 9
    assert rows[0] == 0
    back = host.get(there)
    there[1] = 9
    assert back[1] == 1
    host.overwrite(there, rows)
    assert np.array_equal(there, rows)


def test_the_host_s_limit_is_far_above_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, says = Host().limit(1 << 20)
    assert limit >= device.HOST_LEAST
    monkeypatch.setattr(device, "host_copy_rate", lambda nbytes: 50e9)
    limit, says = Host().limit(10)
    assert limit == 400e9
    assert "50 GB/s at which all cores together copy 1,048,576 bytes" in says


def test_a_gpu_s_limit_is_its_memory_s_unless_all_fits_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_cupy.install(monkeypatch)
    gpu = Gpu()
    limit, says = gpu.limit(1 << 20)
    assert limit == pytest.approx(3201e6 * 2 * 6144 / 8)
    assert "6144 bits wide" in says
    assert gpu.limit(100)[0] == 4 * limit
    monkeypatch.setattr(stand_in_cupy.Device, "attributes", {})
    assert "at which it copies its own memory" in gpu.limit(1 << 20)[1]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler to emulate the device kernels with")
def test_a_histogram_on_the_device(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_cupy.install(monkeypatch)
    words = ("--device", "cuda", "--bins", 200, "--weights", 90, "--held-out", 3, "--seed", 7, "--out", "bound.json")
    assert cli("calibrate", "histogram", *words) == 0, cli.out + cli.err
    record = cli.record()
    assert record["conditions"]["device"] == "Stand-in GPU"
    assert record["conditions"]["library"]["cupy"] == "0.0"
    assert "one after the other" in record["replay"]
    assert [group["orders"] for group in record["held_out"]] == [3, 24]
    assert cli("check", "--bound", "bound.json") == 0, cli.out


def test_a_person_s_function_and_a_product_on_the_device(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_cupy.install(monkeypatch)
    (cli.folder / "mine_on_gpu.py").write_text("def add(rows, out):\n    out[...] = rows.sum(axis=0)\n")
    words = ("--device", "cuda", "--count", 50, "--terms", 30, "--held-out", 2, "--out", "bound.json")
    assert cli("calibrate", "user:mine_on_gpu.add", *words) == 0, cli.out + cli.err
    words = ("--device", "cuda", "--size", 64, "--checks", 2, "--held-out", 2, "--out", "bound.json")
    assert cli("calibrate", "matmul", *words) == 0, cli.out + cli.err
    assert cli.record()["conditions"]["library"]["cublas_math"] == "binary32"
    monkeypatch.setenv("CUPY_TF32", "1")
    assert cli("check", "--bound", "bound.json") == 5
    assert "library.cublas_math: TF32 allowed here; the bound was measured with binary32" in cli.out


def test_blocks_take_turns_on_two_streams_and_wait_for_the_right_hand_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_cupy.install(monkeypatch)
    gpu = Gpu()
    product = matmul.GpuProduct(gpu, 5, (10, 10))
    a, b = matmul.pinned(gpu, (10, 10)), matmul.pinned(gpu, (10, 10))
    a[...], b[...] = np.arange(100).reshape(10, 10) % 7, np.eye(10)[::-1]
    out = gpu.put(np.zeros(100, np.float32))
    product(a, b, out)
    assert np.array_equal(gpu.get(out).reshape(10, 10), a[:, ::-1])
    assert [len(stream.waited) for stream in product.streams] == [3, 2]
