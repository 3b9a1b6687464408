"""The coordinator keeps the reports of host agents as long as they are needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from agentrl.control.handlers.hosts import HostHandler
from agentrl.control.incidents import CHECK_EVERY_S, Incidents
from agentrl.control.messaging.peers import Kind, Known
from agentrl.protocol import messages
from agentrl.protocol.messages import Exited, ExitStatus
from agentrl.protocol.rows import IncidentRow
from agentrl.supervision import instructions as do
from agentrl.supervision.invariants import Violation

HOST = Known(Kind.HOST, "a")
REPORT = do.Report("web-0", 3, "a", "exit 1", "started again at once", ExitStatus(code=1))


def test_last_log_lines_from_the_host_of_a_unit_are_kept_until_the_incident_is_recorded() -> None:
    shown: list[IncidentRow] = []
    context = SimpleNamespace(
        supervisor=SimpleNamespace(
            is_present=lambda unit, incarnation: False, holds=lambda host, unit, incarnation: host == "a"
        ),
        happened=lambda event: None,
        clock=SimpleNamespace(now=lambda: 5.0),
        observed=SimpleNamespace(last_report=lambda unit, incarnation: messages.UnitReport()),
        executor=SimpleNamespace(event=lambda *about: None),
        feed=SimpleNamespace(set=lambda key, row, urgent: shown.append(row)),
        state=SimpleNamespace(slots={"web-0": SimpleNamespace(spec=None)}),
        process_spans=SimpleNamespace(reported=lambda message, now: None),
    )
    incidents = Incidents(cast(Any, context))
    handler = HostHandler(cast(Any, context), cast(Any, None), incidents, *cast(Any, (None, None, None)))
    handler.message(Known(Kind.HOST, "b"), Exited("web-0", 3, ExitStatus(code=9), ("forged line",)))
    handler.message(HOST, Exited("web-0", 3, ExitStatus(code=1), ("last line",)))
    handler.message(Known(Kind.HOST, "b"), Exited("web-0", 3, ExitStatus(code=9), ("forged line",)))
    incidents.unit_ended(REPORT)
    incidents.forget("web-0", 3)
    incidents.unit_ended(REPORT)
    assert [row.tail for row in shown] == [("last line",), ()]


def test_death_of_a_tool_server_is_one_incident() -> None:
    shown: list[IncidentRow] = []
    context = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: 5.0),
        executor=SimpleNamespace(event=lambda *about: None),
        feed=SimpleNamespace(set=lambda key, row, urgent: shown.append(row)),
    )
    incidents = Incidents(cast(Any, context))
    slot: Any = SimpleNamespace(unit="toolbox-0", incarnation=2, host="a")

    def report(died: int) -> messages.UnitReport:
        part = messages.UnitPart("shop", "serving", died=died, last_death="it exited with 3")
        return messages.UnitReport(parts=(part,))

    incidents.parts_reported(slot, messages.UnitReport(), report(1))
    assert not shown, "a death in the first report may be older than this coordinator"
    incidents.parts_reported(slot, report(1), report(1))
    incidents.parts_reported(slot, report(1), report(2))
    assert [row.what for row in shown] == ["shop of toolbox-0.2 died: it exited with 3"]
    assert shown[0].unit == "toolbox-0"


def test_broken_invariant_of_the_supervisor_is_one_incident_with_the_history_of_the_unit() -> None:
    shown: list[IncidentRow] = []
    broken: list[Violation] = []
    context = SimpleNamespace(
        supervisor=SimpleNamespace(validate=lambda: broken),
        clock=SimpleNamespace(now=lambda: 5.0),
        executor=SimpleNamespace(event=lambda *about: None),
        feed=SimpleNamespace(set=lambda key, row, urgent: shown.append(row)),
    )
    incidents = Incidents(cast(Any, context))
    incidents.check_supervisor(1_000.0)
    assert not shown
    broken.append(Violation("web-0", "its leader has ended", ("web-0.1 starting->ready: says it is ready [op-7]",)))
    incidents.check_supervisor(1_000.0 + CHECK_EVERY_S / 2)
    assert not shown, "checks are rare"
    incidents.check_supervisor(1_000.0 + CHECK_EVERY_S)
    incidents.check_supervisor(1_000.0 + 2 * CHECK_EVERY_S)
    assert [row.what for row in shown] == ["web-0 breaks an invariant of the supervisor: its leader has ended"]
    assert shown[0].tail == broken[0].story
