"""The checks, one function each: they yield one line a discrepancy."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from auditor.errors import AuditError
from auditor.model import COLLECTIVES, FEATURES, OPS, Call, Capabilities, Window
from auditor.numerics.formats import FORMATS
from auditor.testing.bench import Bench, Case, Subject, cases, plain_case, said

VENDORS = ("mpi4py", "cupy", "cuda", "nccl", "nvshmem", "torch", "jax", "pynvml", "h5py", "numba")
VERBS = {
    "path": ("path",),
    "history": ("perturb",),
    "recreate": ("recreate",),
    "graph": ("capture",),
    "registration": ("register",),
    "queue": ("enqueue", "wait"),
    "timing": ("last_seconds",),
}


def _imports(subject: Subject) -> Iterator[str]:
    """Importing the module in a fresh interpreter loads no vendor library."""
    module = subject.cls.__module__
    code = f"import sys, {module}; print(' '.join(sorted(set({VENDORS!r}) & set(sys.modules))))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        yield f"importing {module} fails: {done.stderr.strip().splitlines()[-1]}"
    elif done.stdout.strip():
        yield f"importing {module} loads {done.stdout.strip()}; import it inside functions"


def _probe(subject: Subject) -> Iterator[str]:
    """It says the same twice, in the contract's words, and leaves no trace."""
    options, environ, here = dict(subject.options), dict(os.environ), os.getcwd()
    first, second = subject.cls.probe(options), subject.cls.probe(dict(subject.options))
    if options != subject.options:
        yield f"probe changes its options: {options}"
    if dict(os.environ) != environ or os.getcwd() != here:
        yield "probe changes the environment or the current directory"
    if first != second:
        yield f"probe says {first} and then {second}"
    if not isinstance(first, Capabilities):
        yield f"probe gives a {type(first).__name__}, not Capabilities"
        return
    legal = {"collectives": COLLECTIVES, "ops": OPS, "formats": tuple(FORMATS), "features": FEATURES}
    for name, words in legal.items():
        if unknown := getattr(first, name) - set(words):
            yield f"capabilities.{name} has {', '.join(sorted(unknown))}; legal are {', '.join(words)}"
        if name != "features" and not getattr(first, name):
            yield f"capabilities.{name} is empty: nothing can be audited"
    if first.memory not in ("host", "cuda"):
        yield f"capabilities.memory = {first.memory!r} is neither host nor cuda"
    if first.element_alignment < 1 or first.element_alignment & (first.element_alignment - 1):
        yield f"capabilities.element_alignment = {first.element_alignment} is no power of two"
    if not first.rank_n_min <= subject.world.rank_n <= (first.rank_n_max or math.inf):
        yield f"{subject.world.rank_n} ranks lie outside rank_n_min {first.rank_n_min} to rank_n_max {first.rank_n_max}"


def _arrays(subject: Subject) -> Iterator[str]:
    """Keys, size, type, alignment, and that no two arrays overlap."""
    backend = subject.cls(subject.world, dict(subject.options))
    try:
        arenas = [backend.allocate(nbytes) for nbytes in (4096, 4608)]
        spans: list[tuple[int, int]] = []
        for nbytes, arena in zip((4096, 4608), arenas, strict=True):
            if tuple(sorted(arena)) != tuple(sorted(subject.world.local_ranks)):
                yield f"allocate gives keys {sorted(arena)}, not local_ranks {subject.world.local_ranks}"
            for rank, array in arena.items():
                yield from _array(f"allocate({nbytes})[{rank}]", array, nbytes)
                spans.append((Window(array, 0, 0).address, Window(array, nbytes, 0).address))
        spans.sort()
        if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
            yield "two arrays overlap"
    finally:
        backend.close()


def _array(label: str, array: Any, nbytes: int) -> Iterator[str]:
    if array.dtype != np.uint8 or array.ndim != 1 or array.size != nbytes:
        yield f"{label} is {array.dtype} of shape {array.shape}, not uint8 of {nbytes}"
    if Window(array, 0, 0).address % 512:
        yield f"{label} starts {Window(array, 0, 0).address % 512} bytes past a multiple of 512"
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        yield f"{label} cannot be written"


def _calls(subject: Subject) -> Iterator[str]:
    """Every collective, op and format offered, at counts and shifts that reach heads, tails and nothing at all."""
    with subject.bench() as bench:
        for case in cases(bench.capabilities, subject.world.rank_n, None):
            yield from bench.attempt(case)


def _groups(subject: Subject) -> Iterator[str]:
    """Groups out of order and smaller than the world: who is not in one sees nothing."""
    last = subject.world.rank_n - 1
    with subject.bench() as bench:
        if "groups" not in bench.capabilities.features:
            return
        for group in ((last, 0), (last,)) if last else ((0,),):
            for case in cases(bench.capabilities, subject.world.rank_n, group):
                if case.call.op == "sum" and case.call.count in (1, 7):
                    yield from bench.attempt(case)


def _features(subject: Subject) -> Iterator[str]:
    """A listed feature has its verbs, and they do what they say."""
    with subject.bench() as bench:
        features = bench.capabilities.features
        missing = {v for f in features for v in VERBS.get(f, ()) if not callable(getattr(bench.backend, v, None))}
        if missing:
            yield f"features are listed whose verbs are missing: {', '.join(sorted(missing))}"
            return
        case = plain_case(bench.capabilities)
        began = time.perf_counter()
        yield from bench.attempt(case)
        elapsed = time.perf_counter() - began
        if "path" in features and (not isinstance(path := bench.backend.path(), str) or not path):
            yield f"path() = {path!r} after a call is no text"
        if "timing" in features and not 0 <= (seconds := bench.backend.last_seconds()) <= elapsed * 1.5 + 1e-3:
            yield f"last_seconds() = {seconds!r} after a call that took {elapsed:.6f} s by the host's clock"
        for feature in sorted(features & EXERCISES.keys()):
            try:
                lines = list(EXERCISES[feature](bench, case))
            except Exception as error:
                lines = [f"raised {said(error)}"]
            yield from (f"{feature}: {line}" for line in lines)


def _history(bench: Bench, case: Case) -> Iterator[str]:
    for alive in (2, 0):
        bench.backend.perturb(alive)
        yield from bench.attempt(case)


def _recreate(bench: Bench, case: Case) -> Iterator[str]:
    bench.backend.recreate()
    yield from bench.attempt(case)  # over the arrays that allocate gave before


def _graph(bench: Bench, case: Case) -> Iterator[str]:
    replay = bench.backend.capture(case.call, *bench.place(case))
    for _ in range(2):
        yield from bench.attempt(case, lambda *_: replay())


def _registration(bench: Bench, case: Case) -> Iterator[str]:
    for windows in bench.windows(case):
        for window in windows.values():
            bench.backend.register(window)
    yield from bench.attempt(case)


def _queue(bench: Bench, case: Case) -> Iterator[str]:
    def execute(call: Call, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        bench.backend.enqueue(call, send, recv)
        bench.backend.wait()

    yield from bench.attempt(case, execute)


def _refusal(subject: Subject) -> Iterator[str]:
    """A call outside the capabilities is refused with the auditor's own errors, not served and not stumbled over."""
    with subject.bench() as bench:
        capabilities, plain = bench.capabilities, plain_case(bench.capabilities).call
        base = {"collective": plain.collective, "op": plain.op, "format": plain.format, "count": 64}
        offered = {"collective": capabilities.collectives, "op": capabilities.ops, "format": capabilities.formats}
        for name, words in (("collective", COLLECTIVES), ("op", OPS), ("format", tuple(FORMATS))):
            for word in sorted(set(words) - offered[name])[:1]:
                case = Case(Call(**{**base, name: word}), 0, 0, False)  # type: ignore[arg-type]
                try:
                    bench.backend.run(case.call, *bench.place(case))
                    yield f"{case}: is served, though the capabilities leave it out"
                except AuditError:
                    continue
                except Exception as error:
                    yield f"{case}: raised {type(error).__name__}, not Unsupported"


def _lifecycle(subject: Subject) -> Iterator[str]:
    """describe gives JSON scalars; close may be called at any time, twice."""
    backend = subject.cls(subject.world, dict(subject.options))
    described = backend.describe()
    for key, value in dict(described).items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | bool | None):
            yield f"describe()[{key!r}] is a {type(value).__name__}, not a JSON scalar"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"describe()[{key!r}] = {value} has no place in JSON"
    for allocated in (False, True):
        backend = backend if not allocated else subject.cls(subject.world, dict(subject.options))
        try:
            if allocated:
                backend.allocate(512)
            backend.close()
            backend.close()
        except Exception as error:
            yield f"close() {'after' if allocated else 'without'} allocate, twice: raised {said(error)}"


CHECKS: dict[str, Callable[[Subject], Iterator[str]]] = {
    "imports": _imports,
    "probe": _probe,
    "arrays": _arrays,
    "calls": _calls,
    "groups": _groups,
    "features": _features,
    "refusal": _refusal,
    "lifecycle": _lifecycle,
}
EXERCISES: dict[str, Callable[[Bench, Case], Iterator[str]]] = {
    "history": _history,
    "recreate": _recreate,
    "graph": _graph,
    "registration": _registration,
    "queue": _queue,
}
