"""What the commands that write a file where they are told to have in common."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from auditor.errors import ConfigError

FILE = click.Path(path_type=Path, dir_okay=False)


def check_place(path: Path) -> None:
    """Raises ConfigError where nothing can be written at ``path``, before the work that it is to hold is done."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.parent}; make it, or name another file")


def write_page(path: Path, text: str) -> None:
    """Write a file whole or not at all, and say so where it does not mix with what is printed."""
    from auditor.analysis import write_whole

    write_whole(path, text)
    click.echo(f"auditor: wrote {path}", err=True)


def terminal_width() -> int | None:
    """Columns of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
