"""The host agent: handles the coordinator's messages and owns all parts of the agent.

* It uses no socket: messages arrive by `receive` and leave by `send`.
* An incarnation is started at most once.
* Without a coordinator nothing is queued, because the next hello contains the whole ledger.
* Units live on whatever happens to the agent, and the agent lives on while units live.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from agentrl.config.run_marker import read_marker
from agentrl.config.this_host import machine_id
from agentrl.errors import AgentrlError, ConfigError, ExitCode, ProtocolError
from agentrl.host import adoption, cgroups, gang_environment, procfs, resource_usage, spawn_environment
from agentrl.host.accelerators import Accelerators
from agentrl.host.child_processes import ChildProcesses
from agentrl.host.condition import ConditionFile
from agentrl.host.coordinator_watchdog import CoordinatorWatchdog
from agentrl.host.departure import Departure
from agentrl.host.incarnation import Incarnation, Services, create_incarnation
from agentrl.host.ledger import Ledger
from agentrl.host.log_files import Logs
from agentrl.host.periodic_tasks import Intervals, PeriodicTasks
from agentrl.host.process_trees import Attribution, ProcessTree, Sweeper
from agentrl.host.request_handler import RequestHandler
from agentrl.host.tunnel_process import TunnelProcess
from agentrl.protocol import messages, wire
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Device,
    Spawn,
    SpawnFailed,
    ToHost,
    UnitOnHost,
)
from agentrl.protocol.specs import incarnation_name
from agentrl.tracing import trace_context

log = logging.getLogger(__name__)

_HELLO_BYTES = 3 << 20
"""A larger inventory omits the log lines; a message may have 4 MiB."""


class Agent:
    """One per host and run. Create it inside a running loop, then `start()`."""

    def __init__(
        self,
        home: spawn_environment.Home,
        send: Callable[[Message], bool],
        *,
        use_cgroups: bool = True,
        times: Intervals | None = None,
        finished: asyncio.Event | None = None,
        restore_files: Callable[[], None] = lambda: None,
        accelerators: Accelerators | None = None,
    ) -> None:
        self.home = home
        self.processes = ChildProcesses(home.run)
        self.incarnations: dict[str, Incarnation] = {}
        self.cgroups = cgroups.detect(home.run, home.host) if use_cgroups else cgroups.nothing()
        self.ledger = Ledger(home.state_dir / "hosts" / home.host / "ledger")
        self.finished = finished or asyncio.Event()
        """Set when the agent ends."""
        self.exit_code: int = ExitCode.OK
        self.watchdog: CoordinatorWatchdog | None = None
        self._send = send
        self._restore_files = restore_files
        self._greeted = self._welcomed = False
        self._told_devices: tuple[Device, ...] = ()
        self._exiting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._searched: set[str] = set()
        """Incarnations that are being searched for by their mark."""
        attribution = Attribution(home.run, self.processes.own_pids, self._could_be_another)
        self.services = Services(
            home=home,
            processes=self.processes,
            ledger=self.ledger,
            logs=Logs(home.run_dir),
            cgroups=self.cgroups,
            sweeper=Sweeper(attribution),
            accelerators=accelerators or Accelerators(),
            send=self.send,
            on_over=self.check_finished,
        )
        self.tunnel = TunnelProcess(home, self.send)
        self.departure = Departure(self.incarnations, self.send, self._leave)
        self._condition = ConditionFile(home.state_dir / "hosts" / home.host)
        self._trouble = ""
        self._requests = RequestHandler(self.services, self.incarnations)
        self._periodic = PeriodicTasks(
            self.services, self.incarnations, times or Intervals(), self._end_if_lonely, self._before_measurement
        )

    # ---- incarnation of the agent ----

    def start(self) -> None:
        """Adopt the processes that an earlier agent left, then start the periodic tasks."""
        if self.cgroups.problems:
            log.info("Without some cgroups: %s.", "; ".join(self.cgroups.problems))
        self.processes.become_parent_of_orphans()
        self.processes.expect_spawns()
        self.services.accelerators.start()
        self.ledger.load()
        for incarnation in adoption.adopt_all(self.services):
            self.incarnations[incarnation.name] = incarnation
        self._periodic.start()

    def guard(self, watchdog: CoordinatorWatchdog) -> None:
        """Keep a coordinator alive from now on."""
        self.watchdog = watchdog
        watchdog.start()

    async def close(self) -> None:
        """End the agent's own tasks. Units live on."""
        if self.watchdog is not None:
            self.watchdog.stop()
        self._periodic.stop()
        self.departure.close()
        await self.tunnel.closed()
        self.services.accelerators.stop()
        for incarnation in self.incarnations.values():
            incarnation.stop_watching()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.processes.close()
        if self._empty:
            self.cgroups.close()

    def run_task(self, work: Coroutine[object, object, None], name: str) -> None:
        """A task that the agent owns."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- to the coordinator ----

    def send(self, message: Message) -> bool:
        """Send a message. Returns False if no coordinator is connected; the next hello then contains what matters."""
        return self._greeted and self._send(message)

    @property
    def greeted(self) -> bool:
        return self._greeted

    def connected(self) -> None:
        """Handle a new connection to a coordinator: send the hello, with the whole ledger."""
        self._restore_files()
        self._told_devices = self.services.accelerators.devices
        self._greeted = self._send(self.hello())
        self._periodic.greeted(self._greeted)
        self.departure.announce()

    def _before_measurement(self) -> None:
        self._restore_files()
        self._write_condition()
        if self._greeted and self._told_devices != self.services.accelerators.devices:
            # The devices have changed (a card failed, or slices were made), and the hello lists them.
            self.connected()

    def disconnected(self) -> None:
        self._greeted = self._welcomed = False
        self._periodic.greeted(False)
        self._write_condition()

    def not_admitted(self, why: str, *, final: bool = False) -> None:
        """Handle that the coordinator's socket refuses this agent. `final`: it refuses the key, so it will always
        refuse."""
        if why != self._trouble:
            log.error("The coordinator's socket refuses this agent: %s", why)
        self._trouble = why
        self._write_condition()
        if final:
            self.exit_code = ExitCode.KEY_REFUSED
            self._exit_when_empty()

    def leave(self, within_s: float, why: str) -> None:
        """Let the units finish, then end, because this host goes away within that time."""
        self.departure.begin(within_s, why, joined=self._greeted)
        self._write_condition()

    def _leave(self) -> None:
        """End, because the time is over or there is nothing left to wait for."""
        if self.watchdog is not None:
            self.watchdog.end()
        self.finished.set()

    def _write_condition(self) -> None:
        self._condition.write(joined=self._welcomed, leaving=self.departure.why, trouble=self._trouble)

    def hello(self) -> messages.HostHello:
        inventory = tuple(incarnation.entry.on_wire(incarnation.ready) for incarnation in self.incarnations.values())
        hello = messages.HostHello(
            major=PROTOCOL_MAJOR,
            minor=PROTOCOL_MINOR,
            run=self.home.run,
            host=self.home.host,
            agent_pid=os.getpid(),
            agent_start_ticks=self._periodic.own_start_ticks,
            facts=resource_usage.facts(self.cgroups, self.services.accelerators),
            inventory=inventory,
            state_dir=str(self.home.state_dir),
            agent_age_s=procfs.age_s(self._periodic.own_start_ticks),
            key=self.home.host_key,
            machine_id=machine_id(),
            units_key=self.home.units_key,
            devices=self._periodic.device_use(),
        )
        if len(wire.encode(hello)) <= _HELLO_BYTES:
            return hello
        return msgspec.structs.replace(hello, inventory=tuple(map(_without_tail, inventory)))

    # ---- from the coordinator ----

    def receive_frame(self, frame: bytes) -> None:
        """Decode and handle one message from the socket."""
        try:
            message = wire.decode_from_coordinator(frame)
        except ProtocolError as broken:
            log.error("%s", broken)
            return
        if isinstance(message, ToHost):
            self.receive(message)
        else:
            log.error("A host agent has no use for %s.", type(message).__name__)

    def receive(self, message: ToHost) -> None:
        """Handle one message. Never raises for any message of a coordinator."""
        if self.watchdog is not None:
            self.watchdog.received(message, self.send)
        match message:
            case messages.Spawn():
                with trace_context.within(trace_context.parse(message.traceparent)):
                    self._spawn(message)
            case messages.SignalUnit(unit=unit, incarnation=number):
                if incarnation := self._incarnation(unit, number):
                    incarnation.signal(message.signal, leader_only=message.leader_only)
            case messages.KillTree(unit=unit, incarnation=number):
                self._kill_tree(unit, number)
            case messages.OpenTunnel():
                self.tunnel.open(message)
            case messages.TunnelPeers():
                self.tunnel.peers(message)
            case messages.RunSecrets():
                self.tunnel.secrets(message)
            case messages.Forget(incarnations=names):
                self._forget(names)
            case messages.Ask():
                self.run_task(self._answer(message), f"answer {message.ask}")
            case messages.Welcome():
                self.services.heartbeat_s = message.heartbeat_s
                self._periodic.welcomed(message.heartbeat_s, message.stats_every_s)
                self._welcomed, self._trouble = True, ""
                self._write_condition()
            case messages.WhoAreYou():
                self.connected()
            case messages.Refused():
                self._refused(message)
            case messages.AgentExit():
                self._exit_when_empty()
            case messages.BeatAck():
                pass

    def _incarnation(self, unit: str, number: int) -> Incarnation | None:
        return self.incarnations.get(incarnation_name(unit, number))

    def _spawn(self, spawn: Spawn) -> None:
        known = self._incarnation(spawn.unit, spawn.incarnation)
        if known is not None:
            self._repeat(known)
            return
        if missing := self.services.accelerators.missing(spawn.devices):
            self._failed(spawn, missing, final=False)
            return
        if taken := gang_environment.port_taken(spawn.rank):
            self._failed(spawn, taken, final=False)
            return
        try:
            env = spawn_environment.of_unit(
                spawn,
                self.home,
                self.services.heartbeat_s,
                accelerators=self.services.accelerators,
                tunnel=self.tunnel.entrance,
            )
            cwd = self._folder(spawn)
            command = tuple(spawn_environment.filled(part, self.home, spawn.unit) for part in spawn.spec.command)
            command = (spawn_environment.program(command, env, cwd), *command[1:])
        except (ConfigError, ValueError) as wrong:
            self._failed(spawn, str(wrong), final=True)
            return
        try:
            incarnation = create_incarnation(self.services, spawn)
        except AgentrlError as failed:
            self._failed(spawn, str(failed), final=False)
            return
        try:
            incarnation.start(command, env, cwd)
        except (AgentrlError, OSError, ValueError) as failed:
            # No process runs, so the entry is removed: the same Spawn may come again.
            self.ledger.forget(incarnation.name)
            incarnation.tree.group.kill()
            incarnation.tree.group.remove()
            reason = str(failed) if isinstance(failed, AgentrlError) else f"{command[0]}: {_why(failed)}."
            self._failed(spawn, reason, final=_is_final(failed))
            return
        self.incarnations[incarnation.name] = incarnation
        log.info("%s is started [%s]", incarnation.name, spawn.stimulus)
        self.services.logs.prune(spawn.unit)

    def _folder(self, spawn: Spawn) -> Path | None:
        if not spawn.spec.cwd:
            return None
        folder = Path(spawn_environment.filled(spawn.spec.cwd, self.home, spawn.unit)).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"The working directory {folder} does not exist on {self.home.host}.")
        return folder

    def _failed(self, spawn: Spawn, reason: str, *, final: bool) -> None:
        log.warning("%s.%d cannot be started: %s", spawn.unit, spawn.incarnation, reason)
        self.send(SpawnFailed(spawn.unit, spawn.incarnation, reason, final))

    def _repeat(self, incarnation: Incarnation) -> None:
        """Repeat the reports about an incarnation, for a repeated Spawn."""
        if incarnation.entry.pid:
            self.send(incarnation.spawned())
        if incarnation.entry.exit is not None:
            self.send(incarnation.ended())

    def _kill_tree(self, unit: str, number: int) -> None:
        incarnation = self._incarnation(unit, number)
        if incarnation is None:
            name = incarnation_name(unit, number)
            if name not in self._searched:
                self._searched.add(name)
                self.run_task(self._kill_by_mark(unit, number), f"look for {name}")
        elif incarnation.over:
            self._repeat(incarnation)
        else:
            incarnation.kill_tree()

    async def _kill_by_mark(self, unit: str, number: int) -> None:
        """Kill an incarnation that is not in the ledger but may live here; the coordinator always gets an answer."""
        name = incarnation_name(unit, number)
        try:
            tree = ProcessTree(name, leader=None, log=self.services.logs.path(unit, number))
            swept = await self.services.sweeper.empty(tree)
        finally:
            self._searched.discard(name)
        log.warning("%s was to be killed and is not in the ledger; %d processes had its mark.", name, len(swept))
        self.send(messages.GroupEmpty(unit, number, swept))

    def _forget(self, names: tuple[str, ...]) -> None:
        for name in names:
            incarnation = self.incarnations.get(name)
            if incarnation is not None and incarnation.over:
                incarnation.tree.group.remove()
                del self.incarnations[name]
                self.ledger.forget(name)

    def _refused(self, refused: messages.Refused) -> None:
        log.error("The coordinator refuses this agent: %s %s", refused.message, refused.hint)
        self._trouble = refused.message
        self._write_condition()
        if refused.final:
            self._greeted = False
            self.exit_code = refused.code
            self._exit_when_empty()

    def _exit_when_empty(self) -> None:
        self._exiting = True
        if self.watchdog is not None:
            self.watchdog.stop()
        self.check_finished()

    def coordinator_left(self) -> bool:
        """Handle that the coordinator ended in order, after `down`. If it did not know this agent yet, it could not
        order the agent to end. Returns whether this agent ends."""
        if not self._empty or self._searched:
            return False
        self._exit_when_empty()
        return True

    def run_was_taken(self) -> bool:
        """Handle that the coordinator ended because another one has the run. If the other one is on another host, the
        units here were replaced and must end: their writes would belong to another life of the run. Returns whether
        this agent ends.
        """
        marker = read_marker(self.home.run_dir)
        if marker is None or marker.uuid != self.home.run or marker.boot_id == procfs.boot_id():
            return False
        log.error("The run is up on host %s now. Its units on this host and this agent end.", marker.host)
        self.exit_code = ExitCode.CONFLICT
        for incarnation in self.incarnations.values():
            if not incarnation.over:
                incarnation.kill_tree()
        self._exit_when_empty()
        return True

    def _end_if_lonely(self) -> None:
        """End if there are no units and no coordinator will be started."""
        if self._empty and not (self.watchdog is not None and self.watchdog.active):
            self.finished.set()

    def check_finished(self) -> None:
        """End if the agent is to end and no unit is left."""
        if self._exiting and self._empty:
            self.finished.set()

    @property
    def _empty(self) -> bool:
        return all(incarnation.over for incarnation in self.incarnations.values())

    async def _answer(self, ask: messages.Ask) -> None:
        try:
            body = wire.raw(await self._requests.to(ask.what))
            self.send(messages.Answer(ask.ask, body=body))
        except (AgentrlError, OSError) as failed:
            code = failed.exit_code if isinstance(failed, AgentrlError) else ExitCode.FAILED
            self.send(messages.Answer(ask.ask, error=str(failed), code=int(code)))
        except Exception as broken:  # a request boundary: the coordinator waits for an answer
            log.exception("The request %s failed.", ask.what)
            self.send(messages.Answer(ask.ask, error=f"The host agent failed: {broken!r}. Its log has the traceback."))

    def _could_be_another(self, name: str, start_ticks: int) -> bool:
        """Whether another incarnation than `name` could have started a process at that time."""
        return any(
            incarnation.name != name and not incarnation.over and incarnation.entry.start_ticks <= start_ticks
            for incarnation in self.incarnations.values()
        )


def _why(failed: OSError | ValueError) -> str:
    return (isinstance(failed, OSError) and failed.strerror) or str(failed)


def _is_final(failed: Exception) -> bool:
    """Whether a retry cannot help: the command or the program's file is the cause."""
    if isinstance(failed, OSError):
        return failed.errno in (errno.ENOEXEC, errno.EACCES, errno.E2BIG)
    return isinstance(failed, ValueError)


def _without_tail(unit: UnitOnHost) -> UnitOnHost:
    return msgspec.structs.replace(unit, tail=())
