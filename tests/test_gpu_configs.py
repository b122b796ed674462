"""The shipped GPU configs: they load, every arm is planned, and what needs multicast is waived where one switch is set."""

from pathlib import Path

import pytest

from auditor.backends import nvshmem
from auditor.backends.nccl_options import TYPES, check_options
from auditor.config import load
from auditor.model import COLLECTIVES, OPS, Capabilities
from auditor.plan import build

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = ("nccl", "nvshmem", "evidence_nccl", "evidence_nvshmem")
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
@pytest.mark.parametrize("name", ["evidence_nccl", "evidence_nvshmem"])
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
        assert arm.backend == name.removeprefix("evidence_")
        assert offer(arm).collectives
    full, small = load(CONFIGS / f"{arm.backend}.toml"), load(CONFIGS / f"evidence_{arm.backend}.toml")
    assert [one.name for one in full.arms] == [one.name for one in small.arms]
    assert [(one.env, one.path) for one in full.arms] == [(one.env, one.path) for one in small.arms]
