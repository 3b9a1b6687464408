"""Commands that units serve: who is asked, and what is said when nobody can be.

Invariants: nothing is asked of a unit that is not ready, and then the refusal says at once what it is instead; every
question has a deadline; what was accepted is carried out until it is done, refused or past its deadline, also over
deaths of the unit and of the coordinator, because it is done once per id.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from agentrl.control.commands.acts import Act
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, UnavailableError, WaitTimeoutError
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.data_commands import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.wire import decode_as
from agentrl.supervision.unit_slots import Slot

log = logging.getLogger(__name__)

WITHIN_S = 10.0
"""How long a unit has, if the caller does not say otherwise."""
AT_MOST_S = 600.0
OURS = 0.9
"""The share of a caller's time that the unit gets, so that its refusal comes before the caller gives up."""
ASK_AGAIN_S = 0.5


class Serving:
    def __init__(self, context: Context, asks: PendingRequests) -> None:
        self._context = context
        self._asks = asks
        self._tasks: set[asyncio.Task[None]] = set()
        mutations = [spec.name for spec in COMMANDS.values() if spec.served_by and spec.mutates]
        self.table: dict[str, Act] = dict.fromkeys(mutations, Act(lambda args: Effect(), self.carry_out))
        """Their effect is known only to the unit: `preview` asks it."""

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def ask(self, spec: CommandSpec, request: messages.Request, who: str) -> msgspec.Raw:
        """What the unit answers. Raises what it refuses with; UnavailableError if there is none."""
        slot = self._ready(spec)
        return await self._asks.served(slot.unit, slot.incarnation, request, who, within_s=self._time_for(request))

    async def preview(self, spec: CommandSpec, request: messages.Request, who: str) -> Effect:
        """What the command would do now, in the words of the unit; raises what it would be refused with."""
        dry = msgspec.structs.replace(request, dry_run=True)
        return decode_as(Effect, await self.ask(spec, dry, who))

    def carry_out(self, operation: Operation, args: Any) -> None:
        operation.by_itself = True
        task = asyncio.create_task(self._until_done(operation), name=f"serving {operation.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_done(self, operation: Operation) -> None:
        try:
            done = await self._insist(operation)
        except AgentrlError as refused:
            self._finish(operation, OperationState.FAILED, str(refused))
            return
        except Exception as broken:
            # The boundary of an operation: it ends, and the coordinator goes on.
            log.exception("%s (%s) failed", operation.command, operation.id)
            self._finish(operation, OperationState.FAILED, f"The coordinator failed on this ({broken!r}).")
            return
        if done is not None:
            operation.result, operation.lines = done.result, list(done.lines)
            self._finish(operation, OperationState.SUCCEEDED)

    async def _insist(self, operation: Operation) -> Done | None:
        """None if the operation ended meanwhile: its deadline passed, or it was cancelled."""
        spec, args = COMMANDS[operation.command], msgspec.Raw(operation.args)
        while not operation.state.ended:
            request = messages.Request(operation.id, spec.name, args, deadline_ct=operation.deadline)
            try:
                return decode_as(Done, await self.ask(spec, request, operation.who))
            except (UnavailableError, WaitTimeoutError) as away:
                self._context.operations.waits_for(operation, away.message)
            await asyncio.sleep(ASK_AGAIN_S)
        return None

    def _finish(self, operation: Operation, state: OperationState, reason: str = "") -> None:
        self._context.operations.finish(operation, state, self._context.clock.now(), reason)

    def _time_for(self, request: messages.Request) -> float:
        if request.deadline_ct is None:
            return WITHIN_S
        return min(max(0.0, request.deadline_ct - self._context.clock.now()) * OURS, AT_MOST_S)

    def _ready(self, spec: CommandSpec) -> Slot:
        slots = [slot for slot in self._context.state.of_group(spec.served_by) if slot.wanted or not slot.tree_gone]
        for slot in slots:
            if slot.state is UnitState.READY and self._context.peers.is_heard(slot.unit):
                return slot
        verb = f"`agentrl {spec.cli}` is served by the {spec.served_by}"
        if not self._context.state.slots:
            raise UnavailableError(f"{verb}, and no unit is here yet.", hint="`agentrl status` shows how it goes on.")
        if not slots:
            raise UnavailableError(f"{verb}, and this run has none.", hint="A run file with `environments:` makes one.")
        raise UnavailableError(
            f"{verb}, and {'; '.join(map(self._condition, slots))}.", hint="`agentrl status` shows how it goes on."
        )

    def _condition(self, slot: Slot) -> str:
        if slot.state is UnitState.READY:
            return f"{slot.unit} is not connected"
        left = slot.timer - self._context.clock.now()
        until = f" for {left:.0f} s" if slot.state is UnitState.BACKOFF and left >= 1 else ""
        doing = self._context.observed.facts(slot).report.status if slot.state is UnitState.STARTING else ""
        return f"{slot.unit} is {slot.state}{until}: {doing or slot.reason or 'it says nothing more'}"
