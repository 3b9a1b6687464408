"""The commands of the table as tools of MCP. Pure.

Invariants: a query is a tool that reads; a command that changes something is a tool that proposes it, with the same
arguments; schemas and descriptions come from the table, so a new command is offered without a change here; commands
that need the admin permission are not offered.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import mcp_types as types
import msgspec

from agentrl.config.field_types import field_docstrings
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages import Permission

A = TypeVar("A", bound=Args)
EXECUTE = "execute_proposal"
WAIT = "wait_for_operation"


class Execute(Args, frozen=True):
    """Execute a proposal, if the command would still do what the proposal showed. A proposal is executed once and
    expires after ten minutes."""

    proposal: str
    """The `proposal` that the tool of the command returned."""


class Wait(Args, frozen=True):
    """Wait for the end of an operation and return it. After the timeout the operation goes on."""

    id: str
    """The `operation` of an executed proposal."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0


def offered(name: str) -> CommandSpec | None:
    """The command that a tool stands for; None if there is no such tool."""
    spec = COMMANDS.get(name)
    if spec is None or spec.result is None or spec.permission not in (Permission.VIEWER, Permission.OPERATOR):
        return None
    return spec


def tools(*, executes: bool) -> list[types.Tool]:
    """All tools; `executes`: also the one that executes a proposal."""
    found = [_of_command(spec) for name in COMMANDS if (spec := offered(name))]
    found.append(_tool(WAIT, _sentence(Wait), Wait))
    if executes:
        found.append(_tool(EXECUTE, _sentence(Execute), Execute, changes=True))
    return found


def _of_command(spec: CommandSpec) -> types.Tool:
    text = f"{spec.help} (`agentrl {spec.cli}`)"
    if spec.mutates:
        text += " Proposes the command: returns its present effect and changes nothing."
    return _tool(spec.name, text, spec.args)


def _tool(name: str, text: str, args: type[Args], *, changes: bool = False) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not changes, destructive_hint=changes, open_world_hint=False)
    return types.Tool(name=name, description=text, input_schema=schema(args), annotations=hints)


def schema(args: type[Args]) -> dict[str, Any]:
    """The JSON schema of the arguments, with the docstring of each field as its description."""
    found = msgspec.json.schema(args)
    definitions = found["$defs"]
    whole: dict[str, Any] = definitions.pop(args.__name__)
    whole.pop("description", None)
    texts = field_docstrings(kind for kind in args.__mro__ if kind is not Args and issubclass(kind, Args))
    for name, text in texts.items():
        whole["properties"][name]["description"] = " ".join(text.split())
    return {**whole, "$defs": definitions} if definitions else whole


def _sentence(args: type[Args]) -> str:
    return " ".join((args.__doc__ or "").split())
