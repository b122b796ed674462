"""The shipped multimem configs: known options, loads in every arm that can run, and the switch's arms waived or not permitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.backends.multimem_options import check_options, offered_formats, permit
from auditor.config import load
from auditor.errors import Unavailable
from auditor.model import COLLECTIVES, Capabilities
from auditor.multicast import MULTICAST_OFF
from auditor.plan import build

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*multimem*.toml"))


def offer(arm):
    options = check_options(arm.options)
    return Capabilities(
        collectives=frozenset(COLLECTIVES),
        ops=frozenset({"sum"}),
        formats=offered_formats(options, 9),
        in_place=options["algorithm"] == "two_shot",
        memory="cuda",
        features=frozenset({"queue", "timing", "path", "groups"}),
    )


def through_the_switch(arm):
    return check_options(arm.options)["provider"] != "unicast"


def test_they_are_here():
    assert NAMES == ["evidence_multimem", "multimem", "multimem_one_gpu", "multimem_switch"]


@pytest.mark.parametrize("switch", MULTICAST_OFF)
@pytest.mark.parametrize("name", NAMES)
def test_the_switchs_arms_alone_are_waived(name, switch):
    config = load(CONFIGS / f"{name}.toml", overrides=("sweep.count=[7]", "sweep.shift=[1]", 'probes.run=["coverage"]'))
    plan = build(config, {arm.name: offer(arm) for arm in config.arms}, environ={switch: MULTICAST_OFF[switch]})
    wanted = {arm.name for arm in config.arms if through_the_switch(arm)}
    assert {arm.name for arm in plan.arms if arm.status == "waived"} == wanted
    assert all(switch in arm.reason for arm in plan.arms if arm.name in wanted)
    assert all(arm.trials for arm in plan.arms if arm.name not in wanted)


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_arm_permits_multicast_by_itself(name):
    for arm in load(CONFIGS / f"{name}.toml").arms:
        if through_the_switch(arm):
            with pytest.raises(Unavailable, match="NVSwitch fabric"):
                permit(check_options(arm.options), {})
            assert arm.path == f"MULTIMEM({arm.options['provider']})"
        else:
            permit(check_options(arm.options), {})
            assert arm.path == "UNICAST/"


def test_the_evidence_is_the_full_config_made_small():
    full, small = load(CONFIGS / "multimem_one_gpu.toml"), load(CONFIGS / "evidence_multimem.toml")
    assert full.arms == small.arms
    assert set(range(1, 18)) | {(1 << 20) + 3} == set(full.sweep.count)
    assert set(range(1, 18)) < set(small.sweep.count)
    assert {send for send, _ in small.sweep.shift} == set(range(9))
    assert max(small.sweep.count) < 1 << 12
