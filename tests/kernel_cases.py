"""What any engine must do, on whatever memory: the cases of the device kernels, for the emulated and the real device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditor import inputs, kernels
from auditor.errors import ConfigError
from auditor.inputs.programs import contributors, program, sender
from auditor.kernels.engine import Engine
from auditor.model import Call, Family, Trial
from auditor.numerics.exact import exact_sums
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.programs import Sender
from auditor.numerics.rounding import round_sums, split

NAMED = (
    "order_exact",
    "order_exact:format=binary32",
    "order_exact:format=binary64",
    "report132",
    "wide",
    "wide:dist=lognormal",
    "rank_coded",
    "position_coded",
    "ties",
    "testfloat1",
    "testfloat2",
    "specials",
    "constant:value=-1.5",
    "tail_trigger",
    "tail_trigger:rem=high",
    "neighbours",
    "neighbours:part=scan,toggle=bit",
    "smooth",
    "exhaustive",
)
FAMILIES = (*NAMED, *(name for name in inputs.FAMILIES if name not in {text.partition(":")[0] for text in NAMED}))


def offered(text: str, fmt: Format, rank_n: int = 3) -> bool:
    """Whether the family exists for so many contributors in this format."""
    try:
        inputs.check(Family.parse(text), fmt, rank_n)
    except ConfigError:
        return False
    return True


CASES = [(text, fmt) for text in FAMILIES for fmt in FORMATS.values() if offered(text, fmt)]
SENDERS: list[dict[str, Any]] = [
    {},
    {"active": "pairs"},
    {"active": "1,3"},
    {"tiled": 8},
    {"tiled": 300, "active": "pairs"},
]
STARTS = (0, 12345, (1 << 32) - 700, (1 << 40) - 3, (1 << 63) + 5)


@dataclass
class Device:
    """An engine, and a way to put bytes into its memory and get them back."""

    engine: Engine
    put: Callable[[np.ndarray], Any]  # uint8 array -> device array
    get: Callable[[Any], np.ndarray]
    address: Callable[[Any], int]

    def place(self, codes: np.ndarray, offset: int) -> tuple[Any, int]:
        """(device array, address) of codes at a byte offset from a 512-byte boundary."""
        raw = np.full(codes.nbytes + offset + 1600, 0xC3, np.uint8)
        array = self.put(raw)
        base = -self.address(array) % 512 + offset
        raw[base : base + codes.nbytes] = codes.view(np.uint8)
        array[base : base + codes.nbytes] = self.put(codes.view(np.uint8).copy())
        return array, self.address(array) + base


def named(value: Any) -> str:
    return str(getattr(value, "name", value))


def corrupt(fmt: Format, codes: np.ndarray, seed: int = 5, share: int = 12) -> np.ndarray:
    """Outputs with every kind of trouble: neighbours up and down, wrong signs, zeros of the other sign, noise, NaN."""
    n, shuffle = len(codes), np.random.default_rng(seed)
    out, kind = codes.copy(), shuffle.integers(0, share, n)
    out[kind == 1] += fmt.dtype.type(1)
    out[kind == 2] -= fmt.dtype.type(1)
    out[kind == 3] ^= fmt.dtype.type(fmt.sign_mask)
    noise = shuffle.integers(0, 1 << 63, n).astype(np.uint64).astype(fmt.dtype)
    out[kind == 4] = noise[kind == 4]
    out[kind == 5] = fmt.nan_code
    zero = (out & fmt.dtype.type(fmt.magnitude_mask)) == 0
    out[zero & (kind > 6)] ^= fmt.dtype.type(fmt.sign_mask)
    return out


def check_fill(device: Device, text: str, fmt: Format, start: int, n: int = 1001) -> None:
    """Bit equality with ``inputs.generate``, at several byte offsets, and nothing outside written."""
    family = Family.parse(text)
    size = fmt.itemsize
    for seed, rank_n, rank, offset in ((0, 2, 1, 0), ((1 << 40) + 9, 7, 3, size), (5, 300, 0, 7 * size), (3, 3, 2, 5)):
        if not offered(text, fmt, rank_n):
            continue
        want = inputs.generate(family, fmt, seed, rank_n, rank, start, start + n)
        array, address = device.place(np.zeros(n, fmt.dtype), offset)
        before = device.get(array)
        device.engine.fill(Sender((program(family, fmt, seed, rank_n, rank),)), start, address, n)
        at = address - device.address(array)
        before[at : at + want.nbytes] = want.view(np.uint8)
        after = device.get(array)
        assert np.array_equal(after, before), (text, fmt.name, start, seed, np.flatnonzero(after != before)[:8] - at)


def trial_of(fmt: Format, text: str, n: int, **changes: Any) -> Trial:
    call = Call(collective="all_reduce", op="sum", format=fmt.name, count=n)
    return Trial(call=call, rank_n=4, family=Family.parse(text), seed=7, **changes)


def check_sender(device: Device, fmt: Format, text: str, **changes: Any) -> None:
    """Bit equality with ``inputs.send_codes``; the sum of ``contributors`` is that of what all members send."""
    n = 1200
    trial = trial_of(fmt, text, n, **changes)
    for rank in range(4):
        one = sender(trial, 1, rank)
        for start, stop in ((0, n), (37, 1111)):
            array, address = device.place(np.zeros(stop - start, fmt.dtype), 3 * fmt.itemsize)
            device.engine.fill(one, start, address, stop - start)
            at, want = address - device.address(array), inputs.send_codes(trial, 1, rank, start, stop)
            found = device.get(array)[at : at + want.nbytes].view(fmt.dtype)
            assert np.array_equal(found, want), (text, fmt.name, changes, rank)
    terms = inputs.terms(trial, 1, 0, n)
    out = round_sums(fmt, exact_sums(fmt, terms), "toward_zero")
    want_table = kernels.tabulate(fmt, split(fmt, exact_sums(fmt, terms)), out)
    array, address = device.place(out, 5 * fmt.itemsize)
    found_table = device.engine.tabulate(contributors(trial, 1), 0, address, n, sender(trial, 1, 0).period)
    assert found_table == want_table, (text, fmt.name, changes)


def check_classes(device: Device, text: str, fmt: Format, rank_n: int, start: int, n: int = 1501) -> None:
    """The same table as the host's, and the same mismatches, for outputs of every mode and for corrupt ones."""
    if not offered(text, fmt, rank_n):
        return
    family = Family.parse(text)
    terms = [inputs.generate(family, fmt, 3, rank_n, rank, start, start + n) for rank in range(rank_n)]
    programs = [program(family, fmt, 3, rank_n, rank) for rank in range(rank_n)]
    sums = exact_sums(fmt, terms)
    seen = split(fmt, sums)
    for number, mode in enumerate(("ties_to_even", "toward_negative", "ties_to_even", "away_from_zero")):
        right = round_sums(fmt, sums, mode)
        out = right if number == 0 else corrupt(fmt, right, share=12 if number == 1 else 600)
        array, address = device.place(out, number * fmt.itemsize)
        found = device.engine.tabulate(programs, start, address, n)
        assert found == kernels.tabulate(fmt, seen, out), (text, fmt.name, rank_n, mode)
        wrong = np.flatnonzero(out != right)
        count, first = device.engine.expect(programs, start, address, n, mode=mode, limit=20)
        assert (count, list(first)) == (len(wrong), list(wrong[:20])), (text, fmt.name, rank_n, mode)
        del array


def check_bytes(device: Device) -> None:
    """Equality, differences and the pattern scan, at offsets that agree and that do not."""
    shuffle = np.random.default_rng(3)
    together, apart = ((1, 0, 0, 20000), (2, 2, 2, 9001), (8, 8, 8, 2500)), ((4, 4, 8, 3000), (2, 1, 3, 3000))
    for itemsize, a_at, b_at, n in (*together, *apart, (1, 5, 5, 7), (2, 0, 0, 0)):
        a = shuffle.integers(0, 256, n * itemsize).astype(np.uint8)
        b = a.copy()
        changed = np.sort(shuffle.choice(n, min(n, 90), replace=False)) if n else np.empty(0, np.int64)
        one, at_one = device.place(a, a_at)
        same, at_same = device.place(b, b_at)
        assert device.engine.equal(at_one, at_same, a.nbytes)
        b[changed * itemsize + itemsize - 1] ^= 0x10
        two, at_two = device.place(b, b_at)
        assert device.engine.equal(at_one, at_two, a.nbytes) == (n == 0)
        for limit in (0, 10, 1000):
            found = device.engine.compare(at_one, at_two, a.nbytes, itemsize, limit=limit)
            assert found.count == len(changed)
            assert list(found.indices) == list(changed[:limit])
            dtype = f"u{itemsize}"
            assert list(found.found) == [int(x) for x in a.view(dtype)[changed[:limit]]]
            assert list(found.wanted) == [int(x) for x in b.view(dtype)[changed[:limit]]]
        del one, two, same


def check_patterns(device: Device) -> None:
    """A background laid down, damaged and scanned; codes over and over."""
    period = 1 << 12
    pattern = np.random.default_rng(8).integers(0, 256, period).astype(np.uint8)
    twice = device.put(np.concatenate([pattern, pattern]))
    for where, offset, n in ((0, 0, 9000), (512, 512, 17), (506, 4090, 5000), (3, 3, 1000), (0, 7, 900), (2, 1, 900)):
        array, address = device.place(np.zeros(n, np.uint8), where)
        device.engine.fill_pattern(address, n, device.address(twice), offset, period)
        at = address - device.address(array)
        want = pattern[(np.arange(n) + offset) % period]
        after = device.get(array)
        assert np.array_equal(after[at : at + n], want)
        assert (np.delete(after, np.s_[at : at + n]) == 0xC3).all()
        array[at + n // 2 : at + n // 2 + 1] = device.put(np.array([want[n // 2] ^ 0xFF], np.uint8))
        found = device.engine.compare(address, device.address(twice), n, offset=offset, period=period)
        assert (found.count, list(found.indices), list(found.wanted)) == (1, [n // 2], [int(want[n // 2])])
    for fmt in FORMATS.values():
        for offset in (0, fmt.itemsize, 24, 3):
            array, address = device.place(np.zeros(301, fmt.dtype), offset)
            code = fmt.nan_code ^ 1
            device.engine.fill_code(address, 301 * fmt.itemsize, code, fmt.itemsize)
            at = address - device.address(array)
            assert (device.get(array)[at : at + 301 * fmt.itemsize].view(fmt.dtype) == code).all(), (fmt.name, offset)
