"""The rule that a run measured, as a function: from a mode's name, from a fitted noise, or from a formula of neighbours' bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.hashing import splitmix64
from auditor.numerics.rounding import MODES, up_by_mode
from auditor.probes.neighbours.formula import EXPONENT, ONE, SIGN, Formula, Mask, Seen, predict, up_of

GOOD = 0.9999  # held-out agreement from which on a formula is the rule
Decide = Callable[[Seen, int, int], tuple[Mask, Mask]]


@dataclass(frozen=True, slots=True)
class Rule:
    """``decide(seen, place, step)``: (whether |x| goes up, whether the element's group lies in the range), shape (n,) each;
    ``place``: elements between an aligned address and the first. ``group``: elements that share what decides. ``placed``: whether
    the place decides anything.
    """

    name: str
    decide: Decide
    group: int = 1
    placed: bool = False


def rule_of(fmt: Format, rounding: Mapping[str, Any], neighbours: Mapping[str, Any]) -> tuple[Rule | None, str]:
    """The rule and why it may be replayed; None and why not. ``rounding``, ``neighbours``: measures of the two findings."""
    mode = str(rounding.get("mode"))
    left = [str(name) for name in rounding.get("consistent_modes") or []]
    if mode in MODES or (mode == "undetermined" and left):
        name = mode if mode in MODES else left[0]
        alike = "" if mode in MODES else f"; {' and '.join(left)} are the same on all data of the run"
        return by_mode(name), f"every inexact sum of the run agrees with {name}{alike}"
    if mode == "stochastic" and isinstance(fit := rounding.get("stochastic"), Mapping):
        return by_noise(
            str(fit["form"]), int(fit["noise_bits"])
        ), "the share that goes up fits this noise in 64 bins of rem"
    if mode == "mixed" and (formula := formula_of(fmt, neighbours)) is not None:
        agrees = float(neighbours.get("held_out_agreement") or 0.0)
        if agrees >= GOOD:
            held = neighbours.get("held_out", {}).get("elements", 0)
            why = f"it predicts {100 * agrees:.4f} % of {held:,} inexact sums that it was not made from"
            return by_formula(formula, str(neighbours.get("formula")), str(neighbours.get("groups_begin_by", ""))), why
        return None, f"the best formula explains {100 * agrees:.2f} % of held-out sums, too few for a rule"
    if mode == "mixed":
        by = neighbours.get("keyed_by")
        known = f"results are keyed by {by}, of which no formula is known" if by else "ask for the probe neighbours"
        return None, f"no single mode fits, and {known}"
    return None, f"the mode is {mode} and nothing more is known"


def by_mode(name: str) -> Rule:
    """One of the six IEEE modes."""

    def decide(seen: Seen, place: int, step: int) -> tuple[Mask, Mask]:
        del place, step
        return up_by_mode(name, seen.split) & seen.inexact, np.ones(len(seen), np.bool_)

    return Rule(name, decide)


def by_noise(form: str, bits: int) -> Rule:
    """Stochastic rounding with independent noise of ``bits`` bits; the noise here is a hash of (step, element)."""
    formula = Formula(1, {}, form=form, noise_n=bits)

    def decide(seen: Seen, place: int, step: int) -> tuple[Mask, Mask]:
        at = (np.arange(len(seen), dtype=np.uint64) + np.uint64(place)) ^ np.uint64(step << 32)
        kept = np.uint64(ONE - (ONE >> bits) if bits < 64 else ONE - 1)
        return up_of(formula, seen.split, splitmix64(at) & kept), np.ones(len(seen), np.bool_)

    return Rule(f"{form} with {bits} bits of independent noise", decide)


def by_formula(formula: Formula, text: str, groups_by: str) -> Rule:
    """A rule keyed by neighbours; ``groups_by``: whether its groups begin at addresses or at the range's first element."""

    def decide(seen: Seen, place: int, step: int) -> tuple[Mask, Mask]:
        del step
        return predict(formula, seen, 0 if groups_by == "index" else place)

    return Rule(text, decide, formula.group, placed=groups_by != "index")


def formula_of(fmt: Format, measure: Mapping[str, Any]) -> Formula | None:
    """The formula that a neighbour_dependence finding lists; None where it lists none, or names what is not known here."""
    rows, group = measure.get("weights"), measure.get("group_elements")
    if not isinstance(rows, list) or not rows or not isinstance(group, int):
        return None
    word = FORMATS["binary32"] if fmt.precision < 24 else fmt
    weights: dict[tuple[int, int], int] = {}
    pairings = set()
    for row in rows:
        element = re.fullmatch(r"q(?:([+^])(\d+))?", str(row.get("neighbour")))
        bit = {"e0": EXPONENT, "s": SIGN}.get(str(row.get("bit")))
        if bit is None and (number := re.fullmatch(r"b(\d+)", str(row.get("bit")))):
            bit = word.mantissa_bits - 1 - int(number[1])
        if element is None or bit is None:
            return None
        pairings |= {element[1]} - {None}
        weights[int(element[2] or 0), bit] = round(float(row["weight"]) * ONE)
    noise = max(-int(row["log2"]) for row in rows) if all(row.get("log2") is not None for row in rows) else 0
    shown = noise if 2.0**-noise > float(measure.get("resolution") or 0.0) else 0
    pairing = "xor" if "^" in pairings else "cyclic"
    return Formula(group, weights, pairing, str((measure.get("forms_left") or ["SRFF"])[0]), shown)
