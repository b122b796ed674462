"""The kit for backend writers: the simulator keeps the contract, and small broken backends are each caught."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from auditor.backends.base import LocalControl
from auditor.backends.simulator import Simulator
from auditor.errors import ConfigError, Unsupported
from auditor.model import Window, World
from auditor.testing import CHECKS, LINES, BackendConformance, check_backend


class TestSimulator(BackendConformance):
    backend = Simulator
    options = {"preset": "b300"}  # noqa: RUF012  as a user would write it


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ({"order": "ring", "shot": "two_shot", "accumulator": "same"}, 4),
        ({"final": "stochastic", "generator": "call"}, 2),
        ({"order": "fused", "accumulator": "exact", "final": "toward_negative"}, 2),
    ],
)
def test_the_simulator_conforms_under_other_options(options, ranks):
    assert check_backend(Simulator, options, ranks=ranks, checks=["calls", "groups", "features", "refusal"]) == []


class Broken(Simulator):
    """Base of the plants; each changes one thing."""

    name = "broken"

    def outputs(self, call, recv):
        """(rank, output as codes) of every receiver."""
        for rank in call.receivers(self._world.rank_n):
            window = recv[rank]
            yield rank, window.buffer[window.offset : window.offset + window.nbytes].view(call.fmt.dtype)


class Misaligned(Broken):
    def allocate(self, nbytes):
        return {rank: np.zeros(nbytes + 1025, np.uint8)[a : a + nbytes] for rank, a in self.starts(nbytes)}

    def starts(self, nbytes):
        yield from ((rank, 1) for rank in self._world.local_ranks)


class ShortArray(Broken):
    def allocate(self, nbytes):
        return {rank: array[:-1] for rank, array in super().allocate(nbytes).items()}


class LacksARank(Broken):
    def allocate(self, nbytes):
        return {rank: array for rank, array in super().allocate(nbytes).items() if rank != 1}


class OneArrayForAll(Broken):
    def allocate(self, nbytes):
        arrays = super().allocate(nbytes)
        return dict.fromkeys(arrays, arrays[0])


class SignedBytes(Broken):
    def allocate(self, nbytes):
        return {rank: array.view(np.int8) for rank, array in super().allocate(nbytes).items()}


class ReadOnly(Broken):
    def allocate(self, nbytes):
        arrays = super().allocate(nbytes)
        for array in arrays.values():
            array.flags.writeable = False
        return arrays


class StumblesOverNothing(Broken):
    def run(self, call, send, recv):
        assert call.count > 0, "nothing to do"
        super().run(call, send, recv)


class LeavesTheTail(Broken):
    def run(self, call, send, recv):
        cut = call.count // 4 * 4 if call.count > 4 else call.count
        kept = {rank: codes[cut:].copy() for rank, codes in self.outputs(call, recv)}
        super().run(call, send, recv)
        for rank, codes in self.outputs(call, recv):
            codes[cut:] = kept[rank]


class WritesPastTheEnd(Broken):
    def run(self, call, send, recv):
        super().run(call, send, recv)
        for rank in call.receivers(self._world.rank_n):
            recv[rank].buffer[recv[rank].offset + recv[rank].nbytes] ^= 1


class WritesBeforeTheRange(Broken):
    def run(self, call, send, recv):
        super().run(call, send, recv)
        for window in recv.values():
            window.buffer[window.offset - 2] ^= 0x80


class WritesToNonRoots(Broken):
    def run(self, call, send, recv):
        super().run(call, send, recv)
        if call.collective == "reduce" and call.count:
            for window in recv.values():
                window.buffer[window.offset] ^= 1


class UsesTheInputAsScratch(Broken):
    def run(self, call, send, recv):
        super().run(call, send, recv)
        if call.count and send[min(send)].buffer is not recv[min(send)].buffer:
            send[min(send)].buffer[send[min(send)].offset] ^= 1


class IgnoresTheShift(Broken):
    def run(self, call, send, recv):
        flat = {rank: Window(w.buffer, w.offset // 512 * 512, w.nbytes) for rank, w in send.items()}
        super().run(call, flat, recv)


class DropsATermInPlace(Broken):
    def run(self, call, send, recv):
        first = min(send)
        if call.count and len(send) > 1 and send[first].buffer is recv[first].buffer:
            window = send[first]
            window.buffer[window.offset : window.offset + window.nbytes] = 0
        super().run(call, send, recv)


class ForgetsTheGroup(Broken):
    def run(self, call, send, recv):
        order = tuple(sorted(call.group)) if call.group else None
        super().run(replace(call, group=order), send, recv)


class ReduceMeansAllReduce(Broken):
    def run(self, call, send, recv):
        super().run(replace(call, collective="all_reduce", root=0) if call.collective == "reduce" else call, send, recv)


class AlwaysRootZero(Broken):
    def run(self, call, send, recv):
        super().run(replace(call, root=0), send, recv)


class MaxIsSum(Broken):
    def run(self, call, send, recv):
        super().run(replace(call, op="sum") if call.op == "max" else call, send, recv)


class AverageIsSum(Broken):
    def run(self, call, send, recv):
        super().run(replace(call, op="sum") if call.op == "avg" else call, send, recv)


class StaleOutput(Broken):
    def run(self, call, send, recv):
        old = getattr(self, "old", None)
        super().run(call, send, recv)
        mine = {rank: codes.copy() for rank, codes in self.outputs(call, recv)}
        if old and call.count == 1021 and old[0] == call:
            for rank, codes in self.outputs(call, recv):
                codes[:] = old[1][rank]
        self.old = (call, mine)


class BfloatIsHalf(Broken):
    def run(self, call, send, recv):
        super().run(replace(call, format="binary16") if call.format == "bfloat16" else call, send, recv)


class RefusesWhatItOffers(Broken):
    def run(self, call, send, recv):
        if call.format == "float8_e5m2":
            raise Unsupported("no such format")
        super().run(call, send, recv)


class ServesWhatItDoesNotOffer(Broken):
    @classmethod
    def probe(cls, options):
        return replace(super().probe(options), formats=frozenset({"binary32"}))


class StumblesOverWhatItDoesNotOffer(ServesWhatItDoesNotOffer):
    def run(self, call, send, recv):
        {"binary32": 1}[call.format]
        super().run(call, send, recv)


class ClosesOnce(Broken):
    def close(self):
        super().close()
        del self._world


class DescribesObjects(Broken):
    def describe(self):
        return {"version": (1, 2)}


class DescribesNaN(Broken):
    def describe(self):
        return {"clock": float("nan")}


class ListsAVerbItLacks(Broken):
    @classmethod
    def probe(cls, options):
        return replace(super().probe(options), features=frozenset({"graph"}))


class NamesNoPath(Broken):
    def path(self):
        return ""


class ClockRunsFast(Broken):
    def last_seconds(self):
        return 3600.0


class ClockRunsBackwards(Broken):
    def last_seconds(self):
        return -1.0


class RecreateLosesTheBuffers(Broken):
    def recreate(self):
        self.lost = True

    def run(self, call, send, recv):
        gone = {rank: Window(w.buffer.copy(), w.offset, w.nbytes) for rank, w in recv.items()}
        super().run(call, send, gone if getattr(self, "lost", False) else recv)


class PerturbCounts(Broken):
    def perturb(self, side_communicators):
        if side_communicators == 0:
            raise RuntimeError("no communicator to destroy")


class GraphKeepsItsFirstInput(Broken):
    @classmethod
    def probe(cls, options):
        return replace(super().probe(options), features=frozenset({"graph"}))

    def capture(self, call, send, recv):
        frozen = {rank: Window(w.buffer.copy(), w.offset, w.nbytes) for rank, w in send.items()}
        return lambda: self.run(call, frozen, recv)


class QueueNeverRuns(Broken):
    @classmethod
    def probe(cls, options):
        return replace(super().probe(options), features=frozenset({"queue"}))

    def enqueue(self, call, send, recv):
        pass

    def wait(self):
        pass


class Prints(Broken):
    def run(self, call, send, recv):
        print("reduced")
        super().run(call, send, recv)


class ProbeSetsVariables(Broken):
    @classmethod
    def probe(cls, options):
        os.environ["A_VENDOR_DEBUG"] = "1"
        return super().probe(options)


class ProbeEatsOptions(Broken):
    @classmethod
    def probe(cls, options):
        options["device"] = 0
        return super().probe({})


class ProbeChangesItsMind(Broken):
    turns = 0

    @classmethod
    def probe(cls, options):
        cls.turns += 1
        return replace(super().probe(options), rank_n_max=64 + cls.turns)


class ProbeInOtherWords(Broken):
    @classmethod
    def probe(cls, options):
        return replace(
            super().probe(options), formats=frozenset({"bf16"}), memory="gpu", element_alignment=3, rank_n_min=4
        )


class ProbeGivesADict(Broken):
    @classmethod
    def probe(cls, options):
        return super().probe(options).to_json()


class WrongProcessModel(Broken):
    process_model = "some"


PLANTS = [
    (Misaligned, "arrays: allocate(4096)[0] starts"),
    (ShortArray, "arrays: allocate(4096)[0] is uint8 of shape (4095,)"),
    (LacksARank, "arrays: allocate gives keys [0, 2]"),
    (OneArrayForAll, "arrays: two arrays overlap"),
    (SignedBytes, "arrays: allocate(4096)[0] is int8"),
    (ReadOnly, "arrays: allocate(4096)[0] cannot be written"),
    (StumblesOverNothing, "count 0 shift 0,0: raised AssertionError: nothing to do"),
    (LeavesTheTail, "count 7 shift 3,0: rank 0 element 4 is 0xff"),
    (WritesPastTheEnd, "changed 1 bytes of its recv arena, the first at +"),
    (WritesBeforeTheRange, "changed 1 bytes of its recv arena, the first at -2 from its receive range"),
    (WritesToNonRoots, "calls: reduce"),
    (UsesTheInputAsScratch, "changed 1 bytes of its send arena, the first at +0"),
    (IgnoresTheShift, "count 1 shift 1,3: rank 0 element 0 is"),
    (DropsATermInPlace, "in place: rank 0 element"),
    (ForgetsTheGroup, "groups: reduce sum"),
    (ReduceMeansAllReduce, "calls: reduce sum"),
    (AlwaysRootZero, "calls: reduce sum"),
    (MaxIsSum, "calls: all_reduce max"),
    (AverageIsSum, "calls: all_reduce avg"),
    (StaleOutput, "count 1021"),
    (BfloatIsHalf, "calls: all_reduce sum bfloat16 count 1 shift 0,0: rank 0 element 0 is"),
    (RefusesWhatItOffers, "raised Unsupported: no such format, though the capabilities allow the call"),
    (ServesWhatItDoesNotOffer, "refusal: all_reduce sum bfloat16 count 64 shift 0,0: is served"),
    (StumblesOverWhatItDoesNotOffer, "refusal: all_reduce sum bfloat16 count 64 shift 0,0: raised KeyError"),
    (ClosesOnce, "lifecycle: close() without allocate, twice: raised AttributeError"),
    (DescribesObjects, "lifecycle: describe()['version'] is a tuple"),
    (DescribesNaN, "lifecycle: describe()['clock'] = nan"),
    (ListsAVerbItLacks, "features: features are listed whose verbs are missing: capture"),
    (NamesNoPath, "features: path() = ''"),
    (ClockRunsFast, "features: last_seconds() = 3600.0"),
    (ClockRunsBackwards, "features: last_seconds() = -1.0"),
    (RecreateLosesTheBuffers, "features: recreate: all_reduce"),
    (PerturbCounts, "features: history: raised RuntimeError"),
    (GraphKeepsItsFirstInput, "features: graph: all_reduce"),
    (QueueNeverRuns, "features: queue: all_reduce"),
    (Prints, "the backend prints: 'reduced"),
    (ProbeSetsVariables, "probe: probe changes the environment"),
    (ProbeEatsOptions, "probe: probe changes its options: {'device': 0}"),
    (ProbeChangesItsMind, "probe: probe says"),
    (ProbeInOtherWords, "probe: capabilities.formats has bf16"),
    (ProbeInOtherWords, "probe: capabilities.memory = 'gpu'"),
    (ProbeInOtherWords, "probe: capabilities.element_alignment = 3"),
    (ProbeInOtherWords, "probe: 3 ranks lie outside rank_n_min 4"),
    (ProbeGivesADict, "probe: probe gives a dict"),
    (WrongProcessModel, "contract: `process_model` = 'some'"),
]


@pytest.fixture
def own_environment(monkeypatch):
    monkeypatch.setenv("A_VENDOR_DEBUG", "")
    monkeypatch.delenv("A_VENDOR_DEBUG")


NOT_IMPORTS = [name for name in CHECKS if name != "imports"]  # which starts an interpreter, and has a test of its own


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(
    ("plant", "words"), PLANTS, ids=[f"{plant.__name__}-{i}" for i, (plant, _) in enumerate(PLANTS)]
)
def test_each_broken_backend_is_caught(plant, words):
    check = words.partition(":")[0]
    checks = [check] if check in CHECKS else ["calls"]
    found = check_backend(plant, {}, ranks=3 if plant is not AverageIsSum else 2, checks=checks)
    assert any(words in line for line in found), "\n".join(found)
    assert all("\n" not in line for line in found)
    assert len(found) <= LINES + 1


def test_the_base_of_the_plants_is_clean():
    assert check_backend(Broken, {}, ranks=3, checks=NOT_IMPORTS) == []


def test_the_flood_is_capped_and_counted():
    found = check_backend(WritesPastTheEnd, {}, ranks=3, checks=NOT_IMPORTS)
    assert sum(line.startswith("calls: ") for line in found) == LINES + 1
    assert any(line.startswith("calls: and ") and line.endswith(" more") for line in found)


def test_an_unknown_check_is_named():
    with pytest.raises(ConfigError, match="no check speed; there are imports, probe"):
        check_backend(Broken, checks=["calls", "speed"])


def test_a_class_without_verbs_is_told_what_is_missing():
    class Nothing:
        pass

    found = check_backend(Nothing)
    assert "contract: `run` is missing" in found
    assert "contract: `name` is not a text" in found


def test_a_vendor_import_at_module_level_is_caught(tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text("")
    source = "from auditor.backends.simulator import Simulator\nclass Mine(Simulator): pass\n"
    (tmp_path / "eager_backend.py").write_text("import cupy\n" + source)
    (tmp_path / "lazy_backend.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import eager_backend
    import lazy_backend

    assert check_backend(eager_backend.Mine, ranks=1) == [
        "imports: importing eager_backend loads cupy; import it inside functions"
    ]
    assert check_backend(lazy_backend.Mine, ranks=1) == []


def test_a_failing_check_fails_the_test_class():
    class Case(BackendConformance):
        backend = LeavesTheTail

    with pytest.raises(AssertionError, match="1 ranks: all_reduce"):
        Case().test_calls()
    Case().test_arrays()

    class Wrong(BackendConformance):
        backend = WrongProcessModel

    with pytest.raises(AssertionError, match="process_model"):
        Wrong().test_contract()


class OneRank(Simulator):
    """Drives its one rank; more than one need a launcher."""

    process_model = "one"


def test_one_rank_a_process_needs_a_world():
    with pytest.raises(ConfigError, match="under a launcher"):
        check_backend(OneRank, ranks=2)
    world = World(rank_n=1, local_ranks=(0,), control=LocalControl())
    assert check_backend(OneRank, ranks=1, world=world) == []


def test_the_kit_needs_no_pytest():
    code = (
        "import sys, auditor.testing; print(sorted({'pytest', 'h5py', 'numba', 'mpi4py', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
