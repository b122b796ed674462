"""reproduce.py: one file that shows a case with NumPy and the vendor's binding alone, put together from templates.

A template's line that ends in ``#? a and not b`` is kept only where that holds of the case, so that nobody reads branches that
it never takes. What a template cannot say is a reason, never half a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from auditor import __version__
from auditor.backends.mpi_library import BFLOAT16_HANDLES
from auditor.backends.nccl_options import OPERATIONS, TYPES
from auditor.backends.simulator.options import Options, Recipe
from auditor.backends.simulator.schedule import pieces
from auditor.errors import AuditError
from auditor.evidence.cases import Case, Step
from auditor.evidence.relations import Relation
from auditor.layout import GUARD, prefill_code
from auditor.multicast import MULTICAST_OFF, forbids_multicast

LINES, WIDTH = 150, 118
INLINE = 96  # codes up to which a case stands in the script itself
MPI_TYPES = {"binary64": "DOUBLE", "binary32": "FLOAT", "binary16": "FLOAT16_T", "bfloat16": "BFLOAT16_T"}
NVSHMEM_TYPES = {"binary64": "double", "binary32": "float", "binary16": "half", "bfloat16": "bfloat16"}
NVSHMEM_NAMES = {"all_reduce": "reduce", "reduce_scatter": "reducescatter"}
CASE_FILE = "case.json"
# ``exact`` to a multiple of ``unit``, as Python says it: round() goes to the even one of two equally near.
NEAREST = {
    "ties_to_even": "round(exact / unit) * unit",
    "ties_to_away": "int(abs(exact) / unit + Fraction(1, 2)) * unit * (-1 if exact < 0 else 1)",
    "toward_zero": "int(exact / unit) * unit",
    "toward_positive": "-(-exact // unit) * unit",
    "toward_negative": "exact // unit * unit",
    "away_from_zero": "-(-abs(exact) // unit) * unit * (-1 if exact < 0 else 1)",
}
# The same of the codes around a sum: ``rem`` of the way from code ``lo`` to the next in magnitude.
UP = {
    "ties_to_even": "2 * rem > 1 or (2 * rem == 1 and lo % 2 == 1)",
    "ties_to_away": "2 * rem >= 1",
    "toward_zero": "False",
    "toward_positive": "rem > 0 and exact > 0",
    "toward_negative": "rem > 0 and exact < 0",
    "away_from_zero": "rem > 0",
}


class NoScript(AuditError):
    """Why there is no stand-alone script; for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is run: the arm's backend, its options, the variables that it was given, and how it described itself."""

    backend: str
    options: Mapping[str, Any]
    env: Mapping[str, str]
    describe: Mapping[str, Any]
    features: frozenset[str] = frozenset()
    memory: str = "host"
    process_model: str = ""  # "" where nobody asked the backend

    @property
    def kind(self) -> str:
        """Name of the template."""
        return self.backend if ":" not in self.backend else "plugin"


def script(case: Case, relation: Relation, subject: Subject, title: str, origin: str, what: str) -> str:
    """The text of reproduce.py. ``what``: what is counted, after "places where". Raises NoScript."""
    _check(case, subject)
    model = _model(case, subject) if subject.kind == "simulator" else {}
    conditions = _conditions(case, relation, subject, model)
    values = {**_values(case, relation, subject), **model, "WHAT": what, "VERSION": __version__}
    parts = _sections(f"{subject.kind}.py.txt")
    check = _sections("checks.py.txt")["not_rounded" if relation.name == "not_exact" else relation.name]
    judged = relation.name in ("not_rounded", "not_exact")
    texts = [
        _template("values.py.txt"),
        "" if model else _template("arenas.py.txt"),
        _template("rounding.py.txt") if model else "",
        _template("rounded.py.txt") if judged else "",
        parts["play"],
        check,
        _template("main.py.txt"),
    ]
    filled = [_filled(part, conditions, values).strip("\n") for part in texts if part]
    small = sum(step.around().size for step in case.steps) <= INLINE
    for inline, between in ((True, "\n\n\n"), (True, "\n\n"), (False, "\n\n")):
        head = _header(case, subject, title, origin, model, inline=inline and small) + "\n" + parts[""]
        text = between.join([_filled(head, conditions, values).strip("\n"), *filled]).replace("\n\n\n", between) + "\n"
        if text.count("\n") <= LINES:
            return text
    lines = text.count("\n")
    raise NoScript(f"the script would have {lines} lines, more than {LINES}")


def starts(case: Case, subject: Subject) -> str:
    """The command line that starts the script."""
    if subject.kind in ("mpi", "nvshmem"):
        return f"mpiexec -n {case.rank_n} python reproduce.py"
    return "python reproduce.py"


def needs(subject: Subject) -> str:
    """What has to be installed, for people."""
    return {
        "mpi": "numpy, mpi4py and the MPI library",
        "nccl": "numpy, cupy, NCCL and GPUs (under mpiexec, one process a GPU, also mpi4py)",
        "nvshmem": "numpy, cupy, nvshmem4py, mpi4py and a GPU for each rank",
        "simulator": "numpy",
        "plugin": f"numpy, the auditor itself and {subject.backend.partition(':')[0]}",
    }.get(subject.kind, "numpy")


def steps_json(case: Case, subject: Subject) -> list[dict[str, Any]]:
    """The steps as the script reads them: codes in hex, one text a rank."""
    return [_step_json(case, step, subject) for step in case.steps]


def _step_json(case: Case, step: Step, subject: Subject) -> dict[str, Any]:
    digits = step.fmt.bits // 4
    hexes = {
        name: [" ".join(f"{int(code):0{digits}x}" for code in row) for row in codes]
        for name, codes in (("head", step.head), ("send", step.data), ("tail", step.tail))
    }
    call = {name: getattr(step.call, name) for name in ("collective", "op", "count", "root")}
    rest = {"send_shift": step.send_shift, "recv_shift": step.recv_shift, "in_place": step.in_place}
    raw = {**call, **rest, "prefill": prefill_code(step.fmt, step.prefill), **hexes}
    if subject.kind == "simulator":
        options = Options.parse(subject.options)
        cut = pieces(step.call, case.members, options.order, options.shot)
        raw["pieces"] = [(one.start, one.stop, one.tree, [rank for rank, _ in one.receivers]) for one in cut]
    return raw


# ------------------------------------------------------------------------------------------------------ what is possible


def _check(case: Case, subject: Subject) -> None:
    if subject.kind not in ("mpi", "nccl", "nvshmem", "simulator", "plugin"):
        raise NoScript(f"there is no template for the backend {subject.backend}")
    if case.steps[0].call.group is not None:
        raise NoScript("it shows only in a group of a larger world, which the script does not make")
    options = {
        key: value for key, value in subject.options.items() if value not in ("", [], "plain", "world", "stream")
    }
    if subject.kind == "mpi" and options.get("op", "native") != "native":
        raise NoScript("the sum is the auditor's own (options.op = \"user\"), not the library's")
    if subject.kind == "mpi" and case.fmt.name not in MPI_TYPES:
        raise NoScript(f"MPI has no datatype for {case.fmt.name}")
    extra = {"nccl": ("buffers", "algorithm"), "nvshmem": ("scope", "team")}.get(subject.kind, ())
    if found := [key for key in extra if key in options]:
        raise NoScript(f"the template does not know options.{found[0]} = {subject.options[found[0]]!r}")
    if subject.kind == "nvshmem" and (case.fmt.name not in NVSHMEM_TYPES or case.steps[0].call.collective == "reduce"):
        raise NoScript(f"NVSHMEM has no {case.steps[0].call.collective} of {case.fmt.name}")
    if subject.kind == "plugin" and (subject.memory != "host" or subject.process_model == "one"):
        raise NoScript("the template for backends from elsewhere is for host memory and one process only")


def _model(case: Case, subject: Subject) -> dict[str, Any]:
    """The simulator's options as the script's constants."""
    options = Options.parse(subject.options)
    recipe = Recipe.of(options, case.fmt)
    if any(step.call.op != "sum" for step in case.steps):
        raise NoScript("the model in the script knows sums only")
    if recipe.final == "stochastic" or options.form == "SRC":
        raise NoScript("the model in the script knows no generator, and no remainder rounded beforehand (SRC)")
    wide = recipe.accumulator
    keyed = recipe.final == "neighbour_keyed"
    return {
        "HOP": NEAREST[options.hop],
        "FINAL": NEAREST["ties_to_even" if keyed else recipe.final],
        "FIRST": 0 if options.keyed_by == "self_and_neighbours" else 1,
        "WAY": "+" if options.neighbour_order == "forward" else "-",
        "HALF_UNIT": f"1, {2 << recipe.noise_n}" if options.form == "SRF" else "0",
        "NAN_FROM": hex(case.fmt.overflow_code + case.fmt.has_infinity),
        "accumulator": (wide.precision, wide.emin) if wide else (),
        "group": recipe.group_n,
        "noise_bits": options.noise_bits,
        "word_emin": recipe.word.emin,
        "keyed": keyed,
        "read_past": options.read_past is True or recipe.group_n == 1,
        "unread": keyed and options.read_past is False,
    }


def _conditions(case: Case, relation: Relation, subject: Subject, model: Mapping[str, Any]) -> set[str]:
    step = case.steps[0]
    found = {step.call.collective}
    if any(one.in_place for one in case.steps):
        found.add("in_place")
    if relation.name == "not_exact":
        found.add("exact")
    if _handle(subject, case.fmt.name) is not None:
        found.add("handle")
    if relation.name in ("bytes_outside", "send_changed"):
        found.add("images")
    return found | {name for name in ("accumulator", "keyed", "read_past", "unread") if model.get(name)}


def _values(case: Case, relation: Relation, subject: Subject) -> dict[str, Any]:
    """What the templates' @NAMES@ stand for."""
    call, told = case.steps[0].call, dict(relation.arguments)
    mode = told.get("mode", "ties_to_even")
    values: dict[str, Any] = {"OP": call.op.upper(), "MODE": mode, "UP": UP[mode]}
    values["JOIN"] = "+" if call.op == "sum" else call.op
    values |= {"HOW": told.get("how", ""), "COLUMN": list(told.get("column", ())), "OPTIONS": dict(subject.options)}
    values |= {"OBSERVED": told.get("observed", 0), "EXPECTED": told.get("expected", 0)}
    values["OWN"] = "; in place, the rank's own input" if case.steps[0].in_place else ""
    if subject.kind == "mpi":
        row = _handle(subject, case.fmt.name)
        library, number, name = (row[0], f"0x{row[1]:x}", row[2]) if row else ("", "0", "")
        values |= {"STANDARD": MPI_TYPES[case.fmt.name]}
        values |= {"LIBRARY": library, "HANDLE": number, "HANDLE_NAME": name}
    if subject.kind == "nccl":
        values |= {"TYPE": TYPES[case.fmt.name], "OP": OPERATIONS[call.op]}
    if subject.kind == "nvshmem":
        values["NAME"] = f"{NVSHMEM_TYPES[case.fmt.name]}_{call.op}_{NVSHMEM_NAMES[call.collective]}"
    if subject.kind == "plugin":
        values["MODULE"], _, values["CLASS"] = subject.backend.partition(":")
    return values


def mpi_type(subject: Subject, name: str) -> str:
    """What the library calls the datatype of a format; "" where that is not known."""
    row = _handle(subject, name)
    return row[2] if row else {"binary64": "MPI_DOUBLE", "binary32": "MPI_FLOAT"}.get(name, "")


def _handle(subject: Subject, name: str) -> tuple[str, int, str] | None:
    """(what the library calls itself, its handle of bfloat16, the type's name), where that of the recorded release is known."""
    if subject.kind != "mpi" or name != "bfloat16":
        return None
    known, text = (str(subject.describe.get(key, "")) for key in ("library_version", "library"))
    for vendor, version, handle, type_name in BFLOAT16_HANDLES:
        number = known.removeprefix(f"{vendor} ")
        if known != number and (found := version.match(number)) and number in text:
            return text[: text.index(number)] + found.group(), handle, type_name
    return None


# ------------------------------------------------------------------------------------------------------------- the text


def _header(case: Case, subject: Subject, title: str, origin: str, model: Mapping[str, Any], *, inline: bool) -> str:
    """``inline``: the case stands in the script, not in a file beside it."""
    fmt = case.fmt
    model_note = (
        "It shows a MODEL, computed in exact arithmetic: no library and no hardware takes part.\n" if model else ""
    )
    lines = [
        "#!/usr/bin/env python3",
        f'"""{title}',
        "",
        f"{model_note}Start: {starts(case, subject)}     (needs {needs(subject)})",
        "The last line says REPRODUCED or NOT REPRODUCED.",
        f"{origin}",
        '"""',
        "",
        *(["import json"] if not inline else []),
        *(["import os"] if _settings(subject) or subject.kind == "nccl" else []),
        *(["import sys"] if subject.kind in ("mpi", "nccl", "nvshmem") else []),
        "from fractions import Fraction",
        "from functools import lru_cache",
        *(["from pathlib import Path"] if not inline else []),
        "",
        "import numpy as np",
        "",
        f'FORMAT, BITS, PRECISION, EMIN, LARGEST = "{fmt.name}", {fmt.bits}, {fmt.precision}, {fmt.emin}, {fmt.max_code:#x}',
        f"RANKS, ROUNDS, GUARD, ROOM = {case.rank_n}, {case.repeats}, {GUARD}, {case.nbytes}  # the last two in bytes",
    ]
    if model:
        wide = model["accumulator"] or None
        lines += [f"ACCUMULATOR, GROUP = {wide}, {model['group']}  # (bits, least exponent; None: exact), elements"]
        lines += [f"NOISE_BITS, WORD_EMIN = {model['noise_bits']}, {model['word_emin']}"] if model["keyed"] else []
    lines += _steps_text(case, subject, inline=inline)
    if settings := _settings(subject):
        pairs = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in settings)
        lines.append(f"os.environ.update({{{pairs}, **os.environ}})  # what is set already stays")
    return "\n".join(lines)


def _settings(subject: Subject) -> list[tuple[str, str]]:
    """The arm's variables, less any that would switch in-switch multicast on: that is for the script's reader to decide."""
    some = sorted(subject.env.items())
    return [(name, value) for name, value in some if name not in MULTICAST_OFF or forbids_multicast(name, value)]


def _steps_text(case: Case, subject: Subject, *, inline: bool) -> list[str]:
    if not inline:
        return [f'STEPS = json.loads(Path(__file__).with_name("{CASE_FILE}").read_text())["steps"]  # as below, in hex']
    lines = ["STEPS = [  # one call each; codes in hex, a text for each rank: before the range, in it, past it"]
    for step in steps_json(case, subject):
        items = [f'"{key}": {_literal(key, value)}' for key, value in step.items()]
        lines += _packed([*(f"{item}," for item in items[:-1]), f"{items[-1]}}},"])
    return [*lines, "]"]


def _packed(items: list[str]) -> list[str]:
    """A dictionary's items, as many on a line as fit."""
    lines = ["    {"]
    for item in items:
        if len(lines[-1]) + len(item) >= WIDTH and lines[-1].strip("{ "):
            lines.append("     ")
        lines[-1] += item if lines[-1][-1] in "{ " else f" {item}"
    return lines


def _literal(key: str, value: Any) -> str:
    if key == "prefill":
        return hex(value)
    return json.dumps(value) if isinstance(value, str | list) and key != "pieces" else repr(value)


def _template(name: str) -> str:
    return files("auditor.evidence").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _sections(name: str) -> dict[str, str]:
    """A template's parts by the names of their ``=== name`` lines; "" is what comes first."""
    parts = re.split(r"^=== (\w+)\n", _template(name), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _filled(text: str, conditions: set[str], values: Mapping[str, Any]) -> str:
    kept = []
    for line in text.splitlines():
        body, mark, condition = line.partition("  #? ")
        if not mark or _holds(condition, conditions):
            kept.append(body)
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found.group(1)]), "\n".join(kept))


def _holds(condition: str, known: set[str]) -> bool:
    words = [word.split() for word in condition.split(" and ")]
    return all((word[0] == "not") != (word[-1] in known) for word in words)
