"""plan: each trial once and in order, a reason for everything left out, and a file that tells when it was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auditor.config import ArmSpec, Config, Scope, Sweep
from auditor.errors import ConfigError, EvidenceError, Unavailable
from auditor.model import COLLECTIVES, FEATURES, OPS, Capabilities, Family, Trial
from auditor.numerics.formats import FORMATS
from auditor.plan import ArmPlan, Plan, build, machine_memory, multicast_waiver, output_bytes, size, summary

GIB = 1 << 30
ALL = Capabilities(
    collectives=frozenset(COLLECTIVES), ops=frozenset(OPS), formats=frozenset(FORMATS), features=frozenset(FEATURES)
)
SWITCHES = ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST")


def arm(name: str = "a", ranks: int = 2, **more: Any) -> ArmSpec:
    return ArmSpec(**{"name": name, "backend": "mpi", "ranks": ranks, **more})


def config(*arms: ArmSpec, probes: tuple[str, ...] = ("all",), **axes: Any) -> Config:
    sweep = Sweep(**{"format": ("bfloat16",), "count": (4, 1), "shift": ((0, 0),), "repeats": 3, **axes})
    return Config(title="t", arms=arms or (arm(),), sweep=sweep, probes=probes, source="c.toml")


def points(scope: Scope) -> Iterator[tuple[Trial, int]]:
    for trial in scope.points():
        yield trial, scope.sweep.repeats


def variants(*names: str) -> Any:
    def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
        for trial in scope.points():
            yield from ((trial.with_(variant=name), 2) for name in names)

    return plan


def planned(cfg: Config, probes: dict[str, Any] | None = None, offer: Any = ALL, **more: Any) -> Plan:
    offers = {one.name: offer for one in cfg.arms}
    return build(cfg, offers, probes=probes or {"coverage": points}, environ={}, **{"memory": 64 * GIB, **more})


def test_a_trial_that_two_probes_ask_for_runs_once_with_the_larger_repeat_count() -> None:
    def more(scope: Scope) -> Iterator[tuple[Trial, int]]:
        yield from ((trial, 9) for trial in scope.points() if trial.call.count == 4)

    (one,) = planned(config(), {"coverage": points, "repeatability": more}).arms
    assert [(p.trial.call.count, p.repeats, p.probes) for p in one.trials] == [
        (1, 3, ("coverage",)),
        (4, 9, ("coverage", "repeatability")),
    ]


def test_order_is_by_cell_then_count_with_fresh_processes_last() -> None:
    cfg = config(collective=("reduce", "all_reduce"), format=("bfloat16", "binary32"))
    (one,) = planned(cfg, {"repeatability": variants("fresh:3", "history:1", "plain")}).arms
    seen = [(p.trial.variant, p.trial.call.collective, p.trial.call.format, p.trial.call.count) for p in one.trials]
    assert seen[:4] == [
        ("plain", "all_reduce", "binary32", 1),
        ("history:1", "all_reduce", "binary32", 1),
        ("plain", "all_reduce", "binary32", 4),
        ("history:1", "all_reduce", "binary32", 4),
    ]
    fresh = [variant.startswith("fresh") for variant, *_ in seen]
    assert fresh == sorted(fresh)
    assert sum(fresh) == len(seen) // 3
    cells = [seen[i][1:] for i in range(len(seen)) if not fresh[i]]
    assert [c for i, c in enumerate(cells) if c not in cells[:i]] == list(dict.fromkeys(cells))


def test_excluded_axes_are_waived_once_with_their_values() -> None:
    narrow = Capabilities.from_json({**ALL.to_json(), "formats": ["binary32"], "in_place": False})
    cfg = config(format=("binary32", "bfloat16", "float8_e5m2"), in_place=(False, True))
    (one,) = planned(cfg, offer=narrow).arms
    assert [(w.reason, dict(w.scope)) for w in one.waivers] == [
        ("mpi does not reduce in place", {"in_place": True}),
        ("mpi does not offer format bfloat16", {"format": "bfloat16"}),
        ("mpi does not offer format float8_e5m2", {"format": "float8_e5m2"}),
    ]
    assert {p.trial.call.format for p in one.trials} == {"binary32"}


def test_misaligned_shifts_become_one_waiver() -> None:
    aligned = Capabilities.from_json({**ALL.to_json(), "element_alignment": 4})
    (one,) = planned(config(shift=((0, 0), (1, 1), (2, 2), (3, 3))), offer=aligned).arms
    assert [(w.reason, dict(w.scope)) for w in one.waivers] == [
        ("mpi needs ranges that begin at multiples of 4 bytes", {"format": "bfloat16", "send_shift": [1, 3]})
    ]


def test_an_arm_with_nothing_left_is_waived_with_the_reason() -> None:
    few = Capabilities.from_json({**ALL.to_json(), "rank_n_max": 2})
    (one,) = planned(config(arm(ranks=4)), offer=few).arms
    assert (one.status, one.reason, one.trials) == ("waived", "mpi takes 1 to 2 ranks", ())


def test_a_group_that_one_arm_cannot_hold_is_waived_there() -> None:
    cfg = config(arm("a", 2), arm("b", 4), group=(None, (0, 3)))
    small, large = planned(cfg).arms
    assert [w.reason for w in small.waivers] == ["the arm has 2 ranks"]
    assert large.waivers == ()
    assert {p.trial.call.group for p in large.trials} == {None, (0, 3)}


def test_fresh_processes_need_to_be_ours_to_start() -> None:
    probes = {"repeatability": variants("plain", "fresh:2")}
    (ours,) = planned(config(), probes).arms
    assert {p.trial.variant for p in ours.trials} == {"plain", "fresh:2"}
    (theirs,) = planned(config(), probes, launcher="mpiexec").arms
    assert {p.trial.variant for p in theirs.trials} == {"plain"}
    (waiver,) = theirs.waivers
    assert waiver.reason.startswith("started under mpiexec: an MPI cannot be started twice")
    assert waiver.scope == {"variant": "fresh:2", "probe": "repeatability"}


@pytest.mark.parametrize(
    ("variant", "feature"),
    [
        *(("registered", "registration"), ("graph", "graph"), ("history:2", "history")),
        *(("recreate:1", "recreate"), ("queued", "queue")),
    ],
)
def test_a_variant_needs_its_feature(variant: str, feature: str) -> None:
    less = Capabilities.from_json({**ALL.to_json(), "features": sorted(set(FEATURES) - {feature})})
    (one,) = planned(config(), {"p": variants("plain", variant)}, offer=less).arms
    assert {p.trial.variant for p in one.trials} == {"plain"}
    assert [w.reason for w in one.waivers] == [f"the backend does not have the feature {feature}"]
    (whole,) = planned(config(), {"p": variants("plain", variant)}).arms
    assert variant in {p.trial.variant for p in whole.trials}


def test_a_trial_that_does_not_fit_the_memory_is_waived() -> None:
    (one,) = planned(config(count=(1, 1 << 30)), memory=16 * GIB).arms
    assert [p.trial.call.count for p in one.trials] == [1]
    (waiver,) = one.waivers
    assert waiver.reason.startswith("the arenas would take 8.0 GiB, more than 20% of this machine's 16.0 GiB")
    assert waiver.scope["count"] == 1 << 30
    # one of the two ranks lives elsewhere, twice the memory: fits
    (one,) = planned(config(count=(1, 1 << 30)), memory=32 * GIB, local_n=1).arms
    assert len(one.trials) == 2


def test_a_count_beyond_every_machine_is_waived_not_an_overflow() -> None:
    (one,) = planned(config(count=(1 << 48,))).arms
    assert one.status == "waived"
    assert "TiB" in one.reason


def test_machine_memory_is_plausible() -> None:
    assert 256 << 20 < machine_memory() < 1 << 50


def test_a_probe_that_does_not_exist_yet_is_waived_when_asked_for_by_name() -> None:
    (one,) = planned(config(probes=("coverage", "accumulator")), {"coverage": points, "tail": points}).arms
    assert [(w.reason, w.kind, dict(w.scope)) for w in one.waivers] == [
        ("the probe accumulator is not part of this version", "unsupported", {"probe": "accumulator"})
    ]
    assert {name for p in one.trials for name in p.probes} == {"coverage"}
    (every,) = planned(config(), {"coverage": points}).arms
    assert every.waivers == ()


def test_a_family_that_nothing_can_take_is_a_config_error() -> None:
    cfg = config(family=(Family("nosuch"), Family.parse("order_exact:nosuch=1")))
    with pytest.raises(ConfigError) as caught:
        planned(cfg)
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert lines[0].startswith('c.toml: sweep.family[0] = "nosuch" cannot be used: ')
    assert lines[1].startswith('c.toml: sweep.family[1] = "order_exact:nosuch=1" cannot be used: ')


def test_a_family_that_one_format_refuses_is_waived_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(family: Family, fmt: Any, rank_n: int) -> None:
        if fmt.name == "binary16":
            raise ConfigError(f"{family} breaks its promise in {fmt.name}")

    monkeypatch.setattr("auditor.inputs.check", check)
    (one,) = planned(config(format=("bfloat16", "binary16"), family=(Family("order_exact"),))).arms
    assert {p.trial.call.format for p in one.trials} == {"bfloat16"}
    assert [w.reason for w in one.waivers] == ["rank_coded breaks its promise in binary16"]


def test_arms_that_are_not_here_or_were_not_asked() -> None:
    cfg = config(arm("a"), arm("b"), arm("c"))
    offers = {"a": ALL, "b": Unavailable("no libnccl", "pip install nvidia-nccl-cu13")}
    a, b, c = build(cfg, offers, probes={"coverage": points}, environ={}, memory=GIB).arms
    assert a.status == "ok"
    assert (b.status, b.reason) == ("unavailable", "no libnccl; pip install nvidia-nccl-cu13")
    assert (c.status, c.trials) == ("not_run", ())


# ---------------------------------------------------------------------------------------------------- multicast safety


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(
    "needing",
    [
        *({"backend": "multimem"}, {"backend": "my.multimem:Klass"}, {"path": "NVLS"}, {"path": "AllReduce_RSxLDMC"}),
        {"backend": "multimem", "options": {"provider": "nccl"}},
        {"backend": "my.multimem:Klass", "options": {"provider": "unicast"}},
        {"backend": "multimem", "options": {"provider": "unicast", "allow_multicast": True}},
        *({"env": {"NCCL_ALGO": "NVLSTree"}}, {"options": {"algorithm": ["nvls"]}}),
        *(
            {"options": {"allow_multicast": True}},
            {"env": {"NCCL_NVLS_ENABLE": "1"}},
            {"env": {"NCCL_NVLS_ENABLE": ""}},
        ),
        *({"env": {"NVSHMEM_DISABLE_NVLS": "0"}}, {"env": {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "no"}}),
    ],
)
def test_where_multicast_is_forbidden_no_arm_brings_it_back(switch: str, needing: dict[str, Any]) -> None:
    off = {switch: "0" if switch == "NCCL_NVLS_ENABLE" else "1"}
    reason = multicast_waiver(arm(**needing), off)
    assert reason is not None
    assert reason.startswith(f"{switch}={off[switch]} is set here, and the arm")
    assert multicast_waiver(arm(**needing), {}) is None
    cfg = config(arm(**needing))
    offers = {"a": ALL}
    (one,) = build(cfg, offers, probes={"coverage": points}, environ=off, memory=GIB).arms
    assert (one.status, one.reason, one.trials) == ("waived", reason, ())


@pytest.mark.parametrize(
    "harmless",
    [
        *({}, {"path": "RING"}, {"env": {"NCCL_ALGO": "^NVLS"}}, {"env": {"NCCL_NVLS_ENABLE": "0"}}),
        {"env": {"NVSHMEM_DISABLE_NVLS": "true"}},
        {"backend": "multimem", "options": {"provider": "unicast"}},
    ],
)
def test_where_multicast_is_forbidden_other_arms_run(harmless: dict[str, Any]) -> None:
    assert multicast_waiver(arm(**harmless), {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}) is None


@pytest.mark.parametrize(
    ("environ", "forbidden"),
    [
        ({"NCCL_NVLS_ENABLE": "1"}, False),
        ({"NCCL_NVLS_ENABLE": ""}, False),
        ({"NCCL_NVLS_ENABLE": " 0 "}, True),
        ({"NCCL_NVLS_ENABLE": "0,"}, True),
        ({"NCCL_NVLS_ENABLE": "off"}, True),  # strtoll reads 0
        ({"NVSHMEM_DISABLE_NVLS": "0"}, False),
        ({"NVSHMEM_DISABLE_NVLS": "true"}, True),
        ({"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}, True),
        ({"TORCH_SYMM_MEM_DISABLE_MULTICAST": ""}, False),
    ],
)
def test_how_a_switch_is_read(environ: dict[str, str], forbidden: bool) -> None:
    assert (multicast_waiver(arm(backend="multimem"), environ) is not None) == forbidden


# ------------------------------------------------------------------------------------------------------------ plan.json


def test_the_file_has_the_shape_that_readers_expect() -> None:
    cfg = config(arm(env={"A": "1"}, path="RING", options={"k": 1}), format=("bfloat16", "binary16"))
    offer = Capabilities.from_json({**ALL.to_json(), "formats": ["bfloat16"]})
    raw = planned(cfg, offer=offer, run_id="r1").to_json()
    ids = {"run_id", "plan_id", "content_id"}
    assert set(raw) == ids | {"schema", "title", "config", "arguments", "sweep", "expect", "arms"}
    assert (raw["schema"], raw["run_id"], raw["config"]) == ("auditor-plan/1", "r1", "c.toml")
    (one,) = raw["arms"]
    assert set(one) == {
        *("name", "backend", "rank_n", "status", "reason", "describe", "options", "env", "path", "capabilities"),
        *("trials", "waivers"),
    }
    assert one["trials"][0]["trial_id"] == Trial.from_json(_trial_of(one["trials"][0])).trial_id
    assert one["trials"][0]["repeats"] == 3
    assert one["waivers"] == [
        {
            "arm": "a",
            "reason": "mpi does not offer format binary16",
            "kind": "unsupported",
            "scope": {"format": "binary16"},
        }
    ]
    json.dumps(raw, allow_nan=False)


def _trial_of(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in ("trial_id", "repeats", "probes")}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = planned(config(arm("a"), arm("b"), group=(None, (0, 1)), format=("bfloat16",)), run_id="r1")
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_how_an_arm_ended_is_noted(tmp_path: Path) -> None:
    plan = planned(config(arm("a"), arm("b"))).with_run_id("r2").with_status("b", "failed", "gone", {"version": "1"})
    assert [one.status for one in plan.arms] == ["ok", "failed"]
    assert (plan.arms[1].reason, plan.arms[1].describe, plan.run_id) == ("gone", {"version": "1"}, "r2")
    with pytest.raises(ValueError, match="'broken' is none of ok"):
        plan.with_status("a", "broken")


def test_plan_id_is_the_content_s_alone() -> None:
    plan = planned(config())
    same = planned(config(), run_id="other")
    ended = Plan.from_json({**same.to_json(), "config": "/elsewhere.toml"}).with_status("a", "failed", "x", {"v": 2})
    assert plan.plan_id == same.plan_id == ended.plan_id
    narrower = planned(config(), offer=None)
    assert narrower.plan_id == plan.plan_id  # an arm that does not run here is still the same config
    assert narrower.content_id != plan.content_id
    others = [planned(config(seed=(1,))), planned(config(repeats=4)), planned(config(arm(env={"A": "1"})))]
    assert len({plan.plan_id, *(other.plan_id for other in others)}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(schema="auditor-plan/2"), "schema 'auditor-plan/2' is not 'auditor-plan/1'"),
        (lambda raw: raw.pop("title"), "is damaged .KeyError: 'title'"),
        (lambda raw: raw["arms"][0]["trials"][0].update(count=77), "has the content of"),
        (lambda raw: raw["arms"][0]["trials"].pop(), "its content gives"),
        (lambda raw: raw.update(arms=3), "is damaged .TypeError"),
    ],
)
def test_a_file_that_was_changed_is_told(change: Any, message: str) -> None:
    raw = planned(config()).to_json()
    change(raw)
    with pytest.raises(EvidenceError, match=message):
        Plan.from_json(raw)


def test_a_missing_or_torn_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be read: No such file or directory; name a run directory"):
        Plan.load(tmp_path)
    (tmp_path / "plan.json").write_text('{"schema"')
    with pytest.raises(EvidenceError, match="is not JSON"):
        Plan.load(tmp_path)


# -------------------------------------------------------------------------------------------------------------- summary


def test_the_summary_says_what_each_probe_asked_for_and_what_is_waived() -> None:
    narrow = Capabilities.from_json({**ALL.to_json(), "formats": ["bfloat16"]})
    cfg = config(arm("a"), arm("b"), format=("bfloat16", "binary16"))
    probes = {"coverage": points, "repeatability": variants("plain", "fresh:2")}
    plan = build(cfg, {"a": narrow, "b": Unavailable("not here")}, probes=probes, environ={}, memory=GIB)
    assert summary(plan) == [
        f"t (plan {plan.plan_id})",
        "a: mpi, 2 ranks: 4 trials, 10 calls, at most 100 B of outputs",
        "  coverage       2 trials, 6 calls, at most 60 B of outputs",
        "  repeatability  4 trials, 10 calls, at most 100 B of outputs",
        "  fresh processes: the arm is started 2 more times",
        '  waived: mpi does not offer format binary16 (format "binary16")',
        "b: mpi, 2 ranks: unavailable: not here",
        "total: 4 trials, 10 calls, at most 100 B of outputs; 2 trials serve several probes and run once",
    ]


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1536, 3 << 30, 1 << 60)] == [
        *("0 B", "1023 B", "1.5 KiB", "3.0 GiB", "1048576.0 TiB")
    ]
    (one,) = planned(config(count=(5,))).arms
    assert output_bytes(one.trials[0]) == 3 * 2 * 5 * 2


def test_an_empty_arm_plan_round_trips() -> None:
    one = ArmPlan(name="a", backend="x", rank_n=1, status="unavailable", reason="r")
    assert ArmPlan.from_json(one.to_json()) == one


def test_a_probe_with_nothing_to_try_says_what_it_needs() -> None:
    from auditor.probes import neighbours

    (one,) = planned(
        config(), {"coverage": points, "neighbours": neighbours.plan, "other": lambda _scope: iter(())}
    ).arms
    reasons = {waiver.scope["probe"]: waiver.reason for waiver in one.waivers}
    assert reasons["neighbours"].startswith("the probe neighbours has nothing to try: it needs a sum over two ranks")
    assert reasons["other"] == "the probe other has nothing to try: at these ranks, counts and operations"
