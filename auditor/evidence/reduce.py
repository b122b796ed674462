"""A finding -> the smallest case there is of it: on the subject where it is here, on a measured rule, or as it was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from auditor.evidence import models, recorded
from auditor.evidence.cases import Case, Outcome
from auditor.evidence.passes import Limits
from auditor.evidence.recorded import Start
from auditor.evidence.relations import Relation, Sighting, relation_for
from auditor.evidence.shrink import Attempt, GiveUp, Shrunk, shrink
from auditor.model import ArmView, Capabilities, Finding

LIVE, MODEL, RECORDED, NONE = "live", "model", "recorded", "none"
LEAST_RANKS = 2  # one rank's sum is its input: libraries copy there, which is another path


@dataclass(frozen=True, slots=True)
class Player:
    """The subject, here: ``play`` runs a case, ``fresh`` has the next one run in new processes."""

    play: Callable[[Case], Outcome]
    fresh: Callable[[], None]
    capabilities: Capabilities


@dataclass(slots=True)
class Reduced:
    """What became of a finding.

    ``how``: live (tried on the subject), model (on a rule that the run measured), recorded (the smallest recorded call), none.
    ``why``: what stood in the way of something better, "" where nothing did. ``model``: the rule's words.
    """

    relation: Relation | None = None
    start: Start | None = None
    how: str = NONE
    why: str = ""
    model: str = ""
    shrunk: Shrunk | None = None
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def case(self) -> Case | None:
        """The smallest case."""
        if self.shrunk is not None:
            return self.shrunk.case
        return self.start.case if self.start is not None else None

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """Where the smallest case shows it."""
        if self.shrunk is not None:
            return self.shrunk.sightings
        return self.start.sightings if self.start is not None else ()


def reduce(
    view: ArmView, finding: Finding, findings: Sequence[Finding], player: Player | None, absent: str = ""
) -> Reduced:
    """``player``: the subject, where it is here; ``absent``: why it is not. ``findings``: all of the run."""
    relation = relation_for(finding, view.expect, findings)
    if relation is None:
        return Reduced(why=f"{finding.kind} is no property of a single result, so that there is no case to cut down")
    start = recorded.find_start(view, finding, relation)
    if start is None:
        return Reduced(relation=relation, why=recorded.why_none(view, finding))
    why = absent
    if player is not None:
        found = _on_subject(finding, relation, start, player)
        if found.how == LIVE:
            return found
        why = found.why
    model = models.model_of(finding, findings, start)
    if model is None:
        return Reduced(relation, start, RECORDED, why, outcome=start.outcome)
    shrunk = _shrunk(relation, start, model.play, _limits(finding, relation))
    if not shrunk.sightings:
        return Reduced(relation, start, RECORDED, why, outcome=start.outcome)
    return Reduced(relation, start, MODEL, why, model.words, shrunk, model.play(shrunk.case))


def _on_subject(finding: Finding, relation: Relation, start: Start, player: Player) -> Reduced:
    offer = player.capabilities
    least = max(offer.rank_n_min, LEAST_RANKS)
    limits = replace(_limits(finding, relation), formats=tuple(sorted(offer.formats)), rank_n_min=least)
    found = _shrunk(relation, start, player.play, limits, player.fresh)
    if not found.sightings:
        shown, runs = found.start_shown
        why = found.stopped or f"the recorded call, run again here {runs} times, showed it {shown} times"
        return Reduced(relation, start, RECORDED, why)
    try:
        outcome = player.play(found.case)
    except GiveUp:
        outcome = Outcome()
    return Reduced(relation, start, LIVE, "", "", found, outcome)


def _shrunk(
    relation: Relation,
    start: Start,
    play: Callable[[Case], Outcome],
    limits: Limits,
    fresh: Callable[[], None] | None = None,
) -> Shrunk:
    def try_case(case: Case) -> Attempt:
        outcome = play(case)
        wanted = relation.name == "ends"
        sightings = tuple(relation.look(case, outcome)) if outcome.whole or wanted else ()
        trouble = f"{outcome.ended}: {outcome.words}" if outcome.ended and not sightings else ""
        return Attempt(sightings, trouble)

    return shrink(start.case, try_case, limits, fresh=fresh or (lambda: None))


def _limits(finding: Finding, relation: Relation) -> Limits:
    """What keeps a case from turning into one of another kind. Of ``same_again`` only the recorded inputs' answer is known."""
    return Limits(
        rank_n_min=LEAST_RANKS,
        same_inputs=relation.name == "same_again",
        spill=finding.kind == "foreign_read",
        lengths=finding.kind == "count_dependence",
    )


def reported(reduced: Reduced) -> Mapping[str, Any]:
    """How the case came about, as JSON."""
    found = reduced.shrunk
    rows: dict[str, Any] = {"how": reduced.how, "why_not_better": reduced.why, "model": reduced.model}
    if found is not None:
        rows |= {
            "tries": found.attempts,
            "start_shown": list(found.start_shown),
            "shown_when_confirmed": list(found.shown),
            "steps": found.steps,
            "also_seen": dict(found.troubles),
            "stopped": found.stopped,
        }
    return rows
