"""How a trial's variant asks the backend, and that nothing of it is left for the next trial."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from auditor.errors import Unsupported
from auditor.harness.issue import Variant
from auditor.model import Call, Family, Trial, Window

CALL = Call(collective="all_reduce", op="sum", format="binary32", count=4)
WINDOWS = {rank: Window(object(), 0, 16) for rank in range(2)}


class Asked:
    """Notes every verb; ``missing`` verbs are not there."""

    def __init__(self, *missing):
        self.verbs, self.missing = [], missing

    def __getattr__(self, name):
        if name in self.missing:
            raise AttributeError(name)
        return lambda *arguments: self.verbs.append((name, *arguments)) or (lambda: self.verbs.append(("replay",)))


def played(variant, *missing, repeats=2, features=("registration", "history", "recreate", "graph", "queue")):
    """What a trial of this variant asks of its backend, from its first repeat to its end."""
    backend = Asked(*missing)
    trial = Trial(call=CALL, rank_n=2, family=Family("wide"), seed=1, variant=variant)
    issue = Variant(backend, frozenset(features), trial)
    for repeat in range(repeats):
        issue(repeat, WINDOWS, WINDOWS)
    issue.done()
    return [verb[0] for verb in backend.verbs], backend.verbs


def test_a_registered_trial_registers_once_and_lets_go_at_its_end():
    names, verbs = played("registered")
    assert names == ["register"] * 4 + ["run", "run", "deregister"]
    assert {verb[1] for verb in verbs[:4]} == set(WINDOWS.values())


def test_a_backend_that_cannot_let_go_is_not_asked_to():
    assert played("registered", "deregister")[0] == ["register"] * 4 + ["run", "run"]


def test_side_communicators_end_with_their_trial():
    _, verbs = played("history:3")
    assert (verbs[0], verbs[-1]) == (("perturb", 3), ("perturb", 0))


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("plain", ["run", "run"]),
        ("recreate:1", ["run", "recreate", "run"]),
        ("graph", ["capture", "replay", "replay"]),
        ("queued:2", ["enqueue", "enqueue", "wait"] * 2),
    ],
)
def test_other_variants_leave_nothing_to_undo(variant, names):
    assert played(variant)[0] == names


@pytest.mark.parametrize("variant", ["registered", "history:1", "recreate:1", "graph", "queued:2"])
def test_a_variant_whose_feature_is_missing_is_unsupported(variant):
    with pytest.raises(Unsupported, match="needs the feature"):
        played(variant, features=())


def test_a_bursts_own_time_is_the_sum_of_its_calls():
    backend = SimpleNamespace(run=lambda *_: None, last_seconds=lambda: 0.25)
    trial = Trial(call=CALL, rank_n=2, family=Family("wide"), seed=1, variant="burst:3")
    issue = Variant(backend, frozenset({"timing"}), trial)
    issue(0, WINDOWS, WINDOWS)
    assert issue.subject_seconds() == 0.75
