"""Completes command lines in shells: by typer, with candidates from the table of commands and from the run.

Invariants:
- A completion prints only candidates, and none if the run does not answer at once.
- Ordinary commands do no work for completion; candidates are attached only while a shell completes.
"""

from __future__ import annotations

import enum
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import AgentrlError, ExitCode

if TYPE_CHECKING:
    from agentrl.client import Client

VARIABLE = "_AGENTRL_COMPLETE"
"""The variable that names the shell while it completes; the scripts of typer set it."""
_ANSWER_WITHIN_S = 0.5
_LISTS = {
    "task": ("list_tasks", "-admitted_at"),
    "tasks": ("list_tasks", "-admitted_at"),
    "record": ("list_records", "-finished_at"),
    "records": ("list_records", "-finished_at"),
    "base": ("list_records", "-finished_at"),
    "call": ("list_calls", "-called_at"),
    "calls": ("list_calls", "-called_at"),
    "replay": ("list_replays", "-created_at"),
    "replays": ("list_replays", "-created_at"),
    "step": ("list_steps", "-leased_at"),
    "checkpoint": ("list_checkpoints", "-step"),
}
"""Parameters whose candidates are the newest rows of a list, by the command and the order of that list."""


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


_INSTALL = {
    Shell.BASH: '# In ~/.bashrc:  eval "$(agentrl completion bash)"',
    Shell.ZSH: '# In ~/.zshrc, after compinit:  eval "$(agentrl completion zsh)"',
    Shell.FISH: "# In ~/.config/fish/config.fish:  agentrl completion fish | source",
    Shell.POWERSHELL: "# In $PROFILE:  agentrl completion powershell | Out-String | Invoke-Expression",
}


def register(app: typer.Typer) -> None:
    add_command(app, "completion")(completion)


def completion(
    cli: Cli, shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")]
) -> ExitCode:
    """Print the completion script of a shell."""
    from typer._completion_shared import get_completion_script

    from agentrl.cli import output

    script = get_completion_script(prog_name="agentrl", complete_var=VARIABLE, shell=shell.value)
    if cli.json:
        output.emit({"shell": shell.value, "script": script})
    else:
        print(f"{_INSTALL[shell]}\n{script}")
    return ExitCode.OK


def complete(app: typer.Typer, instruction: str) -> int:
    """Answer a shell: print the candidates for the word at its cursor."""
    from typer._click.shell_completion import add_completion_class
    from typer._completion_classes import FishComplete, ZshComplete, completion_init
    from typer.completion import shell_complete

    completion_init()
    for base in (FishComplete, ZshComplete):
        add_completion_class(type(base.__name__, (_WholeOption, base), {}), base.name)
    _rejoin_options_of_bash()
    _attach_candidates(app)
    return shell_complete(typer.main.get_command(app), {}, "agentrl", VARIABLE, instruction)


class _WholeOption:
    """Completes `--run=d` to `--run=demo`: zsh and fish replace the whole word, typer gives the value alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        found: list[Any] = super().get_completions(args, incomplete)  # type: ignore[misc]
        name, equals, _ = incomplete.partition("=")
        for item in found if equals and name.startswith("--") else ():
            item.value = f"{name}={item.value}"
        return found


def _rejoin_options_of_bash() -> None:
    """Bash splits `--run=demo` into three words, and typer takes the `=` for the value."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = int(os.environ.get("COMP_CWORD", 0))
    signs = [place for place in range(1, at) if words[place] == "=" and words[place - 1].startswith("--")]
    os.environ["COMP_WORDS"] = "\n".join(word for place, word in enumerate(words) if place not in signs)
    os.environ["COMP_CWORD"] = str(at - len(signs))


def _attach_candidates(app: typer.Typer) -> None:
    """Give each parameter the candidates that belong to its name."""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _attach_candidates(group.typer_instance)
    callbacks = [command.callback for command in app.registered_commands]
    if app.registered_callback is not None:
        callbacks.append(app.registered_callback.callback)
    for callback in callbacks:
        assert callback is not None
        for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
            if name in _SOURCES:
                parameter.annotation.__metadata__[0].autocompletion = _SOURCES[name]


def _candidates(name: str) -> Callable[[typer.Context, str], list[str]]:
    def candidates(context: typer.Context, incomplete: str) -> list[str]:
        import asyncio

        try:
            found = asyncio.run(_values(_aimed(context), name))
        except (AgentrlError, OSError):
            return []
        return sorted({each for each in found if "\n" not in each})

    return candidates


def _aimed(context: typer.Context) -> Cli:
    """The options so far on the line that select the run."""
    given: dict[str, Any] = {"run": None, "key": None}
    at: Any = context
    while at is not None:
        for name in given:
            given[name] = given[name] or at.params.get(f"shared_{name}") or at.params.get(name)
        at = at.parent
    return Cli(run=given["run"], key=Path(given["key"]) if given["key"] else None)


async def _values(cli: Cli, name: str) -> list[str]:
    if name == "program":
        from agentrl.cli.programs import DAEMONS

        return list(DAEMONS)
    if name in ("run", "shared_run", "run_name"):
        from agentrl.config import paths

        return [run.name for run in paths.list_runs()]
    async with cli.connect(timeout_s=_ANSWER_WITHIN_S) as client:
        return await _from_run(client, name)


async def _from_run(client: Client, name: str) -> list[str]:
    if name in _LISTS:
        command, newest_first = _LISTS[name]
        page = await client.call(command, {"sort": newest_first, "limit": 50}, deadline_s=_ANSWER_WITHIN_S)
        return [str(row["id"]) for row in page.rows]
    if name in _TOOLS:
        return await _tools(client, name)
    if name == "knob":
        return [row.name for row in await client.knobs()]
    if name == "key_name":
        return [row.name for row in await client.list_keys()]
    report = await client.status()
    units, groups = [row.unit for row in report.units], [row.name for row in report.groups]
    return {
        "alert": [row.id for row in report.alerts],
        "host": [row.host for row in report.hosts],
        "role": groups,
        "target": [*units, *groups],
    }.get(name, units)


async def _tools(client: Client, name: str) -> list[str]:
    """Names of those tool servers, sandboxes and sessions that the parameter accepts."""
    found: list[str] = []
    if name in ("server", "tool_target"):
        servers = await client.list_tool_servers(deadline_s=_ANSWER_WITHIN_S)
        found += dict.fromkeys(row.id for row in servers.rows)
    if name != "server":
        sandboxes = await client.list_sandboxes(deadline_s=_ANSWER_WITHIN_S)
        found += [row.id.rpartition("/")[2] for row in sandboxes.rows]
    if name == "session":
        sessions = await client.list_tool_sessions(deadline_s=_ANSWER_WITHIN_S)
        found += [row.id for row in sessions.rows]
    return found


_TOOLS = ("server", "sandbox", "session", "tool_target")
_NAMES = ("unit", "units", "target", "role", "knob", "alert", "host", "key_name", "program", "run_name")
_SOURCES = {name: _candidates(name) for name in (*_LISTS, *_NAMES, *_TOOLS, "run", "shared_run")}
