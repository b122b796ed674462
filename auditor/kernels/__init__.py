"""The few hot loops, each twice: NumPy (always here, the reference) and Numba (where it is installed). Same
results, element for element.

``fill`` and ``evaluate`` make inputs, ``tabulate_*`` and ``dose_*`` count rounding classes, ``equal`` and
``differences`` compare bytes. Nothing here imports Numba before the first call that uses it. A device twin
(``cuda``) offers ``fill`` and ``tabulate_recipes`` on device arrays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import numpy as np

from auditor.kernels import host, numpy_ops
from auditor.kernels.host import Ops, Terms, differences, equal
from auditor.kernels.table import Dose, RoundingTable, dose_response, tabulate
from auditor.model import Codes
from auditor.numerics.formats import Format
from auditor.numerics.hashing import U32
from auditor.numerics.recipes import Recipe

__all__ = [
    "Dose",
    "RoundingTable",
    "differences",
    "dose_recipes",
    "dose_response",
    "dose_terms",
    "equal",
    "evaluate",
    "fill",
    "implementation",
    "tabulate",
    "tabulate_recipes",
    "tabulate_terms",
    "tabulate_words",
]

IMPLEMENTATIONS = ("numpy", "numba")
SMALL = 1 << 17  # elements; NumPy needs some milliseconds for fewer, loading a compiler takes a second


@lru_cache(maxsize=4)
def _ops(name: str) -> Ops:
    """The twin by name; ``""``: Numba where it can be imported, else NumPy. Raises ValueError, or ImportError for a
    named one.
    """
    if name not in ("", *IMPLEMENTATIONS):
        raise ValueError(f"unknown implementation {name!r}; one of {', '.join(IMPLEMENTATIONS)}")
    if name != "numpy":
        try:
            from auditor.kernels import numba_ops
        except ImportError:
            if name:
                raise
        else:
            return cast(Ops, numba_ops)
    return cast(Ops, numpy_ops)


def _chosen(name: str | None, elements: int = SMALL) -> Ops:
    """The twin asked for; where none is, NumPy for few elements, else AUDITOR_KERNELS, else the fastest that is
    here.
    """
    if name is None:
        name = os.environ.get("AUDITOR_KERNELS", "") or ("numpy" if elements < SMALL else "")
    return _ops(name)


def implementation() -> str:
    """Which twin runs here: AUDITOR_KERNELS, else ``numba`` where it can be imported, else ``numpy``."""
    return "numpy" if _chosen(None) is cast(Ops, numpy_ops) else "numba"


def fill(recipe: Recipe, start: int, out: Codes, *, use: str | None = None) -> None:
    """Writes the codes of the indices from ``start`` on into ``out``, shape (n,), the format's code dtype.
    Allocates no more than a block.
    """
    host.fill(_chosen(use, len(out)), recipe, start, out)


def evaluate(recipe: Recipe, start: int, stop: int) -> Codes:
    """The codes of the indices [start, stop): the fast twin of ``numerics.recipes.evaluate``."""
    out: Codes = np.empty(stop - start, recipe.fmt.dtype)
    fill(recipe, start, out)
    return out


def tabulate_words(fmt: Format, words: U32, out: Codes, *, use: str | None = None) -> RoundingTable:
    """Counts for outputs against exact sums given as binary32 codes, shape (n,) each; formats of 16 bits or fewer.
    Raises ValueError.
    """
    return host.tabulate_words(_chosen(use, len(out)), fmt, words, out)


def tabulate_terms(fmt: Format, terms: Terms | Sequence[Codes], out: Codes, *, use: str | None = None) -> RoundingTable:
    """Counts for outputs, shape (n,), against the exact sums of the terms: arrays of that shape, or a function
    (start, stop) -> arrays, which is asked block by block, from several threads.
    """
    return host.tabulate_terms(_chosen(use, len(out)), fmt, _terms(terms), out)


def tabulate_recipes(recipes: Sequence[Recipe], start: int, out: Codes, *, use: str | None = None) -> RoundingTable:
    """Counts for outputs of the indices from ``start`` on, the inputs of every contributor regenerated block by
    block.
    """
    return host.tabulate_recipes(_chosen(use, len(out)), recipes, start, out)


def dose_terms(fmt: Format, terms: Terms | Sequence[Codes], out: Codes, *, use: str | None = None) -> Dose:
    """Counts [bin of rem, lo odd, up], int64 of shape (64, 2, 2), over the inexact sums whose output is a neighbour."""
    return host.dose_terms(_chosen(use, len(out)), fmt, _terms(terms), out)


def dose_recipes(recipes: Sequence[Recipe], start: int, out: Codes, *, use: str | None = None) -> Dose:
    """As ``dose_terms``, the inputs regenerated."""
    ops = _chosen(use, len(out))
    return host.dose_terms(ops, recipes[0].fmt, host.from_recipes(ops, recipes, start), out)


def _terms(terms: Terms | Sequence[Codes]) -> Terms:
    if callable(terms):
        return terms
    columns = list(terms)
    return lambda start, stop: [column[start:stop] for column in columns]
