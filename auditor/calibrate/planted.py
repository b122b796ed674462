"""Planted errors: what each rule lets through, as a function of the size of an error and under one stated law of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from typing import Any

import numpy as np

from auditor.calibrate.rules import Rule
from auditor.errors import ConfigError
from auditor.model import Codes
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.recipes import COMMON, Stream
from auditor.numerics.rounding import round_sums
from auditor.numerics.ulp_error import from_ordinals, ordinals
from auditor.probes.statistics import clopper_pearson
from auditor.probes.values import F64, to_float64

LAW_STREAM = 0x72
STEPS = tuple(1 << k for k in range(21))  # 1 .. 2**20 codes
PERCENTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIGNS = ("away", "toward")  # from zero
LAWS = ("normal", "uniform")


@dataclass(frozen=True, slots=True)
class Law:
    """Independent relative errors: ``normal`` with standard deviation ``width``, or ``uniform`` on -width..width."""

    kind: str
    width: float

    @staticmethod
    def parse(text: str) -> Law:
        """``normal:0.03`` or ``uniform:0.0375``. Raises ConfigError."""
        kind, _, width = text.partition(":")
        try:
            law = Law(kind, float(width))
        except ValueError:
            law = Law(kind, 0.0)
        if law.kind not in LAWS or not 0 < law.width < 1:
            raise ConfigError(f"--law {text}: is not normal:WIDTH or uniform:WIDTH with a width between 0 and 1")
        return law

    def __str__(self) -> str:
        return f"{self.kind}:{self.width:g}"

    def draw(self, seed: int, n: int) -> F64:
        """The errors of ``n`` elements: the inverse distribution function at (w + 1/2) / 2**32, w the index's counter hash."""
        words = Stream(seed, COMMON, LAW_STREAM).words(0, n)
        uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
        if self.kind == "uniform":
            return np.asarray((2 * uniform - 1) * self.width, np.float64)
        inverse = NormalDist(0.0, self.width).inv_cdf
        return np.array([inverse(float(u)) for u in uniform], np.float64)

    def density_at_zero(self) -> float:
        """What a narrow band catches, per unit of its width."""
        return NormalDist(0.0, self.width).pdf(0.0) if self.kind == "normal" else 0.5 / self.width


def draws_digest(errors: F64) -> str:
    """First 16 hex digits of SHA-256 of the errors: shows that they were fixed before anything ran."""
    return sha256(np.ascontiguousarray(errors, "<f8").tobytes()).hexdigest()[:16]


def by_steps(fmt: Format, codes: Codes, steps: int, sign: str) -> Codes:
    """Each output moved by that many codes, away from zero or toward it (and through it)."""
    places = ordinals(fmt, codes)
    away = np.where(places < 0, -steps, steps)
    return from_ordinals(fmt, places + (away if sign == "away" else -away))


def by_relative(fmt: Format, codes: Codes, relative: F64 | float) -> Codes:
    """Each output times (1 + relative), rounded to the format."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.asarray(to_float64(fmt, codes) * (1.0 + relative), np.float64)
    wide = FORMATS["binary64"]
    return round_sums(fmt, exact_sums(wide, [moved.view(wide.dtype)]), "ties_to_even")


@lru_cache(maxsize=4096)
def bounds(k: int, n: int) -> tuple[float, float]:
    """Two-sided 95 % Clopper-Pearson bounds, to six figures."""
    low, high = clopper_pearson(k, n)
    return float(f"{low:.6g}"), float(f"{high:.6g}")


def share(k: int, n: int) -> dict[str, Any]:
    """A count of a whole with its exact bounds, as the record holds it."""
    low, high = bounds(k, n)
    return {"count": k, "of": n, "low": low, "high": high}


def under_law(fmt: Format, rules: Sequence[Rule], codes: Codes, errors: F64) -> dict[str, dict[str, Any]]:
    """For each rule, how many outputs with one drawn error each it accepts."""
    wrong = by_relative(fmt, codes, errors)
    return {rule.name: share(int(rule.accepts(wrong).sum()), len(codes)) for rule in rules}


def curves(fmt: Format, rules: Sequence[Rule], codes: Codes) -> dict[str, Any]:
    """accept(rule, size of the error) for both signs: counts of ``of`` outputs, beside the sizes. Bounds: :func:`bounds`."""
    by_size: dict[str, Mapping[Any, Mapping[str, Codes]]] = {
        "steps": {size: {sign: by_steps(fmt, codes, size, sign) for sign in SIGNS} for size in STEPS},
        "percent": {
            size: {sign: by_relative(fmt, codes, size / (100 if sign == "away" else -100)) for sign in SIGNS}
            for size in PERCENTS
        },
    }
    return {"of": len(codes), **{name: _accepted(rules, planted) for name, planted in by_size.items()}}


def _accepted(rules: Sequence[Rule], planted: Mapping[Any, Mapping[str, Codes]]) -> dict[str, Any]:
    """Sizes, and for each rule and sign the accepted counts with their bounds."""
    told: dict[str, Any] = {"sizes": list(planted), "rules": {}}
    for rule in rules:
        told["rules"][rule.name] = {
            sign: _column([rule.accepts(one[sign]) for one in planted.values()]) for sign in SIGNS
        }
    return told


def _column(accepted: Sequence[Any]) -> dict[str, list[Any]]:
    counts = [(int(mask.sum()), len(mask)) for mask in accepted]
    pairs = [bounds(k, n) for k, n in counts]
    return {"count": [k for k, _ in counts], "low": [low for low, _ in pairs], "high": [high for _, high in pairs]}
