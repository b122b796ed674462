"""The shipped GPU configs: they load, every arm is planned, and what needs multicast is waived where one switch is set."""

from pathlib import Path

import pytest

from auditor.backends import nvshmem
from auditor.backends.nccl_options import SHARED_GPU_FROM, TYPES, check_options, check_sharing
from auditor.config import load
from auditor.model import COLLECTIVES, OPS, Capabilities
from auditor.plan import build

CONFIGS = Path(__file__).parents[1] / "configs"
FULL = ("nccl", "nccl_one_gpu", "nvshmem", "nvshmem_one_gpu")
NAMES = (*FULL, *(f"evidence_{name}" for name in FULL))
SHARING = [*(name for name in NAMES if name.endswith("one_gpu")), "evidence_neighbours_one_gpu"]
SWITCHES = ({"NCCL_NVLS_ENABLE": "0"}, {"NVSHMEM_DISABLE_NVLS": "1"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"})


def offer(arm):
    """What the arm's backend offers on two GPUs."""
    if arm.backend == "nccl":
        offered = check_options(arm.options)["collectives"]
        features = frozenset({"groups", "history", "recreate", "path"})
        return Capabilities(
            collectives=frozenset(offered),
            ops=frozenset(OPS),
            formats=frozenset(TYPES),
            memory="cuda",
            features=features,
        )
    nvshmem.check_options(arm.options)
    return Capabilities(
        collectives=frozenset(nvshmem.COLLECTIVES),
        ops=frozenset(nvshmem.OPERATIONS),
        formats=frozenset(nvshmem.TYPES),
        memory="cuda",
        features=frozenset({"groups", "history"}),
    )


@pytest.mark.parametrize("environ", SWITCHES)
@pytest.mark.parametrize("name", [f"evidence_{name}" for name in FULL])
def test_only_the_switchs_arms_are_waived(name, environ):
    config = load(CONFIGS / f"{name}.toml")
    plan = build(config, {arm.name: offer(arm) for arm in config.arms}, environ=environ)
    assert {arm.name for arm in plan.arms if arm.status == "waived"} == {"nvls"}
    for arm in plan.arms:
        assert bool(arm.trials) is (arm.status == "ok")
        assert {planned.trial.call.collective for planned in arm.trials} <= set(COLLECTIVES)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_a_config_is_of_its_backend_with_known_options(name):
    config = load(CONFIGS / f"{name}.toml")
    for arm in config.arms:
        assert name.removeprefix("evidence_").startswith(arm.backend)
        assert offer(arm).collectives
    plain = name.removeprefix("evidence_")
    full, small = load(CONFIGS / f"{plain}.toml"), load(CONFIGS / f"evidence_{plain}.toml")
    assert len(small.arms) >= 4
    for one in small.arms:
        assert one == full.arm(one.name)


@pytest.mark.parametrize("name", SHARING)
def test_up_to_eight_ranks_share_a_gpu_where_the_config_says_so(name):
    """A device number for each of eight ranks, all the same, and what each library wants before it lets them share."""
    for arm in load(CONFIGS / f"{name}.toml").arms:
        assert offer(arm).collectives
        assert arm.options["devices"] == [0] * 8
        assert 2 <= arm.ranks <= 8
        if arm.backend == "nccl" and arm.name != "nvls":
            check_sharing(SHARED_GPU_FROM, arm.ranks, arm.env)
        if arm.backend == "nvshmem":
            assert 8 * int(arm.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) <= 100
