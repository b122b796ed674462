"""Speed of the host kernels: inputs, exact sums, class counts, comparisons. Prints a Markdown table.

python benchmarks/host.py [--elements N] [--format NAME] [--repeats K] [--cpu]

A figure is the best of the repeats, in 10**9 elements a second. bfloat16 and two contributors unless another format
is asked for. With --cpu: one thread, and seconds of processor time, for a machine that has other work to do.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from auditor import inputs, kernels
from auditor.kernels import host
from auditor.model import Family
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import round_sums, split

FAMILIES = ("order_exact:format=binary32", "report132", "wide", "wide:dist=lognormal", "rank_coded")
SLOW = ("position_coded", "ties", "testfloat1", "specials", "smooth")  # NumPy only
BLOCK = 1 << 18
TARGETS = {"counts, sums given": (0.08, 4.0), "counts, inputs regenerated: order_exact:format=binary32": (None, 1.0)}


clock = time.perf_counter


def best(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest run, after one that is not counted (it compiles)."""
    work()
    seconds = []
    for _ in range(repeats):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds)


def recipes(text: str, fmt: Format) -> list[Any]:
    return [inputs.recipe(Family.parse(text), fmt, 0, 2, rank) for rank in (0, 1)]


def blockwise(make: Callable[[int, int], Any], n: int) -> Callable[[], None]:
    def work() -> None:
        for start in range(0, n, BLOCK):
            make(start, min(start + BLOCK, n))

    return work


def rounded(fmt: Format, terms: list[Any]) -> Any:
    """What a subject that rounds to nearest would send back."""
    parts = range(0, len(terms[0]), BLOCK)
    return np.concatenate(
        [round_sums(fmt, exact_sums(fmt, [t[a : a + BLOCK] for t in terms]), "ties_to_even") for a in parts]
    )


def binary32_words(fmt: Format, terms: list[Any]) -> Any:
    words, ops = np.empty(len(terms[0]), np.uint32), kernels._ops("numpy")
    ops.load(fmt, terms[0], words)
    assert ops.add(fmt, terms[1], words), "the sums are not exact in binary32"
    return words


def rows(fmt: Format, n: int, use: str, repeats: int) -> dict[str, float]:
    """Name -> seconds for n elements, with one twin."""
    found: dict[str, float] = {}
    out = np.empty(n, fmt.dtype)
    for text in FAMILIES:
        one = recipes(text, fmt)[0]
        found[f"fill: {text}"] = best(lambda one=one: kernels.fill(one, 0, out, use=use), repeats)
    for text in FAMILIES[:3]:
        some = recipes(text, fmt)
        terms = [np.empty(n, fmt.dtype) for _ in some]
        for one, codes in zip(some, terms, strict=True):
            kernels.fill(one, 0, codes)
        out = rounded(fmt, terms)
        if text == FAMILIES[0]:
            words = binary32_words(fmt, terms)
            found["counts, sums given"] = best(
                lambda w=words, o=out: kernels.tabulate_words(fmt, w, o, use=use), repeats
            )
            found["counts, inputs given"] = best(
                lambda t=terms, o=out: kernels.tabulate_terms(fmt, t, o, use=use), repeats
            )
            found["dose-response, inputs given"] = best(
                lambda t=terms, o=out: kernels.dose_terms(fmt, t, o, use=use), repeats
            )
        name = f"counts, inputs regenerated: {text}"
        found[name] = best(lambda s=some, o=out: kernels.tabulate_recipes(s, 0, o, use=use), repeats)
    return found


def plain_rows(fmt: Format, n: int, repeats: int) -> dict[str, float]:
    """What has no twin: the general way through exact sums, the case families, comparisons."""
    found: dict[str, float] = {}
    for text in SLOW:
        family = Family.parse(text)
        make = blockwise(lambda a, b, family=family: inputs.generate(family, fmt, 0, 2, 0, a, b), n)
        found[f"generate: {text}"] = best(make, repeats)
    terms = [inputs.generate(Family.parse("wide"), fmt, 0, 2, rank, 0, n) for rank in (0, 1)]
    out = rounded(fmt, terms)

    def general(a: int, b: int) -> Any:
        return kernels.tabulate(fmt, split(fmt, exact_sums(fmt, [t[a:b] for t in terms])), out[a:b])

    found["counts, the general way"] = best(blockwise(general, n), repeats)
    data, other = out.view(np.uint8), out.copy().view(np.uint8)
    found["equal"] = best(lambda: kernels.equal(data, other), repeats)
    found["differences"] = best(lambda: kernels.differences(out, other.view(fmt.dtype), 100), repeats)
    return found


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    cells = {key.strip(): value.strip() for key, value in info.items()}
    family = f"family {cells.get('cpu family', '?')}, model {cells.get('model', '?')}"
    return f"{cells.get('model name', platform.processor())} ({family}), {host.thread_n()} threads on {os.cpu_count()} processors"


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument(
        "--format", default="bfloat16", choices=[name for name, fmt in FORMATS.items() if fmt.bits <= 16]
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="one thread, processor time")
    asked = parser.parse_args()
    if asked.cpu:
        global clock
        clock, os.environ["AUDITOR_THREADS"] = time.process_time, "1"
    fmt, n = FORMATS[asked.format], asked.elements
    few = min(n, 1 << 22)  # the slow ones get fewer elements: the speed does not depend on it
    numpy = {name: few / seconds / 1e9 for name, seconds in rows(fmt, few, "numpy", 1).items()}
    numpy |= {name: few / seconds / 1e9 for name, seconds in plain_rows(fmt, few, 1).items()}
    numba: dict[str, float] = {}
    if version("numba") != "none":
        numba = {name: n / seconds / 1e9 for name, seconds in rows(fmt, n, "numba", asked.repeats).items()}
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite"))
    print(f"{fmt.name}, {n} elements (NumPy: {few}), 2 contributors; {cpu()}; Python {platform.python_version()}, {versions}; "
          f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}\n")  # fmt: skip
    unit = "Gelem per processor second" if asked.cpu else "Gelem/s"
    print(f"| {unit} | NumPy | Numba | target |\n|---|---|---|---|")
    for name, speed in numpy.items():
        wanted = TARGETS.get(name, (None, None))
        goal = ", ".join(f"{kind} {x}" for kind, x in zip(("NumPy", "Numba"), wanted, strict=True) if x)
        fast = f"{numba[name]:.3f}" if name in numba else ""
        print(f"| {name} | {speed:.3f} | {fast} | {goal} |")
    print(f"\npeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
