"""A rounding keyed by other elements, as a formula: which bit of which neighbour weighs how much; said and predicted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.numerics.exact import Sums
from auditor.numerics.rounding import Split

U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

FORMS = ("SRFF", "SRC", "SRF", "over 1")
EXPONENT, SIGN = -1, -2  # features that are no mantissa bit
ONE = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a subject made of a trial's sums; arrays of shape (n,) by send index."""

    split: Split
    up: Mask
    field: U64  # mantissa field of the sum's word, bit 63 first
    exponent: npt.NDArray[np.int64]
    place: int  # elements between an aligned address and send index 0

    def __len__(self) -> int:
        return len(self.up)

    @property
    def inexact(self) -> Mask:
        return self.split.inexact

    def feature(self, which: int) -> Mask:
        """Bit ``which`` of the mantissa field from the top, the lowest bit of the exponent's field, or the sign."""
        if which == SIGN:
            return np.asarray(self.split.negative, np.bool_)
        if which == EXPONENT:
            return np.asarray((self.exponent & 1) == 0, np.bool_)  # binary32's field is exponent + 127
        return np.asarray(((self.field >> np.uint64(63 - which)) & np.uint64(1)) != 0, np.bool_)


def seen_from(split: Split, sums: Sums, up: Mask, place: int) -> Seen:
    return Seen(split, up, sums.sig << np.uint64(1), sums.exp.astype(np.int64) + 63, place)


@dataclass(frozen=True, slots=True)
class Formula:
    """|x| goes up iff rem + the sum of weights of set bits >= 1, with ``form``'s treatment of the last bit.

    ``weights``: (relation, feature) -> weight in units of 2**-64, where the neighbour is element (q + d) mod group, or q xor d,
    as ``pairing`` says. ``noise_n``: bits of noise r; 0 where they reach below what rem can show.
    """

    group: int
    weights: dict[tuple[int, int], int] = field(hash=False)
    pairing: str = "cyclic"
    form: str = "SRFF"
    noise_n: int = 0

    def with_form(self, form: str) -> Formula:
        return replace(self, form=form)


def predict(formula: Formula, seen: Seen, place: int | None = None) -> tuple[Mask, Mask]:
    """(up, whether the element's whole group lies in the range), shape (n,) each. ``place``: where groups are counted from."""
    n, g = len(seen), formula.group
    at = np.arange(n) + (seen.place if place is None else place)
    q, base = at % g, np.arange(n) - at % g
    noise, full = np.zeros(n, np.uint64), np.zeros(n, np.bool_)
    for (relation, which), weight in formula.weights.items():
        other = base + ((q + relation) % g if formula.pairing == "cyclic" else q ^ relation)
        bits = seen.feature(which)[np.clip(other, 0, n - 1)]
        added = np.where(bits, np.uint64(weight), np.uint64(0))
        noise += added
        full |= noise < added  # noise of 1 or more
    return up_of(formula, seen.split, noise) | (full & seen.inexact), (base >= 0) & (base + g <= n)


def up_of(formula: Formula, split: Split, noise: U64) -> Mask:
    """Forms by NUMERICS §7.1. Noise below 1; an exact sum stays."""
    rem, r = split.rem, formula.noise_n
    if formula.form == "SRF" and r:
        noise = noise + np.uint64(1 << (63 - r))
    elif formula.form == "SRC" and r:
        unit, half = np.uint64(64 - r), np.uint64(1 << (63 - r))
        kept = rem >> unit
        rest = rem - (kept << unit)
        kept = kept + ((rest > half) | ((rest == half) & ((kept & np.uint64(1)) != 0)))
        whole = kept == np.uint64(1 << r)
        rem = kept << unit
        return np.asarray((whole | (rem + noise < noise)) & split.inexact, np.bool_)
    total = rem + noise
    carried = total < noise
    if formula.form == "over 1":
        carried &= total != 0
    return np.asarray(carried & split.inexact, np.bool_)


# ----------------------------------------------------------------------------------------------------------------- words


def exponent_of(weight: int) -> int | None:
    """k where the weight is 2**-k, else None."""
    return 64 - (weight.bit_length() - 1) if weight and weight & (weight - 1) == 0 else None


def said_weight(weight: int) -> str:
    k = exponent_of(weight)
    return f"/{1 << k}" if k is not None else f"*{weight / ONE:.6g}"


def said_bit(which: int, mantissa_bits: int) -> str:
    """Bits are numbered as in the accumulator's word; ``mantissa_bits`` of it."""
    return {EXPONENT: "e0", SIGN: "s"}.get(which) or f"b{mantissa_bits - 1 - which}"


def said_element(formula: Formula, relation: int) -> str:
    if relation == 0:
        return "q"
    return f"q+{relation}" if formula.pairing == "cyclic" else f"q^{relation}"


def text(formula: Formula, mantissa_bits: int = 23) -> str:
    """One line: ``up iff rem + b22(q+1)/2 + b22(q+2)/4 + ... >= 1``."""
    ordered = sorted(formula.weights.items(), key=lambda item: -item[1])
    terms = [
        f"{said_bit(which, mantissa_bits)}({said_element(formula, relation)}){said_weight(weight)}"
        for (relation, which), weight in ordered
    ]
    r = formula.noise_n
    rem = f"rem rounded to {r} bits" if formula.form == "SRC" and r else "rem"
    offset = [f"1/{1 << (r + 1)}"] if formula.form == "SRF" and r else []
    return f"up iff {' + '.join([rem, *terms, *offset])} {'>' if formula.form == 'over 1' else '>='} 1"


def listed_weights(formula: Formula, mantissa_bits: int = 23) -> list[dict[str, Any]]:
    """JSON rows, the heaviest first."""
    return [
        {
            "neighbour": said_element(formula, relation),
            "bit": said_bit(which, mantissa_bits),
            "weight": weight / ONE,
            "log2": None if (k := exponent_of(weight)) is None else -k,
        }
        for (relation, which), weight in sorted(formula.weights.items(), key=lambda item: -item[1])
    ]


# ------------------------------------------------------------------------------------------------------------- structure


@dataclass(frozen=True, slots=True)
class Structure:
    """A regular formula in a few words. ``bits_max`` None: more bits than ``bits`` would weigh less than rem can show."""

    order: str  # forward, reversed, either
    own: bool  # the element itself takes part
    bits: int
    bits_max: int | None
    layout: str  # planes: one bit of every neighbour, then the next; elements: all bits of one neighbour, then the next


def regular(group: int, order: str, own: bool, bits: int, layout: str, depth: int) -> dict[tuple[int, int], int]:
    """The weights 1/2, 1/4, ... of a regular rule, as far as ``depth`` bits of rem show them."""
    first = 0 if own else 1
    distances = [d if order == "forward" else -d % group for d in range(first, first + group - 1)]
    if layout == "planes":
        pairs = [(d, bit) for bit in range(bits) for d in distances]
    else:
        pairs = [(d, bit) for d in distances for bit in range(bits)]
    return {pair: ONE >> (k + 1) for k, pair in enumerate(pairs[:depth])}


def structure(formula: Formula, depth: int, bits_there: int) -> Structure | None:
    """The regular rules that give exactly these weights; None where none does."""
    if formula.pairing != "cyclic":
        return None
    found = [
        (layout, own, order, bits)
        for layout in ("planes", "elements")
        for own in (False, True)
        for order in ("forward", "reversed")
        for bits in range(1, bits_there + 1)
        if regular(formula.group, order, own, bits, layout, depth) == formula.weights
    ]
    if not found:
        return None
    layout, own = found[0][:2]
    alike = [one for one in found if one[:2] == (layout, own)]
    orders = sorted({one[2] for one in alike})
    bits_seen = sorted({one[3] for one in alike})
    shown = bits_seen[0] * (formula.group - 1) < depth  # one more weight would have shown
    order = orders[0] if len(orders) == 1 else "either"
    return Structure(order, own, bits_seen[0], bits_seen[-1] if shown else None, layout)
