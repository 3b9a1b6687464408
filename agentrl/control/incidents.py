"""Records incidents: the unplanned ends of units, host agents and coordinators, with their evidence.

Invariants:
- Every incident is written to the journal.
- The feed shows the newest ones, even after a restart.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Iterable
from typing import Any

from agentrl import __version__
from agentrl.control.context import Context
from agentrl.control.persistence.journal import SetAside
from agentrl.protocol import messages
from agentrl.protocol.rows import IncidentRow
from agentrl.protocol.wire import encode
from agentrl.supervision import instructions as do
from agentrl.supervision.unit_slots import Slot

SHOWN = 50
"""Incidents in the feed; the journal has all of them."""
CHECK_EVERY_S = 60.0
"""Time between two checks of the supervisor's invariants."""
log = logging.getLogger(__name__)

_WRITES_STACKS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals at which faulthandler writes the stacks to the log."""


class Incidents:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._shown: deque[str] = deque()
        self._tails: dict[tuple[str, int], tuple[str, ...]] = {}
        self._check_at = 0.0
        self._violated: set[tuple[str, str]] = set()

    def keep_tail(self, unit: str, incarnation: int, tail: tuple[str, ...]) -> None:
        """The last log lines of an incarnation that ended, until `forget`."""
        self._tails[unit, incarnation] = tail

    def forget(self, unit: str, incarnation: int) -> None:
        """Drops the log lines of an incarnation whose end is completely recorded."""
        self._tails.pop((unit, incarnation), None)

    def restore(self, incidents: Iterable[IncidentRow]) -> None:
        """Show the incidents that earlier coordinators recorded, the oldest first."""
        for row in incidents:
            self._show(row)

    def unit_ended(self, report: do.Report) -> None:
        name = f"{report.unit}.{report.incarnation}"
        last = self._context.observed.last_report(report.unit, report.incarnation)
        self._record(
            id=name,
            unit=report.unit,
            incarnation=report.incarnation,
            what=f"{name} {report.what}",
            exit=report.exit,
            host=report.host,
            phase=last.phase,
            status=last.status,
            tail=self._tails.get((report.unit, report.incarnation), ()),
            done=report.done,
            stacks=self._stacks_of(report),
            swept=report.swept,
            stimulus=report.stimulus,
        )

    def parts_reported(self, slot: Slot, before: messages.UnitReport, now: messages.UnitReport) -> None:
        """Record the parts of a unit, such as tool servers, that ended unplanned since its last report."""
        # The deaths in the first report of a part may be from before a restart of the coordinator, and already
        # recorded.
        died = {part.name: part.died for part in before.parts}
        name = f"{slot.unit}.{slot.incarnation}"
        for part in now.parts:
            if part.died > died.get(part.name, part.died):
                self._record(
                    id=f"{name}-{part.name}-{part.died}",
                    unit=slot.unit,
                    incarnation=slot.incarnation,
                    what=f"{part.name} of {name} died: {part.last_death or part.status}",
                    host=slot.host,
                    status=part.status,
                    done=f"{slot.unit} restarts it",
                )

    def unit_stopped_by_signal(self, host: str, unit: str, incarnation: int) -> None:
        """Record that a signal stopped the process of a unit, and that the supervisor continues it."""
        name = f"{unit}.{incarnation}"
        self._record(
            id=f"{name}-stopped-{self._context.clock.now():.0f}",
            unit=unit,
            incarnation=incarnation,
            what=f"{name} was stopped by a signal",
            host=host,
            done="it was continued (SIGCONT)",
        )

    def host_agent_failed(self, host: str, pid: int, what: str, done: str) -> None:
        """Record a failure of the host agent of the coordinator's own host."""
        self._record(
            id=f"agent-{host}-{pid}-{self._context.clock.now():.0f}",
            unit="host agent",
            what=f"the host agent of {host} (process {pid}) {what}",
            host=host,
            done=done,
        )

    def coordinator_ended(self, host: str, trouble: messages.CoordinatorTrouble) -> None:
        """Record the end of the last coordinator, as the host agent observed it."""
        at = self._context.clock.now() - trouble.age_s
        aborted = trouble.exit is not None and trouble.exit.signal in _WRITES_STACKS
        self._record(
            id=f"coordinator-{trouble.pid}-{at:.0f}",
            unit="coordinator",
            at=at,
            what=f"the coordinator (process {trouble.pid}) {trouble.what}",
            exit=trouble.exit,
            host=host,
            tail=trouble.tail,
            done=trouble.done,
            stacks=trouble.log if aborted else "",
        )

    def entry_set_aside(self, entry: SetAside) -> None:
        """Record that an entry of the journal can never be written."""
        if entry.kind == "incident":
            return  # an incident about an incident might be refused as well
        self._record(
            id=f"journal-{entry.kind}-{entry.key}",
            unit="coordinator",
            what=f"the journal entry {entry.kind} {entry.key} cannot be written: {entry.why}",
            host=self._context.host,
            done="it was set aside, and everything else was written",
        )

    def entry_unreadable(self, entry: SetAside) -> None:
        """Record that an entry of the journal, which an earlier coordinator wrote, cannot be read."""
        self._record(
            id=f"unreadable-{entry.kind}-{entry.key}-{self._context.clock.now():.0f}",
            unit="coordinator",
            what=f"the journal entry {entry.kind} {entry.key} cannot be read: {entry.why}",
            host=self._context.host,
            done="the entry was kept, and a unit that it describes goes on as soon as its host reports it",
        )

    def check_supervisor(self, now: float) -> None:
        """Check now and then all invariants of the supervisor, and record each that does not hold. Nothing stops."""
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        violations = {(violation.unit, violation.what): violation for violation in self._context.supervisor.validate()}
        for (unit, what), violation in violations.items():
            if (unit, what) not in self._violated:
                self._record(
                    id=f"invariant-{unit}-{now:.0f}",
                    unit=unit,
                    what=f"{unit} breaks an invariant of the supervisor: {what}",
                    tail=violation.story,
                    done="it is recorded; please report it",
                )
        self._violated = set(violations)

    def _record(self, *, at: float | None = None, incarnation: int = 0, **facts: Any) -> None:
        at = self._context.clock.now() if at is None else at
        row = IncidentRow(at=at, incarnation=incarnation, versions={"agentrl": __version__}, **facts)
        log.warning("%s; %s", row.what, row.done)
        self._context.executor.event("incident", row.id, row.at, encode(row))
        self._show(row)

    def _show(self, row: IncidentRow) -> None:
        self._context.feed.set(f"incident/{row.id}", row, urgent=True)
        self._shown.append(row.id)
        if len(self._shown) > SHOWN:
            self._context.feed.remove(f"incident/{self._shown.popleft()}")

    def _stacks_of(self, report: do.Report) -> str:
        """The log of a unit, if it uses the unit runtime and ended by a signal at which faulthandler writes the stacks
        to the log.
        """
        spec = self._context.state.slots[report.unit].spec
        if spec is None or not spec.speaks or report.exit is None or report.exit.signal not in _WRITES_STACKS:
            return ""
        return f"{self._context.run.run_dir}/logs/{report.unit}/{report.incarnation}.log"
