"""Arguments and results of the commands that toolboxes serve.

Invariants:
- Every toolbox of the run answers; the answer of a query has the rows of all of them.
- A command that changes something names a sandbox by its whole id and a session with its toolbox. So it never reaches
  another one of the same name in a later toolbox.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.protocol.message_base import Args

MOST_ROWS = 2_000
"""Of one list of one toolbox."""


class ToolServerRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool server of one toolbox."""

    id: str
    """Its name in the run file."""
    toolbox: str
    """The incarnation of the toolbox."""
    session: str
    """Session mode: shared, keyed, process."""
    state: str
    """starting, serving, down."""
    breaker: str = "closed"
    why: str = ""
    """Why it does not serve."""
    version: str = ""
    sandbox: str = ""
    """The kind of its sandboxes in words; empty for a server behind a URL."""
    tools: int = 0
    sandboxes: int = 0
    sessions: int = 0
    running: int = 0
    """Calls under way."""
    waiting: int = 0
    calls: int = 0
    """Since the start of the toolbox."""
    failed: int = 0
    """Calls that failed for infrastructure."""
    pool: int = 0
    """The most processes; 0 without a pool."""
    waiting_sessions: int = 0
    starts: int = 0
    died: int = 0
    last_death: str = ""
    last_failure: str = ""
    memory_bytes: int = 0
    """Of all its sandboxes."""
    memory_share: float = 0.0
    """Of its limit, in the fullest sandbox."""
    cpu_percent: float = 0.0


class ToolRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool, with its calls since the start of the toolbox."""

    id: str
    """`shop.lookup`"""
    toolbox: str
    server: str
    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    """JSON schema of its arguments."""
    effect: str = "session"
    """What a call changes, as the run file declares it."""
    calls: int = 0
    failed: int = 0
    """Calls that failed for infrastructure."""
    errors: int = 0
    """Calls that failed in any way."""
    p50_s: float = 0.0
    p95_s: float = 0.0
    longest_s: float = 0.0


class SandboxRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process of a tool server with its namespaces and limits."""

    id: str
    """`toolbox-0.4/shop-7`"""
    toolbox: str
    server: str
    kind: str
    """The kind of the sandbox: process, container, none."""
    state: str
    """starting, idle, session (one session has it), shared, ending."""
    sessions: int = 0
    session: str = ""
    """The only session that has it; its id is that of its record."""
    purpose: str = ""
    """Why it runs, if not for an episode: a replay, a health check, a second call."""
    doing: tuple[str, ...] = ()
    """The tools that it runs now."""
    calls: int = 0
    """Since its start."""
    pid: int = 0
    started_at: float = 0.0
    age_s: float = 0.0
    measured_at: float = 0.0
    """When the figures below were read; 0 if they were not yet."""
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_share: float = 0.0
    """How near it is to the limit of the sandbox or of one process."""
    processes: int = 0
    processes_limit: int = 0
    open_files: int = 0
    """Of the process that has the most."""
    open_files_limit: int = 0


class ToolSessionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One open session."""

    id: str
    """That of its record."""
    toolbox: str
    servers: tuple[str, ...]
    sandboxes: tuple[str, ...] = ()
    replays: bool = False
    """It replays calls for an operator."""
    opened_at: float = 0.0
    idle_s: float = 0.0
    calls: int = 0
    running: tuple[str, ...] = ()
    """The ids of its calls under way."""


class ListToolServers(Args, frozen=True):
    """-> list[ToolServerRow]"""

    server: str = ""


class ListTools(Args, frozen=True):
    """-> list[ToolRow]"""

    server: str = ""


class ListSandboxes(Args, frozen=True):
    """-> list[SandboxRow]"""

    server: str = ""
    filter: str = ""
    """A query in the language of `agentrl.filters`."""
    sort: str = ""
    limit: int = 200


class ListToolSessions(Args, frozen=True):
    """-> list[ToolSessionRow], the oldest first."""

    server: str = ""
    limit: int = 200
