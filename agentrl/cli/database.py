"""Defines the commands `database user`, `database users` and `database decode`, for people with a MongoDB client.

Invariants:
- A URL with a password is written to a file and never printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import AgentrlError, ExitCode, ToldError, UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def register(app: typer.Typer) -> None:
    commands = group(app, "database", "The run's MongoDB, for people with a client of their own.")
    add_command(commands, "user")(user)
    add_command(commands, "users")(users)
    add_command(commands, "decode")(decode)


def user(
    cli: Cli,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a person or a program that reads.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Its URL; default: NAME.mongo-url here.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove that user.")] = False,
) -> ExitCode:
    """Make a user that can only read the run's database."""
    from agentrl.cli import output
    from agentrl.config.typed_paths import path_of

    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a user.", hint="Use letters, digits, dashes and underscores.")
    if remove and out is not None:
        raise UsageError("--remove writes no file.", hint="Leave out --out.")
    file = path_of(out or f"{name}.mongo-url").absolute()
    found = _asked(cli, "remove", name) if remove else _asked(cli, "make", name, str(file))
    if cli.json:
        output.emit({"user": name, "database": found["database"], "file": "" if remove else str(file)})
    elif remove:
        output.say(f"{name} can no longer read the database {found['database']}. Its connections end with its client.")
    else:
        output.say(f"{file} lets its holder read the database {found['database']}; keep it secret (mode 0600).")
        output.say(f'Use it by `mongosh "$(cat {file.name})"`.')
    return ExitCode.OK


def users(cli: Cli) -> ExitCode:
    """List the users that only read the run's database."""
    from agentrl.cli import output

    found = _asked(cli, "list")
    if cli.json:
        output.emit(found)
    for name in [] if cli.json else found["users"]:
        output.say(name)
    if not cli.json and not found["users"]:
        output.say("There are none. `agentrl database user NAME` makes one.")
    return ExitCode.OK


def decode(
    cli: Cli,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="What mongoexport wrote; default: stdin.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="A model's directory: adds the text.", show_default=False),
    ] = None,
) -> ExitCode:
    """Print model calls with token ids and log-probs as numbers.

    Reads extended JSON and prints one document per line.
    """
    import json
    import subprocess

    command = [sys.executable, "-m", "agentrl.store.readable_tokens"]
    command += ["--tokenizer", str(tokenizer)] if tokenizer is not None else []
    command += ["--", str(file)] if file is not None else []
    # In its own session, because Ctrl-C is for this command.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(last)
            last = line
    if process.returncode:
        # If the program failed, its last line is the reason.
        raise ToldError(**json.loads(last)["failed"]) if last else AgentrlError("The documents cannot be read.")
    sys.stdout.write(last)
    return ExitCode.OK


def _asked(cli: Cli, *act: str) -> dict[str, Any]:
    """The answer of a program of the room that knows the database."""
    import json
    import subprocess

    from agentrl.cli.offline import run_on_this_host

    not_remote = "The database is managed on the host of the coordinator, not through a key file."
    run = run_on_this_host(cli, not_remote=not_remote, again="agentrl database ... --run NAME")
    command = [sys.executable, "-m", "agentrl.store.database_users"]
    places = ["--state-dir", str(run.state_dir), "--run-dir", str(run.run_dir)]
    done = subprocess.run([*command, *places, *act], stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise AgentrlError(f"The database was not reached: its program ended with {done.returncode}.")
    found: dict[str, Any] = json.loads(done.stdout)
    if failed := found.get("failed"):
        raise ToldError(**failed)
    return found
