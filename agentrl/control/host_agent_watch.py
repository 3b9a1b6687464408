"""Restarts the host agent of the coordinator's own host when it dies.

Invariants:
- Two agents never live at once (an agent holds a lock).
- The death of the agent is noticed at once (pidfd).
- The new agent adopts all units, and they are not restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from agentrl.control.context import Context
from agentrl.errors import AgentrlError
from agentrl.host.agent_lock import read_agent_file
from agentrl.placement.local import LocalPlacement

log = logging.getLogger(__name__)


class HostAgentWatch:
    """`died(host, pid, done)` is called for each death, after the next agent was started."""

    def __init__(self, context: Context, state_dir: Path, died: Callable[[str, int, str], None]) -> None:
        self._context = context
        self._died = died
        self._state_dir = state_dir
        self._placement = LocalPlacement(state_dir, Path(context.run.run_dir), context.run.uuid)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        pause_s, dead = 0.0, 0
        while True:
            known = read_agent_file(self._state_dir, self._context.host)
            if known is not None and known.identity.alive():
                if dead:
                    self._died(self._context.host, dead, f"another agent was started (process {known.pid})")
                await _death_of(known.pid)
                dead = known.pid
                pause_s = 0.0
                if self._context.ending:
                    return
                log.warning("the host agent (process %d) is gone; starting another", known.pid)
            await asyncio.sleep(pause_s)
            times = self._context.supervisor.times
            pause_s = min(max(pause_s * 2, times.agent_restart_s), times.backoff_max_s)
            try:
                await asyncio.to_thread(self._placement.ensure, [self._context.host])
            except AgentrlError as failed:
                log.error("the host agent cannot be started: %s", failed)


def _resolve(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)


async def _death_of(pid: int) -> None:
    """Returns when the process has ended. Only its parent can read the exit status."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    loop.add_reader(handle, _resolve, gone)
    try:
        await gone
    finally:
        loop.remove_reader(handle)
        os.close(handle)
