"""Ends a run: after the last unit ended, checks every host for remaining processes, then ends the coordinator.

Invariants:
- `down` succeeds only with a report from every host of the run.
- The report of `down` names everything that is not proven.
- A machine that a placement took for the run is given back before `down` reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.errors import AgentrlError, UnavailableError
from agentrl.protocol import messages
from agentrl.protocol.messages import ProcessInfo
from agentrl.protocol.rows import OperationState

log = logging.getLogger(__name__)

AGENTS_LEAVE_WITHIN_S = 5.0
SHOW_END_S = 0.4
"""How long the feed shows the end before the coordinator ends."""


class Machines(Protocol):
    """The machines of hosts that a placement started."""

    def placed(self) -> list[str]: ...
    async def gone(self, host: str) -> str:
        """The reason why no process of the host can be left although it does not answer; empty if that is not
        certain."""

    async def release(self) -> str:
        """Give all machines back. Returns sentences on what could not be proven."""


class Shutdown:
    def __init__(
        self, context: Context, requests: PendingRequests, machines: Machines, leave: Callable[[], None]
    ) -> None:
        self._context = context
        self._requests = requests
        self._machines = machines
        self._leave = leave
        self._task: asyncio.Task[None] | None = None

    def all_stopped(self) -> None:
        """Handles the supervisor's report that no unit is left."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._end(), name="end of the run")

    async def _end(self) -> None:
        context = self._context
        # If a coordinator starts for a run that is down, an `up` started it, and its command follows.
        if context.state.run.up or not self._downs():
            return
        context.ending = True
        lines: list[str] = []
        unproven = [
            f"{slot.name} was lost with host {slot.host}; it is not known whether it lives{_if_gone(slot.host)}"
            for slot in context.state.slots.values()
            if not slot.tree_gone
        ]
        hosts = sorted({*context.peers.hosts(), *context.state.hosts, *context.state.run.hosts})
        for host in hosts:
            await self._prove(host, lines, unproven)
        await self._give_back(hosts, lines, unproven)
        for operation in self._downs():
            self._conclude(operation, lines, unproven)
        context.executor.flush()
        context.feed.tick(context.clock.now(), context.clock.now())
        await asyncio.sleep(SHOW_END_S)
        self._end_agents(context.peers.hosts())
        await self._until_agents_left()
        self._leave()

    async def _give_back(self, hosts: list[str], lines: list[str], unproven: list[str]) -> None:
        if not (placed := self._machines.placed()):
            return
        self._end_agents(placed)
        if problem := await self._machines.release():
            unproven.append(problem)
        elif given_back := [host for host in placed if host in hosts]:
            lines.append(f"{', '.join(given_back)}: given back by the placement")

    def _end_agents(self, hosts: list[str]) -> None:
        for host in hosts:
            sent = self._context.peers.send_to_host(host, messages.AgentExit())
            log.info("the agent of host %s %s", host, "may end" if sent else "is not connected, so it was not ended")

    def _downs(self) -> list[Operation]:
        return [op for op in self._context.operations.live() if op.command == "down"]

    async def _until_agents_left(self) -> None:
        """Waits until the agents have left. A closed connection loses its unread messages, so the agents must read
        theirs before this process closes."""
        deadline = self._context.clock.now() + AGENTS_LEAVE_WITHIN_S
        while self._context.peers.hosts() and self._context.clock.now() < deadline:
            await asyncio.sleep(0.01)

    async def _prove(self, host: str, lines: list[str], unproven: list[str]) -> None:
        silent = self._context.state.is_silent(host)
        try:
            if silent:
                # The connection of a host that is gone may still be open, but no message would come over it.
                raise UnavailableError(f"The agent of host {host} is silent.")
            first = await self._requests.host(host, messages.ScanRun(kill=True), messages.ScanReport)
            report = await self._requests.host(host, messages.ScanRun(), messages.ScanReport) if first.found else first
        except AgentrlError as failed:
            if gone := await self._machines.gone(host):
                lines.append(f"{host}: its machine is gone: {gone}")
                return
            unreachable = silent or host not in self._context.peers.hosts()
            unproven.append(f"host {host}: {failed}{_if_gone(host) if unreachable else ''}")
            return
        lines += [f"{host}: ended {_describe(each)}" for each in first.killed]
        unproven += [
            f"host {host}: still there: {_describe(each)}" for each in report.found if each not in first.killed
        ]
        lines.append(f"{host}: {report.examined} processes examined, {messages.NONE_LEFT}")
        if report.unproven:
            unproven.append(f"host {host}: {report.unproven}")

    def _conclude(self, operation: Operation, lines: list[str], unproven: list[str]) -> None:
        operation.lines = [*lines, *(f"NOT PROVEN: {sentence}" for sentence in unproven)]
        state = OperationState.FAILED if unproven else OperationState.SUCCEEDED
        self._context.operations.finish(operation, state, self._context.clock.now(), "; ".join(unproven))


def _if_gone(host: str) -> str:
    """The hint on how `down` will succeed the next time."""
    return f" (a host that is gone for good: agentrl hosts forget {host}, before `down`)"


def _describe(process: ProcessInfo) -> str:
    return f"{process.pid} ({process.command}), {process.why or process.incarnation}"
