"""Defines the command `check`, which holds environments to their contract.

Invariants:
- The program `daemons.check` runs their code. If that code ends or blocks the program, the command reports it and
  starts another program for the rest.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli import tried_environments
from agentrl.cli.adapted import FileOrWord, WithArguments, WithPython
from agentrl.cli.child_program import send, signals_for
from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import Sets
from agentrl.errors import AgentrlError, ExitCode, ToldError, UsageError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

STARTS_WITHIN_S = 600.0
"""How long the program may take to start, with the servers of its tools. On a busy machine the imports alone take
long."""
SILENT_AT_MOST_S = 20.0
"""The program sends a sign of life every second, unless code blocks the interpreter."""
_ENDS_WITHIN_S = 5.0


def register(app: typer.Typer) -> None:
    add_command(app, "check")(check)


def check(
    cli: Cli,
    file: FileOrWord,
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="Only this one.", show_default=False)
    ] = "",
    episodes: Annotated[int, typer.Option("-n", "--episodes", metavar="NUMBER", help="How many side by side.")] = 100,
    at_most: Annotated[
        float, typer.Option("--at-most", metavar="SECONDS", help="What takes longer counts as hanging.")
    ] = 10.0,
    arguments: WithArguments = None,
    python: WithPython = None,
    sets: Sets = None,
) -> ExitCode:
    """Hold environments to their contract, without a model.

    Every tool is called once. Episodes are repeated, cancelled, and run side by side, with turns that a model may say.
    """
    from agentrl.cli import output

    if episodes < 2 or at_most < 1:
        raise UsageError("-n must be at least 2, and --at-most at least 1.")
    config = tried_environments.configured(file, arguments, None, sets, python=python)
    names = [tried_environments.chosen(config, environment)] if environment else list(config.environments)
    found: list[dict[str, Any]] = []
    for message in _messages(config, names, episodes, at_most):
        if message["event"] == "finding":
            found.append(message)
        if cli.json and message["event"] != "alive":
            output.emit_line(message)
        elif not cli.json:
            _show(message)
    faults = [each for each in found if each["level"] == "fault"]
    if cli.json:
        output.emit_line({"event": "done", "environments": names, "faults": len(faults), "findings": len(found)})
    else:
        clean = "holds" if len(names) == 1 else "hold"
        listed = ", ".join(names)
        output.say(f"{listed}: {counted(len(faults), 'faults')}" if faults else f"{listed} {clean} the contract.")
    return ExitCode.CONTRACT if faults else ExitCode.OK


def _messages(config: RunConfig, names: list[str], episodes: int, at_most_s: float) -> Iterator[dict[str, Any]]:
    """The messages of one program after the other, until everything is tried."""
    from agentrl.config.serialization import config_to_plain

    with tempfile.NamedTemporaryFile(prefix="agentrl-check-", suffix=".stacks") as crash_file:
        asked: dict[str, Any] = {
            "config": config_to_plain(config),
            "environments": list(names),
            "side_by_side": episodes,
            "at_most_s": at_most_s,
            "died": None,
            "crash_file": crash_file.name,
        }
        while True:
            last, probe = {"event": "ended", "status": "no output"}, None
            for last in _one_program(asked, at_most_s):
                if last["event"] == "probe":
                    probe = last
                if last["event"] == "checked":
                    asked["environments"].remove(last["environment"])
                if last["event"] not in ("failed", "stuck", "done", "ended"):
                    yield last
            _refuse_failure(last)
            if last["event"] == "done":
                return
            if probe is None:
                raise AgentrlError(f"The check ended with status {last['status']} before it began.")
            # The code would do to the next program what it did to the first one. The program may also die after
            # everything was checked.
            if probe["environment"] in asked["environments"]:
                asked["environments"].remove(probe["environment"])
            asked["died"] = {**last, **probe} if last["event"] == "ended" else None


def _refuse_failure(last: dict[str, Any]) -> None:
    if last["event"] == "failed":
        raise ToldError(last["message"], hint=last["hint"], code=last["exit_code"])
    if last.get("status") in (ExitCode.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
        raise KeyboardInterrupt


def _one_program(asked: dict[str, Any], at_most_s: float) -> Iterator[dict[str, Any]]:
    """The messages of one program; the last is `done`, `stuck`, `failed`, or `ended` with the exit status of a program
    that died."""
    import json

    silent_at_most_s = max(SILENT_AT_MOST_S, 2 * at_most_s)
    command = [sys.executable, "-m", "daemons.check"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        signals_for(process),
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        send(process, json.dumps(asked).encode() + b"\n")
        selector.register(process.stdout, selectors.EVENT_READ)
        rest, hung, heard_at = b"", False, time.monotonic()
        limit_s = STARTS_WITHIN_S
        while not hung:
            if selector.select(timeout=1.0):
                part = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                heard_at = time.monotonic()
                if not part:
                    break
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    limit_s = silent_at_most_s
                    yield message
                    if message["event"] in ("done", "stuck", "failed"):
                        _end(process)
                        return
            hung = time.monotonic() - heard_at > limit_s
        if hung:
            process.send_signal(signal.SIGABRT)  # The signal makes the program write its stacks.
        _end(process)
        yield {"event": "ended", "status": process.returncode, "hung": hung}


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_WITHIN_S)
        return
    process.kill()
    process.wait()


def _show(message: dict[str, Any]) -> None:
    from agentrl.cli import output

    if message["event"] != "finding":
        return
    place = f"{Path(message['file']).name}:{message['line']}: " if message["file"] else ""
    note = "" if message["level"] == "fault" else "note: "
    output.say(f"{place}{note}{message['sentence']} [{message['environment']}, {message['name']}]")
    output.say(f"    {message['hint']}")
