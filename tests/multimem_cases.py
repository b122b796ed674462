"""What the multimem tests send, and what the stated model makes of it: the same emulated and on a GPU."""

from __future__ import annotations

from functools import cache

import numpy as np

from auditor.backends.multimem_describe import accumulator
from auditor.backends.multimem_kernels import Variant
from auditor.numerics.formats import FORMATS
from auditor.numerics.trees import chain, evaluate


@cache
def terms(name, n, length, whole=False):
    """Codes of n ranks, shape (n, length): near exponents, zeros, subnormals, half-ulp terms behind a one; from three ranks
    up also sums that show the order. ``whole``: anywhere in the format's finite range instead.
    """
    fmt, rng = FORMATS[name], np.random.default_rng(n + 10 * whole)
    low, high = (0, fmt.max_code) if whole else (fmt.power_of_two(-3), fmt.power_of_two(3))
    codes = rng.integers(low, high + 1, (n, length), dtype=np.uint64)
    codes[rng.random(codes.shape) < 0.1] = 0
    signs = rng.integers(0, 2, codes.shape, dtype=np.uint64) << np.uint64(fmt.bits - 1)
    if not whole:
        codes[:, ::9] &= np.uint64((1 << fmt.mantissa_bits) - 1)  # subnormal
        codes[1:, 4::7], codes[0, 4::7] = fmt.power_of_two(-fmt.precision), fmt.power_of_two(0)
    if n > 2 and not whole:  # 1, next to nothing, -1: any other order keeps what this one swallows
        codes[:, 5::6], signs[:, 5::6] = 0, 0
        codes[0, 5::6] = codes[-1, 5::6] = fmt.power_of_two(0)
        codes[1, 5::6], signs[-1, 5::6] = fmt.power_of_two(max(fmt.lsb, -30)), np.uint64(fmt.sign_mask)
    return (codes | signs).astype(fmt.dtype)


def model(name, kind, rows, order=None):
    """Codes of the sums of these rows, a row a rank: a chain in ``order`` (the rows' own), accumulator ``plain`` or ``wide``."""
    kept = FORMATS[accumulator(Variant(name, kind))]
    tree = chain(range(len(rows)) if order is None else order)
    return evaluate(tree, list(rows), FORMATS[name], accumulator=kept, hop="ties_to_even", final="ties_to_even")
