"""Implements the coordinator: creates its parts, connects them, and runs until `down`.

Invariants:
- The coordinator locks the state directory, and claims the run directory, before it opens any other file or socket.
- A coordinator that is killed at any moment loses nothing that was accepted.
- Every event goes to the supervisor, and every act on a unit is an instruction of the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path

import msgspec

from agentrl import __version__
from agentrl.config import paths
from agentrl.config.paths import RunFile, read_run
from agentrl.config.run import RunConfig
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.config.this_host import this_host
from agentrl.control import recovery
from agentrl.control.alerts.alert_service import AlertService
from agentrl.control.background_tasks import restarting_task
from agentrl.control.clock import Clock
from agentrl.control.commands import command_effects
from agentrl.control.commands.active_config import ActiveConfig
from agentrl.control.commands.collect_stacks import Stacks
from agentrl.control.commands.desired_state_commands import DesiredState
from agentrl.control.commands.key_commands import KeyCommands
from agentrl.control.commands.knob_commands import Tuning
from agentrl.control.commands.past_batches_effect import PastBatchesPreview
from agentrl.control.commands.prepared import Prepare, preparing
from agentrl.control.commands.staleness_effect import StalenessPreview
from agentrl.control.context import Context
from agentrl.control.coordinator_traces import CoordinatorTraces
from agentrl.control.feed_recorder import FeedRecorder
from agentrl.control.handlers.client_queries import Queries
from agentrl.control.handlers.client_requests import ClientHandler
from agentrl.control.handlers.command_forwarding import ServedCommands
from agentrl.control.handlers.hosts import HostHandler
from agentrl.control.handlers.rollback import Rollback
from agentrl.control.handlers.units import UnitHandler
from agentrl.control.host_admission import HostAdmission
from agentrl.control.host_agent_watch import HostAgentWatch
from agentrl.control.host_departures import HostDepartures
from agentrl.control.host_removal import HostRemoval
from agentrl.control.host_tunnels import HostTunnels
from agentrl.control.incidents import SHOWN, Incidents
from agentrl.control.instruction_handler import InstructionHandler
from agentrl.control.instruction_queue import Executor
from agentrl.control.key_rotation import KeyRotation
from agentrl.control.local_peers import LocalPeers
from agentrl.control.message_router import MessageRouter
from agentrl.control.messaging.peers import Peers
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.metrics_listener import MetricsListener
from agentrl.control.own_files import OwnFiles
from agentrl.control.periodic_checks import PeriodicChecks
from agentrl.control.persistence import address_file
from agentrl.control.persistence.journal import Journal
from agentrl.control.persistence.keyring import Keyring
from agentrl.control.persistence.state_lock import RunDirMarker, StateLock
from agentrl.control.persistence.stored_values import StoredValues
from agentrl.control.placed_hosts import PlacedHosts
from agentrl.control.progress_watch import ProgressWatch
from agentrl.control.shutdown import Shutdown
from agentrl.control.state.bottleneck import BottleneckDetector
from agentrl.control.state.disk_forecast import DiskForecast
from agentrl.control.state.feed_publisher import Feed
from agentrl.control.state.knob_registry import KnobRegistry
from agentrl.control.state.observed_state import CoordinatorStatus, ObservedState
from agentrl.control.state.operations import Operation, Operations
from agentrl.control.state.progress import ProgressTracker
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.control.tcp_listener import TcpListener
from agentrl.errors import ConfigError, ConflictError
from agentrl.protocol import control_commands
from agentrl.protocol.effects import Effect
from agentrl.protocol.wire import encode
from agentrl.supervision.liveness import Leases
from agentrl.supervision.supervisor import Supervisor
from agentrl.supervision.unit_slots import WITH_PROCESS
from agentrl.transport import addresses
from agentrl.transport.hub import Hub
from agentrl.transport.publisher import Publisher
from agentrl.transport.tcp_authentication import Gate

log = logging.getLogger(__name__)


class Coordinator:
    """One process lifetime of a coordinator: `await serve()` returns at its end."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._clock = Clock()
        self._ended = asyncio.Event()
        self._lost: ConflictError | None = None
        run = read_run(state_dir)
        if run is None or run.broken:
            raise ConfigError(
                f"{state_dir} is not the state directory of a run: {run.broken if run else 'it has no run.json.'}",
                hint="`agentrl up` makes one.",
            )
        self._run = run
        host = this_host(state_dir).name
        self._lock = StateLock.acquire(state_dir, host=host, at=self._clock.now())
        self._identity = address_file.own_identity()
        self._marker = RunDirMarker(Path(run.run_dir), host, self._identity.boot_id, run.name, run.uuid)
        try:
            self._marker.refresh(self._clock.now())
        except ConflictError:
            self._lock.release()
            raise
        self._keyring = Keyring.open(state_dir)
        server_keys = self._keyring.server_keys()
        self._public = server_keys.public
        self._gate = Gate(server_keys, self._key_name)
        # Computed once: a directory that is removed later would lead to other addresses.
        self._address = addresses.hub_address(run.uuid)
        self._feed_address = addresses.feed_address(run.uuid)
        self._metrics_address = addresses.metrics_address(run.uuid)
        self._feed_out = Publisher(
            self._feed_address, gate=self._gate, on_subscribed=self._beat, may_read=self._may_read
        )
        self._metrics_out = Publisher(self._metrics_address, gate=self._gate, may_read=self._may_read)
        journal = Journal.open(state_dir / "journal.sqlite", at=self._clock.now())
        self._traces = CoordinatorTraces(run.name)
        self._context = self._make_context(run, host, journal)
        self._wire(run)

    def _key_name(self, public: str) -> str | None:
        found = self._keyring.lookup(public)
        return found[0] if found is not None else None

    def _may_read(self, pid: int, uid: int) -> bool:
        return self._context.local_peers.may_read(pid, uid)

    def _beat(self) -> None:
        now = self._clock.now()
        self._context.feed.beat(now, now)

    # ---- creation ----

    def _make_context(self, run: RunFile, host: str, journal: Journal) -> Context:
        times = SupervisionTimes()
        self._stored = StoredValues(journal)
        recovery.follow_clock(self._stored, self._clock, self._identity.boot_id)
        state = recovery.load_state(self._stored, self._clock.now())
        state.data_host, state.run_id = host, run.uuid
        leases = Leases(times.suspect_after_s, times.dead_after_s)
        epoch = secrets.token_hex(8)
        return Context(
            run=run,
            epoch=epoch,
            secret=recovery.run_secret(journal),
            host=host,
            clock=self._clock,
            own_status=CoordinatorStatus(started=self._clock.now(), pid=self._identity.pid),
            state=state,
            supervisor=Supervisor(state, times),
            leases=leases,
            host_leases=Leases(times.host_silent_after_s, times.host_silent_after_s),
            observed=ObservedState(state, leases),
            journal=journal,
            executor=Executor(journal, state, lambda instruction: self._instructions.perform(instruction)),
            feed=Feed(epoch, self._feed_out.publish),
            operations=Operations(state, self._operation_changed),
            knobs=KnobRegistry(),
            keyring=self._keyring,
            metrics=MetricStore(),
            bottleneck=BottleneckDetector(),
            disks=DiskForecast(),
            progress=ProgressTracker(),
            peers=Peers(),
            local_peers=LocalPeers(run.uuid, state),
            publish_metrics=self._metrics_out.publish,
        )

    def _wire(self, run: RunFile) -> None:
        context = self._context
        requests = PendingRequests(context.peers)
        self._incidents = Incidents(context)
        units = UnitHandler(context, requests, self._incidents)
        self._admission = HostAdmission(context, recovery.load_hosts(self._stored), self._state_dir)
        tunnels = HostTunnels(context, self._state_dir)
        self._placed = PlacedHosts(context, self._state_dir, lambda host, why: self._admission.forget(host, gone=why))
        self._admission.on_forgotten += [tunnels.forgotten, self._placed.forgotten]
        self._admission.on_dismissed = self._placed.dismissed
        self._rotation = KeyRotation(context, self._state_dir, tunnels)
        self._departures = HostDepartures(context, self._admission.forget, self._ended.set)
        self._removal = HostRemoval(context, requests, self._admission, self._rebind)
        hosts = HostHandler(context, requests, self._incidents, self._admission, tunnels, self._departures)
        self._settings = ActiveConfig(context, self._state_dir)
        self._queries = Queries(context, requests, lambda all: self._alerting.rows(all))
        self._alerting = AlertService(context, self._queries.chains)
        self._recorder = FeedRecorder(context, self._state_dir)
        shutdown = Shutdown(context, requests, self._placed, self._ended.set)
        self._instructions = InstructionHandler(context, self._incidents, tunnels, units.died, shutdown.all_stopped)
        served = ServedCommands(context, requests)
        counted = (StalenessPreview(context, served.ask).extend, PastBatchesPreview(context, served.ask).extend)
        tuning = Tuning(context, self._settings, requests, counted)
        rollback = Rollback(context, self._settings, served)
        commands = {**self._commands(Stacks(context, requests)), **tuning.table, **served.table, **rollback.table}
        owners = {
            **dict.fromkeys(tuning.table, tuning.ask_owner),
            **dict.fromkeys(served.table, served.prepare),
            **dict.fromkeys(rollback.table, rollback.ask_steward),
        }
        self._clients = ClientHandler(context, self._queries.handlers, commands, owners, served)
        router = MessageRouter(context, units, hosts, self._clients, self._admission)
        self._hub = Hub(
            self._address,
            addresses.former_hub_address(run.uuid),
            gate=self._gate,
            on_message=router.on_message,
            on_gone=router.on_gone,
        )
        self._instructions.hub_address = self._address
        context.peers.hub = self._hub
        context.executor.on_full = context.show_run
        context.executor.on_set_aside = self._incidents.entry_set_aside
        self._listener = TcpListener(self._hub, self._feed_out, self._metrics_out, self._listener_changed)
        self._outside = MetricsListener(self._queries.snapshot, self._exporting_changed)
        self._settings.may_refuse = self._may_refuse
        self._settings.on_times = hosts.send_times
        configures = (self._alerting, self._listener, self._outside, self._recorder, tunnels, self._placed)
        self._settings.on_config += [each.configure for each in configures]
        self._settings.on_config.append(self._traces.configure)

    def _commands(self, stacks: Stacks) -> dict[str, Prepare]:
        alerting = self._alerting
        return {
            **DesiredState(self._context, self._settings).table,
            **KeyCommands(self._context, self._rebind).table,
            "acknowledge": preparing(alerting.preview_acknowledge, alerting.acknowledge),
            "silence": preparing(alerting.preview_silence, alerting.silence),
            "test_alert": preparing(alerting.preview_test, alerting.test),
            "forget_host": preparing(self._preview_forget, self._forget_host),
            "stacks": stacks.prepare,
            **self._removal.table,
            **self._rotation.table,
        }

    def _preview_forget(self, args: control_commands.ForgetHost) -> Effect:
        return command_effects.of_forget_host(self._context.state, args.host)

    def _forget_host(self, operation: Operation, args: control_commands.ForgetHost) -> None:
        self._admission.forget(args.host, by=operation.id)

    def _may_refuse(self, config: RunConfig) -> None:
        self._listener.check(config)
        self._outside.check(config)

    def _rebind(self) -> None:
        self._feed_out.rebind()
        self._metrics_out.rebind()

    # ---- life ----

    async def serve(self) -> None:
        """Returns after `down` has ended, or `stop` was called. Raises ConflictError if another coordinator took the
        lock."""
        self._open()
        progress = ProgressWatch(self._context, self._queries.chains)
        shown = (progress.tick, self._alerting.tick, self._recorder.tick, self._incidents.check_supervisor)
        of_hosts = (self._admission.forget_silent, self._departures.look, self._removal.tick, self._placed.look)
        ticks = (*shown, self._own_files().tick, *of_hosts, self._rotation.tick)
        checks = PeriodicChecks(self._context, ticks)
        watch = HostAgentWatch(self._context, self._state_dir, self._incidents.host_agent_failed)
        tasks = [restarting_task("periodic checks", checks.run), restarting_task("host agent watch", watch.run)]
        try:
            await self._ended.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close()
        if self._lost is not None:
            raise self._lost

    def _own_files(self) -> OwnFiles:
        return OwnFiles(
            self._context,
            lambda: self._lock.restore(host=self._context.host, at=self._clock.now()),
            self._mark,
            {
                "the journal": self._context.journal.restore,
                "the socket for commands": self._hub.restore_file,
                "the socket of the feed": self._feed_out.restore_file,
                "the socket of the metrics": self._metrics_out.restore_file,
                address_file.FILE: self._write_address,
                paths.RUN_FILE: self._restore_run_file,
            },
            self._lock_lost,
        )

    def _mark(self) -> bool:
        self._marker.refresh(self._clock.now())
        return False

    def _lock_lost(self, lost: ConflictError) -> None:
        self._lost = lost
        self._ended.set()

    def _restore_run_file(self) -> bool:
        found = read_run(self._state_dir)
        if found is None:
            paths.restore_run(self._state_dir, self._run)
            return True
        # Another process may have added files to the directory.
        self._run = found
        return False

    def stop(self) -> None:
        """End the coordinator. The units keep working."""
        self._ended.set()

    def _open(self) -> None:
        context = self._context
        self._gate.start()
        self._hub.start()
        self._feed_out.start()
        self._metrics_out.start()
        context.operations.restore(recovery.load_operations(self._stored))
        self._settings.restore()
        self._alerting.restore(self._stored)
        # Clients and recordings of this lifetime also show what happened before it.
        for operation in context.operations.all():
            context.feed.set(f"op/{operation.id}", operation.row(), urgent=True)
        self._incidents.restore(recovery.load_incidents(self._stored, SHOWN))
        for knob in context.knobs.names():
            context.show_knob(knob)
        now = context.clock.now()
        self._lease_living_units()
        context.executor.add(context.supervisor.resume(now, f"resume-{context.epoch[:6]}"))
        self._clients.begin_again()
        context.show_run()
        self._write_address()
        for entry in self._stored.unreadable:
            self._incidents.entry_unreadable(entry)
        if context.journal.damage:
            log.critical("%s", context.journal.damage)
            context.audit("coordinator", "journal", context.journal.damage)
        log.info("the coordinator of %s is up (epoch %s)", context.run.name, context.epoch)

    def _lease_living_units(self) -> None:
        """Units and hosts that lived when the last coordinator died must send heartbeats within their usual time."""
        for slot in self._context.state.slots.values():
            for ghost in slot.ghosts:
                self._context.lease_host(ghost.host)
            if slot.tree_gone:
                continue
            self._context.lease_host(slot.host)
            if slot.state in WITH_PROCESS and slot.spec is not None and slot.spec.speaks and slot.came_up:
                self._context.lease_unit(slot.unit)

    def _listener_changed(self) -> None:
        self._context.own_status.not_listening = self._listener.trouble
        self._context.show_run()
        self._write_address()

    def _exporting_changed(self) -> None:
        self._context.own_status.not_exporting = self._outside.trouble
        self._context.show_run()

    def _write_address(self) -> bool:
        run = self._run
        return address_file.CoordinatorAddress(
            **msgspec.structs.asdict(self._identity),
            host=self._context.host,
            run=run.uuid,
            name=run.name,
            address=self._address,
            feed=self._feed_address,
            metrics=self._metrics_address,
            listen=self._listener.address,
            public=self._public,
            started_at=self._context.own_status.started,
            version=__version__,
        ).write(self._state_dir)

    def _close(self) -> None:
        if self._lost is None:
            self._context.executor.flush()
        for part in (self._clients, self._alerting, self._recorder, self._instructions, self._listener, self._outside):
            part.close()
        self._traces.close()
        for opened in (self._hub, self._feed_out, self._metrics_out, self._gate):
            opened.close()
        if self._lost is None:  # otherwise these files belong to another coordinator
            self._marker.remove()
            if not self._departures.own_host_left:
                address_file.remove(self._state_dir)  # the remaining file shows that the run was not taken down
            addresses.remove_sockets(self._run.uuid)
        self._context.journal.close()
        self._lock.release()

    def _operation_changed(self, operation: Operation) -> None:
        context = self._context
        context.executor.put("operation", operation.id, encode(operation))
        context.feed.set(f"op/{operation.id}", operation.row(), urgent=True)
        if operation.state.ended:
            context.executor.event("operation", operation.id, operation.accepted_at, encode(operation.row()))
            self._traces.operation_ended(operation)
        for id in context.operations.forgotten:
            context.executor.put("operation", id, None)
            context.feed.remove(f"op/{id}")
        context.operations.forgotten.clear()
