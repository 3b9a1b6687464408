"""Carries out `hosts remove`: a draining host leaves the run when no process of the run is left on it.

Invariants:
- Its agent ends, and its key is revoked, only after its units have ended and its agent has found no process of the run.
- A coordinator that restarts during a removal continues it.
- Only a host that answers is removed. For a silent host, a person must declare that it is gone (`hosts forget`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentrl.control.commands import command_effects
from agentrl.control.commands.prepared import Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.host_admission import HostAdmission
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, RefusedError
from agentrl.protocol import messages
from agentrl.protocol.control_commands import RemoveHost
from agentrl.protocol.effects import few_names
from agentrl.protocol.rows import OperationState
from agentrl.protocol.wire import decode_as
from agentrl.supervision import events

log = logging.getLogger(__name__)

COMMAND = "remove_host"
PROVE_AGAIN_AFTER_S = 2.0


class HostRemoval:
    def __init__(
        self, context: Context, requests: PendingRequests, admission: HostAdmission, rebind: Callable[[], None]
    ) -> None:
        self._context = context
        self._requests = requests
        self._admission = admission
        self._rebind = rebind
        self._proofs: dict[str, asyncio.Task[None]] = {}
        """For each operation, the search for remaining processes."""
        self._prove_at: dict[str, float] = {}
        self._sent: set[str] = set()
        """Operations whose agent this coordinator has ordered to end."""
        self._began = context.clock.now()
        self.table: dict[str, Prepare] = {COMMAND: self._prepare}

    def _prepare(self, args: RemoveHost) -> Prepared:
        context, config = self._context, self._context.config
        if config is not None and config.placement.kind != "local" and args.host in config.all_hosts:
            raise RefusedError(
                f"The placement of this run keeps host {args.host} in it.",
                hint="Take it out of `hosts` in the run file; the next `agentrl up` drains it and gives it back.",
            )
        effect = command_effects.of_remove_host(context.state, args.host)

        def execute(operation: Operation) -> None:
            operation.by_itself = True
            context.happened(events.HostDrained(host=args.host, by=operation.id, draining=True))

        return Prepared(effect, execute, command_effects.revisions_of(context.state, effect))

    def tick(self, now: float) -> None:
        for operation in self._context.operations.live():
            if operation.command == COMMAND and operation.state is OperationState.RUNNING:
                self._go_on(operation, decode_as(RemoveHost, operation.args).host, now)

    def _go_on(self, operation: Operation, host: str, now: float) -> None:
        context, operations = self._context, self._context.operations
        connected = host in context.peers.hosts()
        left = context.state.units_on(host)
        if host not in context.state.run.draining_hosts:
            operations.finish(operation, OperationState.SUPERSEDED, now, f"{host} takes units again")
        elif left:
            # A drain has no time limit as long as the host answers.
            if connected:
                operations.extend(operation, now=now, for_s=context.supervisor.times.operation_deadline_s)
            operations.waits_for(operation, f"the end of {few_names(left)}")
        elif not operation.lines:
            self._prove(operation, host, now)
        elif connected:
            operations.waits_for(operation, f"the end of the agent of {host}")
            context.peers.send_to_host(host, messages.AgentExit())
            self._sent.add(operation.id)
        elif operation.id not in self._sent and now - self._began < context.supervisor.times.host_silent_after_s:
            # The agent may not yet have connected to this coordinator.
            operations.waits_for(operation, f"the agent of {host}")
        else:
            self._finish(operation, host, now)

    def _prove(self, operation: Operation, host: str, now: float) -> None:
        running = self._proofs.get(operation.id)
        if (running is None or running.done()) and now >= self._prove_at.get(operation.id, 0.0):
            self._prove_at[operation.id] = now + PROVE_AGAIN_AFTER_S
            self._proofs[operation.id] = asyncio.create_task(self._search(operation, host), name=f"remove {host}")

    async def _search(self, operation: Operation, host: str) -> None:
        operations = self._context.operations
        try:
            report = await self._requests.host(host, messages.ScanRun(kill=True), messages.ScanReport)
        except AgentrlError as failed:
            operations.waits_for(operation, f"its agent: {failed}")
            return
        if left := [each for each in report.found if each not in report.killed]:
            operations.waits_for(operation, f"the end of process {left[0].pid} ({left[0].command})")
        elif report.unproven:
            operations.waits_for(operation, report.unproven)
        elif not operation.state.ended:
            operation.lines = [f"{host}: {report.examined} processes examined, {messages.NONE_LEFT}"]
            operations.waits_for(operation, f"the end of the agent of {host}")

    def _finish(self, operation: Operation, host: str, now: float) -> None:
        keyring, key = self._context.keyring, self._admission.key_of(host)
        if key and keyring.permission(key) is not None:
            keyring.revoke(key, now)
            self._rebind()
            operation.lines.append(f"The key {key} is revoked.")
        self._admission.forget(host, by=operation.id)
        self._proofs.pop(operation.id, None)
        self._prove_at.pop(operation.id, None)
        self._context.operations.finish(operation, OperationState.SUCCEEDED, now)
