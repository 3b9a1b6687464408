"""The alert engine at work: looks at the world once a second, shows, writes down and notifies.

Invariants: what fired is in the journal, so that a restart repeats no notification; a sink that fails never holds the
coordinator up, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.control.alerts.book import AlertEngine, AlertTimes, Notification, Silence, World
from agentrl.control.alerts.dispatch import Dispatcher, SignOfLife, sinks_of
from agentrl.control.alerts.metric_rules import metric_rules, metrics_read
from agentrl.control.alerts.rules import default_rules
from agentrl.control.books.metrics import MemoryWatch
from agentrl.control.books.operations import Goal, Operation
from agentrl.control.context import Context
from agentrl.errors import AgentrlError, UsageError
from agentrl.protocol import commands
from agentrl.protocol.commands import WaitChain
from agentrl.protocol.danger import Effect
from agentrl.protocol.rows import AlertRow, AlertState, HostRow, OperationState, RunRow, Severity, UnitRow
from agentrl.protocol.wire import decode_as, decode_row, encode

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
HOLD_S = 15.0


class Alerting:
    def __init__(self, context: Context, chains: Callable[[], list[WaitChain]]) -> None:
        self._context = context
        self._chains = chains
        self._engine = AlertEngine(default_rules())
        self._dispatcher = Dispatcher(())
        self._tasks: list[asyncio.Task[None]] = []
        self._last_look = 0.0

    # ---- set up ----

    def restore(self) -> None:
        journal = self._context.journal
        rows = [decode_row(body) for body in journal.all("alert").values()]
        silences = [decode_as(Silence, body) for body in journal.all("silence").values()]
        self._engine.restore([r for r in rows if isinstance(r, AlertRow)], silences, self._context.clock.now())
        for row in self._engine.rows():
            self._context.feed.set(f"alert/{row.id}", row, urgent=True)

    def configure(self, config: RunConfig) -> None:
        """New rules and sinks; what fires goes on firing."""
        run_dir = Path(self._context.run.run_dir)
        built_in = default_rules(config.alerts.disable, memory_window_s=config.alerts.memory_window_s)
        self._engine.set_rules([*built_in, *metric_rules(config.alerts.rules)])
        times = config.supervision
        self._engine.times = AlertTimes(
            hold_s=min(HOLD_S, 2 * times.suspect_after_s),
            settle_s=3 * times.host_silent_after_s,
            repeat_s=config.alerts.repeat_s,
        )
        self._context.metrics.name(metrics_read(config.alerts.rules))
        self._context.metrics.watch_memory(MemoryWatch(config.alerts.memory_window_s))
        self.close()
        self._dispatcher = Dispatcher(sinks_of(config.alerts.sinks, run_dir), on_trouble=self._sink_failed)
        self._tasks = [asyncio.create_task(self._dispatcher.run(), name="alert sinks")]
        if config.alerts.dead_man is not None:
            sign = SignOfLife(config.alerts.dead_man, run_dir, self._context.clock.now)
            self._tasks.append(asyncio.create_task(sign.run(), name="dead-man ping"))

    def _sink_failed(self, sink: str, sentence: str) -> None:
        """People who rely on a sink have to hear elsewhere that it is broken."""
        if sentence:
            self._context.audit("coordinator", "alerts", f"the sink {sink} does not deliver: {sentence}")

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    # ---- the look ----

    def tick(self, now: float) -> None:
        if now - self._last_look < LOOK_EVERY_S or not self._context.state.run.desired_by:
            return
        self._last_look = now
        rows = self._context.feed.rows
        run = self._context.feed.get("run")
        world = World(
            run=run if isinstance(run, RunRow) else None,
            units={r.unit: r for r in rows(("unit",)).values() if isinstance(r, UnitRow)},
            hosts={r.host: r for r in rows(("host",)).values() if isinstance(r, HostRow)},
            chains=self._chains(),
            metrics=self._context.metrics,
        )
        outcome = self._engine.evaluate(world, now, now)
        for row in outcome.changed:
            self._show(row, moved=row.id in outcome.moved)
        for id in outcome.gone:
            self._context.feed.remove(f"alert/{id}")
            self._context.executor.put("alert", id, None)
        for notification in outcome.notify:
            self._dispatcher.offer(notification)

    def _show(self, row: AlertRow, *, moved: bool) -> None:
        self._context.feed.set(f"alert/{row.id}", row, urgent=moved)
        if moved and row.state is not AlertState.PENDING:
            now = self._context.clock.now()
            self._context.executor.put("alert", row.id, encode(row))
            self._context.executor.event("alert", f"{row.id}@{row.since_at:.3f}:{row.state}", now, encode(row))

    # ---- what people ask and do ----

    def rows(self, all: bool) -> list[AlertRow]:
        return self._engine.rows(all=all)

    def preview_acknowledge(self, args: commands.Acknowledge) -> Effect:
        row = self._engine.to_acknowledge(args.id)
        return Effect(changes=(f"{args.id} is acknowledged",) if row.state is AlertState.FIRING else ())

    def acknowledge(self, operation: Operation, args: commands.Acknowledge) -> dict[str, Goal]:
        row = self._engine.acknowledge(args.id, operation.who)
        self._show(row, moved=True)
        return {}

    def preview_silence(self, args: commands.Silence) -> Effect:
        if not 0 <= args.for_s <= 30 * 86_400:
            raise UsageError(f"A silence lasts between 0 s (ends it) and 30 days, not {args.for_s:g} s.")
        self._engine.to_silence(args.id)
        change = f"{args.id} is silent for {args.for_s:g} s" if args.for_s else f"{args.id} is heard again"
        return Effect(changes=(change,))

    def silence(self, operation: Operation, args: commands.Silence) -> dict[str, Goal]:
        now = self._context.clock.now()
        for row in self._engine.silence(args.id, args.for_s, who=operation.who, why=args.why, at=now):
            self._show(row, moved=True)
        known = {silence.rule: silence for silence in self._engine.silences()}
        stored = known.get(args.id)
        self._context.executor.put("silence", args.id, encode(stored) if stored else None)
        return {}

    def test(self, operation: Operation, args: commands.SendTestAlert) -> None:
        operation.by_itself = True
        task = asyncio.create_task(self._test(operation), name="test alert")
        self._tasks.append(task)

    async def _test(self, operation: Operation) -> None:
        context, now = self._context, self._context.clock.now()
        row = AlertRow(
            id="test:alert",
            rule="test",
            subject="alert",
            severity=Severity.INFO,
            state=AlertState.FIRING,
            sentence=f"This is a test, sent by {operation.who}.",
            since_at=now,
        )
        try:
            answers = await self._dispatcher.test(Notification("test", row, context.run.name, context.run.uuid))
        except AgentrlError as failed:
            context.operations.finish(operation, OperationState.FAILED, context.clock.now(), str(failed))
            return
        operation.lines = [f"{name}: {why_not or 'delivered'}" for name, why_not in answers.items()]
        if not answers:
            operation.lines = ["no sink is configured (alerts.sinks in the run file)"]
        failed_sinks = [name for name, why_not in answers.items() if why_not]
        state = OperationState.FAILED if failed_sinks or not answers else OperationState.SUCCEEDED
        context.operations.finish(operation, state, context.clock.now(), "; ".join(operation.lines))
