"""The toolbox: sessions, calls and their limits.

Invariants:
- A call id runs once, however often it is requested.
- Every call ends before its deadline, even if its caller disconnects.
- A refused call did not run, and its id may be used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from agentrl.config.data_plane import ToolServer
from agentrl.policies.replay_verdicts import ANY_TOOL, ToolEffect, merged_effects
from agentrl.sandboxes import sandbox_cgroups
from agentrl.sandboxes.network_access import NetworkAccess, Refusals
from agentrl.sandboxes.sandbox_choice import choose
from agentrl.toolbox.api_messages import (
    BadRequestError,
    CallAnswer,
    CallConflictError,
    CallTool,
    Opened,
    OpenSession,
    QuotaError,
    ServerInfo,
    SessionError,
    ToolboxError,
    ToolInfo,
    UnavailableError,
    UnknownToolError,
)
from agentrl.toolbox.call_outcomes import call_server
from agentrl.toolbox.call_registry import Call, CallRegistry
from agentrl.toolbox.call_turns import call_in_turn, refuse_if_broken
from agentrl.toolbox.circuit_breaker import Breaker, BreakerRule
from agentrl.toolbox.connection_starts import (
    FAILURES,
    NOT_YET,
    STARTS_AT_ONCE,
    ConnectionSource,
    ConnectionStarter,
    connector,
)
from agentrl.toolbox.fresh_session_retry import FreshSessionRetry
from agentrl.toolbox.health_checks import HealthChecks
from agentrl.toolbox.live_sandboxes import LiveSandboxes
from agentrl.toolbox.mcp_connection import SessionForgottenError
from agentrl.toolbox.server_packages import ServerPackages
from agentrl.toolbox.server_pool import OwnProcesses, ProcessPool
from agentrl.toolbox.sessions import Lease, Server, Session, reserve
from agentrl.toolbox.shared_connection import SharedConnection
from agentrl.toolbox.tool_statistics import ToolboxStatistics
from agentrl.toolservers.user_names import END_TOOL
from agentrl.tracing import spans

log = logging.getLogger("toolbox")
TIDY_EVERY_S = 5.0
SLOW_START_S = 10.0
"""A server that has not served for this long is reported as a problem, even if it may still start."""
CANCELLED = CallAnswer(status="cancelled", content="The session was closed.")
T = TypeVar("T")
CALLS_AT_ONCE, CALLS_OVER_HTTP = 32, 16
MOST_OPEN_WAIT_S = 300.0
MOST_ID_CHARS = 512
ENDED_WITHIN_S = 4.0
"""How long a server may take to end the state of a session; less than a sampler waits for it."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of the whole toolbox; beyond them it answers 429. The limits of a server are in its configuration."""

    sessions: int = 10_000
    calls_of_session: int = 64
    """At the same time: the most that one turn may have."""
    waiting_of_server: int = 2_000
    idle_s: float = 900.0
    """A session without calls for this long is closed: its episode has died."""


class Toolbox:
    """`running` supervises the servers; the other methods serve the HTTP API."""

    def __init__(
        self,
        servers: Mapping[str, ToolServer],
        *,
        run_dir: Path,
        name: str = "",
        quotas: Quotas | None = None,
        breaker: BreakerRule | None = None,
        secret_files: Sequence[Path] = (),
    ) -> None:
        """`name` is the incarnation. A server sees one of the `secret_files` only if its configuration names that
        file."""
        self._name = name
        self._quotas = quotas or Quotas()
        self._gate = asyncio.Semaphore(STARTS_AT_ONCE)
        self._network = NetworkAccess()
        self.sandboxes = LiveSandboxes(name)
        self._secret_files = secret_files
        self._servers = {key: self._make(key, server, run_dir, breaker) for key, server in servers.items()}
        self.health = HealthChecks(self._servers)
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks in which servers end the state of closed sessions."""
        self._memory = CallRegistry()
        self.statistics = ToolboxStatistics()
        self.draining = False
        """It takes no new sessions and ends when the open ones have ended."""
        self.paused = False
        """It takes no new sessions for now."""

    def _make(self, name: str, config: ToolServer, run_dir: Path, breaker: BreakerRule | None) -> Server:
        def take_tools(tools: tuple[ToolInfo, ...]) -> None:
            server.take_tools(tools)

        plain = connector(name, config, run_dir, self._secret_files, self._network)
        connect = self.sandboxes.watched(name, config, plain)
        packages = ServerPackages(name, config, run_dir)
        starter = ConnectionStarter(connect, self._gate, take_tools, within_s=float(config.start_s), packages=packages)
        keeper: ConnectionSource = (
            ProcessPool(starter, config.pool) if config.session == "process" else SharedConnection(starter)
        )
        at_once = config.calls or (CALLS_OVER_HTTP if config.address else CALLS_AT_ONCE)
        retry = FreshSessionRetry(config, connect, self._gate)
        own = OwnProcesses(connect, self._gate, config.pool, within_s=float(config.start_s))
        pooled = config.session == "process"
        server = Server(name, config, keeper, Breaker(breaker), at_once, retry, connect, own if pooled else None)
        return server

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Supervise all servers while the body runs. When the body ends, all their processes are ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                keeping = [
                    tasks.create_task(server.keeper.run(), name=f"keep {server.name}")
                    for server in self._servers.values()
                ]
                keeping.append(tasks.create_task(self._tidy(), name="close idle sessions"))
                keeping.append(tasks.create_task(self._network.run(), name="network of sandboxes"))
                keeping.append(tasks.create_task(self.sandboxes.keep_measured(), name="measure sandboxes"))
                keeping.append(tasks.create_task(self.health.run(), name="check tool servers"))
                try:
                    yield
                finally:
                    await self._end()
                    for task in keeping:
                        task.cancel()
        except BaseExceptionGroup as group:
            # Errors of the body reach the caller unchanged.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            sandbox_cgroups.leave()

    # ---- what there is ----

    @property
    def name(self) -> str:
        return self._name

    @property
    def all_servers(self) -> Mapping[str, Server]:
        return self._servers

    @property
    def sessions(self) -> Mapping[str, Session]:
        return self._sessions

    @property
    def open_sessions(self) -> int:
        return len(self._sessions) + len(self._opening)

    @property
    def idle_s(self) -> float:
        """The time since the last use of any session."""
        now = time.monotonic()
        return 0.0 if self._opening else min((session.idle_s(now) for session in self._sessions.values()), default=0.0)

    @property
    def running_calls(self) -> int:
        return sum(server.running for server in self._servers.values())

    @property
    def call_slots(self) -> int:
        """How many calls may run at once."""
        return sum(server.at_once for server in self._servers.values())

    def servers(self) -> tuple[ServerInfo, ...]:
        return tuple(
            msgspec.structs.replace(
                _info(server, self._network.refusals(server.name)),
                unhealthy=self.health.unhealthy.get(server.name, ""),
                memory_share=self.sandboxes.memory_share(server.name),
                fullest=self.sandboxes.fullest(server.name),
            )
            for server in self._servers.values()
        )

    def tools(self, server: str = "") -> tuple[ToolInfo, ...]:
        chosen = [self.server(server)] if server else list(self._servers.values())
        return tuple(tool for each in chosen for tool in each.tools.values())

    def effect(self, tool: ToolInfo) -> ToolEffect | Literal[""]:
        """The effect of a call, from the run file or otherwise from the server; empty if neither declares it."""
        known = merged_effects({tool.name: tool.effect}, self.server(tool.server).config.effects)
        return known.get(tool.name, known.get(ANY_TOOL, ""))

    # ---- sessions ----

    async def open(self, wanted: OpenSession) -> Opened:
        """Reserve all servers of an episode. A repeated request gets the open session."""
        if not 0 < len(wanted.id) <= MOST_ID_CHARS:
            raise BadRequestError(f"A session's id has between 1 and {MOST_ID_CHARS} characters.")
        session = self._sessions.get(wanted.id)
        created = session is None and wanted.id not in self._opening
        if session is None:
            opening = self._opening.get(wanted.id) or self._begin_to_open(wanted)
            closed = SessionError(f"The session {wanted.id} was closed while it was being opened.")
            session = await _joined(opening, closed)
        if set(session.servers) != set(wanted.servers):
            raise SessionError(f"The session {wanted.id} is open with {', '.join(session.servers) or 'no servers'}.")
        session.used_at = time.monotonic()
        begun = tuple(session.begun)
        return Opened(id=wanted.id, servers=session.servers, created=created, calls=begun, toolbox=self._name)

    def _begin_to_open(self, wanted: OpenSession) -> asyncio.Task[Session]:
        if why := self._memory.closed(wanted.id):
            raise SessionError(f"The session {wanted.id} was closed: {why}.")
        if self.draining or self.paused:
            why = "is about to end" if self.draining else "is paused"
            raise UnavailableError(f"This toolbox {why}.", retry_after_s=1.0)
        servers = [self.server(name) for name in dict.fromkeys(wanted.servers)]
        if self.open_sessions >= self._quotas.sessions:
            raise QuotaError(f"There are {self._quotas.sessions} sessions open already.", retry_after_s=1.0)
        for server in servers if not wanted.replays else ():
            refuse_if_broken(server)
        task = asyncio.create_task(self._open(wanted, servers), name=f"open {wanted.id}")
        self._opening[wanted.id] = task
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _open(self, wanted: OpenSession, servers: list[Server]) -> Session:
        try:
            wait_s = min(max(0.0, wanted.wait_s), MOST_OPEN_WAIT_S)
            leases = await reserve(servers, wait_s, replays=wanted.replays)
            session = self._sessions[wanted.id] = Session(
                wanted.id, leases, replays=wanted.replays, most_idle_s=wanted.idle_s
            )
        finally:
            self._opening.pop(wanted.id, None)
        return session

    async def close(self, id: str, why: str = "it was closed by its episode", *, by_operator: bool = False) -> None:
        """Close a session and cancel its calls. To close it twice is harmless. Calls that an operator cancels are an
        infrastructure failure, so that the attempt does not train."""
        opening = self._opening.get(id)
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        session = self._sessions.pop(id, None)
        if session is None:
            return
        session.closing = True
        session.released = by_operator
        if by_operator:
            text = f"The session was {why}."
            session.cancelled = CallAnswer(status="cancelled", error_class="infrastructure", content=text)
        self._memory.close(id, why)
        tasks = [call.task for call in session.running if call.task is not None]
        for task in tasks:
            task.cancel()
        ending = []
        for lease in session.leases.values():
            if self._keeps_state(lease):
                ending.append(self._give_back(id, lease))
            else:
                lease.end()
        if tasks or ending:
            await asyncio.wait([*tasks, *ending])
        for call in session.running:
            # A task that was cancelled before its first step recorded no answer.
            self._memory.answered(call, session.cancelled)

    @staticmethod
    def _keeps_state(lease: Lease) -> bool:
        """Whether its server must end the state that it keeps for the session."""
        return lease.used and END_TOOL in lease.server.tools and not lease.held.gone.is_set()

    def _give_back(self, session: str, lease: Lease) -> asyncio.Task[None]:
        """Gives everything back, even if the caller disconnects."""
        task = asyncio.create_task(_end_in_server(session, lease), name=f"end {session} in {lease.server.name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def forget(self, id: str) -> None:
        """Forget a closed session and its calls, so that their ids can be used again."""
        self._memory.forget(id)

    # ---- calls ----

    async def call(self, tool: str, wanted: CallTool) -> CallAnswer:
        """Call `tool`, which is `server.tool`. The call goes on if the caller disconnects, and can be joined."""
        call = self._memory.find(wanted.call, wanted.session, tool, wanted.arguments)
        if call is None:
            call = self._begin(tool, wanted)
        if call.task is not None:
            return await _joined(call.task, CANCELLED)
        if call.answer is None:
            raise CallConflictError(f"The call {wanted.call} was answered before; its answer is not kept any more.")
        return call.answer

    def _begin(self, tool: str, wanted: CallTool) -> Call:
        if not 0 < len(wanted.call) <= MOST_ID_CHARS:
            raise BadRequestError(f"A call's id has between 1 and {MOST_ID_CHARS} characters.")
        info = self.tool(tool)
        session = self._sessions.get(wanted.session)
        if session is None:
            why = self._memory.closed(wanted.session)
            state = f"was closed: {why}" if why else "is not open"
            raise SessionError(f"The session {wanted.session} {state}.")
        lease = session.leases.get(info.server)
        if lease is None:
            raise SessionError(f"The session {wanted.session} has not reserved {info.server}.")
        if len(session.running) >= self._quotas.calls_of_session:
            raise QuotaError(f"The session has {len(session.running)} calls under way already.", retry_after_s=0.5)
        if lease.server.waiting >= self._quotas.waiting_of_server:
            raise QuotaError(f"{lease.server.waiting} calls wait for {info.server} already.", retry_after_s=1.0)
        if not session.replays:
            refuse_if_broken(lease.server)
        call = Call(wanted.call, wanted.session, tool, wanted.arguments)
        call.task = asyncio.create_task(self._run(call, info, session, lease, wanted.timeout_s), name=wanted.call)
        # The caller may have disconnected: mark the exception as seen.
        call.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._memory.begin(call)
        session.running.add(call)
        session.begun.append(call.id)
        return call

    async def _run(self, call: Call, tool: ToolInfo, session: Session, lease: Lease, requested_s: float) -> CallAnswer:
        """Run a call and record its answer. A ToolboxError means that it did not run."""
        try:
            with spans.span(f"run {tool.id}", kind="server", gen_ai__tool__name=tool.id) as span:
                answer = await call_in_turn(call, tool, lease, requested_s, replays=session.replays)
                span.set(gen_ai__tool__call__id=call.id, agentrl__session=session.id, agentrl__status=answer.status)
                if answer.error_class == "infrastructure":
                    span.fail(answer.status)
        except asyncio.CancelledError:
            if not session.closing:
                raise
            again = "cancelled" if call.again else ""
            answer = msgspec.structs.replace(session.cancelled, tried_again=again)
        except BaseException:
            self._memory.refused(call)
            raise
        finally:
            session.running.discard(call)
            session.used_at = time.monotonic()
        self._memory.answered(call, answer)
        session.note(answer)
        if not session.replays and not session.released:
            self.statistics.add(tool.id, answer, call=call.id, session=session.id)
        return answer

    # ---- inside ----

    def server(self, name: str) -> Server:
        """Raises UnknownToolError."""
        try:
            return self._servers[name]
        except KeyError:
            known = ", ".join(self._servers) or "none"
            raise UnknownToolError(f"There is no tool server {name!r}; known are: {known}.") from None

    def tool(self, id: str) -> ToolInfo:
        """The tool of `SERVER.TOOL`. Both names may have dots: the longest server name that fits counts."""
        fitting = [name for name in self._servers if id.startswith(f"{name}.")]
        if not fitting:
            raise UnknownToolError(f"There is no tool {id!r}; a tool is called as SERVER.TOOL.")
        server = self._servers[max(fitting, key=len)]
        found = server.tools.get(id[len(server.name) + 1 :])
        if found is not None:
            return found
        if not server.tools and not server.keeper.serving:
            raise UnavailableError(f"{server.name} does not serve: {server.keeper.why}.", retry_after_s=1.0)
        known = ", ".join(server.tools) or "none"
        raise UnknownToolError(f"{server.name} has no tool {id[len(server.name) + 1 :]!r}; it has: {known}.")

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(min(TIDY_EVERY_S, self._quotas.idle_s / 4))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                most_s = session.most_idle_s or self._quotas.idle_s
                if session.idle_s(now) > most_s:
                    await self.close(session.id, f"it was idle for {most_s:g} s")
            self._memory.tidy()

    async def _end(self) -> None:
        self.draining = True
        for id in [*self._opening, *self._sessions]:
            await self.close(id, "the toolbox ended")
        if self._ending:
            await asyncio.wait(self._ending)
        for server in self._servers.values():
            if server.own is not None:
                await server.own.end()


async def _end_in_server(session: str, lease: Lease) -> None:
    """End the state that the server keeps, even for a session whose calls were cancelled."""
    try:
        answer = await call_server(
            lease.held, END_TOOL, {}, lease.server.config, session=session, call="", timeout_s=ENDED_WITHIN_S
        )
        if answer.status != "ok":
            log.warning("the state of %s in %s did not end well: %s", session, lease.server.name, answer.content)
    except SessionForgottenError:
        pass  # the state ended with it
    finally:
        lease.end()


async def _joined(task: asyncio.Task[T], otherwise: T | ToolboxError) -> T:
    """Wait for a task that goes on without its caller; `otherwise` if the task was cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        me = asyncio.current_task()
        if not task.cancelled() or (me is not None and me.cancelling()):
            raise
        if isinstance(otherwise, ToolboxError):
            raise otherwise from None
        return otherwise


def _info(server: Server, refusals: Refusals) -> ServerInfo:
    serving = server.keeper.serving
    down_s = 0.0 if serving else server.keeper.down_s
    why = "" if serving else server.keeper.why
    if down_s > SLOW_START_S and server.keeper.slow_start:
        why = f"it was started more than {SLOW_START_S:g} s ago and does not answer ({server.keeper.slow_start})"
    pool = server.keeper if isinstance(server.keeper, ProcessPool) else None
    sandbox = None if server.config.address else choose(server.config.sandbox)
    return ServerInfo(
        id=server.name,
        session=server.config.session,
        version=server.keeper.version,
        state="serving" if serving else "starting" if server.keeper.why == NOT_YET else "down",
        breaker=str(server.breaker.state(time.monotonic())),
        why=why,
        sandbox=sandbox.sentence if sandbox else "",
        sandbox_is_weaker=bool(sandbox and sandbox.lacks),
        refused=refusals.count,
        last_refusal=refusals.last,
        starts=server.keeper.starts,
        problem=why if down_s > SLOW_START_S or server.keeper.failures >= FAILURES else "",
        tools=len(server.tools),
        sessions=server.sessions,
        running=server.running,
        waiting=server.waiting,
        pool=pool.size if pool else 0,
        ready=pool.ready if pool else 0,
        coming=pool.coming if pool else 0,
        waited=pool.waited if pool else 0,
        waiting_sessions=pool.waiting if pool else 0,
        short_s=pool.short_s if pool else 0.0,
        died=server.keeper.died,
        died_lately=server.keeper.died_lately,
        last_death=server.keeper.last_death,
        last_failure=server.last_failure,
    )
