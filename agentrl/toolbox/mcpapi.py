"""`/mcpapi`: the paths of all its listeners and clients, and the messages between runs.

The listener for samplers (`toolbox.api`) and the one for programs outside of the run (`mcp_endpoint.http_api`) have the
same paths; the latter gives and takes less. Other products may answer with more fields, which the client ignores.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import quote

import msgspec

from agentrl.policies.replay_verdicts import ToolEffect
from agentrl.toolbox.api_messages import ToolInfo

PATH = "/mcpapi"


class Operation(NamedTuple):
    """A path below `/mcpapi` with a method."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """`{name}` is a parameter."""

    def at(self, **names: str) -> str:
        """The path with these parameters. Ids have slashes and hashes."""
        return self.path.format_map({name: quote(value, safe="") for name, value in names.items()})


SERVERS = Operation("GET", "/servers")
TOOLS = Operation("GET", "/tools")
TOOLS_OF_SERVER = Operation("GET", "/server/{server}/tools")
STATISTICS = Operation("GET", "/statistics")
OPEN = Operation("POST", "/session")
CLOSE = Operation("DELETE", "/session/{session}")
CALL = Operation("POST", "/tool/{tool}")


class OpenOutsideSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    """Chosen by the program. A repeated request finds the open session."""
    servers: tuple[str, ...]
    wait_s: float = 10.0


class OutsideSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    servers: tuple[str, ...]


class OutsideServer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    usable: bool
    tools: int


class ToolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in a list; callers use its `id`."""

    id: str
    server: str
    name: str
    description: str
    schema: dict[str, Any]
    effect: Annotated[
        str,
        msgspec.Meta(
            description="What a call changes: nothing (pure), its session, or something outside of it. Empty: unknown.",
            extra_json_schema={"enum": ["", *get_args(ToolEffect)]},
        ),
    ] = ""
    """A text, so that a client accepts the answers of other products, which may have other words."""


def entry(tool: ToolInfo, effect: str) -> ToolEntry:
    return ToolEntry(
        id=tool.id,
        server=tool.server,
        name=tool.name,
        description=tool.description,
        schema=tool.schema,
        effect=effect,
    )


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[OutsideServer, ...]


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[ToolEntry, ...]


class OutsideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "tool_error"]
    """`tool_error`: the tool ran and reported that it failed."""
    content: str
    left_out: int
    """Characters cut out of the middle of the content."""
    latency_s: float


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    pass
