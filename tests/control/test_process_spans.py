"""Spans of what hosts do with processes: from the first order to the report, in the trace of the operation."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from agentrl.control.process_spans import MOST_OPEN, ProcessSpans
from agentrl.protocol import messages
from agentrl.protocol.messages import ExitStatus
from agentrl.supervision import instructions as do
from agentrl.tracing import spans, trace_context
from agentrl.tracing.spans import Span

OPERATION = trace_context.of_operation("0af7651916cd43dd8448eb211c80319c")


@pytest.fixture
def exported() -> Iterator[list[Span]]:
    made: list[Span] = []
    spans.set_exporter(made.append)
    yield made
    spans.set_exporter(None)


def test_a_start_is_a_part_of_its_operation_and_a_restart_has_a_trace_of_its_own(exported: list[Span]) -> None:
    seen = ProcessSpans()
    seen.spawning("b", "web-0", 1, OPERATION, 10.0)
    seen.spawning("b", "web-1", 1, None, 10.0)
    seen.reported(messages.Spawned("web-0", 1, pid=7, start_ticks=7), 10.5)
    seen.reported(messages.SpawnFailed("web-1", 1, "no such program, said /secret"), 11.0)
    started, failed = exported
    assert (started.name, started.context.trace_id, started.parent) == (
        "spawn web-0",
        OPERATION.trace_id,
        OPERATION.span_id,
    )
    assert started.ended_ns - started.began_ns == pytest.approx(0.5e9)
    assert started.attributes == {"host.name": "b", "agentrl.incarnation": "web-0.1"}
    assert (failed.parent, bool(failed.error), "secret" in failed.error) == ("", True, False)


def test_a_stop_lasts_from_the_first_order_until_nothing_of_the_process_is_left(exported: list[Span]) -> None:
    seen = ProcessSpans()
    orders = (
        do.SendToUnit("web-0", 1, messages.Drain(5.0)),
        do.Signal("b", "web-0", 1, signal.SIGTERM),
        do.KillTree("b", "web-0", 1),
    )
    for at, order in enumerate(orders):
        seen.ordered(order, "b", OPERATION, float(at))
    seen.reported(messages.Exited("web-0", 1, ExitStatus(code=0)), 3.0)
    assert exported == [], "children of the process may be alive"
    seen.reported(messages.GroupEmpty("web-0", 1), 4.0)
    (stopped,) = exported
    assert (stopped.name, stopped.began_ns, stopped.ended_ns) == ("stop web-0", 0, 4 * 10**9)
    seen.reported(messages.GroupEmpty("web-0", 1), 5.0)
    seen.ordered(do.Signal("b", "web-0", 2, signal.SIGCONT), "b", None, 6.0)
    seen.ordered(do.SendToUnit("web-0", 2, messages.Drain(5.0)), "b", None, 6.0)
    seen.ordered(do.SendToUnit("web-0", 2, messages.CancelDrain()), "b", None, 7.0)
    seen.reported(messages.Exited("web-0", 2, ExitStatus(code=0), group_empty=True), 8.0)
    assert exported == [stopped], "a repeated report and a cancelled drain export no span"


def test_what_a_lost_host_never_reports_is_forgotten(exported: list[Span]) -> None:
    seen = ProcessSpans()
    for number in range(MOST_OPEN + 1):
        seen.spawning("b", "web-0", number, None, 1.0)
    for number in (0, 1):
        seen.reported(messages.Spawned("web-0", number, pid=7, start_ticks=7), 2.0)
    assert [span.attributes["agentrl.incarnation"] for span in exported] == ["web-0.1"]
