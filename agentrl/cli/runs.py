"""Defines the commands `runs list`, `runs forget` and `runs wipe`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from agentrl.cli.options import Cli, DryRun, Yes, add_command, group
from agentrl.errors import ExitCode

NAME = typer.Argument(metavar="NAME", help="A run that is down; `agentrl runs` lists them.")


def register(app: typer.Typer) -> None:
    commands = group(app, "runs", "The runs of this user on this host.", default="list")
    add_command(commands, "list")(list_runs)
    add_command(commands, "forget")(forget)
    add_command(commands, "wipe")(wipe)


def list_runs(cli: Cli) -> ExitCode:
    """List all runs of this user on this host."""
    from agentrl.cli import output
    from agentrl.client.run_processes import coordinator_of, keepers_of, left_up
    from agentrl.config import paths

    rows = []
    for run in paths.list_runs():
        state_dir = paths.state_dir(run.name)
        living = coordinator_of(state_dir)
        # An agent restarts a coordinator that died, so the run is up.
        up = bool(keepers_of(state_dir))
        rows.append(
            {
                "name": run.name,
                "up": up,
                "state": "damaged" if run.broken else "up" if up else "died" if left_up(state_dir) else "down",
                "coordinator_pid": living.pid if living else 0,
                "uuid": run.uuid,
                "run_dir": run.run_dir,
                "state_dir": str(state_dir),
                "created_at": run.created_at,
                "broken": run.broken,
            }
        )
    if cli.json:
        output.emit(rows)
    elif not rows:
        output.say(f"There is no run on this host, in {paths.home()}. Start one by `agentrl up RUN.yaml`.")
    else:
        shown = [
            (row["name"], row["state"], output.moment(float(str(row["created_at"]))), row["broken"] or row["run_dir"])
            for row in rows
        ]
        columns, width = ("run", "state", "created", "directory"), output.console().width
        output.show(output.table(columns, shown, width=width, spare=("created",)), cli.color)
    return ExitCode.OK


async def forget(cli: Cli, run_name: Annotated[str, NAME], yes: Yes = False, dry_run: DryRun = False) -> ExitCode:
    """Remove the state of a run that is down: journal, keys, database."""
    from agentrl.cli import run_removal, run_transaction

    cli = dataclasses.replace(cli, yes=yes, dry_run=dry_run)
    return await run_transaction.carry_out(run_removal.Forget(cli, run_name))


async def wipe(
    cli: Cli,
    run_name: Annotated[str, NAME],
    yes_really: Annotated[
        str, typer.Option("--yes-really", metavar="NAME", help="Do not ask: the name once more.", show_default=False)
    ] = "",
    dry_run: DryRun = False,
) -> ExitCode:
    """Delete all data of a run that is down.

    Database, weights, checkpoints and logs.
    """
    from agentrl.cli import run_removal, run_transaction

    cli = dataclasses.replace(cli, dry_run=dry_run)
    return await run_transaction.carry_out(run_removal.Wipe(cli, run_name, yes_really))
