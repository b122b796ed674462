"""The chunked product: blocks, staging buffers and their race, an absolute bound over fresh inputs, and its command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calibrate_cli import Cli, cli

from auditor import calibrate
from auditor.calibrate import matmul
from auditor.calibrate.matmul import Matmul, MatmulOptions
from auditor.errors import ConfigError
from auditor.model import Verdict
from auditor.report import calibrate_text

__all__ = ["cli"]
SMALL = ("--size", 96, "--checks", 3, "--held-out", 20, "--seed", 7, "--out", "bound.json")


@pytest.mark.parametrize(("rows", "chunks"), [(10, 1), (10, 3), (10, 10), (4096, 8), (7, 2)])
def test_row_blocks_cover_every_row_once(rows: int, chunks: int) -> None:
    blocks = matmul.row_blocks(rows, chunks)
    assert [k for part in blocks for k in range(part.start, part.stop)] == list(range(rows))
    assert len(blocks) == chunks
    sizes = {part.stop - part.start for part in blocks}
    assert max(sizes) - min(sizes) <= 1


def test_factors_are_pure_functions_of_their_coordinates() -> None:
    a, b = matmul.matrix(7, 0, 40), matmul.matrix(7, 1, 40)
    assert a.dtype == np.float32
    assert -1 <= a.min() < 0 < a.max() < 1
    assert ((a.astype(np.float64) * 2**23) % 1 == 0).all()
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, matmul.matrix(8, 0, 40))
    assert np.array_equal(a, matmul.matrix(7, 0, 40))


@pytest.mark.parametrize("chunks", [1, 2, 5, 33])
def test_the_chunked_product_is_the_product(chunks: int) -> None:
    """Small whole numbers, which every order adds exactly: any stale or swapped block would show."""
    a = (np.arange(33 * 33).reshape(33, 33) % 7 - 3).astype(np.float32)
    b = (np.arange(33 * 33).reshape(33, 33) % 5 - 2).astype(np.float32)
    out = np.full(33 * 33, np.nan, np.float32)
    seconds = matmul.host_product(chunks)(a, b, out)
    assert seconds > 0
    assert np.array_equal(out.reshape(33, 33), a @ b)


def test_a_product_is_checked_on_fresh_inputs_and_its_bound_applied(cli: Cli) -> None:
    assert cli("calibrate", "matmul", *SMALL) == 0, cli.err
    record = cli.record()
    assert record["bound"]["kind"] == "absolute"
    assert record["bound"]["absolute"] == 1e-3
    assert [row["seed"] for row in record["checks"]] == [7, 8, 9]
    for row in record["checks"]:
        a, b = (matmul.matrix(row["seed"], side, 96) for side in (0, 1))
        out = np.empty(96 * 96, np.float32)
        matmul.host_product(8)(a, b, out)
        exact, made = a.astype(np.float64) @ b.astype(np.float64), out.reshape(96, 96)
        assert row["max_abs_error_float64"] == np.abs(made - exact).max() > 0
        assert row["max_abs_difference_unchunked"] == np.abs(made.astype(np.float64) - (a @ b)).max()
    assert record["bound"]["worst_absolute"] == max(row["max_abs_error_float64"] for row in record["checks"])
    assert {rule["name"] for rule in record["rules"]} >= {"absolute", "a_priori", "one_percent"}
    assert "measured" not in {rule["name"] for rule in record["rules"]}
    assert record["held_out"][0]["rejected_orders"]["absolute"]["count"] == 0
    assert record["held_out"][0]["rejected_orders"]["a_priori"]["count"] == 0
    names = {one["name"]: one["holds"] for one in record["assumptions"]}
    assert names["nothing cancels"] is False
    assert names["the reference is better than what is measured"] is True
    assert "coverage of margin x worst" not in names
    assert [gate["verdict"] for gate in record["gates"]] == ["PASS"] * 5
    assert "over 3 checks the largest error is" in cli.out
    assert cli("check", "--bound", "bound.json") == 0
    assert "absolute bound 0.001" in cli.out
    assert cli("check", "--bound", "bound.json", "--chunks", 4) == 5
    assert "4 row blocks" in cli.out
    cli.change(library__numpy="1.0", library__blas="another")
    assert cli("check", "--bound", "bound.json") == 5
    assert "library.blas: " in cli.out
    assert "library.numpy: " in cli.out


def test_a_tighter_bound_than_the_errors_fails_the_check() -> None:
    record = _made(bound=1e-7)
    verdict, lines = calibrate.applied(record, Matmul(MatmulOptions(size=64, checks=2, seed=3, bound=1e-7)).measure(0))
    assert verdict is Verdict.FAIL
    assert record["verdict"] == "FAIL"
    assert any(line.startswith("wrong_value: 2 of 2 checks exceed 1e-07: seed 3: ") for line in lines)
    assert any("absolute bound" in line for line in lines)


def _made(**options: Any) -> dict[str, Any]:
    work = Matmul(MatmulOptions(size=64, checks=2, seed=3, **options))
    law = calibrate.Law.parse("normal:0.03")
    return calibrate.calibrated(work, {}, margin=4, law=law, seed=3, orders_held_out=0)


def test_a_product_that_reads_stale_blocks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that comes too late leaves the rows of the call before in the staging buffer."""
    kept: dict[str, Any] = {}

    def late(chunks: int) -> Any:
        def multiply(a: Any, b: Any, out: Any) -> None:
            target = out.reshape(len(a), b.shape[1])
            target[...] = a @ b
            target[:8] = kept.setdefault("rows", target[:8].copy())

        return multiply

    monkeypatch.setattr(matmul, "host_product", late)
    record = _made()
    assert record["verdict"] == "FAIL"
    stale = next(gate for gate in record["gates"] if gate["kind"] == "stale_term")
    assert stale["says"].startswith("512 of 4,096 elements are still the result")
    assert record["checks"][1]["max_abs_error_float64"] > 1


def test_an_error_that_is_not_finite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the block that errors are planted in, so that there is a record all the same."""

    def spoilt(chunks: int) -> Any:
        def multiply(a: Any, b: Any, out: Any) -> None:
            out.reshape(len(a), b.shape[1])[...] = a @ b
            out[-1] = np.nan

        return multiply

    monkeypatch.setattr(matmul, "host_product", spoilt)
    monkeypatch.setattr(matmul, "SIDE", 8)
    record = _made()
    assert record["verdict"] == "FAIL"
    assert record["checks"][0]["max_abs_error_float64"] is None
    assert "the largest error is not finite against float64" in calibrate_text.headline(record)


def test_what_does_not_fit_the_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"of the .* here; ask for a smaller size"):
        Matmul(MatmulOptions(size=1 << 22))


def test_more_blocks_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="--chunks 9: there are only 8 rows"):
        Matmul(MatmulOptions(size=8, chunks=9))
