"""Lets hosts leave whose agent is about to end: a pod is evicted, a job reaches its time limit, a machine is shut down.

Invariants:
- The agent of a leaving host may end only after the last unit there has ended and its report is in the journal.
- A host that has left is forgotten, so its name is free for the next agent. If the run file names it, it is shown as
  left, not as lost.
- If it is the host of the coordinator, the coordinator ends with the agent. Desired state stays, so the next
  coordinator starts the same units again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentrl.control.context import Context
from agentrl.protocol.messages import AgentExit, HostLeaving
from agentrl.supervision import events

log = logging.getLogger(__name__)

LONGEST_S = 24 * 3600.0
AGENT_LEAVES_WITHIN_S = 5.0
LONGEST_REASON = 200


class HostDepartures:
    """`forget` forgets a host, `leave` ends the coordinator."""

    def __init__(self, context: Context, forget: Callable[[str], None], leave: Callable[[], None]) -> None:
        self._context = context
        self._forget = forget
        self._leave = leave
        self._ending: asyncio.Task[None] | None = None
        self.own_host_left = False
        """Whether the coordinator ends with its host although the run is not taken down."""

    def announced(self, host: str, leaving: HostLeaving) -> None:
        """Handles the announcement that the agent of the host wants to end."""
        context = self._context
        within_s = min(max(0.0, leaving.within_s), LONGEST_S)
        why = leaving.why[:LONGEST_REASON] or "its agent ends"
        log.info("host %s leaves within %.0f s: %s", host, within_s, why)
        context.happened(events.HostLeaving(host=host, until=context.clock.now() + within_s, why=why))

    def look(self, now: float) -> None:
        """Release the hosts on which no process is left. May be called often."""
        context = self._context
        if context.ending:
            return
        for name in [name for name, host in context.state.hosts.items() if host.connected and host.leaving]:
            if context.state.holds_units(name):
                continue
            context.executor.flush()
            if name == context.host:
                context.ending = self.own_host_left = True
                self._ending = asyncio.create_task(self._end(), name="the host of the coordinator leaves")
            elif context.peers.send_to_host(name, AgentExit()):
                log.info("host %s has left", name)
                self._left(name, now)

    def _left(self, name: str, now: float) -> None:
        context, why = self._context, self._context.state.hosts[name].leaving
        self._forget(name)
        if context.config is not None and name in context.config.all_hosts:
            # The run file names the host, so it is shown until its next agent joins.
            context.observed.awaited_since[name] = now
            context.happened(events.HostAwaited(host=name, why=f"left ({why})"))
            context.show_host(name)

    async def _end(self) -> None:
        context = self._context
        context.peers.send_to_host(context.host, AgentExit())
        deadline = context.clock.now() + AGENT_LEAVES_WITHIN_S
        # A closed connection loses its unread messages.
        while context.host in context.peers.hosts() and context.clock.now() < deadline:
            await asyncio.sleep(0.01)
        self._leave()
