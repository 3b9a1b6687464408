"""The recording in the package contains what the docs promise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentrl.config import paths
from agentrl.errors import ConfigError
from agentrl.recording.disk_writer import DIRECTORY
from agentrl.recording.reader import Recording
from tests.tui.all_screens import comes_to_be_sound
from tests.tui.conftest import Screen
from tui import recording_lookup
from tui.app import Console
from tui.model import header_footer
from tui.playback_connection import PlaybackConnection

MOST_BYTES = 300_000
SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    return Console(recording_lookup.link(recording_lookup.ALWAYS, "", 1.0))


async def test_recording_has_a_killed_sampler_a_tightened_bound_and_failed_tool_calls(app: Console) -> None:
    async with app.run_test(size=SIZES[0]) as pilot:
        screen = Screen(app, pilot)
        for size in SIZES:
            await screen.resize(*size)
            await screen.press("1")
            app.playback_actions.do_jump(-math.inf)
            await screen.press("P")
            await screen.shows(f"{recording_lookup.THE_SHIPPED} · ")
            app.playback_actions.do_step(1, "after")
            await screen.shows("reward ", "engine 1/1")
            await screen.press("2")
            await screen.shows("sampler-0", "starting", "degraded")
            await screen.press("3")
            await screen.shows("signal 9")
            app.playback_actions.do_step(1, "after")
            await screen.press("1")
            await screen.shows("bound = 1", "fails ")
            app.playback_actions.do_jump(math.inf)
            await screen.press("8")
            await screen.shows("reward_mean 0.", "✖", "trainer-0.1/000030", "committed")
            await screen.press("enter")
            await screen.shows("committed, from v", "loss ", "Its records are in no recording")
            await screen.press("escape")
            await comes_to_be_sound(screen, *size)


def test_run_named_demo_is_preferred_to_the_shipped_recording_except_by_the_reserved_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    assert not paths.is_run_name(recording_lookup.ALWAYS)
    shipped = Path(recording_lookup.__file__).parents[1] / "assets" / recording_lookup.SHIPPED
    assert shipped.stat().st_size < MOST_BYTES
    frames = Recording.open(shipped).frames
    assert (
        _played(recording_lookup.ALWAYS)
        == _played(recording_lookup.DEMO)
        == (len(frames), recording_lookup.THE_SHIPPED)
    )
    paths.create_run(recording_lookup.DEMO, tmp_path / "runs")
    with pytest.raises(ConfigError, match="Nothing was recorded of demo") as bare:
        _played(recording_lookup.DEMO)
    assert recording_lookup.ALWAYS in bare.value.hint
    own = paths.state_dir(recording_lookup.DEMO) / DIRECTORY
    own.mkdir()
    (own / "1.rec").write_bytes(shipped.read_bytes()[: frames[0].end])
    assert _played(recording_lookup.DEMO) == (1, recording_lookup.OF_A_RUN)
    assert _played(recording_lookup.ALWAYS) == (len(frames), recording_lookup.THE_SHIPPED)
    app = Console(recording_lookup.link(recording_lookup.DEMO, "", 1.0))
    assert isinstance(app.connection, PlaybackConnection)
    assert "agentrl up --run demo --read-only" in app.connection.without("records")
    assert "agentrl logs UNIT --run demo" in app.connection.without_logs()


@pytest.mark.parametrize("key", ["6", "7"])
async def test_no_command_is_suggested_for_a_run_of_another_host(key: str) -> None:
    app = Console(recording_lookup.link(recording_lookup.ALWAYS, "", 1.0))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.press(key)
        await screen.shows("A recording has no", "its run is not known on this machine.", "your own shows them.")
        assert "agentrl " not in screen.text


async def test_hint_about_logs_is_complete_on_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    paths.create_run("shop", tmp_path / "runs")
    own = paths.state_dir("shop") / DIRECTORY
    own.mkdir()
    shipped = Path(recording_lookup.__file__).parents[1] / "assets" / recording_lookup.SHIPPED
    (own / "1.rec").write_bytes(shipped.read_bytes())
    app = Console(recording_lookup.link("shop", "", 1.0))
    async with app.run_test(size=(60, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.press("6")
        await screen.shows("A recording has no logs", " · not in a recording")
        assert "following" not in screen.text, "there is nothing to follow"
        said = " ".join(line.strip() for line in screen.lines[2:6])
        assert "agentrl logs UNIT --run shop reads those that the run left." in said


def _played(name: str) -> tuple[int, str]:
    """Count of frames, and the name in the banner, of the recording that a name selects."""
    playback = Console(recording_lookup.link(name, "", 1.0)).playback
    assert playback is not None
    return len(playback.source.frames), header_footer.played(playback).partition(" · ")[0]
