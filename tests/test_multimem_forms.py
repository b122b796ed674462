"""The forms of multimem: the compile matrix is the committed one, and the backend's kernels are those forms, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from auditor.backends import multimem_compile as compiler
from auditor.backends import multimem_kernels, multimem_matrix
from auditor.backends.multimem_forms import ACCUMULATORS, TYPES, VECTORS, Form, all_forms, body_form, word_form
from auditor.backends.multimem_kernels import Variant
from auditor.backends.multimem_matrix import ARCHITECTURES
from auditor.errors import BackendError, Unavailable

PAGE = Path(__file__).parents[1] / "docs" / "multimem_forms.md"
NARROW = ("float8_e4m3fn", "float8_e5m2")


def missing():
    try:
        compiler.load_nvrtc()
    except Unavailable as error:
        return str(error)
    return "" if compiler.disassembler() else "nvdisasm is not installed"


MISSING = missing()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=f"needs the extra compile: {MISSING}")


def table():
    """Form without ``multimem.`` -> architecture -> opcode or refusal, as the page has it."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    names = [name.strip() for name in lines[0].strip("|").split("|")][2:]
    cells = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:])
    return {row[0].strip("`"): dict(zip(names, row[2:], strict=True)) for row in cells}


def on_page(form, architecture):
    return table()[form.mnemonic.removeprefix("multimem.")][architecture].strip("`")


@needs_compiler
def test_the_matrix_is_the_committed_one():
    """A changed opcode, a form newly taken or newly refused, other words: each shows as a changed line."""
    committed = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    made = multimem_matrix.rows()
    changed = [f"- {old}\n+ {new}" for old, new in zip(committed, made, strict=False) if old != new]
    assert changed == [], f"update {PAGE.name} by `{multimem_matrix.COMMAND}` if this is meant"
    assert len(made) == len(committed) == 2 + len(list(all_forms()))


@needs_compiler
def test_another_instruction_is_another_opcode(monkeypatch):
    """The test above can fail: a form that reduces otherwise has another opcode."""
    plain = Form.mnemonic.fget
    form = Form("bf16", 2, 4)
    before = multimem_matrix.measure("sm_90a", [form])
    monkeypatch.setattr(Form, "mnemonic", property(lambda self: plain(self).replace(".add.", ".max.")))
    after = multimem_matrix.measure("sm_90a", [form])
    assert before[0].opcode == "LDGMC.E.ADD.BF16x8.RN.STRONG.SYS"
    assert after[0].opcode.startswith("LDGMC.E.MAX.BF16x8")


def test_the_page_covers_every_form_that_the_backend_can_ask_for():
    for name in TYPES:
        for accumulator in ACCUMULATORS:
            forms = [body_form(name, accumulator, vector) for vector in VECTORS] + [word_form(name, accumulator)]
            for form in filter(None, forms):
                for architecture in ARCHITECTURES:
                    refused = on_page(form, architecture).startswith("refused: Feature '.e")
                    assert refused is (name in NARROW and architecture == "sm_90a"), form.mnemonic


KERNELS = [
    *(Variant("bfloat16", "wide", "v4", switch=True), Variant("bfloat16", "plain", "v8", switch=True, pair=True)),
    *(Variant("binary16", "plain", "v2", switch=True), Variant("binary32", "wide", "v1", switch=True)),
    *(Variant("float8_e4m3fn", "wide", "v8", switch=True), Variant("float8_e5m2", "plain", "v4", switch=True)),
    *(Variant("bfloat16", "plain", "v4"), Variant("binary16", "wide", "v1"), Variant("float8_e5m2", "wide", "v2")),
]


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile_to_cubins(architecture):
    for variant in KERNELS:
        if variant.switch and variant.format in NARROW and architecture == "sm_90a":
            with pytest.raises(
                compiler.Refused, match=r"for sm_90a: .*Feature '\.e\dm\dx4' not supported on \.target 'sm_90a'"
            ):
                multimem_kernels.cubin(variant, architecture)
        else:
            assert multimem_kernels.KERNEL.encode() in multimem_kernels.cubin(variant, architecture)


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_hold_the_forms_of_the_matrix(architecture):
    """Whole units by the body's form, heads and tails by the word's, lone elements on the SM; without the switch no LDGMC."""
    through = multimem_kernels.sass(KERNELS[0], architecture)
    reductions = {opcode for opcode in through if "LDGMC" in opcode}
    assert reductions == {on_page(form, architecture) for form in (KERNELS[0].body, word_form("bfloat16", "wide"))}
    assert "LDG.E.U16.STRONG.SYS" in through
    assert any(opcode.startswith("FADD") for opcode in through)
    loads = multimem_kernels.sass(KERNELS[6], architecture)
    assert {"LDG.E.U16.STRONG.SYS", "LDG.E.STRONG.SYS", "LDG.E.128.STRONG.SYS"} <= set(loads)
    assert any("BF16" in opcode and opcode.startswith(("HADD2", "HFMA2")) for opcode in loads)
    assert not any("LDGMC" in opcode for opcode in loads)


@needs_compiler
def test_the_command_prints_a_table_and_tells_mistakes(capsys):
    assert multimem_matrix.main(["sm_90"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("NVRTC ")
    assert "| `ld_reduce.relaxed.sys.global.add.v4.f32` | 16 | `LDGMC.E.ADD.F32x4.RN.STRONG.SYS` |" in printed
    assert multimem_matrix.main(["sm_999a"]) == 3
    assert "invalid value for --gpu-architecture" in capsys.readouterr().err


def test_a_word_that_is_no_architecture_is_told(capsys):
    assert multimem_matrix.main(["hopper"]) == 2
    assert capsys.readouterr().err == f"{multimem_matrix.COMMAND}: hopper is no architecture such as sm_90a\n"


@needs_compiler
def test_a_refused_source_and_a_strange_cubin_are_told(monkeypatch):
    with pytest.raises(compiler.Refused, match=r'for sm_90a: identifier "x" is undefined'):
        compiler.cubin("__global__ void k() { x = 1; }", "sm_90a")
    with pytest.raises(Unavailable, match="nvdisasm cannot read this cubin"):
        compiler.opcodes(b"no cubin")
    monkeypatch.setattr(compiler, "cubin", lambda *_: (_ for _ in ()).throw(compiler.Refused("sm_90a", "odd words")))
    with pytest.raises(BackendError, match="cannot be laid at forms: odd words"):
        multimem_matrix.refusals("sm_90a", [Form("f32", 1, 1)])


def test_an_opcode_that_is_not_there_once_is_told():
    with pytest.raises(BackendError, match="its SASS shows LDG EXIT"):
        multimem_matrix.own(Form("f32", 1, 1), ["LDG", "EXIT"])


def test_without_a_compiler_or_disassembler_both_are_told(monkeypatch):
    monkeypatch.setattr(compiler, "disassembler", lambda: None)
    assert compiler.disassembler_version() == "not installed"
    with pytest.raises(Unavailable, match="nvdisasm is not installed") as caught:
        compiler.opcodes(b"")
    assert "[compile]" in caught.value.remedy
    monkeypatch.setattr(multimem_kernels, "cubin", lambda *_: b"")
    multimem_kernels.sass.cache_clear()
    assert multimem_kernels.sass_words(Variant("binary32", vector="v1"), "sm_90a").startswith("not read: nvdisasm")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.delitem(sys.modules, "cuda.bindings.nvrtc", raising=False)
    with pytest.raises(Unavailable, match="NVRTC cannot be loaded") as caught:
        compiler.load_nvrtc()
    assert "[compile]" in caught.value.remedy


def test_what_a_log_calls_errors():
    log = "a.cu(3): error: this\n\nptxas application ptx input, line 9; error   : that\nx: warning: no\na.cu(4): error: this\n"
    assert compiler.complaints(log) == ["this", "that"]
    assert compiler.complaints("nothing of the kind") == []
