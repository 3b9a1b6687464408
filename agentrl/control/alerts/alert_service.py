"""Runs the alert engine in the coordinator: evaluates the rules every second, publishes, journals and notifies.

Invariants:
- The journal holds the alerts that fired and the notifications that were delivered, so neither a restart nor a new
  configuration repeats or loses a notification.
- A failing sink never delays the coordinator, and its failure is in the audit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.config.alerts import DeadMan, Sinks
from agentrl.config.run import RunConfig
from agentrl.control.alerts.alert_states import AlertEngine, AlertTimes, LastDelivery, Notification, Silence
from agentrl.control.alerts.builtin_rules import default_rules
from agentrl.control.alerts.delivery_queues import DeadManPing, Dispatcher, sinks_of
from agentrl.control.alerts.rule_types import RunSnapshot, declared_rule, metrics_read
from agentrl.control.alerts.sinks import running_commands
from agentrl.control.background_tasks import restarting_task
from agentrl.control.context import Context
from agentrl.control.persistence.stored_values import StoredValues
from agentrl.control.state.operations import Goal, Operation
from agentrl.control.state.unit_metrics import MemoryWatch
from agentrl.errors import UsageError
from agentrl.protocol import control_commands
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import Permission
from agentrl.protocol.rows import AlertRow, AlertState, HostRow, IncidentRow, OperationState, RunRow, Severity, UnitRow
from agentrl.protocol.wire import encode
from agentrl.telemetry.data_plane_metrics import BASE_VERSION, CANARY_AT, CANARY_LARGEST, CHECKPOINTS_DAMAGED, STEP
from agentrl.telemetry.learning_metrics import LEARNING

EVALUATE_EVERY_S = 1.0
MOST_SHARE = 0.02
"""Share of a processor core that the rules may take. With ten thousand units they are evaluated less often."""
CLEAR_S = 15.0


class AlertService:
    def __init__(self, context: Context, chains: Callable[[], list[WaitChain]]) -> None:
        self._context = context
        self._chains = chains
        self._engine = AlertEngine(default_rules())
        self._dispatcher = Dispatcher(())
        self._sinks = Sinks()
        self._dead_man: DeadMan | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._ping: asyncio.Task[None] | None = None
        self._tests: set[asyncio.Task[None]] = set()
        self._evaluate_at = 0.0

    # ---- configuration ----

    def restore(self, stored: StoredValues) -> None:
        alerts = stored.all("alert", AlertRow).values()
        silences = stored.all("silence", Silence).values()
        delivered = stored.all("told", LastDelivery).values()
        over = not self._context.state.run.up
        self._engine.restore(alerts, silences, self._context.clock.now(), delivered, over=over)
        for row in self._engine.rows():
            self._context.feed.set(f"alert/{row.id}", row, urgent=True)

    def configure(self, config: RunConfig) -> None:
        """Takes new rules and sinks. Active alerts stay active, and queued notifications are delivered."""
        built_in = default_rules(config.alerts.disable, memory_window_s=config.alerts.memory_window_s)
        self._engine.set_rules([*built_in, *map(declared_rule, config.alerts.rules)])
        times = config.supervision
        self._engine.times = AlertTimes(
            clear_s=min(CLEAR_S, 2 * times.suspect_after_s),
            settle_s=3 * times.host_silent_after_s,
            repeat_s=config.alerts.repeat_s,
        )
        self._context.metrics.name(
            metrics_read(config.alerts.rules)
            | LEARNING.keys()
            | {STEP.name, BASE_VERSION.name, CANARY_AT.name, CANARY_LARGEST.name, CHECKPOINTS_DAMAGED.name}
        )
        self._context.disks.watch(config.alerts.disk_window_s)
        self._context.metrics.watch_memory(MemoryWatch(config.alerts.memory_window_s))
        permission = config.alerts.permission
        self._context.local_peers.alert_programs = running_commands
        self._context.local_peers.alert_permission = Permission(permission) if permission else None
        self._deliver_to(config.alerts.sinks)
        self._ping_for(config.alerts.dead_man)

    def _deliver_to(self, sinks: Sinks) -> None:
        if sinks == self._sinks and self._delivery is not None:
            return
        if self._delivery is not None:
            self._delivery.cancel()
        self._sinks = sinks
        self._dispatcher = Dispatcher(
            sinks_of(sinks, self._run_dir),
            on_failure=self._sink_failed,
            on_delivered=self._delivered,
            previous=self._dispatcher,
        )
        self._delivery = restarting_task("alert sinks", self._dispatcher.run)

    def _ping_for(self, dead_man: DeadMan | None) -> None:
        if dead_man == self._dead_man:
            return
        if self._ping is not None:
            self._ping.cancel()
        self._dead_man, self._ping = dead_man, None
        if dead_man is not None:
            self._ping = restarting_task(
                "dead-man ping", DeadManPing(dead_man, self._run_dir, self._context.clock.now).run
            )

    @property
    def _run_dir(self) -> Path:
        return Path(self._context.run.run_dir)

    def _delivered(self, notification: Notification) -> None:
        """Journals the delivery, so that the next coordinator does not repeat it."""
        alert = notification.alert
        delivery = LastDelivery(alert.id, alert.since_at, ended=notification.what == "resolved")
        self._context.executor.put("told", alert.id, encode(delivery))

    def _sink_failed(self, sink: str, sentence: str) -> None:
        """Puts the failure into the audit, because people who rely on the sink would not see it."""
        if sentence:
            self._context.audit("coordinator", "alerts", f"the sink {sink} does not deliver: {sentence}")

    def close(self) -> None:
        for task in (self._delivery, self._ping, *self._tests):
            if task is not None:
                task.cancel()

    # ---- evaluation ----

    def tick(self, now: float) -> None:
        if now < self._evaluate_at or not self._context.state.run.desired_by:
            return
        began = time.thread_time()
        self._evaluate(now)
        self._evaluate_at = now + max(EVALUATE_EVERY_S, (time.thread_time() - began) / MOST_SHARE)

    def _evaluate(self, now: float) -> None:
        rows = self._context.feed.rows
        run = self._context.feed.get("run")
        snapshot = RunSnapshot(
            run=run if isinstance(run, RunRow) else None,
            units={r.unit: r for r in rows(("unit",)).values() if isinstance(r, UnitRow)},
            hosts={r.host: r for r in rows(("host",)).values() if isinstance(r, HostRow)},
            chains=self._chains(),
            metrics=self._context.metrics,
            incidents={r.id: r for r in rows(("incident",)).values() if isinstance(r, IncidentRow)},
            standing_still=tuple(self._context.progress.standing_still(now)),
            scientific_changes=self._context.knobs.scientific_changes,
        )
        changes = self._engine.evaluate(snapshot, now, now)
        for row in changes.changed:
            self._publish(row, moved=row.id in changes.moved)
        for id in changes.gone:
            self._context.feed.remove(f"alert/{id}")
            self._context.executor.put("alert", id, None)
            self._context.executor.put("told", id, None)
        for notification in changes.notify:
            self._dispatcher.offer(notification)

    def _publish(self, row: AlertRow, *, moved: bool) -> None:
        self._context.feed.set(f"alert/{row.id}", row, urgent=moved)
        if moved and row.state is not AlertState.PENDING:
            now = self._context.clock.now()
            self._context.executor.put("alert", row.id, encode(row))
            self._context.executor.event("alert", f"{row.id}@{row.since_at:.3f}:{row.state}", now, encode(row))

    # ---- commands and queries ----

    def rows(self, all: bool) -> list[AlertRow]:
        return self._engine.rows(all=all)

    def preview_acknowledge(self, args: control_commands.Acknowledge) -> Effect:
        row = self._engine.to_acknowledge(args.id)
        return Effect(changes=(f"{args.id} is acknowledged",) if row.state is AlertState.FIRING else ())

    def acknowledge(self, operation: Operation, args: control_commands.Acknowledge) -> dict[str, Goal]:
        row = self._engine.acknowledge(args.id, operation.who)
        self._publish(row, moved=True)
        return {}

    def preview_silence(self, args: control_commands.Silence) -> Effect:
        if not 0 <= args.for_s <= 30 * 86_400:
            raise UsageError(f"A silence lasts between 0 s (ends it) and 30 days, not {args.for_s:g} s.")
        self._engine.to_silence(args.id)
        change = f"{args.id} is silenced for {args.for_s:g} s" if args.for_s else f"{args.id} is notified again"
        return Effect(changes=(change,))

    def silence(self, operation: Operation, args: control_commands.Silence) -> dict[str, Goal]:
        now = self._context.clock.now()
        for row in self._engine.silence(args.id, args.for_s, who=operation.who, why=args.why, at=now):
            self._publish(row, moved=True)
        stored = next((silence for silence in self._engine.silences() if silence.rule == args.id), None)
        self._context.executor.put("silence", args.id, encode(stored) if stored else None)
        return {}

    def preview_test(self, args: control_commands.SendTestAlert) -> Effect:
        return Effect(changes=("a test notification is sent to every sink",))

    def test(self, operation: Operation, args: control_commands.SendTestAlert) -> None:
        operation.by_itself = True
        task = asyncio.create_task(self._test(operation), name="test alert")
        self._tests.add(task)
        task.add_done_callback(self._tests.discard)

    async def _test(self, operation: Operation) -> None:
        context, now = self._context, self._context.clock.now()
        row = AlertRow(
            id="test:alert",
            rule="test",
            subject="alert",
            severity=Severity.INFO,
            state=AlertState.FIRING,
            sentence=f"This is a test alert from {operation.who}.",
            since_at=now,
        )
        answers = await self._dispatcher.test(Notification("test", row, context.run.name, context.run.uuid))
        operation.lines = [f"{name}: {why_not or 'delivered'}" for name, why_not in answers.items()]
        failed_sinks = [name for name, why_not in answers.items() if why_not]
        why = f"not delivered by {', '.join(failed_sinks)}" if failed_sinks else ""
        if not answers:
            why = "no sink is configured (alerts.sinks in the run file)"
        state = OperationState.FAILED if why else OperationState.SUCCEEDED
        context.operations.finish(operation, state, context.clock.now(), why)
