"""Defines the command `tui`, which replaces this process by the console."""

from __future__ import annotations

import enum
import os
import sys
from typing import Annotated

import typer

from agentrl.cli.options import RUN_VARIABLE, Cli, add_command
from agentrl.errors import ExitCode, UsageError

ANYWHERE = "127.0.0.1:0"


class Theme(enum.StrEnum):
    DARK = "dark"
    LIGHT = "light"


def register(app: typer.Typer) -> None:
    add_command(app, "tui")(tui)


Played = Annotated[
    str, typer.Option("--playback", metavar="RUN|FILE|@demo", help="Show a recording of a run.", show_default=False)
]
FormerPlayed = Annotated[str, typer.Option("--replay", hidden=True)]
At = Annotated[str, typer.Option("--at", metavar="TIME", help="Where to begin: 14:05, -10m.", show_default=False)]
Speed = Annotated[float, typer.Option("--speed", metavar="X", help="How fast it is played.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")]
Serve = Annotated[bool, typer.Option("--serve", help="Show it to browsers of this host, read-only.")]
Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="With --serve: where; default: any free port.")
]
Writable = Annotated[bool, typer.Option("--writable", help="With --serve: commands, too.")]
NoMouse = Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")]
AsciiOnly = Annotated[bool, typer.Option("--ascii", help="Draw with ASCII signs only.")]
OfTheme = Annotated[Theme | None, typer.Option("--theme", help="For a dark or a light terminal.", show_default=False)]


def tui(
    cli: Cli,
    playback: Played = "",
    former_playback: FormerPlayed = "",
    at: At = "",
    speed: Speed = 1.0,
    read_only: ReadOnly = False,
    serve: Serve = False,
    listen: Listen = ANYWHERE,
    writable: Writable = False,
    no_mouse: NoMouse = False,
    ascii_only: AsciiOnly = False,
    theme: OfTheme = None,
) -> ExitCode:
    """Watch and operate the run on one screen."""
    if not serve and (writable or listen != ANYWHERE):
        raise UsageError(f"{'--writable' if writable else '--listen'} goes with --serve.")
    if writable and read_only:
        raise UsageError("--writable and --read-only contradict each other.")
    if cli.json and not serve:
        raise UsageError("The console has no --json.", hint="`agentrl status --follow --json` gives programs the same.")
    run = cli.run or os.environ.get(RUN_VARIABLE)
    aim = ["--key", str(cli.key)] if cli.key is not None else ["--run", run] if run else []
    if former_playback:
        from agentrl.cli import output

        output.note("--replay is called --playback now; the next release has no --replay.")
        playback = playback or former_playback
    if playback:
        aim = [f"--playback={playback}", f"--at={at}", f"--speed={speed:g}"]
    elif at:
        raise UsageError("--at is for a recording.", hint="agentrl tui --playback RUN --at 14:05")
    flags = {
        "--read-only": read_only,
        "--writable": writable,
        "--ascii": ascii_only,
        "--no-mouse": no_mouse,
        "--json": cli.json,
    }
    looks = [name for name, wanted in flags.items() if wanted]
    looks += [f"--serve={listen}"] if serve else []
    looks += ["--theme", theme.value] if theme else []
    looks += [] if cli.color else ["--no-color"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tui", *aim, *looks])
