"""What episodes need of toolboxes, in words of this room.

Rooms on one line do not import each other: whoever starts a sampler plugs the toolbox's client in here.

Invariants: an answer says how a call ended, also if it ended badly; a refusal means that nothing was run, except
`gone`, after which nobody knows and the same call id may be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from agentrl.errors import AgentrlError
from agentrl.policies.outcomes import AnswerStatus, Fault

RefusalKind = Literal["invalid", "session_lost", "quota", "unavailable", "gone", "failed"]
"""`invalid`: this call makes no sense to this toolbox, now or later. `session_lost`: the state of the session is gone.
`quota` and `unavailable`: later. `gone`: nobody answers. `failed`: anything else."""


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a toolbox."""

    server: str
    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)


class OpenedSession(msgspec.Struct, frozen=True):
    created: bool
    """False: it was open already, with its state."""
    calls: tuple[str, ...] = ()
    """The ids of all calls that it has begun to run."""


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How one call ended."""

    status: AnswerStatus
    fault: Fault = ""
    """Whose doing it was, if it did not end well."""
    content: str = ""
    """For the model to read; in failures a sentence."""
    latency_s: float = 0.0
    reason: str = ""
    breaker_open: bool = False
    """It failed, and its server is left alone by now: such a failure costs no attempt."""
    tried_again: str = ""
    """How the same call ended in a fresh session, or why it was not made there; empty where nobody thought of it."""


class ToolRefusedError(AgentrlError):
    """The toolbox did not take a call or a session."""

    def __init__(self, kind: RefusalKind, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.retry_after_s = retry_after_s


class Toolbox(Protocol):
    """One toolbox. Every method ends within its deadline; failures are ToolRefusedErrors."""

    async def tools(self) -> Sequence[OfferedTool]: ...

    async def open(self, session: str, servers: Sequence[str], *, wait_s: float) -> OpenedSession:
        """Reserve all servers at once."""
        ...

    async def call(
        self, session: str, call: str, server: str, tool: str, arguments: dict[str, Any], *, timeout_s: float
    ) -> ToolAnswer:
        """A call id runs at most once: asked again, it joins the call under way or gets its answer."""
        ...

    async def close_session(self, session: str) -> None: ...

    async def close(self) -> None:
        """End the connections, not the sessions."""
        ...
