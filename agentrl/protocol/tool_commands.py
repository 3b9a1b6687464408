"""Arguments and results of the commands that toolboxes serve.

Invariants:
- Every toolbox of the run answers; the answer of a query has the rows of all of them, and names those that are missing.
- A command that changes something names a sandbox by its whole id and a session with its toolbox. So it never reaches
  another one of the same name in a later toolbox.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec

from agentrl.protocol.message_base import Args
from agentrl.protocol.words import PART, PROGRAM, ServerOrSandbox, argument, option, rest

MOST_ROWS = 2_000
"""The most rows of one list of one toolbox."""
MOST_EXEC_S = 300.0

R = TypeVar("R")


class MissingUnit(msgspec.Struct, frozen=True):
    """A unit whose rows are not in an answer."""

    unit: str
    why: str
    """`did not answer within 5 s`, `backoff for 12 s: exit 1`"""


class JoinedRows(msgspec.Struct, Generic[R], frozen=True, omit_defaults=True):
    """The rows of all units that answered in time."""

    rows: list[R]
    missing: list[MissingUnit] = []


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
    unhealthy: str = ""
    """What its health check found; empty if it works or was not checked."""
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
    """The memory of all its sandboxes."""
    memory_share: float = 0.0
    """The used share of the memory limit in its fullest sandbox."""
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
    """The only session that uses it; its id is the id of its record."""
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
    """When the figures below were measured; 0 if they were not measured yet."""
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_share: float = 0.0
    """The used share of the limit of the sandbox, or of one process."""
    processes: int = 0
    processes_limit: int = 0
    open_files: int = 0
    """Open files of the process that has the most."""
    open_files_limit: int = 0


class ToolSessionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One open session."""

    id: str
    """The id of its record, or `outside/NAME/...` for a program outside of the run."""
    toolbox: str
    servers: tuple[str, ...]
    sandboxes: tuple[str, ...] = ()
    replays: bool = False
    """It replays calls for an operator, or serves a program outside of the run."""
    opened_at: float = 0.0
    idle_s: float = 0.0
    calls: int = 0
    failed: int = 0
    """Calls that ended without an answer of their tool."""
    last_failure: str = ""
    running: tuple[str, ...] = ()
    """The ids of its calls under way."""


class ToolLogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that a sandbox wrote to its log."""

    number: int
    """The number of the line among all lines of its server in its toolbox, from 1."""
    at: float
    toolbox: str
    sandbox: str
    text: str


class ExecOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program wrote that ran in a sandbox."""

    operation: str
    exit: int | None = None
    """None if it was ended because it took too long."""
    stdout: str = ""
    stderr: str = ""
    cut: bool = False
    """True if it wrote more than is kept."""
    seconds: float = 0.0
    not_started: str = ""
    """Why the sandbox could not start it; empty if it ran."""


class ListToolServers(Args, frozen=True):
    """-> JoinedRows[ToolServerRow]"""

    server: Annotated[str, PROGRAM] = ""


class ListTools(Args, frozen=True):
    """-> JoinedRows[ToolRow]"""

    typed: ClassVar[bool] = False
    server: str = ""


class ListSandboxes(Args, frozen=True):
    """-> JoinedRows[SandboxRow]"""

    server: str = ""
    filter: str = ""
    """A query in the language of `agentrl.filters`."""
    sort: str = ""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 200


class ListToolSessions(Args, frozen=True):
    """-> JoinedRows[ToolSessionRow], the oldest first."""

    server: str = ""
    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 200


class ToolLogs(Args, frozen=True):
    """-> JoinedRows[ToolLogLine], the oldest first."""

    typed: ClassVar[bool] = False
    name: str
    """A server, or a sandbox."""
    after: dict[str, int] = msgspec.field(default_factory=dict)
    """By toolbox: only lines with a greater number."""
    limit: int = 200
    """The most lines, the newest ones."""


class RestartTool(Args, frozen=True):
    """Replace the sandboxes of a server, or one of them."""

    server: Annotated[str, argument("SERVER|SANDBOX", ServerOrSandbox(), required=True)] = ""
    sandbox: Annotated[str, PART] = ""
    """A whole id. Exactly one of `server` and `sandbox` is given."""
    now: bool = False
    """End them at once, with their sessions. Otherwise each ends when no session uses it."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def problem(self) -> str:
        return "" if bool(self.server) != bool(self.sandbox) else "Name either a tool server or a sandbox."

    def incarnation_named(self) -> str:
        return self.sandbox.rpartition("/")[0]

    def title(self, seen: object = None) -> str:
        return f"restart {self.server or self.sandbox}{' at once' if self.now else ''}"


class ReleaseSession(Args, frozen=True):
    """Close a session and cancel its calls. The attempt of its record ends as an infrastructure failure."""

    session: str
    toolbox: Annotated[str, option("--toolbox", metavar="INCARNATION")]
    """The incarnation in which it is open."""
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def incarnation_named(self) -> str:
        return self.toolbox

    def title(self, seen: object = None) -> str:
        return f"release {self.session}"


class ExecInSandbox(Args, frozen=True):
    """Run a program in a sandbox, within its limits. The words are not passed to a shell."""

    sandbox: str
    """A whole id."""
    command: Annotated[tuple[str, ...], rest("PROGRAM")]
    within_s: Annotated[float, option("--within", metavar="SECONDS")] = 30.0
    note: Annotated[str, option("--note", metavar="TEXT")] = ""

    def problem(self) -> str:
        if not self.command or not self.command[0]:
            return "Name a program, such as `tools exec shop-7 -- ls -l`."
        return "" if 0 < self.within_s <= MOST_EXEC_S else f"A program may run for at most {MOST_EXEC_S:g} s."

    def incarnation_named(self) -> str:
        return self.sandbox.rpartition("/")[0]

    def title(self, seen: object = None) -> str:
        return f"run {self.command[0]} in {self.sandbox}"


class ShowExecOutput(Args, frozen=True):
    """-> JoinedRows[ExecOutput], of one or no operation."""

    typed: ClassVar[bool] = False
    operation: str


Query = tuple[str, type[Args], Any, str, str]
"""Name, arguments, result, words of the command line, help."""
QUERIES: tuple[Query, ...] = (
    (
        "list_tool_servers",
        ListToolServers,
        JoinedRows[ToolServerRow],
        "tools list",
        "Tool servers, with state and use.",
    ),
    ("list_tools", ListTools, JoinedRows[ToolRow], "tools schema", "Tools, with their schemas and calls."),
    ("list_sandboxes", ListSandboxes, JoinedRows[SandboxRow], "tools sandboxes", "Processes of tool servers."),
    (
        "list_tool_sessions",
        ListToolSessions,
        JoinedRows[ToolSessionRow],
        "tools sessions",
        "Open sessions of tool servers.",
    ),
    ("tool_logs", ToolLogs, JoinedRows[ToolLogLine], "tools logs", "What tool servers write to their logs."),
    ("show_exec_output", ShowExecOutput, JoinedRows[ExecOutput], "tools exec", "What a program in a sandbox wrote."),
)
"""The queries of the table of commands that toolboxes answer."""
