"""What clients ask and want.

Invariants: permission is looked up for every message; a command is refused before anything changes, or durable before
it is answered; an id is executed once; a request always gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from agentrl import __version__
from agentrl.control.commands import previews
from agentrl.control.commands.acts import Act
from agentrl.control.context import Context
from agentrl.control.handlers.client_queries import Handler
from agentrl.control.handlers.served_commands import Serving
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, DiskError, ExitCode, ProtocolError
from agentrl.protocol import commands, messages
from agentrl.protocol.commands import COMMANDS, Accepted, CommandSpec
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import (
    PROTOCOL_MAJOR,
    ErrorReply,
    Permission,
    Refused,
    Reply,
    SnapshotEnd,
    SnapshotRow,
    Welcome,
)
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import decode_as, encode, raw
from agentrl.transport.hub import Peer

log = logging.getLogger(__name__)

UNFORESEEN = "The coordinator failed on this; its log says why."
"""What is said at the boundary of a request, where the log has the whole story."""

AskedPreview = Callable[[str, Any], Awaitable[Effect]]


class ClientHandler:
    def __init__(
        self,
        context: Context,
        queries: dict[str, Handler],
        acts: dict[str, Act],
        asked_previews: Mapping[str, AskedPreview],
        serving: Serving,
    ) -> None:
        self._context = context
        self._queries = queries
        self._acts = acts
        self._asked_previews = asked_previews
        """Previews for which somebody else has to be asked first."""
        self._serving = serving
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._serving.close()

    def hello(self, peer: Peer, hello: messages.ClientHello) -> None:
        context, run = self._context, self._context.run
        may = self._permission(peer)
        refusal: Refused | None = None
        if hello.major != PROTOCOL_MAJOR:
            refusal = Refused(
                ExitCode.VERSION,
                f"You speak protocol {hello.major} (agentrl {hello.version}), "
                f"the coordinator {PROTOCOL_MAJOR} (agentrl {__version__}).",
                "Use the same version on both sides.",
            )
        elif hello.run and hello.run != run.uuid:
            refusal = Refused(ExitCode.VERSION, f"This is run {run.name} ({run.uuid}), not {hello.run}.")
        elif may is None or may is Permission.UNIT:
            refusal = Refused(ExitCode.KEY_REFUSED, "This key may not ask or command anything.")
        if refusal is not None:
            context.peers.send(peer, refusal)
            return
        who = hello.who if peer.local else f"{peer.key_name}"
        context.peers.welcome(peer, Known(Kind.CLIENT, who[:120] or "unknown"))
        assert may is not None
        context.peers.send(
            peer,
            Welcome(
                epoch=context.epoch,
                run=run.uuid,
                run_name=run.name,
                now_ct=context.clock.now(),
                permission=may,
                server_version=__version__,
            ),
        )

    def _permission(self, peer: Peer) -> Permission | None:
        if peer.local:
            return Permission.ADMIN
        return self._context.keyring.permission(peer.key_name or "")

    # ---- requests ----

    def request(self, peer: Peer, known: Known, request: messages.Request) -> None:
        try:
            spec = self._admit(peer, request)
            args = self._args(spec, request)
            if spec.name == "snapshot":
                self._snapshot(peer, request.id, args)
            elif spec.served_by and spec.mutates:
                self._later(peer, request.id, self._have_served(known, request, spec, args))
            elif spec.served_by:
                self._later(peer, request.id, self._serving.ask(spec, request, known.name))
            elif spec.mutates:
                self._mutate(peer, known, request, spec, args)
            else:
                self._answer(peer, request.id, self._queries[spec.name](args))
        except AgentrlError as failed:
            self._fail(peer, request.id, failed)
        except Exception:
            log.exception("%s (%s) failed", request.name, request.id)
            self._fail(peer, request.id, AgentrlError(UNFORESEEN))

    def _admit(self, peer: Peer, request: messages.Request) -> CommandSpec:
        spec = COMMANDS.get(request.name)
        if spec is None:
            raise _error(
                ExitCode.UNKNOWN,
                f"The coordinator (agentrl {__version__}) knows no command {request.name[:60]!r}.",
                "Use the same version on both sides.",
            )
        may = self._permission(peer)
        if may is None:
            raise _error(ExitCode.KEY_REFUSED, f"The key {peer.key_name} was revoked.", "An admin can make another.")
        if not may.allows(spec.permission):
            raise _error(
                ExitCode.REFUSED,
                f"`agentrl {spec.cli}` needs the permission {spec.permission}; the key {peer.key_name} is {may}.",
                f"Ask an admin for a key: `agentrl keys new NAME --permission {spec.permission}`.",
            )
        late = self._context.clock.now() - request.deadline_ct if request.deadline_ct is not None else 0.0
        if late > 0:
            raise _error(
                ExitCode.REFUSED,
                f"The command {spec.cli} came {late:.1f} s after its deadline; nothing was done.",
                "Send it again if you still want it.",
            )
        return spec

    def _args(self, spec: CommandSpec, request: messages.Request) -> Any:
        try:
            return decode_as(spec.args, request.args)
        except ProtocolError as broken:
            raise _error(ExitCode.USAGE, f"The arguments of {spec.cli} are wrong: {broken.message}", "") from broken

    def _answer(self, peer: Peer, id: str, result: Any) -> None:
        if asyncio.iscoroutine(result):
            self._later(peer, id, result)
        else:
            self._context.peers.send(peer, Reply(id, raw(result)))

    def _later(self, peer: Peer, id: str, awaitable: Any) -> None:
        async def finish() -> None:
            try:
                self._context.peers.send(peer, Reply(id, raw(await awaitable)))
            except AgentrlError as failed:
                self._fail(peer, id, failed)
            except Exception:
                log.exception("request %s failed", id)
                self._fail(peer, id, AgentrlError(UNFORESEEN))

        task = asyncio.create_task(finish(), name=f"request {id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, peer: Peer, id: str, failed: AgentrlError) -> None:
        self._context.peers.send(peer, ErrorReply(id, int(failed.exit_code), failed.message, failed.hint))

    def _snapshot(self, peer: Peer, id: str, args: commands.Snapshot) -> None:
        rows, seq = self._context.feed.snapshot(args.kinds)
        for key, value in rows:
            self._context.peers.send(peer, SnapshotRow(id, key, value))
        self._context.peers.send(peer, SnapshotEnd(id, self._context.epoch, seq))

    # ---- commands ----

    def _mutate(self, peer: Peer, known: Known, request: messages.Request, spec: CommandSpec, args: Any) -> None:
        previews.refuse_change_while_reading(self._context.state, spec.name)
        if request.dry_run and spec.name in self._asked_previews:
            self._later(peer, request.id, self._asked(request.id, spec, args))
            return
        again = self._accepted_before(request, spec)
        if again is not None:
            self._answer(peer, request.id, again)
            return
        effect = self._acts[spec.name].preview(args)
        accepted = Accepted(request.id, effect, spec.tier(effect))
        if request.dry_run:
            self._answer(peer, request.id, accepted)
            return
        operation = self._accept(known, request, spec, effect, note=getattr(args, "note", ""))
        self.begin(operation, args)
        self._context.executor.then(lambda: self._answer(peer, request.id, accepted))

    def _accepted_before(self, request: messages.Request, spec: CommandSpec) -> Accepted | None:
        before = None if request.dry_run else self._context.operations.get(request.id)
        if before is None:
            return None
        return Accepted(before.id, before.effect, spec.tier(before.effect), duplicate=True)

    async def _have_served(self, known: Known, request: messages.Request, spec: CommandSpec, args: Any) -> Accepted:
        """Accept a command that a unit carries out, once that unit has said what it would do."""
        if again := self._accepted_before(request, spec):
            return again
        effect = await self._serving.preview(spec, request, known.name)
        # Asking took time: the same id may have come a second time.
        if again := self._accepted_before(request, spec):
            return again
        if not request.dry_run:
            operation = self._accept(known, request, spec, effect, note=getattr(args, "note", ""))
            self.begin(operation, args)
        return Accepted(request.id, effect, spec.tier(effect))

    async def _asked(self, id: str, spec: CommandSpec, args: Any) -> Accepted:
        effect: Effect = await self._asked_previews[spec.name](spec.name, args)
        return Accepted(id, effect, spec.tier(effect))

    def _accept(
        self, known: Known, request: messages.Request, spec: CommandSpec, effect: Effect, *, note: str
    ) -> Operation:
        """Durable, or refused with nothing changed."""
        context, now = self._context, self._context.clock.now()
        operation = Operation(
            id=request.id,
            command=spec.name,
            args=bytes(request.args),
            summary=summary_of(spec, effect),
            who=known.name,
            state=OperationState.ACCEPTED,
            accepted_at=now,
            deadline=now + context.supervisor.times.operation_deadline_s,
            effect=effect,
        )
        context.executor.flush()
        context.executor.put("operation", operation.id, encode(operation))
        context.executor.flush()
        if context.executor.full:
            context.executor.withdraw("operation", operation.id)
            raise DiskError(
                f"{context.executor.full} The command was not accepted and nothing was changed.",
                hint="Free some space; running units are not affected.",
            )
        context.operations.add(operation)
        context.audit(operation.who, spec.name, operation.summary, operation=operation.id, note=note)
        return operation

    def begin(self, operation: Operation, args: Any) -> None:
        """Carry out an accepted command. Also for those that a former coordinator accepted and did not begin."""
        context = self._context
        try:
            goals = self._acts[operation.command].execute(operation, args)
        except Exception as failed:
            why = str(failed) if isinstance(failed, AgentrlError) else UNFORESEEN
            context.operations.finish(operation, OperationState.FAILED, context.clock.now(), why)
            raise
        context.operations.begin(operation, goals or {})

    def begin_again(self) -> None:
        """After a restart: what was accepted and not begun is begun now; what a unit carries out is asked for again."""
        for operation in self._context.operations.live():
            spec = COMMANDS.get(operation.command)
            if operation.state is not OperationState.ACCEPTED and not (spec and spec.served_by):
                continue
            try:
                self.begin(operation, decode_as(COMMANDS[operation.command].args, msgspec.Raw(operation.args)))
            except Exception:
                # Whatever it is: the coordinator comes up, and the operation says that it failed.
                log.exception("%s (%s) cannot be begun again", operation.command, operation.id)


def summary_of(spec: CommandSpec, effect: Effect) -> str:
    text = f"{spec.cli}: {effect.sentence()}"
    return text if len(text) <= 300 else text[:299] + "…"


def _error(code: ExitCode, message: str, hint: str) -> AgentrlError:
    failed = AgentrlError(message, hint=hint)
    failed.exit_code = code
    return failed
