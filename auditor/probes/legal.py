"""Which outputs no legal summation could give (DESIGN §5, `wrong_value`): element by element, from the data alone.

Order-exact elements: every partial sum of every order is exact in the output format, so one value is legal. That holds
where the sum of magnitudes S and the lowest set bit 2**U of all terms satisfy S <= 2**(U + p): each partial sum is a whole
multiple of 2**U of at most p bits. With two non-zero terms there is one partial sum, and an exact sum is enough.

Other elements: the a-priori bound of NUMERICS §3.3 d. Each of n - 1 additions is off by at most 2u|partial| (u = 2**-p; 2u
since the mode need not be to nearest), each partial sum is at most S (1 + 2u)**k, and the output is rounded once more.

Left to `special`: subnormal terms or results (they may be flushed), sums of which a partial sum may pass the maximum, the
sign of zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from auditor.model import Codes, Trial
from auditor.probes.expected import Block, Mask, nearest_code
from auditor.probes.values import F64, to_float64, trailing_exponent


def _mask(found: Any) -> Mask:
    return np.asarray(found, np.bool_)


def wrong(trial: Trial, data: Block, codes: Codes) -> tuple[Mask, Mask]:
    """(order-exact elements whose output is not the legal value, other elements past the bound); shape (n,) each."""
    if trial.call.op == "sum":
        return _wrong_sums(trial, data, codes)
    values = np.stack([to_float64(trial.call.fmt, t) for t in data.terms])
    usable = np.isfinite(values).all(axis=0) & ~_subnormal(trial, values).any(axis=0)
    out = to_float64(trial.call.fmt, codes)
    none = np.zeros(len(codes), np.bool_)
    if trial.call.op in ("min", "max"):
        return usable & (out != (values.min if trial.call.op == "min" else values.max)(axis=0)), none
    return none, usable & _off_average(trial, values, out)


def _off_average(trial: Trial, values: F64, out: F64) -> Mask:
    """Past what dividing before or after the sum can cause: each term, each sum and the quotient rounded, and 2 ulp."""
    fmt, n = trial.call.fmt, len(values)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.abs(values).sum(axis=0)
        slack = ((1 + 2.0 ** (1 - fmt.precision)) ** (n + 2) - 1) * total / n + 2 * _ulp(trial, out) + 2.0**fmt.emin
        off = ~(np.abs(out - values.sum(axis=0) / n) <= slack)
    return _mask(off & (total < _top(trial)))


def exact_in_every_order(trial: Trial, data: Block) -> Mask:
    """Elements of op sum of which one value is legal; shape (n,)."""
    return _order_exact(trial, data, np.stack([to_float64(trial.call.fmt, t) for t in data.terms]))


def _order_exact(trial: Trial, data: Block, values: F64) -> Mask:
    fmt = trial.call.fmt
    with np.errstate(all="ignore"):
        usable = data.split.finite & np.isfinite(values).all(axis=0)
        safe = np.where(usable, values, 0.0)
        total = np.abs(safe).sum(axis=0)
        low = trailing_exponent(safe).min(axis=0)
        few = (safe != 0).sum(axis=0) <= 2
        limit = np.ldexp(1.0, np.clip(low + fmt.precision, -1074, 1023))
        # In binary64 the total is itself rounded, so equality could stand for a little more.
        narrow = total < limit if fmt.precision == 53 else total <= limit
        normal = ~_subnormal(trial, safe).any(axis=0) & ((low >= fmt.emin) | (few & ~_tiny(trial, data)))
    return _mask(usable & (narrow | few) & normal & ~data.split.inexact & (total < _top(trial)))


def _wrong_sums(trial: Trial, data: Block, codes: Codes) -> tuple[Mask, Mask]:
    fmt, split = trial.call.fmt, data.split
    want = nearest_code(trial, data)
    off = (codes != want) & ~(((codes | want) & codes.dtype.type(fmt.magnitude_mask)) == 0)
    none = np.zeros(len(codes), np.bool_)
    if not off.any():
        return none, none
    values = np.stack([to_float64(fmt, t) for t in data.terms])
    exact = _order_exact(trial, data, values)
    return off & exact, off & ~exact & split.finite & _past_bound(trial, data, values, codes)


def _past_bound(trial: Trial, data: Block, values: F64, codes: Codes) -> Mask:
    fmt, n = trial.call.fmt, len(data.terms)
    out, want = to_float64(fmt, codes), to_float64(fmt, nearest_code(trial, data))
    growth = (1 + 2.0 ** (1 - fmt.precision)) ** n - 1
    with np.errstate(all="ignore"):
        total = np.abs(values).sum(axis=0)
        # 2**emin a term: subnormal terms, partial sums and results may be flushed. 2 ulp: want is itself rounded.
        slack = growth * total + 2 * np.maximum(_ulp(trial, out), _ulp(trial, want)) + (n + 1) * 2.0**fmt.emin
        past = ~(np.abs(out - want) <= slack)
        return _mask(past & (total * (1 + growth) < _top(trial)) & np.isfinite(total))


def _ulp(trial: Trial, values: F64) -> F64:
    """Gap of the format at each value; 0 for what is not finite."""
    fmt = trial.call.fmt
    exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))[1] - 1
    return np.asarray(np.ldexp(1.0, np.maximum(exponent, fmt.emin) - fmt.precision + 1), np.float64)


def _top(trial: Trial) -> float:
    fmt = trial.call.fmt
    return float(to_float64(fmt, np.array([fmt.max_code], fmt.dtype))[0])


def _subnormal(trial: Trial, values: F64) -> Mask:
    return _mask((values != 0) & (np.abs(values) < 2.0**trial.call.fmt.emin))


def _tiny(trial: Trial, data: Block) -> Mask:
    """Non-zero sums below the smallest normal number."""
    fmt = trial.call.fmt
    return _mask((data.split.zero == 0) & (data.split.lo < data.split.lo.dtype.type(fmt.power_of_two(fmt.emin))))
