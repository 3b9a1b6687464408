"""Forwards commands to the units that serve them, such as queries of records to the steward.

Invariants:
- A unit that is not ready gets no request, and the refusal names its state.
- Every request has a deadline. A query that all units answer has a short one, and its answer names the missing units.
- A command that names an incarnation reaches that incarnation or none.
- An accepted command is sent again until it is done, refused or past its deadline, also after the unit or the
  coordinator died, because the unit executes an id once.
- The deadline counts from the last time that the unit reported to be working on the command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from agentrl.control.commands.prepared import Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.handlers import joined_answers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, UnavailableError, UnknownNameError, WaitTimeoutError
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS, TOOLBOX, CommandSpec
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import OperationState, UnitState
from agentrl.protocol.tool_commands import MissingUnit
from agentrl.protocol.wire import decode_as
from agentrl.supervision.unit_slots import WITH_PROCESS, Slot

log = logging.getLogger(__name__)

ANSWERING = (UnitState.READY, UnitState.DRAINING)
WHAT_LIVES = "`agentrl tools sandboxes` and `agentrl tools sessions` show what there is."

WITHIN_S = 10.0
"""How long a unit may take if the request has no deadline."""
AT_MOST_S = 600.0
UNIT_SHARE = 0.9
"""The share of the caller's time that the unit gets, so that its refusal arrives before the caller gives up."""
JOINED_WITHIN_S = 5.0
"""How long the units may take if all of them are asked. This is short, because a partial answer is better than a late
one."""
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
        if name := decode_as(spec.args, request.args).incarnation_named():
            return await self._ask_one(self._named(spec, name), request, who)
        if spec.by_all:
            return await self._ask_all(spec, request, who)
        return await self._ask_one(self._ready(spec)[0], request, who)

    async def _ask_one(
        self, slot: Slot, request: messages.Request, who: str, at_most_s: float = AT_MOST_S
    ) -> msgspec.Raw:
        within_s = min(self._time_for(request), at_most_s)
        return await self._asks.served(slot.unit, slot.incarnation, request, who, within_s=within_s)

    async def _ask_all(self, spec: CommandSpec, request: messages.Request, who: str) -> msgspec.Raw:
        """Return the joined answer of all units that answer in time. A change that is carried out waits for all units
        that are ready.
        """
        final = spec.mutates and not request.dry_run
        ready = self._ready(spec)
        missing = [MissingUnit(slot.unit, self._why(slot)) for slot in self._slots(spec) if slot not in ready]
        at_most_s = AT_MOST_S if final else JOINED_WITHIN_S
        asking = [self._ask_one(slot, request, who, at_most_s) for slot in ready]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        sorted_answers = joined_answers.sorted_out(ready, answers, missing, final=final)
        return joined_answers.joined(spec, sorted_answers, preview=request.dry_run)

    async def prepare(self, spec: CommandSpec, request: messages.Request, args: Any, who: str) -> Prepared:
        """Like `table`, with the effect that the unit computes. Raises the error of the unit's refusal."""
        preview = msgspec.structs.replace(request, dry_run=True)
        return Prepared(decode_as(Effect, await self.ask(spec, preview, who)), self.carry_out)

    def carry_out(self, operation: Operation, then: Callable[[Operation], None] | None = None) -> None:
        """Sends the command to its unit. `then` continues the operation when the unit is done; without it the operation
        ends there."""
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

    def _slots(self, spec: CommandSpec) -> list[Slot]:
        return [slot for slot in self._context.state.of_group(spec.served_by) if slot.wanted or not slot.tree_gone]

    def _answers(self, slot: Slot, spec: CommandSpec) -> bool:
        """Return whether a unit can serve the command. A draining unit still answers queries."""
        states = ANSWERING if spec.by_all else (UnitState.READY,)
        return slot.state in states and self._context.peers.is_connected(slot.unit)

    def _ready(self, spec: CommandSpec) -> list[Slot]:
        """The units that serve the command, at least one. Raises UnavailableError."""
        slots = self._slots(spec)
        if ready := [slot for slot in slots if self._answers(slot, spec)]:
            return ready
        verb = f"`agentrl {spec.cli}` is served by the {spec.served_by}"
        if not self._context.state.slots:
            raise UnavailableError(f"{verb}, and the run has no unit yet.", hint="`agentrl status` shows the progress.")
        if not slots:
            section = "tools" if spec.served_by == TOOLBOX else "environments"
            raise UnavailableError(f"{verb}, and this run has none.", hint=f"A run file with `{section}:` starts one.")
        states = "; ".join(f"{slot.unit} is {self._why(slot)}" for slot in slots)
        raise UnavailableError(f"{verb}, and {states}.", hint="`agentrl status` shows the progress.")

    def _named(self, spec: CommandSpec, name: str) -> Slot:
        """The unit of the incarnation that a command names. Raises UnknownNameError if it has ended."""
        slot = self._context.state.slots.get(name.rpartition(".")[0])
        if slot is None or slot.group != spec.served_by:
            raise UnknownNameError(f"There is no {spec.served_by} {name}.", hint=WHAT_LIVES)
        if slot.name == name and self._answers(slot, spec):
            return slot
        state = f"{slot.unit} is {self._why(slot)}"
        if slot.name == name and slot.state in WITH_PROCESS:
            raise UnavailableError(f"`agentrl {spec.cli}` is served by {name}, and {state}.")
        now = f"{slot.name} took its place" if slot.state is UnitState.READY else state
        hint = f"`agentrl events` shows why it ended. {WHAT_LIVES}"
        raise UnknownNameError(f"{name} has ended, with its sandboxes and sessions; {now}.", hint=hint)

    def _why(self, slot: Slot) -> str:
        """Why a unit cannot serve a command."""
        if slot.state in ANSWERING:
            return "not connected"
        left = slot.timer - self._context.clock.now()
        until = f" for {left:.0f} s" if slot.state is UnitState.BACKOFF and left >= 1 else ""
        doing = self._context.observed.facts(slot).report.status if slot.state is UnitState.STARTING else ""
        return f"{slot.state}{until}: {doing or slot.reason or 'no reason is known'}"
