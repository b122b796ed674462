"""Do the arms of one run give the same bits from the same data? NVLS on and off, stream and block, Ring and Tree, two libraries.

A trial's id is made of its content alone, so arms of equal rank count have run the same trials and can be put side by side
element by element. That two paths differ is legal; which one a program takes then decides its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from auditor.config import Scope
from auditor.model import ArmView, Finding, Trial, Verdict
from auditor.probes import common
from auditor.probes.common import listed, plural
from auditor.probes.differences import CHANCE_WORDS, base_trials, repeats_of
from auditor.probes.paths_compare import PROBE, Arm, Cell, Comparison, shared
from auditor.probes.statistics import clopper_pearson

NAME = PROBE
KINDS = ("path_difference",)
KIND = KINDS[0]


def plan(scope: Scope) -> Iterator[tuple[Trial, int]]:
    """Every point of the sweep, shared with repeatability and placement. What is compared are all trials that arms share."""
    for trial in base_trials(scope):
        yield trial, repeats_of(scope)


def analyze(view: ArmView) -> Iterator[Finding]:
    """Nothing: one arm alone has nobody to differ from."""
    del view
    return iter(())


def analyze_run(views: Sequence[ArmView]) -> Iterator[Finding]:
    """Each arm beside the arms before it. ``arm`` of a finding is the later one, ``measure.compared_with`` the first of those
    that it differs from, or agrees with. One arm alone has no finding, unless trials were run for this probe's sake.
    """
    arms = [Arm(view) for view in views if _asked(view) and _came_back(view)]
    if len(arms) < 2:
        yield from (_alone(arm) for arm in arms if any(p.probes == (NAME,) for p in arm.view.planned))
        return
    outcomes = _outcomes(arms)
    for number, arm in enumerate(arms):
        others = [other for other in arms if other is not arm]
        if not any(shared(other, arm) for other in others):
            yield _waived(arm, others)
        elif number:
            yield from _findings(arm, outcomes[arm.name])


def _asked(view: ArmView) -> bool:
    return any(NAME in planned.probes for planned in view.planned)


def _came_back(view: ArmView) -> bool:
    return any(common.receiving(view, planned.trial) for planned in view.planned)


# -------------------------------------------------------------------------------------------------------- who agrees with whom


@dataclass(slots=True)
class Outcome:
    """One arm in one cell beside the arms before it."""

    # Each class of arms that agree among each other, and how this one compares with it.
    against: list[tuple[tuple[str, ...], Comparison]] = field(default_factory=list)
    same_as: tuple[str, ...] = ()

    @property
    def main(self) -> Comparison:
        """What the finding is about: the first class that differs, else the one that agrees, else the first."""
        told = [comparison for _, comparison in self.against]
        return next((one for one in told if one.differs), next((one for one in told if one.equal), told[0]))

    @property
    def key(self) -> tuple[object, ...]:
        """What two cells must have in common to be said in one finding."""
        differs = tuple((names, one.beyond_sweep) for names, one in self.against if one.differs)
        return differs, self.same_as, self.main.a.name

    @property
    def steady(self) -> bool:
        """Whether the arm repeats itself, so that others may be compared with it."""
        return not any(one.b.name in one.wavering for _, one in self.against)


def _outcomes(arms: Sequence[Arm]) -> dict[str, dict[Cell, Outcome]]:
    """By arm: its outcome in each cell that it shares with an arm before it."""
    classes: dict[Cell, list[list[Arm]]] = {}
    found: dict[str, dict[Cell, Outcome]] = {arm.name: {} for arm in arms}
    for arm in arms:
        for cell in dict.fromkeys(common.cell(planned.trial) for planned in arm.trials.values()):
            known = classes.setdefault(cell, [])
            outcome = _outcome(arm, cell, known)
            if outcome.against:
                found[arm.name][cell] = outcome
            if outcome.same_as:
                next(some for some in known if some[0].name == outcome.same_as[0]).append(arm)
            elif outcome.steady:
                known.append([arm])
    return found


def _outcome(arm: Arm, cell: Cell, classes: Sequence[Sequence[Arm]]) -> Outcome:
    outcome = Outcome()
    for some in classes:
        telling = _beside(arm, cell, some)
        if telling is None:
            continue
        outcome.against.append((tuple(one.name for one in some), telling))
        if telling.equal:
            outcome.same_as = tuple(one.name for one in some)
            break
    return outcome


def _beside(arm: Arm, cell: Cell, some: Sequence[Arm]) -> Comparison | None:
    """With the first of some arms that agree; with the first that is not equal where they do not all share the same trials."""
    first: Comparison | None = None
    for other in some:
        trials = shared(other, arm).get(cell, [])
        if trials:
            one = Comparison(other, arm).compare(trials)
            if not one.equal:
                return one
            first = first or one
    return first


# ------------------------------------------------------------------------------------------------------------------ findings


def _findings(arm: Arm, cells: dict[Cell, Outcome]) -> Iterator[Finding]:
    for some in _merged(cells):
        outcomes = list(some.values())
        whole = outcomes[0].main
        together = shared(whole.a, arm)
        trials = [trial for cell in some for trial in together[cell]]
        if len(some) > 1:
            whole = Comparison(whole.a, arm).compare(trials)
        yield _finding(outcomes, whole, trials)


def _merged(cells: dict[Cell, Outcome]) -> list[dict[Cell, Outcome]]:
    """Cells of one outcome, as far as their scope lists every combination: formats of one (collective, op), then collectives
    with the same formats.
    """
    by_call: dict[tuple[object, ...], dict[Cell, Outcome]] = {}
    for cell, outcome in cells.items():
        by_call.setdefault((cell[0], cell[1], outcome.key), {})[cell] = outcome
    by_formats: dict[tuple[object, ...], dict[Cell, Outcome]] = {}
    for (_, op, key), some in by_call.items():
        by_formats.setdefault((op, key, tuple(cell[2] for cell in some)), {}).update(some)
    return list(by_formats.values())


def _finding(outcomes: list[Outcome], whole: Comparison, trials: list[Trial]) -> Finding:
    view, main = whole.b.view, whole.telling.again(whole.telling.trials, full=True)
    if not main.differs and not main.equal:  # nothing is claimed between arms where one does not repeat itself
        verdict, claim = Verdict.INCONCLUSIVE, f"Nothing can be said about {KIND}: {_open(main, trials)}."
    else:
        verdict = common.verdict_for(view, KIND, main.differs)
        claim = f"{common.where(trials)}: {_claim(outcomes, main)}."
    more = {"same_as": list(outcomes[0].same_as), "others": _others(outcomes, main), **whole.by_data()}
    return common.finding(
        view,
        NAME,
        KIND,
        verdict,
        claim,
        trials=(main.tally.trials.values() if main.tally.trials else main.trials) or trials,
        measure={**main.measure(), **{key: value for key, value in more.items() if value}},
        evidence=main.tally.rows if main.differs else (),
        limits=_limits(outcomes, main),
    )


def _others(outcomes: list[Outcome], main: Comparison) -> dict[str, dict[str, int]]:
    """By arm or arms that agree among each other, beside those of the claim: results that differ, and those compared."""
    found: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        for names, one in outcome.against:
            if one.differs and one.a.name != main.a.name:
                row, told = found.setdefault(", ".join(names), {"changed": 0, "compared": 0}), one.telling
                row["changed"] += told.tally.changed
                row["compared"] += told.tally.compared
    return found


def _claim(outcomes: list[Outcome], main: Comparison) -> str:
    tally, same_as, arm = main.tally, outcomes[0].same_as, main.b
    if not main.differs:
        high = clopper_pearson(0, tally.compared)[1]
        shared_n = "the shared trial" if tally.pairs == 1 else f"all {tally.pairs:,} shared trials"
        return (
            f"{arm.name} gives the same bits as {listed(same_as)} in {shared_n}; the share of results that differ is below "
            f"{high:.2g} (95 %)"
        )
    names = next(names for names, one in outcomes[0].against if one.a is main.a)
    families = [name for name, part in main.families.items() if part.changed]
    where = f" of {listed(families)}, not from the sweep's" if main.beyond_sweep else ""
    text = (
        f"{arm.name} gives other bits than {listed(names)} from the same data{where}, in {tally.changed:,} of {tally.compared:,} "
        f"results ({_shares(main)}{_apart(main)})"
    )
    for other, row in _others(outcomes, main).items():
        text += f"; other bits than {other}, in {_share(row['changed'], row['compared'])}"
    return text + (f"; the same bits as {listed(same_as)}" if same_as else "")


def _shares(main: Comparison) -> str:
    """By cell where there are several, lest one format hide behind another."""
    if len(main.cells) < 2:
        return _share(main.tally.changed, main.tally.compared)
    single = len({name.rpartition(" ")[0] for name in main.cells}) == 1
    parts = [(name.rpartition(" ")[2] if single else name, part) for name, part in main.cells.items()]
    return listed((f"{_share(part.changed, part.compared)} of {name}" for name, part in parts), 8)


def _share(k: int, n: int) -> str:
    return f"{100 * k / n:.2g} %" if n else "none"


def _apart(main: Comparison) -> str:
    if not main.apart.pairs:
        return ", NaN all of them"
    nan = f", {main.apart.nan:,} of them NaN" if main.apart.nan else ""
    return f"; at most {main.apart.most:,} ulp apart, median {main.apart.median:,}{nan}"


def _limits(outcomes: list[Outcome], main: Comparison) -> str:
    parts = ["Compared are the trials that both arms planned and repeat; which arm is right, other probes say."]
    if main.differs:
        parts.insert(
            0, f"`observed` is what {main.b.name} gave, `expected` what {main.a.name} gave: neither need be right."
        )
        parts.append("Shares depend on the data; `by_family` has those of every family that both arms ran.")
    if main.wavering or main.missing:
        parts.append(f"Left out: {_left_out(main)}.")
    silent = [one for _, one in outcomes[0].against if not one.differs and not one.equal and one.a is not main.a]
    parts += [f"Nothing is said beside {one.a.name}: {_left_out(one)}." for one in silent]
    return " ".join(parts)


def _left_out(main: Comparison) -> str:
    said = [f"{name} does not repeat itself in {plural(n, 'trial')}" for name, n in main.wavering.items()]
    said += [f"too little came back from {name} in {plural(n, 'trial')}" for name, n in main.missing.items()]
    return listed(said)


def _open(main: Comparison, trials: list[Trial]) -> str:
    pair = f"{common.where(trials)}, {main.b.name} beside {main.a.name}: "
    if not main.tally.changed_pairs:
        return pair + _left_out(main)
    differ = f"{main.tally.changed_pairs} of {plural(main.tally.pairs, 'trial')} differ"
    return f"{pair}{differ}, but an arm also changes between {CHANCE_WORDS.format(main.tally.by_chance)}"


def _alone(arm: Arm) -> Finding:
    claim = f"The arm {arm.name} is the only one with results: there is none to compare it with. `auditor join` adds other runs'."
    return common.finding(arm.view, NAME, KIND, Verdict.WAIVED, claim, trials=(), scope={"rank_n": arm.view.rank_n})


def _waived(arm: Arm, others: Sequence[Arm]) -> Finding:
    ranks = listed(f"{other.name} {other.view.rank_n}" for other in others)
    claim = f"The arm {arm.name} shares no trial with another arm: it has {plural(arm.view.rank_n, 'rank')}, {ranks}."
    scope = {"rank_n": arm.view.rank_n}
    return common.finding(arm.view, NAME, KIND, Verdict.WAIVED, claim, trials=(), scope=scope)
