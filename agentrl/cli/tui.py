"""The verb tui: hands this terminal to the console, a program of its own."""

from __future__ import annotations

import enum
import os
import sys
from typing import Annotated

import typer

from agentrl.cli.verbs import RUN_VARIABLE, Cli, verb
from agentrl.errors import ExitCode, UsageError


class Theme(enum.StrEnum):
    DARK = "dark"
    LIGHT = "light"


def register(app: typer.Typer) -> None:
    verb(app, "tui")(tui)


def tui(
    cli: Cli,
    replay: Annotated[
        str, typer.Option("--replay", metavar="RUN|FILE", help="Play what was recorded of a run.", show_default=False)
    ] = "",
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="Where to begin: 14:05, -10m.", show_default=False)
    ] = "",
    speed: Annotated[float, typer.Option("--speed", metavar="X", help="How fast it is played.")] = 1.0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII signs only.")] = False,
    theme: Annotated[
        Theme | None, typer.Option("--theme", help="For a dark or a light terminal.", show_default=False)
    ] = None,
) -> ExitCode:
    """Watch and operate the run on one screen."""
    if cli.json:
        raise UsageError("The console has no --json.", hint="`agentrl status --watch --json` tells a program the same.")
    run = cli.run or os.environ.get(RUN_VARIABLE)
    aim = ["--key", str(cli.key)] if cli.key is not None else ["--run", run] if run else []
    if replay:
        aim = [f"--replay={replay}", f"--at={at}", f"--speed={speed:g}"]
    elif at:
        raise UsageError("--at is for a recording.", hint="agentrl tui --replay RUN --at 14:05")
    looks = [*(["--read-only"] if read_only else []), *(["--ascii"] if ascii_only else [])]
    looks += ["--theme", theme.value] if theme else []
    looks += [] if cli.color else ["--no-color"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tui", *aim, *looks])
