"""Kernels: the reference against scalar rounding and golden counts; every twin against the reference, element for element."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from auditor import inputs, kernels
from auditor.kernels import RoundingTable, host, numpy_ops
from auditor.kernels.table import ABOVE, BELOW, ONE, TIE_EVEN, TIE_ODD, cell
from auditor.model import Family
from auditor.numerics.exact import decode_reference, exact_sum_reference, exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.recipes import Recipe, evaluate
from auditor.numerics.rounding import MODES, round_sums, split

GOLDEN = json.loads((Path(__file__).parent / "golden" / "b300_rule.json").read_text())
NARROW = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]
RECIPES = ["order_exact", "order_exact:format=binary32", "report132", "wide", "wide:dist=lognormal", "rank_coded"]


def has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


TWINS = ["numpy", "numba"] if has_numba() else ["numpy"]


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDITOR_THREADS", "2")
    monkeypatch.setattr(host, "SERIAL", 1)
    monkeypatch.setattr(host, "BLOCK", 1000)


def recipe(text: str, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    made = inputs.recipe(Family.parse(text), fmt, seed, rank_n, rank)
    assert made is not None
    return made


def terms_of(text: str, fmt: Format, rank_n: int, n: int, seed: int = 3) -> list[np.ndarray]:
    return [inputs.generate(Family.parse(text), fmt, seed, rank_n, rank, 0, n) for rank in range(rank_n)]


def corrupt(fmt: Format, codes: np.ndarray) -> np.ndarray:
    """Outputs with every kind of trouble: neighbours up and down, wrong signs, zeros of the other sign, noise, NaN."""
    n, shuffle = len(codes), np.random.default_rng(5)
    out, kind = codes.copy(), shuffle.integers(0, 12, n)
    out[kind == 1] += fmt.dtype.type(1)
    out[kind == 2] -= fmt.dtype.type(1)
    out[kind == 3] ^= fmt.dtype.type(fmt.sign_mask)
    noise = shuffle.integers(0, 1 << 63, n).astype(np.uint64).astype(fmt.dtype)
    out[kind == 4] = noise[kind == 4]
    out[kind == 5] = fmt.nan_code
    zero = (out & fmt.dtype.type(fmt.magnitude_mask)) == 0
    out[zero & (kind > 6)] ^= fmt.dtype.type(fmt.sign_mask)
    return out


def reference(fmt: Format, terms: list[np.ndarray], out: np.ndarray) -> RoundingTable:
    return kernels.tabulate(fmt, split(fmt, exact_sums(fmt, terms)), out)


# --- the reference table --------------------------------------------------------------------------


def scalar_table(fmt: Format, terms: list[np.ndarray], out: np.ndarray) -> RoundingTable:
    """The definition, one element at a time, in rational arithmetic; finite sums below the maximum only."""
    counts = dict.fromkeys(("exact_right", "exact_wrong", "outside"), 0)
    cells, rem_sum = [0] * 16, 0
    decoded = [decode_reference(fmt, code) for code in range(fmt.max_code + 1)]
    values = [Fraction(numerator) * Fraction(2) ** exponent for numerator, exponent in decoded]
    for column, code in zip(zip(*terms, strict=True), out, strict=True):
        numerator, exponent = exact_sum_reference(fmt, [int(c) for c in column])
        exact = Fraction(numerator) * Fraction(2) ** exponent
        magnitude = int(code) & fmt.magnitude_mask
        lo = max(c for c in range(fmt.max_code + 1) if values[c] <= abs(exact))
        gap = values[lo + 1] - values[lo] if lo < fmt.max_code else values[lo] - values[lo - 1]
        rem = (abs(exact) - values[lo]) / gap
        same = magnitude == 0 or (int(code) & fmt.sign_mask != 0) == (exact < 0)
        way = magnitude - lo if same and magnitude - lo in (0, 1) else None
        if rem == 0:
            counts["exact_right" if way == 0 else "exact_wrong"] += 1
        elif way is None:
            counts["outside"] += 1
        else:
            half = Fraction(1, 2)
            relation = BELOW if rem < half else ABOVE if rem > half else TIE_ODD if lo & 1 else TIE_EVEN
            cells[cell(exact < 0, way, relation)] += 1
            rem_sum += int(rem * ONE)
    return RoundingTable(elements=len(out), cells=tuple(cells), rem_sum=rem_sum, **counts)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("text", ["report132", "wide", "ties", "order_exact:format=binary32"])
def test_reference_is_the_definition(name: str, text: str) -> None:
    fmt = FORMATS[name]
    terms = terms_of(text, fmt, 2, 150)
    out = corrupt(fmt, round_sums(fmt, exact_sums(fmt, terms), "ties_to_even"))
    assert reference(fmt, terms, out) == scalar_table(fmt, terms, out)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_recognised_by_ties_and_signs(fmt: Format, mode: str) -> None:
    terms = terms_of("ties", fmt, 2, 4096)
    table = reference(fmt, terms, round_sums(fmt, exact_sums(fmt, terms), mode))
    assert table.consistent_modes == (mode,)
    assert table.mismatches(mode) == 0
    assert table.outside == table.exact_wrong == table.skipped == 0
    assert table.nearest + table.toward_zero + table.away == table.inexact


def test_specials_and_overflow_are_skipped(twin: str) -> None:
    fmt = FORMATS["float8_e4m3fn"]
    terms = [np.array([0x7E, 0x7F, 0x38, 0x80], np.uint8), np.array([0x7E, 0x38, 0x38, 0x80], np.uint8)]
    out = np.array([0x7F, 0x7F, 0x40, 0x00], np.uint8)
    want = RoundingTable(elements=4, skipped=2, exact_right=2)
    assert reference(fmt, terms, out) == want
    assert kernels.tabulate_terms(fmt, terms, out, use=twin) == want


def test_mean_signed_error() -> None:
    table = RoundingTable(elements=2, cells=(1, 0, 0, 0, 0, 0, 0, 1, *[0] * 8), rem_sum=ONE // 4 + 3 * ONE // 4)
    assert table.mean_signed_error_ulp == 0.0
    assert RoundingTable().mean_signed_error_ulp is None
    down = RoundingTable(elements=1, cells=(0, 0, 0, 1, *[0] * 12), rem_sum=3 * ONE // 4)
    assert down.mean_signed_error_ulp == -0.75
    assert (down.toward_zero, down.away, down.nearest, down.ties) == (1, 0, 0, 0)


def test_an_empty_table_leaves_every_mode() -> None:
    assert RoundingTable().consistent_modes == MODES
    assert RoundingTable(elements=1, outside=1).consistent_modes == ()
    assert RoundingTable(elements=1, exact_wrong=1).consistent_modes == ()


def test_bad_arguments_are_refused() -> None:
    fmt = FORMATS["bfloat16"]
    seen = split(fmt, exact_sums(fmt, terms_of("report132", fmt, 2, 4)))
    for call in (kernels.tabulate, kernels.dose_response):
        with pytest.raises(ValueError, match="3 outputs for 4 sums"):
            call(fmt, seen, np.zeros(3, np.uint16))
    with pytest.raises(ValueError, match="unknown rounding mode"):
        RoundingTable().mismatches("nearest")
    with pytest.raises(ValueError, match="3 outputs for 4 sums"):
        kernels.tabulate_words(fmt, np.zeros(4, np.uint32), np.zeros(3, np.uint16))
    with pytest.raises(ValueError, match="do not fit binary32"):
        kernels.tabulate_words(FORMATS["binary32"], np.zeros(4, np.uint32), np.zeros(4, np.uint32))


# --- golden counts --------------------------------------------------------------------------------


def b300_outputs(fmt: Format, terms: list[np.ndarray]) -> np.ndarray:
    """The rule of NUMERICS §1 on sums that binary32 holds: six noise bits from the three neighbours in the group of four."""
    seen = split(fmt, exact_sums(fmt, terms))
    words = np.zeros(len(terms[0]), np.uint32)
    numpy_ops.load(fmt, terms[0], words)
    assert numpy_ops.add(fmt, terms[1], words)
    pairs = ((words >> np.uint32(21)) & np.uint32(3)).astype(np.uint64).reshape(-1, 4)
    noise = np.zeros(len(words), np.uint64).reshape(-1, 4)
    for step in (1, 2, 3):
        other = np.roll(pairs, -step, axis=1)
        noise += ((other >> np.uint64(1)) << np.uint64(64 - step)) + ((other & np.uint64(1)) << np.uint64(61 - step))
    up = seen.rem + noise.ravel() < seen.rem
    return (seen.lo + up.astype(fmt.dtype)) | (seen.negative.astype(fmt.dtype) << fmt.dtype.type(fmt.bits - 1))


@pytest.mark.parametrize("name", ["bfloat16", "binary16"])
@pytest.mark.parametrize("seed", [0, 1])
def test_golden_counts_of_the_b300_rule(name: str, seed: int, twin: str) -> None:
    fmt, golden, n = FORMATS[name], GOLDEN[f"{name}_seed{seed}"], 1 << 20
    terms = terms_of("report132", fmt, 2, n, seed)
    out = b300_outputs(fmt, terms)
    table = kernels.tabulate_recipes([recipe("report132", fmt, seed, 2, rank) for rank in (0, 1)], 0, out, use=twin)
    assert table.elements == n
    found = {"inexact": table.inexact, "rne": table.nearest, "toward_zero": table.toward_zero, "away": table.away}
    assert {**found, "ties": table.ties} == {key: golden[key] for key in (*found, "ties")}
    assert table.outside == table.exact_wrong == table.skipped == 0
    assert -0.053 < table.mean_signed_error_ulp < -0.048


# --- twins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("text", [*RECIPES, "specials", "testfloat1", "ties", "smooth"])
@pytest.mark.parametrize("rank_n", [2, 5])
def test_every_way_gives_the_same_table(fmt: Format, text: str, rank_n: int, twin: str) -> None:
    n = 3000
    terms = terms_of(text, fmt, rank_n, n)
    out = corrupt(fmt, round_sums(fmt, exact_sums(fmt, terms), "toward_positive"))
    seen = split(fmt, exact_sums(fmt, terms))
    want, dose = kernels.tabulate(fmt, seen, out), kernels.dose_response(fmt, seen, out)
    assert kernels.tabulate_terms(fmt, terms, out, use=twin) == want
    assert np.array_equal(kernels.dose_terms(fmt, terms, out, use=twin), dose)
    assert dose.sum() == sum(want.cells)
    if text in RECIPES:
        recipes = [recipe(text, fmt, 3, rank_n, rank) for rank in range(rank_n)]
        assert kernels.tabulate_recipes(recipes, 0, out, use=twin) == want
        assert np.array_equal(kernels.dose_recipes(recipes, 0, out, use=twin), dose)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_every_byte_pair(name: str, twin: str) -> None:
    fmt = FORMATS[name]
    terms = terms_of("exhaustive", fmt, 2, 1 << 16)
    out = corrupt(fmt, round_sums(fmt, exact_sums(fmt, terms), "ties_to_away"))
    assert kernels.tabulate_terms(fmt, terms, out, use=twin) == reference(fmt, terms, out)


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_any_binary32_word(fmt: Format, twin: str) -> None:
    """Random words reach subnormals, overflow, infinities, NaN, and sums too fine for 32 bits of rem."""
    words = np.random.default_rng(1).integers(0, 1 << 32, 20000).astype(np.uint32)
    words[:400] = np.arange(400) * np.uint32(0x00005001)  # zero, subnormals, the least normals
    near = np.random.default_rng(2).integers(0, 30 << 23, 10000).astype(np.uint32) + np.uint32((127 - 20) << 23)
    wide = FORMATS["binary32"]
    for some in (words, near):
        seen = split(fmt, exact_sums(wide, [some]))
        out = corrupt(fmt, round_sums(fmt, exact_sums(wide, [some]), "ties_to_even"))
        assert kernels.tabulate_words(fmt, some, out, use=twin) == kernels.tabulate(fmt, seen, out)


def test_blocks_and_threads_change_nothing(two_threads: None, twin: str) -> None:
    fmt, n = FORMATS["bfloat16"], 12345
    recipes = [recipe("report132", fmt, 1, 2, rank) for rank in (0, 1)]
    terms = [evaluate(one, 0, n) for one in recipes]
    out = corrupt(fmt, round_sums(fmt, exact_sums(fmt, terms), "ties_to_even"))
    want = reference(fmt, terms, out)
    assert kernels.tabulate_recipes(recipes, 0, out, use=twin) == want
    assert kernels.tabulate_terms(fmt, terms, out, use=twin) == want
    parts = [reference(fmt, [t[a:b] for t in terms], out[a:b]) for a, b in ((0, 1), (1, 5000), (5000, n))]
    assert sum(parts, RoundingTable()) == want
    filled = np.empty(n, fmt.dtype)
    kernels.fill(recipes[1], 77, filled, use=twin)
    assert np.array_equal(filled, evaluate(recipes[1], 77, 77 + n))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("text", [*RECIPES, "order_exact:format=binary64"])
@pytest.mark.parametrize("start", [0, (1 << 32) - 700, (1 << 40) - 3, (1 << 63) + 5])
def test_fills_agree(fmt: Format, text: str, start: int, twin: str) -> None:
    for seed, rank_n, rank in ((0, 2, 1), ((1 << 40) + 9, 7, 3)):
        made = recipe(text, fmt, seed, rank_n, rank)
        out = np.empty(1500, fmt.dtype)
        kernels.fill(made, start, out, use=twin)
        assert np.array_equal(out, evaluate(made, start, start + 1500))


def test_fills_agree_where_contributors_are_too_many(twin: str) -> None:
    fmt = FORMATS["bfloat16"]
    for rank in (0, 299):
        made = recipe("order_exact", fmt, 1, 300, rank)
        out = np.empty(1000, fmt.dtype)
        kernels.fill(made, 5, out, use=twin)
        assert made.kind == "sparse"
        assert np.array_equal(out, evaluate(made, 5, 1005))
        assert np.array_equal(kernels.evaluate(made, 5, 1005), out)


def test_send_codes_through_the_kernels() -> None:
    from auditor.model import Call, Trial

    call = Call(collective="all_reduce", op="sum", format="bfloat16", count=50000)
    trial = Trial(call=call, rank_n=3, family=Family.parse("report132"), seed=7, active="pairs")
    for rank in range(3):
        fast = inputs.send_codes(trial, 0, rank, 0, 50000, evaluate=kernels.evaluate)
        assert np.array_equal(fast, inputs.send_codes(trial, 0, rank, 0, 50000))


@pytest.mark.parametrize("fmt", NARROW, ids=lambda f: f.name)
def test_decoding_is_exact(fmt: Format, twin: str) -> None:
    codes = np.arange(1 << fmt.bits, dtype=fmt.dtype)
    words = np.empty(len(codes), np.uint32)
    kernels._ops(twin).load(fmt, codes, words)
    back = round_sums(fmt, exact_sums(FORMATS["binary32"], [words]), "toward_zero")
    nan = (codes & fmt.dtype.type(fmt.magnitude_mask)) > (fmt.overflow_code - (not fmt.has_infinity))
    assert np.array_equal(back[~nan], codes[~nan])
    assert np.isnan(words[nan].view(np.float32)).all()


# --- dispatch -------------------------------------------------------------------------------------


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_no_numba() -> None:
    code = "import sys, auditor.kernels, auditor.inputs; print('numba' in sys.modules or 'llvmlite' in sys.modules)"
    assert run_python(code) == "False"


def test_without_numba_numpy_takes_over() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from auditor import kernels; print(kernels.implementation())\n"
        "try: kernels._ops('numba')\nexcept ImportError: print('refused')"
    )
    assert run_python(code, AUDITOR_KERNELS="").split() == ["numpy", "refused"]


def test_implementation_can_be_chosen(monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    monkeypatch.setenv("AUDITOR_KERNELS", twin)
    assert kernels.implementation() == twin
    monkeypatch.setenv("AUDITOR_KERNELS", "fortran")
    with pytest.raises(ValueError, match="one of numpy, numba"):
        kernels.implementation()


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDITOR_THREADS", "3")
    assert host.thread_n() == 3
    monkeypatch.setenv("AUDITOR_THREADS", "0")
    assert host.thread_n() == 1
    monkeypatch.setenv("AUDITOR_THREADS", "many")
    assert host.thread_n() == len(os.sched_getaffinity(0))


def test_threads_survive_a_fork() -> None:
    code = (
        "import os, numpy as np\nfrom auditor import kernels\nfrom auditor.kernels import host\nhost.SERIAL = 1\n"
        "from auditor.numerics.formats import FORMATS\nfrom auditor.numerics.recipes import Recipe\n"
        "one = Recipe('report132', FORMATS['bfloat16'], 0, 0, 0); out = np.empty(200000, np.uint16)\n"
        "kernels.fill(one, 0, out, use='numpy'); pid = os.fork()\n"
        "if not pid:\n    kernels.fill(one, 0, out, use='numpy'); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert run_python(code, AUDITOR_THREADS="2") == "7"


@pytest.mark.skipif(not has_numba(), reason="needs numba")
def test_compiled_code_goes_where_the_user_may_write(tmp_path: Path) -> None:
    code = "from auditor.kernels import numba_jit; import numba; print(numba.config.CACHE_DIR)"
    clean = {"NUMBA_CACHE_DIR": "", "TMPDIR": str(tmp_path)}
    assert run_python(code, XDG_CACHE_HOME=str(tmp_path / "home"), **clean).startswith(str(tmp_path / "home"))
    (tmp_path / "file").write_text("in the way")
    assert run_python(code, XDG_CACHE_HOME=str(tmp_path / "file"), **clean) == str(tmp_path / f"auditor-{os.getuid()}")
    (tmp_path / f"auditor-{os.getuid()}").rmdir()
    (tmp_path / f"auditor-{os.getuid()}").write_text("in the way too")
    assert "auditor-numba-" in run_python(code, XDG_CACHE_HOME=str(tmp_path / "file"), **clean)
    assert run_python(code, NUMBA_CACHE_DIR=str(tmp_path / "own")) == str(tmp_path / "own")


# --- comparisons ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 8, 4096, (1 << 21) + 13])
def test_equal_and_differences(size: int) -> None:
    a = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    b = a.copy()
    assert kernels.equal(a, b)
    assert kernels.differences(a, b, 5)[0] == 0
    for place in {0, size // 2, size - 1} if size else set():
        b[place] ^= 1
        assert not kernels.equal(a, b)
        count, first = kernels.differences(a, b, 5)
        assert (count, first.tolist()) == (1, [place])
        b[place] ^= 1


def test_differences_are_capped_and_counted() -> None:
    a, b = np.zeros(3 << 20, np.uint16), np.zeros(3 << 20, np.uint16)
    b[5::1000] = 1
    count, first = kernels.differences(a, b, 1500)
    assert count == len(b[5::1000])
    assert first.tolist() == list(range(5, 5 + 1500 * 1000, 1000))
    assert kernels.differences(a, b, 0)[1].tolist() == []


def test_equal_takes_strided_views() -> None:
    a = np.arange(64, dtype=np.uint8)
    assert kernels.equal(a[::2], a[::2].copy())
    assert not kernels.equal(a[::2], a[1::2])


def test_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot compare"):
        kernels.equal(np.zeros(3, np.uint8), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="cannot compare"):
        kernels.differences(np.zeros(3, np.uint8), np.zeros(3, np.uint16), 1)
