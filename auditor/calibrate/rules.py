"""The rules by which people accept an output, each as a function from codes to yes or no, element by element.

Constants are those of the tools' documentation; the tools themselves are not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.calibrate.reference import Reference
from auditor.model import Codes
from auditor.numerics.ulps import is_nan, ulp_steps
from auditor.probes.expected import faithful_to
from auditor.probes.values import F64, to_float64

Mask = npt.NDArray[np.bool_]
Accepts = Callable[[Codes], Mask]

NAN_STEPS = (1 << 64) - 1  # the distance of a NaN from anything
PERCENT = 0.01
NUMPY_ALLCLOSE = (1e-5, 1e-8)  # numpy.allclose: rtol, atol
NUMPY_ASSERT = (1e-7, 0.0)  # numpy.testing.assert_allclose
TORCH = {  # torch.testing.assert_close: rtol, atol by dtype; formats without a row are compared for equality
    "binary16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "binary32": (1.3e-6, 1e-5),
    "binary64": (1e-7, 1e-7),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """``says``: the rule in words, with its constants."""

    name: str
    label: str
    says: str
    accepts: Accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What beside the reference a rule may rest on. ``steps``: a measured bound; ``absolute``: a written one.

    ``directed``: the additions need not round to nearest. ``replay``: the output of the known order of additions.
    ``legal``: every output that a legal order can give, shape (models, n).
    """

    steps: int | None = None
    absolute: float | None = None
    directed: bool = False
    replay: Codes | None = None
    legal: Codes | None = None

    def at(self, index: Any) -> Known:
        """What is known of some elements."""
        return Known(
            steps=self.steps,
            absolute=self.absolute,
            directed=self.directed,
            replay=None if self.replay is None else self.replay[index],
            legal=None if self.legal is None else self.legal[:, index],
        )


def rules(reference: Reference, known: Known) -> list[Rule]:
    """The rules that can be applied here, the tightest last."""
    fmt = reference.fmt
    made = [
        _close("one_percent", "1 % relative", reference, PERCENT, 0.0),
        _close("numpy_allclose", "numpy.allclose", reference, *NUMPY_ALLCLOSE),
        _close("numpy_assert_allclose", "numpy assert_allclose", reference, *NUMPY_ASSERT),
        _close("torch_assert_close", "torch assert_close", reference, *TORCH.get(fmt.name, (0.0, 0.0))),
    ]
    if known.absolute is not None:
        says = f"|output - reference| <= {known.absolute:g}, a bound written down beforehand"
        made.append(Rule("absolute", "absolute bound", says, partial(_within, reference, 0.0, known.absolute)))
    if reference.magnitude is not None:
        made.append(_a_priori(reference, known.directed))
    if known.steps is not None:
        says = f"at most {known.steps:,} steps from the reference rounded to {fmt.name}"
        made.append(Rule("measured", "measured bound", says, partial(_near, reference, known.steps)))
    says = "the reference, or one of its two neighbours in the format"
    made.append(Rule("faithful", "faithful rounding", says, lambda codes: faithful_to(fmt, codes, reference.split)))
    if known.legal is not None:
        says = f"one of the outputs that the {len(known.legal)} legal models give for these terms"
        made.append(Rule("legal_outputs", "set of legal outputs", says, partial(_member, known.legal)))
    says = "equal to the reference rounded to the format, bit by bit; made for data whose sums are exact in every order"
    made.append(Rule("nccl_tests", "nccl-tests", says, partial(_near, reference, 0)))
    if known.replay is not None:
        says = "equal, bit by bit, to the same order of additions done again"
        made.append(Rule("replay", "bitwise replay", says, partial(_same, known.replay)))
    return made


def _close(name: str, label: str, reference: Reference, relative: float, absolute: float) -> Rule:
    says = f"|output - reference| <= {absolute:g} + {relative:g} |reference|"
    return Rule(name, label, says, partial(_within, reference, relative, absolute))


def _within(reference: Reference, relative: float, absolute: float, codes: Codes) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(to_float64(reference.fmt, codes) - reference.value)
        return np.asarray(error <= absolute + relative * np.abs(reference.value), np.bool_)


def a_priori_slack(reference: Reference, *, directed: bool) -> F64:
    """The largest legal |output - exact|, in binary64; shape (n,). Raises ValueError where the terms are not known.

    With u = 2**-p (twice that where an addition need not round to nearest), a term passes at most ``roundings`` of them, so
    the sum before the last rounding errs by at most ((1 + u)**roundings - 1) times the sum of magnitudes (N. J. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2); a last rounding into the format adds half an ulp.
    The sum of magnitudes is itself rounded: 2**-40 of it covers that. ``directed`` also allows for subnormal terms, partial
    sums and results that are flushed to zero: 2**emin each.
    """
    if reference.magnitude is None:
        raise ValueError("the terms are not known, so nothing bounds the error beforehand")
    unit = 2.0 ** -(reference.fmt.precision - directed)
    growth = float(np.expm1(reference.roundings * np.log1p(unit)))
    flushed = (2 * reference.roundings + 2) * 2.0**reference.fmt.emin if directed else 0.0
    return growth * reference.magnitude * (1 + 2.0**-40) + reference.ulp * (1.0 if directed else 0.5) + flushed


def _a_priori(reference: Reference, directed: bool) -> Rule:
    unit = f"2**-{reference.fmt.precision - directed}"
    says = (
        f"|output - reference| <= ((1 + {unit})**{reference.roundings:,} - 1) times the sum of magnitudes, "
        f"and {'one' if directed else 'half an'} ulp: no legal order {'or rounding mode ' if directed else ''}can exceed it"
    )
    slack = a_priori_slack(reference, directed=directed)

    def accepts(codes: Codes) -> Mask:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.abs(to_float64(reference.fmt, codes) - reference.value) <= slack, np.bool_)

    return Rule("a_priori", "a-priori bound", says, accepts)


def steps_from(reference: Reference, codes: Codes) -> npt.NDArray[np.uint64]:
    """Steps of each output from the reference rounded to the format; :data:`NAN_STEPS` for a NaN."""
    fmt = reference.fmt
    steps = ulp_steps(fmt, codes, reference.nearest)
    return np.where(is_nan(fmt, codes) | is_nan(fmt, reference.nearest), np.uint64(NAN_STEPS), steps)


def _near(reference: Reference, steps: int, codes: Codes) -> Mask:
    return np.asarray(steps_from(reference, codes) <= np.uint64(steps), np.bool_)


def _member(legal: Codes, codes: Codes) -> Mask:
    found = np.zeros(len(codes), np.bool_)
    for row in legal:
        found |= row == codes
    return found


def _same(replay: Codes, codes: Codes) -> Mask:
    return np.asarray(codes == replay, np.bool_)
