"""The verb runs forget: remove what a run that is down has left on this host.

Invariants: nothing of a run is removed while a process of it may live; logs and results in the run directory stay; a
removal that was killed is finished by the next command that makes or removes a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.options import Cli, DryRun, Yes
from agentrl.errors import ConflictError, DiskError, ExitCode

_FORGOTTEN = ".forgotten"


async def forget(
    cli: Cli,
    run_name: Annotated[str, typer.Argument(metavar="NAME", help="A run that is down; `agentrl runs` lists them.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> ExitCode:
    """Remove the state of a run that is down: journal, keys, database."""
    from agentrl.cli import output
    from agentrl.cli.execute import consented, report_preview
    from agentrl.client.discovery import forget_dead, state_of
    from agentrl.config import paths
    from agentrl.protocol.effects import Effect, tier_of

    name = run_name
    finish_removals(paths.home())
    state_dir = state_of(name)
    run = next((run for run in paths.list_runs() if run.name == name), None)
    uuid = run.uuid if run is not None else ""
    await refuse_if_up(name, state_dir, uuid)
    effect = Effect(loses=(f"all that {state_dir.resolve()} holds: journal, keys, database",))
    if dry_run:
        report_preview(cli, effect, tier_of(effect))
        return ExitCode.OK
    if not consented(dataclasses.replace(cli, yes=yes), effect, tier_of(effect)):
        output.note("Nothing was done.")
        return ExitCode.OK
    # A person may have thought for long.
    await refuse_if_up(name, state_dir, uuid)
    if uuid:
        forget_dead(state_dir, uuid)
    remove_state(state_dir)
    kept = f" What it wrote in {run.run_dir} is still there." if run is not None and run.run_dir else ""
    if cli.json:
        output.emit({"run": name, "uuid": uuid, "forgotten": str(state_dir), "kept": run.run_dir if run else ""})
    else:
        output.say(f"The run {name} is forgotten.{kept}")
    return ExitCode.OK


async def refuse_if_up(name: str, state_dir: Path, uuid: str) -> None:
    from agentrl.cli import cleanup_check
    from agentrl.client.run_processes import keepers_of

    alive = [f"{keeper.what} (pid {keeper.pid})" for keeper in keepers_of(state_dir)]
    if not alive and uuid:
        alive = [
            f"{each.incarnation or each.command} (pid {each.pid})" for each in (await cleanup_check.scan(uuid)).found
        ]
    if alive:
        live = "lives" if len(alive) == 1 else "live"
        raise ConflictError(
            f"The run {name} is not down: {', '.join(alive[:3])} {live}.",
            hint=f"First: agentrl down --run {name}",
        )


def remove_state(state_dir: Path) -> None:
    """The name goes first, so that nobody finds a half of it; a link to another place goes last, and leads there."""
    place = state_dir.resolve()
    going = _going(place)
    try:
        _remove(going)
        place.rename(going)
        _remove(going)
        _unlink(state_dir)
    except OSError as failed:
        raise DiskError(f"{failed.filename or going} cannot be removed: {failed.strerror}.") from failed


def finish_removals(home: Path) -> None:
    """Go on with what a removal that was killed has left. What cannot be removed stays: it is in nobody's way."""
    with contextlib.suppress(OSError):
        for found in list(home.iterdir()):
            going = _going(found.resolve()) if found.is_symlink() and not found.exists() else found
            if going.name.startswith(".") and going.name.endswith(_FORGOTTEN) and going.is_dir():
                with contextlib.suppress(OSError):
                    _remove(going)
                    if going is not found:
                        _unlink(found)


def _unlink(name: Path) -> None:
    """A link to what is gone. Who makes the run anew meanwhile makes the place before its name, so that stays."""
    if name.is_symlink() and not name.exists():
        name.unlink(missing_ok=True)


def _going(place: Path) -> Path:
    return place.with_name(f".{place.name}{_FORGOTTEN}")


def _remove(directory: Path) -> None:
    """Two may do so at once: what one does not find any more, the other has removed."""
    while directory.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
