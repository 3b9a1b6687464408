"""The verb completion, and the hidden verb that the scripts ask for candidates.

Invariants: the scripts are static and small, and know no verb; candidates come from the same tree of verbs that parses
the command line, and from the run if it answers at once; a completion never prints an error.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.cli.options import Cli, verb
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


@dataclasses.dataclass(slots=True)
class _Typed:
    """What the words before the one in question make."""

    command: Any
    """The verb, as far as it is there."""
    path: list[str] = dataclasses.field(default_factory=list)
    behind: list[str] = dataclasses.field(default_factory=list)
    """Its arguments."""
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    """The values of options."""
    wanting: Any = None
    """The option whose value comes next."""

    @classmethod
    def of(cls, command: Any, words: Iterable[str]) -> _Typed:
        typed = cls(command)
        for word in words:
            typed._take(word)
        return typed

    def _take(self, word: str) -> None:
        if self.wanting is not None:
            # bash makes three words of --run=shop.
            if word != "=":
                self.given[self.wanting.name] = word
                self.wanting = None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            option = self.option(name)
            if option is None or option.is_flag:
                return
            if equals:
                self.given[option.name] = value
            else:
                self.wanting = option
        elif below := getattr(self.command, "commands", {}).get(word):
            self.command, self.behind = below, []
            self.path.append(word)
        else:
            self.behind.append(word)

    def option(self, name: str) -> Any:
        return next((one for one in self.command.params if name in one.opts and hasattr(one, "is_flag")), None)

    def aimed(self, cli: Cli) -> Cli:
        """The run that these words name is the one that is asked."""
        # Before the verb and behind it these options have the same names for people, and not for the parser.
        run, key = (self.given.get(f"shared_{name}") or self.given.get(name) for name in ("run", "key"))
        return dataclasses.replace(cli, run=run or cli.run, key=Path(key) if key else cli.key)


async def _candidates(cli: Cli, command: Any, before: list[str], last: str) -> list[str]:
    """What may stand in the place of `last`, behind the words before it."""
    typed = _Typed.of(command, before)
    cli, command = typed.aimed(cli), typed.command
    if typed.wanting is not None:
        return _starting(await _values(cli, typed.wanting.name), "" if last == "=" else last)
    name, equals, _ = last.partition("=")
    if equals and (option := typed.option(name)) is not None:
        return _starting([f"{name}={value}" for value in await _values(cli, option.name)], last)
    if last.startswith("-"):
        named = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
        return _starting([*named, "--help"], last)
    below = getattr(command, "commands", None)
    if below is not None:
        return _starting([name for name, one in below.items() if not one.hidden], last)
    return _starting(await _arguments(cli, command, typed.path, len(typed.behind)), last)


def _starting(found: list[str], last: str) -> list[str]:
    return sorted({name for name in found if name.startswith(last) and "\n" not in name})


async def _arguments(cli: Cli, command: Any, path: list[str], place: int) -> list[str]:
    arguments = [one for one in command.params if not hasattr(one, "is_flag")]
    if not arguments:
        return []
    argument = arguments[min(place, len(arguments) - 1)]
    if place >= len(arguments) and argument.nargs != -1:
        return []
    special = {("keys", "revoke"): "key", ("daemon",): "daemon"}
    return await _values(cli, special.get(tuple(path), argument.name))


async def _values(cli: Cli, name: str) -> list[str]:
    """Values of an argument or option by what it means."""
    from agentrl.cli import events, keys, programs

    fixed: dict[str, Iterable[str]] = {
        "daemon": programs.DAEMONS,
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
