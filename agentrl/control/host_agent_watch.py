"""Restarts the host agent of the coordinator's own host when it dies or hangs.

Invariants:
- An agent that a signal stopped is continued once. If it is stopped again, or is silent for `coordinator_silent_s`, it
  is replaced.
- Time in which the coordinator itself was stopped does not count as silence of the agent.
- Two agents never live at once (an agent holds a lock).
- The death of the agent is noticed at once (pidfd).
- The new agent adopts all units, and they are not restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from agentrl.control.context import Context
from agentrl.errors import AgentrlError
from agentrl.host import procfs
from agentrl.host.agent_lock import read_agent_file
from agentrl.placement.local import start_own_agent

log = logging.getLogger(__name__)


LOOK_EVERY_S = 0.5


class HostAgentWatch:
    """`failed(host, pid, what, done)` is called for each stop, and for each death once the next agent has started."""

    def __init__(self, context: Context, state_dir: Path, failed: Callable[[str, int, str, str], None]) -> None:
        self._context = context
        self._failed = failed
        self._continued = False
        """Whether a signal stopped the present agent and it was continued."""
        self._silent_s = 0.0
        self._looked_at = context.clock.now()
        self._state_dir = state_dir

    async def run(self) -> None:
        """Runs until it is cancelled."""
        pause_s, dead = 0.0, 0
        while True:
            known = read_agent_file(self._state_dir, self._context.host)
            if known is not None and known.identity.alive():
                if dead:
                    self._failed(self._context.host, dead, "ended", f"another agent was started (process {known.pid})")
                await self._until_death(known.identity)
                dead = known.pid
                pause_s = 0.0
                if self._context.ending:
                    return
                log.warning("the host agent (process %d) is gone; starting another", known.pid)
            await asyncio.sleep(pause_s)
            times = self._context.supervisor.times
            pause_s = min(max(pause_s * 2, times.agent_restart_s), times.backoff_max_s)
            try:
                run = self._context.run
                await asyncio.to_thread(start_own_agent, self._state_dir, Path(run.run_dir), run.uuid)
            except AgentrlError as failed:
                log.error("the host agent cannot be started: %s", failed)

    async def _until_death(self, identity: procfs.Identity) -> None:
        """Returns when the agent has ended. Checks an agent that is silent."""
        self._continued, self._silent_s = False, 0.0
        death = asyncio.create_task(_death_of(identity.pid), name="death of the host agent")
        try:
            while not (await asyncio.wait((death,), timeout=LOOK_EVERY_S))[0]:
                self._continue_or_kill(identity)
        finally:
            death.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await death

    def _continue_or_kill(self, identity: procfs.Identity) -> None:
        context = self._context
        lease, times = context.host_leases.get(context.host), context.supervisor.times
        now = context.clock.now()
        # Twice the interval: a loop that is only a little late was not stopped.
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_EVERY_S), now
        stat = procfs.read_stat(identity.pid)
        if lease is None or stat is None:
            return
        silent_s = self._silent_s = min(now - lease.last_received, self._silent_s + passed_s)
        stopped = stat.state in "Tt"
        if stopped and not self._continued and silent_s >= times.suspect_after_s:
            self._continued = True
            self._signal(identity, signal.SIGCONT)
            self._failed(context.host, identity.pid, "was stopped by a signal", "it was continued (SIGCONT)")
        elif silent_s >= (times.host_silent_after_s if stopped else times.coordinator_silent_s):
            log.warning("the host agent (process %d) is silent for %.0f s; it is killed", identity.pid, silent_s)
            self._signal(identity, signal.SIGKILL)

    @staticmethod
    def _signal(identity: procfs.Identity, number: int) -> None:
        procfs.kill_exactly(identity.pid, identity.start_ticks, number)


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
