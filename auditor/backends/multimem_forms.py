"""The forms of ``multimem.ld_reduce`` and ``multimem.st`` as rows: what PTX calls them, how wide they are, who uses which.

Source: PTX ISA 9.0, "multimem.ld_reduce, multimem.st, multimem.red". A form is one PTX instruction; which of them an assembler
takes for which architecture is measured (multimem_matrix), never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TYPES = {"binary32": "f32", "binary16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
BITS = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}
WIDE = {16: "f32", 8: "f16"}  # the accumulator that .acc:: names, by the element's bits; binary32 has none
VECTORS = ("v1", "v2", "v4", "v8")
ACCUMULATORS = ("plain", "wide")
WORD = 4  # bytes of the smallest access: a lone element of 8 or 16 bits cannot be reduced by the switch


@dataclass(frozen=True, slots=True)
class Form:
    """One instruction. ``type``: the element, such as bf16; ``pack``: how many of them one register holds (bf16x2: 2);
    ``vector``: registers; ``accumulator``: what .acc:: names, "" for none; ``store``: multimem.st instead of a reduction.
    """

    type: str
    pack: int
    vector: int
    accumulator: str = ""
    store: bool = False

    @property
    def element(self) -> str:
        return self.type if self.pack == 1 else f"{self.type}x{self.pack}"

    @property
    def label(self) -> str:
        """As in ``v4.bf16x2.acc::f32``."""
        vector = f"v{self.vector}." if self.vector > 1 else ""
        return vector + self.element + (f".acc::{self.accumulator}" if self.accumulator else "")

    @property
    def mnemonic(self) -> str:
        accumulator = f".acc::{self.accumulator}" if self.accumulator else ""
        vector = f".v{self.vector}" if self.vector > 1 else ""
        operation = "st.relaxed.sys.global" if self.store else f"ld_reduce.relaxed.sys.global.add{accumulator}"
        return f"multimem.{operation}{vector}.{self.element}"

    @property
    def bits(self) -> int:
        """Of one register."""
        return BITS[self.type] * self.pack

    @property
    def nbytes(self) -> int:
        """Of the access, which must be aligned to it."""
        return self.bits * self.vector // 8

    def assembly(self, address: str) -> str:
        """An inline PTX block over 4-byte words %0, %1, ...; ``address``: the operand that holds the address."""
        if self.bits == 32:
            registers = [f"%{k}" for k in range(self.vector)]
            return self._instruction(registers, address)
        per_word = 32 // self.bits
        registers = [f"p{k}" for k in range(self.vector)]
        words = [registers[k : k + per_word] for k in range(0, self.vector, per_word)]
        if len(words[-1]) < per_word:  # less than a word: no kernel uses it, the matrix only asks for it
            words[-1] = words[-1] + registers[-1:] * (per_word - len(words[-1]))
        packs = [f"{{{', '.join(parts)}}}" for parts in words]
        moves = " ".join(
            f"mov.b32 {pack}, %{k};" if self.store else f"mov.b32 %{k}, {pack};" for k, pack in enumerate(packs)
        )
        both = (moves, self._instruction(registers, address))
        first, second = both if self.store else both[::-1]
        return f"{{ .reg .b{self.bits} {', '.join(registers)}; {first} {second} }}"

    def _instruction(self, registers: list[str], address: str) -> str:
        value = f"{{{', '.join(registers)}}}" if self.vector > 1 else registers[0]
        return f"{self.mnemonic} [{address}], {value};" if self.store else f"{self.mnemonic} {value}, [{address}];"

    @property
    def words(self) -> int:
        """4-byte words that its block fills or takes."""
        return max(1, self.nbytes // WORD)


def body_form(name: str, accumulator: str, vector: str) -> Form | None:
    """The form that a call of format ``name`` uses for whole units; None where there is no such form.

    v1, v2 and v4 are registers of 4 bytes (``.v4.bf16x2``), v8 is the scalar form (``.v8.bf16``, ``.v8.e4m3``).
    """
    kind = TYPES[name]
    bits, wide = BITS[kind], _acc(kind, accumulator)
    if vector == "v8":
        return Form(kind, 1, 8, wide) if bits < 32 else None
    return Form(kind, 32 // bits, int(vector[1:]), wide)


def word_form(name: str, accumulator: str) -> Form:
    """The 4-byte form, for what is left before and after the whole units."""
    kind = TYPES[name]
    return Form(kind, 32 // BITS[kind], 1, _acc(kind, accumulator))


def _acc(kind: str, accumulator: str) -> str:
    return WIDE.get(BITS[kind], "") if accumulator == "wide" else ""


def all_forms() -> Iterator[Form]:
    """Every form that the compile matrix asks for, those that should be refused included."""
    for kind in ("f32", "f16", "bf16"):
        bits = BITS[kind]
        for wide in ("", "f32")[: 1 if bits == 32 else 2]:
            yield from (Form(kind, 32 // bits, vector, wide) for vector in (1, 2, 4))
            yield from (Form(kind, 1, vector, wide) for vector in (1, 2, 4, 8) if bits < 32)
        yield Form(kind, 32 // bits, 8)
    yield Form("f32", 1, 1, "f32")
    for kind in ("e4m3", "e5m2"):
        for wide in ("", "f16"):
            yield from (Form(kind, 4, vector, wide) for vector in (1, 2, 4))
            yield from (Form(kind, 2, vector, wide) for vector in (2, 4, 8))
            yield from (Form(kind, 1, vector, wide) for vector in (2, 4, 8))
        yield Form(kind, 4, 1, "f32")
    yield from (Form("f32", 1, vector, store=True) for vector in (1, 2, 4))
    yield from (Form(kind, 1, 1, store=True) for kind in ("f16", "bf16"))
