"""Messages of `/mcpapi` between runs: the endpoint for programs outside of a run, and the client of such an endpoint.

Other products may answer with more fields, which the client ignores.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from agentrl.policies.replay_verdicts import ToolEffect


class OpenOutsideSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    """Chosen by the program. A repeated request finds the open session."""
    servers: tuple[str, ...]
    wait_s: float = 10.0


class CallOutsideTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: str
    call: str
    """Chosen by the program. A repeated id joins the call or gets its answer; it never runs twice."""
    arguments: dict[str, Any] = {}
    timeout_s: float = 0.0
    """0: the limit of the server, which is also the maximum."""


class OutsideSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    servers: tuple[str, ...]


class OutsideServer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    usable: bool
    tools: int


class OutsideTool(msgspec.Struct, frozen=True, kw_only=True):
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


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[OutsideServer, ...]


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[OutsideTool, ...]


class OutsideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "tool_error"]
    """`tool_error`: the tool ran and reported that it failed."""
    content: str
    left_out: int
    """Characters cut out of the middle of the content."""
    latency_s: float


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    pass
