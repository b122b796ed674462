"""Codes as numbers, for people: decoded values, how far two codes lie apart, where in its 16-byte word an element stands."""

from __future__ import annotations

import math
import re

from auditor import layout
from auditor.model import Trial
from auditor.numerics.formats import Format

WORD = 16
_HEX = re.compile(r"^0x[0-9a-fA-F]+$")


def code_of(text: str, fmt: Format) -> int | None:
    """The code that a hex text stands for; None where it is other text or has more bits than the format."""
    code = int(text, 16) if _HEX.match(text) else None
    return code if code is not None and code >> fmt.bits == 0 else None


def value(fmt: Format, code: int) -> float:
    """The code's value, exactly (every format here fits a binary64); NaN and infinities as such."""
    sign, magnitude = (-1.0 if code & fmt.sign_mask else 1.0), code & fmt.magnitude_mask
    if magnitude >= fmt.overflow_code:
        infinite = fmt.has_infinity and magnitude == fmt.overflow_code
        return math.copysign(math.inf if infinite else math.nan, sign)
    biased, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    if biased:
        mantissa += 1 << fmt.mantissa_bits
    return math.copysign(math.ldexp(mantissa, fmt.lsb + max(biased, 1) - 1), sign)


def value_text(fmt: Format, code: int) -> str:
    """``1.0078125``: digits that tell the code from its neighbours; ``NaN``, ``+inf``, ``-0``."""
    number = value(fmt, code)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+inf" if number > 0 else "-inf"
    return f"{number:.{17 if fmt.bits == 64 else 9}g}"


def apart(fmt: Format, observed: int, expected: int) -> int | None:
    """Codes that ``observed`` lies above ``expected`` on the number line (both zeros are one point); None for NaN, infinity."""
    places = []
    for code in (observed, expected):
        magnitude = code & fmt.magnitude_mask
        if magnitude >= fmt.overflow_code:
            return None
        places.append(-magnitude if code & fmt.sign_mask else magnitude)
    return places[0] - places[1]


def byte_in_word(trial: Trial, rank: int, index: int) -> int | None:
    """Where the element that ``rank`` receives at ``index`` begins within a 16-byte word; None where rank or index is foreign."""
    if rank not in trial.members or not 0 <= index < trial.call.count:
        return None
    return (layout.recv_range(trial, rank).offset + index * trial.call.fmt.itemsize) % WORD
