"""The multimem kernels compiled by g++ as plain C++, one thread after the other: multimem.cu itself, with emulated_multimem.hpp
in place of what it needs of a GPU. The switch is a model: a chain in the members' order behind an address that nothing else has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from auditor.backends.multimem_forms import ACCUMULATORS, TYPES, VECTORS, body_form
from auditor.backends.multimem_kernels import Variant, definitions

HERE = Path(__file__).parent
COMMON = """
#include <cmath>
#include <cstring>
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
extern "C" {
u64 emulated_misaligned, emulated_watched, emulated_watched_bytes, emulated_member_n, emulated_switch_n;
u8* emulated_widths;
u64 emulated_switch[64 * 18];  // a row an allocation: switch base, bytes, then the members' bases
}
namespace emulated {
static u64 thread, threads;
static u64 &misaligned = emulated_misaligned, &member_n = emulated_member_n;
static void note(u64 at, u64 bytes, u64 width) {
    for (u64 k = 0; k < bytes; k++)
        if (at + k - emulated_watched < emulated_watched_bytes) emulated_widths[at + k - emulated_watched] |= (u8)width;
}
static void read(u64 at, u64 bytes) {
    misaligned += at % bytes != 0;
    note(at, bytes, bytes);
}
static u64 local(u64 at, u64 member) {
    for (u64 row = 0; row < emulated_switch_n; row++) {
        const u64* one = emulated_switch + 18 * row;
        if (at - one[0] < one[1]) return one[2 + member] + at - one[0];
    }
    misaligned++;  // behind no allocation
    return 0;
}
static u32 behind(u64 at, u64 member, u64 width) {
    u32 w;
    memcpy(&w, (const void*)local(at, member), 4);
    if (member == 0) note(local(at, 0), 4, 128 | width);
    return w;
}
struct Format {
    int precision, emin, emax;
    bool infinite;
    u32 nan;
};
static double decode(Format f, u32 code, int bits) {
    u32 magnitude = code & ((1ull << (bits - 1)) - 1), low = magnitude & ((1u << (f.precision - 1)) - 1);
    int exponent = (int)(magnitude >> (f.precision - 1));
    bool top = exponent == f.emax - f.emin + 2;
    double x;
    if (f.infinite ? top && low : magnitude == (1u << (bits - 1)) - 1) return NAN;
    if (f.infinite && top) x = INFINITY;
    else if (!exponent) x = ldexp((double)low, f.emin - f.precision + 1);
    else x = ldexp((double)(low | 1u << (f.precision - 1)), exponent - 1 + f.emin - f.precision + 1);
    return code >> (bits - 1) & 1 ? -x : x;
}
static u32 encode(Format f, double x, int bits, bool saturate) {
    if (x != x) return f.nan;
    u32 sign = std::signbit(x) ? 1u << (bits - 1) : 0;
    u32 past = f.infinite ? (u32)(f.emax - f.emin + 2) << (f.precision - 1) : (1u << (bits - 1)) - 1;
    x = std::fabs(x);
    if (std::isinf(x)) return sign | (saturate ? past - 1 : past);
    int lead = x == 0 ? f.emin : std::ilogb(x) < f.emin ? f.emin : std::ilogb(x);
    double kept = std::nearbyint(ldexp(x, f.precision - 1 - lead));  // to nearest, ties to even, as the thread's mode is
    u64 code = (u64)(lead - f.emin) * (1ull << (f.precision - 1)) + (u64)kept;  // a carry into the exponent is right as it is
    if (lead > f.emax || code >= past) return sign | (saturate ? past - 1 : past);
    return sign | (u32)code;
}
}  // namespace emulated
"""
WRAP = """
extern "C" void multimem_{index}(const u64* a, u64 threads) {{
    emulated::threads = threads;
    for (emulated::thread = 0; emulated::thread < threads; emulated::thread++)
        variant_{index}::multimem_sum(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
}}
"""


def variants() -> list[Variant]:
    """The kernels that are built here: every form over loads; of those over the switch and with pairs the widest."""
    return [
        Variant(name, accumulator, vector, switch, pair)
        for name in TYPES
        for accumulator in ACCUMULATORS
        for vector in VECTORS
        if body_form(name, accumulator, vector) is not None
        for switch, pair in ((False, False), (False, True), (True, False), (True, True))
        if not (switch or pair) or vector == "v4" or (vector == "v8" and not pair)
    ]


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def text() -> str:
    device = (HERE / "emulated_multimem.hpp").read_text()
    skeleton = (files("auditor.backends") / "multimem.cu").read_text(encoding="utf-8")
    parts = [COMMON]
    for index, variant in enumerate(variants()):
        macros = definitions(variant)
        undone = "".join(f"#undef {line.split()[1]}\n" for line in macros.splitlines()) + "#undef FN\n#undef KERNEL\n"
        parts.append(
            f"{macros}namespace variant_{index} {{\n{device}\n{skeleton}\n}}\n{undone}{WRAP.format(index=index)}"
        )
    return "\n".join(parts)


@cache
def library() -> ctypes.CDLL:
    """Compiled once a process; -O0: compiling would outlast running. -ffp-contract=off: no fused additions."""
    folder = Path(tempfile.mkdtemp(prefix="auditor-multimem-"))
    (folder / "all.cpp").write_text(text())
    flags = ["-O0", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]
    done = subprocess.run(
        [str(compiler()), *flags, "-Wno-unused-function", str(folder / "all.cpp"), "-o", str(folder / "all.so")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr[:3000]
    assert "warning" not in done.stderr, done.stderr[:3000]
    made = ctypes.CDLL(str(folder / "all.so"))
    shutil.rmtree(folder)
    return made


@cache
def entry(variant: Variant) -> ctypes._CFuncPtr:
    return library()[f"multimem_{variants().index(variant)}"]


def launch(variant: Variant, arguments: tuple[int, ...], threads: int = 7) -> None:
    """One kernel. ``arguments``: the nine of multimem_sum."""
    entry(variant)((ctypes.c_uint64 * len(arguments))(*arguments), ctypes.c_uint64(threads))
    assert word("misaligned").value == 0, f"{variant}: accesses that a GPU would refuse"


@cache
def word(name: str) -> ctypes.c_uint64:
    return ctypes.c_uint64.in_dll(library(), f"emulated_{name}")


@contextlib.contextmanager
def watching(array: np.ndarray) -> Iterator[np.ndarray]:
    """Notes how each byte of ``array`` is read meanwhile: bits of widths in bytes, and 128 through the switch."""
    widths = np.zeros(array.nbytes, np.uint8)
    ctypes.c_uint64.in_dll(library(), "emulated_widths").value = widths.ctypes.data
    word("watched").value, word("watched_bytes").value = array.ctypes.data, array.nbytes
    try:
        yield widths
    finally:
        word("watched_bytes").value = 0


def switch(rows: list[tuple[int, int, tuple[int, ...]]]) -> None:
    """What lies behind multicast addresses: (base, bytes, the members' bases) of each allocation."""
    table = (ctypes.c_uint64 * (64 * 18)).in_dll(library(), "emulated_switch")
    for number, (base, nbytes, members) in enumerate(rows):
        table[18 * number : 18 * number + 2 + len(members)] = (base, nbytes, *members)
    word("switch_n").value = len(rows)
    word("member_n").value = len(rows[0][2]) if rows else 0
