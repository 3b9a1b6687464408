"""Defines the commands `doctor` and `daemon`, which run other programs of agentrl."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import RunFile, chosen_file
from agentrl.errors import ExitCode, UsageError

DAEMONS = ("host", "coordinator", "mongo")


def register(app: typer.Typer) -> None:
    add_command(app, "doctor")(doctor)
    # All words after the role belong to the daemon, even --run and --help.
    add_command(app, "daemon", context_settings={"allow_interspersed_args": False})(daemon)


def doctor(cli: Cli, file: RunFile = None) -> ExitCode:
    """Check this host; each line says what to do."""
    import subprocess

    if cli.run and file is not None:
        raise UsageError("The run file is named twice, by itself and by --run.", hint="Leave out one of them.")
    chosen, sets = chosen_file(cli, file, None)
    command = [sys.executable, "-m", "agentrl.doctor", *(["--json"] if cli.json else [])]
    command += [*(f"--set={one}" for one in sets), "--", str(chosen)] if chosen else []
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.FAILED


def daemon(
    cli: Cli,
    program: Annotated[str, typer.Argument(metavar="ROLE", help=f"One of {', '.join(DAEMONS)}.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENTS]...", help="Arguments of the daemon; see `daemon ROLE --help`.", show_default=False
        ),
    ] = None,
) -> ExitCode:
    """Run a daemon in the foreground, for systemd and Slurm."""
    if program not in DAEMONS:
        import difflib

        near = difflib.get_close_matches(program, DAEMONS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(DAEMONS)}."
        raise UsageError(f"There is no daemon {program!r}.", hint=hint)
    command = [sys.executable, "-m", f"daemons.{program}", *(arguments or ())]
    sys.stdout.flush()
    sys.stderr.flush()
    # The daemon replaces this process, so that signals of its supervisor reach it.
    os.execv(sys.executable, command)
