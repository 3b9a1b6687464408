"""The verb completion, and the hidden verb that the scripts ask for candidates.

Invariants: the scripts are static and small, and know no verb; candidates come from the same tree of verbs that parses
the command line, and from the run if it answers at once; a completion never prints an error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from agentrl.cli.verbs import Cli, verb
from agentrl.errors import AgentrlError, ExitCode

_PATIENCE_S = 0.5


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


_SCRIPTS = {
    Shell.BASH: """\
# Put this into ~/.bashrc:  eval "$(agentrl completion bash)"
_agentrl() {
    mapfile -t COMPREPLY < <(agentrl _complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _agentrl agentrl
""",
    Shell.ZSH: """\
#compdef agentrl
# Put this into ~/.zshrc, after compinit:  eval "$(agentrl completion zsh)"
_agentrl() {
    local -a candidates
    candidates=("${(@f)$(agentrl _complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${candidates[1]}" ]]; then
        compadd -- "${candidates[@]}"
    else
        _files
    fi
}
compdef _agentrl agentrl
""",
    Shell.FISH: """\
# Put this into ~/.config/fish/config.fish:  agentrl completion fish | source
function __agentrl_complete
    set -l words (commandline -opc) (commandline -ct)
    agentrl _complete -- $words[2..-1] 2>/dev/null
end
complete -c agentrl -a '(__agentrl_complete)'
""",
    Shell.POWERSHELL: """\
# Put this into $PROFILE:  agentrl completion powershell | Out-String | Invoke-Expression
Register-ArgumentCompleter -Native -CommandName agentrl -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Select-Object -Skip 1 | ForEach-Object { $_.ToString() })
    if ($wordToComplete -eq '') { $words += '' }
    agentrl _complete -- @words 2>$null | ForEach-Object {
        [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_)
    }
}
""",
}


def register(app: typer.Typer) -> None:
    verb(app, "completion")(completion)

    async def complete(
        cli: Cli, words: Annotated[list[str] | None, typer.Argument(metavar="[WORDS]...", show_default=False)] = None
    ) -> ExitCode:
        """Print the candidates for the last of these words, one a line."""
        *before, last = words or [""]
        found = await _candidates(cli, typer.main.get_command(app), before, last)
        if cli.json:
            from agentrl.cli import output

            output.emit(found)
        else:
            for candidate in found:
                print(candidate)
        return ExitCode.OK

    verb(app, "_complete", hidden=True, context_settings={"ignore_unknown_options": True})(complete)


def completion(
    cli: Cli, shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")]
) -> ExitCode:
    """Print the completion script of a shell."""
    if cli.json:
        from agentrl.cli import output

        output.emit({"shell": shell.value, "script": _SCRIPTS[shell]})
    else:
        print(_SCRIPTS[shell], end="")
    return ExitCode.OK


async def _candidates(cli: Cli, command: Any, before: list[str], last: str) -> list[str]:
    """What may stand in the place of `last`, behind the words before it."""
    path: list[str] = []
    behind: list[str] = []
    for word in before:
        below = getattr(command, "commands", {}).get(word)
        if below is not None:
            command, behind = below, []
            path.append(word)
        else:
            behind.append(word)
    option = _option(command, behind[-1]) if behind else None
    if option is not None and not option.is_flag:
        return _starting(await _values(cli, option.name), last)
    if last.startswith("-"):
        named = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
        return _starting([*named, "--help"], last)
    below = getattr(command, "commands", None)
    if below is not None:
        return _starting([name for name, one in below.items() if not one.hidden], last)
    return _starting(await _arguments(cli, command, path, behind), last)


def _option(command: Any, word: str) -> Any:
    return next((one for one in command.params if word in one.opts and hasattr(one, "is_flag")), None)


def _starting(found: list[str], last: str) -> list[str]:
    return sorted({name for name in found if name.startswith(last) and "\n" not in name})


async def _arguments(cli: Cli, command: Any, path: list[str], behind: list[str]) -> list[str]:
    arguments = [one for one in command.params if not hasattr(one, "is_flag")]
    place = len([word for word in behind if not word.startswith("-")])
    if not arguments:
        return []
    argument = arguments[min(place, len(arguments) - 1)]
    if place >= len(arguments) and argument.nargs != -1:
        return []
    special = {("keys", "revoke"): "key", ("daemon",): "daemon"}
    return await _values(cli, special.get(tuple(path), argument.name))


async def _values(cli: Cli, name: str) -> list[str]:
    """Values of an argument or option by what it means."""
    from agentrl.cli import events, house, keys

    fixed: dict[str, Iterable[str]] = {
        "daemon": house.DAEMONS,
        "kind": events.Kind,
        "permission": keys.Permission,
        "shell": Shell,
    }
    if name in fixed:
        return [str(value) for value in fixed[name]]
    if name in ("shared_run", "run"):
        from agentrl.config import paths

        return [run.name for run in paths.list_runs()]
    try:
        return await _from_run(cli, name)
    except (AgentrlError, OSError):
        return []


_LISTS = {
    "task": ("list_tasks", "-admitted_at"),
    "tasks": ("list_tasks", "-admitted_at"),
    "record": ("list_records", "-finished_at"),
    "step": ("list_steps", "-leased_at"),
    "checkpoint": ("list_checkpoints", "-step"),
}
"""Lists whose newest rows are candidates."""


async def _from_run(cli: Cli, name: str) -> list[str]:
    if name in _LISTS:
        command, newest_first = _LISTS[name]
        async with cli.connect(timeout_s=_PATIENCE_S) as client:
            page = await client.call(command, {"sort": newest_first, "limit": 50}, deadline_s=_PATIENCE_S)
        return [str(row["id"]) for row in page.rows]
    if name not in ("unit", "units", "target", "role", "knob", "alert", "host", "key"):
        return []
    async with cli.connect(timeout_s=_PATIENCE_S) as client:
        if name == "knob":
            return [row.name for row in await client.knobs()]
        if name == "key":
            return [row.name for row in await client.list_keys()]
        from agentrl.cli.view import View

        view = View.of_report(await client.status())
    units, groups = [row.unit for row in view.units], [row.name for row in view.groups]
    return {
        "alert": [row.id for row in view.firing],
        "host": [row.host for row in view.hosts],
        "role": groups,
        "target": [*units, *groups],
    }.get(name, units)
