"""Exact binomial bounds without SciPy, and the interval of a mean over clusters.

The Clopper-Pearson bounds are quantiles of beta distributions (NUMERICS §7.5); the regularised incomplete beta function
is evaluated by Lentz's continued fraction (Abramowitz & Stegun 26.5.8) and inverted by bisection, which converges.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p, sqrt

import numpy as np
import numpy.typing as npt

LEAST_CLUSTERS = 30  # below which a normal interval says nothing

_TINY = 1e-300
_EPS = 1e-15


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), modified Lentz method; converges fast for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1.0 / _away(1.0 + even * d), _away(1.0 + even / c)
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1.0 / _away(1.0 + odd * d), _away(1.0 + odd / c)
        h *= d * c
        if abs(d * c - 1.0) < _EPS:
            break
    return h


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_cdf(x: float, a: float, b: float) -> float:
    """I_x(a, b), the probability that a beta(a, b) variable is at most x."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _quantile(p: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(200):  # down to the last bit also near 0
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if beta_cdf(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided bounds of a rate seen as ``k`` of ``n``; (0, 1) where n is 0. Raises ValueError unless 0 <= k <= n."""
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no count")
    tail = (1.0 - confidence) / 2
    low = 0.0 if k == 0 else _quantile(tail, k, n - k + 1)
    high = 1.0 if k == n else _quantile(1.0 - tail, k + 1, n - k)
    return low, high


def binomial_two_sided(k: int, n: int, p: float) -> float:
    """p-value of ``k`` of ``n`` under rate ``p``: twice the smaller exact tail, at most 1."""
    if p <= 0.0 or p >= 1.0:
        return float(k == (0 if p <= 0.0 else n))
    at_most = 1.0 if k == n else 1.0 - beta_cdf(p, k + 1, n - k)
    at_least = 1.0 if k == 0 else beta_cdf(p, k, n - k + 1)
    return min(1.0, 2.0 * min(at_most, at_least))


def holm_rejects(p_values: list[float], alpha: float) -> bool:
    """Whether Holm's procedure rejects any hypothesis at family-wise level ``alpha`` (its first step decides that)."""
    return bool(p_values) and min(p_values) < alpha / len(p_values)


def mean_interval(totals: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Two-sided 95 % for a mean over elements that are alike within clusters, by the ratio estimator's variance.

    ``totals``, ``sizes``: of each cluster, shape (n,); empty clusters count for nothing. None where there are few clusters.
    """
    totals, sizes = totals[sizes > 0], sizes[sizes > 0]
    m, n = len(sizes), float(sizes.sum())
    if m < LEAST_CLUSTERS:
        return None
    mean = float(totals.sum()) / n
    half = 1.96 * sqrt(float(((totals - mean * sizes) ** 2).sum()) * m / (m - 1)) / n
    return mean - half, mean + half
