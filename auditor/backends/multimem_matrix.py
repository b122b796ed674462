"""The compile matrix: every form of multimem.ld_reduce and multimem.st, taken or refused by each architecture, with its opcode.

``python -m auditor.backends.multimem_matrix`` prints it as Markdown (docs/multimem_forms.md); no GPU is needed, only the extra
``compile``. Of each architecture all forms are one source: the assembler names every line that it refuses, the lines of NVRTC's
PTX say whose they are, and what is left is compiled once more, so that a form counts as taken only where it is in a cubin.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from auditor.backends import multimem_compile as compiler
from auditor.backends.cuda_device import installed_version
from auditor.backends.multimem_forms import Form, all_forms
from auditor.errors import AuditError, BackendError

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
ENTRY = re.compile(r"\.entry form_(\d+)\b")
COMPLAINT = re.compile(r"\bline (\d+); error\s*:\s*(.*\S)")
COMMAND = "python -m auditor.backends.multimem_matrix"


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of one form on one architecture: its opcode, or the assembler's words."""

    opcode: str = ""
    refusal: str = ""

    @property
    def text(self) -> str:
        return f"`{self.opcode}`" if self.opcode else f"refused: {self.refusal}"


def kernel(number: int, form: Form) -> str:
    """One kernel around one form."""
    words = form.words
    registers = [f'"{"" if form.store else "="}r"(w[{k}])' for k in range(words)]
    operands = f': : {", ".join(registers)}, "l"(at)' if form.store else f': {", ".join(registers)} : "l"(at)'
    before = f"for (int k = 0; k < {words}; k++) w[k] = data[k];" if form.store else ""
    after = "" if form.store else f"for (int k = 0; k < {words}; k++) data[k] = w[k];"
    statement = f'asm volatile("{form.assembly(f"%{words}")}" {operands} : "memory");'
    return (
        f'extern "C" __global__ void form_{number}(unsigned* data, unsigned long long at) '
        f"{{ unsigned w[{words}]; {before} {statement} {after} }}\n"
    )


def measure(architecture: str, forms: Sequence[Form]) -> list[Cell]:
    """A cell for each form, in order. Raises Unavailable without NVRTC or nvdisasm, BackendError where they puzzle."""
    words = refusals(architecture, forms)
    taken = [number for number in range(len(forms)) if number not in words]
    opcodes = {}
    if taken:
        code = compiler.cubin("".join(kernel(number, forms[number]) for number in taken), architecture)
        opcodes = compiler.opcodes(code)
    return [
        Cell(refusal=words[number]) if number in words else Cell(opcode=own(form, opcodes[f"form_{number}"]))
        for number, form in enumerate(forms)
    ]


def refusals(architecture: str, forms: Sequence[Form]) -> dict[int, str]:
    """Number of each form that the assembler refuses -> its words."""
    source = "".join(kernel(number, form) for number, form in enumerate(forms))
    try:
        compiler.cubin(source, architecture)
        return {}
    except compiler.Refused as error:
        log = error.log
    owner, current = {}, -1
    for line_number, line in enumerate(compiler.ptx(source, architecture.replace("sm_", "compute_")).splitlines(), 1):
        if entry := ENTRY.search(line):
            current = int(entry[1])
        owner[line_number] = current
    found: dict[int, list[str]] = {}
    for line_number, words in COMPLAINT.findall(log):
        found.setdefault(owner.get(int(line_number), -1), []).append(words)
    if not found or -1 in found:
        raise BackendError(f"the refusals for {architecture} cannot be laid at forms: {compiler.first_of(log)}")
    return {number: "; ".join(dict.fromkeys(words)) for number, words in found.items()}


def own(form: Form, opcodes: Sequence[str]) -> str:
    """The opcode of the form among its kernel's. Raises BackendError where there is not exactly one."""
    wanted = re.compile(r"STG?\.\S*STRONG\.SYS|\w*MC\.\S+" if form.store else r"LD\w*MC\.\S+")
    found = [opcode for opcode in opcodes if wanted.fullmatch(opcode)]
    if len(found) != 1:
        raise BackendError(f"{form.mnemonic}: its SASS shows {' '.join(opcodes)}, where one such opcode was expected")
    return found[0]


def rows(architectures: Sequence[str] = ARCHITECTURES) -> list[str]:
    """The table's lines, Markdown."""
    forms = list(all_forms())
    columns = [measure(architecture, forms) for architecture in architectures]
    lines = [
        f"| `multimem.` form | bytes | {' | '.join(architectures)} |",
        "|---|---" + "|---" * len(architectures) + "|",
    ]
    for number, form in enumerate(forms):
        cells = " | ".join(column[number].text for column in columns)
        lines.append(f"| `{form.mnemonic.removeprefix('multimem.')}` | {form.nbytes} | {cells} |")
    return lines


def versions() -> str:
    """What the table was made with, in one line."""
    made = datetime.datetime.now(datetime.UTC).date().isoformat()
    nvrtc = installed_version("nvidia-cuda-nvrtc").replace("not installed", compiler.compiler_version())
    return f"NVRTC {nvrtc}, nvdisasm {compiler.disassembler_version()}, {made}"


def main(arguments: Sequence[str]) -> int:
    """Prints the matrix; the exit code of the error where it cannot be made."""
    wrong = [word for word in arguments if not re.fullmatch(r"sm_\d+[af]?", word)]
    if wrong:
        print(f"{COMMAND}: {wrong[0]} is no architecture such as {ARCHITECTURES[0]}", file=sys.stderr)
        return 2
    try:
        table = "\n".join(rows(arguments or ARCHITECTURES))
        print(f"{versions()}\n\n{table}")
    except AuditError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
