"""For any report of a unit, its row can be shown and the answers with all rows can be sent."""

from __future__ import annotations

import msgspec
import pytest

from agentrl.control.handlers import client_queries, truncation
from agentrl.control.persistence.journal import JournalEvent
from agentrl.control.state.feed_publisher import Feed
from agentrl.protocol.control_commands import StatusReport
from agentrl.protocol.feed import FeedRow
from agentrl.protocol.knob import Knob
from agentrl.protocol.messages import MAX_MESSAGE_BYTES, Bye, KnobPreviewed, UnitPart, UnitReport, Wait
from agentrl.protocol.rows import HostRow, RunRow, UnitRow, UnitState
from agentrl.protocol.wire import decode_feed, encode

LONG = "x" * (1 << 20)


def test_report_of_a_unit_is_truncated() -> None:
    report = truncation.report(
        UnitReport(
            status=LONG,
            phase=LONG,
            incomplete=LONG,
            problems={f"{number} {LONG}": LONG for number in range(1000)},
            waits=(Wait(LONG, LONG),) * 1000,
            parts=(UnitPart(LONG, LONG, LONG, last_death=LONG),) * 1000,
            knobs={f"k{number}": LONG if number == 3 else number for number in range(1000)},
        )
    )
    assert len(encode(report)) < 64_000
    assert report.status.endswith("…")
    assert "k3" not in report.knobs, "a value is never cut, because its beginning is a different value"
    assert report.knobs["k4"] == 4
    usual = UnitReport(ready=True, status="well", phase="step", waits=(Wait("judge-0", "a grade"),), knobs={"a": "b"})
    assert truncation.report(usual) == usual


def test_declarations_metrics_and_bye_are_truncated() -> None:
    knob = Knob(name="k", kind="str", default="a", help=LONG, choices=(LONG,) * 1000)
    clipped = truncation.declarations((knob, msgspec.structs.replace(knob, name=LONG)) * 1000)
    assert len(encode(clipped)) < 3_000_000
    assert all(each.name == "k" for each in clipped)
    assert len(encode(truncation.metrics({f"m{number}": 1.0 for number in range(100_000)}))) < 20_000
    assert len(encode(truncation.bye(Bye(1, LONG)))) < 2_000
    assert len(encode(truncation.previewed(KnobPreviewed("a", LONG, error=LONG)))) < 3_000


def test_row_that_fits_no_message_does_not_stop_other_rows(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[FeedRow] = []

    def publish(frame: bytes) -> None:
        assert len(frame) <= MAX_MESSAGE_BYTES
        message = decode_feed(frame)
        if isinstance(message, FeedRow):
            sent.append(message)

    feed = Feed("e", publish)
    feed.set("host/a", HostRow("a", LONG * 5))
    feed.set("host/b", HostRow("b", "up"))
    feed.tick(1.0, 1.0)
    assert [(row.key, row.seq) for row in sent] == [("host/b", 1)]
    assert [key for key, _ in feed.snapshot()[0]] == ["host/b"]
    assert caplog.text.count("cannot be shown") == 1
    feed.set("host/a", HostRow("a", "up"))
    feed.tick(2.0, 2.0)
    assert [row.key for row in sent] == ["host/b", "host/a"]


def test_status_of_thousands_of_units_with_long_reports_fits_a_message() -> None:
    waits = tuple(Wait(f"judge-{number}", "x" * truncation.NAME) for number in range(truncation.WAITS))
    units = tuple(
        UnitRow(f"web-{number}", "web", "sidecar", UnitState.READY, status="y" * truncation.SENTENCE, waits=waits)
        for number in range(5000)
    )
    report = StatusReport(RunRow("my-run", "u", "running"), units=units)
    short = client_queries.sendable(report)
    assert len(encode(short)) <= client_queries.ANSWER_BYTES
    assert [row.unit for row in short.units] == [row.unit for row in units]
    few = msgspec.structs.replace(report, units=units[:50])
    assert client_queries.sendable(few) is few


def test_answer_contains_as_many_of_the_last_events_as_fit() -> None:
    events = [JournalEvent("audit", str(number), float(number), b"x" * 1000) for number in range(10)]
    assert [event.id for event in client_queries.newest(events, 3500)] == ["7", "8", "9"]
    assert client_queries.newest(events, 10_000) == events
    assert client_queries.newest(events, 10) == []
