"""Defines the command `data`, which writes a known dataset with a run file that trains on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import AgentrlError, ExitCode, ToldError


def register(app: typer.Typer) -> None:
    add_command(app, "data")(data)


def data(
    cli: Cli,
    name: Annotated[str, typer.Argument(metavar="NAME", help="gsm8k: word problems for a calculator.")],
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the files are written.", show_default=False)
    ] = Path(),
) -> ExitCode:
    """Write a known dataset, and a run file that trains on it.

    It comes from the hub; where that cannot be reached, a set of the same form is made.
    """
    import json

    from agentrl.cli import output

    command = [sys.executable, "-m", "agentrl.store.known_datasets", name, str(directory)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.splitlines()
    if not lines:
        raise AgentrlError(f"Nothing was written: the program ended with status {done.returncode}.")
    answer = json.loads(lines[-1])
    if answer.get("event") == "failed":
        raise ToldError(answer["message"], hint=answer["hint"], code=answer["code"])
    if cli.json:
        output.emit(answer)
        return ExitCode.OK
    if answer["made"]:
        output.note(f"{answer['why']} So a set of the same form was made.")
    output.say(f"Wrote {', '.join(answer['written'])} with {answer['rows']} problems.")
    output.say(f"Try it: agentrl try {answer['written'][1]} -n 1")
    return ExitCode.OK
