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


BLOCK = ("probe", "arrays", "calls", "features", "refusal", "lifecycle")


def block_is_buildable():
    try:
        Nvshmem.probe({"scope": "block"})
    except Unavailable:
        return False
    return True


def test_block_scope_keeps_the_contract_on_one_pe():
    """The first time this compiles for a minute."""
    if not block_is_buildable():
        pytest.skip("the headers that the block kernels need are not here")
    assert conform(SPEC, {"scope": "block"}, *BLOCK) == []


@needs_two
def test_block_scope_keeps_the_contract_on_several_pes():
    if not block_is_buildable():
        pytest.skip("the headers that the block kernels need are not here")
    lines = conform(SPEC, {"scope": "block"}, "calls", ranks=GPU_N)
    assert [line for line in lines if "reduce_scatter" not in line or "in place" not in line] == []
