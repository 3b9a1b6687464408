"""Playback of a recording shows any past time on the same screens, at the time of the recording, without commands."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import paths
from agentrl.errors import AgentrlError, ConfigError, UsageError
from agentrl.protocol import rows, wire
from agentrl.protocol.rows import AnyRow, UnitRow, UnitState
from agentrl.recording.disk_writer import DIRECTORY
from agentrl.recording.frame_writer import Writer
from agentrl.recording.reader import Recording
from tests.tui.conftest import Screen
from tests.waiting import aeventually
from tui import recording_lookup
from tui.app import Console
from tui.model.mirror import Mirror
from tui.model.notices import Notices
from tui.model.playback import Playback

BEGAN = time.mktime((2030, 1, 31, 14, 0, 0, 0, 0, -1))


class Recorder:
    """A simulated run and its recording."""

    def __init__(self, directory: Path) -> None:
        self.rows: dict[str, AnyRow] = {}
        self.now = BEGAN
        self.writer = Writer(directory, "e", lambda: [(key, wire.raw(row)) for key, row in self.rows.items()])
        self.put("run", rows.RunRow("shop", "u" * 8, "running", started_at=BEGAN - 600))
        self.writer.tick(self.now)

    def put(self, key: str, row: AnyRow | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        self.writer.row(self.now, key, None if row is None else wire.raw(row))

    def unit(self, number: int, state: UnitState = UnitState.READY, status: str = "serving") -> None:
        name = f"web-{number}"
        row = UnitRow(name, "web", "sidecar", state, since_at=self.now, incarnation=1, host="far", status=status)
        self.put(f"unit/{name}", row)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.writer.tick(self.now)


@pytest.fixture
def run(tmp_path: Path) -> Recorder:
    """Nothing happens for two minutes; then a unit dies and is replaced, and another one starts."""
    made = Recorder(tmp_path / "shop")
    made.unit(0, status="calm")
    made.wait(125)
    made.unit(0, UnitState.BACKOFF, "")
    made.writer.mark(made.now, "incident/i1")
    made.put("incident/i1", rows.IncidentRow("i1", "web-0", 1, made.now, "killed by SIGKILL"))
    made.wait(20)
    made.unit(0, status="again")
    made.unit(1, status="new")
    made.wait(60)
    made.writer.close()
    return made


@pytest.fixture
def directory(run: Recorder, tmp_path: Path) -> Path:
    return tmp_path / "shop"


def statuses(mirror: Mirror) -> dict[str, str]:
    return {row.unit: row.status or row.state.value for row in mirror.units}


def test_every_time_is_shown_as_it_was(directory: Path) -> None:
    mirror = Mirror()
    playback = Playback(Recording.open(directory), mirror)
    for at, expected in (
        (150, {"web-0": "again", "web-1": "new"}),
        (10, {"web-0": "calm"}),
        (130, {"web-0": "backoff"}),
        (1e6, {"web-0": "again", "web-1": "new"}),
        (-5, {"web-0": "calm"}),
    ):
        playback.seek(BEGAN + at, 0.0)
        assert statuses(mirror) == expected
        assert bool(mirror.incidents()) == (at >= 125)


def test_playback_has_a_speed_and_stops_at_the_end(directory: Path) -> None:
    mirror = Mirror()
    playback = Playback(Recording.open(directory), mirror, speed=10.0)
    playback.seek(BEGAN, 0.0)
    playback.advance(1.0, 1.0)
    assert playback.position == BEGAN + 10
    playback.playing = False
    playback.advance(1.0, 2.0)
    assert playback.position == BEGAN + 10
    playback.playing = True
    for tick in range(100):
        playback.advance(0.3, 3.0 + tick)
    assert playback.over
    assert statuses(mirror) == {"web-0": "again", "web-1": "new"}


def test_step_jumps_to_the_next_mark(directory: Path) -> None:
    mirror = Mirror()
    playback = Playback(Recording.open(directory), mirror)
    playback.seek(BEGAN, 0.0)
    assert playback.step(1, 0.0)
    assert playback.position == pytest.approx(BEGAN + 125, abs=1)
    assert [row.id for row in mirror.incidents()] == ["i1"]
    assert not playback.step(1, 0.0)
    assert not playback.step(-1, 0.0)


def _stepped(playback: Playback, by: int, times: int) -> list[str]:
    found = [playback.step(by, 0.0) for _ in range(times)]
    return [mark.key if mark else "" for mark in found]


def test_steps_visit_every_mark_in_both_directions_and_stop_playback(tmp_path: Path) -> None:
    """This includes the end, the highest speed, marks at nearly the same time, and a gap of a night."""
    made = Recorder(tmp_path)

    def begins(id: str) -> None:
        made.writer.mark(made.now, f"incident/{id}")
        made.put(f"incident/{id}", rows.IncidentRow(id, "web-0", 1, made.now, "died"))

    for id, seconds in (("a", 100), ("b", 0), ("c", 1), ("d", 30)):
        made.wait(seconds)
        made.now += 0.3
        begins(id)
    made.writer.close()
    made.now += 8 * 3600
    made.put("unit/web-0", None)
    made.wait(20)
    begins("e")
    made.wait(2)
    made.writer.close()
    mirror = Mirror()
    playback = Playback(Recording.open(tmp_path), mirror, speed=600.0)
    playback.seek(1e12, 0.0)
    assert playback.over
    for by, order in ((-1, "edcba"), (1, "abcde")):
        for id in order if by < 0 else order[1:]:
            assert _stepped(playback, by, 1) == [f"incident/{id}"]
            assert mirror.get(f"incident/{id}") is not None, "the event at the beginning is shown"
            playback.advance(5.0, 0.0)
        where = playback.position
        assert _stepped(playback, by, 1) == [""]
        assert playback.position == where
    playback.seek(BEGAN + 99, 0.0)
    playback.playing = True
    playback.advance(0.1, 0.0)
    assert _stepped(playback, -1, 5) == [*(f"incident/{id}" for id in "dcba"), ""]


def test_playback_skips_a_gap(tmp_path: Path) -> None:
    first = Recorder(tmp_path)
    first.unit(0, status="evening")
    first.wait(5)
    first.writer.close()
    first.now += 8 * 3600
    first.unit(0, status="morning")
    first.wait(5)
    first.writer.close()
    mirror = Mirror()
    playback = Playback(Recording.open(tmp_path), mirror)
    playback.seek(BEGAN, 0.0)
    for tick in range(8):
        playback.advance(1.0, float(tick))
    assert statuses(mirror) == {"web-0": "morning"}
    assert playback.position > BEGAN + 8 * 3600


def test_jumps_skip_a_gap_in_both_directions(tmp_path: Path) -> None:
    made = Recorder(tmp_path)
    made.unit(0, status="evening")
    made.wait(5)
    made.writer.close()
    made.now += 3600
    made.unit(0, status="morning")
    made.wait(5)
    made.writer.close()
    mirror = Mirror()
    playback = Playback(Recording.open(tmp_path), mirror)
    playback.seek(BEGAN + 1000, 0.0)
    assert statuses(mirror) == {"web-0": "morning"}, "no time without a recording is shown"
    assert playback.position >= BEGAN + 3600
    playback.seek(playback.position - 10, 1.0)
    assert statuses(mirror) == {"web-0": "evening"}
    playback.seek(playback.position + 10, 2.0)
    assert statuses(mirror) == {"web-0": "morning"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.floats(-100, 400), st.integers(0, 60)), max_size=8))
def test_mirror_depends_on_the_position_only(tmp_path_factory: pytest.TempPathFactory, ways: list[float]) -> None:
    directory = tmp_path_factory.mktemp("recording")
    made = Recorder(directory)
    for second in range(200):
        made.unit(second % 3, status=f"at {second}")
        if second % 50 == 49:
            made.put("unit/web-1", None)
        made.wait(1)
    made.writer.close()
    mirror, fresh = Mirror(), Mirror()
    playback = Playback(Recording.open(directory), mirror)
    playback.seek(BEGAN, 0.0)
    for clock, way in enumerate(ways):
        if isinstance(way, int):
            playback.advance(float(way), float(clock))
        else:
            playback.seek(BEGAN + way, float(clock))
    Playback(Recording.open(directory), fresh).seek(playback.position, 0.0)
    assert statuses(mirror) == statuses(fresh)


def test_rows_of_another_version_are_left_out_and_reported(tmp_path: Path) -> None:
    made = Recorder(tmp_path)
    made.unit(0)
    made.writer.row(made.now, "unit/odd", msgspec.Raw(msgspec.msgpack.encode({"type": "from the future"})))
    made.wait(2)
    made.writer.close()
    mirror = Mirror()
    playback = Playback(Recording.open(tmp_path), mirror)
    playback.seek(BEGAN + 2, 0.0)
    assert statuses(mirror) == {"web-0": "serving"}
    assert "unit/odd" in playback.problem


@pytest.mark.parametrize(
    ("text", "offset_s"),
    [
        ("14:00", 0),
        ("14:02:10", 130),
        ("2030-01-31T14:01", 60),
        ("-1m", 205 - 60),
        ("-10m", 0),
        ("23:59", 9 * 3600 + 3540 - 86400),
    ],
)
def test_times_are_parsed(text: str, offset_s: float) -> None:
    begin = BEGAN if offset_s >= 0 else BEGAN - 86400
    assert recording_lookup.moment(text, begin, BEGAN + 205) == BEGAN + offset_s


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("13:59", False),
        ("14:00", True),
        ("14:00:20", True),
        ("14:00:19", False),
        ("14:03:25", True),
        ("14:03:26", False),
        ("14:04", False),
        ("2030-01-30T14:01", False),
        ("2030-02-01T14:01", False),
        ("0001-01-01T00:00", False),
    ],
)
def test_time_outside_the_recording_is_refused_with_its_range(text: str, inside: bool) -> None:
    """The minute in which the recording begins is valid, and so are the times in the message."""
    begin, end = BEGAN + 20.5, BEGAN + 205.5
    if inside:
        assert begin <= recording_lookup.moment(text, begin, end) <= end
        return
    with pytest.raises(UsageError) as refused:
        recording_lookup.moment(text, begin, end)
    assert "from 2030-01-31T14:00:20 to 2030-01-31T14:03:25" in f"{refused.value}"


def test_unplayable_arguments_are_refused_with_a_message(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a time") as wrong:
        recording_lookup.link(str(directory), "noon", 1.0)
    assert "2030-01-31T14:00:00" in wrong.value.hint
    with pytest.raises(UsageError, match="zone"):
        recording_lookup.link(str(directory), "14:00Z", 1.0)
    with pytest.raises(UsageError, match="not a speed"):
        recording_lookup.link(str(directory), "", -3.0)
    with pytest.raises(AgentrlError, match="no run named"):
        recording_lookup.link("nosuch", "", 1.0)
    with pytest.raises(UsageError, match="no file or directory"):
        recording_lookup.link("nosuch.rec", "", 1.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no recording"):
        recording_lookup.link(str(tmp_path / "empty"), "", 1.0)


def test_refusal_lists_what_can_be_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    with pytest.raises(AgentrlError) as nothing:
        recording_lookup.link("nosuch", "", 1.0)
    assert nothing.value.hint == (
        "It plays `@demo`, which comes with the programs, and any .rec file or directory of them; no run of this host "
        "has a recording."
    )
    for name in ("shop", "math"):
        paths.create_run(name, tmp_path / "runs" / name)
        (tmp_path / name / DIRECTORY).mkdir()
    paths.create_run("bare", tmp_path / "runs" / "bare")
    with pytest.raises(AgentrlError) as near:
        recording_lookup.link("shpo", "", 1.0)
    assert near.value.hint.startswith("Did you mean shop? It plays what was recorded of math, shop; `@demo`, which")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (300, 80)])
async def test_screens_show_the_time_of_the_recording_and_no_commands(directory: Path, size: tuple[int, int]) -> None:
    # At this speed the first event is minutes away, so the pause comes first even on a slow machine.
    app = Console(recording_lookup.link(str(directory), "14:01", 0.25))
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("recording · 2030-01-31 14:01", "shop")
        await screen.press("P", "2")
        await screen.shows("stands, ×0.25", "web-0", "calm")
        await screen.press("right_parenthesis")
        await screen.shows("stands, ×0.5")
        await screen.press("left_parenthesis")
        await screen.shows("stands, ×0.25")
        assert "restart" not in screen.lines[-1]
        await screen.press("r")
        await screen.shows("not possible: this is a recording")
        await screen.press("right_curly_bracket")
        await screen.shows("14:02:05", "backoff")
        await screen.press("full_stop", "full_stop")
        await screen.shows("14:02:25", "again", "web-1")
        await screen.press("comma", "comma")
        await screen.shows("backoff")
        await screen.press("3")
        await screen.shows("killed by SIGKILL")
        screen.app.notices = Notices()
        for view in "1345":
            await screen.press(view)
        await screen.press("7")
        await screen.shows("not in a recording", "A recording has no records", "its run is not known on this machine")
        assert screen.text.count("recording has no") == 1
        for kept in ("e tool", "c failed", "s under", "X export", "a attempts"):
            assert kept not in screen.lines[-1]
        assert not app.notices.line(app.mirror, app.clock()), "no notice is shown beside the views"
        for view in "68":
            await screen.press(view)
        await aeventually(lambda: app.view.name_in_registry == "training")
        await screen.press("right_parenthesis", "P")
        await screen.shows("×0.5")
