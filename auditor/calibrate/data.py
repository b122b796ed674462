"""Terms of local workloads and orders of adding them: pure functions of their coordinates, the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import inputs
from auditor.errors import ConfigError
from auditor.model import Family
from auditor.numerics.formats import Format
from auditor.numerics.recipes import COMMON, Stream

WEIGHT_STREAM, SHUFFLE_STREAM = 0x70, 0x71
PLAIN = ("uniform", "exponential")  # positive weights; every family of ``inputs`` may be named beside them
STRIDE = 64
STATED = ("forward", "backward", f"interleaved:{STRIDE}")
BLOCK = 1 << 20  # terms made at a time

Rows = npt.NDArray[Any]
Order = npt.NDArray[np.uint32]


def check_distribution(text: str, fmt: Format, terms: int) -> None:
    """Raises ConfigError where there is no such distribution in the format, or for so many terms."""
    if text in PLAIN:
        return
    try:
        inputs.check(Family.parse(text), fmt, terms)
    except ValueError as error:
        raise ConfigError(f"--distribution {text}: {error}") from None
    except ConfigError as error:
        raise ConfigError(
            f"--distribution {text}: is none of {', '.join(PLAIN)}, and as a family of inputs: {error}"
        ) from None


def rows(text: str, fmt: Format, seed: int, terms: int, n: int) -> Rows:
    """Terms of ``n`` sums, shape (terms, n), dtype the format's.

    ``uniform``: multiples of 2**-24 (binary32) or 2**-53 (binary64) on (0, 1]; ``exponential``: -log of (w + 1/2) / 2**32,
    rounded to the format; term k of sum i draws the word w at index k * n + i. A family of ``inputs``: contributor k sends
    term k. Raises ConfigError.
    """
    check_distribution(text, fmt, terms)
    out: Rows = np.empty((terms, n), f"f{fmt.itemsize}")
    if text not in PLAIN:
        family = Family.parse(text)
        for k in range(terms):
            out[k] = inputs.generate(family, fmt, seed, terms, k, 0, n).view(out.dtype)
        return out
    flat, source = out.reshape(-1), Stream(seed, 0, WEIGHT_STREAM)
    for start in range(0, len(flat), BLOCK):
        stop = min(start + BLOCK, len(flat))
        words = source.words(start, stop)
        if text == "uniform":
            flat[start:stop] = _uniform(words) if fmt.bits == 32 else _uniform53(words, source.words(start, stop, 1))
        else:
            flat[start:stop] = _exponential(words)
    return out


def _uniform(words: npt.NDArray[np.uint32]) -> Rows:
    return ((words >> np.uint32(8)) + np.uint32(1)).astype(np.float64) * 2.0**-24


def _uniform53(high: npt.NDArray[np.uint32], low: npt.NDArray[np.uint32]) -> Rows:
    """The high word's bits above 21 of the low one."""
    return (((high.astype(np.uint64) << np.uint64(21)) | (low >> np.uint32(11))) + np.uint64(1)).astype(
        np.float64
    ) * 2.0**-53


def _exponential(words: npt.NDArray[np.uint32]) -> Rows:
    return np.asarray(-np.log((words.astype(np.float64) + 0.5) * 2.0**-32))


def order_names(k: int) -> tuple[str, ...]:
    """The first ``k`` stated orders: forward, backward, interleaved, then shuffles by number."""
    return (*STATED, *(f"shuffled:{number}" for number in range(1, k - len(STATED) + 1)))[:k]


def order_of(name: str, seed: int, terms: int) -> Order:
    """Numbers of the terms in the order in which they are added; uint32, shape (terms,).

    ``interleaved:s``: terms 0, s, 2s, ..., then 1, s + 1, ...; ``shuffled:k``: sorted by the counter hash of (seed, k, term).
    """
    kind, _, argument = name.partition(":")
    numbers = np.arange(terms, dtype=np.uint32)
    if kind == "backward":
        return numbers[::-1].copy()
    if kind == "interleaved":
        return np.asarray(np.argsort(numbers % np.uint32(int(argument)), kind="stable"), np.uint32)
    if kind == "shuffled":
        words = Stream(seed, COMMON, SHUFFLE_STREAM + (int(argument) << 8)).words(0, terms)
        return np.asarray(np.argsort(words, kind="stable"), np.uint32)
    return numbers
