"""The feed recorder marks incidents, operations and alerts, and does not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.control.feed_recorder import FeedRecorder
from agentrl.control.state.feed_publisher import Feed
from agentrl.protocol.rows import AlertRow, AlertState, IncidentRow, Severity
from agentrl.recording.reader import Recording
from tests.waiting import eventually

BEGAN = 1_000_000.0


class RecordedFeed:
    """A feed, a manual clock, and the recorder."""

    def __init__(self, state_dir: Path) -> None:
        self.now = BEGAN
        self.shown = 0
        self.feed = Feed("e", lambda frame: None)
        self.own_status = SimpleNamespace(not_recording="")
        context: Any = SimpleNamespace(
            epoch="e",
            feed=self.feed,
            clock=SimpleNamespace(now=lambda: self.now),
            own_status=self.own_status,
            show_run=self._show,
        )
        self.recorder = FeedRecorder(context, state_dir)

    def _show(self) -> None:
        self.shown += 1

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.feed.tick(self.now, self.now)
            self.recorder.tick(self.now)

    def alert(self, since: float, resolved: float = 0.0, *, pending: bool = False) -> None:
        state = AlertState.RESOLVED if resolved else AlertState.PENDING if pending else AlertState.FIRING
        row = AlertRow("hot:web", "hot", "web", Severity.WARNING, state, "hot", since, resolved_at=resolved)
        self.feed.set("alert/hot:web", row, urgent=True)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[RecordedFeed]:
    made = RecordedFeed(tmp_path)
    yield made
    made.recorder.close()


def marks(recorded: RecordedFeed, tmp_path: Path) -> list[str]:
    recorded.recorder.close()
    return [mark.key for mark in Recording.open(tmp_path / "recordings").marks]


def test_alert_that_fires_again_is_marked_again(recorded: RecordedFeed, tmp_path: Path) -> None:
    recorded.wait(2)
    recorded.alert(recorded.now)
    recorded.alert(recorded.now - 0.0)
    recorded.wait(3)
    recorded.alert(BEGAN + 2, resolved=recorded.now)
    recorded.wait(3)
    recorded.alert(recorded.now)
    recorded.wait(3)
    recorded.feed.remove("alert/hot:web")
    recorded.wait(1)
    recorded.alert(recorded.now)
    recorded.wait(2)
    assert marks(recorded, tmp_path) == ["alert/hot:web"] * 3


def test_alert_is_marked_when_it_fires_and_not_while_it_is_pending(recorded: RecordedFeed, tmp_path: Path) -> None:
    recorded.wait(2)
    recorded.alert(recorded.now, pending=True)
    recorded.wait(6)
    recorded.alert(BEGAN + 2, resolved=recorded.now)
    recorded.wait(600)
    since = recorded.now
    recorded.alert(since, pending=True)
    recorded.wait(300)
    fired = recorded.now
    recorded.alert(since)
    recorded.wait(2)
    recorded.recorder.close()
    (mark,) = Recording.open(tmp_path / "recordings").marks
    assert fired <= mark.at < fired + 1


def test_old_incident_is_not_marked_when_it_is_published_again(recorded: RecordedFeed, tmp_path: Path) -> None:
    recorded.feed.set("incident/old", IncidentRow("old", "web-0", 1, BEGAN - 3600, "died"), urgent=True)
    recorded.feed.set("incident/new", IncidentRow("new", "web-0", 2, BEGAN - 1, "died"), urgent=True)
    recorded.wait(3)
    assert marks(recorded, tmp_path) == ["incident/new"]


def test_row_of_the_run_shows_why_recording_fails_until_it_works(recorded: RecordedFeed, tmp_path: Path) -> None:
    (tmp_path / "recordings").write_text("a file stands where the directory belongs")

    def seen(trouble: bool) -> bool:
        recorded.wait(61)
        return bool(recorded.own_status.not_recording) == trouble

    eventually(lambda: seen(True), what="the trouble")
    assert "Nothing is recorded" in recorded.own_status.not_recording
    (tmp_path / "recordings").unlink()
    eventually(lambda: seen(False), what="the end of the trouble")
    assert recorded.shown >= 2
