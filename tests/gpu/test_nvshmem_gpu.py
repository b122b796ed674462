"""NVSHMEM on real GPUs: each test in processes of its own, since the library starts once a process and may end it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from gpus import GPU_N, conform, needs_gpu, needs_two

from auditor.backends.nvshmem import Nvshmem
from auditor.errors import Unavailable

SPEC = "auditor.backends.nvshmem:Nvshmem"
pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    pytest.mark.skipif(find_spec("nvshmem") is None, reason="needs nvshmem4py"),
]


@pytest.mark.parametrize("team", ["world", "split"])
def test_one_pe_keeps_the_contract(team):
    assert conform(SPEC, {"team": team}) == []


@needs_two
@pytest.mark.parametrize("team", ["world", "split"])
def test_several_pes_keep_the_contract(team):
    """But for reduce_scatter in place, which NVSHMEM's rules do not allow."""
    lines = conform(SPEC, {"team": team}, "calls", "arrays", "features", "lifecycle", ranks=GPU_N)
    assert [line for line in lines if "reduce_scatter" not in line or "in place" not in line] == []


@needs_two
def test_groups_of_pes_keep_the_contract():
    lines = conform(SPEC, {}, "groups", ranks=GPU_N)
    assert [line for line in lines if "in place" not in line] == []


def test_block_scope_is_refused_with_the_reason():
    with pytest.raises(Unavailable, match="block"):
        Nvshmem.probe({"scope": "block"})
