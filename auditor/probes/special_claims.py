"""What a special finding says: one sentence, from its one word and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.model import Trial
from auditor.probes.common import listed, where
from auditor.probes.special_words import Told, places_that_differ, receivers_that_differ, slots_that_differ

_BACK = ("(max + max - max)", "(max - max + max)")
_NAMES = {
    "nan": "NaN",
    "infinity": "infinity",
    "negative_zero": "-0",
    "subnormal_flush": "subnormals",
    "overflow": "sums past the maximum",
}
_SAYS = {
    ("nan", "propagates"): "gives NaN whichever rank holds one",
    ("nan", "ignored"): "ignores a NaN of any rank and gives the result of the others",
    ("nan", "lost"): "loses a NaN: a number comes back that is not the result of the others either",
    ("nan", "mixed"): "treats NaN differently by the kind of NaN",
    ("infinity", "ieee"): "gives infinities, and NaN for their difference, as IEEE 754 does",
    ("infinity", "saturates"): "gives the largest finite value for an infinity",
    ("infinity", "mixed"): "treats infinities otherwise than IEEE 754",
    ("negative_zero", "ieee"): "keeps the sign of zero as IEEE 754 does",
    (
        "negative_zero",
        "positive_zero",
    ): "gives +0 even where every rank sends -0, as an accumulator that begins at +0 does",
    ("negative_zero", "toward_negative"): "gives -0 for x - x, as rounding toward negative does",
    ("negative_zero", "sign_ignored"): "takes -0 and +0 for equal: which comes back does not follow from their order",
    ("negative_zero", "mixed"): "treats zeros otherwise than IEEE 754",
    ("subnormal_flush", "none"): "keeps subnormals, coming in and going out",
    ("subnormal_flush", "inputs"): "reads subnormal inputs as zero",
    ("subnormal_flush", "outputs"): "flushes subnormal results to zero",
    ("subnormal_flush", "inputs_and_outputs"): "reads subnormal inputs as zero and flushes subnormal results",
    ("subnormal_flush", "flushed"): "takes subnormals for zero",
    ("subnormal_flush", "mixed"): "changes subnormals into other values",
    ("overflow", "infinity"): "gives infinity past the maximum",
    ("overflow", "unchanged"): "returns finite values of the whole range unchanged",
    ("overflow", "saturates"): "gives the largest finite value past the maximum",
    ("overflow", "nan"): "gives NaN past the maximum",
    ("overflow", "toward_positive"): "passes the maximum upward alone, and gives the least finite value below it",
    ("overflow", "toward_negative"): "gives the largest finite value above the maximum, and passes the least downward",
    ("overflow", "narrower_range"): "cannot carry finite values that the format holds",
    ("overflow", "mixed"): "treats sums past the maximum differently from case to case",
}


def claim_of(trials: Sequence[Trial], kind: str, name: str, told: Sequence[Told], measure: Mapping[str, Any]) -> str:
    """One sentence with its conditions."""
    said = _depends(trials[0], kind, name, told) or _SAYS[kind, name]
    more = [said, *_more(trials[0], kind, told, measure)]
    return f"{where(trials)} " + "; ".join(part for part in more if part) + "."


def _depends(trial: Trial, kind: str, name: str, told: Sequence[Told]) -> str:
    if name == "depends_on_receiver":
        case = receivers_that_differ(told)[0]
        words = sorted({w for one in told if one.case.name == case and one.disagree for w in one.words})
        return f"gives different receivers different results of {_NAMES[kind]} ({case}: {' or '.join(words)})"
    if name == "depends_on_rank":
        case, place = next(iter(slots_that_differ(told).items()))
        by_word: dict[str, set[int]] = {}
        for one in told:
            if one.case.name == case and len(one.by_place.get(place, ())) == 1:
                by_word.setdefault(min(one.by_place[place]), set()).add(trial.members[one.case.slot])
        shares = [f"{word} from rank {listed(sorted(ranks))}" for word, ranks in sorted(by_word.items())]
        return f"treats {_NAMES[kind]} by which rank holds it ({case}, at {place}: {', '.join(shares)})"
    if name == "depends_on_place":
        case = places_that_differ(told)[0]
        words = sorted({w for one in told if one.case.name == case for w in one.words})
        return f"treats {_NAMES[kind]} differently from place to place or call to call ({case}: {' or '.join(words)})"
    return ""


def _more(trial: Trial, kind: str, told: Sequence[Told], measure: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    if kind == "nan" and (words := measure.get("payloads")):
        parts.append(_payload_text(words))
    if kind == "overflow" and trial.call.op == "sum":
        parts.append(_way_back(told))
    if kind == "subnormal_flush" and (signs := _flushed_signs(told)):
        parts.append(signs)
    if (near := measure.get("beside")) and near["changed"]:
        whether = (
            "as they do beside other ordinary values"
            if near["changed_beside_ordinary"]
            else "which beside ordinary values they do not"
        )
        parts.append(f"{near['changed']} of {near['compared']} elements beside one round otherwise, {whether}")
    return parts


def _payload_text(words: Mapping[str, Any]) -> str:
    """``payloads: quiet NaN kept, signalling NaN quieted, of two NaNs kept, of the lower rank``."""
    texts = []
    for name in ("quiet NaN", "signalling NaN", "two NaNs"):
        if name in words:
            told = [words[name]] if isinstance(words[name], str) else list(words[name].values())
            single = sorted({word for text in told for word in text.split(" or ")})
            texts.append(f"{name} {' or '.join(single)}")
    return f"payloads: {'; '.join(texts)}" if texts else ""


def _way_back(told: Sequence[Told]) -> str:
    seen = {word for one in told if one.case.name in _BACK for word in one.words}
    if not seen:
        return ""
    if seen == {"right"}:
        return "max + max - max is max wherever they stand, as it is where partial sums have a wider range"
    if "right" in seen:
        return "max + max - max is max or not by which rank holds what: partial sums overflow on the way"
    return "max + max - max overflows on the way wherever they stand"


def _flushed_signs(told: Sequence[Told]) -> str:
    negative = {word for one in told if one.case.name.startswith("-") for word in one.words} & {
        "flushed to +0",
        "flushed to -0",
    }
    return f"a negative one becomes {' or '.join(sorted(w[-2:] for w in negative))}" if negative else ""
