"""Cases played in processes of their own: crashes, hangs, errors and refusals are outcomes; budgets end the search alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from evidence_cases import case, everywhere, step

from auditor.backends.simulator import Simulator
from auditor.cli.evidence_live import Live, offered
from auditor.errors import AuditError, Unavailable
from auditor.evidence import perform
from auditor.evidence.cases import Case, Outcome
from auditor.evidence.perform import SETUP, outcome_of, play_here, serve
from auditor.evidence.recorded import Calls, Start
from auditor.evidence.reduce import LIVE, MODEL, RECORDED, Player, reduce, reported
from auditor.evidence.relations import Sighting, relation_for
from auditor.evidence.shrink import GiveUp
from auditor.model import Capabilities, Finding, Verdict
from auditor.pipeline import Offer
from auditor.plan import ArmPlan

ODD = """
import os, sys, time
sys.path.insert(0, {tests!r})
from outside_subjects import Clean
from auditor.errors import Unsupported

class Odd(Clean):
    '''What it does depends on the count.'''
    def run(self, call, send, recv):
        if call.count == 2:
            os.abort()
        if call.count == 3:
            time.sleep(60)
        if call.count == 4:
            raise RuntimeError("status 5")
        if call.count == 5:
            raise Unsupported("no five")
        super().run(call, send, recv)

class Sulks(Clean):
    def __init__(self, world, options):
        raise RuntimeError("no device today")
"""


def sums(count: int) -> Case:
    return case(step([[0x3F80] * count, [0x3F80] * count]))


def arm(backend: str = "odd:Odd", **more: Any) -> ArmPlan:
    return ArmPlan(name="x", backend=backend, rank_n=2, **more)


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd.py").write_text(ODD.format(tests=str(Path(__file__).parent)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


ALL = Offer("all", Capabilities(collectives=frozenset(), ops=frozenset(), formats=frozenset()))


def live(place: Path, backend: str = "odd:Odd", **more: Any) -> Live:
    limits = {"hang_budget": 1.0, "seconds": 60.0, **more}
    return Live(arm(backend), ALL, place / "live", **limits)


def test_a_crash_a_hang_an_error_and_a_refusal_are_outcomes(odd: Path) -> None:
    with live(odd) as subject:
        two = subject(sums(1))
        assert two.whole
        assert [seen.output.tolist() for seen in two.seen.values() if seen.output is not None] == [[0x4000], [0x4000]]
        crash = subject(sums(2))
        assert crash.ended == "crash"
        assert "ended during the call" in crash.words
        assert subject(sums(5)).ended == "unsupported"
        error = subject(sums(4))
        assert (error.ended, error.words) == ("error", "RuntimeError: status 5")
        hang = subject(sums(3))
        assert hang.ended == "hang"
        with pytest.raises(GiveUp, match="hang-budget"):
            subject(sums(1))


def test_the_time_for_the_search_ends_it_but_not_what_confirms(odd: Path) -> None:
    now = [0.0]
    subject = Live(arm(), ALL, odd / "live", hang_budget=5, seconds=10, clock=lambda: now[0])
    with subject:
        assert subject(sums(1)).whole
        now[0] = 11
        with pytest.raises(GiveUp, match="10 s for it were over"):
            subject(sums(1))
        subject.encore()
        assert subject(sums(1)).whole


def test_a_subject_that_does_not_start_is_given_up(odd: Path) -> None:
    with live(odd, "odd:Sulks") as subject, pytest.raises(GiveUp, match="does not start with 2 ranks"):
        subject(sums(1))


def test_what_is_not_here_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        offered(arm("nccl"))
    with pytest.raises(AuditError, match="no_such_module"):
        offered(arm("no_such_module:Class"))
    offer = offered(arm("simulator", options={"preset": "b300"}))
    assert isinstance(offer.offered, Capabilities)
    assert (offer.process_model, "bfloat16" in offer.offered.formats) == ("all", True)


def test_ranks_that_need_no_mpi_are_started_with_sockets_between_them(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    subject = arm("outside_spawned:Gathers")
    offer = offered(subject)
    assert (offer.process_model, offer.needs_mpi) == ("one", False)
    with Live(subject, offer, odd / "live", hang_budget=5, seconds=60) as player_:
        got = player_(sums(1))
        assert got.whole, got.words
        assert [seen.output.tolist() for seen in got.seen.values() if seen.output is not None] == [[0x4000], [0x4000]]


# ------------------------------------------------------------------------------------------------------------ in process


def test_arenas_are_as_in_a_recorded_call() -> None:
    """Shifts, heads, tails and prefills reach the backend; what it does outside is seen."""
    from outside_subjects import ReadsPast, ScratchesInput, WritesPast

    given = case(step([[0x3F80], [0x3F80]], tail=[[1], [0]], send_shift=3, recv_shift=1))
    assert [
        seen.output.tolist() for seen in play_here(ReadsPast, {}, given).seen.values() if seen.output is not None
    ] == [
        [0x4001],
        [0x4001],
    ]
    past = play_here(WritesPast, {}, given).seen[0, 0, 0]
    assert [byte.offset for byte in past.outside] == [2, 3, 4, 5, 6, 7]
    wide = sums(5)
    assert not play_here(ScratchesInput, {}, wide).seen[0, 0, 0].send_after


def test_a_rank_that_gets_nothing_has_no_output_and_its_range_is_watched() -> None:
    from outside_subjects import Clean

    given = case(step([[0x3F80], [0x3F80]], collective="reduce", root=1))
    seen = play_here(Clean, {}, given).seen  # it writes to every rank, whoever is the root
    assert seen[0, 0, 0].output is None
    assert [byte.offset for byte in seen[0, 0, 0].outside] == [0, 1]
    assert seen[0, 0, 1].output is not None


def test_bytes_reach_memory_that_is_no_numpy_array() -> None:
    """A GPU's array is written from the host, with its own device current."""
    said: list[Any] = []

    class OnDevice:
        @property
        def device(self) -> Any:
            return self

        def __enter__(self) -> None:
            said.append("current")

        def __exit__(self, *_: object) -> None:
            said.append("over")

        def set(self, image: Any) -> None:
            said.append(image.tolist())

    perform._write(OnDevice(), np.array([1, 2], np.uint8))
    assert said == ["current", [1, 2], "over"]


def test_a_short_record_is_an_error() -> None:
    assert outcome_of(sums(1), {}).ended == "error"


def test_the_loop_of_a_player_ends_when_told(tmp_path: Path) -> None:
    from auditor.backends.base import LocalControl

    setup = {"backend": "simulator", "options": {}, "nbytes": sums(1).nbytes, "features": ["path"]}
    (tmp_path / SETUP).write_text(json.dumps(setup))
    (tmp_path / "case.0.json").write_text(json.dumps(sums(1).to_json()))
    (tmp_path / "end").write_text("")
    serve(tmp_path, LocalControl(), 2, (0, 1))
    rows = json.loads((tmp_path / "seen.0.0.json").read_text())
    assert [row[:3] for row in rows] == [[0, 0, 0], [0, 0, 1]]
    assert rows[0][3]["path"].startswith("SIM/")


# ---------------------------------------------------------------------------------------------------------------- reduce

TIE = case(step([[0x3F80, 0x4000], [0x3B80, 0x4000]]))
ROUNDING = Finding(
    id="F1",
    arm="x",
    probe="rounding",
    kind="rounding_mode",
    verdict=Verdict.INFORMATION,
    claim="c",
    measure={"mode": "ties_to_away"},
    scope={"collective": "all_reduce", "op": "sum", "format": "bfloat16"},
)
START = Start(TIE, everywhere(TIE, [0x3F81, 0x4080]), (Sighting(0, 0, 0, 0, 0x3F81, 0x3F80),), Calls(()))


class View:
    expect: ClassVar[dict[str, Any]] = {}


def away(given: Case) -> Outcome:
    """Ties away from zero, on columns of two equal powers of two or a tie."""
    from auditor.evidence.models import _rounded

    return _rounded(given, mode="ties_to_away")


def player(play: Callable[[Case], Outcome]) -> Player:
    offer = Capabilities(
        collectives=frozenset({"all_reduce"}), ops=frozenset({"sum"}), formats=frozenset({"bfloat16", "float8_e5m2"})
    )
    return Player(play, lambda: None, offer)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditor.evidence.recorded.find_start", lambda *_: START)


def test_on_the_subject_if_it_shows_there(started: None) -> None:
    found = reduce(View(), ROUNDING, [ROUNDING], player(away))  # type: ignore[arg-type]
    assert found.how == LIVE
    assert found.case is not None
    assert found.case.steps[0].call.count == 1
    assert found.case.fmt.name == "bfloat16"  # the same values make no tie in a narrower format
    assert reported(found)["shown_when_confirmed"] == [3, 3]


def test_on_the_rule_where_the_subject_no_longer_shows_it(started: None) -> None:
    """Mended since, or another release: that is said, and the rule stands in, since it gives the recorded bits."""
    found = reduce(View(), ROUNDING, [ROUNDING], player(lambda c: everywhere(c, [0x3F80] * c.elements)))  # type: ignore[arg-type]
    assert found.how == MODEL
    assert "run again here" in found.why
    assert "ties_to_away" in found.model


def test_a_rule_that_does_not_give_the_recorded_bits_is_not_used(started: None) -> None:
    other = replace(ROUNDING, measure={"mode": "toward_zero"})
    found = reduce(View(), other, [other], None, "it is not here")  # type: ignore[arg-type]
    assert (found.how, found.why) == (RECORDED, "it is not here")
    assert found.case is START.case


def rule_found(**measure: Any) -> Finding:
    """The finding that the neighbours probe makes of the B300 model."""
    known = {"formula": "up iff ...", "order": "forward", "noise_bits": 2, "group_bytes": 8, "form": "SRFF"}
    return replace(ROUNDING, id="F2", kind="neighbour_dependence", measure={**known, "layout": "planes", **measure})


@pytest.mark.parametrize(
    ("measure", "how"),
    [
        ({}, MODEL),
        ({"order": "reversed"}, RECORDED),
        ({"group_bytes": 16}, RECORDED),
        ({"layout": "elements"}, RECORDED),
    ],
)
def test_a_measured_formula_stands_in_if_it_gives_the_recorded_bits(
    monkeypatch: pytest.MonkeyPatch, measure: dict[str, Any], how: str
) -> None:
    random = np.random.default_rng(1)
    given = case(step(random.integers(0x3E00, 0x4100, (2, 64)).tolist()))
    outcome = play_here(Simulator, {"preset": "b300"}, given)
    mixed = replace(ROUNDING, measure={"mode": "mixed"})
    relation = relation_for(mixed, {})
    assert relation is not None
    start = Start(given, outcome, tuple(relation.look(given, outcome)), Calls(()))
    assert start.sightings
    monkeypatch.setattr("auditor.evidence.recorded.find_start", lambda *_: start)
    found = reduce(View(), mixed, [mixed, rule_found(**measure)], None, "it is not here")  # type: ignore[arg-type]
    assert found.how == how
    assert found.why == "it is not here"


def test_a_subject_that_crashes_on_smaller_cases_keeps_what_does_not(started: None) -> None:
    def play(given: Case) -> Outcome:
        return Outcome(ended="crash", words="SIGSEGV") if given.steps[0].call.count < 2 else away(given)

    found = reduce(View(), ROUNDING, [ROUNDING], player(play))  # type: ignore[arg-type]
    assert found.how == LIVE
    assert found.case is not None
    assert found.case.steps[0].call.count == 2
    assert reported(found)["also_seen"]["crash: SIGSEGV"] > 0
    assert np.count_nonzero(found.case.steps[0].data) == 2


def test_a_crash_is_cut_down_by_crashing(started: None) -> None:
    crash = replace(ROUNDING, kind="crash", verdict=Verdict.FAIL, measure={})

    def play(given: Case) -> Outcome:
        return Outcome(ended="crash", words="SIGABRT") if given.steps[0].data.any() else Outcome()

    found = reduce(View(), crash, [crash], player(play))  # type: ignore[arg-type]
    assert found.case is not None
    assert np.count_nonzero(found.case.steps[0].data) == 1


def test_a_kind_that_no_case_shows(started: None) -> None:
    found = reduce(View(), replace(ROUNDING, kind="early_return"), [], None)  # type: ignore[arg-type]
    assert found.case is None
    assert "no property of a single result" in found.why
