"""issue.md: a page that can be pasted into a tracker. Short, exact, with its limits; it asks and does not accuse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from auditor import __version__
from auditor.analysis.signatures import Signature
from auditor.evidence import script
from auditor.evidence.bits import code_text, failure_records, value_text
from auditor.evidence.cases import Case, Step
from auditor.evidence.reduce import LIVE, MODEL, RECORDED, Reduced
from auditor.evidence.tables import markdown, table
from auditor.evidence.words import MODES, cell_of, words_for
from auditor.model import Call, Finding, Verdict
from auditor.probes.common import listed, plural

SHOWN = 8  # elements of the smallest case that are spelled out
FAMILIES = {
    "report132": "random sign and mantissa, exponent -4 to 4",
    "wide": "normally distributed values",
    "ties": "sums that are ties, near ties or barely inexact",
    "rank_coded": "each rank one bit of the sum",
    "tail_trigger": "sums of 1 + 7/8 ulp everywhere",
    "neighbours": "sums whose remainder, and whose neighbours' bits, are chosen",
    "special_cases": "NaN, infinities, zeros, subnormals and range ends, at each rank in turn",
    "order_exact": "values whose partial sums are exact in every order",
    "position_coded": "each element its own index",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the page says, already without what must not leave.

    ``reworded``: what this version says of the attached record where that is not the finding's claim, "" where it is.
    ``like``: arms of the same library. ``no_script``: why there is no reproduce.py, "" where there is one. ``ran``: what it
    printed when it was run here, "" where it was not (``not_run`` says why). ``files``: (name, what it is).
    """

    run_id: str
    finding: Finding
    findings: Sequence[Finding]
    subject: script.Subject
    rank_n: int
    like: Sequence[str]
    environment: Mapping[str, Any]
    reduced: Reduced
    signature: Signature | None
    no_script: str
    ran: str
    not_run: str
    reworded: str
    files: Sequence[tuple[str, str]]


def title(finding: Finding, subject: script.Subject) -> str:
    """One line, in the library's own words where they are known, with its release."""
    call = call_name(subject, finding.scope).replace("`", "") if isinstance(finding.scope.get("format"), str) else ""
    return f"{call or cell_of(finding)}: {words_for(finding).title} ({library(subject)})"


def library(subject: script.Subject) -> str:
    """``MPICH 5.0.2``, ``NCCL 2.28.9``, ``a simulated model (b300)``."""
    told = subject.describe
    if subject.kind == "simulator":
        return f"a simulated model ({told.get('preset', 'none')})"
    for key, name in (("library_version", ""), ("nccl", "NCCL "), ("nvshmem", "NVSHMEM ")):
        if told.get(key):
            return f"{name}{told[key]}"
    return f"{subject.backend} {told.get('version', '')}".strip()


def page(facts: Facts) -> str:
    """The whole page, Markdown."""
    parts = [
        [f"# {title(facts.finding, facts.subject)}"],
        _banner(facts),
        _environment(facts),
        _what_was_run(facts),
        table(facts.finding, facts.findings, facts.like),
        _smallest(facts),
        ["**Observations**", "", *(f"- {line}" for line in _observations(facts))],
        ["**Questions**", "", *(f"{n}. {line}" for n, line in enumerate(words_for(facts.finding).questions, 1))],
        ["**What this does not show**", "", *(f"- {line}" for line in _limits(facts))],
        _reproducing(facts),
        ["**Attached**", "", *(f"- `{name}`: {what}" for name, what in facts.files)],
        [f"Made by collective-rounding-auditor {__version__} from run {facts.run_id}, finding {facts.finding.id}."],
    ]
    return "\n\n".join("\n".join(part).strip("\n") for part in parts if part) + "\n"


# ---------------------------------------------------------------------------------------------------------- environment


def _banner(facts: Facts) -> list[str]:
    lines = []
    if facts.subject.kind == "simulator":
        lines += [
            "> **This shows a model, not hardware.** The subject is the auditor's simulator, which does what its options say. "
            "Nothing here was measured on a library or a GPU, and it is no evidence about any.",
        ]
    if facts.finding.verdict is Verdict.INFORMATION:
        lines += [
            "",
            "This is not reported as a fault: nothing that is known to the reporter forbids it. It is a question.",
        ]
    return lines


def _environment(facts: Facts) -> list[str]:
    told, found = facts.subject.describe, facts.environment
    system, cpu = found.get("system", {}), found.get("cpu", {})
    machine = [
        system.get("os"),
        system.get("kernel"),
        cpu.get("model"),
        f"{cpu.get('usable') or cpu.get('count')} cores",
    ]
    skip = ("hosts", "library_version")
    software = [f"{key} {value}" for key, value in told.items() if key not in skip and value not in ("", None)]
    lines = [
        f"**Environment:** {library(facts.subject)}, {plural(facts.rank_n, 'rank')}, backend `{facts.subject.backend}`.",
        "",
        f"- machine: {', '.join(str(part) for part in machine if part)}",
        f"- {'options' if facts.subject.kind == 'simulator' else 'software'}: "
        f"{'; '.join(' '.join(str(part).split()) for part in software)}; Python {found.get('python', 'unknown')}",
    ]
    hosts = list(dict.fromkeys(str(told.get("hosts", "")).split()))
    if hosts:
        lines.append(f"- hosts: {listed(hosts)}")
    gpus = found.get("gpus", {})
    if isinstance(gpus, Mapping) and gpus.get("driver"):
        lines.append(f"- driver: {gpus['driver']}")
    noted = {k: v for k, v in found.get("variables", {}).items() if k.startswith(_steering(facts.subject))}
    steering = {**noted, **facts.subject.env}
    settings = ", ".join(f"`{name}={value}`" for name, value in sorted(steering.items())) or "none set"
    return [*lines, f"- variables that steer the library: {settings}"]


def _steering(subject: script.Subject) -> tuple[str, ...]:
    """Prefixes of the variables that this library reads; environment.json has those of the others too."""
    name = library(subject)
    if subject.kind == "mpi":
        own = {"MPICH": ("MPIR_", "MPICH_", "HYDRA_"), "Intel": ("I_MPI_",), "Open": ("OMPI_", "PMIX_", "PRTE_")}
        return (*own.get(name.partition(" ")[0], ("MPI",)), "FI_", "UCX_", "UCC_", "MPI4PY_")
    gpu = ("CUDA_", "NCCL_", "NVSHMEM_", "NVIDIA_", "UCX_", "FI_", "TORCH_SYMM")
    return gpu if subject.kind in ("nccl", "nvshmem", "multimem") else () if subject.kind == "simulator" else ("",)


def _what_was_run(facts: Facts) -> list[str]:
    scope = facts.finding.scope
    families = scope.get("family", [])
    names = [str(name).partition(":")[0] for name in (families if isinstance(families, list) else [families])]
    inputs = listed(dict.fromkeys(FAMILIES.get(name, name) for name in names), 3)
    active = {"pairs": ", two ranks at a time, the others +0", "all": ""}.get(str(scope.get("active")), "")
    counts, shifts = (_range(scope.get(axis)) for axis in ("count", "send_shift"))
    placed = "in place and out of place" if scope.get("in_place") == [False, True] else ""
    where = [f"{counts} elements", f"shift {shifts}", placed]
    name = call_name(facts.subject, scope)
    exact = "exact sums, computed with integers" if scope.get("op") == "sum" else "derived from the inputs' codes alone"
    lines = [
        f"**What was run:** {name} over {', '.join(part for part in where if part)}. Inputs: {inputs}{active}. "
        f"Expected values are {exact}."
    ]
    if facts.finding.kind == "rounding_mode":
        lines[0] += " The table counts only the sums that the type cannot hold exactly."
    return lines


def _range(value: Any) -> str:
    some = value if isinstance(value, list) else [value]
    return str(some[0]) if len(some) == 1 else f"{listed(some, 8)}"


def call_name(subject: script.Subject, scope: Mapping[str, Any]) -> str:
    """The call in the library's own words, where they are known."""
    collective, op, name = (str(scope.get(axis)) for axis in ("collective", "op", "format"))
    if subject.kind == "mpi":
        verb = {"all_reduce": "MPI_Allreduce", "reduce": "MPI_Reduce"}.get(collective, "MPI_Reduce_scatter_block")
        kind = script.mpi_type(subject, name)
        return f"`{verb}` with `MPI_{op.upper()}` of {name}{f' (`{kind}`)' if kind else ''}"
    if subject.kind == "nccl":
        verb = {"all_reduce": "ncclAllReduce", "reduce": "ncclReduce"}.get(collective, "ncclReduceScatter")
        return f"`{verb}` with `nccl{op.capitalize()}` of {name}"
    if subject.kind == "nvshmem" and name in script.NVSHMEM_TYPES and collective in script.NVSHMEM_NAMES:
        return f"`nvshmemx_{script.NVSHMEM_TYPES[name]}_{op}_{script.NVSHMEM_NAMES[collective]}_on_stream`"
    return f"{collective} {op} of {name}"


# --------------------------------------------------------------------------------------------------------- smallest case


def _smallest(facts: Facts) -> list[str]:
    case, reduced = facts.reduced.case, facts.reduced
    if case is None:
        return [f"**Smallest case:** there is none: {reduced.why}."]
    lines = [f"**Smallest case** ({_how(reduced)}): {_shape(case)}.", ""]
    asked = facts.finding.scope.get("format")
    if isinstance(asked, str) and asked != case.fmt.name:
        lines[0] += f" The finding is of {asked}; {case.fmt.name} shows it as well."
    if case.elements * len(case.members) > SHOWN * 4:
        return [*lines, "It is too large to be spelled out here; `case.json` and `bits.csv` hold every code."]
    for number, step in enumerate(case.steps, 1):
        name = f"call {number}: " if len(case.steps) > 1 else ""
        lines += [f"{name}{_call_words(step)}.", "", *_codes(case, step, number - 1, reduced), ""]
    return [*lines, *_sum_words(reduced)]


def _how(reduced: Reduced) -> str:
    if reduced.how == LIVE and reduced.shrunk is not None:
        shown, runs = reduced.shrunk.shown
        confirmed = f"shown in {shown} of {runs} fresh starts" if runs else "not confirmed in fresh starts"
        tries = f"{reduced.shrunk.attempts:,} tries"
        return f"found by cutting down a recorded call, tried out on the subject itself, in {tries}; {confirmed}"
    if reduced.how == MODEL:
        return f"cut down by replaying the measured rule, {reduced.model}; **not run on the library**, because {reduced.why}"
    return f"the smallest recorded call that shows it; not cut down, because {reduced.why}"


def _shape(case: Case) -> str:
    counts = listed(dict.fromkeys(step.call.count for step in case.steps))
    elements = "element" if counts == "1" else "elements"
    rounds = f", {case.repeats} rounds" if case.repeats > 1 else ""
    return f"{plural(case.rank_n, 'rank')}, {counts} {elements} of {case.fmt.name}, {plural(len(case.steps), 'call')}{rounds}"


def _call_words(step: Step) -> str:
    call: Call = step.call
    parts = [f"{call.collective} {call.op}, count {call.count}", f"ranges begin {step.send_shift} (send) and"]
    parts[1] += f" {step.recv_shift} (receive) elements after a 512-byte border" if not step.in_place else ""
    if step.in_place:
        parts[1] = f"in place, {step.send_shift} elements after a 512-byte border"
    return "; ".join(parts)


def _codes(case: Case, step: Step, number: int, reduced: Reduced) -> list[str]:
    """One row a rank: what lies before the range, in it, past it, and what came back."""
    fmt = step.fmt
    names = {"head": "before the range", "data": "sends", "tail": "past the range"}
    parts = [part for part in names if part == "data" or any(getattr(one, part).any() for one in case.steps)]
    rows = []
    for row, rank in enumerate(case.members):
        outputs = reduced.outcome.outputs(number, rank)
        cells = [str(rank), *(_some(fmt, getattr(step, part)[row], part) for part in parts)]
        cells.append(_some(fmt, outputs[0][1], "data") if outputs else "")
        rows.append(cells)
    return markdown(["rank", *(names[part] for part in parts), "gets"], rows)


def _some(fmt: Any, codes: Any, part: str) -> str:
    """Codes in words; of many those next to the range, or the first; of equal ones one."""
    if len(codes) > SHOWN and (codes == codes[0]).all():
        return f"{_said(fmt, int(codes[0]))}, {len(codes):,} times"
    few = codes[-SHOWN:] if part == "head" else codes[:SHOWN]
    texts = [_said(fmt, int(code)) for code in few]
    if len(codes) > SHOWN:
        texts.insert(0 if part == "head" else len(texts), f"... ({len(codes) - SHOWN:,} more in `case.json`)")
    return ", ".join(texts) or "nothing"


def _said(fmt: Any, code: int) -> str:
    return f"`{code_text(fmt, code)}` ({value_text(fmt, code)})"


def _sum_words(reduced: Reduced) -> list[str]:
    """The exact sum of the first place, and where between its neighbours the result lies."""
    case = reduced.case
    if case is None:
        return []
    for record in failure_records(case, reduced.outcome, reduced.sightings)[:1]:
        if record["exact"] is None or record["rem"] is None:
            continue
        rem = Fraction(record["rem"])
        if not rem:
            where = f"which {case.fmt.name} holds as `{record['lo']}`"
        else:
            half = "half way" if rem == Fraction(1, 2) else f"{record['rem']} of the way"
            where = f"{half} from `{record['lo']}` to `{record['hi']}`"
        return [
            f"Exact sum at element {record['index']}: {record['exact'].replace('**', '^')}, {where}; result `{record['out']}`."
        ]
    return []


# ---------------------------------------------------------------------------------------------------------- observations


def _observations(facts: Facts) -> Iterator[str]:
    finding = facts.finding
    yield finding.claim
    yield from _rounding_facts(finding)
    yield from _company(facts)
    paths = finding.measure.get("paths")
    if isinstance(paths, list) and paths:
        yield f"Path that the library reported: {listed(paths)}."
    if facts.signature is not None:
        one = facts.signature
        rest = "Other causes may give the same figures."
        if facts.subject.kind == "simulator":
            rest = "That confirms nothing: a model shows what it was told."
        yield f"The figures match {one.name} ({one.report}): {one.reported}. {rest}"


def _rounding_facts(finding: Finding) -> Iterator[str]:
    measure = finding.measure
    if finding.kind != "rounding_mode" or not measure.get("inexact"):
        return
    if measure.get("outside") == 0 and measure.get("exact_wrong") == 0:
        yield "Every result is the exact sum or one of its two neighbours, so no error exceeds one unit in the last place."
    modes = [MODES.get(str(mode), str(mode)) for mode in measure.get("consistent_modes", [])]
    if len(modes) == 1:
        yield f"All {measure['inexact']:,} inexact sums agree with rounding {modes[0]}, and with no other IEEE mode."
    mean, bounds = measure.get("mean_signed_error_ulp"), measure.get("mean_signed_error_95")
    if isinstance(mean, float) and bounds:
        yield f"Mean signed error {mean:+.4f} ulp (95 %: {bounds[0]:+.4f} to {bounds[1]:+.4f})."


def _company(facts: Facts) -> Iterator[str]:
    """Whether the same run saw the same call repeat itself, and its ranks agree."""
    mine = facts.finding
    for one in facts.findings:
        same = all(one.scope.get(axis) == mine.scope.get(axis) for axis in ("collective", "op", "format"))
        if not same or one.arm != mine.arm or one.verdict is not Verdict.PASS or one.kind == mine.kind:
            continue
        calls = one.measure.get("calls_compared")
        if one.kind == "not_repeatable" and calls:
            yield f"The same inputs gave the same bits in all of {plural(int(calls), 'repeated call')}."
        if one.kind == "rank_disagreement":
            yield "All ranks held the same bits after every call."


def _limits(facts: Facts) -> Iterator[str]:
    text = re.sub(r" \([^()]* / [^()]*\)", "", facts.finding.limits)  # lists of cells: findings.json has them
    about_rows = ("`observed`", "`expected`")  # of findings.json
    sentences = [part for part in re.split(r"(?<=[.;]) (?=[A-Z`])", text) if not part.startswith(about_rows)]
    if any(sentences):
        yield " ".join(sentences)
    if facts.reworded:
        yield f"The run was analysed by another version of the auditor; this one says of the attached record: {facts.reworded}"
    yield "One machine, one build and one release; another may differ."
    if facts.reduced.how in (MODEL, RECORDED):
        yield "The smallest case was not tried on the library."
    shrunk = facts.reduced.shrunk
    if shrunk is not None and shrunk.troubles:
        yield f"While cases were cut down this was seen too, and not looked into: {listed(shrunk.troubles, 3)}."
    if shrunk is not None and shrunk.stopped:
        yield f"Cutting down ended early: {shrunk.stopped}."


def _reproducing(facts: Facts) -> list[str]:
    case = facts.reduced.case
    lines = ["**Reproduce**", ""]
    if facts.no_script or case is None:
        lines += [f"There is no stand-alone script: {facts.no_script or facts.reduced.why}. With the auditor:", ""]
    else:
        start = script.starts(case, facts.subject)
        lines += [f"`reproduce.py` needs {script.needs(facts.subject)}:", "", "```", start, "```", ""]
        lines += [*_ran(facts), "", "All of it again, with the auditor:", ""]
    return [*lines, "```", facts.finding.reproduce or "auditor run", "```"]


def _ran(facts: Facts) -> list[str]:
    if not facts.ran:
        return [f"It was not run when this bundle was made: {facts.not_run}."]
    return ["When this bundle was made it printed:", "", "```", *facts.ran.strip().splitlines(), "```"]
