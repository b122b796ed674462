"""Families that resolve to a :class:`Recipe`: order_exact, report132, wide, rank_coded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from auditor.errors import ConfigError
from auditor.model import Family
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.recipes import RankCode, Recipe, rank_code

ORDER_EXACT_STREAM = 0x10
WIDE_STREAM = 0x20
RANK_CODED_STREAM = 0x30

RANK_CODED_SLOTS = 64  # scales that wide formats use; enough to tell one call from the next


def log2_ceil(n: int) -> int:
    """ceil(log2 n) for n >= 1."""
    return (n - 1).bit_length()


# --- order_exact ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """What order_exact may use: significands of ``bits`` bits, exponents low..low+span, and at most ``active``
    contributors non-zero.
    """

    bits: int
    span: int
    low: int
    active: int


def _room(fmt: Format, bits: int, carry: int) -> int:
    """Largest span whose sums stay below 2**emax and whose unit, 2**(low - bits + 1), is a normal number; may be
    negative.
    """
    return (fmt.emax - 1 - carry) - (fmt.emin + bits - 1)


def _placed(fmt: Format, bits: int, span: int, active: int) -> Window:
    """The window centred on 1, moved into the format's range where it has to be."""
    highest = fmt.emax - 1 - log2_ceil(active) - span
    return Window(bits, span, max(min(-(span // 2), highest), fmt.emin + bits - 1), active)


def _default_window(fmt: Format, target: Format, rank_n: int) -> Window:
    """All mantissa bits and the largest legal span where the target is wide enough; else one exponent and fewer
    bits (as nccl-tests does).
    """
    carry = log2_ceil(rank_n)
    bits = min(fmt.precision, max(1, target.precision - carry))
    # Values of one bit are exactly +-2**low, so 2**precision of them still sum exactly.
    active = min(rank_n, 1 << (target.precision if bits == 1 else target.precision - bits))
    active = min(active, 1 << max(0, _room(fmt, bits, 0)))
    span = max(0, min(target.precision - bits - log2_ceil(active), _room(fmt, bits, log2_ceil(active))))
    return _placed(fmt, bits, span, active)


@lru_cache(maxsize=256)
def order_exact_window(family: Family, fmt: Format, rank_n: int) -> Window:
    """The window of ``order_exact:format=,span=``. Raises ConfigError where the span breaks W + p + ceil(log2 n) <=
    p_target (NUMERICS §2).
    """
    name = family.get("format", fmt.name)
    if name not in FORMATS:
        raise ConfigError(f"family {family}: format {name!r} is none of {', '.join(FORMATS)}")
    target = FORMATS[name]
    span = family.get("span", None)
    if span is None:
        return _default_window(fmt, target, rank_n)
    if not isinstance(span, int) or span < 0:
        raise ConfigError(f"family {family}: span = {span!r} is not a whole number of binades")
    carry = log2_ceil(rank_n)
    bits = fmt.precision if target.precision > fmt.precision else target.precision - span - carry
    legal = min(target.precision - max(bits, 1) - carry, _room(fmt, max(bits, 1), carry))
    if target.precision <= fmt.precision:
        legal = target.precision - 1 - carry
    if span > legal or span > _room(fmt, max(bits, 1), carry):
        limit = f"the largest legal span is {legal}" if legal >= 0 else "no span is legal; leave it out"
        raise ConfigError(
            f"family {family}: with {rank_n} contributors in {fmt.name} a span of {span} binades has partial sums that "
            f"{target.name} cannot hold or that leave the range; {limit}"
        )
    return _placed(fmt, bits, span, rank_n)


def order_exact(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    window = order_exact_window(family, fmt, rank_n)
    params = (window.bits, window.span, window.low, window.active, rank_n)
    if window.active == rank_n:
        return Recipe("scaled", fmt, seed, rank, ORDER_EXACT_STREAM, params[:3])
    return Recipe("sparse", fmt, seed, rank, ORDER_EXACT_STREAM, params)


# --- report132, wide ------------------------------------------------------------------------------


def report132(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    """NUMERICS §1.4 to the bit: h = splitmix64((seed << 40) ^ (rank << 32) ^ i), sign, exponent on -4..4, p - 1
    mantissa bits.

    At p = 53 the 52 mantissa bits of h overlap the bits 32..63 that give sign and exponent: the mantissa's upper 20
    bits and the exponent are then functions of each other. Seeds above 2**24 and indices above 2**32 alias other
    contributors; that is the rule as it stands.
    """
    del family, rank_n
    return Recipe("report132", fmt, seed, rank, 0)


def wide(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    """Independent draws about 1: dist=normal (standard deviation 1.15, |x| < 4) or lognormal (up to 16 binades
    either way, fewer where the format is narrow), both from a sum of four 16-bit words, cut toward zero to the
    format.
    """
    dist = family.get("dist", "normal")
    if dist not in ("normal", "lognormal"):
        raise ConfigError(f"family {family}: dist is normal or lognormal")
    ceiling = fmt.emax - 1 - log2_ceil(rank_n)  # the largest exponent of a term whose sums all stay in range
    if dist == "normal":
        return Recipe("normal", fmt, seed, rank, WIDE_STREAM, (max(min(1, ceiling), fmt.emin),))
    shift = 13 + max(0, log2_ceil(16) - (min(fmt.emax, 31) // 2 + 1).bit_length() + 1)
    reach = 1 << (17 - shift)
    return Recipe("lognormal", fmt, seed, rank, WIDE_STREAM, (shift, max(min(0, ceiling - reach), fmt.emin)))


# --- rank_coded -----------------------------------------------------------------------------------


def rank_coded_passes(fmt: Format, rank_n: int) -> int:
    """Passes that rank_coded needs so that every contributor is coded once: one bit of the precision for each."""
    return max(1, -(-rank_n // fmt.precision))


def _slots(fmt: Format) -> tuple[int, int]:
    """(number of scales, lowest): 2**unit .. 2**(unit + precision) stay normal and in range."""
    low, high = fmt.emin, fmt.emax - fmt.precision
    low = max(low, -RANK_CODED_SLOTS // 2)
    return min(high - low + 1, RANK_CODED_SLOTS), low


def _pass(family: Family, fmt: Format, rank_n: int) -> int:
    number = family.get("pass", 0)
    passes = rank_coded_passes(fmt, rank_n)
    if not isinstance(number, int) or not 0 <= number < passes:
        raise ConfigError(
            f"family {family}: pass = {number!r}; {rank_n} contributors in {fmt.name} need passes 0..{passes - 1}"
        )
    return number


def rank_coded(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Recipe:
    """Contributor r of the pass sends +-2**(unit + (r + rotation) mod p): distinct bits of one p-bit word, so every
    partial sum is exact.
    """
    position = rank - _pass(family, fmt, rank_n) * fmt.precision
    if not 0 <= position < fmt.precision:
        return Recipe("zero", fmt, seed, rank, RANK_CODED_STREAM)
    return Recipe("rank_coded", fmt, seed, rank, RANK_CODED_STREAM, (position, fmt.precision, *_slots(fmt)))


def rank_coded_layout(fmt: Format, seed: int, start: int, stop: int) -> RankCode:
    """Rotation, unit and sign at the indices [start, stop); the same for every pass and every number of contributors.

    A finite output decodes as |output| / 2**unit: an integer whose bit (r - pass * p + rotation) mod p belongs to
    contributor r.
    """
    slots, low = _slots(fmt)
    return rank_code(seed, RANK_CODED_STREAM, fmt.precision, slots, low, start, stop)


def rank_coded_bits(
    fmt: Format, seed: int, rank: int, start: int, stop: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """(bit, unit, negative) at the indices [start, stop): in its pass, contributor ``rank`` sends (-1)**negative *
    2**(unit + bit).
    """
    layout = rank_coded_layout(fmt, seed, start, stop)
    return layout.bits(rank % fmt.precision), layout.unit, layout.negative
