"""The MPI backend on real MPICH processes: what it computes, what it leaves alone, what it says. And its tables, without MPI."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi_launch import drive

from auditor.backends.mpi import MpiBackend, check_options
from auditor.backends.mpi_library import Library, algorithm_asked, identify, native_formats, native_types
from auditor.errors import ConfigError
from auditor.model import COLLECTIVES
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import sum_reference
from auditor.numerics.trees import chain, evaluate, recursive_doubling, ring_order

MPICH = Library("MPICH", "5.0.2", "MPICH Version:      5.0.2")
NATIVE = ("binary64", "binary32", "binary16", "bfloat16")
RING = {
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
    "MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM": "pairwise",
    "MPIR_CVAR_COLLECTIVE_FALLBACK": "error",
}
DOUBLING = {
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling",
    "MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM": "recursive_doubling",
    "MPIR_CVAR_COLLECTIVE_FALLBACK": "error",
}


def row(collective, name, count, send, **rest):
    return {"collective": collective, "op": "sum", "format": name, "count": count, "send": send, **rest}


def exact_data(fmt, n, length):
    """Rank r sends 2**(r + index mod 2): every partial sum of every order is exact, and a missing or doubled term shows."""
    codes = [np.array([fmt.power_of_two(rank), fmt.power_of_two(rank + 1)]) for rank in range(n)]
    return [np.resize(pair, length).tolist() for pair in codes]


def near_data(fmt, n, length, seed=1):
    """Random signs and significands, exponents -3..3: nearly every addition rounds."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(fmt.bias - 3, fmt.bias + 4, (n, length)).astype(np.uint64) << np.uint64(fmt.mantissa_bits)
    mantissa = rng.integers(0, 1 << fmt.mantissa_bits, (n, length)).astype(np.uint64)
    sign = rng.integers(0, 2, (n, length)).astype(np.uint64) << np.uint64(fmt.bits - 1)
    return (exponent | mantissa | sign).astype(fmt.dtype).tolist()


def sums_along(tree, fmt, send, mode, part=slice(None)):
    """The codes that a sum along ``tree`` gives when every addition is rounded to ``fmt`` by ``mode``."""
    terms = [np.array(codes, fmt.dtype)[part] for codes in send]
    return evaluate(tree, terms, fmt, accumulator=fmt, hop=mode, final=mode).tolist()


def ring_sums(fmt, send, mode):
    """MPICH's ring: the range is cut into n chunks of ceil(count / n), each summed in its own rotation."""
    n, count = len(send), len(send[0])
    chunk = -(-count // n)
    parts = [slice(c * chunk, min((c + 1) * chunk, count)) for c in range(n)]
    return [code for c, part in enumerate(parts) for code in sums_along(chain(ring_order(n, c)), fmt, send, mode, part)]


# ---- without MPI ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11\0", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "Intel MPI 2021.18.1"),
        ("MPI VERSION    : CRAY MPICH version 8.1.29.1 (ANL base 3.4a2)\nMPI BUILD INFO : ...", "Cray MPICH 8.1.29.1"),
        ("MVAPICH2 Version      :\t2.3.7\nMPICH Version: 3.2.1", "MVAPICH 2.3.7"),
        ("Some Vendor MPI 7\nmore", "Some Vendor MPI 7"),
        ("", "unknown MPI"),
    ],
)
def test_libraries_are_named(text, expected):
    assert str(identify(text)) == expected


def test_algorithm_asked_by_library():
    ring = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}
    assert algorithm_asked(MPICH, "all_reduce", ring) == "ring"
    assert algorithm_asked(MPICH, "reduce", ring) == "default"
    assert algorithm_asked(MPICH, "all_reduce", {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"}) == "default"
    assert algorithm_asked(MPICH, "all_reduce", {"MPICH_ALLREDUCE_INTRA_ALGORITHM": "tree", **ring}) == "ring"
    posix = {"MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}
    assert algorithm_asked(MPICH, "reduce", posix) == "release_gather"
    intel = Library("Intel MPI", "2021.18.1", "")
    assert algorithm_asked(intel, "reduce_scatter", {"I_MPI_ADJUST_REDUCE_SCATTER_BLOCK": "2"}) == "2"
    tuned = {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}
    open_mpi = Library("Open MPI", "5.0.11", "")
    assert algorithm_asked(open_mpi, "all_reduce", tuned) == "default"
    assert algorithm_asked(open_mpi, "all_reduce", {**tuned, "OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}) == "tuned:4"
    assert algorithm_asked(Library("Some MPI", "", ""), "all_reduce", ring) == "unreported"


class FakeMpi:
    """Datatypes by handle, as a library with another one behind bfloat16's handle would give them."""

    DATATYPE_NULL, FLOAT16_T, FLOAT, DOUBLE = "null", "null", "float", "double"

    def __init__(self, size, name):
        found = SimpleNamespace(Get_size=lambda: size, Get_name=lambda: name)
        self.Datatype = SimpleNamespace(fromhandle=lambda handle: found)


def test_bfloat16_is_taken_only_from_a_known_release_and_its_own_handle():
    assert set(native_types(FakeMpi(2, "MPIX_BFLOAT16"), MPICH)) == {"binary64", "binary32", "bfloat16"}
    assert set(native_types(FakeMpi(2, "MPI_SHORT"), MPICH)) == {"binary64", "binary32"}
    assert set(native_types(FakeMpi(4, "MPIX_BFLOAT16"), MPICH)) == {"binary64", "binary32"}
    for library in (Library("MPICH", "5.1.0", ""), Library("MPICH", "4.3.0", ""), Library("Open MPI", "5.0.2", "")):
        assert native_formats(FakeMpi(2, "MPIX_BFLOAT16"), library) == {"binary64", "binary32"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "ring"}, "options.algorithm is not known"),
        ({"op": "planted"}, "options.op = 'planted' is not one of native, user"),
        ({"op": "user", "rounding": "up"}, "options.rounding = 'up' is not one of"),
        ({"op": "user", "commute": 1}, "options.commute = 1 is neither"),
        ({"op": "user", "seed": -1}, "options.seed = -1 is not a whole number"),
        ({"op": "user", "seed": 1.5}, "options.seed = 1.5 is not a whole number"),
        ({"rounding": "toward_zero"}, 'options.rounding needs options.op = "user"'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError) as caught:
        check_options(options)
    assert message in str(caught.value)


# ---- real processes ------------------------------------------------------------------------------------------------------

mpi = pytest.mark.mpi


@mpi
def test_capabilities():
    native, user = MpiBackend.probe({}), MpiBackend.probe({"op": "user"})
    assert native.collectives == set(COLLECTIVES)
    assert native.ops == {"sum", "min", "max"}
    assert {"binary64", "binary32"} <= native.formats <= set(NATIVE)
    assert user.ops == {"sum"}
    assert user.formats == set(FORMATS)
    assert native.memory == "host"
    assert native.features == {"groups", "history", "recreate", "path", "timing"}


def grid(n, names, counts, shifts):
    """Every collective, in place and not, over counts and shifts, on exact data."""
    for name in names:
        for collective in COLLECTIVES:
            for count in counts:
                length = count * n if collective == "reduce_scatter" else count
                send = exact_data(FORMATS[name], n, length)
                for send_shift, recv_shift in shifts:
                    for in_place in (False, True):
                        where = {"send_shift": send_shift, "recv_shift": recv_shift, "in_place": in_place}
                        yield row(collective, name, count, send, root=n - 1, **where)


def check_exact(call, ranks):
    """Every receiver has the sum, nobody else has anything, and no byte changed outside the receive ranges."""
    n, fmt = len(ranks), FORMATS[call["format"]]
    members = call.get("group") or list(range(n))
    whole = [
        sum_reference(fmt, [call["send"][rank][i] for rank in members], "ties_to_even")
        for i in range(min(2, len(call["send"][0])))
    ]
    receivers = [members[call["root"]]] if call["collective"] == "reduce" else members
    for rank, seen in enumerate(ranks):
        assert seen["error"] == ""
        assert seen["outside"] == 0, (call, rank)
        if rank in receivers:
            start = members.index(rank) * call["count"] if call["collective"] == "reduce_scatter" else 0
            assert seen["recv"] == [whole[(start + i) % 2] for i in range(call["count"])], (call, rank)


@mpi
@pytest.mark.parametrize("n", [3, 4])
def test_every_collective_count_shift_and_place(tmp_path, n):
    calls = list(grid(n, NATIVE, [0, 1, 3], [(0, 0), (1, 3), (4, 4)]))
    calls += list(grid(n, ["bfloat16", "binary32"], [1021], [(0, 0), (3, 1)]))
    seen = drive(tmp_path, n, calls)
    for call, ranks in zip(calls, seen["calls"], strict=True):
        check_exact(call, ranks)
        assert {rank["path"] for rank in ranks} == {
            f"{seen['describe']['library_version']}/{call['collective']}/default"
        }
        assert all(0 < rank["seconds"] < 60 for rank in ranks)
    assert seen["gathered"] == [*["", "x", "xx", "xxx"][:n], "from 1"]
    assert len(seen["describe"]["hosts"].split()) == n
    assert all(isinstance(value, str | int | bool) for value in seen["describe"].values())


@mpi
def test_groups_roots_history_and_recreate(tmp_path):
    send = exact_data(FORMATS["bfloat16"], 4, 3)
    shares = exact_data(FORMATS["bfloat16"], 4, 6)
    calls = [row("reduce", "bfloat16", 3, send, root=root, in_place=root % 2 == 1) for root in range(4)]
    for group in ([3, 1], [0, 2, 3], [2]):
        calls.append(row("all_reduce", "bfloat16", 3, send, group=group, root=0))
        calls.append(row("reduce", "bfloat16", 3, send, group=group, root=len(group) - 1))
    calls.append(row("reduce_scatter", "bfloat16", 3, shares, group=[3, 1], root=0))
    calls.append(row("reduce_scatter", "bfloat16", 3, shares, group=[3, 1], root=0, in_place=True))
    for before in ([["perturb", 3]], [["recreate"]], [["perturb", 1], ["recreate"]], [["perturb", 0]]):
        calls.append(row("all_reduce", "bfloat16", 3, send, root=0, before=before))
        calls.append(row("all_reduce", "bfloat16", 3, send, root=0, group=[3, 1]))
    for call, ranks in zip(calls, drive(tmp_path, 4, calls)["calls"], strict=True):
        check_exact(call, ranks)


def tie_pairs(fmt):
    """1 + half an ulp, 1 + 1.5 ulp, and both negated, between ranks 0 and 1; the others send +0."""
    one, half = fmt.power_of_two(0), fmt.power_of_two(-fmt.precision)
    left = [one, one + 1, one | fmt.sign_mask, (one + 1) | fmt.sign_mask]
    return [left, [half, half, half | fmt.sign_mask, half | fmt.sign_mask], [0] * 4, [0] * 4]


def tie_results(fmt, send, mode):
    return [sum_reference(fmt, [left, right], mode) for left, right in zip(*send[:2], strict=True)]


@mpi
def test_native_sums_of_mpich_bfloat16_ties_away_binary16_ties_to_even(tmp_path):
    calls = [row("all_reduce", name, 4, tie_pairs(FORMATS[name])) for name in NATIVE]
    seen = drive(tmp_path, 4, calls)
    if not seen["describe"]["library_version"].startswith("MPICH 5.0."):
        pytest.skip("another library")
    assert seen["calls"][3][0]["recv"][0] == 0x3F81  # 1 + 2**-8; the even neighbour is 0x3f80
    for call, ranks in zip(calls, seen["calls"], strict=True):
        fmt = FORMATS[call["format"]]
        mode = "ties_to_away" if fmt.name == "bfloat16" else "ties_to_even"
        assert [rank["recv"] for rank in ranks] == [tie_results(fmt, call["send"], mode)] * 4, fmt.name


@mpi
def test_min_max_and_the_type_that_mpich_cannot(tmp_path):
    calls = [
        {**row("all_reduce", name, 1, [[FORMATS[name].power_of_two(e)] for e in (2, 0, 3, 1)]), "op": op}
        for name in NATIVE
        for op in ("min", "max")
    ]
    seen = drive(tmp_path, 4, calls)
    for call, ranks in zip(calls, seen["calls"], strict=True):
        expected = FORMATS[call["format"]].power_of_two(0 if call["op"] == "min" else 3)
        if call["format"] == "bfloat16" and seen["describe"]["library_version"].startswith("MPICH"):
            assert all(rank["error"].startswith("Unsupported: MPICH") for rank in ranks)
        else:
            assert [rank["recv"] for rank in ranks] == [[expected]] * 4


@mpi
@pytest.mark.parametrize("count", [3, 1021])
def test_ring_sums_in_an_order_that_rotates_with_the_chunk(tmp_path, count):
    calls = [row("all_reduce", name, count, near_data(FORMATS[name], 4, count)) for name in ("bfloat16", "binary16")]
    shares = near_data(FORMATS["binary16"], 4, 4 * count)
    calls.append(row("reduce_scatter", "binary16", count, shares))
    seen = drive(tmp_path, 4, calls, **RING)["calls"]
    for call, ranks, mode in zip(calls, seen, ("ties_to_away", "ties_to_even"), strict=False):
        expected = ring_sums(FORMATS[call["format"]], call["send"], mode)
        assert [rank["recv"] for rank in ranks] == [expected] * 4
        assert ranks[0]["path"].endswith("/all_reduce/ring")
    if count > 100:
        plain = sums_along(recursive_doubling(4), FORMATS["bfloat16"], calls[0]["send"], "ties_to_away")
        assert seen[0][0]["recv"] != plain  # the data tell the two orders apart
    for rank, looked in enumerate(seen[2]):  # pairwise: the own term first, then the ranks below it
        order = [(rank - step) % 4 for step in range(4)]
        part = slice(rank * count, (rank + 1) * count)
        assert looked["recv"] == sums_along(chain(order), FORMATS["binary16"], shares, "ties_to_even", part)
        assert looked["path"].endswith("/reduce_scatter/pairwise")


@mpi
@pytest.mark.parametrize("n", [3, 4])
def test_recursive_doubling_sums_pairs_of_pairs(tmp_path, n):
    calls = [row("all_reduce", name, 1021, near_data(FORMATS[name], n, 1021)) for name in ("bfloat16", "binary32")]
    for call, ranks in zip(calls, drive(tmp_path, n, calls, **DOUBLING)["calls"], strict=True):
        mode = "ties_to_away" if call["format"] == "bfloat16" else "ties_to_even"
        expected = sums_along(recursive_doubling(n), FORMATS[call["format"]], call["send"], mode)
        assert [rank["recv"] for rank in ranks] == [expected] * n
        assert ranks[0]["path"].endswith("/all_reduce/recursive_doubling")


@mpi
@pytest.mark.parametrize("rounding", ["toward_zero", "toward_positive", "ties_to_even"])
def test_a_planted_rounding_travels_through_the_ring_in_every_format(tmp_path, rounding):
    calls = [row("all_reduce", name, 101, near_data(fmt, 4, 101)) for name, fmt in FORMATS.items()]
    calls += [row("all_reduce", name, 4, tie_pairs(fmt), in_place=True) for name, fmt in FORMATS.items()]
    seen = drive(tmp_path, 4, calls, {"op": "user", "rounding": rounding}, **RING)
    assert seen["describe"]["rounding"] == rounding
    for call, ranks in zip(calls, seen["calls"], strict=True):
        expected = ring_sums(FORMATS[call["format"]], call["send"], rounding)
        assert [rank["recv"] for rank in ranks] == [expected] * 4, call["format"]


@mpi
def test_planted_stochastic_is_the_same_on_every_rank_and_repeat(tmp_path):
    fmt = FORMATS["bfloat16"]
    call = row("all_reduce", "bfloat16", 101, near_data(fmt, 4, 101))
    seen = drive(tmp_path, 4, [call, call], {"op": "user", "rounding": "stochastic", "seed": 3}, **DOUBLING)
    results = [rank["recv"] for ranks in seen["calls"] for rank in ranks]
    assert results == [results[0]] * 8
    assert results[0] not in [
        sums_along(recursive_doubling(4), fmt, call["send"], mode) for mode in ("ties_to_even", "toward_zero")
    ]
    assert seen["describe"]["seed"] == 3


@mpi
def test_a_user_op_that_may_not_be_swapped_keeps_rank_order(tmp_path):
    fmt = FORMATS["bfloat16"]
    call = row("reduce_scatter", "bfloat16", 101, near_data(fmt, 4, 404))
    seen = drive(tmp_path, 4, [call], {"op": "user", "commute": False})
    assert seen["describe"]["commute"] is False
    for rank, looked in enumerate(seen["calls"][0]):
        part = slice(rank * 101, (rank + 1) * 101)
        assert looked["recv"] == sums_along(recursive_doubling(4), fmt, call["send"], "ties_to_even", part)


@mpi
def test_a_status_of_the_library_is_a_backend_error_in_its_words(tmp_path):
    """Rabenseifner's reduce cannot cut 1 element among 4 ranks; MPICH is told not to fall back."""
    asked = {"MPIR_CVAR_REDUCE_INTRA_ALGORITHM": "reduce_scatter_gather", "MPIR_CVAR_COLLECTIVE_FALLBACK": "error"}
    send = exact_data(FORMATS["binary32"], 4, 1)
    seen = drive(
        tmp_path, 4, [row("reduce", "binary32", 1, send), row("all_reduce", "binary32", 1, send, root=0)], **asked
    )
    for rank in seen["calls"][0]:
        assert rank["error"].startswith("BackendError: MPICH 5")
        assert "MPI_Reduce" in rank["error"]
        assert "\n" not in rank["error"]
    check_exact(row("all_reduce", "binary32", 1, send, root=0), seen["calls"][1])


@mpi
def test_a_failure_inside_the_user_op_hangs_nobody(tmp_path):
    fmt = FORMATS["bfloat16"]
    call = row("all_reduce", "bfloat16", 4, exact_data(fmt, 4, 4))
    seen = drive(tmp_path, 4, [call], {"op": "user"}, fail_on_rank=1, **DOUBLING)["calls"][0]
    assert seen[1]["error"] == "BackendError: user op failed on rank 1: MemoryError: no room for the sum"
    assert [rank["error"] for rank in seen if rank is not seen[1]] == [""] * 3
    assert seen[0]["recv"] in ([fmt.nan_code] * 4, [fmt.power_of_two(0)] * 4) or set(seen[0]["recv"]) <= {
        0x4170,
        0x41F0,
    }
