"""What goes over the toolbox's HTTP API, and every way in which it refuses.

Invariants: a call that ran, or may have run, is answered with 200 and a status of its own; a refusal has an HTTP status
and means that nothing was run. Server and client bind to the same words here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentrl.errors import AgentrlError, ExitCode
from agentrl.policies.outcomes import AnswerStatus, Fault


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that may be called."""

    server: str
    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of its arguments."""

    @property
    def id(self) -> str:
        """`shop.lookup`"""
        return f"{self.server}.{self.name}"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One server, and whether it can be used."""

    id: str
    session: str
    """How it keeps episodes apart."""
    state: Literal["starting", "serving", "down"]
    breaker: str
    why: str = ""
    """Why it does not serve, with its own last words."""
    starts: int = 0
    """How often it was started, with all processes of a pool."""
    tools: int = 0
    sessions: int = 0
    running: int = 0
    waiting: int = 0

    @property
    def usable(self) -> bool:
        return self.state == "serving" and self.breaker != "open"


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    servers: tuple[str, ...] = ()
    wait_s: float = 30.0
    """How long to wait for a server that is busy."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    servers: tuple[str, ...]
    created: bool
    """False: it was open already, with all its state. True for a session that should exist means its state is gone."""
    toolbox: str = ""
    """The incarnation that keeps it."""


class CallTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: str
    call: str
    """Chosen by the caller. A repeated one joins the call or gets its answer; it never runs twice."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    timeout_s: float = 0.0
    """0 takes the server's own limit; a longer one is cut down to it."""


NotAgain = Literal[
    "no: fails for others", "no: not alone", "no: told by the tool", "no: no session", "no: breaker", "no: hurried"
]
"""Why a failed call was not made once more. The tool failed for others within a minute, so it is an outage; others were
lost with it, and any of them may be to blame; the tool itself said whose fault it is; no fresh session was to be had;
the server's breaker was not closed; the caller gave it less time than the server has."""


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended."""

    status: AnswerStatus
    error_class: Fault = ""
    content: str = ""
    """The result as text, or a sentence about what went wrong."""
    latency_s: float = 0.0
    """Of the server alone; waiting for its turn is not in it."""
    reason: str = ""
    """Of `lost`: who lost it. Of others: empty."""
    alone: bool = True
    """Of `lost`: whether no other call went with it. Of several, any may be to blame."""
    left_out: int = 0
    """Characters that were cut out of the middle."""
    breaker_open: bool = False
    """It failed for infrastructure, and the server is left alone by now: that it failed says nothing about the call."""
    tried_again: AnswerStatus | NotAgain | Literal[""] = ""
    """How the same call ended in a fresh session, or why a call that failed was not made there; empty where that is not
    wanted (`try_again`) or nothing failed."""


class ToolboxError(AgentrlError):
    """The toolbox refuses, or is not there. The call was not run."""

    http_status = 500
    kind = "failed"
    retry_after_s: float = 0.0

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class BadRequestError(ToolboxError):
    """The request makes no sense."""

    http_status = 400
    kind = "bad_request"
    exit_code = ExitCode.USAGE


class WrongTokenError(ToolboxError):
    """The run's token is missing or wrong."""

    http_status = 401
    kind = "token"
    exit_code = ExitCode.KEY_REFUSED


class UnknownToolError(ToolboxError):
    """There is no such server or tool, or it is blocked."""

    http_status = 404
    kind = "unknown_tool"
    exit_code = ExitCode.UNKNOWN


class SessionError(ToolboxError):
    """The session is not open here, was closed, or is open with other servers."""

    http_status = 409
    kind = "session"
    exit_code = ExitCode.CONFLICT


class SessionLostError(SessionError):
    """What the server kept for this session died with it; nothing more can be done in the session."""

    kind = "session_lost"


class CallConflictError(SessionError):
    """The call's id belongs to another call."""

    kind = "call_conflict"


class QuotaError(ToolboxError):
    """Too much at once; the same call may be made again later."""

    http_status = 429
    kind = "quota"
    exit_code = ExitCode.TIMEOUT


class UnavailableError(ToolboxError):
    """The server is down, or its breaker is open; the same call may be made again later."""

    http_status = 503
    kind = "unavailable"
    exit_code = ExitCode.TIMEOUT


class ToolboxGoneError(ToolboxError):
    """Nobody answers at the toolbox's address. Whether a call was run is not known."""

    kind = "gone"


REFUSALS: tuple[type[ToolboxError], ...] = (
    BadRequestError,
    WrongTokenError,
    UnknownToolError,
    SessionError,
    SessionLostError,
    CallConflictError,
    QuotaError,
    UnavailableError,
)


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not 200."""

    kind: str = "failed"
    message: str = ""
    retry_after_s: float = 0.0


class RefusalBody(msgspec.Struct, frozen=True, kw_only=True):
    error: Refusal = Refusal()


def refusal_of(error: ToolboxError) -> RefusalBody:
    return RefusalBody(error=Refusal(kind=error.kind, message=str(error), retry_after_s=error.retry_after_s))


def error_of(refusal: Refusal) -> ToolboxError:
    """The error that a refusal stands for, on the caller's side."""
    made = next((kind for kind in REFUSALS if kind.kind == refusal.kind), ToolboxError)
    return made(refusal.message, retry_after_s=refusal.retry_after_s)
