"""Every family, and what a rank sends in a trial, as programs for the device kernels."""

from __future__ import annotations

from auditor.errors import ConfigError
from auditor.inputs.averaged import ROUND
from auditor.inputs.cases import contributor_table
from auditor.inputs.coded import POSITION_STREAM, SMOOTH_STREAM, place_weights, position_plan
from auditor.inputs.contexts import PERIOD, table
from auditor.inputs.families import generate, recipe
from auditor.inputs.structured import (
    _EXPONENTS,
    CHUNK_BITS,
    TIES_STREAM,
    special_codes,
    testfloat_operands,
)
from auditor.inputs.trials import _pair_table, active_positions
from auditor.model import Family, Trial
from auditor.numerics.formats import Format
from auditor.numerics.hashing import MASK64, mix32, stream_key
from auditor.numerics.programs import Program, Sender, of_recipe
from auditor.numerics.recipes import COMMON, Stream


def program(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    """The family as a program: ``generate``, element for element. Raises ConfigError as ``check`` does."""
    resolved = recipe(family, fmt, seed, rank_n, rank)
    if resolved is not None:
        return of_recipe(resolved)
    first = int(generate(family, fmt, seed, rank_n, rank, 0, 1)[0])  # raises where the family is refused
    if family.name in ("constant", "tail_trigger"):
        return Program("constant", fmt, wide=(first,))
    if rank > 1 and family.name in ("ties", "testfloat1", "testfloat2", "exhaustive"):
        return Program("zero", fmt)
    return _BUILD[family.name](family, fmt, seed, rank_n, rank)


def _position(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del family
    plan = position_plan(fmt, rank_n)
    lowest = plan.low + plan.bits - 1 + fmt.bias
    small = (plan.bits, plan.scale_bits, lowest, plan.active, rank_n, rank)
    start = seed * (2 * mix32(77) + 1) & MASK64
    return Program(
        "position", fmt, (Stream(seed, COMMON, POSITION_STREAM),), small, (start,), place_weights(plan.width)
    )


def _smooth(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del family, rank_n
    key = stream_key(seed, rank, SMOOTH_STREAM, 0)
    return Program("smooth", fmt, wide=((1 << 52) + (key << 19 | 1), mix32(key) << 32))


def _ties(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del family, rank_n
    low, high = max(fmt.emin + fmt.precision + 2, -_EXPONENTS // 2), min(fmt.emax - 2, _EXPONENTS // 2)
    streams = tuple(Stream(seed, COMMON, TIES_STREAM + k) for k in range(3))
    return Program("ties", fmt, streams, (low, high - low + 1, rank))


def _testfloat(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del rank_n
    values = tuple(int(code) for code in testfloat_operands(fmt, int(family.name[-1])))
    n = len(values)
    return Program("operands", fmt, small=(n, rank), wide=(seed % (n * n),), table=values)


def _specials(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del family
    values = special_codes(fmt)
    payload = (rank + 1) % max(1, 1 << (fmt.mantissa_bits - 1))
    around = [0, fmt.sign_mask, fmt.power_of_two(0), fmt.nan_code | payload]
    n = len(values)
    start = seed % (n * rank_n * (n + 4))
    return Program("specials", fmt, small=(n, rank_n, rank), wide=(start,), table=(*values, *around))


def _exhaustive(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    del seed, rank_n
    size = 1 << min(CHUNK_BITS, 2 * fmt.bits)
    return Program("exhaustive", fmt, small=(rank,), wide=(size - 1, int(family.get("chunk", 0)) * size))


def _special_cases(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    values = tuple(int(code) for code in contributor_table(family, fmt, seed, rank_n, rank))
    return Program(
        "operands", fmt, small=(len(values), 1), wide=(0,), table=values
    )  # the second operand walks the table


def _neighbours(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    # One period as a list. Under rank 1 the rule for operands takes them in turn.
    codes = tuple(table(family, fmt, seed, rank_n, rank).tolist())
    return Program("operands", fmt, small=(PERIOD, 1), wide=(0,), table=codes)


def _average_ties(family: Family, fmt: Format, seed: int, rank_n: int, rank: int) -> Program:
    values = tuple(int(code) for code in generate(family, fmt, seed, rank_n, rank, 0, ROUND))
    return Program("operands", fmt, small=(len(values), 1), wide=(0,), table=values)


_BUILD = {
    "position_coded": _position,
    "smooth": _smooth,
    "ties": _ties,
    "testfloat1": _testfloat,
    "testfloat2": _testfloat,
    "specials": _specials,
    "exhaustive": _exhaustive,
    "special_cases": _special_cases,
    "average_ties": _average_ties,
    "neighbours": _neighbours,
}


def _period(trial: Trial) -> int:
    if trial.tiled < 1 or trial.send_count % trial.tiled:
        raise ConfigError(f"tiled = {trial.tiled} does not divide the send count {trial.send_count}")
    return trial.send_count // trial.tiled if trial.tiled > 1 else 0


def sender(trial: Trial, repeat: int, rank: int) -> Sender:
    """What global rank ``rank`` sends: ``send_codes``, element for element. Raises ConfigError as that does."""
    position, positions, fmt = trial.members.index(rank), active_positions(trial), trial.call.fmt
    seed, n, period = trial.seed_of(repeat), len(positions), _period(trial)
    if trial.active == "pairs" and n > 2:
        both = tuple(program(trial.family, fmt, seed, 2, which) for which in (0, 1))
        roles = _pair_table(n, position).astype("u1").tobytes()  # -1 becomes 255
        return Sender(both, roles, period)
    if position not in positions:
        return Sender((Program("zero", fmt),), period=period)
    return Sender((program(trial.family, fmt, seed, n, positions.index(position)),), period=period)


def contributors(trial: Trial, repeat: int) -> tuple[Program, ...]:
    """Programs whose sum at data index i (send index mod ``Sender.period``) is the sum of what the members send.

    Where pairs take turns, it is always the sum of a pair's two contributors, whichever members they are.
    """
    n = 2 if trial.active == "pairs" else len(active_positions(trial))
    seed = trial.seed_of(repeat)
    return tuple(program(trial.family, trial.call.fmt, seed, n, rank) for rank in range(n))
