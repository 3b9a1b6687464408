"""Messages of the toolbox's HTTP API, and the errors by which it refuses a request.

Invariants:
- A call that ran, or may have run, is answered with 200 and its status.
- A refusal has another HTTP status and means that nothing ran.
- A request has only the fields that it needs: while a run is upgraded, a toolbox of the release before refuses others.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentrl.errors import AgentrlError, ExitCode
from agentrl.policies.outcomes import AnswerStatus, Fault
from agentrl.policies.replay_verdicts import ToolEffect


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    server: str
    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of its arguments."""
    effect: ToolEffect | Literal[""] = ""
    """What a call changes, as the server declares it; empty if it declares nothing. The run file overrides it."""
    reads_only: bool = False
    """The hints of the server say that a call changes nothing of value."""
    example: dict[str, Any] | None = None
    """Arguments with which the server says that it can be tried."""

    @property
    def id(self) -> str:
        """`shop.lookup`"""
        return f"{self.server}.{self.name}"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One server, and whether it can be used."""

    id: str
    session: str
    """Session mode: how it keeps episodes apart."""
    version: str = ""
    """What the server reports about itself: name and version. Empty before its first start."""
    state: Literal["starting", "serving", "down"]
    breaker: str
    why: str = ""
    """Why it does not serve, with its last lines."""
    sandbox: str = ""
    """The sandbox of its processes, and why it is weaker than configured; empty for a server behind a URL."""
    sandbox_is_weaker: bool = False
    refused: int = 0
    """Connections that the network proxy refused to its sandboxes."""
    last_refusal: str = ""
    starts: int = 0
    """Number of starts, over all processes of a pool."""
    problem: str = ""
    """Why a person should look at it: it does not start. A single failed start may be chance and is not reported."""
    tools: int = 0
    sessions: int = 0
    running: int = 0
    waiting: int = 0
    pool: int = 0
    """Processes of a pool; 0 without one."""
    ready: int = 0
    """Processes of the pool that no session has yet."""
    coming: int = 0
    """Processes of the pool that are being started."""
    waited: int = 0
    """Sessions that found no process ready, since the start."""
    waiting_sessions: int = 0
    """Sessions that wait for a process of the pool."""
    short_s: float = 0.0
    """How long there have been more sessions than processes."""
    died: int = 0
    """Unplanned ends of its processes."""
    last_death: str = ""
    died_lately: int = 0
    """How many of these ends were within five minutes."""
    unhealthy: str = ""
    """What its health check found; empty if it works or was not checked."""
    memory_share: float = 0.0
    """The used share of the memory limit in its fullest sandbox, in steps of 5 %."""
    fullest: str = ""
    """The fullest sandbox and its usage; empty below half of the limit."""
    last_failure: str = ""
    """The newest failure of a call for infrastructure; a circuit breaker hides it from later calls."""

    @property
    def usable(self) -> bool:
        return self.state == "serving" and self.breaker != "open"


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    servers: tuple[str, ...] = ()
    wait_s: float = 30.0
    """How long to wait for a busy server."""
    replays: bool = False
    """It replays recorded calls, for an operator. It takes no process of a pool that episodes need, its calls are in no
    statistics, and a circuit breaker neither refuses nor counts them."""
    idle_s: float = 0.0
    """Closed after this long without a call; 0: the limit of the toolbox."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    servers: tuple[str, ...]
    created: bool
    """False if it was already open. If it is True for a session that should exist, its state is lost."""
    calls: tuple[str, ...] = ()
    """The ids of all calls that it has begun to run. If the caller does not know one of them, the state of the session
    differs from what the caller expects."""
    toolbox: str = ""
    """The incarnation of the toolbox."""


class CallTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    session: str
    call: str
    """An id from the caller. A repeated id joins the call or gets its answer; the call never runs twice."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    timeout_s: float = 0.0
    """0 means the limit of the server, which is also the maximum."""


NotAgain = Literal[
    "no: fails for others", "no: not alone", "no: told by the tool", "no: no session", "no: breaker", "no: hurried"
]
"""Why a failed call was not repeated in a fresh session.

The tool failed for others within a minute (an outage); several calls were lost together; the tool itself reported the
fault; no fresh session could be opened; the breaker was not closed; the caller gave less time than the server has.
"""


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: AnswerStatus
    error_class: Fault = ""
    content: str = ""
    """The result as text, or a sentence about what went wrong."""
    images: dict[str, bytes] = {}
    """The images that the text names, by the hash of their bytes."""
    latency_s: float = 0.0
    """The latency of the server, without the wait in the queue."""
    reason: str = ""
    """For `lost`: what was lost; otherwise empty."""
    alone: bool = True
    """For `lost`: whether it was the only lost call. If several were lost, any of them may be the cause."""
    left_out: int = 0
    """Characters cut out of the middle."""
    breaker_open: bool = False
    """True for an infrastructure failure after which the circuit breaker is open, so the call itself is probably not
    the cause."""
    tried_again: AnswerStatus | NotAgain | Literal[""] = ""
    """The status of the same call in a fresh session, or why a failed call was not repeated. Empty if nothing
    failed, and without `try_again`."""

    @property
    def size(self) -> int:
        """Characters and bytes."""
        return len(self.content) + sum(map(len, self.images.values()))


class ToolboxError(AgentrlError):
    """The toolbox refuses, or cannot be reached. The call did not run."""

    http_status = 500
    kind = "failed"
    retry_after_s: float = 0.0

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class BadRequestError(ToolboxError):
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
    """The state of this session died with its server; the session is unusable."""

    kind = "session_lost"


class CallConflictError(SessionError):
    """The call's id belongs to another call."""

    kind = "call_conflict"


class QuotaError(ToolboxError):
    """A limit is reached; try again later."""

    http_status = 429
    kind = "quota"
    exit_code = ExitCode.TIMEOUT


class UnavailableError(ToolboxError):
    """The server is down, or its breaker is open; try again later."""

    http_status = 503
    kind = "unavailable"
    exit_code = ExitCode.TIMEOUT


class ToolboxGoneError(ToolboxError):
    """The toolbox does not answer; it is unknown whether a call ran."""

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
    """The reason of a refusal: the body of every answer other than 200."""

    kind: str = "failed"
    message: str = ""
    retry_after_s: float = 0.0


class RefusalBody(msgspec.Struct, frozen=True, kw_only=True):
    error: Refusal = Refusal()


def refusal_of(error: ToolboxError) -> RefusalBody:
    return RefusalBody(error=Refusal(kind=error.kind, message=str(error), retry_after_s=error.retry_after_s))


def error_of(refusal: Refusal) -> ToolboxError:
    """The error for a refusal, on the caller's side."""
    made = next((kind for kind in REFUSALS if kind.kind == refusal.kind), ToolboxError)
    return made(refusal.message, retry_after_s=refusal.retry_after_s)
