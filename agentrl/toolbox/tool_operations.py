"""Executes the commands of operators on tool servers: restart, release, and run a program in a sandbox.

Invariants:
- A preview changes nothing and raises the errors that the execution would raise.
- An operation is executed once, however often it is requested.
- Calls that an operator ends are never the policy's fault: they end as infrastructure failures.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.config.secrets import is_reference
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import few
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.tool_commands import ExecInSandbox, ExecOutput, ReleaseSession, RestartTool, ShowExecOutput
from agentrl.sandboxes import sandbox_exec
from agentrl.toolbox.live_sandboxes import LiveSandbox
from agentrl.toolbox.mcp_connection import Connection
from agentrl.toolbox.sessions import Session
from agentrl.toolbox.toolbox import Toolbox

KEPT = 64
"""Operations whose results are kept, for a repeated request."""
ANSWER_SHARE = 0.5
"""The share of the time of a request that is spent on waiting for a program."""


@dataclass(frozen=True, slots=True)
class Operation:
    preview: Callable[[Any], Effect]
    carry_out: Callable[[Any, AskUnit], Awaitable[Done]]


class ToolOperations:
    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._restarted: OrderedDict[str, list[Connection]] = OrderedDict()
        self._released: OrderedDict[str, Done] = OrderedDict()
        self._programs: OrderedDict[str, asyncio.Task[ExecOutput]] = OrderedDict()
        self.table: dict[str, Operation] = {
            "restart_tool": Operation(self._preview_restart, self._restart),
            "release_session": Operation(self._preview_release, self._release),
            "exec_in_sandbox": Operation(self._preview_exec, self._exec),
        }

    # ---- restart ----

    def _preview_restart(self, args: RestartTool) -> Effect:
        chosen = self._to_restart(args)
        names = tuple(self._name(each) for each in chosen)
        used = [(each, self._sessions_of(each)) for each in chosen]
        # Sessions of a stateless server continue with the next process.
        hit = [session.id for each, sessions in used for session in sessions if not self._is_stateless(each)]
        if args.now:
            loses = few([f"the session of {id} ends, and its attempt is made again" for id in dict.fromkeys(hit)])
            return Effect(starts=names, kills=names, loses=loses)
        waits = f"{counted(len(set(hit)), 'sessions')} end first" if hit else "no session waits"
        return Effect(starts=names, drains=names, notes=(waits,))

    async def _restart(self, args: RestartTool, operation: AskUnit) -> Done:
        chosen = self._restarted.get(operation.id)
        if chosen is None:
            chosen = self._to_restart(args)
            _keep(self._restarted, operation.id, chosen)
            for connection in chosen:
                connection.retired = True
            for server in self._toolbox.all_servers.values():
                server.keeper.replace_retired()
            if args.now:
                why = f"it was restarted by {operation.who or 'an operator'}"
                await asyncio.gather(*(connection.close(why) for connection in chosen))
        left = [each for each in chosen if not each.is_over]
        if left:
            who = dict.fromkeys(session.id for each in left for session in self._sessions_of(each))
            waits = f"waits for {', '.join(few(list(who)))}" if who else "ends its processes"
            return Done(under_way=f"{self._toolbox.name} {waits}")
        return Done((f"{self._toolbox.name} replaced {counted(len(chosen), 'processes')}",), {})

    def _to_restart(self, args: RestartTool) -> list[Connection]:
        if args.sandbox:
            sandbox = self._sandbox(args.sandbox)
            if sandbox.connection.purpose or any(each.replays for each in self._sessions_of(sandbox.connection)):
                raise RefusedError(f"{sandbox.id} serves no episode and ends by itself.")
            return [sandbox.connection]
        return [
            connection
            for connection in self._toolbox.server(args.server).keeper.connections()
            if not connection.is_over
        ]

    # ---- release ----

    def _preview_release(self, args: ReleaseSession) -> Effect:
        session = self._session(args)
        calls = f", and {counted(len(session.running), 'calls')} under way end as cancelled" if session.running else ""
        replays = "its replay cannot go on" if session.replays else "the attempt of its record is made again"
        return Effect(loses=(f"the session {session.id} of {', '.join(session.servers)} ends{calls}; {replays}",))

    async def _release(self, args: ReleaseSession, operation: AskUnit) -> Done:
        if operation.id not in self._released:
            session = self._session(args)
            servers = ", ".join(session.servers)
            _keep(self._released, operation.id, Done((f"{session.id} released {servers}",), {}))
            await self._toolbox.close(session.id, f"released by {operation.who or 'an operator'}", by_operator=True)
        return self._released[operation.id]

    def _session(self, args: ReleaseSession) -> Session:
        if args.toolbox not in ("", self._toolbox.name) or (found := self._toolbox.sessions.get(args.session)) is None:
            raise UnknownNameError(
                f"No session {args.session!r} is open.", hint="`agentrl tools sessions` lists the open ones."
            )
        return found

    # ---- run a program ----

    def _preview_exec(self, args: ExecInSandbox) -> Effect:
        sandbox = self._sandbox(args.sandbox)
        if sandbox.kind == "none":
            raise RefusedError(f"{sandbox.id} has no sandbox to run a program in.", hint="Use a shell of its host.")
        sessions = self._sessions_of(sandbox.connection)
        whose = f", which serves {', '.join(few([session.id for session in sessions]))}" if sessions else ""
        return Effect(changes=(f"runs `{shlex.join(args.command)}` in {sandbox.id}{whose}",))

    async def _exec(self, args: ExecInSandbox, operation: AskUnit) -> Done:
        task = self._programs.get(operation.id)
        if task is None:
            self._preview_exec(args)
            task = asyncio.create_task(self._run_program(args, operation.id), name=f"exec {operation.id}")
            _keep(self._programs, operation.id, task)
        await asyncio.wait([task], timeout=operation.within_s * ANSWER_SHARE)
        if not task.done():
            return Done(under_way=f"{args.command[0]} runs in {args.sandbox}")
        ran = task.result()
        program = args.command[0]
        if ran.exit is None:
            return Done((f"{program} was ended, because it took longer than {args.within_s:g} s",))
        if ran.not_started:
            return Done((f"{program} was not started: {ran.not_started}",), {"exit": ran.exit})
        return Done((f"{program} exited with {ran.exit} after {ran.seconds:.1f} s",), {"exit": ran.exit})

    async def _run_program(self, args: ExecInSandbox, id: str) -> ExecOutput:
        sandbox = self._sandbox(args.sandbox)
        launch, first = sandbox.process.launch, sandbox.process.pid or 0
        secret = [name for name, value in sandbox.config.env.items() if is_reference(value)]
        ran = await sandbox_exec.run_inside(
            launch,
            sandbox.config.sandbox,
            first,
            args.command,
            within_s=args.within_s,
            secrets=sandbox_exec.secrets_of(launch.env, secret),
            mark=id,
        )
        return ExecOutput(id, ran.exit, ran.stdout, ran.stderr, ran.cut, ran.seconds, ran.not_started)

    def output(self, args: ShowExecOutput) -> list[ExecOutput]:
        """What the program of an operation wrote; empty if it did not run here, or has not ended."""
        task = self._programs.get(args.operation)
        return [task.result()] if task is not None and task.done() and not task.exception() else []

    # ---- inside ----

    def _sandbox(self, id: str) -> LiveSandbox:
        found = self._toolbox.sandboxes.find(id)
        if found is None:
            raise UnknownNameError(f"No sandbox {id!r} lives.", hint="`agentrl tools sandboxes` lists those that do.")
        return found

    def _sessions_of(self, connection: Connection) -> list[Session]:
        return [
            session
            for session in self._toolbox.sessions.values()
            if any(lease.held is connection for lease in session.leases.values())
        ]

    def _name(self, connection: Connection) -> str:
        sandbox = self._toolbox.sandboxes.of_connection(connection)
        return sandbox.id if sandbox is not None else connection.name

    def _is_stateless(self, connection: Connection) -> bool:
        return self._toolbox.server(connection.name).config.session == "shared"


def _keep(kept: OrderedDict[str, Any], id: str, value: object) -> None:
    kept[id] = value
    while len(kept) > KEPT:
        kept.popitem(last=False)
