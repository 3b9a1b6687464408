"""Defines the command `try`, which runs episodes of an environment without a run.

Invariants:
- The command only starts the program `daemons.trial` and shows its messages; nothing outlives it.
- What a model or a tool wrote is shown as text that cannot act on a terminal.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.child_program import messages_of, signals_for
from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import Sets
from agentrl.errors import AgentrlError, ConfigError, ExitCode, ToldError, UsageError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

_LOOK_EVERY_S = 0.3
_RUN_FILE = "name: trial\nmodel: {{build: tiny}}\nenvironments:\n{environments}"


def register(app: typer.Typer) -> None:
    add_command(app, "try")(try_episodes)


def try_episodes(
    cli: Cli,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A Python file with an environment, or a run file.", show_default=False),
    ],
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="One of several.", show_default=False)
    ] = "",
    episodes: Annotated[int, typer.Option("-n", "--episodes", metavar="NUMBER", help="How many; at least 1.")] = 4,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="The model; else that of the run file.", show_default=False),
    ] = None,
    say: Annotated[
        list[str] | None,
        typer.Option("--say", metavar="TEXT", help="Instead of a model: its turns, in order.", show_default=False),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Try again when a Python file beside it changes.")] = False,
    sets: Sets = None,
) -> ExitCode:
    """Try episodes of an environment, without a run.

    It shows each turn, what the parser made of it, what tools gave, and the score by its parts.
    """
    if episodes < 1:
        raise UsageError(f"-n {episodes}: at least one episode is tried.")
    if not file.exists():
        raise ConfigError(f"There is no file {file}.", hint="Name a Python file with an environment, or a run file.")
    while True:
        before = _changed_at(file)
        try:
            code = _try(cli, _configured(file, model, sets), environment, episodes, say or [])
        except AgentrlError as wrong:
            if not watch:
                raise
            _say_wrong(wrong)
            code = wrong.exit_code
        if not watch or code == ExitCode.INTERRUPTED:
            return code
        _wait_for_change(file, before)


def _try(cli: Cli, config: RunConfig, environment: str, episodes: int, replies: list[str]) -> ExitCode:
    import json

    from agentrl.config.serialization import config_to_plain

    asked = {
        "config": config_to_plain(config),
        "environment": _chosen(config, environment),
        "episodes": episodes,
        "replies": replies,
    }
    command = [sys.executable, "-m", "daemons.trial"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        signals_for(process),
    ):
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.close()
        ended: list[dict[str, Any]] = []
        last = ""
        for message in messages_of(process):
            last = message["event"]
            ended += [message] if last == "ended" else []
            _show(cli, message)
    if process.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
        return ExitCode.INTERRUPTED
    return _summary(cli, ended, last == "done", process.returncode)


def _configured(file: Path, model: Path | None, sets: list[str] | None) -> RunConfig:
    """A run with the environments of a Python file, or that of a run file."""
    from agentrl.config.load import load_config
    from agentrl.config.own_environments import names_in

    chosen = [*([f"model={{path: {model.absolute()}}}"] if model is not None else []), *(sets or [])]
    if file.suffix != ".py":
        return load_config(file, sets=chosen).config
    names = names_in(file.absolute())
    if not names:
        raise ConfigError(f"{file} declares no environment.", hint='Write rl.Environment("NAME", ...).')
    with tempfile.TemporaryDirectory(prefix="agentrl-try-") as folder:
        run_file = Path(folder, "run.yaml")
        listed = "".join(f"  {name}: {str(file.absolute())!r}\n" for name in names)
        run_file.write_text(_RUN_FILE.format(environments=listed))
        return load_config(run_file, sets=chosen).config


def _chosen(config: RunConfig, wanted: str) -> str:
    names = list(config.environments)
    if not names:
        raise ConfigError("The run file has no environments.")
    if wanted and wanted not in names:
        raise ConfigError(f"There is no environment {wanted!r}.", hint=f"There are {', '.join(names)}.")
    if not wanted and len(names) > 1:
        raise ConfigError(
            f"There are several environments: {', '.join(names)}.", hint="Choose one: --environment NAME."
        )
    return wanted or names[0]


def _show(cli: Cli, message: dict[str, Any]) -> None:
    from agentrl.cli import output

    if message["event"] == "failed":
        raise ToldError(message["message"], hint=message["hint"], code=message["exit_code"])
    if cli.json:
        output.emit_line(message)
        return
    match message["event"]:
        case "began":
            output.say(f"{counted(message['episodes'], 'episodes')} of {message['environment']}")
        case "episode":
            output.say()
            output.block(f"episode {message['episode']}", message["query"])
        case "turn":
            _show_turn(message)
        case "ended":
            _show_end(message)


def _show_turn(turn: dict[str, Any]) -> None:
    from agentrl.cli import output
    from agentrl.formatting import tool_call_text

    took = f"{counted(turn['tokens'], 'tokens')}, {output.duration(turn['took_s'])}"
    output.say(f"episode {turn['episode']}, turn {turn['turn']}: {took}")
    output.block("", turn["text"])
    for parsed in turn["parsed"]:
        if parsed.get("error"):
            output.say(f"  cannot be read as a call: {parsed['error']}")
    for tool in turn["tools"]:
        output.say(f"  {tool_call_text.invocation(tool)}: {tool['status']}")
        output.block("", tool["result"], indent="    ")


def _show_end(ended: dict[str, Any]) -> None:
    from agentrl.cli import output

    score = "not scored" if ended["score"] is None else f"score {ended['score']:.4g}"
    parts = ", ".join(f"{name} {value:.4g}" for name, value in ended["parts"].items())
    why = f": {ended['error']}" if ended["error"] else ""
    size = f"{counted(ended['turns'], 'turns')}, {counted(ended['tokens'], 'tokens')}"
    output.say(
        f"episode {ended['episode']}: {ended['outcome']}{why}; {score}{f' ({parts})' if parts else ''}; {size}, "
        f"{output.duration(ended['took_s'])}"
    )


def _summary(cli: Cli, ended: list[dict[str, Any]], whole: bool, code: int) -> ExitCode:
    from agentrl.cli import output

    if not whole:
        raise AgentrlError(f"The trial ended with status {code}.", hint="Its output is above.")
    scored = [each["score"] for each in ended if each["score"] is not None]
    if not cli.json:
        mean = f"; mean score {sum(scored) / len(scored):.4g}" if scored else ""
        output.say()
        output.say(f"{len(scored)} of {counted(len(ended), 'episodes')} scored{mean}")
    return ExitCode.OK


def _say_wrong(wrong: AgentrlError) -> None:
    from agentrl.cli import output

    output.say(f"{wrong.message} {wrong.hint}".strip())


def _changed_at(file: Path) -> float:
    return max(each.stat().st_mtime for each in {file, *file.absolute().parent.glob("*.py")})


def _wait_for_change(file: Path, before: float) -> None:
    while _changed_at(file) == before:
        time.sleep(_LOOK_EVERY_S)
