"""Measured bounds on a GPU: the histogram's bits, every gate, the product under copy overlap, and NCCL over two GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrate_cli import Cli, cli
from gpus import needs_gpu, needs_two

from auditor import calibrate
from auditor.calibrate import data, local, matmul
from auditor.calibrate.device import Gpu, open_device
from auditor.calibrate.matmul import Matmul, MatmulOptions
from auditor.model import Verdict
from auditor.numerics.formats import FORMATS

__all__ = ["cli"]
pytestmark = [pytest.mark.gpu, needs_gpu]
SMALL = ("--device", "cuda", "--bins", 3000, "--weights", 700, "--held-out", 20, "--seed", 7, "--out", "bound.json")
OWN = ("--device", "cuda", "--count", 5000, "--terms", 600, "--held-out", 10, "--out", "bound.json")


@pytest.fixture
def gpu() -> Gpu:
    device = open_device("cuda")
    assert isinstance(device, Gpu)
    return device


@pytest.mark.parametrize("name", ["binary32", "binary64"])
def test_the_histogram_gives_the_host_s_bits(gpu: Gpu, name: str) -> None:
    rows = data.rows("uniform", FORMATS[name], 3, 500, 3001)
    weights = gpu.put(rows)
    run = local.gpu_histogram(gpu, weights)
    for order_name in data.order_names(5):
        order, want = data.order_of(order_name, 3, 500), np.empty(3001, rows.dtype)
        local.host_histogram(rows)(order, want)
        out = gpu.put(np.full(3001, np.nan, rows.dtype))
        assert run(order, out) > 0
        assert np.array_equal(gpu.get(out), want), order_name
    out = gpu.put(np.zeros(3001, rows.dtype))
    local.launch_atomic(gpu, weights, out, 64)
    assert np.allclose(gpu.get(out), rows.sum(axis=0, dtype=np.float64), rtol=1e-4)


def test_a_histogram_is_calibrated_and_its_bound_applied(cli: Cli) -> None:
    assert cli("calibrate", "histogram", *SMALL) == 0, cli.out + cli.err
    record = cli.record()
    assert record["conditions"]["on"] == "cuda"
    assert "one after the other" in record["replay"], "the kernel's bits are those of the host's additions"
    atomic = record["held_out"][1]
    assert atomic["group"].startswith("atomic additions")
    assert atomic["rejected_orders"]["a_priori"]["count"] == 0
    assert all(gate["verdict"] == "PASS" for gate in record["gates"])
    assert cli("check", "--bound", "bound.json") == 0, cli.out
    assert cli("check", "--bound", "bound.json", "--device", "cpu") == 5
    assert "on: cpu here; the bound was measured with cuda" in cli.out
    cli.change(device="another GPU")
    assert cli("check", "--bound", "bound.json") == 5
    assert "device: " in cli.out


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("early_return", "early_return"),
        ("early_return_on_a_stream", "early_return"),
        ("false_time", "false_time"),
        ("false_time_of_another_stream", "false_time"),
        ("leaves_a_gap", "unwritten"),
        ("stale", "stale_term"),
    ],
)
def test_each_gate_sees_its_defect(cli: Cli, monkeypatch: pytest.MonkeyPatch, function: str, kind: str) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert cli("calibrate", f"user:planted_gpu.{function}", *OWN) == 1, cli.out + cli.err
    assert f"{kind}: " in cli.out + cli.err


def test_an_honest_function_passes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert cli("calibrate", "user:planted_gpu.honest", *OWN) == 0, cli.out + cli.err
    assert [gate["verdict"] for gate in cli.record()["gates"]] == ["PASS"] * 5


def test_the_limit_is_the_memory_s(gpu: Gpu) -> None:
    """No copy is faster; that it is not far too high shows on a GPU that does nothing else, so little is asked of that."""
    limit, says = gpu.limit(1 << 30)
    copied = gpu._copy_rate()
    assert 0.02 * limit < copied < limit, says


@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_the_product_under_copy_overlap_is_the_product(gpu: Gpu, chunks: int) -> None:
    """Small whole numbers, which every order adds exactly, over and over: a race between copy and product would show."""
    shape = (512, 512)
    a, b = matmul.pinned(gpu, shape), matmul.pinned(gpu, shape)
    product = matmul.GpuProduct(gpu, chunks, shape)
    for turn in range(20):
        a[...] = (np.arange(512 * 512).reshape(shape) * (turn + 1)) % 7 - 3
        b[...] = (np.arange(512 * 512).reshape(shape) + turn) % 5 - 2
        out = gpu.put(np.full(512 * 512, np.nan, np.float32))
        assert product(a, b, out) > 0
        assert np.array_equal(gpu.get(out).reshape(shape), a @ b)


def test_a_product_is_calibrated_and_its_bound_applied() -> None:
    options: dict[str, Any] = {"device": "cuda", "size": 1024, "checks": 3, "seed": 7}
    law = calibrate.Law.parse("normal:0.03")
    record = calibrate.calibrated(Matmul(MatmulOptions(**options)), {}, margin=4, law=law, seed=7, orders_held_out=10)
    assert record["verdict"] == "PASS", record["gates"]
    assert record["conditions"]["library"]["cublas_math"] == "binary32"
    for row in record["checks"]:
        assert 0 < row["max_abs_error_float64"] < 1e-3
    verdict, lines = calibrate.applied(record, Matmul(MatmulOptions(**options)).measure(0))
    assert (verdict, lines) == (Verdict.PASS, [])


@needs_two
def test_nccl_is_calibrated_and_its_bound_applied(cli: Cli) -> None:
    words = ("--backend", "nccl", "--ranks", 2, "--count", 65536, "--seed", 7, "--held-out", 20)
    assert cli("calibrate", "all_reduce", *words, "--out", "bound.json", "--run", "run") == 0, cli.out + cli.err
    record = cli.record()
    assert record["bound"]["ulp_steps"] == 0, "two terms have one order"
    assert list(record["conditions"]["orders"]["arms"]) == ["default", "ring", "tree"]
    assert cli("check", "--bound", "bound.json") == 0, cli.out
    cli.change(library__nccl="1.0")
    assert cli("check", "--bound", "bound.json") == 5
    assert "library.nccl: " in cli.out
