"""Forwards commands to the units that serve them, such as queries of records to the steward.

Invariants:
- A unit that is not ready gets no request, and the refusal says in which state it is.
- Every request has a deadline.
- An accepted command is sent again until it is done, refused or past its deadline, also after the unit or the
  coordinator died, because the unit executes an id once.
- The deadline counts from the last answer of the unit that it works on the command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentrl.control.commands.prepared import Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, UnavailableError, UnknownNameError, WaitTimeoutError
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS, TOOLBOX, CommandSpec
from agentrl.protocol.data_commands import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.wire import decode_as, raw
from agentrl.supervision.unit_slots import Slot

log = logging.getLogger(__name__)

WITHIN_S = 10.0
"""How long a unit may take if the request has no deadline."""
AT_MOST_S = 600.0
UNIT_SHARE = 0.9
"""The share of the caller's time that the unit gets, so that its refusal arrives before the caller gives up."""
ASK_AGAIN_S = 0.5
RESUMED_WITHIN_S = 60.0
"""How long the unit has to answer about a command after a restart of the coordinator, even past the deadline."""


class ServedCommands:
    def __init__(self, context: Context, asks: PendingRequests) -> None:
        self._context = context
        self._asks = asks
        self._tasks: set[asyncio.Task[None]] = set()
        served = [spec.name for spec in COMMANDS.values() if spec.served_by and spec.mutates]
        self.table: dict[str, Prepare] = dict.fromkeys(served, lambda args: Prepared(Effect(), self.carry_out))
        """Only the unit knows the effect, so `prepare` queries the unit."""

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def ask(self, spec: CommandSpec, request: messages.Request, who: str) -> msgspec.Raw:
        """Return the answer of the unit. Raises the error of its refusal; UnavailableError if no unit is ready."""
        if spec.by_all:
            return joined(spec, request, await self._ask_all(spec, request, who))
        return await self._ask_one(self._ready(spec)[0], request, who)

    async def _ask_one(self, slot: Slot, request: messages.Request, who: str) -> msgspec.Raw:
        return await self._asks.served(slot.unit, slot.incarnation, request, who, within_s=self._time_for(request))

    async def _ask_all(self, spec: CommandSpec, request: messages.Request, who: str) -> list[msgspec.Raw]:
        """Return the answers of the units. A query leaves out units that refuse, a change those to which the named
        thing is unknown; if nothing is left, the first refusal is raised.
        """
        asking = [self._ask_one(slot, request, who) for slot in self._ready(spec)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        left_out: type[AgentrlError] = UnknownNameError if spec.mutates else AgentrlError
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, left_out):
                raise answer
        refused = [answer for answer in answers if isinstance(answer, AgentrlError)]
        given = [answer for answer in answers if not isinstance(answer, BaseException)]
        if refused and not given:
            raise refused[0]
        return given

    async def prepare(self, spec: CommandSpec, request: messages.Request, args: Any, who: str) -> Prepared:
        """As `table`, with the effect that the unit computes. Raises the error of the unit's refusal."""
        preview = msgspec.structs.replace(request, dry_run=True)
        return Prepared(decode_as(Effect, await self.ask(spec, preview, who)), self.carry_out)

    def carry_out(self, operation: Operation, then: Callable[[Operation], None] | None = None) -> None:
        """`then` continues the operation when the unit is done; otherwise that is its end."""
        operation.by_itself = True
        self._context.operations.extend(operation, now=self._context.clock.now(), for_s=RESUMED_WITHIN_S)
        task = asyncio.create_task(self._until_done(operation, then), name=f"serving {operation.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_done(self, operation: Operation, then: Callable[[Operation], None] | None) -> None:
        try:
            done = await self._ask_until_done(operation)
            if done is not None:
                operation.result, operation.lines = done.result, list(done.lines)
                if then is not None:
                    then(operation)
                    return
        except AgentrlError as refused:
            self._finish(operation, OperationState.FAILED, str(refused))
            return
        except Exception as broken:
            # An error ends only this operation; the coordinator continues.
            log.exception("%s (%s) failed", operation.command, operation.id)
            self._finish(operation, OperationState.FAILED, f"The coordinator failed on this ({broken!r}).")
            return
        if done is not None:
            self._finish(operation, OperationState.SUCCEEDED)

    async def _ask_until_done(self, operation: Operation) -> Done | None:
        """Return the answer; None if the operation ended before, because its deadline passed or it was cancelled."""
        spec, args = COMMANDS[operation.command], msgspec.Raw(operation.args)
        while not operation.state.ended:
            request = messages.Request(operation.id, spec.name, args, deadline_ct=operation.deadline)
            try:
                done = decode_as(Done, await self.ask(spec, request, operation.who))
                if not done.under_way:
                    return done
                self._context.operations.waits_for(operation, done.under_way)
                for_s = self._context.supervisor.times.operation_deadline_s
                self._context.operations.extend(operation, now=self._context.clock.now(), for_s=for_s)
            except (UnavailableError, WaitTimeoutError) as away:
                self._context.operations.waits_for(operation, away.message)
            await asyncio.sleep(ASK_AGAIN_S)
        return None

    def _finish(self, operation: Operation, state: OperationState, reason: str = "") -> None:
        self._context.operations.finish(operation, state, self._context.clock.now(), reason)

    def _time_for(self, request: messages.Request) -> float:
        if request.deadline_ct is None:
            return WITHIN_S
        return min(max(0.0, request.deadline_ct - self._context.clock.now()) * UNIT_SHARE, AT_MOST_S)

    def _ready(self, spec: CommandSpec) -> list[Slot]:
        """The units that serve the command, at least one. Raises UnavailableError."""
        slots = [slot for slot in self._context.state.of_group(spec.served_by) if slot.wanted or not slot.tree_gone]
        ready = [slot for slot in slots if slot.state is UnitState.READY]
        if connected := [slot for slot in ready if self._context.peers.is_connected(slot.unit)]:
            return connected
        verb = f"`agentrl {spec.cli}` is served by the {spec.served_by}"
        if not self._context.state.slots:
            raise UnavailableError(f"{verb}, and the run has no unit yet.", hint="`agentrl status` shows the progress.")
        if not slots:
            section = "tools" if spec.served_by == TOOLBOX else "environments"
            raise UnavailableError(f"{verb}, and this run has none.", hint=f"A run file with `{section}:` starts one.")
        raise UnavailableError(
            f"{verb}, and {'; '.join(map(self._condition, slots))}.", hint="`agentrl status` shows the progress."
        )

    def _condition(self, slot: Slot) -> str:
        if slot.state is UnitState.READY:
            return f"{slot.unit} is not connected"
        left = slot.timer - self._context.clock.now()
        until = f" for {left:.0f} s" if slot.state is UnitState.BACKOFF and left >= 1 else ""
        doing = self._context.observed.facts(slot).report.status if slot.state is UnitState.STARTING else ""
        return f"{slot.unit} is {slot.state}{until}: {doing or slot.reason or 'no reason is known'}"


def joined(spec: CommandSpec, request: messages.Request, answers: list[msgspec.Raw]) -> msgspec.Raw:
    """One answer of all units: their rows one after the other, or the sum of their effects or results."""
    if len(answers) == 1:
        return answers[0]
    if not spec.mutates:
        return raw([row for answer in answers for row in decode_as(list[msgspec.Raw], answer)])
    if request.dry_run:
        effects = [decode_as(Effect, answer) for answer in answers]
        return raw(msgspec.structs.replace(Effect(), **{name: _chained(effects, name) for name in _SENTENCES}))
    done = [decode_as(Done, answer) for answer in answers]
    under_way = "; ".join(each.under_way for each in done if each.under_way)
    results = {name: value for each in done for name, value in each.result.items()}
    return raw(Done(_chained(done, "lines"), results, under_way))


_SENTENCES = ("starts", "drains", "kills", "changes", "loses", "notes")


def _chained(parts: Sequence[object], name: str) -> tuple[str, ...]:
    return tuple(line for part in parts for line in getattr(part, name))
