"""Defines the command `try`, which runs episodes of an environment without a run.

Invariants:
- The command only starts the program `daemons.trial` and shows its messages; no process outlives the command.
- Text of a model or a tool is shown so that it cannot act on a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.adapters.sources import source_of
from agentrl.cli import tried_environments
from agentrl.cli.adapted import FileOrWord, ModelName, WithArguments, WithPython
from agentrl.cli.child_program import Asked, run_to_its_end
from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import Sets
from agentrl.errors import AgentrlError, ExitCode, UsageError
from agentrl.formatting.amounts import counted

_LOOK_EVERY_S = 0.3


def register(app: typer.Typer) -> None:
    add_command(app, "try")(try_episodes)


Environment = Annotated[str, typer.Option("--environment", metavar="NAME", help="One of several.", show_default=False)]
Episodes = Annotated[int, typer.Option("-n", "--episodes", metavar="NUMBER", help="How many; at least 1.")]
Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="DIR|URL", help="A directory, or an OpenAI-compatible address.", show_default=False
    ),
]
Say = Annotated[
    list[str] | None,
    typer.Option("--say", metavar="TEXT", help="Instead of a model: its turns, in order.", show_default=False),
]
Watch = Annotated[bool, typer.Option("--watch", help="Try again when a Python file beside it changes.")]


def try_episodes(
    cli: Cli,
    file: FileOrWord,
    environment: Environment = "",
    episodes: Episodes = 4,
    model: Model = "",
    model_name: ModelName = "default",
    say: Say = None,
    watch: Watch = False,
    arguments: WithArguments = None,
    python: WithPython = None,
    sets: Sets = None,
) -> ExitCode:
    """Try episodes of an environment, without a run.

    It shows each turn, the parsed calls, the results of tools, and the score by its parts.
    """
    if episodes < 1:
        raise UsageError(f"-n {episodes}: at least one episode is tried.")
    is_word = source_of(file) is not None
    if is_word and watch:
        raise UsageError(f"--watch: {file} is no file.", hint="It is for a Python file or a run file.")
    path = Path(file) if is_word else tried_environments.found(Path(file))
    is_address = model.startswith(("http://", "https://"))
    asked = {
        "episodes": episodes,
        "replies": say or [],
        "url": model if is_address else "",
        "model_name": model_name,
    }
    directory = None if is_address or not model else Path(model)

    def ask() -> Asked:
        config = tried_environments.configured(file, arguments, directory, sets, python=python)
        return config, asked | {"environment": tried_environments.chosen(config, environment)}

    while True:
        before = 0.0 if is_word else _changed_at(path)
        try:
            code = _try(cli, ask)
        except AgentrlError as wrong:
            if not watch:
                raise
            _say_wrong(wrong)
            code = wrong.exit_code
        if not watch or code == ExitCode.INTERRUPTED:
            return code
        _wait_for_change(path, before)


def _try(cli: Cli, ask: Callable[[], Asked]) -> ExitCode:
    ended: list[dict[str, Any]] = []

    def show(message: dict[str, Any]) -> None:
        if message["event"] == "ended":
            ended.append(message)
        _show(cli, message)

    code = run_to_its_end("daemons.trial", "The trial", ask, show)
    if code == ExitCode.OK:
        _summary(cli, ended)
    return code


def _show(cli: Cli, message: dict[str, Any]) -> None:
    from agentrl.cli import output

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


def _summary(cli: Cli, ended: list[dict[str, Any]]) -> None:
    from agentrl.cli import output

    scored = [each["score"] for each in ended if each["score"] is not None]
    if not cli.json:
        mean = f"; mean score {sum(scored) / len(scored):.4g}" if scored else ""
        output.say()
        output.say(f"{len(scored)} of {counted(len(ended), 'episodes')} scored{mean}")


def _say_wrong(wrong: AgentrlError) -> None:
    from agentrl.cli import output

    output.say(f"{wrong.message} {wrong.hint}".strip())


def _changed_at(file: Path) -> float:
    return max(each.stat().st_mtime for each in {file, *file.absolute().parent.glob("*.py")})


def _wait_for_change(file: Path, before: float) -> None:
    while _changed_at(file) == before:
        time.sleep(_LOOK_EVERY_S)
