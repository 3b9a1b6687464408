"""Calls the tools of a run before it starts, for `up` and `config check --tools`.

Invariants:
- Another program starts the servers, and no process of it is left.
- Tools of another host are not called here: they are named as untried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from agentrl.cli.options import Cli
from agentrl.errors import ExitCode, ToolPreflightError
from agentrl.formatting.amounts import counted

if TYPE_CHECKING:
    from agentrl.config.load import Loaded

SkipTools = Annotated[
    bool, typer.Option("--skip-tools", help="Do not call the tools once before the run starts.", show_default=False)
]
SKIP_HINT = "Nothing was started. `agentrl up --skip-tools` starts without calling tools."
_SHOWN = 4


class Preflight(NamedTuple):
    works: int = 0
    untried: Sequence[str] = ()
    """A sentence for each server, with what to do."""
    failures: Sequence[str] = ()
    """A sentence for each tool, with what to do."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the person who starts the run."""
        worked = [f"{counted(self.works, 'tools')} answered when called once"] if self.works else []
        return (*worked, *self.untried)

    def refuse_failures(self, hint: str) -> None:
        """Raises ToolPreflightError if a tool failed."""
        if self.failures:
            raise ToolPreflightError("\n".join(self.failures), hint=hint)


def tried(cli: Cli, loaded: Loaded, *, installed: bool = True) -> Preflight:
    """Calls every tool that may safely be called. Without `installed`, servers with packages are not started."""
    from agentrl.cli.child_program import at_hand, run_to_its_end
    from agentrl.cli.progress import Progress
    from agentrl.config.tool_lock import packages_of

    config = loaded.config
    if not config.environments or not config.tools:
        return Preflight()
    if elsewhere := [name for name, host in config.all_hosts.items() if "toolbox" in host.runs]:
        where = f"their toolbox runs on {', '.join(elsewhere)}"
        return Preflight(untried=[f"The tools are untried, because {where}: `agentrl config check --tools` there."])
    packed = [name for name, server in config.tools.items() if packages_of(server) and not installed]
    missing = [f"tools.{name} is untried, because `agentrl up` installs its packages first." for name in packed]
    usable = [name for name in config.tools if name not in packed]
    if not usable:
        return Preflight(untried=missing)
    found: list[dict[str, Any]] = []
    with Progress(cli) as progress:
        progress.step("calls the tools")
        asked = {"tools": usable, "run_file": str(loaded.path or "")}
        code = run_to_its_end("daemons.tool_preflight", "The call of the tools", at_hand(config, asked), found.append)
        if code != ExitCode.OK:
            raise KeyboardInterrupt
    tools = [message for message in found if message["event"] == "tool"]
    return Preflight(
        sum(each["verdict"] == "works" for each in tools),
        [*missing, *_by_server([each for each in tools if each["verdict"] == "untried"])],
        [f"{each['sentence']} {each['hint']}".rstrip() for each in tools if each["verdict"] == "fails"],
    )


def _by_server(untried: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each server, because it may have many tools."""
    found = []
    for server in dict.fromkeys(each["server"] for each in untried):
        first, *others = (each for each in untried if each["server"] == server)
        more = f" Untried too: {_listed([each['tool'] for each in others])}." if others else ""
        found.append(f"{first['sentence']} {first['hint']}{more}")
    return found


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
