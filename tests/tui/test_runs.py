"""Switching between runs: the list of runs, and no state of one run reaches another."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.http.free_ports import free_ports
from agentrl.protocol import rows
from agentrl.protocol.control_commands import Accepted, Restart
from agentrl.protocol.data_commands import Page
from agentrl.protocol.effects import Effect, Tier
from agentrl.transport.curve_keys import ClientKey, new_keypair
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.tui.test_playback import Recorder
from tests.waiting import aeventually
from tui.console_interface import Settings
from tui.run_list import Place

X_IS_BAD = rows.AlertRow("x", "x", "x", rows.Severity.WARNING, rows.AlertState.FIRING, "x is bad", 1e9)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENTRL_KEY", raising=False)
    return tmp_path / "home"


@pytest.fixture
def other(coordinator: Scripted, home: Path) -> Iterator[Scripted]:
    """A second run with other rows."""
    with Scripted(home, "other") as made:
        made.answers["why"] = coordinator.answers["why"]
        made.answers["list_steps"] = lambda _: Page(({"id": "x", "step": 41},))
        ready = rows.UnitState.READY
        made.rows["unit/web-1"] = rows.UnitRow("web-1", "web", "sidecar", ready, incarnation=2, status="of the other")
        made.rows["alert/x"] = X_IS_BAD
        yield made


def down(home: Path, name: str) -> Path:
    """The state directory of a run that is down."""
    state = home / name
    state.mkdir(parents=True)
    body = {"name": name, "uuid": str(uuid.uuid4()), "run_dir": "/elsewhere", "created_at": time.time() - 7200}
    (state / "run.json").write_text(json.dumps(body))
    return state


async def chosen(screen: Screen, key: str) -> None:
    await screen.press("9")
    table = screen.app.view.query_one("Table")
    await aeventually(lambda: table.model.select(key))  # type: ignore[attr-defined]


async def test_list_shows_the_state_of_every_run(coordinator: Scripted, other: Scripted, home: Path) -> None:
    down(home, "old")
    (down(home, "torn") / "run.json").write_text("{")
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await chosen(screen, "run/other")
        await screen.shows("demo ← here", "○ down", "/elsewhere", "torn")

        def shows_other_run() -> bool:
            """The list shows the state and the counts of the other run."""
            words = next(line for line in screen.lines if " other " in line).replace("▸", " ").split()
            return words[:3] == ["other", "●", "running"] and words[4:7] == ["41", "!", "1"]

        await aeventually(shows_other_run)
        await screen.press("slash")
        await screen.type("down")
        await screen.press("enter")
        await screen.shows("old")
        await aeventually(lambda: not any(" other " in line for line in screen.lines))
        assert "/elsewhere" in screen.text


async def test_another_run_gets_its_own_connection_and_screens(coordinator: Scripted, other: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "slash")
        await screen.type("web")
        await screen.press("enter", "end")
        left = screen.app.mirror
        await chosen(screen, "run/other")
        await screen.press("enter")
        await screen.shows("Needs you", "x is bad")
        await screen.press("2")
        await screen.shows("of the other")
        assert not screen.app.view.filter_text
        assert "judge-0" not in screen.text
        assert left is not screen.app.mirror
        assert left.unit("web-2")
        assert not screen.app.mirror.unit("web-2")
        assert screen.app.settings.target_options == ("--run", "other")
        table = screen.app.view.query_one("Table")
        assert table.model.select("web-1")  # type: ignore[attr-defined]
        await screen.press("r")
        await aeventually(lambda: other.sent("restart") == [Restart("web-1", 2)])
        assert not coordinator.sent("restart")
        await chosen(screen, "run/demo")
        await screen.press("enter")
        await screen.press("2")
        await screen.shows("judge-0")


async def test_pending_command_never_reaches_the_next_run(coordinator: Scripted, other: Scripted) -> None:
    populate(coordinator)
    coordinator.answers["restart"] = lambda _: Accepted("op", Effect(), Tier.NONE)
    async with opened(coordinator.state_dir) as screen:
        await chosen(screen, "run/other")
        await screen.press("2")
        await screen.shows("web-1")
        coordinator.hold("restart")
        await screen.press("r")
        await aeventually(lambda: coordinator.waiting("restart"))
        await screen.press("9", "enter")
        await screen.shows("x is bad")
        coordinator.let_go("restart")
        sent = [("restart", True)]  # only the preview
        await aeventually(
            lambda: [(name, preview) for name, _, preview in coordinator.received if name == "restart"] == sent,
            what="an answer that comes too late",
        )
        await screen.press("2")
        await screen.shows("of the other")
        assert not other.sent("restart")
        assert not coordinator.sent("restart")


async def test_recording_of_a_dead_run_is_played_and_left_again(coordinator: Scripted, home: Path) -> None:
    recorder = Recorder(down(home, "old") / "recordings")
    recorder.unit(0, status="long ago")
    recorder.wait(65)
    recorder.writer.close()
    down(home, "empty")
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await chosen(screen, "run/empty")
        await screen.press("enter")
        await screen.shows("empty is down", "play its recording")
        await screen.press("enter")
        await screen.shows("Nothing was recorded of empty")
        assert screen.app.mirror.name == "demo"
        await chosen(screen, "run/old")
        await screen.press("enter", "enter")
        await screen.shows("recording ·")
        await screen.press("2")
        await screen.shows("long ago")
        assert screen.app.read_only
        await chosen(screen, "run/demo")
        old = next(line for line in screen.lines if " old " in line)
        assert " 2h0" in old, "its age is counted by the wall clock"
        await screen.press("enter", "2")
        await screen.shows("judge-0")
        assert not screen.app.read_only


@pytest.fixture
def far(coordinator: Scripted, tmp_path: Path) -> Iterator[Path]:
    """The key file of a run on another host."""
    made = Scripted(tmp_path / "another host", "other")
    server, mine = new_keypair(), new_keypair()
    hub, feed = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    made.guarded = (server, hub, feed)
    made.rows["alert/x"] = X_IS_BAD
    made.answers["why"] = coordinator.answers["why"]
    key = ClientKey(
        name="ann", public=mine.public, secret=mine.secret, server_public=server.public, address=hub, feed=feed
    )
    key.save(tmp_path / "far.key")
    with made:
        yield tmp_path / "far.key"


async def test_run_on_another_host_is_reached_by_its_key_file(
    coordinator: Scripted, home: Path, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "gone.key")
    monkeypatch.chdir(tmp_path)
    async with opened(coordinator.state_dir, (120, 30), Settings(key_files=(missing,))) as screen:
        await chosen(screen, f"key/{missing}")
        await screen.shows("damaged")
        await screen.press("f")
        await screen.type("for.key")
        await screen.shows("There is no such file.")
        await screen.press(*["backspace"] * len("or.key"))
        await screen.type("ar.key")
        await screen.press("enter")
        await screen.shows("x is bad")
        assert screen.app.settings.target_options == ("--key", str(far))
        assert not screen.app.settings.local
        await chosen(screen, f"key/{far}")
        await screen.shows("other ← here")


async def test_browser_page_cannot_switch_to_another_run(coordinator: Scripted, other: Scripted) -> None:
    async with opened(coordinator.state_dir, settings=Settings(in_browser=True)) as screen:
        await screen.press("9")
        await screen.shows("runs is not possible: a browser page shows one run")
        assert screen.app.navigation.tab == "overview"
        screen.app.follow(lambda mirror: screen.app.connection, Place("other"), "other")
        await screen.shows("A browser page shows one run.")
        assert screen.app.mirror.name != "other"
