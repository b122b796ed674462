"""One cell's trials -> one finding: by what its rounding is keyed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from auditor.inputs.contexts import REACH
from auditor.model import ArmView, Evidence, Finding, Trial, Verdict
from auditor.numerics.formats import FORMATS
from auditor.probes import common
from auditor.probes.neighbours import bias, design, influence, ladder, rule
from auditor.probes.neighbours.influence import Influence
from auditor.probes.neighbours.ladder import Reading, Toggles
from auditor.probes.statistics import clopper_pearson

PROBE, KIND = "neighbours", "neighbour_dependence"
# Two contributors, exact sums. The scan's trials come besides.
LIKE_DATA = ("sparse", "dense", "one", "odd", "turned", "held_out", "shifted", "constant", "padded")


@dataclass(slots=True)
class Cell:
    """One cell's readings by role; first repeats, and all of the trials that have several."""

    view: ArmView
    trials: list[Trial]
    first: dict[str, Reading] = field(default_factory=dict)
    again: list[tuple[Reading, Reading]] = field(default_factory=list)
    measure: dict[str, Any] = field(default_factory=dict)
    toggles: dict[str, Toggles] = field(default_factory=dict)
    scanned: Influence | None = None

    def load(self, roles: str = "") -> None:
        """Read every trial; those alone whose role begins with ``roles``."""
        dense = min((t for t in self.trials if t.family == design.DENSE and not t.send_shift), key=lambda t: t.seed)
        for trial in self.trials:
            name = design.role(trial, dense)
            if not name.startswith(roles):
                continue
            digests: dict[tuple[str, ...], Reading] = {}
            for repeat in sorted({o.repeat for o in common.receiving(self.view, trial)}):
                parts = ladder.parts_of(self.view, trial, repeat)
                key = tuple(o.digest for o in parts)
                if key not in digests and parts:
                    digests[key] = ladder.read(self.view, trial, repeat, parts)
                if name in self.first and parts:
                    self.again.append((self.first[name], digests[key]))
                elif parts:
                    self.first[name] = digests[key]

    def data(self, *names: str) -> list[Reading]:
        return [self.first[name] for name in names if name in self.first]

    @property
    def like_data(self) -> list[Reading]:
        return self.data(*LIKE_DATA, *(name for name in self.first if name.startswith("scan_")))

    @property
    def start(self) -> str:
        return common.where(self.trials)

    def finding(
        self, verdict: Verdict, claim: str, *, limits: str = "", evidence: Sequence[Evidence] = (), **more: Any
    ) -> Finding:
        return common.finding(
            self.view,
            PROBE,
            KIND,
            verdict,
            claim,
            trials=self.trials,
            measure={**more, **self.measure},
            evidence=evidence,
            limits=limits,
        )

    def inconclusive(self, reason: str) -> Finding:
        return self.finding(Verdict.INCONCLUSIVE, f"Nothing can be said about {KIND} of {self.start}: {reason}.")


def deciding_bits(view: ArmView, trials: list[Trial]) -> list[str]:
    """Bits of other elements' words that the scan of one cell's trials found to decide; empty where there was no scan."""
    found = Cell(view, trials)
    found.load("scan_")
    scanned = influence.scan(trials[0].call.fmt, found.first)
    return [] if scanned is None else [*scanned.measure()["raises"], *scanned.measure()["lowers"]]


def judge(view: ArmView, trials: list[Trial]) -> Finding:
    """The ladder: stop at the first step that decides."""
    found = Cell(view, trials)
    found.load()
    if any(name not in found.first for name in ("sparse", "dense", "one", "odd", "held_out")):
        missing = [t for t in trials if not common.receiving(view, t)]
        return found.inconclusive(common.no_data_reason(view, missing or trials))
    if reason := _unfaithful(found):
        return found.inconclusive(reason)
    found.toggles = {name: ladder.toggled(found.first["dense"], found.first[name], name) for name in ("one", "odd")}
    found.measure |= _redrawn(found.toggles)
    found.measure |= _bias(found)
    flips = _flips(found)
    if not flips[0] and (scanned := influence.scan(trials[0].call.fmt, found.first)) is not None:
        found.scanned = scanned
        found.measure |= scanned.measure()
    readings = [*found.like_data, *(b for a, b in found.again if b is not a)]
    wrong = ladder.against_modes(readings)
    if modes := [mode for mode, n in wrong.items() if not n]:
        return _by_mode(found, modes)
    mode = min(wrong, key=lambda name: wrong[name])
    elements = sum(len(one.seen) for one in readings)
    if wrong[mode] < ladder.ODD_SHARE * elements:
        return found.inconclusive(f"{wrong[mode]:,} of {elements:,} sums go otherwise than {mode}, too few for a rule")
    if flips[0]:
        return _by_call(found, flips)
    found.measure["repeat_changes"] = list(flips)
    by_scan = found.scanned is not None and found.scanned.of_others[0] > 0
    if not by_scan and not any(one.changed for one in found.toggles.values()):
        return _by_itself(found)
    return _by_neighbours(found)


def _unfaithful(found: Cell) -> str:
    readings = [*found.like_data, *(b for _, b in found.again)]
    outside, elements = sum(r.outside for r in readings), sum(len(r.seen) for r in readings)
    if not outside:
        return ""
    return (
        f"{outside:,} of {elements:,} outputs of two active ranks are neither the exact sum nor one of its neighbours"
    )


def _flips(found: Cell) -> tuple[int, int]:
    pairs = [ladder.inexact_pairs(a, b) for a, b in found.again if a.trial.inputs == "same"]
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def _redrawn(toggles: Mapping[str, Toggles]) -> dict[str, Any]:
    """Counts, and the exact 95 % interval, of results that changed when one neighbour, or every other element, was drawn anew."""
    rows: dict[str, Any] = {}
    for name, one in toggles.items():
        rows[name] = {"changed": one.changed, "toggles": one.kept, "rate_95": list(one.bound)}
    by_offset = toggles["one"].by_offset
    near = {str(o): pair for o, pair in by_offset.items() if pair[0]}
    return {"redrawn": rows, "redrawn_by_offset": near, "offsets_redrawn": [min(by_offset), max(by_offset)]}


def _bias(found: Cell) -> dict[str, Any]:
    """What the rounding does to equal, slowly varying and random sums, and to sums among zeros."""
    rows = {**bias.experiments(found.first), "padding": bias.padding(found.first, found.again)}
    return {key: value for key, value in rows.items() if value}


# ---------------------------------------------------------------------------------------------------------- no neighbour


def _absent(found: Cell) -> str:
    one, odd = found.toggles["one"], found.toggles["odd"]
    scanned = ""
    if found.scanned is not None:
        changed, tested = found.scanned.of_others
        high = clopper_pearson(changed, tested)[1]
        results = common.plural(tested, "result")
        scanned = f", {results} when one bit of an element at most {REACH} off is turned (below {high:.2g})"
    return (
        f"{common.plural(one.kept, 'result')} stay when an element within 64 bytes is drawn anew "
        f"(rate below {one.bound[1]:.2g}){scanned} and {common.plural(odd.kept, 'result')} when every other element is "
        f"(below {odd.bound[1]:.2g}, 95 %)"
    )


RANGE_LIMIT = (
    "Two ranks send data, the others +0. Elements within 64 bytes are drawn anew one by one; "
    "those further off only at odd places."
)


def _by_mode(found: Cell, modes: list[str]) -> Finding:
    claim = f"{found.start}: results are rounded by the sum alone, {common.listed(modes)}: {_absent(found)}."
    return found.finding(Verdict.PASS, claim, limits=RANGE_LIMIT, keyed_by="nothing", modes=modes)


def _by_call(found: Cell, flips: tuple[int, int]) -> Finding:
    """Identical calls differ: a generator, if drawing neighbours anew changes results no more often than that."""
    share = flips[0] / flips[1]
    found.measure["repeat_changes"] = list(flips)
    if share < ladder.GENERATOR_SHARE:
        return found.inconclusive(f"{flips[0]:,} of {flips[1]:,} inexact sums change between identical calls")
    dense = [p for p in found.again if p[0] is found.first["dense"]]
    changed, kept = map(sum, zip(*(ladder.inexact_pairs(a, b) for a, b in dense), strict=True)) if dense else flips
    again = clopper_pearson(changed, kept, 0.999)
    worst = max((clopper_pearson(t.changed, t.kept, 0.999) for t in found.toggles.values()), key=lambda b: b[0])
    if worst[0] > again[1]:
        return found.inconclusive(
            "results change between identical calls, and more often when neighbours are drawn anew"
        )
    claim = (
        f"{found.start}: results are rounded by a generator that goes on from call to call: {100 * share:.1f} % of inexact sums "
        "change between identical calls, and no more of them when neighbours are drawn anew."
    )
    limits = (
        f"A dependence on neighbours that changes fewer results than the generator does is not excluded. {RANGE_LIMIT}"
    )
    return found.finding(Verdict.PASS, claim, limits=limits, keyed_by="generator")


def _by_itself(found: Cell) -> Finding:
    """No neighbour matters and no mode fits: the sum's own bits, or where the element lies."""
    twins = ladder.twins(found.data("sparse", "dense", "held_out"))
    found.measure["equal_sums"] = {"elements": twins.elements, "values": twins.sums, "torn": twins.torn}
    if not twins.torn:
        claim = (
            f"{found.start}: results are rounded by the sum's own bits, by no single mode: {_absent(found)}, and "
            f"{twins.elements:,} elements with {twins.sums:,} different sums agree wherever they lie."
        )
        return found.finding(Verdict.PASS, claim, limits=RANGE_LIMIT, keyed_by="own bits")
    by, more = ladder.keyed_by_place(found.first)
    found.measure |= more
    said = {
        "index": "by the element's index: a range that begins one element later in memory gives the same",
        "send address": "by the element's address in the send range: what lies at one address is rounded alike",
        "receive address": "by the element's address in the receive range: what lies at one address is rounded alike",
        "address": "by the element's address: what lies at one address is rounded alike",
        "place": "by where the element lies; whether by index or address is open",
    }[by]
    claim = f"{found.start}: results are rounded {said}; {_absent(found)}."
    again = "A generator that is started anew in every call looks the same. " if by in ("index", "place") else ""
    return found.finding(Verdict.PASS, claim, limits=again + RANGE_LIMIT, keyed_by=by)


# ------------------------------------------------------------------------------------------------------------ neighbours


def _by_neighbours(found: Cell) -> Finding:
    fmt = found.trials[0].call.fmt
    learned = rule.learn(fmt, found.first)
    word = FORMATS["binary32"] if fmt.precision < 24 else fmt
    measure = {"keyed_by": "neighbours", **rule.measure(learned, fmt, word.mantissa_bits)}
    verdict = common.verdict_for(found.view, KIND, True)
    limits = " ".join([rule.limits(learned, fmt, len(found.trials[0].members)), RANGE_LIMIT])
    if learned.summed is not None and found.scanned is not None:
        learned.summed = learned.summed and not found.scanned.terms[0]
        measure["keyed_by_the_sum"] = learned.summed
    claim = f"{found.start}: results are rounded by other elements: {rule.claim(learned, fmt, word.mantissa_bits, found.toggles)}"
    claim = f"{claim[:-1]}{_bias_words(found.measure)}."
    limits = " ".join([limits, *_more_limits(found)])
    return found.finding(verdict, claim, limits=limits, evidence=_evidence(found), **measure)


def _bias_words(measure: Mapping[str, Any]) -> str:
    """``; mean signed error -0.05 ulp on random sums, ...``: what the rule does to data."""
    rows = measure.get("bias", {})
    told = [
        f"{rows[name]['mean_signed_error_ulp']:+.3f} on {words} sums"
        for name, words in (("wide", "random"), ("smooth", "slowly varying"))
        if name in rows and rows[name]["elements"]
    ]
    equal = measure.get("bias_of_equal_sums_by_top_bits", {})
    top = [one["mean_signed_error_ulp"] for one in equal.values() if one["elements"]]
    told += [f"from {min(top):+.3f} to {max(top):+.3f} on equal ones, by their top bits"] if top else []
    return f"; mean signed error in ulp: {', '.join(told)}" if told else ""


def _more_limits(found: Cell) -> list[str]:
    """What padding really does, and which bits no toggle reached."""
    texts = []
    padded = found.measure.get("padding", {})
    if padded.get("elements"):
        same = "the same in every repeat" if not padded["changed_between_repeats"] else "not the same in every repeat"
        follows = f", as {common.listed(padded['modes'])}" if padded["modes"] else ""
        texts.append(
            f"Padding with zeros is no remedy: {padded['elements']:,} sums with zeros all around are {same}{follows}, and off by "
            f"{padded['mean_signed_error_ulp']:+.3f} ulp on average (ties_to_even: {padded['ties_to_even_ulp']:+.3f})."
        )
    if found.scanned is not None and (missed := [name for name in influence.WORD if name not in found.scanned.bits]):
        texts.append(f"Not turned, since the format's terms make no such pair of sums: {', '.join(missed)}.")
    return texts


def _evidence(found: Cell) -> list[Evidence]:
    """The same element beside other neighbours: `observed` after they were drawn anew, `expected` before."""
    rows: list[Evidence] = []
    for name in ("one", "odd"):
        example, reading = found.toggles[name].example, found.first[name]
        if example is None:
            continue
        base = found.first["dense"]
        rank, at, after = ladder.output_at(found.view, reading.trial, reading.repeat, example[0])
        _, _, before = ladder.output_at(found.view, base.trial, base.repeat, example[0])
        seen = next(o for o in common.receiving(found.view, reading.trial) if o.rank == rank)
        rows += common.evidence_rows(reading.trial, seen, [at], after, before)
    return rows
