"""Answers the requests of clients.

Invariants:
- The permission is looked up for every message.
- A command is refused before anything changes, or is durable before it is answered.
- An id is executed once.
- A command with a consent is executed only if its effect, computed again, is not worse and comes from the same
  revisions.
- Every request gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from agentrl.control.commands import command_effects
from agentrl.control.commands.prepared import Goals, Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.handlers import command_permission
from agentrl.control.handlers.client_queries import Handler
from agentrl.control.handlers.command_forwarding import ServedCommands
from agentrl.control.messaging.peers import Kind, Known
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, DiskError, ExitCode
from agentrl.formatting.sentences import ended
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.control_commands import Accepted, Snapshot
from agentrl.protocol.effects import Consent, Effect, EffectChangedError
from agentrl.protocol.messages import (
    ErrorReply,
    Permission,
    Refused,
    Reply,
    SnapshotEnd,
    SnapshotRow,
)
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import decode_as, encode, raw
from agentrl.tracing import trace_context
from agentrl.transport.hub import Peer

log = logging.getLogger(__name__)

UNFORESEEN = "The coordinator failed on this; its log says why."
"""The answer at the boundary of a request; the log has the traceback."""

CONSENT_VALID_S = 60.0

AskOwner = Callable[[CommandSpec, messages.Request, Any, str], Awaitable[Prepared]]
"""Prepares a command with the help of the unit that owns the object of the command."""


class ClientHandler:
    def __init__(
        self,
        context: Context,
        queries: dict[str, Handler],
        commands: dict[str, Prepare],
        owners: Mapping[str, AskOwner],
        served: ServedCommands,
    ) -> None:
        self._context = context
        self._queries = queries
        self._commands = commands
        self._owners = owners
        """Commands whose complete effect only a unit knows."""
        self._served = served
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._served.close()

    def hello(self, peer: Peer, hello: messages.ClientHello) -> None:
        context = self._context
        may = command_permission.of_peer(peer, context)
        # A client may connect without knowing which run it has reached.
        refusal = context.refuse_handshake(
            "client", hello.major, hello.version, hello.run or context.run.uuid, final=False
        )
        if refusal is None and (may is None or may is Permission.UNIT):
            refusal = (
                context.local_peers.refusal_of_client(peer)
                if peer.local
                else Refused(ExitCode.KEY_REFUSED, "This key may not ask or command anything.")
            )
        if refusal is not None:
            context.peers.send(peer, refusal)
            return
        who = context.local_peers.who(peer, hello.who) if peer.local else f"{peer.key_name}"
        context.peers.welcome(peer, Known(Kind.CLIENT, who[:120] or "unknown"))
        assert may is not None
        context.peers.send(peer, context.welcome(permission=may))

    # ---- requests ----

    def request(self, peer: Peer, known: Known, request: messages.Request) -> None:
        try:
            spec, args = command_permission.admitted(request, peer, context=self._context)
            if spec.name == "snapshot":
                self._snapshot(peer, request.id, args)
            elif spec.mutates:
                self._change(peer, known, request, spec, args)
            elif spec.served_by:
                self._later(peer, request.id, self._served.ask(spec, request, known.name))
            else:
                self._answer(peer, request.id, self._queries[spec.name](args))
        except AgentrlError as failed:
            self._fail(peer, request.id, failed)
        except Exception:
            log.exception("%s (%s) failed", request.name, request.id)
            self._fail(peer, request.id, AgentrlError(UNFORESEEN))

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
        consent = failed.consent if isinstance(failed, EffectChangedError) else None
        self._context.peers.send(peer, ErrorReply(id, int(failed.exit_code), failed.message, failed.hint, consent))

    def _snapshot(self, peer: Peer, id: str, args: Snapshot) -> None:
        rows, seq = self._context.feed.snapshot(args.kinds)
        for key, value in rows:
            self._context.peers.send(peer, SnapshotRow(id, key, value))
        self._context.peers.send(peer, SnapshotEnd(id, self._context.epoch, seq))

    # ---- commands ----

    def _change(self, peer: Peer, known: Known, request: messages.Request, spec: CommandSpec, args: Any) -> None:
        command_effects.refuse_change_while_reading(self._context.state, spec.name)
        ask = self._owners.get(spec.name)
        # Without a consent there is nothing to compare, so the owner of the knob gets no request.
        if ask and (spec.served_by or request.dry_run or request.consent) and not self._accepted_before(request):
            asking = ask(spec, request, args, known.name)
            self._later(peer, request.id, self._decide_later(known, request, spec, asking))
            return
        answer = self._decide(known, request, spec, lambda: self._commands[spec.name](args))
        if isinstance(answer, Accepted) and not answer.duplicate:
            self._context.executor.then(lambda: self._answer(peer, request.id, answer))
        else:
            self._answer(peer, request.id, answer)

    async def _decide_later(
        self, known: Known, request: messages.Request, spec: CommandSpec, asking: Awaitable[Prepared]
    ) -> Accepted | Consent:
        prepared = await asking
        return self._decide(known, request, spec, lambda: prepared)

    def _decide(
        self, known: Known, request: messages.Request, spec: CommandSpec, prepare: Callable[[], Prepared]
    ) -> Accepted | Consent:
        """Return the preview of a command, or its acceptance. Raises the error of a refusal."""
        if before := self._accepted_before(request):
            return Accepted(before.id, before.effect, spec.tier(before.effect), duplicate=True)
        with trace_context.within(trace_context.of_operation(request.id)):
            return self._decided(known, request, spec, prepare)

    def _decided(
        self, known: Known, request: messages.Request, spec: CommandSpec, prepare: Callable[[], Prepared]
    ) -> Accepted | Consent:
        prepared = prepare()
        effect, now = prepared.effect, self._context.clock.now()
        preview = Consent(effect, spec.tier(effect), now + CONSENT_VALID_S, prepared.revisions)
        if request.dry_run:
            return preview
        if request.consent is not None:
            _compare(spec, request.consent, preview, now)
        operation = self._accept(known, request, spec, effect)
        log.info("%s accepted of %s: %s", spec.name, known.name, operation.summary or spec.name)
        self._begin(operation, prepared.execute)
        return Accepted(operation.id, effect, preview.tier)

    def _accepted_before(self, request: messages.Request) -> Operation | None:
        return None if request.dry_run else self._context.operations.get(request.id)

    def _accept(self, known: Known, request: messages.Request, spec: CommandSpec, effect: Effect) -> Operation:
        """Return the operation once it is durable. Raises an error and then changes nothing."""
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
        note = getattr(decode_as(spec.args, request.args), "note", "")
        context.audit(operation.who, spec.name, operation.summary, operation=operation.id, note=note)
        return operation

    def _begin(self, operation: Operation, execute: Callable[[Operation], Goals | None]) -> None:
        context = self._context
        try:
            goals = execute(operation)
        except Exception as failed:
            why = str(failed) if isinstance(failed, AgentrlError) else UNFORESEEN
            context.operations.finish(operation, OperationState.FAILED, context.clock.now(), why)
            raise
        context.operations.begin(operation, goals or {})

    def begin_again(self) -> None:
        """After a restart: begin the operations that were accepted but not begun, and send those that a unit serves
        again.
        """
        for operation in self._context.operations.live():
            spec = COMMANDS.get(operation.command)
            if operation.state is not OperationState.ACCEPTED and not (spec and spec.served_by):
                continue
            try:
                self._begin(operation, self._execute_again)
            except Exception:
                # The coordinator must start in any case; the operation fails with the reason.
                log.exception("%s (%s) cannot be begun again", operation.command, operation.id)

    def _execute_again(self, operation: Operation) -> Goals | None:
        args = decode_as(COMMANDS[operation.command].args, msgspec.Raw(operation.args))
        return self._commands[operation.command](args).execute(operation)


def _compare(spec: CommandSpec, given: Consent, preview: Consent, now: float) -> None:
    """Refuse a command whose effect is worse than its caller accepted, or comes from other revisions."""
    changed = [row for row, revision in preview.revisions.items() if given.revisions.get(row, revision) != revision]
    if preview.tier > given.tier:
        why = f"would be {preview.tier.name.lower()} now, and the consent is for {given.tier.name.lower()}"
    elif changed:
        why = f"would act on a changed {', '.join(changed[:3])}"
    elif now > given.expires_ct:
        why = f"came {now - given.expires_ct:.0f} s after the consent had expired"
    else:
        return
    raise EffectChangedError(
        f"`agentrl {spec.cli}` {why}; nothing was done. The effect would be: {ended(preview.effect.sentence())}",
        hint="Repeat the command if you want this effect.",
        consent=preview,
    )


def summary_of(spec: CommandSpec, effect: Effect) -> str:
    """A summary for lists of operations. The preview showed the whole effect, and the operation keeps it."""
    text = f"{spec.cli}: {effect.headline()}"
    return text if len(text) <= 300 else text[:299] + "…"
