"""One word for what a special case gave, and one for what all cases of a kind amount to. Pure: codes in, words out.

What the words are compared with: IEEE 754-2019, in which every NaN operand makes a NaN (for minimum and maximum too, which its
minimumNumber and maximumNumber ignore), -0 comes of -0 alone, subnormals are numbers like others, and a sum past the
maximum by half a gap is infinite. No collective promises any of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

import numpy as np

from auditor.inputs.cases import Case
from auditor.numerics.exact import exact_sum_reference
from auditor.numerics.formats import Format
from auditor.numerics.rounding import sum_reference
from auditor.probes.values import to_float64

_IEEE = {  # the word that stands for: nothing to report
    "nan": "propagates",
    "infinity": "ieee",
    "negative_zero": "ieee",
    "subnormal_flush": "none",
    "overflow": "infinity",
}


def usual(fmt: Format, kind: str) -> str:
    """The behaviour that needs no mention: IEEE 754's; past the maximum of a format without infinity, NaN."""
    return "nan" if kind == "overflow" and not fmt.has_infinity else _IEEE[kind]


def is_nan(fmt: Format, code: int) -> bool:
    magnitude = code & fmt.magnitude_mask
    return magnitude > fmt.overflow_code if fmt.has_infinity else magnitude > fmt.max_code


def value(fmt: Format, code: int) -> float:
    return float(to_float64(fmt, np.array([code], fmt.dtype))[0])


def hexed(fmt: Format, code: int) -> str:
    return f"0x{code:0{fmt.bits // 4}x}"


def expected_code(fmt: Format, op: str, codes: Sequence[int], mode: str = "ties_to_even") -> int:
    """The sum rounded once (of an average: what its sum is, where that is not a finite number), or the extreme."""
    if op in ("sum", "avg"):
        return sum_reference(fmt, codes, mode)
    if any(is_nan(fmt, code) for code in codes):
        return fmt.nan_code
    return (min if op == "min" else max)(codes, key=lambda code: _order(fmt, code))


def _order(fmt: Format, code: int) -> int:
    """Integers in the order of the values, -0 below +0."""
    return -(code & fmt.magnitude_mask) - 1 if code & fmt.sign_mask else code


# ------------------------------------------------------------------------------------------------------------ one case


def word(fmt: Format, op: str, case: Case, code: int) -> str:
    """What the code is, in the terms of the case's kind; "" where this op and case tell nothing."""
    codes = [int(c) for c in case.codes]
    return {
        "nan": _nan_word,
        "infinity": _infinity_word,
        "negative_zero": _zero_word,
        "subnormal_flush": _subnormal_word,
        "overflow": _overflow_word,
    }[case.kind](fmt, op, codes, code)


def _nan_word(fmt: Format, op: str, codes: list[int], code: int) -> str:
    if is_nan(fmt, code):
        return "NaN"
    numbers = [c for c in codes if not is_nan(fmt, c)]
    if not numbers:
        return "lost"
    if op in ("min", "max"):
        return "ignored" if code == expected_code(fmt, op, numbers) else "lost"
    return "ignored" if _near(fmt, numbers, code, len(codes) if op == "avg" else 1) else "lost"


def _near(fmt: Format, codes: Sequence[int], code: int, over: int = 1) -> bool:
    """Whether the code is the sum (over ``over``) but for a rounding, of whatever mode, at each addition."""
    parts, got = [value(fmt, c) for c in codes], value(fmt, code)
    if not all(isfinite(part) for part in parts):
        return bool(got == sum(parts))
    if not isfinite(got):
        return False
    want: Fraction = sum(map(Fraction, parts), Fraction(0)) / over
    return bool(abs(Fraction(got) - want) <= abs(want) * (len(codes) + 1) / 2 ** (fmt.precision - 1))


def payload_word(fmt: Format, codes: Sequence[int], code: int, ranks: Sequence[int]) -> str:
    """What became of the NaN's bits: ``kept``, ``quieted`` (of which rank, where several hold one), or the code itself."""
    held = [(rank, c) for rank, c in zip(ranks, codes, strict=True) if is_nan(fmt, c)]
    quiet = 1 << (fmt.mantissa_bits - 1) if fmt.has_infinity else 0
    ways = (("kept", 0, 0), ("quieted", quiet, 0), ("kept, sign changed", 0, fmt.sign_mask))
    for name, bit, flip in ways:
        mine = [rank for rank, c in held if (c | bit) ^ flip == code]
        if mine and len(mine) < len(held):
            lower = "lower" if mine[0] == held[0][0] else "higher"
            return f"{name}, of the {lower} rank" if len(held) == 2 else f"{name}, of rank {mine[0]}"
        if mine:
            return name
    return hexed(fmt, code)


def _infinity_word(fmt: Format, op: str, codes: list[int], code: int) -> str:
    want = expected_code(fmt, op, codes)
    if code == want or (is_nan(fmt, want) and is_nan(fmt, code)):
        return "as IEEE 754"
    if is_nan(fmt, code):
        return "NaN"
    magnitude = code & fmt.magnitude_mask
    if magnitude == fmt.overflow_code:
        return "infinity of the other sign" if not is_nan(fmt, want) else "infinity"
    return "the largest finite value" if magnitude == fmt.max_code else "a finite value"


def _zero_word(fmt: Format, op: str, codes: list[int], code: int) -> str:
    if expected_code(fmt, op, codes) & fmt.magnitude_mask:
        return ""  # min or max of x and -x
    return "+0" if code == 0 else "-0" if code == fmt.sign_mask else f"not zero: {hexed(fmt, code)}"


def _subnormal_word(fmt: Format, op: str, codes: list[int], code: int) -> str:
    want = expected_code(fmt, op, codes)
    if want & fmt.magnitude_mask == 0:
        return ""  # min or max of it and 0 is the zero
    if code == want:
        return "kept"
    least = 1 << fmt.mantissa_bits
    flushed = [c if c & fmt.magnitude_mask >= least else c & fmt.sign_mask for c in codes]
    if code & fmt.magnitude_mask == 0:
        return "flushed to -0" if code else "flushed to +0"
    if code == expected_code(fmt, op, flushed):
        return "input as zero"
    return f"another value: {hexed(fmt, code)}"


def _overflow_word(fmt: Format, op: str, codes: list[int], code: int) -> str:
    if is_nan(fmt, code):
        return "NaN"
    magnitude = code & fmt.magnitude_mask
    if fmt.has_infinity and magnitude == fmt.overflow_code:
        return "infinity"
    if op in ("min", "max"):
        return "right" if code == expected_code(fmt, op, codes) else f"another value: {hexed(fmt, code)}"
    if not _past(fmt, codes) and _near(fmt, codes, code):
        return "right"
    return "the largest finite value" if magnitude == fmt.max_code else f"another value: {hexed(fmt, code)}"


def _past(fmt: Format, codes: list[int]) -> bool:
    """Whether the exact sum lies above the largest finite value."""
    # Both are integers in units of the format's lowest bit.
    return abs(exact_sum_reference(fmt, codes)[0]) > exact_sum_reference(fmt, [fmt.max_code])[0]


# ------------------------------------------------------------------------------------------------------------ all cases


@dataclass(frozen=True, slots=True)
class Told:
    """One case with the words that it gave at each place (count and shift), and whether receivers got different ones there."""

    case: Case
    by_place: Mapping[str, frozenset[str]]
    disagree: bool = False

    @property
    def words(self) -> frozenset[str]:
        return frozenset().union(*self.by_place.values())


def coarse(word: str) -> str:
    """The word without what does not make two outcomes different: the sign of a zero that a subnormal became."""
    return "flushed" if word.startswith("flushed") else word


def settled(told: Sequence[Told]) -> list[Told]:
    """The cases whose outcome neither a rounding nor the order of additions decides."""
    return [
        one
        for one in told
        if not any(part in one.case.name for part in ("ulp/2", "max + max - max", "max - max + max"))
    ]


def receivers_that_differ(told: Sequence[Told]) -> list[str]:
    """Names of settled cases of which receivers of one call got different outcomes."""
    return list(dict.fromkeys(one.case.name for one in settled(told) if one.disagree))


def slots_that_differ(told: Sequence[Told]) -> dict[str, str]:
    """Settled cases that give other words at other slots in calls of one place: name -> that place."""
    seen: dict[tuple[str, str], set[str]] = {}
    for one in settled(told):
        for place, words in one.by_place.items():
            if len(words) == 1:
                seen.setdefault((one.case.name, place), set()).add(coarse(*words))
    found: dict[str, str] = {}
    for (name, place), several in seen.items():
        if len(several) > 1:
            found.setdefault(name, place)
    return found


def places_that_differ(told: Sequence[Told]) -> list[str]:
    """Names of settled cases that give several words at one slot."""
    return list(dict.fromkeys(o.case.name for o in settled(told) if len({coarse(w) for w in o.words}) > 1))


def behaviour(op: str, kind: str, told: Sequence[Told]) -> str:
    """The one word of a kind."""
    if receivers_that_differ(told):
        return "depends_on_receiver"
    if slots_that_differ(told):
        return "depends_on_rank"
    if places_that_differ(told):
        return "depends_on_place"
    flat = {one.case.name: coarse(min(one.words)) for one in settled(told)}
    return {
        "nan": _nan,
        "infinity": _infinity,
        "negative_zero": _zero,
        "subnormal_flush": _subnormal,
        "overflow": _overflow,
    }[kind](op, flat)


def _nan(op: str, flat: dict[str, str]) -> str:
    del op
    seen = {w for name, w in flat.items() if name != "NaN in every rank"}
    if seen == {"NaN"} or not seen:
        return "propagates" if set(flat.values()) == {"NaN"} else "lost"
    if seen == {"ignored"}:
        return "ignored"
    return "lost" if seen <= {"lost", "ignored"} else "mixed"


def _infinity(op: str, flat: dict[str, str]) -> str:
    del op
    seen = set(flat.values())
    if seen == {"as IEEE 754"}:
        return "ieee"
    return "saturates" if "the largest finite value" in seen and "NaN" not in seen else "mixed"


def _zero(op: str, flat: dict[str, str]) -> str:
    if op in ("min", "max"):
        right = {"+0, others -0": ("-0", "+0"), "-0, others +0": ("-0", "+0"), "all -0": ("-0", "-0")}
        column = 0 if op == "min" else 1
        zeros = {name: w for name, w in flat.items() if name in right}
        if all(w == right[name][column] for name, w in zeros.items()):
            return "ieee"
        return "sign_ignored" if set(zeros.values()) <= {"+0", "-0"} else "mixed"
    if set(flat.values()) - {"+0", "-0"}:
        return "mixed"
    others = {w for name, w in flat.items() if name != "all -0"}
    if flat.get("all -0") == "-0":
        return "ieee" if others <= {"+0"} else "toward_negative" if others == {"-0"} else "mixed"
    return "positive_zero" if others <= {"+0"} else "mixed"


def _subnormal(op: str, flat: dict[str, str]) -> str:
    seen = {name.lstrip("-"): w for name, w in flat.items()}
    if set(seen.values()) <= {"kept"}:
        return "none"
    if any(w.startswith("another") for w in seen.values()):
        return "mixed"
    if op in ("min", "max"):
        return "flushed"
    read = {seen.get(name, "kept") for name in ("(largest + least)",)}  # subnormal in, normal out
    written = {seen.get(name, "kept") for name in ("(1.5 normal - normal)",)}  # normal in, subnormal out
    ins, outs = read != {"kept"}, written != {"kept"}
    return "inputs_and_outputs" if ins and outs else "inputs" if ins else "outputs"


def _overflow(op: str, flat: dict[str, str]) -> str:
    if op in ("min", "max"):
        return "unchanged" if set(flat.values()) <= {"right"} else "mixed"
    if any(w != "right" for name, w in flat.items() if name.startswith("2**")):
        return "narrower_range"
    names = ("max + max", "max + ulp", "n max") if "(max + max)" in flat else ("n max",)
    plus, minus = ({flat[f"{sign}({name})"] for name in names if f"{sign}({name})" in flat} for sign in ("", "-"))
    seen = plus | minus
    simple = {"infinity": "infinity", "the largest finite value": "saturates", "NaN": "nan"}
    if len(seen) == 1:
        return simple.get(next(iter(seen)), "mixed")
    # Past the maximum a directed mode goes to infinity (where there is none, to NaN) on one side alone.
    stays = {"the largest finite value"}
    if plus == stays and minus in ({"infinity"}, {"NaN"}):
        return "toward_negative"
    if minus == stays and plus in ({"infinity"}, {"NaN"}):
        return "toward_positive"
    return "mixed"
