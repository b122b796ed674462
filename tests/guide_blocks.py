"""Fenced blocks of a guide, and a shell session that follows them as a reader would.

How a guide is written, so that its commands are tested:

- A ``console`` block holds commands after ``$ `` (continued after ``> ``) and what they print. A line that is shown must come in
  the output, in that order; ``...`` stands for anything, on a line of its own for any number of lines.
- An ``sh`` block is a script.
- A command that ends in ``# exit code N`` must end with N, any other with 0.
- ``needs hardware`` after ``console`` or ``sh`` marks a block that is never run by a test; ``needs mpi4py`` (any package's name)
  one that is run where that package can be imported.
- A block of another language whose first line is a comment with a file's name (``# accept.toml``) is saved under that name.

All blocks of a guide are run in order in one directory that holds copies of ``configs`` and ``results/evidence``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ("console", "sh")
NOT_COMMANDS = ("toml", "python", "json", "text", "markdown", "yaml")
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^`]*)$")
EXIT = re.compile(r"#\s*exit code (\d+)\s*$")
SAVED = re.compile(r"^# (?P<name>[\w.-]+\.\w+)$")
NEEDS = re.compile(r"^needs ([\w.-]+)$")
LIMIT = 240  # seconds for one command


@dataclass(frozen=True, slots=True)
class Block:
    """``line``: where the fence stands in the file, from 1. ``needs``: the package or ``hardware``; empty for neither."""

    language: str
    needs: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    exit_code: int
    shown: tuple[str, ...] = ()


def blocks(text: str) -> list[Block]:
    """All fenced blocks. Raises ValueError on a fence without a language, an unknown one, an unknown mark, or no end."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, body, start = fence, [], number
        elif opened is not None and line.strip() == opened["ticks"]:
            found.append(_block(opened["info"].strip(), "\n".join(body), start))
            opened = None
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"line {start}: the block has no end")
    return found


def _block(info: str, text: str, line: int) -> Block:
    language, _, mark = info.partition(" ")
    if language not in (*COMMANDS, *NOT_COMMANDS):
        raise ValueError(f"line {line}: a block of {language!r}; commands are {' or '.join(COMMANDS)}")
    needs = NEEDS.match(mark.strip())
    if mark and (needs is None or language not in COMMANDS):
        raise ValueError(f"line {line}: {mark!r} marks nothing; write: needs hardware, or: needs PACKAGE")
    return Block(language, needs[1] if needs else "", text, line)


def commands(block: Block) -> list[Command]:
    """The commands of a block with what they must print. Raises ValueError where a console block has output and no command."""
    if block.language == "sh":
        return [Command(block.text, _exit_code(block.text))]
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif not found:
            raise ValueError(f"line {block.line}: a console block begins with '$ '")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (found[-1][0] + "\n" + line[2:], [])
        else:
            found[-1][1].append(line)
    return [Command(text, _exit_code(text), tuple(shown)) for text, shown in found]


def _exit_code(text: str) -> int:
    lines = text.strip().splitlines()
    found = EXIT.search(lines[-1]) if lines else None
    return int(found[1]) if found else 0


def missing(shown: Sequence[str], output: str) -> str | None:
    """The first shown line that does not come in the output, in order; None where all do."""
    lines: Iterator[str] = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in shown:
        wanted = " ".join(line.split())
        if wanted in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r" *\.\.\. *", wanted)))
        if not any(pattern.fullmatch(one) for one in lines):
            return line
    return None


class Session:
    """A reader's shell in ``directory``, where ``auditor`` is the one under test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("configs", "results/evidence"):
            shutil.copytree(ROOT / name, directory / name)
        programs = directory / ".programs"
        programs.mkdir()
        for name, words in (("auditor", "-m auditor"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            program.chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}

    def follow(self, block: Block) -> list[str]:
        """What went otherwise than the guide says, a line each."""
        if block.language in COMMANDS:
            return [f"line {block.line}: {wrong}" for one in commands(block) if (wrong := self._run(one))]
        first, _, _ = block.text.partition("\n")
        if found := SAVED.match(first):
            (self.directory / found["name"]).write_text(block.text + "\n")
        return []

    def _run(self, command: Command) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.text],
            cwd=self.directory,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode != command.exit_code:
            return f"{command.text!r} ends with {done.returncode}, not {command.exit_code}:\n{done.stdout[-3000:]}"
        absent = missing(command.shown, done.stdout)
        return "" if absent is None else f"{command.text!r} does not print {absent!r}:\n{done.stdout[-3000:]}"


def absent_package(block: Block) -> str:
    """The package that a block needs and that is not here; empty where there is none."""
    needs = block.needs
    return needs if needs not in ("", "hardware") and importlib.util.find_spec(needs) is None else ""
