"""The multimem kernels, emulated: every head and tail, order, accumulator and guard against the numerics' models, bit by bit."""

from __future__ import annotations

from functools import cache

import emulated_multimem as emulated
import numpy as np
import pytest
from multimem_cases import model, terms

from auditor.backends.multimem_describe import models, on_the_sm
from auditor.backends.multimem_forms import TYPES
from auditor.backends.multimem_kernels import Variant
from auditor.backends.multimem_split import split, store_width
from auditor.numerics.formats import FORMATS

pytestmark = pytest.mark.skipif(emulated.compiler() is None, reason="no C++ compiler")
SHIFTS, COUNTS, RANKS = range(9), (*range(1, 18), 67), (2, 3, 4, 8)
ROOM, BASE, GUARD = 1024, 512, 0xA5
SWITCH_BASE = 1 << 46
PLAIN = [variant for variant in emulated.variants() if not variant.switch and not variant.pair]


def named(variant):
    ways = ("switch" if variant.switch else "loads", "pair" if variant.pair else "scalar")
    return "-".join((variant.format, variant.accumulator, variant.vector, *ways))


def sent(variant, n, whole=False):
    return terms(variant.format, n, COUNTS[-1], whole)


@cache
def right(variant, n, whole=False):
    """What the stated model gives for :func:`sent`."""
    return model(variant.format, variant.accumulator, sent(variant, n, whole))


class Arenas:
    """n arenas of guards, 512-byte aligned, as seen by a kernel; with a multicast address for each."""

    def __init__(self, n):
        block = np.full(2 * n * ROOM + 512, GUARD, np.uint8)
        start = -block.ctypes.data % 512
        rows = block[start : start + 2 * n * ROOM].reshape(2, n, ROOM)
        self.send, self.recv, self.n, self.block = rows[0], rows[1], n, block
        bases = [tuple(one.ctypes.data for one in half) for half in (self.send, self.recv)]
        emulated.switch([(SWITCH_BASE * (1 + k), ROOM, base) for k, base in enumerate(bases)])

    def put(self, codes, offset):
        for row, one in zip(self.send, codes, strict=True):
            row[offset : offset + one.nbytes] = one.view(np.uint8)

    def run(self, variant, count, offsets, *, rank=0, shares=1, share=0, targets=(0,), in_place=False, threads=5):
        """One rank's kernel; ``shares``: its part of the steps is number ``share`` of that many."""
        results = self.send if in_place else self.recv
        table = np.array([row.ctypes.data + offsets[0] for row in self.send], np.uint64)
        stored = np.array([results[k].ctypes.data + offsets[1] for k in targets], np.uint64)
        steps = split(int(table[0]), count, variant.itemsize, variant.unit).steps
        begin, end = steps * share // shares, steps * (share + 1) // shares
        switched = (
            [SWITCH_BASE * (1 + half) + offset for half, offset in enumerate(offsets)] if variant.switch else [0, 0]
        )
        if in_place and variant.switch:
            switched[1] = SWITCH_BASE + offsets[1]
        written = switched[1] if len(targets) > 1 else 0
        arguments = (
            table.ctypes.data,
            self.n,
            switched[0],
            stored.ctypes.data,
            len(targets),
            written,
            count,
            begin,
            end,
        )
        emulated.launch(variant, arguments, threads)


def check(variant, n, shift, recv_shift, count, whole=False):
    """One-shot by rank 0: its result is the model's, every other byte is as it was."""
    fmt, size = FORMATS[variant.format], variant.itemsize
    arenas, codes = Arenas(n), sent(variant, n, whole)[:, :count]
    offsets = BASE + shift * size, BASE + recv_shift * size
    arenas.put(codes, offsets[0])
    wanted = arenas.block.copy()
    at = arenas.recv[0].ctypes.data - arenas.block.ctypes.data + offsets[1]
    wanted[at : at + count * size] = right(variant, n, whole)[:count].view(np.uint8)
    arenas.run(variant, count, offsets)
    if whole:
        found, wants = (block[at : at + count * size].view(fmt.dtype) for block in (arenas.block, wanted))
        lost = (wants & fmt.magnitude_mask) > fmt.overflow_code  # NaN of inf - inf: which one is no rounding's to say
        assert ((found[lost] & fmt.magnitude_mask) > fmt.overflow_code).all()
        found[lost] = wants[lost]
    assert np.array_equal(arenas.block, wanted), (
        f"{named(variant)} {n} ranks, shifts {shift},{recv_shift}, count {count}"
    )


@pytest.mark.parametrize("variant", PLAIN, ids=named)
def test_every_head_and_tail_is_the_stated_model(variant):
    for n in RANKS if variant.vector == "v4" else (3,):
        for shift in SHIFTS:
            for count in COUNTS:
                check(variant, n, shift, (3 * shift + count) % 9 if n != 4 else shift, count)


@pytest.mark.parametrize("variant", [v for v in emulated.variants() if v.switch or v.pair], ids=named)
def test_pairs_and_a_modelled_switch_give_the_same(variant):
    for shift in SHIFTS:
        for count in COUNTS:
            check(variant, 3, shift, (shift + count) % 9, count)


@pytest.mark.parametrize("variant", [v for v in PLAIN if v.vector == "v4" and v.itemsize > 1], ids=named)
def test_the_whole_range_of_a_format(variant):
    for n in (2, 8):
        check(variant, n, 1, 3, 67, whole=True)


@pytest.mark.parametrize("variant", [v for v in PLAIN if v.itemsize == 1 and v.vector == "v4"], ids=named)
def test_sums_of_eight_bits_saturate_and_nan_stays(variant):
    fmt = FORMATS[variant.format]
    arenas = Arenas(3)
    top, minus = fmt.max_code, fmt.sign_mask
    arenas.put(np.array([[top, top | minus, fmt.nan_code, 1], [top, top | minus, 1, 2], [0, 0, 1, 1]], np.uint8), BASE)
    arenas.run(variant, 4, (BASE, BASE))
    nan = fmt.magnitude_mask
    assert arenas.recv[0][BASE : BASE + 4].tolist() == [top, top | minus, nan, 4]


@pytest.mark.parametrize("variant", [v for v in emulated.variants() if v.vector == "v4"], ids=named)
def test_what_is_read_is_what_path_says(variant):
    """Byte by byte: the width of the access, through the switch or not, and nothing outside the range (pair: its words alone)."""
    size = variant.itemsize
    for shift in SHIFTS:
        for count in COUNTS:
            arenas, offset = Arenas(2), BASE + shift * size
            arenas.put(sent(variant, 2)[:, :count], offset)
            with emulated.watching(arenas.send[0]) as widths:
                arenas.run(variant, count, (offset, offset))
            wanted = np.zeros(ROOM, np.uint8)
            at, through = offset, 128 if variant.switch else 0
            for way, _, elements in split(offset, count, size, variant.unit).ways():
                access = {"lone": size, "word": 4, "unit": variant.unit}[way]
                pair = way == "lone" and variant.pair
                mark = 4 | through if pair else access | (0 if way == "lone" else through)
                start, end = (
                    (at - at % 4, at + elements * size + -(at + elements * size) % 4)
                    if pair
                    else (at, at + elements * size)
                )
                wanted[start:end] |= np.uint8(mark)
                at += elements * size
            assert np.array_equal(widths, wanted), f"{named(variant)} shift {shift} count {count}"


@pytest.mark.parametrize("variant", [v for v in emulated.variants() if v.vector == "v4"], ids=named)
@pytest.mark.parametrize("in_place", [False, True])
def test_two_shot_shares_make_the_whole_everywhere(variant, in_place):
    """Whatever the order of the ranks' kernels; in place nobody reads what another has stored."""
    size = variant.itemsize
    for n, shift, count in ((2, 0, 67), (3, 1, 5), (4, 3, 66), (8, 5, 7), (3, 2, 1)):
        arenas, offset = Arenas(n), BASE + shift * size
        offsets = offset, offset if in_place else BASE + (shift + 2) % 9 * size
        arenas.put(sent(variant, n)[:, :count], offset)
        wanted = (arenas.send if in_place else arenas.recv).copy()
        wanted[:, offsets[1] : offsets[1] + count * size] = right(variant, n)[:count].view(np.uint8)
        for share in reversed(range(n)):
            arenas.run(variant, count, offsets, shares=n, share=share, targets=range(n), in_place=in_place)
        assert np.array_equal(arenas.send if in_place else arenas.recv, wanted), (
            f"{n} ranks shift {shift} count {count}"
        )


def test_more_threads_than_steps_and_fewer_agree():
    variant = Variant("bfloat16")
    outputs = []
    for threads in (1, 3, 64):
        arenas = Arenas(2)
        arenas.put(sent(variant, 2), BASE + 2)
        arenas.run(variant, 67, (BASE + 2, BASE), threads=threads)
        outputs.append(arenas.recv[0].copy())
    assert all(np.array_equal(outputs[0], other) for other in outputs)


def test_a_split_adds_up_and_says_its_ways():
    for size in (1, 2, 4):
        for unit in (4, 8, 16):
            for address in range(512, 545, size):
                for count in (0, *COUNTS, 1 << 31, (1 << 31) + 1):
                    parts = split(address, count, size, unit)
                    assert sum(elements for _, _, elements in parts.ways()) == count
                    assert parts.lone < 4 // size or parts.lone == count
                    assert parts.last_lone < 4 // size
                    assert parts.words < unit // 4 or not parts.units
    assert split(514, 67, 2, 16).text("v4", "s") == "s1.w3.v4.w2"
    assert split(518, 3, 2, 16).text("v4", "p") == "p1.w1"
    assert split(512, 0, 2, 16).text("v4", "s") == "nothing"
    assert split(512, 3, 4, 4).text("v1", "s") == "v1"


@pytest.mark.parametrize(
    ("first", "target", "count", "width"),
    [(512, 512, 64, 16), (512, 516, 64, 4), (512, 514, 64, 2), (514, 514, 64, 16), (514, 514, 1, 2), (514, 530, 3, 4)],
)
def test_the_widest_store(first, target, count, width):
    assert store_width(target, 2, 16, split(first, count, 2, 16), first) == width


def test_every_variant_states_its_model():
    assert on_the_sm(Variant("bfloat16", "plain")).startswith(
        "a chain in the group's order, partial sums in bfloat16, every addition"
    )
    assert "partial sums in binary32" in on_the_sm(Variant("bfloat16", "wide"))
    assert "one final rounding" in on_the_sm(Variant("binary16", "wide"))
    assert "one final rounding" not in on_the_sm(Variant("binary32", "wide"))
    assert "by way of binary16" in on_the_sm(Variant("float8_e5m2", "plain"))
    switched = models({name: Variant(name, switch=True) for name in TYPES})
    assert all(text.startswith("not stated: the switch adds (multimem.ld_reduce.") for text in switched.values())
    assert "lone elements: a chain" in switched["bfloat16"]
    assert "lone" not in switched["binary32"]
