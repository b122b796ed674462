"""What the simulator may be told, checked once, and what that amounts to for one element format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from auditor.errors import ConfigError
from auditor.numerics.formats import FORMATS, Format
from auditor.numerics.rounding import MODES

KEYED = ("stochastic", "neighbour_keyed")
CHOICES: dict[str, tuple[Any, ...]] = {
    "preset": ("b300",),
    "rule": (True, False),
    "order": ("rank", "ring", "recursive_doubling", "tree", "fused"),
    "accumulator": ("auto", "same", "exact", *FORMATS),
    "hop": MODES,
    "final": (*MODES, *KEYED),
    "shot": ("one_shot", "two_shot"),
    "average": ("divide_after", "multiply_before", "multiply_after"),
    "form": ("SRFF", "SRC", "SRF"),
    "generator": ("fixed", "call", "address", "value"),
    "neighbour_order": ("forward", "reversed"),
    "group_bytes": (4, 8, 16, 32),
    "keyed_by": ("neighbours", "self_and_neighbours"),
    "read_past": (True, False, "zero"),
}
WHOLE = {"seed": (0, (1 << 64) - 1), "noise_bits": (1, 32)}
NOISE_BITS_MAX = 62  # an element's noise, and one guard bit, fit in a 64-bit word
B300: dict[str, Any] = {  # NUMERICS §1
    "order": "rank",
    "accumulator": "auto",
    "hop": "ties_to_even",
    "final": "neighbour_keyed",
    "keyed_formats": ["binary16", "bfloat16"],
    "keyed_by": "neighbours",
    "noise_bits": 2,
    "neighbour_order": "forward",
    "group_bytes": 8,
    "form": "SRFF",
    "read_past": True,
    "shot": "one_shot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The simulator's parameters.

    ``preset``: ``b300`` sets :data:`B300`; other options override it, and ``rule`` = false turns its keyed rounding off.
    ``order`` of the additions. ``rank``: a chain by position in the group. ``ring``: by chunk of ceil(count / n) elements
    (reduce_scatter: the share; reduce: all of it, ending at the root), chunk i starting at position i + 1.
    ``recursive_doubling``, ``tree``: balanced. ``fused``: one exact addition, rounded once.
    ``accumulator``: format of the partial sums. ``auto``: binary32 for the 8- and 16-bit formats, for the others the element
    format; ``same``: the element format; ``exact``: nothing is rounded before the end.
    ``hop``: rounding into the accumulator; by default ``final`` where that is one of the six modes, else ties_to_even.
    ``final``: rounding from the accumulator to the element format.
    ``shot``: ``two_shot`` cuts the range in shares of ceil(count / n) elements, each reduced by its owner.
    ``average``: the sum divided by n; or terms, or the sum, multiplied by 1/n as the accumulator holds it.
    ``keyed_formats``: where a keyed ``final`` holds (others: ties_to_even); None: all that are narrower than the accumulator.
    ``noise_bits``: of the generator (default 16), or of each neighbour (default 2). ``form``: NUMERICS §7.1.
    ``generator``: ``fixed`` draws by (seed, index), ``call`` by (seed, call number, index), ``address`` by (seed, place of the
    element in the send arena), ``value`` by (seed, the sum's sign, exponent and bits).
    ``read_past``: elements of a group that lie outside the owner's share. True: the bytes that lie there in the send
    buffers; "zero": zeros; false: unread, and an incomplete group is rounded ties_to_even.
    """

    preset: str = "none"
    rule: bool = True
    order: str = "rank"
    accumulator: str = "auto"
    hop: str = "ties_to_even"
    final: str = "ties_to_even"
    shot: str = "one_shot"
    average: str = "divide_after"
    keyed_formats: tuple[str, ...] | None = None
    form: str = "SRFF"
    generator: str = "fixed"
    neighbour_order: str = "forward"
    group_bytes: int = 8
    keyed_by: str = "neighbours"
    read_past: bool | str = True
    seed: int = 0
    noise_bits: int = 2

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> Options:
        """Raises ConfigError, one line that names every mistake and what is legal in its place."""
        if mistakes := [text for key, value in raw.items() if (text := _mistake(key, value))]:
            raise ConfigError("simulator: " + "; ".join(mistakes))
        if "rule" in raw and "preset" not in raw:
            raise ConfigError('simulator: option rule switches the rule of a preset; give preset = "b300" too')
        preset = {**B300, "final": "neighbour_keyed" if raw.get("rule", True) else "ties_to_even"}
        given = {**(preset if "preset" in raw else {}), **raw}
        final = given.get("final", "ties_to_even")
        given.setdefault("hop", final if final in MODES else "ties_to_even")
        given.setdefault("noise_bits", 16 if final == "stochastic" else 2)
        if given.get("keyed_formats") is not None:
            given["keyed_formats"] = tuple(given["keyed_formats"])
        options = Options(**given)
        options._check_keyed()
        return options

    def to_json(self) -> dict[str, Any]:
        """JSON scalars."""
        raw = {field.name: getattr(self, field.name) for field in fields(self)}
        keyed = "narrower than the accumulator" if self.keyed_formats is None else " ".join(self.keyed_formats)
        return {**raw, "keyed_formats": keyed if self.final in KEYED else "none"}

    def _check_keyed(self) -> None:
        if self.final not in KEYED:
            return
        for fmt in FORMATS.values():
            Recipe.of(self, fmt).check()


def _mistake(key: str, value: Any) -> str:
    if key in CHOICES:
        # By type too: 1 == True, and a group of 8.0 bytes is not one of 8.
        legal = any(type(value) is type(choice) and value == choice for choice in CHOICES[key])
        return "" if legal else f"option {key} = {value!r} is not one of {', '.join(map(_toml, CHOICES[key]))}"
    if key in WHOLE:
        low, high = WHOLE[key]
        whole = type(value) is int and low <= value <= high
        return "" if whole else f"option {key} = {value!r} is not a whole number from {low} to {high}"
    if key == "keyed_formats":
        named = isinstance(value, list | tuple) and all(name in FORMATS for name in value)
        return "" if named else f"option {key} = {value!r} is not a list of {', '.join(FORMATS)}"
    return f"unknown option {key!r}; the options are {', '.join(sorted([*CHOICES, *WHOLE, 'keyed_formats']))}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The options as they hold for one element format.

    ``accumulator`` None: exact. ``final``: the rounding that really decides; ``hop`` where the accumulator is the format.
    """

    options: Options
    fmt: Format
    accumulator: Format | None
    final: str

    @staticmethod
    def of(options: Options, fmt: Format) -> Recipe:
        names = {"auto": "binary32" if fmt.bits <= 16 else fmt.name, "same": fmt.name}
        name = names.get(options.accumulator, options.accumulator)
        accumulator = None if name == "exact" else FORMATS[name]
        final = options.final
        if final in KEYED:
            wider = accumulator is None or accumulator.precision > fmt.precision
            listed = wider if options.keyed_formats is None else fmt.name in options.keyed_formats
            final = final if listed else "ties_to_even"
        return Recipe(options, fmt, accumulator, options.hop if accumulator == fmt and final in MODES else final)

    def check(self) -> None:
        """Raises ConfigError where the keyed rounding asked for cannot be had for this format."""
        if self.final not in KEYED:
            return
        if self.accumulator is not None and self.accumulator.precision <= self.fmt.precision:
            raise ConfigError(
                f"simulator: option keyed_formats names {self.fmt.name}, but its accumulator {self.accumulator.name} "
                "is no wider, so that nothing is left to round"
            )
        if self.final == "neighbour_keyed" and self.options.noise_bits > self.word.mantissa_bits:
            raise ConfigError(
                f"simulator: option noise_bits = {self.options.noise_bits} is over the {self.word.mantissa_bits} "
                f"mantissa bits of the {self.word.name} accumulator"
            )
        if self.noise_n > NOISE_BITS_MAX:
            raise ConfigError(
                f"simulator: options noise_bits = {self.options.noise_bits} and group_bytes = {self.options.group_bytes} give "
                f"{self.noise_n} noise bits for {self.fmt.name}, over {NOISE_BITS_MAX}; lower them or set keyed_formats"
            )

    @property
    def word(self) -> Format:
        """Format of the word whose top mantissa bits a neighbour lends: the accumulator; binary32 where that is exact."""
        return self.accumulator or FORMATS["binary32"]

    @property
    def group_n(self) -> int:
        """Elements that are read and rounded together; 1 where no other element plays a part."""
        return max(1, self.options.group_bytes // self.fmt.itemsize) if self.final == "neighbour_keyed" else 1

    @property
    def noise_n(self) -> int:
        """Noise bits of one element."""
        return self.options.noise_bits * (self.group_n - 1 if self.final == "neighbour_keyed" else 1)
