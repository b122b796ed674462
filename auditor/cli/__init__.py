"""The command line. Every command imports what it needs when it runs, so that ``auditor --help`` answers at once.

A command is one function in one of this package's modules and one line of :data:`COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from auditor import __version__
from auditor.errors import AuditError

# Name -> module and function, in the order in which --help lists them.
COMMANDS = {
    "run": "runs:run",
    "plan": "runs:plan",
    "analyze": "runs:analyze",
    "report": "runs:report",
    "show": "runs:show",
    "verify": "runs:verify",
    "evidence": "evidence:evidence",
    "join": "runs:join",
    "compare": "compare:compare",
    "impact": "impact:impact",
    "calibrate": "calibrate:calibrate",
    "check": "calibrate:check",
    "backends": "runs:backends",
}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Commands(click.Group):
    """Finds a command's module when the command is asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), function)
        return command


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="auditor")
def cli() -> None:
    """Say what a collective sum really computes: rounding, order, repeatability, and what it reads and writes.

    Exit codes: 0 no FAIL and something conclusive; 1 a FAIL; 2 usage or config; 3 the machinery failed or a backend that was
    asked for is not available; 5 nothing conclusive; 130 interrupted.
    """


def main(argv: list[str] | None = None) -> None:
    """Entry point: one clear line for every error, the exit codes of DESIGN §7, never a traceback."""
    sys.path.insert(0, os.getcwd())  # package.module:ClassName may name a module of the current directory
    try:
        code = cli.main(args=argv, standalone_mode=False)
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.ClickException as error:
        if not _rank_0_says_it(2):
            error.show()
        code = 2
    except AuditError as error:
        if not _rank_0_says_it(error.exit_code):
            click.echo(f"auditor: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("auditor: interrupted", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of our output has gone; that is its right
        code = 0
    except Exception as error:
        if os.environ.get("AUDITOR_DEBUG"):
            raise
        words = f"internal error: {type(error).__name__}: {error}; set AUDITOR_DEBUG=1 for the traceback"
        click.echo(f"auditor: {words}", err=True)
        code = 3
    sys.exit(code if isinstance(code, int) else 0)


def _rank_0_says_it(code: int) -> bool:
    """Whether this is another rank of a launcher's job: a wrong command line or config is wrong on every rank, and said once."""
    from auditor.mpi_control import launcher_rank_and_size

    launched = launcher_rank_and_size()
    return code == 2 and launched is not None and launched.rank > 0
