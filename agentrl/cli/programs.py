"""Verbs about this host: runs, doctor, daemon."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from agentrl.cli.forget_run import forget
from agentrl.cli.options import Cli, group, verb
from agentrl.cli.run_file import RunFile, meant
from agentrl.cli.wipe_run import wipe
from agentrl.errors import ExitCode, UsageError

DAEMONS = ("host", "coordinator", "mongo")


def register(app: typer.Typer) -> None:
    runs_of_all = group(app, "runs", "The runs of this user on this host.", default="list")
    verb(runs_of_all, "list")(runs)
    verb(runs_of_all, "forget")(forget)
    verb(runs_of_all, "wipe")(wipe)
    verb(app, "doctor")(doctor)
    # Whatever follows the role is the daemon's own, also what is spelled as an option of all verbs (--run, --help).
    verb(app, "daemon", context_settings={"allow_interspersed_args": False})(daemon)


def runs(cli: Cli) -> ExitCode:
    """List all runs of this user on this host."""
    from agentrl.cli import output
    from agentrl.client.run_processes import coordinator_of, keepers_of, left_up
    from agentrl.config import paths

    rows = []
    for run in paths.list_runs():
        state_dir = paths.state_dir(run.name)
        living = coordinator_of(state_dir)
        # A coordinator that is away for a moment is brought back by its agent.
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
            (
                row["name"],
                row["state"],
                output.moment(float(str(row["created_at"]))),
                row["broken"] or row["run_dir"],
            )
            for row in rows
        ]
        columns, width = ("run", "state", "created", "directory"), output.console().width
        output.show(output.table(columns, shown, width=width, spare=("created",)), cli.color)
    return ExitCode.OK


def doctor(cli: Cli, file: RunFile = None) -> ExitCode:
    """Check the environment; each line says what to do."""
    import subprocess

    if cli.run and file is not None:
        raise UsageError("The run file is named twice, by itself and by --run.", hint="Leave out one of them.")
    chosen, sets = meant(cli, file, None)
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
            metavar="[ARGUMENTS]...", help="The daemon's own; `daemon ROLE --help` lists them.", show_default=False
        ),
    ] = None,
) -> ExitCode:
    """Run a daemon in the foreground, as systemd and Slurm want it."""
    if program not in DAEMONS:
        import difflib

        near = difflib.get_close_matches(program, DAEMONS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(DAEMONS)}."
        raise UsageError(f"There is no daemon {program!r}.", hint=hint)
    command = [sys.executable, "-m", f"daemons.{program}", *(arguments or ())]
    sys.stdout.flush()
    sys.stderr.flush()
    # The daemon takes this process over, so that signals of its supervisor reach it.
    os.execv(sys.executable, command)
