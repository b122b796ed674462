"""Names and specs of backends: what resolves, what is listed, and what each mistake says."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from auditor.backends import registry
from auditor.backends.simulator import Simulator
from auditor.errors import ConfigError, Unavailable
from auditor.model import Capabilities

GOOD = """
from auditor.model import Capabilities
class Good:
    name, process_model = "good", "all"
    @classmethod
    def probe(cls, options):
        return Capabilities(collectives=frozenset(["reduce"]), ops=frozenset(["sum"]), formats=frozenset(["binary32"]))
    def __init__(self, world, options): pass
    def allocate(self, nbytes): return {}
    def run(self, call, send, recv): pass
    def describe(self): return {}
    def close(self): pass
class Absent(Good):
    @classmethod
    def probe(cls, options):
        from auditor.errors import Unavailable
        raise Unavailable("no such device", "buy one")
class Raises(Good):
    @classmethod
    def probe(cls, options): raise RuntimeError("driver\\nmismatch")
class Bad:
    name, process_model = "", "some"
    def probe(self): pass
    def run(self, call): pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a few modules in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "reg_good.py").write_text(GOOD)
    (tmp_path / "reg_needs.py").write_text("import a_vendor_that_is_not_there")
    (tmp_path / "reg_raises.py").write_text("raise RuntimeError('two\\nlines')")
    (tmp_path / "reg_exits.py").write_text("raise SystemExit(4)")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("reg_")]:
        del sys.modules[name]


def installed(monkeypatch, **specs):
    points = [EntryPoint(name, value, registry.GROUP) for name, value in specs.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    return points


def test_the_simulator_resolves_by_name_and_by_spec():
    assert registry.resolve("simulator") is Simulator
    assert registry.resolve("auditor.backends.simulator:Simulator") is Simulator
    assert registry.gaps(Simulator) == []


def test_a_module_of_the_current_directory_resolves(here):
    assert registry.resolve("reg_good:Good").name == "good"


def test_the_current_directory_does_not_hide_installed_modules(here):
    (here / "auditor.py").write_text("raise RuntimeError('shadow')")
    assert registry.resolve("auditor.backends.simulator:Simulator") is Simulator


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("simulater", ConfigError, ["'simulater'", "simulator", "auditor backends"]),
        ("reg_nothing:Good", ConfigError, ["no module reg_nothing", "auditor backends"]),
        ("reg_good:Gone", ConfigError, ["no Gone", "Absent, Good, Raises"]),
        (
            "reg_good:Bad",
            ConfigError,
            ["`name`", "'some'", "`allocate` is missing", "`run` is not callable with 3", "`close`"],
        ),
        ("reg_good:Capabilities", ConfigError, ["`probe` is missing"]),
        ("reg_good:", ConfigError, ["package.module:ClassName"]),
        (":Good", ConfigError, ["package.module:ClassName"]),
        ("reg good:Good", ConfigError, ["package.module:ClassName"]),
        ("reg_needs:X", Unavailable, ["needs a_vendor_that_is_not_there", "install a_vendor_that_is_not_there"]),
        ("reg_raises:X", Unavailable, ["fails to import: RuntimeError: two lines", "mend reg_raises"]),
        ("reg_exits:X", Unavailable, ["SystemExit: 4"]),
    ],
)
def test_each_mistake_is_one_line_that_names_it(here, spec, error, words):
    with pytest.raises(error) as caught:
        registry.resolve(spec)
    assert type(caught.value) is error
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_object_that_is_no_class_is_no_backend():
    assert registry.gaps(Simulator.probe) == ["it is a method, not a class"]


def test_a_name_claimed_twice_is_not_guessed(here, monkeypatch):
    points = installed(monkeypatch, good="reg_good:Good")
    points.append(EntryPoint("good", "reg_good:Raises", registry.GROUP))
    with pytest.raises(ConfigError, match=r"reg_good:Good and reg_good:Raises"):
        registry.resolve("good")
    points[1] = points[0]
    assert registry.resolve("good").name == "good"


def test_listing_shows_broken_ones_with_their_error_and_probes_only_on_request(here, monkeypatch):
    specs = {"a": "reg_good:Good", "b": "reg_good:Absent", "c": "reg_raises:X", "d": "reg_good:Bad", "e": "reg_needs:X"}
    installed(monkeypatch, **specs, f="reg_good:Raises")
    plain = {entry.name: entry for entry in registry.listing()}
    assert [plain[name].status for name in "abcdef"] == ["ok", "ok", "broken", "broken", "broken", "ok"]
    assert "RuntimeError: two lines" in plain["c"].reason
    assert "`allocate` is missing" in plain["d"].reason
    assert plain["e"].remedy == "install a_vendor_that_is_not_there"
    assert plain["a"].capabilities is None
    probed = {entry.name: entry for entry in registry.listing(probe=True)}
    assert [probed[name].status for name in "abcdef"] == ["ok", "unavailable", "broken", "broken", "broken", "broken"]
    assert isinstance(probed["a"].capabilities, Capabilities)
    assert (probed["b"].reason, probed["b"].remedy) == ("no such device", "buy one")
    assert probed["f"].reason == "probe raised RuntimeError: driver mismatch"


def test_a_broken_one_is_never_replaced(here, monkeypatch):
    installed(monkeypatch, simulator="reg_raises:X", other="auditor.backends.simulator:Simulator")
    with pytest.raises(Unavailable, match="fails to import"):
        registry.resolve("simulator")


def test_listing_loads_no_vendor_library():
    code = (
        "import sys; from auditor.backends import registry; names = [e.name for e in registry.listing()]; "
        "assert 'simulator' in names, names; "
        "print(sorted({'mpi4py', 'cupy', 'cuda', 'nccl', 'nvshmem', 'torch', 'h5py', 'numba', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


class OneName(Simulator):
    """One name for two classes, as NCCL's."""

    @classmethod
    def for_options(cls, options):
        return OneEach if options.get("process_model") == "one" else OneName


class OneEach(OneName):
    process_model = "one"


class Derived(OneName):
    """Somebody's own, with a fault planted, say."""


HERE = f"{__name__}:"


def test_the_options_pick_one_of_two_classes():
    assert registry.choose(HERE + "OneName", {}) is OneName
    assert registry.choose(HERE + "OneName", {"process_model": "one"}) is OneEach


def test_a_derived_class_is_not_replaced_by_what_it_is_derived_from():
    assert registry.choose(HERE + "Derived", {}) is Derived


def test_a_derived_class_that_cannot_do_what_the_options_ask_is_refused():
    with pytest.raises(ConfigError, match=r"process_model is 'all', and these options ask for 'one' \(by OneEach\)"):
        registry.choose(HERE + "Derived", {"process_model": "one"})
