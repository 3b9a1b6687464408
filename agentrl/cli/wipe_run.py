"""The verb runs wipe: delete everything that a run has made, so that it begins anew.

Invariants: nothing is deleted while a process of the run may live; what goes is said in numbers before, and wants the
run's name, typed or given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli.forget_run import finish_removals, refuse_if_up
from agentrl.cli.options import Cli, DryRun
from agentrl.errors import AgentrlError, ConfigError, ExitCode, RefusedError, ToldError, UsageError
from agentrl.formatting.amounts import counted
from agentrl.formatting.names import plural

_COUNTED = ("Task", "Record", "Step", "Checkpoint", "Publication")
"""Kinds of documents that people know; the others are told as a sum."""


async def wipe(
    cli: Cli,
    run_name: Annotated[str, typer.Argument(metavar="NAME", help="A run that is down; `agentrl runs` lists them.")],
    yes_really: Annotated[
        str, typer.Option("--yes-really", metavar="NAME", help="Do not ask: the name once more.", show_default=False)
    ] = "",
    dry_run: DryRun = False,
) -> ExitCode:
    """Delete all data of a run that is down.

    Database, weights, checkpoints and logs.
    """
    from agentrl.cli import output
    from agentrl.cli.execute import report_preview
    from agentrl.cli.start_coordinator import Place, refuse_if_in_use
    from agentrl.client.discovery import state_of
    from agentrl.config import paths
    from agentrl.protocol.effects import Effect, tier_of

    name = run_name
    finish_removals(paths.home())
    state_dir = state_of(name)
    run = paths.read_run(state_dir)
    if run is None or run.broken or not run.run_dir:
        raise ConfigError(f"The run {name} does not say where its directory is.", hint=f"agentrl runs forget {name}")
    if yes_really and yes_really != name:
        raise UsageError(f"--yes-really says {yes_really}, but the run is {name}.")
    place = Place(name, state_dir, Path(run.run_dir))

    async def look(*arguments: str) -> dict[str, Any]:
        await refuse_if_up(name, state_dir, run.uuid)
        refuse_if_in_use(place)
        return await _wiping(state_dir, place.run_dir, *arguments)

    found = await look()
    effect = Effect(loses=(sentence(found),))
    if dry_run:
        report_preview(cli, effect, tier_of(effect))
        return ExitCode.OK
    if not yes_really and not _typed(cli, name, effect.sentence()):
        output.note("Nothing was done.")
        return ExitCode.OK
    # A person may have thought for long.
    lost = await look("--wipe")
    if cli.json:
        output.emit({"run": name, "wiped": lost})
    else:
        output.say(f"The run {name} is wiped: {sentence(lost)}. Its configuration stays.")
    return ExitCode.OK


def sentence(found: dict[str, Any]) -> str:
    """What is lost, in numbers."""
    from agentrl.cli import output

    documents: dict[str, int] = found["documents"]
    parts = [counted(documents[kind], plural(kind)) for kind in _COUNTED if documents.get(kind)]
    others = sum(documents.values()) - sum(documents.get(kind, 0) for kind in _COUNTED)
    parts += [counted(others, "other documents")] if others else []
    text = f"{', '.join(parts)} ({output.size(found['database_bytes'])})" if parts else "no documents"
    files = {name: size for name, size in found["files"].items() if size}
    there = f"{output.size(sum(files.values()))} of {', '.join(files)}" if files else "no files"
    return f"loses {text} and {there}"


def _typed(cli: Cli, name: str, effect: str) -> bool:
    """Whether a person typed the name. A script is refused."""
    from agentrl.cli import output

    if cli.json or not output.interactive():
        raise RefusedError(f"The effect would be: {effect}.", hint=f"It cannot be taken back: --yes-really {name}")
    question = f"The effect: {output.sanitise(effect)}. It cannot be taken back. Type the name of the run to go on"
    return str(typer.prompt(question, default="", show_default=False, err=True)).strip() == name


async def _wiping(state_dir: Path, run_dir: Path, *arguments: str) -> dict[str, Any]:
    import asyncio

    # The database belongs to a room that the command line does not know, so a program of that room does it.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentrl.store.wiping", "--state-dir", str(state_dir), "--run-dir", str(run_dir)),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        raise AgentrlError(f"What the run holds could not be looked at (status {process.returncode}).") from None
    if failed := found.get("failed"):
        raise ToldError(**failed)
    return found
