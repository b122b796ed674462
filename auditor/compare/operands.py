"""``RUN`` and ``RUN:ARM`` on the command line: opened runs, and which of their arms stand side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from auditor import analysis
from auditor.compare.records import Run
from auditor.errors import ConfigError, EvidenceError
from auditor.model import Finding
from auditor.store import RunReader


@dataclass(frozen=True, slots=True)
class Operand:
    """A run as it was named, and the arm where one was."""

    text: str
    path: Path
    arm: str | None

    @staticmethod
    def parse(text: str) -> Operand:
        """``RUN`` where that exists as a whole, else ``RUN:ARM`` at the first colon before which there is a path."""
        whole = Path(text)
        if whole.exists():
            return Operand(text, whole, None)
        for at in (number for number, letter in enumerate(text) if letter == ":"):
            if (path := Path(text[:at])).exists() and text[at + 1 :]:
                return Operand(text, path, text[at + 1 :])
        return Operand(text, whole, None)  # opening it says what is wrong


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that is open for reading, with its findings by arm."""

    operand: Operand
    reader: RunReader
    run: Run
    findings: dict[str, list[Finding]]

    @property
    def arm(self) -> str | None:
        return self.operand.arm

    def label(self, arm: str) -> str:
        """``RUN:ARM``, as a person would name it."""
        return self.operand.text if self.operand.arm else f"{self.run.label}:{arm}"


def opened(operand: Operand, *, recompute: bool) -> Opened:
    """Open a run. Raises EvidenceError where it cannot be read, ConfigError where it has no such arm.

    ``recompute``: derive its findings anew, as is done anyway where it has no findings.json.
    """
    reader = RunReader(operand.path)
    if operand.arm is not None and operand.arm not in reader.arm_names:
        known = ", ".join(reader.arm_names) or "none"
        reader.close()
        raise ConfigError(f"{operand.text}: the run has no arm {operand.arm!r}; it has {known}")
    derived = recompute or not (reader.directory / "findings.json").is_file()
    content = analysis.analyze(reader) if derived else analysis.read_findings(reader.directory)
    if content["run_id"] != reader.run_id:
        raise EvidenceError(
            f"{reader.directory / 'findings.json'}: is of run {content['run_id']}, the record of run {reader.run_id}; "
            f"make it again with: auditor analyze {reader.directory}"
        )
    run = Run(
        label=str(operand.path),
        path=str(operand.path),
        run_id=reader.run_id,
        plan_id=str(reader.plan["plan_id"]),
        date=str(reader.environment.get("date", "")),
        derived=derived,
        problems=tuple(reader.problems),
    )
    return Opened(operand, reader, run, _by_arm(analysis.findings_of(content, reader.directory)))


def _by_arm(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for one in findings:
        found.setdefault(one.arm, []).append(one)
    return found


@dataclass(frozen=True, slots=True)
class Match:
    """An arm of the base beside an arm of another run. ``how``: ``same name``, ``named`` or ``only arm``."""

    base: str
    other: str
    how: str


def matches(base: Opened, other: Opened) -> tuple[Match, ...]:
    """Arms that stand side by side: those that were named; else those of the same name; else the only arm of each.

    Raises ConfigError where that leaves nothing, with what to write instead.
    """
    names, others = base.reader.arm_names, other.reader.arm_names
    if base.arm and other.arm:
        return (Match(base.arm, other.arm, "named"),)
    if base.arm or other.arm:
        named, rest = (base.arm, others) if base.arm else (other.arm, names)
        assert named is not None
        partner = named if named in rest else rest[0] if len(rest) == 1 else None
        if partner is not None:
            how = "same name" if partner == named else "only arm"
            return (Match(named, partner, how) if base.arm else Match(partner, named, how),)
        return _nothing(base, other)
    alike = tuple(Match(name, name, "same name") for name in names if name in others)
    if alike:
        return alike
    if len(names) == len(others) == 1:
        return (Match(names[0], others[0], "only arm"),)
    return _nothing(base, other)


def _nothing(base: Opened, other: Opened) -> tuple[Match, ...]:
    x, y = (", ".join(one.reader.arm_names) or "none" for one in (base, other))
    raise ConfigError(
        f"{base.operand.text} and {other.operand.text}: no arm has the same name (the one has {x}, the other {y}); name the two "
        f"that you mean: auditor compare {base.operand.path}:ARM {other.operand.path}:ARM"
    )
