"""From a cell's readings to a formula, its form, its agreement with data that it was not made from, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from auditor.inputs.contexts import space
from auditor.numerics.formats import Format
from auditor.numerics.rounding import up_by_mode
from auditor.probes import common
from auditor.probes.neighbours import spectrum
from auditor.probes.neighbours.formula import (
    Formula,
    Seen,
    Structure,
    listed_weights,
    predict,
    regular,
    structure,
    text,
)
from auditor.probes.neighbours.ladder import Reading, Toggles
from auditor.probes.statistics import clopper_pearson

GOOD = 0.9999  # held-out agreement from which on a formula is called the rule
MADE_FROM = ("sparse", "dense", "one")
HELD_OUT = ("held_out", "fine")  # seeds of their own


@dataclass(slots=True)
class Learned:
    """``formula`` None: none was found, ``why`` says so. ``agrees``: (k, n) of inexact held-out elements, and by role."""

    formula: Formula | None
    why: str = ""
    forms: list[str] = field(default_factory=list)
    shape: Structure | None = None
    agrees: tuple[int, int] = (0, 0)
    by_role: dict[str, tuple[int, int]] = field(default_factory=dict)
    rivals: dict[str, tuple[int, int]] = field(default_factory=dict)
    groups_by: str = ""
    summed: bool | None = None  # whether only the sum counts, not which rank sends what
    reach: int = 0

    @property
    def good(self) -> bool:
        return self.formula is not None and self.agrees[1] > 0 and self.agrees[0] >= GOOD * self.agrees[1]


def learn(fmt: Format, first: Mapping[str, Reading]) -> Learned:
    """The formula from the sparse trial, its form from all that it is made from, then its trial on the held-out data."""
    found = spectrum.identify(fmt, first["sparse"].seen)
    if found.formula is None:
        return Learned(None, found.why, reach=found.reach)
    forms = spectrum.forms(found.formula, [first[name].seen for name in MADE_FROM if name in first])
    formula = found.formula.with_form(forms.left[0])
    learned = Learned(formula, forms=forms.left, shape=structure(formula, space(fmt).depth, space(fmt).bits))
    learned.reach = found.reach
    for name in HELD_OUT:
        if name in first and not first[name].outside:
            learned.by_role[name] = _agreement(formula, first[name].seen)
    learned.agrees = _total(learned.by_role.values())
    learned.rivals = _rivals(fmt, learned, [first[name].seen for name in HELD_OUT if name in learned.by_role])
    if "shifted" in first:
        learned.groups_by = _groups_by(formula, first["shifted"].seen)
    if "turned" in first:
        learned.summed = bool((first["turned"].seen.up == first["dense"].seen.up).all())
    return learned


def _total(pairs: Any) -> tuple[int, int]:
    rows = list(pairs)
    return sum(k for k, _ in rows), sum(n for _, n in rows)


def _agreement(formula: Formula, seen: Seen, place: int | None = None) -> tuple[int, int]:
    up, whole = predict(formula, seen, place)
    use = whole & seen.inexact
    return int((use & (up == seen.up)).sum()), int(use.sum())


def _groups_by(formula: Formula, seen: Seen) -> str:
    """Where groups begin when the range begins one element after an aligned address."""
    wrong = {}
    for name, place in (("address", None), ("index", 0)):
        k, n = _agreement(formula, seen, place)
        wrong[name] = n - k
    best = min(wrong, key=lambda name: wrong[name])
    other = max(wrong.values())
    return best if wrong[best] * 4 < other else "neither" if other else "either"


def _rivals(fmt: Format, learned: Learned, data: list[Seen]) -> dict[str, tuple[int, int]]:
    """By rival: (held-out elements that tell it from the formula, those of them that speak for the rival)."""
    formula, shape = learned.formula, learned.shape
    assert formula is not None
    others: dict[str, Formula] = {}
    if shape is not None and shape.order != "either":
        depth = space(fmt).depth
        turned = {"forward": "reversed", "reversed": "forward"}[shape.order]
        weights = regular(formula.group, turned, shape.own, shape.bits, shape.layout, depth)
        others[f"{turned} order"] = Formula(formula.group, weights, "cyclic", formula.form, formula.noise_n)
        if shape.bits > 1:
            weights = regular(formula.group, shape.order, shape.own, shape.bits - 1, shape.layout, depth)
            others["one bit a neighbour less"] = Formula(formula.group, weights, "cyclic", formula.form)
    for form in ("SRFF", "SRC", "SRF", "over 1"):
        if form not in learned.forms:
            others[form] = formula.with_form(form)
    found = {"ties_to_even": [0, 0], **{name: [0, 0] for name in others}}
    for seen in data:
        up, whole = predict(formula, seen)
        use = whole & seen.inexact
        guesses = {name: predict(other, seen)[0] for name, other in others.items()}
        guesses["ties_to_even"] = up_by_mode("ties_to_even", seen.split)
        for name, guess in guesses.items():
            apart = use & (guess != up)
            found[name][0] += int(apart.sum())
            found[name][1] += int((apart & (guess == seen.up)).sum())
    return {name: (a, b) for name, (a, b) in found.items()}


# ----------------------------------------------------------------------------------------------------------------- words


def measure(learned: Learned, fmt: Format, mantissa_bits: int) -> dict[str, Any]:
    formula, shape = learned.formula, learned.shape
    depth = space(fmt).depth
    if formula is None:
        return {"formula": None, "resolution": 2.0**-depth, "reach_elements": learned.reach}
    k, n = learned.agrees
    rows: dict[str, Any] = {
        "formula": text(formula, mantissa_bits),
        "group_bytes": formula.group * fmt.itemsize,
        "group_elements": formula.group,
        "order": shape.order if shape else "irregular",
        "own_bits_take_part": any(relation == 0 for relation, _ in formula.weights),
        "noise_bits": shape.bits if shape else None,
        "noise_bits_max": shape.bits_max if shape else None,
        "layout": shape.layout if shape else None,
        "form": learned.forms[0] if len(learned.forms) == 1 else "undetermined",
        "forms_left": learned.forms,
        "weights": listed_weights(formula, mantissa_bits),
        "resolution": 2.0**-depth,
        "held_out_agreement": k / n if n else None,
        "held_out_agreement_95": list(clopper_pearson(k, n)),
        "held_out": {"agree": k, "elements": n},
        "held_out_by_trial": {name: list(pair) for name, pair in learned.by_role.items()},
        "separated_from": {name: {"elements": a, "for_it": b} for name, (a, b) in learned.rivals.items()},
    }
    if learned.groups_by:
        rows["groups_begin_by"] = learned.groups_by
    if learned.summed is not None:
        rows["keyed_by_the_sum"] = learned.summed
    return rows


def claim(learned: Learned, fmt: Format, mantissa_bits: int, toggles: Mapping[str, Toggles]) -> str:
    one = toggles["one"]
    rate = f"{one.changed:,} of {one.kept:,} results change when one element within 64 bytes is drawn anew"
    if learned.formula is None:
        return f"{rate}; no formula of their bits was found, because {learned.why}."
    k, n = learned.agrees
    low, high = clopper_pearson(k, n)
    held = f"{_percent(k / n)} of {n:,} held-out inexact sums agree (95 %: {_percent(low)} to {_percent(high)})"
    if not learned.good:
        rest = "the rule is not additive in these bits, or reads others"
        best = f"the best formula, {text(learned.formula, mantissa_bits)}, is not the whole of it ({rest}): {held}"
        return f"{rate}; {best}."
    size = learned.formula.group * fmt.itemsize
    return f"{text(learned.formula, mantissa_bits)}, in aligned groups of {size} bytes; {held}."


def _percent(share: float) -> str:
    return f"{100 * share:.4f} %"


def limits(learned: Learned, fmt: Format, members: int) -> str:
    depth = space(fmt).depth
    texts = [
        f"q is the element's place in its group; bits are those of the sum's word in the accumulator, rem has {depth} bits"
    ]
    if members < 3:
        p = fmt.precision
        texts[0] += f" next to 0 and 1 and {p} elsewhere: two ranks give no finer ones, three or more would"
    texts[0] += "."
    if learned.formula is None:
        return texts[0]
    shape = learned.shape
    if shape is not None and shape.bits_max != shape.bits:
        texts.append(f"Further bits of a neighbour would weigh less than 2**-{depth}, which no rem here can show.")
    if len(learned.forms) > 1:
        texts.append(f"{common.listed(learned.forms)} are the same as far as {depth} bits of rem show.")
    if shape is not None and shape.order == "either":
        texts.append("With two elements a group there is one neighbour and no order.")
    return " ".join(texts)
