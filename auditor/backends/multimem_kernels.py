"""The kernel of one kind of call: its source, and what its SASS does to the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TypeVar

from auditor.backends import multimem_compile
from auditor.backends.multimem_forms import BITS, TYPES, WORD, Form, body_form, word_form
from auditor.errors import Unavailable

KERNEL = "multimem_sum"
THREADS = 256
SOURCES = ("multimem_device.cuh", "multimem.cu")
Made = TypeVar("Made")
ARITHMETIC = re.compile(r"LDGMC\.\S+|LDG\.\S*STRONG\S*|(?:FADD|HADD2|HFMA2|FFMA)\b\S*|F2FP?\.\S+")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel: which format, how it adds, how wide it reads, whether through the switch, what a lone element takes."""

    format: str
    accumulator: str = "wide"
    vector: str = "v4"
    switch: bool = False
    pair: bool = False

    @property
    def body(self) -> Form:
        form = body_form(self.format, self.accumulator, self.vector)
        assert form is not None, f"{self.format} has no form {self.vector}"
        return form

    @property
    def itemsize(self) -> int:
        return BITS[TYPES[self.format]] // 8

    @property
    def unit(self) -> int:
        """Bytes of a whole access."""
        return self.body.nbytes


def source(variant: Variant) -> str:
    """The whole text, for NVRTC: nothing is included."""
    folder = files("auditor.backends")
    device, skeleton = ((folder / name).read_text(encoding="utf-8") for name in SOURCES)
    return "\n".join((definitions(variant), device, _through_the_switch(variant) if variant.switch else "", skeleton))


def definitions(variant: Variant) -> str:
    """The macros that the sources are written against."""
    numbers = {name.upper(): number for number, name in enumerate(TYPES)}
    chosen = {
        "FORMAT": variant.format.upper(),
        "ITEM": variant.itemsize,
        "UNIT": variant.unit,
        "WIDE": int(variant.accumulator == "wide"),
        "SWITCH": int(variant.switch),
        "PAIR": int(variant.pair),
    }
    return "".join(f"#define {name} {value}\n" for name, value in {**numbers, **chosen}.items())


def _through_the_switch(variant: Variant) -> str:
    """``switch_reduce`` for words and units, ``switch_store`` for 4, 8 and 16 bytes."""
    word = word_form(variant.format, variant.accumulator)
    reductions = [word] if variant.unit == WORD and variant.vector == "v1" else [word, variant.body]
    stores = [Form("f32", 1, vector, store=True) for vector in (1, 2, 4)]
    return "".join(map(_reduction, reductions)) + "".join(map(_store, stores))


def _reduction(form: Form) -> str:
    outputs = ", ".join(f'"=r"(v.w[{k}])' for k in range(form.words))
    return (
        f"FN void switch_reduce(u64 at, Words<{form.words}>& v) {{\n"
        f'    asm volatile("{form.assembly(f"%{form.words}")}" : {outputs} : "l"(at) : "memory");\n}}\n'
    )


def _store(form: Form) -> str:
    inputs = ", ".join(f'"r"(v.w[{k}])' for k in range(form.words))
    return (
        f"FN void switch_store(u64 at, const Words<{form.words}>& v) {{\n"
        f'    asm volatile("{form.assembly(f"%{form.words}")}" :: {inputs}, "l"(at) : "memory");\n}}\n'
    )


def architecture(major: int, minor: int) -> str:
    """The compiler's name of a GPU's compute capability, with what is its own alone: ``sm_90a``."""
    return f"sm_{major}{minor}a"


@lru_cache(maxsize=256)
def cubin(variant: Variant, architecture: str) -> bytes:
    """Raises Unavailable where there is no compiler, multimem_compile.Refused with its words where it refuses."""
    return multimem_compile.cubin(source(variant), architecture)


@lru_cache(maxsize=256)
def sass(variant: Variant, architecture: str) -> tuple[str, ...]:
    """The opcodes that load and add in this kernel, each once, in the order met. Raises Unavailable without nvdisasm."""
    found = multimem_compile.opcodes(cubin(variant, architecture))[KERNEL]
    return tuple(dict.fromkeys(opcode for opcode in found if ARITHMETIC.fullmatch(opcode)))


def sass_words(variant: Variant, architecture: str) -> str:
    """:func:`sass` as one text; why not, where it cannot be read."""
    try:
        return " ".join(sass(variant, architecture))
    except Unavailable as error:
        return f"not read: {error}"


def of_each(make: Callable[[Variant, str], Made], variants: Sequence[Variant], architecture: str) -> list[Made]:
    """What ``make`` gives for each variant. Side by side: compiler and disassembler are outside of Python, and slow to start."""
    with ThreadPoolExecutor(max_workers=max(len(variants), 1)) as pool:
        return list(pool.map(lambda variant: make(variant, architecture), variants))
