"""Several ranks of NCCL on one GPU, each test in processes of its own: NCCL reads its variables once a process.

Skipped where the library is older than 2.30, which refuses it; that refusal is tested then.
"""

from __future__ import annotations

import json

import pytest
from gpus import GPU_N, conform, needs_gpu, run_program

from auditor.backends.nccl import Nccl
from auditor.backends.nccl_options import SHARED_GPU, SHARED_GPU_FROM, load_nccl
from auditor.errors import Unavailable

pytestmark = [pytest.mark.gpu, needs_gpu]
SPEC, ONE = "auditor.backends.nccl:Nccl", "auditor.backends.nccl:NcclOne"


def version():
    if not GPU_N:
        return 0
    import cupy

    return load_nccl(cupy).get_version()


VERSION = version()
needs_sharing = pytest.mark.skipif(VERSION < SHARED_GPU_FROM, reason=f"needs NCCL 2.30 or later, this is {VERSION}")
RING, TREE = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}


def on_one_gpu(ranks, spec=SPEC, env=None, **options):
    """The kit's lines for this many ranks on GPU 0, but for averages of 8-bit formats, which NCCL refuses in words."""
    chosen = {"devices": [0] * ranks, **options}
    words = (f"RANKS={ranks}",) if spec == SPEC else ()
    under = 0 if spec == SPEC else ranks
    lines = conform(spec, chosen, *words, ranks=under, env={SHARED_GPU: "1", **(env or {})})
    return [line for line in lines if "avg float8" not in line and " more" not in line]


@needs_sharing
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_of_one_process_keep_the_contract(ranks):
    assert on_one_gpu(ranks) == []


@needs_sharing
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("algorithm", [RING, TREE], ids=["ring", "tree"])
def test_every_path_of_three_ranks_keeps_the_contract(algorithm, protocol):
    offered = {"collectives": ["all_reduce"]} if algorithm is TREE else {}
    assert on_one_gpu(3, env={**algorithm, "NCCL_PROTO": protocol}, **offered) == []


@needs_sharing
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_process_each_keep_the_contract(ranks):
    """Without CUDA's Multi-Process Service they take turns on the GPU, and this is slow."""
    assert on_one_gpu(ranks, spec=ONE) == []


@needs_sharing
@pytest.mark.parametrize(
    ("env", "start"),
    [({**RING, "NCCL_PROTO": "LL"}, "RING/LL/"), ({**TREE, "NCCL_PROTO": "Simple"}, "TREE/SIMPLE/")],
)
def test_four_ranks_take_the_path_asked_for_and_agree(env, start):
    done = run_program("share_one_gpu.py", "4", env={SHARED_GPU: "1", **env})
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])  # NCCL may say its version first
    assert said["path"].startswith(start)
    assert said["ranks_per_gpu"] == 4
    assert said["outputs_differ"] == 0
    assert said["further_than_bound"] == 0


def test_without_the_variable_it_is_unavailable_with_a_remedy(monkeypatch):
    """On every release: by its age, or by the missing variable."""
    monkeypatch.delenv(SHARED_GPU, raising=False)
    with pytest.raises(Unavailable, match="2 ranks are to share a GPU") as caught:
        Nccl.probe({"devices": [0, 0]})
    assert ("2.30" if VERSION < SHARED_GPU_FROM else SHARED_GPU) in caught.value.remedy
