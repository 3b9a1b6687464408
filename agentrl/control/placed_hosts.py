"""Keeps the hosts of the run file placed: starts their agents, reports why one is missing, and gives machines back.

Each call of a backend is a separate process (`python -m agentrl.placement`), so the coordinator never waits for a
cluster, and survives a backend that hangs or dies.

Invariants:
- The start of a host that is not connected is repeated with growing pauses; nothing else waits for it.
- Only a host whose backend promises that its machine is gone is forgotten, and its key with it.
- A host that the run file no longer names is drained before its machine is given back.
- A host that a person removed stays away until the next `up`.
- The secret of a host goes to the backend over standard input.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl import __version__
from agentrl.config.hosts import Host
from agentrl.config.placement import Placement as Settings
from agentrl.config.run import RunConfig
from agentrl.control.context import Context
from agentrl.errors import AgentrlError, UnavailableError, error_for
from agentrl.placement import HostRequest, Invitation, Placed, PlacedRun, State
from agentrl.placement.requests import Act, Reply, Request
from agentrl.protocol.messages import AgentExit
from agentrl.supervision import events

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
CALL_WITHIN_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
FIRST_IN_QUEUE_S, LONGEST_IN_QUEUE_S = 0.5, 5.0
LEAVES_WITHIN_S = 5.0
STARTS_END_WITHIN_S = 30.0
LOST_TRIES, SILENT_TRIES = 2, 5
"""After this many failed starts, or this many tries without a hello of a living agent, no command waits for the
host."""
_ANY = ("", "*", "0.0.0.0", "[::]", "::")


@dataclass(slots=True)
class Try:
    """The attempts to place one host."""

    next_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    in_queue_s: float = FIRST_IN_QUEUE_S
    failures: int = 0
    lost: str = ""
    """The reason why its last machine is gone."""

    def failed(self, now: float) -> None:
        self.failures += 1
        self.next_at = now + self.pause_s
        self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s)

    def waits(self, now: float) -> None:
        """Plans the next check of a host that is in a queue. The first checks are frequent, because the wait is often
        short."""
        self.next_at = now + self.in_queue_s
        self.in_queue_s = min(LONGEST_IN_QUEUE_S, 1.5 * self.in_queue_s)


class PlacedHosts:
    """`forget(host, why)` forgets a host whose machine is gone."""

    def __init__(self, context: Context, state_dir: Path, forget: Callable[[str, str], None]) -> None:
        self._context = context
        self._run = PlacedRun(context.run.uuid, context.run.name, str(state_dir))
        self._forget = forget
        self._settings = Settings()
        self._hosts: dict[str, Host] = {}
        self._listen = ""
        self._tries: dict[str, Try] = {}
        self._dismissed: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def configure(self, config: RunConfig) -> None:
        """Applies a changed configuration: failed hosts are tried again at once."""
        placed = config.placement.kind != "local"
        self._settings, self._listen = config.placement, config.coordinator.listen
        here = self._context.host
        self._hosts = {name: host for name, host in config.all_hosts.items() if name != here} if placed else {}
        self._tries = {}
        self._dismissed.clear()
        self._look_at = 0.0
        for host in self._context.state.in_vain & self._hosts.keys():
            # The obstacle may have been removed.
            self._await(host, f"{self._settings.kind} starts it")

    def look(self, now: float) -> None:
        """Start missing hosts and end hosts that are no longer wanted. May be called often."""
        context = self._context
        if now < self._look_at or context.ending or not context.state.run.up:
            return
        self._look_at = now + LOOK_EVERY_S
        if self._task is not None and not self._task.done():
            return
        missing = self._missing(now)
        surplus = self._surplus()
        if missing or surplus:
            self._task = asyncio.create_task(self._work(missing, surplus), name="placement of hosts")

    def forgotten(self, host: str) -> None:
        """Handles that a host was forgotten: its next machine gets another key."""
        try:
            self._context.keyring.end_key_of_host(host, self._context.clock.now())
        except (AgentrlError, OSError) as failed:
            log.error("the key of host %s is not removed: %s", host, failed)

    def dismissed(self, host: str) -> None:
        """Handles that a person removed the host or declared it gone: it stays away until the next `up`."""
        self._dismissed.add(host)
        self._context.happened(events.HostAwaited(host=host, why=""))

    # ---- at the end of the run ----

    def placed(self) -> list[str]:
        """The hosts whose machines may have been taken for this run."""
        return sorted({*self._context.keyring.placed_hosts(), *self._hosts})

    async def gone(self, host: str) -> str:
        """The reason why no process of this host can be left, if its placement promises that; empty otherwise."""
        if host not in self.placed():
            return ""
        try:
            described = await self._call("describe")
        except AgentrlError:
            return ""
        return next((one.why for one in described if one.host == host and one.state is State.GONE), "")

    async def release(self) -> str:
        """End the living agents and give all machines back. Returns sentences on what could not be proven."""
        if not (hosts := self.placed()):
            return ""
        if self._task is not None:
            # Otherwise a start that is under way would complete after the end.
            await asyncio.wait((self._task,), timeout=STARTS_END_WITHIN_S)
            self._task.cancel()
        await self._until_left(hosts)
        try:
            await self._call("release", hosts=tuple(hosts))
        except AgentrlError as failed:
            return str(failed)
        for host in hosts:
            self.forgotten(host)
        return ""

    # ---- while the run lives ----

    def _missing(self, now: float) -> list[str]:
        connected = set(self._context.peers.hosts())
        wanted = [host for host in self._hosts if host not in self._dismissed]
        absent = [host for host in wanted if not self._is_here(host, connected)]
        self._tries = {host: self._tries.get(host, Try()) for host in absent}
        return [host for host, tried in self._tries.items() if tried.next_at <= now]

    def _is_here(self, host: str, connected: Collection[str]) -> bool:
        # The connection of a machine that is cut off stays open for a long time.
        return host in connected and not self._context.state.is_silent(host)

    def _surplus(self) -> list[str]:
        """Empty hosts that the run file no longer names. Hosts that are not empty yet are drained first."""
        state, found = self._context.state, []
        for host in self._context.keyring.placed_hosts():
            if host in self._hosts:
                continue
            if not state.holds_units(host):
                found.append(host)
            elif host not in state.run.draining_hosts:
                self._context.happened(events.HostDrained(host=host, by=""))
        return found

    async def _work(self, missing: list[str], surplus: list[str]) -> None:
        if surplus:
            await self._give_back(surplus)
        if missing:
            await self._start(missing)

    async def _start(self, hosts: list[str]) -> None:
        for host in hosts:
            if host not in self._context.state.awaited:
                self._await(host, f"{self._settings.kind} starts it")
        try:
            wanted = tuple(map(self._wanted, hosts))
            placed = await self._call("ensure", wanted=wanted)
        except AgentrlError as failed:
            placed = tuple(Placed(host, State.LOST, why=failed.message, hint=failed.hint) for host in hosts)
        for one in placed:
            if one.host in self._hosts and not self._is_here(one.host, self._context.peers.hosts()):
                self._placed(one)

    def _placed(self, one: Placed) -> None:
        now, tried = self._context.clock.now(), self._tries.setdefault(one.host, Try())
        match one.state:
            case State.GONE:
                # If machines are taken away repeatedly before their agent joins, there is no reason to hurry.
                if tried.lost:
                    tried.failed(now)
                tried.lost = one.why
                self._take_out(one)
                if one.dismissed:
                    self._dismissed.add(one.host)
                why = f"{one.why}; `agentrl up` starts it again" if one.dismissed else one.why
                self._await(one.host, why, in_vain=one.dismissed)
            case State.STARTING:
                tried.waits(now)
                self._await(one.host, "; ".join(filter(None, (tried.lost, one.why or "it starts"))))
            case State.ALIVE:
                tried.failed(now)
                why = f"its agent has not joined yet ({one.where})"
                self._await(one.host, why, in_vain=tried.failures >= SILENT_TRIES)
            case State.LOST:
                tried.failed(now)
                self._await(one.host, f"{one.why} {one.hint}".strip(), in_vain=tried.failures >= LOST_TRIES)

    def _take_out(self, one: Placed) -> None:
        """Takes out a host whose machine is gone: its units are dead, and others may take their place at once."""
        context = self._context
        context.audit("placement", one.host, one.why)
        host = context.state.hosts.get(one.host)
        if host is not None and host.connected:
            context.happened(events.HostSilent(host=one.host, for_s=0.0, reporting=frozenset()))
        self._forget(one.host, one.why)

    def _await(self, host: str, why: str, *, in_vain: bool = False) -> None:
        context = self._context
        context.observed.awaited_since.setdefault(host, context.clock.now())
        if self._is_here(host, context.peers.hosts()):
            return
        if context.state.awaited.get(host) != why or in_vain != (host in context.state.in_vain):
            log.info("host %s: %s", host, why)
            context.happened(events.HostAwaited(host=host, why=why, in_vain=in_vain))
            context.operations.hosts_changed()

    async def _give_back(self, hosts: list[str]) -> None:
        for host in hosts:
            self._context.peers.send_to_host(host, AgentExit())
        await self._until_left(hosts)
        try:
            await self._call("release", hosts=tuple(hosts))
        except AgentrlError as failed:
            log.error("%s", failed)
            return
        for host in hosts:
            self._context.happened(events.HostAwaited(host=host, why=""))
            self._forget(host, "the run file does not name it any more")
            self.forgotten(host)

    async def _until_left(self, hosts: Collection[str]) -> None:
        clock = self._context.clock
        deadline = clock.now() + LEAVES_WITHIN_S
        while set(hosts) & set(self._context.peers.hosts()) and clock.now() < deadline:
            await asyncio.sleep(0.01)

    def _wanted(self, host: str) -> HostRequest:
        context, given = self._context, self._hosts[host]
        key = context.keyring.key_of_host(host, context.clock.now())
        slurm = self._settings.slurm
        invitation = Invitation(
            host=host,
            run=context.run.uuid,
            version=__version__,
            state_dir=given.disk,
            run_dir=given.dir or context.run.run_dir,
            coordinator=_reachable(self._listen),
            key_name=key.name,
            public=key.public,
            secret=key.secret,
            server_public=key.server_public,
            leave_within_s=slurm.drain_s if slurm is not None else 0.0,
        )
        return HostRequest(host, invitation, given.node)

    async def _call(
        self, act: Act, *, wanted: tuple[HostRequest, ...] = (), hosts: tuple[str, ...] = ()
    ) -> tuple[Placed, ...]:
        """Calls the backend. Raises AgentrlError if the backend as a whole fails."""
        request = Request(act, self._settings.model_dump(mode="json"), self._run, wanted, hosts)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentrl.placement"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(CALL_WITHIN_S):
                output, complaint = await process.communicate(msgspec.json.encode(request))
        except TimeoutError:
            raise UnavailableError(f"The placement {self._settings.kind} did not answer in time.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            reply = msgspec.json.decode(output, type=Reply)
        except msgspec.DecodeError:
            last = (complaint.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
            raise UnavailableError(f"The placement {self._settings.kind} failed: {last}") from None
        if reply.error:
            raise error_for(reply.code, reply.error, reply.hint)
        return reply.placed


def _reachable(listen: str) -> str:
    """An address for other hosts: `0.0.0.0`, which means every address of this host, is replaced by its name."""
    host, _, port = listen.removeprefix("tcp://").rpartition(":")
    return f"tcp://{socket.gethostname() if host in _ANY else host}:{port}"
