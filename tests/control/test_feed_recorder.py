"""What the coordinator's recorder marks, and what it never waits for."""

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


class Desk:
    """A feed, a clock by hand, and the recorder."""

    def __init__(self, state_dir: Path) -> None:
        self.now = BEGAN
        self.shown = 0
        self.feed = Feed("e", lambda frame: None)
        self.life = SimpleNamespace(not_recording="")
        context: Any = SimpleNamespace(
            epoch="e", feed=self.feed, clock=SimpleNamespace(now=lambda: self.now), life=self.life, show_run=self._show
        )
        self.recorder = FeedRecorder(context, state_dir)

    def _show(self) -> None:
        self.shown += 1

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.feed.tick(self.now, self.now)
            self.recorder.tick(self.now)

    def alert(self, since: float, resolved: float = 0.0, *, coming: bool = False) -> None:
        state = AlertState.RESOLVED if resolved else AlertState.PENDING if coming else AlertState.FIRING
        row = AlertRow("hot:web", "hot", "web", Severity.WARNING, state, "hot", since, resolved_at=resolved)
        self.feed.set("alert/hot:web", row, urgent=True)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.recorder.close()


def marks(desk: Desk, tmp_path: Path) -> list[str]:
    desk.recorder.close()
    return [mark.key for mark in Recording.open(tmp_path / "recordings").marks]


def test_an_alert_that_fires_again_is_marked_again(desk: Desk, tmp_path: Path) -> None:
    desk.wait(2)
    desk.alert(desk.now)
    desk.alert(desk.now - 0.0)
    desk.wait(3)
    desk.alert(BEGAN + 2, resolved=desk.now)
    desk.wait(3)
    desk.alert(desk.now)
    desk.wait(3)
    desk.feed.remove("alert/hot:web")
    desk.wait(1)
    desk.alert(desk.now)
    desk.wait(2)
    assert marks(desk, tmp_path) == ["alert/hot:web"] * 3


def test_an_alert_is_marked_when_it_fires_and_never_when_it_was_only_seen_coming(desk: Desk, tmp_path: Path) -> None:
    desk.wait(2)
    desk.alert(desk.now, coming=True)
    desk.wait(6)
    desk.alert(BEGAN + 2, resolved=desk.now)
    desk.wait(600)
    since = desk.now
    desk.alert(since, coming=True)
    desk.wait(300)
    fired = desk.now
    desk.alert(since)
    desk.wait(2)
    desk.recorder.close()
    (mark,) = Recording.open(tmp_path / "recordings").marks
    assert fired <= mark.at < fired + 1


def test_what_began_long_ago_is_not_marked_when_it_is_told_again(desk: Desk, tmp_path: Path) -> None:
    desk.feed.set("incident/old", IncidentRow("old", "web-0", 1, BEGAN - 3600, "died"), urgent=True)
    desk.feed.set("incident/new", IncidentRow("new", "web-0", 2, BEGAN - 1, "died"), urgent=True)
    desk.wait(3)
    assert marks(desk, tmp_path) == ["incident/new"]


def test_trouble_of_the_disk_is_shown_until_it_is_over(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "recordings").write_text("a file stands where the directory belongs")

    def seen(trouble: bool) -> bool:
        desk.wait(61)
        return bool(desk.life.not_recording) == trouble

    eventually(lambda: seen(True), what="the trouble")
    assert "Nothing is recorded" in desk.life.not_recording
    (tmp_path / "recordings").unlink()
    eventually(lambda: seen(False), what="the end of the trouble")
    assert desk.shown >= 2
