"""torch's nccl process group and symmetric memory on real GPUs, as many as there are; skipped where they are missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from gpus import GPU_N, needs_gpu, needs_two
from spawned_kit import conform

from auditor.backends.torch import TorchBackend

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, in an environment of its own"),
]
NCCL = {"process_group": "nccl"}


def test_what_is_offered():
    offer = TorchBackend.probe(NCCL)
    assert (offer.memory, offer.rank_n_max) == ("cuda", GPU_N)


def test_the_kit_on_one_gpu():
    assert conform("auditor.backends.torch:TorchBackend", NCCL, 1) == []


@needs_two
def test_the_kit_on_all_gpus():
    assert conform("auditor.backends.torch:TorchBackend", NCCL, GPU_N) == []


@needs_two
@pytest.mark.parametrize("operation", ["one_shot_all_reduce", "two_shot_all_reduce_"])
def test_symmetric_memory_without_the_switch(operation):
    """The kit's odd counts are refused by these operations, in torch's own words; nothing else may be said."""
    lines = conform(
        "auditor.backends.torch:TorchBackend", {**NCCL, "operation": operation}, GPU_N, "probe", "arrays", "calls"
    )
    assert all("raised Unsupported: torch: " in line for line in lines), lines
