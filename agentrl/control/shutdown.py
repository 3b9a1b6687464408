"""The end of a run: after the last unit ended, prove on every host that nothing is left, and go.

Invariant: `down` succeeds only with a proof from every host of the run; what could not be proven is said by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError
from agentrl.protocol import messages
from agentrl.protocol.messages import ProcessInfo
from agentrl.protocol.rows import OperationState, UnitState

log = logging.getLogger(__name__)

AGENTS_LEAVE_WITHIN_S = 5.0
FAREWELL_S = 0.4
"""How long the end stays on the feed before the coordinator goes."""


class Shutdown:
    def __init__(self, context: Context, asks: PendingRequests, leave: Callable[[], None]) -> None:
        self._context = context
        self._asks = asks
        self._leave = leave
        self._task: asyncio.Task[None] | None = None

    def all_stopped(self) -> None:
        """The supervisor says that no unit is left."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._end(), name="end of the run")

    async def _end(self) -> None:
        context = self._context
        # A coordinator that was started for a run that is down is there because an `up` is about to come.
        if context.state.run.up or not self._downs():
            return
        context.ending = True
        lines: list[str] = []
        unproven = [
            f"{slot.name} was lost with host {slot.host}; nobody can say whether it lives"
            for slot in context.state.slots.values()
            if slot.state is UnitState.LOST
        ]
        hosts = sorted({*context.peers.hosts(), *(h.host for h in context.state.hosts.values())})
        for host in hosts:
            await self._prove(host, lines, unproven)
        for operation in self._downs():
            self._conclude(operation, lines, unproven)
        context.executor.flush()
        context.feed.tick(context.clock.now(), context.clock.now())
        await asyncio.sleep(FAREWELL_S)
        for host in context.peers.hosts():
            told = context.peers.tell_host(host, messages.AgentExit())
            log.info("the agent of host %s %s", host, "may end" if told else "could not be told that it may end")
        await self._until_agents_left()
        self._leave()

    def _downs(self) -> list[Operation]:
        return [op for op in self._context.operations.live() if op.command == "down"]

    async def _until_agents_left(self) -> None:
        """A connection that ends loses what was not read from it, so we do not end ours before they heard us."""
        deadline = self._context.clock.now() + AGENTS_LEAVE_WITHIN_S
        while self._context.peers.hosts() and self._context.clock.now() < deadline:
            await asyncio.sleep(0.01)

    async def _prove(self, host: str, lines: list[str], unproven: list[str]) -> None:
        try:
            first = await self._asks.host(host, messages.ScanRun(kill=True), messages.ScanReport)
            report = await self._asks.host(host, messages.ScanRun(), messages.ScanReport) if first.found else first
        except AgentrlError as failed:
            unproven.append(f"host {host}: {failed}")
            return
        lines += [f"{host}: ended {_words(each)}" for each in first.killed]
        unproven += [f"host {host}: still there: {_words(each)}" for each in report.found if each not in first.killed]
        lines.append(f"{host}: {report.examined} processes examined, {messages.NONE_LEFT}")
        if report.unproven:
            lines.append(f"{host}: not provable: {report.unproven}")

    def _conclude(self, operation: Operation, lines: list[str], unproven: list[str]) -> None:
        operation.lines = [*lines, *(f"NOT PROVEN: {sentence}" for sentence in unproven)]
        state = OperationState.FAILED if unproven else OperationState.SUCCEEDED
        self._context.operations.finish(operation, state, self._context.clock.now(), "; ".join(unproven))


def _words(process: ProcessInfo) -> str:
    return f"{process.pid} ({process.command}), {process.why or process.incarnation}"
