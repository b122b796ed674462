"""The files that a CI system reads, JUnit, SARIF and Markdown: where they go, and that they can go there before a run begins."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from auditor.errors import ConfigError, EvidenceError

STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """A file for each form that is wanted; ``-`` is standard output. None: not wanted."""

    junit: Path | None = None
    sarif: Path | None = None
    markdown: Path | None = None

    def items(self) -> Iterator[tuple[str, Path]]:
        for field in fields(self):
            path = getattr(self, field.name)
            if path is not None:
                yield field.name, path

    @property
    def to_stdout(self) -> bool:
        """Whether one of them is to be standard output's only content."""
        return any(path == STDOUT for _, path in self.items())

    def check(self) -> None:
        """Raises ConfigError where a file could not be written, so that nobody learns it after an hour's run."""
        targets = Counter(str(path) for _, path in self.items())
        for name, path in self.items():
            if targets[str(path)] > 1:
                raise ConfigError(f"--{name} {path}: another report is to go there too; give each a file of its own")
            if path != STDOUT and (trouble := _trouble(path)):
                raise ConfigError(f"--{name} {path}: {trouble}")


def _trouble(path: Path) -> str:
    """Why a file cannot be written there, as far as can be told without writing; empty where nothing speaks against it."""
    if path.is_dir():
        return "is a directory; name a file"
    if path.exists():
        return "" if os.access(path, os.W_OK) else "may not be written"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}; make it first"
    return "" if os.access(path.parent, os.W_OK) else f"the directory {path.parent} may not be written"


def write(run_dir: Path, exports: Exports) -> None:
    """Write every file that was asked for. Raises EvidenceError."""
    wanted = list(exports.items())
    if not wanted:
        return
    from auditor.report import junit, markdown, sarif
    from auditor.report.source import read

    forms = {"junit": junit.text, "sarif": sarif.text, "markdown": markdown.text}
    run = read(run_dir)
    for name, path in wanted:
        _put(path, forms[name](run))


def _put(path: Path, text: str) -> None:
    """Whole or not at all into a plain file, also where the path is a link to one; straight into a pipe or a device."""
    from auditor.analysis import write_whole

    if path == STDOUT:
        sys.stdout.buffer.write(text.encode("utf-8"))  # what the documents declare, whatever the terminal's encoding
        sys.stdout.buffer.flush()
        return
    target = path.resolve()
    if not target.exists() or (target.is_file() and os.access(target.parent, os.W_OK)):
        write_whole(target, text)
        return
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be written: {error.strerror}") from error
