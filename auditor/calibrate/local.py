"""Local reductions: the built-in histogram, and a person's own function with arrays in and out.

Both add ``terms`` rows of ``n`` elements; an order of the rows is an order of every element's additions. A person's function is
called as ``function(rows, out)`` with arrays of NumPy or CuPy, the rows already in the order asked for; it fills ``out``, is done
when it returns, and returns the seconds that it claims, or None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from auditor.calibrate import data, reference
from auditor.calibrate.device import Device, check_memory, open_device
from auditor.calibrate.gates import (
    Right,
    Subject,
    complete_on_return,
    every_element_written,
    honest_time,
    inputs_unchanged,
    read_again,
)
from auditor.calibrate.held_out import HeldOut
from auditor.calibrate.legal import NEAREST
from auditor.calibrate.measured import Measured, Models
from auditor.calibrate.reference import EXACT, FLOAT64, Reference
from auditor.errors import BackendError, ConfigError, Unavailable
from auditor.model import Codes
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.trees import Tree, binary_tree, chain, evaluate

FORMATS_HERE = ("binary32", "binary64")
HELD_OUT_FROM = 100_000  # numbers of the shuffles that are held out; calibration takes small ones
ATOMIC_LAUNCHES = 24
COPIES = 4  # of all terms that are held at once, at the most
THREADS = 256
Run = Callable[[data.Order, Any], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """What a local reduction is asked for; ``function``: the person's own, "" for the histogram."""

    function: str = ""
    device: str = "cpu"
    format: str = "binary32"
    n: int = 4096
    terms: int = 16384
    orders: int = 3
    distribution: str = "uniform"
    reference: str = FLOAT64
    seed: int = 0


class LocalReduction:
    """See :class:`~auditor.calibrate.measured.Workload`. Raises ConfigError on what cannot be, Unavailable without a GPU."""

    def __init__(self, options: LocalOptions) -> None:
        if options.format not in FORMATS_HERE:
            raise ConfigError(f"--format {options.format}: local workloads take {' or '.join(FORMATS_HERE)}")
        self.options, self.fmt = options, FORMATS[options.format]
        if options.reference == FLOAT64 and self.fmt.bits == 64:
            raise ConfigError("--reference float64: is no better than a binary64 sum; ask for --reference exact")
        if options.reference not in (FLOAT64, EXACT) and not options.reference.startswith("user:"):
            raise ConfigError(f"--reference {options.reference}: is none of float64, exact, user:module.function")
        data.check_distribution(options.distribution, self.fmt, options.terms)
        check_memory(COPIES * options.n * options.terms * self.fmt.itemsize)
        self._referee = resolve(options.reference) if options.reference.startswith("user:") else None
        self._function = resolve(options.function) if options.function else None

    def asked(self) -> dict[str, Any]:
        o = self.options
        size = ("count", "terms") if o.function else ("bins", "weights")
        return {
            "workload": o.function or "histogram",
            "backend": "local",
            "on": o.device,
            "format": o.format,
            "rank_n": 1,
            "size": dict(zip(size, (o.n, o.terms), strict=True)),
            "orders": list(data.order_names(o.orders)),
            "distribution": o.distribution,
            "reference": o.reference,
            "seed": o.seed,
        }

    def elements(self) -> int:
        return self.options.n

    @cached_property
    def device(self) -> Device:
        return open_device(self.options.device)

    def _rows(self, seed: int) -> data.Rows:
        o = self.options
        return data.rows(o.distribution, self.fmt, seed, o.terms, o.n)

    def _order(self, name: str) -> data.Order:
        return data.order_of(name, self.options.seed, self.options.terms)

    def measure(self, held_out: int) -> Measured:
        o, device = self.options, self.device
        earlier = self._rows(o.seed + 1)
        inputs = device.put(earlier)
        run = self._run(inputs)
        names = data.order_names(o.orders)
        orders = {name: self._order(name) for name in names}
        first = orders[names[0]]
        nbytes = int(earlier.nbytes + o.n * self.fmt.itemsize)
        subject = Subject(device, self.fmt, o.n, nbytes, lambda out: self._call(run, first, out))
        before, was = subject.result(), Right.of(self._reference(earlier))
        del earlier
        rows = self._rows(o.seed)
        device.overwrite(inputs, rows)
        judge = self._reference(rows)
        gates = [
            every_element_written(subject),
            read_again(self.fmt, before, was, subject.result(), Right.of(judge)),
            complete_on_return(subject),
            honest_time(subject),
        ]
        gates.append(inputs_unchanged(device.get(inputs), rows))
        outputs = {name: self._output(subject, run, order) for name, order in orders.items()}
        return Measured(
            conditions={**self.asked(), **device.describe()},
            reference=judge,
            orders=outputs,
            gates=gates,
            replay=known_order(self.fmt, rows, orders, outputs),
            legal=Models(None, f"{o.terms:,} terms have more orders than can be listed"),
            held_out=self._held_out(subject, run, inputs, held_out),
            repeats=bool(np.array_equal(self._output(subject, run, first), outputs[names[0]])),
            directed=self._function is not None,  # nobody knows how a person's own additions round
        )

    def _reference(self, rows: data.Rows) -> Reference:
        if self._referee is None:
            return reference.of_rows(self.fmt, rows, self.options.reference)
        try:
            values = np.asarray(self._referee(rows.astype(np.float64)), np.float64)
        except Exception as error:
            raise subject_error(self.options.reference, error) from error
        if values.shape != (self.options.n,):
            raise ConfigError(f"{self.options.reference}: gave shape {values.shape}, not ({self.options.n},)")
        return Reference(self.fmt, self.options.reference, reference.sums_of_float64(values))

    def _run(self, inputs: Any) -> Run:
        if self._function is not None:
            function, xp = self._function, self.device.xp
            plain = np.arange(len(inputs), dtype=np.uint32)

            def ordered(order: data.Order, out: Any) -> float | None:
                # In the stated order the rows are the very memory, so that a stale input can show.
                rows = inputs if np.array_equal(order, plain) else inputs[xp.asarray(order.astype(np.int64))]
                claimed: float | None = function(rows, out)
                return claimed

            return ordered
        return host_histogram(inputs) if self.options.device == "cpu" else gpu_histogram(self.device, inputs)

    def _call(self, run: Run, order: data.Order, out: Any) -> float | None:
        """One call; whatever a person's function raises or returns amiss becomes one line."""
        name = self.options.function or "histogram"
        try:
            claimed = run(order, out)
        except Exception as error:
            raise subject_error(name, error) from error
        if claimed is not None and not isinstance(claimed, int | float):
            raise ConfigError(
                f"{name}: returned {type(claimed).__name__}, neither seconds nor None; fill `out` instead"
            )
        return claimed

    def _output(self, subject: Subject, run: Run, order: data.Order) -> Codes:
        out = subject.blank(subject.poisons()[0])
        self._call(run, order, out)
        return subject.codes(self.device.get(out))

    def _held_out(self, subject: Subject, run: Run, inputs: Any, n: int) -> Iterator[HeldOut]:
        for number in range(n):
            order = self._order(f"shuffled:{HELD_OUT_FROM + number}")
            yield HeldOut("orders drawn at random, on the target", self._output(subject, run, order))
        if n and not self.options.function and self.options.device == "cuda":
            for number in range(ATOMIC_LAUNCHES):
                out = subject.blank(0)
                launch_atomic(self.device, inputs, out, blocks=1 << (number % 12))
                yield HeldOut(
                    "atomic additions, launch shapes of 1 to 2,048 blocks", subject.codes(self.device.get(out))
                )


def resolve(spec: str) -> Callable[..., Any]:
    """The function behind ``user:package.module.function``. Raises ConfigError, Unavailable where its module needs another."""
    name = spec.removeprefix("user:").replace(":", ".")
    module, _, function = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{spec}: is not of the form user:module.function")
    try:
        found = getattr(import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{spec}: there is no module {error.name} here or installed") from None
        raise Unavailable(f"{spec} needs {error.name}, which is not installed", f"install {error.name}") from error
    except Exception as error:
        raise ConfigError(f"{spec}: the module fails to import: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{spec}: {module} has no function {function}")
    made: Callable[..., Any] = found
    return made


def subject_error(name: str, error: Exception) -> BackendError:
    """A workload that raises is a failed subject: exit code 1."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    made = BackendError(f"{name} raised {words}")
    made.exit_code = 1
    return made


def host_histogram(weights: data.Rows) -> Run:
    """One running sum a bin, round after round."""

    def run(order: data.Order, out: Any) -> float:
        began = time.perf_counter()
        total = np.zeros(weights.shape[1], weights.dtype)
        for number in order.tolist():
            total += weights[number]
        out[...] = total
        return time.perf_counter() - began

    return run


def gpu_histogram(device: Any, weights: Any) -> Run:
    """One thread a bin; the seconds are those of the device's own events."""
    rounds, bins = weights.shape
    kernel = f"histogram_ordered_{weights.itemsize}"

    def run(order: data.Order, out: Any) -> float:
        numbers = device.put(order)
        arguments = [weights.data.ptr, numbers.data.ptr, rounds, bins, out.data.ptr]
        seconds: float = device.timed(lambda: device.runtime.launch(kernel, -(-bins // THREADS), arguments))
        return seconds

    return run


def launch_atomic(device: Any, weights: Any, out: Any, blocks: int) -> None:
    """The samples as the threads come to them; ``out`` holds zeros before."""
    arguments = [weights.data.ptr, weights.size, weights.shape[1], out.data.ptr]
    device.runtime.launch(f"histogram_atomic_{weights.itemsize}", blocks, arguments)


def known_order(fmt: Format, rows: data.Rows, orders: Mapping[str, data.Order], outputs: Mapping[str, Codes]) -> Models:
    """The additions done again by another program, where one of two stated trees explains every output bit by bit."""
    terms = list(rows.view(fmt.dtype))
    trees: dict[str, Callable[[Sequence[int]], Tree]] = {
        "one after the other": chain,
        "in pairs": lambda order: relabelled(binary_tree(len(order)), order),
    }
    for name, tree in trees.items():
        again = (
            evaluate(tree(order.tolist()), terms, fmt, accumulator=fmt, hop=NEAREST, final=NEAREST)
            for order in orders.values()
        )
        made = []
        for codes, output in zip(again, outputs.values(), strict=True):
            if not np.array_equal(codes, output):
                break
            made.append(codes)
        else:
            return Models(
                made[0], f"the terms are added {name}: done again, that gives every bit of {len(made)} orders"
            )
    return Models(None, "neither one after the other nor in pairs explains the outputs bit by bit")


def relabelled(tree: Tree, order: Sequence[int]) -> Tree:
    """The same tree with leaf k standing for term order[k]."""
    return tuple(relabelled(part, order) for part in tree) if isinstance(tree, tuple) else order[tree]
