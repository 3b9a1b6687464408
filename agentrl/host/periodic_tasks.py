"""The periodic tasks of the agent: heartbeats, measurements, log cuts, memory limits.

* Each task runs independently; a failed turn is logged, and the next turn tries again. * Only measured values are sent.
* Work that reads a lot runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from agentrl.host import procfs, resource_usage
from agentrl.host.incarnation import Incarnation, Services
from agentrl.host.log_files import cut_if_large
from agentrl.host.repeated_errors import RepeatedErrors
from agentrl.host.resource_usage import HostMeter, Strays, Usage, UsageSampler
from agentrl.protocol.messages import DeviceUse, HostBeat, HostStats, ProcessInfo

log = logging.getLogger(__name__)

_MOST_STRAYS = 50
"""The most stray processes that are listed; a scan lists all of them."""


@dataclass(frozen=True)
class Intervals:
    stats_s: float = 2.0
    """The default until a coordinator sets another interval."""
    memory_check_s: float = 0.5
    """For memory limits that no cgroup enforces."""
    strays_every: int = 5
    """Reads environments on every Nth measurement."""
    own_log_max_bytes: int = 32 << 20
    """The size at which the logs of the agent and of the coordinator are cut."""
    lonely_s: float = 3600.0
    """The agent ends after this time without units and without a coordinator."""


class PeriodicTasks:
    """`restore_files` is called at every measurement; `on_lonely` also, once there was no coordinator for too long."""

    def __init__(
        self,
        services: Services,
        incarnations: Mapping[str, Incarnation],
        times: Intervals,
        on_lonely: Callable[[], None],
        restore_files: Callable[[], None],
    ) -> None:
        self._services = services
        self._incarnations = incarnations
        self._times = times
        self._on_lonely = on_lonely
        self._restore_files = restore_files
        self._connected = False
        home = services.home
        folder = home.state_dir / "hosts" / home.host
        self._own_logs = (folder / "agent.log", folder / "coordinator.log")
        own = procfs.read_stat(os.getpid())
        self.own_start_ticks = own.start_ticks if own else 0
        self._loop = asyncio.get_running_loop()
        self._lonely_since = self._loop.time()
        self._stats_s = times.stats_s
        self._beat_seq = 0
        self._turn = 0
        self._meter = HostMeter((home.run_dir, home.state_dir))
        self._sampler = UsageSampler()
        self._errors = RepeatedErrors()
        self._limits = UsageSampler()
        self._strays = Strays(home.run, home.host)
        self._found: tuple[ProcessInfo, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        check_s = self._times.memory_check_s
        self._tasks = [
            asyncio.create_task(self._every(lambda: self._stats_s, self._measure), name="measurements"),
            asyncio.create_task(self._every(lambda: check_s, self._check_memory), name="memory limits"),
        ]

    def stop(self) -> None:
        self.greeted(False)
        for task in self._tasks:
            task.cancel()

    def greeted(self, connected: bool) -> None:
        """Handles that the agent sent its hello or lost the connection."""
        self._connected = connected
        if not connected:
            self._lonely_since = self._loop.time()
            if self._beating is not None:
                self._beating.cancel()
                self._beating = None

    def welcomed(self, heartbeat_s: float, stats_every_s: float) -> None:
        """Takes the intervals of the coordinator; the next measurement uses them."""
        self._stats_s = stats_every_s or self._times.stats_s
        if self._beating is not None:
            self._beating.cancel()
        self._beating = asyncio.create_task(self._every(lambda: heartbeat_s, self._beat), name="beats")

    async def _every(self, period_s: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # a task boundary: one failed turn must not end the supervision
                log.exception("A periodic task of the host agent failed.")
            await asyncio.sleep(period_s())

    async def _beat(self) -> None:
        self._beat_seq += 1
        self._services.send(HostBeat(self._beat_seq))

    async def _measure(self) -> None:
        services = self._services
        services.processes.reap()
        services.ledger.flush()
        self._restore_files()
        living = [incarnation for incarnation in self._incarnations.values() if incarnation.alive]
        usage = self._sampler.sample(incarnation.tree for incarnation in living)
        logs = [(each.entry.unit, services.logs.path(each.entry.unit, each.entry.incarnation)) for each in living]
        await asyncio.to_thread(self._errors.look, logs)
        rows = []
        for incarnation in living:
            used, unit = usage[incarnation.name], incarnation.entry.unit
            incarnation.observe(used)
            rows.append(resource_usage.on_wire(unit, incarnation.entry.incarnation, used, self._errors.of_unit(unit)))
        await self._cut_logs(living)
        await self._look_for_strays()
        services.send(
            HostStats(
                units=tuple(rows),
                cpu_percent=self._meter.cpu_percent(),
                memory_used_bytes=self._meter.memory_used_bytes(),
                disk_free_bytes=self._meter.disk_free_bytes(),
                disk_full=services.ledger.trouble or self._meter.full_disk(),
                strays=self._found,
                devices=self.device_use(),
                wall_at=time.time(),
            )
        )
        if not self._connected and self._loop.time() - self._lonely_since > self._times.lonely_s:
            self._on_lonely()

    def device_use(self) -> tuple[DeviceUse, ...]:
        """The devices with the incarnations that compute on them."""
        living = [incarnation for incarnation in self._incarnations.values() if not incarnation.over]
        known = {pid: incarnation.name for incarnation in living for pid in incarnation.tree.remembered}
        home = self._services.home

        def incarnation_of(pid: int) -> str:
            return known.get(pid) or procfs.incarnation_of(pid, home.run, home.host)

        return self._services.accelerators.use(incarnation_of)

    async def _cut_logs(self, living: list[Incarnation]) -> None:
        logs = self._services.logs
        for incarnation in living:
            most = incarnation.entry.spec.log_max_bytes
            if 0 < most < logs.size(incarnation.entry.unit, incarnation.entry.incarnation):
                await asyncio.to_thread(logs.cut_if_large, incarnation.entry.unit, incarnation.entry.incarnation, most)
        for path in self._own_logs:
            await asyncio.to_thread(cut_if_large, path, self._times.own_log_max_bytes)

    async def _look_for_strays(self) -> None:
        self._turn += 1
        if self._turn % self._times.strays_every != 1 and self._times.strays_every > 1:
            return
        before = frozenset(incarnation.name for incarnation in self._incarnations.values() if not incarnation.over)
        found = await asyncio.to_thread(self._strays.find, before, self._services.processes.own_pids())
        # An incarnation that was started during the search is not stray.
        now = frozenset(incarnation.name for incarnation in self._incarnations.values() if not incarnation.over)
        self._found = tuple(info for info in found if info.incarnation not in now)[:_MOST_STRAYS]

    async def _check_memory(self) -> None:
        limited = [
            incarnation
            for incarnation in self._incarnations.values()
            if incarnation.alive
            and incarnation.entry.spec.resources.memory_max_bytes
            and incarnation.tree.group.memory is None
        ]
        if not limited:
            return
        usage: dict[str, Usage] = self._limits.sample(incarnation.tree for incarnation in limited)
        for incarnation in limited:
            incarnation.observe(usage[incarnation.name])
