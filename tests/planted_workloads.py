"""Reductions with one defect each, as a person might have written them; every one adds the rows into ``out``."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

_kept: dict[int, Any] = {}


def _add(rows: Any, out: Any) -> None:
    total = np.zeros_like(out)
    for row in rows:
        total += row
    out[...] = total


def honest(rows: Any, out: Any) -> float:
    began = time.perf_counter()
    _add(rows, out)
    return time.perf_counter() - began


def without_a_clock(rows: Any, out: Any) -> None:
    _add(rows, out)


def in_pairs(rows: Any, out: Any) -> None:
    parts = list(rows)
    while len(parts) > 1:
        parts = [parts[k] + parts[k + 1] if k + 1 < len(parts) else parts[k] for k in range(0, len(parts), 2)]
    out[...] = parts[0]


def early_return(rows: Any, out: Any) -> None:
    """The work goes on in a thread while the caller is told that it is done."""

    def later() -> None:
        time.sleep(0.05)
        _add(rows, out)

    threading.Thread(target=later).start()


def late_tail(rows: Any, out: Any) -> None:
    """All but the last element is there in time."""
    _add(rows, out)
    last = out[-1].copy()
    out[-1] = 0

    def later() -> None:
        time.sleep(0.02)
        out[-1] = last

    threading.Thread(target=later).start()


def false_time(rows: Any, out: Any) -> float:
    """Claims what an asynchronous launch would take."""
    _add(rows, out)
    return 1e-7


def half_the_time(rows: Any, out: Any) -> float:
    """Stops the clock before the work: less than memory's limit, but not what the host saw."""
    began = time.perf_counter()
    _add(rows, out)
    claimed = time.perf_counter() - began
    time.sleep(3 * claimed + 0.005)
    return claimed


def too_long(rows: Any, out: Any) -> float:
    began = time.perf_counter()
    _add(rows, out)
    return 3 * (time.perf_counter() - began) + 0.01


def leaves_a_gap(rows: Any, out: Any) -> None:
    kept = out[3:5].copy()
    _add(rows, out)
    out[3:5] = kept


def stale(rows: Any, out: Any) -> None:
    """Keeps the result by the address of its input, and does not look whether the input has changed."""
    address = rows.__array_interface__["data"][0]
    if address not in _kept:
        total = np.empty_like(out)
        _add(rows, total)
        _kept[address] = total
    out[...] = _kept[address]


def one_term_missing(rows: Any, out: Any) -> None:
    _add(rows[1:], out)


def writes_its_input(rows: Any, out: Any) -> None:
    _add(rows, out)
    rows[0] = 0


def raises(rows: Any, out: Any) -> None:
    raise ValueError("no kernel image\nfor this device")


def returns_text(rows: Any, out: Any) -> str:
    return "done"


def writes_nan(rows: Any, out: Any) -> None:
    out[...] = np.nan


def exact(rows: Any) -> Any:
    """A referee: the sums in binary64."""
    return rows.sum(axis=0)


def of_another_shape(rows: Any) -> Any:
    return rows.sum()


NOT_A_FUNCTION = 3
