"""Local workloads: the histogram and a person's function; every gate sees its defect; a bound is applied and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import planted_workloads
import pytest
from calibrate_cli import Cli, cli
from emulated_cuda import Emulated, compiler

from auditor.calibrate import data, gates, local, rules
from auditor.calibrate.local import LocalOptions, LocalReduction
from auditor.errors import ConfigError, Unavailable
from auditor.kernels import cuda
from auditor.numerics.formats import FORMATS

__all__ = ["cli"]
B32, B64 = FORMATS["binary32"], FORMATS["binary64"]
SMALL = ("--bins", 300, "--weights", 400, "--held-out", 25, "--seed", 7, "--out", "bound.json")
OWN = ("--count", 500, "--terms", 200, "--held-out", 20, "--out", "bound.json")
HERE = "user:planted_workloads."


# -------------------------------------------------------------------------------------------------------------- data


def test_weights_are_pure_functions_of_their_coordinates() -> None:
    whole = data.rows("uniform", B32, 7, 30, 50)
    assert whole.dtype == np.float32
    assert whole.min() > 0
    assert whole.max() <= 1
    assert np.array_equal(whole[:20], data.rows("uniform", B32, 7, 20, 50))
    assert not np.array_equal(whole, data.rows("uniform", B32, 8, 30, 50))
    assert ((whole.astype(np.float64) * 2**24) % 1 == 0).all()
    fine = data.rows("uniform", B64, 7, 200, 50)
    assert fine.mean() == pytest.approx(0.5, abs=0.02)
    assert 0 < fine.min() < fine.max() <= 1
    assert ((fine * 2**24) % 1 != 0).any()
    exponential = data.rows("exponential", B64, 7, 200, 50)
    assert exponential.min() > 0
    assert exponential.mean() == pytest.approx(1.0, abs=0.05)
    wide = data.rows("wide", B32, 7, 30, 50)
    assert (wide < 0).any()
    assert abs(float(wide.mean())) < 0.2


def test_orders_are_permutations_and_stay_what_they_are() -> None:
    names = data.order_names(6)
    assert names == ("forward", "backward", "interleaved:64", "shuffled:1", "shuffled:2", "shuffled:3")
    assert data.order_names(2) == names[:2]
    orders = [data.order_of(name, 7, 200) for name in names]
    for order in orders:
        assert sorted(order.tolist()) == list(range(200))
        assert order.dtype == np.uint32
    assert len({order.tobytes() for order in orders}) == 6
    assert orders[0].tolist() == list(range(200))
    assert orders[1].tolist() == list(range(199, -1, -1))
    assert orders[2].tolist()[:5] == [0, 64, 128, 192, 1]
    assert np.array_equal(orders[3], data.order_of("shuffled:1", 7, 200))
    assert not np.array_equal(orders[3], data.order_of("shuffled:1", 8, 200))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_histogram_is_that_of_samples_added_one_by_one(dtype: Any) -> None:
    """Against NumPy's unbuffered additions by bin number, in the order in which the samples come."""
    rows = data.rows("uniform", FORMATS[f"binary{8 * np.dtype(dtype).itemsize}"], 3, 90, 70)
    for name in data.order_names(5):
        order = data.order_of(name, 3, 90)
        want, out = np.zeros(70, dtype), np.full(70, np.nan, dtype)
        np.add.at(want, np.tile(np.arange(70), 90), rows[order].reshape(-1))
        assert local.host_histogram(rows)(order, out) > 0
        assert np.array_equal(out, want)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler to emulate the device kernels with")
@pytest.mark.parametrize("fmt", [B32, B64], ids=lambda fmt: fmt.name)
def test_the_device_s_histogram_gives_the_host_s_bits(fmt: Any) -> None:
    """The kernels' sources compiled for the host; of atomics every order is legal, here that of the samples."""
    rows = data.rows("uniform", fmt, 3, 90, 700)
    runtime, out = Emulated(), np.full(700, np.nan, rows.dtype)
    order, want = data.order_of("shuffled:1", 3, 90), np.zeros(700, rows.dtype)
    local.host_histogram(rows)(order, want)
    ordered = [rows.ctypes.data, order.ctypes.data, 90, 700, out.ctypes.data]
    runtime.launch(f"histogram_ordered_{fmt.itemsize}", 3, ordered)
    assert np.array_equal(out, want)
    assert cuda.module_of("histogram_ordered_4") == cuda.WORKLOADS
    out[:] = 0
    runtime.launch(f"histogram_atomic_{fmt.itemsize}", 2, [rows.ctypes.data, rows.size, 700, out.ctypes.data])
    assert np.allclose(out, rows.sum(axis=0, dtype=np.float64), rtol=1e-5)


# -------------------------------------------------------------------------------------------------------------- records


def test_a_histogram_is_calibrated_and_its_bound_applied(cli: Cli) -> None:
    assert cli("calibrate", "histogram", *SMALL) == 0, cli.err
    assert cli.out.startswith("PASS  histogram: bound ")
    record = cli.record()
    worst = max(row["ulp_steps"] for row in record["orders"])
    assert record["bound"]["ulp_steps"] == 4 * worst > 0
    assert [row["order"] for row in record["orders"]] == ["forward", "backward", "interleaved:64"]
    rows = data.rows("uniform", B32, 7, 400, 300)
    total = np.zeros(300, np.float32)
    for row in rows[::-1]:
        total += row
    nearest = rows.sum(axis=0, dtype=np.float64).astype(np.float32)
    steps = np.abs(total.view(np.int32).astype(np.int64) - nearest.view(np.int32))
    assert record["orders"][1]["ulp_steps"] == int(steps.max())
    assert record["orders"][1]["differ"] == int((steps != 0).sum())
    assert record["conditions"]["size"] == {"bins": 300, "weights": 400}
    assert record["held_out"][0]["orders"] == 25
    assert "one after the other" in record["replay"]
    assert {gate["kind"]: gate["verdict"] for gate in record["gates"]} == dict.fromkeys(
        ("unwritten", "stale_term", "early_return", "false_time", "send_modified"), "PASS"
    )
    assert record["study"] is None
    assert (cli.folder / "bound.html").is_file()
    assert cli("check", "--bound", "bound.json") == 0
    assert cli.out.startswith("PASS  histogram: 3 orders of 300 elements")
    assert cli("calibrate", "histogram", *SMALL, "--json") == 0
    assert json.loads(cli.out)["bound"] == record["bound"]
    assert "record: bound.json" in cli.err


def test_the_record_is_the_same_again(cli: Cli) -> None:
    """All but times and the date."""
    made = []
    for name in ("a.json", "b.json"):
        assert cli("calibrate", "histogram", *SMALL[:-1], name) == 0
        made.append(cli.record(name))
    for key in ("conditions", "bound", "orders", "law", "curves", "held_out", "planted", "rules", "assumptions"):
        assert made[0][key] == made[1][key], key


def test_binary64_is_judged_by_the_exact_sum(cli: Cli) -> None:
    more = ("--format", "binary64", "--reference", "exact")
    assert cli("calibrate", "histogram", *SMALL, *more) == 0, cli.err
    assert 0 < cli.record()["bound"]["worst"]["ulp_steps"] < 100
    assert cli("calibrate", "histogram", *SMALL, "--format", "binary64") == 2
    assert "--reference exact" in cli.err


def test_zero_mean_terms_are_said_to_cancel(cli: Cli) -> None:
    """The bound in steps grows without sense; the a-priori bound stands beside it and lets less through."""
    assert cli("calibrate", "histogram", *SMALL, "--distribution", "wide") == 0, cli.err
    record = cli.record()
    assert record["bound"]["worst"]["ulp_steps"] > 300
    found = {one["name"]: one for one in record["assumptions"]}["nothing cancels"]
    assert found["holds"] is False
    assert "a-priori bound" in found["says"]
    assert "does not hold: nothing cancels" in cli.out
    positive = {one["name"]: one["holds"] for one in _record(cli, "uniform")["assumptions"]}
    assert positive["nothing cancels"] is True


def _record(cli: Cli, distribution: str) -> dict[str, Any]:
    assert cli("calibrate", "histogram", *SMALL, "--distribution", distribution) == 0
    return cli.record()


def test_a_person_s_function_is_calibrated(cli: Cli) -> None:
    assert cli("calibrate", f"{HERE}honest", *OWN) == 0, cli.err
    first = cli.record()
    assert first["conditions"]["workload"] == f"{HERE}honest"
    assert cli("check", "--bound", "bound.json") == 0
    assert cli("calibrate", f"{HERE}in_pairs", *OWN, "--reference", f"{HERE}exact") == 0, cli.err
    second = cli.record()
    assert second["bound"]["worst"]["ulp_steps"] < first["bound"]["worst"]["ulp_steps"]
    assert "in pairs" in second["replay"]
    assert "a_priori" not in second["law"]["accepted"], "the terms behind a referee's values are not known"
    assert {one["name"]: one["holds"] for one in second["assumptions"]}["nothing cancels"] is None
    assert cli("calibrate", f"{HERE}without_a_clock", *OWN) == 0
    waived = [gate["kind"] for gate in cli.record()["gates"] if gate["verdict"] == "WAIVED"]
    assert waived == ["false_time"]
    assert "WAIVED false_time: The workload claims no time" in cli.out


def test_a_workload_that_went_wrong_afterwards_fails_the_check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("calibrate", f"{HERE}honest", *OWN) == 0, cli.out + cli.err

    def spoilt(rows: Any, out: Any) -> None:
        planted_workloads._add(rows, out)
        out[17] = np.nextafter(np.nextafter(out[17] * np.float32(1.0001), np.float32(0)), np.float32(0))

    monkeypatch.setattr(planted_workloads, "honest", spoilt)
    assert cli("check", "--bound", "bound.json") == 1
    assert cli.out.startswith("FAIL  user:planted_workloads.honest")
    assert "order forward: measured bound" in cli.out
    assert "rejects 1 of 500 elements, the first at index 17: 0x" in cli.out
    monkeypatch.setattr(planted_workloads, "honest", planted_workloads.early_return)
    assert cli("check", "--bound", "bound.json") == 1
    assert "early_return: The call returns before its results are there" in cli.out


# ---------------------------------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        ("early_return", "early_return", "500 elements read right after the return differ"),
        ("late_tail", "early_return", "1 elements read right after the return differ"),
        ("false_time", "false_time", "claims 1e-07 s for 402,000 bytes"),
        ("half_the_time", "false_time", "less than half of what the host's clock saw"),
        ("too_long", "false_time", "more than the host's clock saw"),
        ("leaves_a_gap", "unwritten", "2 of 500 elements keep the poison that was there before, the first at index 3"),
        ("stale", "stale_term", "500 of 500 elements are still the result of the data that lay in the same memory"),
        ("one_term_missing", "wrong_value", "are no sum of the input in any order"),
        ("writes_its_input", "send_modified", "bytes of the input are not what was laid down"),
    ],
)
def test_each_gate_sees_its_defect(cli: Cli, function: str, kind: str, words: str) -> None:
    planted_workloads._kept.clear()
    assert cli("calibrate", HERE + function, *OWN) == 1
    said = cli.out + cli.err
    assert f"{kind}: " in said
    assert words in said


def test_a_bound_of_a_workload_that_failed_a_gate_is_refused(cli: Cli) -> None:
    assert cli("calibrate", f"{HERE}false_time", *OWN) == 1
    assert cli.record()["verdict"] == "FAIL"
    assert cli("check", "--bound", "bound.json") == 5
    assert "failed a gate when the bound was measured" in cli.out


def test_one_slow_call_is_no_false_time() -> None:
    """A busy machine delays a call, not all of them; and the claim may be a little off."""
    trouble = gates._time_trouble
    assert trouble([0.1, 0.01], [0.01, 0.01], 1000, 1e12, "") == ""
    assert trouble([0.0105, 0.0105], [0.01, 0.01], 1000, 1e12, "") == ""
    assert "less than half" in trouble([0.1, 0.1], [0.01, 0.01], 1000, 1e12, "")
    assert "more than" in trouble([0.1, 0.1], [0.2, 0.2], 1000, 1e12, "")
    assert "the limit is 1 GB/s" in trouble([0.1, 0.1], [0.1, 0.0001], 1_000_000, 1e9, "stated")
    assert "no time at all" in trouble([0.1], [0.0], 10, 1e9, "stated")


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing",), 2, "there is no workload 'nothing'"),
        (("histogram", "--ranks", 4), 2, "--ranks is not for histogram; it takes --device"),
        (("histogram", "--device", "tpu"), 2, "--device tpu: is none of cpu, cuda"),
        (("histogram", "--format", "bfloat16"), 2, "local workloads take binary32 or binary64"),
        (("histogram", "--format", "binary31"), 2, "local workloads take binary32 or binary64"),
        (("histogram", "--distribution", "cauchy"), 2, "--distribution cauchy: is none of uniform, exponential"),
        (("histogram", "--distribution", "wide:dist"), 2, "is not of the form name or name:key=value"),
        (("histogram", "--reference", "guess"), 2, "is none of float64, exact, user:module.function"),
        (("histogram", "--law", "normal"), 2, "is not normal:WIDTH"),
        (("histogram", "--bins", 0), 2, "--bins"),
        (("histogram", "--bins", 1 << 20, "--weights", 1 << 20), 2, "ask for a smaller size"),
        (("histogram", "--margin", 0.5), 2, "--margin"),
        (("histogram", "--out", "no/such/bound.json"), 2, "there is no directory no/such"),
        (("user:planted_workloads",), 2, "is not of the form user:module.function"),
        (("user:no_such_module.f",), 2, "there is no module no_such_module"),
        (("user:planted_workloads.nothing",), 2, "planted_workloads has no function nothing"),
        (("user:planted_workloads.NOT_A_FUNCTION",), 2, "planted_workloads has no function NOT_A_FUNCTION"),
        (("user:needs_something.f",), 3, "needs no_such_package"),
        (("user:breaks.f",), 2, "fails to import: ZeroDivisionError"),
        ((f"{HERE}raises", *OWN), 1, "raised ValueError: no kernel image for this device"),
        ((f"{HERE}returns_text", *OWN), 2, "returned str, neither seconds nor None"),
        ((f"{HERE}writes_nan", *OWN), 1, "order forward gives NaN at 500 of 500 elements"),
        ((f"{HERE}honest", *OWN, "--reference", f"{HERE}of_another_shape"), 2, "gave shape (), not (500,)"),
        ((f"{HERE}honest", *OWN, "--reference", f"{HERE}raises"), 1, "raised TypeError"),
    ],
)
def test_mistakes_are_one_line_each(cli: Cli, words: tuple[Any, ...], code: int, said: str) -> None:
    (cli.folder / "needs_something.py").write_text("import no_such_package\n")
    (cli.folder / "breaks.py").write_text("1 / 0\n")
    assert cli("calibrate", *words) == code, cli.out + cli.err
    assert said in cli.err
    assert not (cli.folder / "bound.json").exists()


def test_without_a_gpu_cuda_is_unavailable(cli: Cli) -> None:
    try:
        cuda.cupy()
    except Unavailable:
        assert cli("calibrate", "histogram", "--device", "cuda", *SMALL) == 3
        assert "CuPy" in cli.err
    else:
        pytest.skip("there is a GPU here")


def test_without_out_the_record_goes_to_results(cli: Cli) -> None:
    assert cli("calibrate", "histogram", *SMALL[:-2]) == 0
    (record,) = (cli.folder / "results").glob("bound-histogram-*.json")
    assert record.with_suffix(".html").is_file()


def test_options_of_a_workload_are_checked_before_it_runs() -> None:
    with pytest.raises(ConfigError, match="no better than a binary64 sum"):
        LocalReduction(LocalOptions(format="binary64"))
    asked = LocalReduction(LocalOptions(device="cuda")).asked()
    assert asked["on"] == "cuda", "what is asked for is known without the device"
    assert rules.TORCH["binary32"] == (1.3e-6, 1e-5)


def test_the_page_lies_beside_the_record(cli: Cli) -> None:
    assert cli("calibrate", "histogram", *SMALL) == 0
    page = Path("bound.html").read_text()
    assert "Measured bound: histogram" in page
    assert cli.record()["digest"] in page
