"""Arenas on a real GPU through the harness: what the emulated tests show, with CuPy's own arrays, streams and copies."""

from __future__ import annotations

import numpy as np
import pytest
import test_memory
from gpus import needs_gpu

from auditor.kernels.memory import Look, adopt, agree
from auditor.layout import PERIOD, Background

pytestmark = [pytest.mark.gpu, needs_gpu]


def allocate(nbytes):
    """Device memory whose first byte is 512-byte aligned."""
    import cupy

    whole = cupy.zeros(nbytes + 512, np.uint8)
    start = -int(whole.data.ptr) % 512
    return whole[start : start + nbytes]


def test_many_looks_are_answered_at_once():
    arenas = [adopt(allocate(test_memory.N), Background(1, name).bytes(0, 2 * PERIOD)) for name in ("send", "recv")]
    for arena in arenas:
        arena.restore(0, test_memory.N)
    first, second = arenas
    kept = first.take(513, 5000)
    first.fill(600, 1, int(first.host(kept)[87]) ^ 0xFF, 1)
    looks = [Look(first, 0, 87, 513, kept), Look(first, 87, 88, 600, kept), Look(second, 0, test_memory.N)]
    looks += [Look(first, 0, 600), Look(first, 600, 601), Look(first, 40, 40, 9, kept), Look(first, 601, 1 << 40)]
    assert agree(looks) == [True, False, True, True, False, True, True]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3001])
def test_a_clean_subject_is_seen_as_clean(count, in_place):
    found = test_memory.drive(allocate, lambda *_: None, count=count, in_place=in_place, inputs="alternate")
    assert [(row.send_before, row.send_after, row.outside_total) for row, _, _ in found] == [(True, True, 0)] * 3
    assert all(np.array_equal(output, want) for _, output, want in found)


def test_what_is_harmed_is_seen():
    test_memory.test_the_harness_sees_what_is_harmed(allocate)
