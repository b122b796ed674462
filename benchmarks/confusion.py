"""Does the probe neighbours name a hidden rounding rule? Draws rules from a seed, audits a simulator that follows each, compares.

    python benchmarks/confusion.py --seed 1 --rules 40 --ranks 2 4

Each rule runs through the real plan and harness, in memory. Its rounding is keyed by neighbours (2 to 5 noise bits each; groups
of 4, 8, 16 or 32 bytes; both orders; SRFF, SRC or SRF), by index, by address, by the sum's own bits or by a generator, or it
is a plain mode. The probe sees results alone.

*Named exactly*: the name is the rule as far as any data can tell it from others. Sums reach the rounding in a binary32
accumulator, so rem has 16 bits below a bfloat16 (13 below a binary16) and noise below its last bit changes no result: two rules
that differ only there are one function. There the exact name is "n or more bits", and a form whose effect lies there is
"undetermined"; such names are counted apart. The last line says how many are exact, and of those how many leave nothing open.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from driven_view import drive

from auditor.backends.simulator import Simulator
from auditor.config import Sweep
from auditor.inputs.contexts import space
from auditor.model import Verdict
from auditor.numerics.formats import FORMATS
from auditor.numerics.rounding import MODES
from auditor.probes import neighbours

KINDS = ("neighbours", "index", "address", "own bits", "generator", "mode")
SHARES = (25, 3, 3, 3, 3, 3)  # of 40
GENERATORS = {"index": "fixed", "address": "address", "own bits": "value", "generator": "call"}
NOISE_MOST = 62  # bits that the simulator holds
OPEN = ("or more", "undetermined")


@dataclass(frozen=True)
class Rule:
    kind: str
    format: str
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """What an audit can call it at best."""
        if self.kind == "mode":
            return f"mode {self.options['final']}"
        if self.kind != "neighbours":
            return self.kind
        fmt, chosen = FORMATS[self.format], self.options
        depth, others = space(fmt).depth, chosen["group_bytes"] // fmt.itemsize - 1
        noise = chosen["noise_bits"] * others
        shown = noise < depth
        bits = str(chosen["noise_bits"]) if shown else f"{-(-depth // others)} or more"
        order = chosen["neighbour_order"] if others > 1 else "either"
        return neighbour_name(chosen["group_bytes"], order, bits, chosen["form"] if shown else "undetermined")


def neighbour_name(group: int, order: str, bits: str, form: str) -> str:
    return f"neighbours: {group} bytes, {order} order, {bits} bits, {form}"


def draw(random: Random, format: str) -> Rule:
    kind = random.choices(KINDS, SHARES)[0]
    if kind == "mode":
        return Rule(kind, format, {"final": random.choice(MODES)})
    options: dict[str, Any] = {"form": random.choice(("SRFF", "SRC", "SRF")), "keyed_formats": [format]}
    if kind != "neighbours":
        noise = {"noise_bits": random.randint(4, 16), "seed": random.randrange(1 << 32)}
        return Rule(kind, format, {**options, **noise, "final": "stochastic", "generator": GENERATORS[kind]})
    group = random.choice((4, 8, 16, 32))
    bits = [b for b in range(2, 6) if b * (group // FORMATS[format].itemsize - 1) <= NOISE_MOST]
    keyed = {"final": "neighbour_keyed", "group_bytes": group, "noise_bits": random.choice(bits)}
    return Rule(kind, format, {**options, **keyed, "neighbour_order": random.choice(("forward", "reversed"))})


def named(measure: dict[str, Any], verdict: Verdict) -> str:
    """The name that a finding gives."""
    by = measure.get("keyed_by", "")
    if verdict is Verdict.INCONCLUSIVE or not by:
        return "not named"
    if by == "nothing":
        return f"mode {' or '.join(measure['modes'])}"
    if by in ("send address", "receive address"):
        return "address"
    if by != "neighbours":
        return str(by)
    agreement = measure.get("held_out_agreement")
    if measure.get("noise_bits") is None or agreement is None or agreement < 0.9999:
        return "neighbours: no formula"
    bits = str(measure["noise_bits"]) + (" or more" if measure["noise_bits_max"] is None else "")
    return neighbour_name(measure["group_bytes"], measure["order"], bits, measure["form"])


def audited(rule: Rule, ranks: int) -> tuple[str, float]:
    """(name, seconds)."""
    began = time.perf_counter()
    sweep = Sweep(format=(rule.format,), count=(1 << 17,), seed=(7,))
    view = drive(Simulator, sweep, [neighbours], rank_n=ranks, options=rule.options)
    (finding,) = neighbours.analyze(view)
    return named(dict(finding.measure), finding.verdict), time.perf_counter() - began


def table(pairs: list[tuple[Rule, str]]) -> str:
    """Truth by row, name by column; a neighbour-keyed rule under another neighbour-keyed name is a column of its own."""
    columns = [*KINDS, "neighbours, but another rule", "not named"]
    counts: Counter[tuple[str, str]] = Counter()
    for rule, name in pairs:
        kind = "mode" if name.startswith("mode") else name.partition(":")[0]
        if kind == "neighbours" and name != rule.name:
            kind = "neighbours, but another rule"
        counts[rule.kind, kind] += 1
    lines = ["| hidden rule \\ named | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    lines += [f"| {row} | " + " | ".join(str(counts[row, column] or ".") for column in columns) + " |" for row in KINDS]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rules", type=int, default=40)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--format", choices=("bfloat16", "binary16"), default="bfloat16")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    rules = [draw(random, arguments.format) for _ in range(arguments.rules)]
    for ranks in arguments.ranks:
        print(f"\n## {ranks} ranks, {arguments.format}, seed {arguments.seed}\n")
        pairs, slowest = [], 0.0
        for number, rule in enumerate(rules, 1):
            name, seconds = audited(rule, ranks)
            slowest = max(slowest, seconds)
            pairs.append((rule, name))
            print(
                f"{number:3} {'ok   ' if name == rule.name else 'WRONG'} {name:62} {seconds:4.1f} s  hidden: {said(rule)}"
            )
        exact = [name for rule, name in pairs if name == rule.name]
        whole = [name for name in exact if not any(words in name for words in OPEN)]
        print(f"\n{table(pairs)}\n")
        print(
            f"{ranks} ranks: {len(exact)} of {len(pairs)} named exactly, {len(whole)} of them with nothing open; ",
            end="",
        )
        print(f"slowest {slowest:.1f} s")
    return 0


def said(rule: Rule) -> str:
    left_out = ("keyed_formats", "final", "generator", "seed")
    if rule.kind == "mode":
        return str(rule.options["final"])
    return rule.kind + " " + " ".join(f"{k}={v}" for k, v in rule.options.items() if k not in left_out)


if __name__ == "__main__":
    raise SystemExit(main())
