"""Defines the command `train`, which runs a training job without a run.

Invariants:
- The command only starts the program `agentrl.training` and shows its messages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.child_program import messages_of, signals_for
from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import RunFile, Sets, chosen_file
from agentrl.errors import AgentrlError, ConfigError, ExitCode, ToldError, UsageError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.cli.progress import Progress


def register(app: typer.Typer) -> None:
    add_command(app, "train")(train)


def train(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    from_dump: Annotated[
        Path | None,
        typer.Option(
            "--from-dump", metavar="PLACE", help="Recorded batches: a directory or one file.", show_default=False
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start",
            metavar="DIR",
            help="With --from-dump: the model or checkpoint to start from; else one of the run's own.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the checkpoint at the end is written.", show_default=False),
    ] = None,
    as_configured: Annotated[
        bool,
        typer.Option(
            "--as-configured",
            help="With --from-dump: loss, learning rate and optimizer steps of the file, not the recorded.",
        ),
    ] = False,
) -> ExitCode:
    """Train recorded batches or demonstrations, without a run."""
    chosen, chosen_sets = chosen_file(cli, file, sets)
    if chosen is None:
        raise ConfigError("There is no run file here.", hint="Name one: RUN.yaml.")
    if from_dump is None and (start is not None or as_configured):
        raise UsageError("--start and --as-configured belong to --from-dump.")
    arguments = [str(chosen), *(f"--set={each}" for each in chosen_sets)]
    for option, place in (("--from-dump", from_dump), ("--start", start), ("--out", out)):
        arguments += [option, str(place.absolute())] if place is not None else []
    return _show(cli, [*arguments, *(["--as-configured"] if as_configured else [])])


def _show(cli: Cli, arguments: list[str]) -> ExitCode:
    import subprocess

    from agentrl.cli.progress import Progress

    command = [sys.executable, "-m", "agentrl.training", *arguments]
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process,
        signals_for(process),
    ):
        last: dict[str, Any] = {}
        with Progress(cli) as progress:
            for message in messages_of(process):
                last = message
                _show_message(cli, progress, message)
    return _ended(cli, last, process.returncode)


def _show_message(cli: Cli, progress: Progress, message: dict[str, Any]) -> None:
    from agentrl.cli import output

    if message["event"] == "failed":
        return
    if cli.json:
        output.emit_line(message)
    elif message["event"] == "starting":
        progress.step("starting")
    elif message["event"] == "step":
        loss = message["metrics"].get("loss")
        progress.step(f"step {message['step']} of {message['of']}{'' if loss is None else f', loss {loss:.4g}'}")


def _ended(cli: Cli, last: dict[str, Any], code: int) -> ExitCode:
    from agentrl.cli import output

    match last.get("event"):
        case "failed":
            raise ToldError(last["message"], hint=last["hint"], code=last["code"])
        case "ended":
            if not cli.json:
                written = f"; the checkpoint is {last['out']}" if last["out"] else ""
                kept = "Interrupted after" if last["interrupted"] else "Trained"
                took = output.duration(last["seconds"])
                output.say(f"{kept} {counted(last['steps'], 'steps')} from {last['start']} in {took}{written}.")
            return ExitCode.INTERRUPTED if last["interrupted"] else ExitCode.OK
    raise AgentrlError(f"The job ended with status {code}.", hint="Its output is above.")
