"""Answers queries of clients. Queries change nothing.

Invariants:
- A viewer may use all queries except the list of keys.
- Every answer fits into one message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from agentrl.control.commands import command_effects
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.persistence.journal import Journal, JournalEvent
from agentrl.control.state.knob_registry import KnobChange
from agentrl.errors import UnknownNameError
from agentrl.protocol import control_commands, messages
from agentrl.protocol.control_commands import LearningReport, StatusReport, WaitChain, WhyReport
from agentrl.protocol.rows import AlertRow, AnyRow, AuditRow, GroupRow, HostRow, KnobRow, OperationRow, RunRow, UnitRow
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import decode_row, raw
from agentrl.supervision.wait_chains import explain
from agentrl.telemetry import learning_metrics
from agentrl.telemetry.data_plane_metrics import STEP

R = TypeVar("R", bound=AnyRow)
Handler = Callable[[Any], Any | Awaitable[Any]]

MOST_EVENTS = 2000
MOST_ALERTS = 200
SILENT_S = 60.0
"""Metrics of a unit that has been silent for longer than this are not exported, because they would look current."""
ANSWER_BYTES = 3 << 20
"""A message may have 4 MiB."""
_KINDS = {"knob": "audit"}
"""Knob changes are audit rows of the command `tune`."""


class Queries:
    def __init__(self, context: Context, asks: PendingRequests, alerts: Callable[[bool], list[AlertRow]]) -> None:
        self._context = context
        self._asks = asks
        self._alerts = alerts
        self.handlers: dict[str, Handler] = {
            "status": self._status,
            "why": lambda args: WhyReport(tuple(self.chains())),
            "show_operation": self._operation,
            "events": self._events,
            "read_logs": self._logs,
            "knobs": self._knobs,
            "knob_history": self._knob_history,
            "alerts": lambda args: self._alerts(args.all),
            "list_keys": lambda args: context.keyring.rows(),
        }

    def _status(self, args: control_commands.Status) -> StatusReport:
        report = self._report()
        config = self._context.config
        tensorboard = config is None or config.training.curves.tensorboard
        return sendable(replace(report, learning=learning(report, tensorboard=tensorboard)))

    def _report(self) -> StatusReport:
        rows = self._context.feed.rows
        run = self._context.feed.get("run")
        assert isinstance(run, RunRow)
        return StatusReport(
            run=run,
            groups=_all_of(GroupRow, rows(("group",))),
            units=_all_of(UnitRow, dict(sorted(rows(("unit",)).items(), key=_natural))),
            hosts=_all_of(HostRow, rows(("host",))),
            alerts=tuple(self._alerts(False)),
            pulse=self._context.bottleneck.shown,
            operations=tuple(row for row in _all_of(OperationRow, rows(("op",))) if not row.state.ended),
        )

    def snapshot(self) -> tuple[StatusReport, dict[str, dict[str, float]]]:
        """The rows of the run, and the newest metrics by unit."""
        report, now = self._report(), self._context.clock.now()
        names = ("coordinator", *(row.unit for row in report.units))
        return report, {name: self._context.metrics.values(name, now, SILENT_S) for name in names}

    def chains(self) -> list[WaitChain]:
        context = self._context
        facts = context.observed.wait_facts(context.clock.now(), context.supervisor.paused)
        return explain(facts, context.supervisor.times.no_progress_s)

    def _operation(self, args: control_commands.ShowOperation) -> OperationRow:
        operation = self._context.operations.get(args.id)
        if operation is not None:
            return operation.row()
        found = [e for e in self._context.journal.events(("operation",), limit=MOST_EVENTS) if e.id == args.id]
        if not found:
            raise UnknownNameError(f"There is no operation {args.id!r}.", hint="`agentrl events` lists them.")
        row = decode_row(found[-1].body)
        assert isinstance(row, OperationRow)
        return row

    def _events(self, args: control_commands.Events) -> list[AnyRow]:
        self._context.executor.flush()
        return happenings(self._context.journal, args)

    async def _logs(self, args: control_commands.ReadLogs) -> messages.LogChunk:
        slot = command_effects.present(self._context.state, args.unit, 0)
        incarnation = args.incarnation if args.incarnation > 0 else slot.incarnation + args.incarnation
        if not 1 <= incarnation <= slot.incarnation or not slot.host:
            raise UnknownNameError(f"{args.unit} has had no such incarnation yet, so there is no log of it.")
        question = messages.ReadLog(args.unit, incarnation, args.offset, min(args.limit, 1 << 20))
        return await self._asks.host(slot.host, question, messages.LogChunk)

    def _knobs(self, args: control_commands.Knobs) -> list[KnobRow]:
        return [self._context.knobs.row(args.name)] if args.name else self._context.knobs.rows()

    def _knob_history(self, args: control_commands.KnobHistory) -> list[AuditRow]:
        return [audit_of(change) for change in self._context.knobs.history(args.name)]


def learning(report: StatusReport, *, tensorboard: bool = True) -> LearningReport | None:
    """The last report of the trainer; None without a trainer."""
    trainer = next((unit for unit in report.units if unit.role == Role.TRAINER and unit.leads), None)
    if trainer is None:
        return None
    numbers = trainer.metrics
    return LearningReport(
        step=round(numbers.get(STEP.name, 0)),
        steps_wanted=round(numbers.get(learning_metrics.STEPS_WANTED.name, 0)),
        reward=numbers.get(learning_metrics.REWARD.name),
        evaluation=numbers.get(learning_metrics.EVALUATION.name),
        evaluation_margin=numbers.get(learning_metrics.EVALUATION_MARGIN.name),
        evaluation_best=numbers.get(learning_metrics.EVALUATION_BEST.name),
        evaluation_best_version=round(numbers.get(learning_metrics.EVALUATION_BEST_VERSION.name, 0)),
        curves=f"{report.run.run_dir}/tensorboard" if tensorboard else "",
    )


def audit_of(change: KnobChange) -> AuditRow:
    return AuditRow(change.revision, change.at, change.who, change.how, change.sentence(), note=change.note)


def happenings(journal: Journal, args: control_commands.Events) -> list[AnyRow]:
    """The events in the journal, oldest first."""
    kinds = tuple(dict.fromkeys(_KINDS.get(kind, kind) for kind in args.kinds))
    found = journal.events(kinds, args.after_at, max(0, min(args.limit, MOST_EVENTS)))
    kept = newest(found, ANSWER_BYTES)
    rows = [_row_of(event) for event in kept]
    if args.kinds and "audit" not in args.kinds:
        rows = [r for r in rows if not isinstance(r, AuditRow) or r.command in ("tune", "undo_tune")]
    if len(kept) < len(found) or len(found) == MOST_EVENTS < args.limit:
        left_out = f"older events are left out: an answer holds {len(kept)} of these"
        rows.insert(0, AuditRow(0, kept[0].at if kept else 0.0, "coordinator", "events", left_out))
    return rows


def newest(events: list[JournalEvent], most_bytes: int) -> list[JournalEvent]:
    """As many of the newest rows as fit."""
    size = 0
    for number, event in enumerate(reversed(events)):
        size += len(event.body)
        if size > most_bytes:
            return events[len(events) - number :]
    return events


def sendable(report: StatusReport) -> StatusReport:
    """Shorten the rows of units if there are very many; the feed still has their waits and metrics."""
    if len(raw(report)) <= ANSWER_BYTES:
        return report
    units = tuple(
        replace(row, status=row.status[:60], reason=row.reason[:60], waits=(), metrics={}, rss_over_time=())
        for row in report.units
    )
    return replace(report, units=units, alerts=report.alerts[:MOST_ALERTS], operations=report.operations[:MOST_ALERTS])


def _row_of(event: JournalEvent) -> AnyRow:
    return decode_row(event.body)


def _all_of(kind: type[R], rows: dict[str, AnyRow]) -> tuple[R, ...]:
    return tuple(row for row in rows.values() if isinstance(row, kind))


def _natural(item: tuple[str, AnyRow]) -> tuple[str, int]:
    """`web-2` before `web-10`."""
    group, _, number = item[0].rpartition("-")
    return group, int(number) if number.isdecimal() else 0
