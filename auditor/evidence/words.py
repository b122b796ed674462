"""What is said of a kind in a bug report: a title, what is counted, and what one would like to know. No kind is called a bug."""

from __future__ import annotations

import re
from dataclasses import dataclass

from auditor.model import Finding

MOST_TITLE = 90
MODES = {
    "ties_to_even": "to nearest, ties to even",
    "ties_to_away": "to nearest, ties away from zero",
    "toward_zero": "toward zero",
    "toward_positive": "toward plus infinity",
    "toward_negative": "toward minus infinity",
    "away_from_zero": "away from zero",
    "stochastic": "stochastically",
    "mixed": "by no single IEEE mode",
    "undetermined": "by a mode that the data leave open",
}


@dataclass(frozen=True, slots=True)
class Words:
    """``title``: after "all_reduce sum of bfloat16" and a colon. ``places``: after "places where". ``questions``: in order."""

    title: str
    places: str
    questions: tuple[str, ...]


_DOCUMENT = "If it is intended, could the documentation say so?"
_FIXED = "Is it known, and is there a release or a setting without it?"
_BY_KIND = {
    "rounding_mode": Words(
        "rounds {mode}",
        "a result is not the exact sum rounded {reference}",
        (
            "Is this rounding intended for this type and on this path?",
            "If so, could the documentation say that a result need not be the exact sum rounded to nearest, ties to even?",
        ),
    ),
    "double_rounding": Words(
        "rounds twice",
        "a result is not the exact sum rounded once, {reference}",
        ("Which format are partial sums kept in on this path?", _DOCUMENT),
    ),
    "not_faithful": Words(
        "returns values that are neither neighbour of the exact sum of two terms",
        "a result of one addition is neither neighbour of the exact sum",
        ("Which operation is performed on this path, in which format?", _FIXED),
    ),
    "foreign_read": Words(
        "results depend on bytes outside the send range",
        "the same inputs give other bits when only bytes outside the send range change",
        (
            "Is the path meant to read bytes outside the range that it is given, and may they change a result inside it?",
            "If not, could the ends of a range be padded, or take another path?",
        ),
    ),
    "neighbour_dependence": Words(
        "the rounding of an element depends on other elements",
        "an element with the same inputs gives other bits beside other neighbours",
        ("Is this the expected rounding on this path and platform?", _DOCUMENT),
    ),
    "shift_dependence": Words(
        "results depend on where the buffers begin",
        "the same inputs give other bits when the ranges begin elsewhere",
        ("Which paths are chosen by alignment, and do they round alike?", _DOCUMENT),
    ),
    "count_dependence": Words(
        "results depend on the count",
        "the same leading inputs give other bits in a longer range",
        ("Does the count choose another order of additions here?", _DOCUMENT),
    ),
    "position_dependence": Words(
        "results depend on the position in the range",
        "the same inputs give other bits elsewhere in the range",
        ("Does the position choose another order of additions here?", _DOCUMENT),
    ),
    "in_place_difference": Words(
        "in place gives other bits than out of place",
        "the same inputs give other bits in place",
        ("Do the two take different paths here?", _DOCUMENT),
    ),
    "path_split": Words(
        "parts of a range round otherwise than the rest",
        "the same inputs give other bits by how the range begins or ends",
        ("Which elements take another path, and does it round alike?", _DOCUMENT),
    ),
    "not_repeatable": Words(
        "the same call gives different bits from time to time",
        "a repeated call gives other bits than the first",
        ("Are results meant to be the same bits when a call is repeated in one process?", _FIXED),
    ),
    "rank_disagreement": Words(
        "ranks end with different results",
        "a rank holds other bits than rank 0",
        ("Are all ranks meant to hold the same bits after an all_reduce?", _FIXED),
    ),
    "unwritten": Words(
        "elements of the receive range are not written",
        "an element is not written",
        ("Are there counts or alignments that this path does not cover?", _FIXED),
    ),
    "overrun": Words(
        "bytes outside the receive range are changed",
        "a byte outside the ranges was changed",
        ("How far past a range may the library write?", _FIXED),
    ),
    "send_modified": Words(
        "the send buffer of an out-of-place call is changed",
        "a rank's send range was changed",
        ("Is the send buffer used as scratch on this path?", _FIXED),
    ),
    "prefill_leak": Words(
        "results depend on what the receive buffer held before",
        "the same inputs give other bits over another content of the receive buffer",
        ("Does this path read the receive buffer before it is written?", _FIXED),
    ),
    "wrong_value": Words("results that no order of additions gives", "a result is not the exact sum", (_FIXED,)),
    "missing_term": Words("sums lack a rank's term", "a result lacks a rank's term", (_FIXED,)),
    "duplicate_term": Words("sums hold a rank's term twice", "a result holds a term twice", (_FIXED,)),
    "stale_term": Words("sums hold data of an earlier call", "a result is not the exact sum of this call", (_FIXED,)),
    "crash": Words("the process ends during the call", "a call did not come back", (_FIXED,)),
    "hang": Words("the call does not return", "a call did not come back", (_FIXED,)),
    "backend_error": Words("a legal call returns an error", "a call did not come back", (_FIXED,)),
}


def words_for(finding: Finding, reference: str = "ties_to_even") -> Words:
    """A kind that has no words of its own is named by its claim. ``reference``: the mode that results are held against."""
    found = _BY_KIND.get(finding.kind)
    if found is None:
        return Words(_gist(finding), "the recorded bits come back", ("Is this behaviour intended?", _DOCUMENT))
    mode = str(finding.measure.get("mode"))
    names = {"mode": MODES.get(mode, mode), "reference": MODES.get(reference, reference)}
    return Words(found.title.format(**names), found.places.format(**names), found.questions)


def _gist(finding: Finding) -> str:
    """What a claim says after its conditions and before its details."""
    _, found, rest = finding.claim.partition(" ranks")
    said = re.split(r" \(|[;:.,](?: |$)", rest.lstrip(": ") if found else finding.claim, maxsplit=1)[0].strip()
    return said if 0 < len(said) <= MOST_TITLE else finding.kind.replace("_", " ")


def cell_of(finding: Finding) -> str:
    """``all_reduce sum of bfloat16``."""
    scope = finding.scope
    names = [_joined(scope.get(axis)) for axis in ("collective", "op", "format")]
    if not all(names):
        return finding.probe
    return f"{names[0]} {names[1]} of {names[2]}"


def _joined(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
