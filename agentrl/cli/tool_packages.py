"""Defines the commands `tools lock` and `tools environments`, and installs packages of tool servers for `up`.

Another program does the work, because pip and npm take minutes, and the command line does not import code that runs
them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import RunFile, Sets, load
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from agentrl.config.load import Loaded

_POLL_S = 0.5


def register(tools: typer.Typer) -> None:
    add_command(tools, "lock")(lock)
    add_command(tools, "environments")(list_environments)


async def install(cli: Cli, loaded: Loaded) -> None:
    """Install the packages of all tool servers that are not installed. Raises an AgentrlError."""
    from agentrl.config.tool_lock import ToolLock, packages_of, problems_of

    found = {name: (server, kind) for name, server in loaded.config.tools.items() if (kind := packages_of(server))}
    if loaded.path is None or not loaded.config.environments or not found:
        return
    # Otherwise a run that is up would start servers with packages that are not pinned.
    if problem := next(problems_of(loaded.config, loaded.path), None):
        raise problem
    file = ToolLock.beside(loaded.path)
    wanted = [
        {"name": name, "program": server.start_command[0], "pins": file.pins_of(name, *kind)}
        for name, (server, kind) in found.items()
    ]
    await _carried_out(cli, ["install"], json.dumps(wanted))


async def lock(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Take the newest versions also of packages that are pinned.")
    ] = False,
) -> ExitCode:
    """Pin the packages of tool servers in a lock file."""
    from agentrl.cli import output

    loaded, chosen_sets = load(cli, file, sets)
    settings = [f"--set={one}" for one in chosen_sets]
    await _carried_out(cli, ["lock", *settings, *(["--renew"] if renew else []), "--", str(loaded.path)])
    if cli.json:
        output.emit({"lock": str(loaded.path and loaded.path.with_suffix(".tools.lock"))})
    return ExitCode.OK


async def list_environments(
    cli: Cli,
    remove_unused: Annotated[
        bool, typer.Option("--remove-unused", help="Remove those that no toolbox uses; `up` makes them again.")
    ] = False,
) -> ExitCode:
    """List the installed packages of tool servers."""
    from agentrl.cli import output

    found = await _carried_out(cli, ["remove-unused" if remove_unused else "list"])
    if cli.json:
        output.emit(found)
    elif not remove_unused and not found:
        output.say("No packages of tool servers are installed. `agentrl up` installs what a run file names.")
    elif not remove_unused:
        rows = [
            (
                "damaged" if each["problem"] else " ".join(each["packages"]),
                "" if each["problem"] else f"{each['count']}",
                output.size(each["bytes"]),
                "yes" if each["in_use"] else "no",
                output.moment(each["made_at"]),
                each["path"],
            )
            for each in found
        ]
        columns = ("packages", "installed", "size", "in use", "made", "directory")
        output.show(output.table(columns, rows, width=output.console().width, spare=("made",)), cli.color)
        for each in found if not remove_unused else ():
            if each["problem"]:
                cure = "End the run that uses it, then remove it" if each["in_use"] else "Remove it"
                output.say(
                    f"{each['path']} is damaged: {each['problem']}. {cure}: `agentrl tools environments "
                    "--remove-unused`; `agentrl up` installs it again."
                )
    return ExitCode.OK


async def _carried_out(cli: Cli, arguments: list[str], text: str = "") -> list[dict[str, Any]]:
    """Run the program and show its progress; returns the environments in its output. Raises its error."""
    import asyncio
    from asyncio.subprocess import PIPE

    from agentrl.cli import output
    from agentrl.cli.progress import Progress
    from agentrl.errors import OperationFailedError

    program = [sys.executable, "-m", "agentrl.tool_environments", *arguments]
    process = await asyncio.create_subprocess_exec(
        *program, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=1 << 24
    )
    assert process.stdin is not None
    assert process.stdout is not None
    environments: list[dict[str, Any]] = []
    failure = OperationFailedError("The program that installs packages of tool servers was ended.")
    try:
        process.stdin.write(text.encode())
        process.stdin.close()
        with Progress(cli) as progress:
            step, reading = "", asyncio.ensure_future(process.stdout.readline())
            while True:
                await asyncio.wait([reading], timeout=_POLL_S)
                if not reading.done():
                    if step:
                        progress.step(step)  # repeated to update its age
                    continue
                if not (line := reading.result()):
                    break
                news = json.loads(line)
                if step := news.get("step", ""):
                    progress.step(step)
                if "note" in news and not cli.json:
                    output.note(news["note"])
                environments += news.get("environments", [])
                if "error" in news:
                    failure = OperationFailedError(news["error"], hint=news["hint"])
                    failure.exit_code = ExitCode(news["exit"])
                reading = asyncio.ensure_future(process.stdout.readline())
        if await process.wait() != 0:
            raise failure
    finally:
        await _end(process)
    return environments


async def _end(process: Process) -> None:
    import contextlib
    import os
    import signal

    if process.returncode is None:
        # Its installers end with it, and incomplete installations are removed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()
