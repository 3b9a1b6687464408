"""One incarnation on this host, from the intent to the end of its last process.

* The order is: intent, process, exit, empty. Each is in the ledger before it is sent. * Exited is sent once, and
GroupEmpty once unless Exited already reports that the group is empty. * Probes end with their process. * Processes that
outlive their leader are killed without an order from the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from agentrl.errors import DiskError
from agentrl.host import spawn_environment
from agentrl.host.accelerators import Accelerators
from agentrl.host.cgroups import Cgroups, Group
from agentrl.host.child_processes import ChildProcesses, Process
from agentrl.host.ledger import Entry, Ledger
from agentrl.host.log_files import Logs
from agentrl.host.probes import Prober
from agentrl.host.process_trees import ProcessTree, Snapshot, Sweeper
from agentrl.host.resource_usage import Usage
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import (
    Exited,
    ExitStatus,
    GroupEmpty,
    ProcessState,
    Spawn,
    Spawned,
)

log = logging.getLogger(__name__)


@dataclass
class Services:
    """The services that all incarnations of an agent share."""

    home: spawn_environment.Home
    processes: ChildProcesses
    ledger: Ledger
    logs: Logs
    cgroups: Cgroups
    sweeper: Sweeper
    accelerators: Accelerators
    send: Callable[[Message], object]
    on_over: Callable[[], None]
    """Called when no process of an incarnation is left."""
    heartbeat_s: float = 2.0


@dataclass
class Incarnation:
    """One incarnation that was started, or found in the ledger."""

    services: Services
    entry: Entry
    tree: ProcessTree
    process: Process | None = None
    prober: Prober | None = None
    stopped: bool = False
    """Whether a signal has stopped it."""
    over_limit: bool = False
    """Whether the agent killed it because of its memory limit."""
    _oom_kills_seen: int = 0
    _oom_recently: bool = False
    _leader_gone: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _sweep: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def alive(self) -> bool:
        return self.process is not None

    @property
    def over(self) -> bool:
        """Whether no process of it is left."""
        return self.entry.group_empty

    @property
    def ready(self) -> bool | None:
        return self.prober.ready if self.prober is not None else None

    def start(self, command: tuple[str, ...], env: Mapping[str, str], cwd: Path | None) -> None:
        """Start the process of an intent. Raises OSError, ValueError for an impossible command, or DiskError."""
        services, entry = self.services, self.entry
        try:
            output = services.logs.open(entry.unit, entry.incarnation)
        except OSError as failed:
            path = services.logs.path(entry.unit, entry.incarnation)
            raise DiskError(
                f"Its log {path} cannot be written: {failed.strerror}.", hint="The program was not started."
            ) from failed
        try:
            self.process = services.processes.spawn_unit(
                command,
                env=env,
                cwd=cwd,
                output=output,
                cgroups=self.tree.group.paths(),
                status_file=services.ledger.status_file(self.name),
                on_exit=self.on_exit,
            )
        finally:
            os.close(output)
        identity = self.process.identity
        self.tree.leader = identity
        self._record(pid=identity.pid, start_ticks=identity.start_ticks, boot_id=identity.boot_id)
        services.send(self.spawned())
        self._probe(env, cwd)

    def adopt(self, process: Process, env: Mapping[str, str], cwd: Path | None) -> None:
        """Watch a process that an earlier agent started."""
        self.process = process
        self.tree.leader = process.identity
        self._record(pid=process.pid, start_ticks=process.start_ticks, boot_id=process.identity.boot_id)
        self._probe(env, cwd)

    def spawned(self) -> Spawned:
        return Spawned(self.entry.unit, self.entry.incarnation, self.entry.pid, self.entry.start_ticks)

    def ended(self) -> Exited:
        entry = self.entry
        return Exited(entry.unit, entry.incarnation, entry.exit or ExitStatus(), entry.tail, entry.group_empty)

    def found_dead(self, status: ExitStatus) -> None:
        """Handle that it ended while no agent was running."""
        self._over(status)

    def signal(self, number: int, *, leader_only: bool) -> None:
        if self.process is None:
            return
        if leader_only:
            self.process.signal(number)
        else:
            self.process.signal_group(number)
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT):
            # A stopped process handles the signal only after SIGCONT.
            self.process.signal_group(signal.SIGCONT)

    def kill_tree(self) -> None:
        """SIGKILL every process until none is left."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
        self.sweep()

    def observe(self, usage: Usage) -> None:
        """React to a measurement: memory limits, stops by a signal."""
        oom_kills = self.tree.group.oom_kills()
        self._oom_recently = oom_kills > self._oom_kills_seen
        self._oom_kills_seen = oom_kills
        if self.process is None:
            return
        stopped = usage.state in ("T", "t")
        if usage.state and stopped != self.stopped:
            self.stopped = stopped
            self.services.send(ProcessState(self.entry.unit, self.entry.incarnation, stopped))
        limit = self.entry.spec.resources.memory_max_bytes
        if limit and self.tree.group.memory is None and usage.rss_bytes > limit:
            log.warning("%s uses %d MiB and may use %d: killed.", self.name, usage.rss_bytes >> 20, limit >> 20)
            self.over_limit = True
            self.kill_tree()

    def stop_watching(self) -> None:
        """Stop watching, because the agent ends; the process lives on."""
        if self.prober is not None:
            self.prober.stop()
        if self._sweep is not None:
            self._sweep.cancel()

    def _probe(self, env: Mapping[str, str], cwd: Path | None) -> None:
        spec, home = self.entry.spec, self.services.home
        if spec.ready is None and spec.live is None and spec.metrics is None:
            return
        unit, incarnation = self.entry.unit, self.entry.incarnation
        ready, live, metrics = (
            spawn_environment.filled_probe(probe, home, unit) if probe is not None else None
            for probe in (spec.ready, spec.live, spec.metrics)
        )
        self.prober = Prober(
            unit=unit,
            incarnation=incarnation,
            processes=self.services.processes,
            env=spawn_environment.of_probe(env, home, unit, incarnation),
            cwd=str(cwd) if cwd else None,
            send=self.services.send,
            members=self._members,
        )
        self.prober.start(ready, live, metrics, spec.start_deadline_s)

    def _members(self) -> Collection[int]:
        leader = self.process
        if leader is None:
            return ()
        of_group = self.tree.group.members()
        return of_group if of_group is not None else Snapshot().descendants({leader.pid: "leader"})

    def on_exit(self, process: Process, status: ExitStatus) -> None:
        """Handle the end of the process of this incarnation."""
        self.process = None
        if self._killed_for_memory(status):
            status = msgspec.structs.replace(status, oom=True)
        self._over(status)

    def _killed_for_memory(self, status: ExitStatus) -> bool:
        if self.over_limit:
            return True
        kills = self.tree.group.oom_kills()
        if status.signal == signal.SIGKILL:
            return kills > 0
        # The kernel killed a child, and the leader ended because of that.
        return status.code != 0 and (kills > self._oom_kills_seen or self._oom_recently)

    def _over(self, status: ExitStatus) -> None:
        if self.prober is not None:
            self.prober.stop()
        self._leader_gone.set()
        tail = self.services.logs.tail(self.entry.unit, self.entry.incarnation)
        # Usually no process is left, which the cgroup shows at once. Then one entry and one message report both facts.
        empty = self.tree.group.populated() is False
        self._record(exit=status, tail=tail, group_empty=empty)
        self.services.send(self.ended())
        if empty:
            self._all_gone()
        else:
            self.sweep()

    def sweep(self) -> None:
        """Kill the rest of the tree, unless a sweep is already running."""
        if self.entry.exit is not None:
            self._leader_gone.set()
        if not self.over and (self._sweep is None or self._sweep.done()):
            self._sweep = asyncio.create_task(self._sweep_all(), name=f"sweep of {self.name}")

    async def _sweep_all(self) -> None:
        swept = await self.services.sweeper.empty(self.tree)
        # The exit of a leader must be reported before GroupEmpty, even if the loop sees it later.
        await self._leader_gone.wait()
        if self.over:
            return
        if swept:
            log.info("%s left %d processes, now ended.", self.name, len(swept))
        self._record(group_empty=True)
        self.services.send(GroupEmpty(self.entry.unit, self.entry.incarnation, swept))
        self._all_gone()

    def _all_gone(self) -> None:
        self.tree.group.remove()
        self.services.on_over()

    def _record(self, **changes: object) -> None:
        self.entry = msgspec.structs.replace(self.entry, **changes)
        self.services.ledger.record(self.entry)


def create_incarnation(services: Services, spawn: Spawn) -> Incarnation:
    """Write the intent. After a DiskError nothing has changed."""
    name = spawn_environment.identity_marks(services.home, spawn.unit, spawn.incarnation)["AGENTRL_INCARNATION"]
    group = services.cgroups.make(name, spawn.spec.resources.memory_max_bytes)
    entry = Entry(
        unit=spawn.unit,
        incarnation=spawn.incarnation,
        token=spawn.token,
        spec=spawn.spec,
        devices=spawn.devices,
        rank=spawn.rank,
        cgroup_tree=str(group.tree or ""),
        cgroup_memory=str(group.memory or ""),
    )
    try:
        services.ledger.intend(entry)
    except DiskError:
        group.remove()
        raise
    return Incarnation(services, entry, _tree(services, entry, group))


def incarnation_from_ledger(services: Services, entry: Entry, group: Group) -> Incarnation:
    """An incarnation that an earlier agent left in the ledger."""
    return Incarnation(services, entry, _tree(services, entry, group))


def _tree(services: Services, entry: Entry, group: Group) -> ProcessTree:
    return ProcessTree(
        name=entry.name,
        leader=entry.identity if entry.pid else None,
        group=group,
        log=services.logs.path(entry.unit, entry.incarnation),
    )
