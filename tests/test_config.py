"""config: every mistake named with its key path, overrides, and what Scope offers the probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.config import BUILT_IN, ArmSpec, Config, Scope, Sweep, load
from auditor.errors import ConfigError
from auditor.model import COLLECTIVES, OPS, Capabilities, Family
from auditor.numerics.formats import FORMATS

ARM = '[[arm]]\nname = "a"\nbackend = "mpi"\nranks = 4\n'
ALL = Capabilities(
    collectives=frozenset(COLLECTIVES), ops=frozenset(OPS), formats=frozenset(FORMATS), features=frozenset({"groups"})
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(tmp_path: Path, text: str, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), overrides)
    assert caught.value.exit_code == 2
    return [line.removeprefix(f"{tmp_path}/c.toml: ") for line in str(caught.value).split("\n")]


def scope(capabilities: Capabilities = ALL, ranks: int = 4, **axes: object) -> Scope:
    return Scope(ArmSpec(name="a", backend="mpi", ranks=ranks), capabilities, Sweep(**axes))  # type: ignore[arg-type]


def test_the_page_of_the_contract_loads(tmp_path: Path) -> None:
    text = """
title = "NCCL on this node: Ring against Tree"
[[arm]]
name = "ring"
backend = "nccl"
ranks = 2
env = { NCCL_ALGO = "Ring", NCCL_NTHREADS = 64 }
path = "RING"
[[arm]]
name = "tree"
backend = "package.module:ClassName"
ranks = 2
options = { process_model = "all" }
[sweep]
collective = ["all_reduce", "reduce_scatter"]
format = ["bfloat16", "binary16"]
count = [1, 2, 1048576]
shift = [0, 1]
in_place = [false, true]
root = [0]
repeats = 5
seed = 7
[expect]
rounding_mode = "ties_to_even"
shift_dependence = false
[probes]
run = ["coverage", "tail"]
"""
    config = load(write(tmp_path, text))
    assert config.title == "NCCL on this node: Ring against Tree"
    assert config.arms[0] == ArmSpec(
        name="ring", backend="nccl", ranks=2, env={"NCCL_ALGO": "Ring", "NCCL_NTHREADS": "64"}, path="RING"
    )
    assert config.arms[1].options == {"process_model": "all"}
    assert config.sweep == Sweep(
        collective=("all_reduce", "reduce_scatter"),
        format=("bfloat16", "binary16"),
        count=(1, 2, 1048576),
        shift=((0, 0), (1, 1)),
        in_place=(False, True),
        repeats=5,
        seed=(7,),
    )
    assert config.expect == {"rounding_mode": "ties_to_even", "shift_dependence": False}
    assert config.probes == ("coverage", "tail")


def test_one_value_may_stand_without_brackets(tmp_path: Path) -> None:
    config = load(
        write(tmp_path, ARM + '[sweep]\ncount = 5\nop = "avg"\ngroup = [0, 2]\nfamily = "ties"\nrepeats=[2,9]')
    )
    assert (config.sweep.count, config.sweep.op, config.sweep.group) == ((5,), ("avg",), ((0, 2),))
    assert config.sweep.family == (Family("ties"),)
    assert config.sweep.repeats == 9


def test_groups_and_separate_shifts(tmp_path: Path) -> None:
    config = load(write(tmp_path, ARM + '[sweep]\ngroup = ["all", [3, 1]]\nsend_shift = [0, 1]\nrecv_shift = [2, 3]'))
    assert config.sweep.group == (None, (3, 1))
    assert config.sweep.shift == ((0, 2), (0, 3), (1, 2), (1, 3))
    assert load(write(tmp_path, ARM + "[sweep]\nsend_shift = [1, 2]")).sweep.shift == ((1, 0), (2, 0))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[sweep]\ncount = [1, 2, 3, 1.5]", "sweep.count[3] = 1.5 is not a whole number of elements"),
        ("[sweep]\ncount = [1e6]", "sweep.count[0] = 1000000.0 is written as a float; write 1000000"),
        ("[sweep]\ncount = [true]", "sweep.count[0] = true is not a whole number of elements"),
        ("[sweep]\ncount = -1", "sweep.count = -1 is negative"),
        ("[sweep]\ncount = []", "sweep.count is empty; give at least one value or leave the key out"),
        ("[sweep]\nshift = [0, -2]", "sweep.shift[1] = -2 is negative"),
        ("[sweep]\nrecv_shift = [-2]", "sweep.recv_shift[0] = -2 is negative"),
        ('[sweep]\nformat = ["bfloat61"]', 'sweep.format[0] = "bfloat61" is not a format; did you mean bfloat16?'),
        ("[sweep]\nformat = 3", "sweep.format = 3 is not a format; known: binary64, binary32, "),
        (
            '[sweep]\ncollective = "allreduce"',
            'sweep.collective = "allreduce" is not a collective; did you mean all_re',
        ),
        ('[sweep]\nop = ["prod"]', 'sweep.op[0] = "prod" is not an operation; known: sum, avg, min, max'),
        ("[sweep]\ncuont = [1]", "sweep.cuont is unknown; did you mean sweep.count?"),
        ("[sweep]\nrepeats = 0", "sweep.repeats = 0 is below 1"),
        ("[sweep]\nseed = -3", "sweep.seed = -3 is negative"),
        ("[sweep]\nseed = 99999999999999999999", "sweep.seed = 99999999999999999999 is above 9223372036854775807"),
        ("[sweep]\nin_place = [0]", "sweep.in_place[0] = 0 is not true or false"),
        ("[sweep]\nroot = [0, 4]", "sweep.root[1] = 4 is not a position within a group of 4"),
        ("[sweep]\ngroup = [[0, 4]]", "sweep.group[0] = [0, 4] names rank 4; no arm has more than 4"),
        ("[sweep]\ngroup = [[0, 0]]", "sweep.group[0] = [0, 0] names a rank twice"),
        ("[sweep]\ngroup = [[]]", 'sweep.group[0] = [] is not a list of ranks, nor "all"'),
        ('[sweep]\nfamily = ["a:b"]', 'sweep.family[0] = "a:b" is not of the form name or name:key=value,key=value'),
        ("[sweep]\nshift = 0\nsend_shift = 1", "sweep.shift stands beside send_shift or recv_shift"),
        (
            "[expect]\nshift_dependance = true",
            "expect.shift_dependance is unknown; did you mean expect.shift_dependence?",
        ),
        ("[expect]\nshift_dependence = 1", "expect.shift_dependence = 1 is not true or false"),
        ('[expect]\nrounding_mode = "even"', 'expect.rounding_mode = "even" is not a rounding mode; '),
        ("[expect]\nulp_bound = -1", "expect.ulp_bound = -1 is not a number of ulp"),
        ("[expect]\nnan = 3", "expect.nan = 3 is neither a text nor true or false"),
        ('[probes]\nrun = ["tial"]', 'probes.run[0] = "tial" is not a probe; did you mean tail?'),
        ("[probes]\nrun = []", 'probes.run is empty; name a probe or write "all"'),
        ("[probes]\nruns = []", "probes.runs is unknown; did you mean probes.run?"),
        ("[sweeps]\n", "sweeps is unknown; did you mean sweep?"),
        ('[[arm]]\nname = "A"\nbackend = "mpi"\nranks = 4', 'arm[1].name = "A" is taken by an arm above'),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 0', "arm[1].ranks = 0 is below 1"),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2.5', "arm[1].ranks = 2.5 is not a whole number of ranks"),
        ('[[arm]]\nname = "b"\nbackend = "mpi"', "arm[1].ranks is missing"),
        ('[[arm]]\nname = "../b"\nbackend = "mpi"\nranks = 2', 'arm[1].name = "../b" cannot name a folder'),
        (
            '[[arm]]\nname = "b"\nbackend = "m.n:"\nranks = 2',
            'arm[1].backend = "m.n:" is neither a backend\'s name nor',
        ),
        (
            '[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\nrank = 2',
            "arm[1].rank is unknown; did you mean arm[1].rank",
        ),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\nenv = {A = true}', "arm[1].env.A = true is not a text"),
        (
            '[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\nenv = {"a b" = ""}',
            "arm[1].env.a b cannot name an environ",
        ),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\noptions = 3', "arm[1].options = 3 is not a table"),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\noptions = {d = 2026-01-01}', "arm[1].options.d = "),
        ('[[arm]]\nname = "b"\nbackend = "mpi"\nranks = 2\npath = ""', 'arm[1].path = "" is not a text'),
    ],
)
def test_each_mistake_is_one_line_with_its_key_path(tmp_path: Path, text: str, line: str) -> None:
    found = mistakes(tmp_path, ARM + text)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    text = 'titel = "x"\n[[arm]]\nname = 3\nranks = -1\n[sweep]\ncount = [1.5, -2]\nshift = []\n[expect]\nfoo = 1'
    paths = [line.split(" ")[0] for line in mistakes(tmp_path, text, ("sweep.op=mul", "arm.z.ranks=2"))]
    assert paths == [
        *("--set", "titel", "arm[0].name", "arm[0].backend", "arm[0].ranks"),
        *("sweep.op", "sweep.count[0]", "sweep.count[1]", "sweep.shift", "expect.foo"),
    ]


def test_no_arm(tmp_path: Path) -> None:
    assert mistakes(tmp_path, 'title = "x"') == [
        "arm is missing: write at least one [[arm]] with name, backend and ranks"
    ]


def test_a_file_that_is_not_toml_names_the_line(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, "a = 1\nb = = 2\n")
    assert line.startswith("is not TOML: ")
    assert "line 2" in line


def test_an_unreadable_file_and_one_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load(tmp_path / "nowhere.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b'title = "caf\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml: byte 12 is not UTF-8"):
        load(path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_text(ARM, encoding="utf-8-sig")
    assert load(path).arms[0].name == "a"


def test_overrides_take_toml_or_bare_text_and_arms_by_name_or_number(tmp_path: Path) -> None:
    overrides = [
        *("sweep.count=[1, 2]", "sweep.seed=0", "sweep.format=binary32", "arm.a.ranks=3", "arm.0.env.NCCL_ALGO=Ring"),
        *("probes.run=tail", "title=a = b", "arm.a.options.mode = ties_to_even", "expect.foreign_read=true"),
    ]
    config = load(write(tmp_path, ARM), overrides)
    arm = config.arms[0]
    assert (config.sweep.count, config.sweep.seed, config.sweep.format) == ((1, 2), (0,), ("binary32",))
    assert (arm.ranks, arm.env, arm.options) == (3, {"NCCL_ALGO": "Ring"}, {"mode": "ties_to_even"})
    assert (config.probes, config.title, config.expect) == (("tail",), "a = b", {"foreign_read": True})
    assert config.arguments[:4] == ("--set", "sweep.count=[1, 2]", "--set", "sweep.seed=0")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sweep.cuont=1", "sweep.cuont is unknown; did you mean sweep.count?"),
        ("nonsense", "--set nonsense: is not of the form key.path=value"),
        ("sweep..count=1", "--set sweep..count=1: is not of the form key.path=value"),
        ("arm.b.ranks=1", "--set arm.b.ranks=1: there is no arm.b; arms: a"),
        ("arm.1.ranks=1", "--set arm.1.ranks=1: there is no arm.1; arms: a"),
        ("arm.0=1", "--set arm.0=1: name a key of one arm, as in arm.0.ranks=4; arms: a"),
        ("arm.0.ranks.x=1", "--set arm.0.ranks.x=1: there is no arm.0.ranks; arms: a"),
        ("sweep=3", "sweep = 3 is not a table"),
        ("sweep.count=[1,2", 'sweep.count = "[1,2" is not a whole number of elements'),
        ("sweep.count=1\nseed=2", 'sweep.count = "1\\nseed=2" is not a whole number of elements'),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, line: str) -> None:
    assert mistakes(tmp_path, ARM, (override,)) == [line]


def test_filters(tmp_path: Path) -> None:
    second = '[[arm]]\nname = "b"\nbackend = "nccl"\nranks = 2\n[sweep]\ngroup = [[0, 3]]'
    config = load(write(tmp_path, ARM + second))
    assert [arm.name for arm in config.with_arm("a").arms] == ["a"]
    assert [arm.ranks for arm in config.with_ranks(5).arms] == [5, 5]
    other = config.with_backend("my.module:Klass")
    assert [(arm.name, arm.backend, arm.ranks) for arm in other.arms] == [("my.module.Klass", "my.module:Klass", 4)]
    assert other.with_ranks(6).arguments == ("--backend", "my.module:Klass", "--ranks", "6")


def test_filters_refuse_what_does_not_fit(tmp_path: Path) -> None:
    config = load(write(tmp_path, ARM + "[sweep]\ngroup = [[0, 3]]"))
    with pytest.raises(ConfigError, match=r"arm 'ab' is unknown; did you mean a\?"):
        config.with_arm("ab")
    with pytest.raises(ConfigError, match=r"sweep\.group\[0\] = \[0, 3\] names rank 3; no arm has more than 2"):
        config.with_ranks(2)
    with pytest.raises(ConfigError, match=r"--ranks = 0 is below 1"):
        config.with_ranks(0)
    with pytest.raises(ConfigError, match=r"--backend = .* is neither"):
        config.with_backend("a b")


def test_the_built_in_quickstart_is_the_one_in_configs() -> None:
    root = Path(__file__).parents[1]
    shipped, shown = root / "auditor/quickstart.toml", root / "configs/quickstart.toml"
    assert shipped.read_bytes() == shown.read_bytes()
    config = load()
    assert config.source == BUILT_IN
    assert {arm.backend for arm in config.arms} == {"mpi", "simulator"}


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_shipped_config_loads(path: Path) -> None:
    assert isinstance(load(path), Config)


def test_points_are_the_product_less_what_is_not_offered() -> None:
    some = Capabilities(
        collectives=frozenset({"all_reduce"}), ops=frozenset({"sum"}), formats=frozenset({"binary32"}), in_place=False
    )
    axes = {
        "collective": ("all_reduce", "reduce"),
        "format": ("binary32", "bfloat16"),
        "count": (1, 2),
        "shift": ((0, 0), (0, 1)),
        "in_place": (False, True),
        "group": (None, (0, 1)),
    }
    points = list(scope(some, **axes).points())
    assert len(points) == 4
    assert {(p.call.collective, p.call.format, p.in_place, p.call.group) for p in points} == {
        ("all_reduce", "binary32", False, None)
    }
    assert {str(p.family) for p in points} == {"rank_coded"}
    # everything offered: in place at different shifts remains impossible
    assert len(list(scope(ALL, **axes).points())) == 2 * 2 * 2 * (2 + 1) * 2


def test_a_root_makes_no_copies_where_it_means_nothing() -> None:
    points = list(scope(collective=("all_reduce", "reduce"), root=(0, 1), count=(1,), format=("binary32",)).points())
    assert [(p.call.collective, p.call.root) for p in points if p.send_shift == 0] == [
        ("all_reduce", 0),
        ("reduce", 0),
        ("reduce", 1),
    ]


@pytest.mark.parametrize(
    ("change", "axes", "reason"),
    [
        ({"rank_n_max": 2}, {}, "mpi takes 1 to 2 ranks"),
        ({"rank_n_min": 8}, {}, "mpi takes 8 or more ranks"),
        ({"collectives": frozenset()}, {}, "mpi does not offer collective all_reduce"),
        ({"ops": frozenset()}, {}, "mpi does not offer op sum"),
        ({"formats": frozenset()}, {}, "mpi does not offer format bfloat16"),
        ({"in_place": False}, {"in_place": (True,)}, "mpi does not reduce in place"),
        ({"features": frozenset()}, {"group": ((0, 1),)}, "mpi does not reduce over a group of ranks"),
        (
            {"element_alignment": 4},
            {"shift": ((0, 1),), "format": ("bfloat16",)},
            "mpi needs ranges that begin at multiples of 4 bytes",
        ),
        ({}, {"group": ((0, 9),)}, "the arm has 4 ranks"),
        ({}, {"collective": ("reduce",), "root": (2,), "group": ((0, 1),)}, "root is a position among 2 members"),
        ({}, {"in_place": (True,), "shift": ((0, 1),)}, "in place, one range cannot begin at two shifts"),
    ],
)
def test_an_exclusion_says_why(change: dict, axes: dict, reason: str) -> None:
    narrowed = Capabilities.from_json({**ALL.to_json(), **change})
    sight = scope(narrowed, **axes)
    assert list(sight.points()) == []
    assert sight.excluded(next(sight.product()))[0] == reason


def test_alignment_is_in_bytes() -> None:
    sight = scope(
        Capabilities.from_json({**ALL.to_json(), "element_alignment": 4}),
        format=("binary32", "bfloat16"),
        count=(1,),
        shift=((0, 0), (1, 1), (2, 2)),
    )
    assert [(p.call.format, p.send_shift) for p in sight.points()] == [
        *(("binary32", 0), ("binary32", 1), ("binary32", 2)),
        *(("bfloat16", 0), ("bfloat16", 2)),
    ]


def test_calls_are_the_distinct_cells() -> None:
    calls = scope(collective=("all_reduce", "reduce"), root=(0, 3), format=("binary32",)).calls()
    assert [(call.collective, call.root, call.count) for call in calls] == [
        ("all_reduce", 0, 0),
        ("reduce", 0, 0),
        ("reduce", 3, 0),
    ]


def test_telling_counts_cover_ends_and_residues() -> None:
    sight = scope(count=(0, 1, 2, 9, 10, 16, 1026, 4096), format=("bfloat16",))
    assert sight.telling_counts(1) == (4096,)
    assert sight.telling_counts(2) == (1, 4096)
    assert sight.telling_counts(9) == (1, 2, 4096)  # residues 0, 1, 2 of the 8 elements in 16 bytes
    assert scope(count=(0,)).telling_counts(3) == (0,)
    assert scope(count=(1, 2, 9, 16), format=("float8_e5m2",)).telling_counts(9) == (1, 2, 9, 16)


def test_telling_shifts_cover_ends_and_residues() -> None:
    sight = scope(shift=tuple((k, k) for k in (0, 1, 2, 3, 4, 8, 16, 17)), format=("bfloat16",))
    assert sight.telling_shifts(1) == ((0, 0),)
    assert sight.telling_shifts(3) == ((0, 0), (1, 1), (17, 17))
    assert sight.telling_shifts(9) == ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (17, 17))
    assert scope(shift=((3, 3),)).telling_shifts(4) == ((3, 3),)


def test_the_file_s_families_come_before_the_probe_s_own() -> None:
    assert [str(f) for f in scope().families("ties", "wide:spread=3")] == ["ties", "wide:spread=3"]
    assert scope(family=(Family("smooth"),)).families("ties") == (Family("smooth"),)
