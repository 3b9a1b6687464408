"""Steps in playback: the steps that the trainer reported before the position, however playback reached it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.filters.parser import FilterError
from agentrl.protocol import rows, wire
from agentrl.protocol.rows import UnitRow, UnitState
from agentrl.recording.file_format import Change
from agentrl.recording.reader import Recording
from tests.tui.conftest import SIZES, Screen
from tests.tui.test_playback import BEGAN, Recorder
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui import recording_lookup
from tui.app import Console
from tui.model.mirror import Mirror
from tui.model.playback import Playback
from tui.model.recorded_steps import RecordedSteps, chosen, step_reports
from tui.model.step_cache import StepCache

OFTEN = st.sampled_from(["step", "step", "wait", "wait", "minute", "evaluated", "back"])


class Training(Recorder):
    """A simulated run that trains."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.life, self.step = 1, 0
        self.numbers: dict[str, float] = {}
        self.reported: list[tuple[float, int, int]] = []
        """Time, incarnation and number of each reported Step."""
        self.unit(0)
        self._put()

    def train(self, **numbers: float) -> None:
        self.step += 1
        self.numbers = {"step": self.step, "reward_mean": self.step / 100, **numbers}
        self.reported.append((self.now, self.life, self.step))
        self._put()

    def say(self, **numbers: float) -> None:
        """Reports the numbers of a moment between two Steps."""
        self.numbers |= numbers
        self._put()

    def die(self, *, back_to: int) -> None:
        self.life, self.step, self.numbers = self.life + 1, back_to, {}
        self._put()

    def ended(self) -> Recording:
        self.writer.close()
        return Recording.open(self.writer._files._directory)

    def happen(self, what: str) -> None:
        match what:
            case "step":
                self.train()
            case "back":
                self.die(back_to=max(0, self.step - 2))
            case "evaluated":
                self.say(evaluation=self.now)
            case _:
                self.wait(61 if what == "minute" else 1)

    def _put(self) -> None:
        row = UnitRow("trainer-0", "trainer", "trainer", UnitState.READY, incarnation=self.life, metrics=self.numbers)
        self.put("unit/trainer-0", row)


def expected(made: Training, until: float) -> list[tuple[str, str]]:
    """Names and statuses of all Steps up to a time, the newest first."""
    seen = [(life, step) for at, life, step in made.reported if at <= until]
    first: dict[int, int] = {}
    for life, step in seen:
        first.setdefault(life, step)
    found = []
    for life, step in reversed(seen):
        again = any(later > life and begun <= step for later, begun in first.items())
        found.append((f"trainer-0.{life}/{step:06d}", "rolled_back" if again else "committed"))
    return found


def shown(steps: StepCache) -> list[tuple[str, str]]:
    return [(str(row["id"]), str(row["status"])) for row in steps.rows]


def read_back(playback: Playback) -> None:
    while unread := playback.unread:
        for index in unread:
            playback.keep(index, playback.read_steps(index))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(OFTEN, max_size=40),
    st.lists(st.one_of(st.floats(-0.1, 1.1), st.integers(0, 90), st.just("read")), max_size=8),
)
def test_steps_depend_on_the_position_only(
    tmp_path_factory: pytest.TempPathFactory, things: list[str], ways: list[float | int | str]
) -> None:
    made = Training(tmp_path_factory.mktemp("recording"))
    for what in things:
        made.happen(what)
    made.wait(2)
    playback, steps = Playback(made.ended(), Mirror()), StepCache()
    playback.seek(BEGAN, 0.0)
    whole_s = made.now - BEGAN
    for clock, way in enumerate(ways):
        if isinstance(way, str):
            read_back(playback)
        elif isinstance(way, int):
            playback.advance(float(way), float(clock))
        else:
            playback.seek(BEGAN + way * whole_s, float(clock))
        part = playback.fill_steps(steps)
        everything = expected(made, playback.position)
        if part.unread:
            # Only the newest Steps are certain, and it is known which of them were rolled back.
            assert shown(steps) == everything[: len(steps.rows)]
            assert part.more
    read_back(playback)
    shown_steps = playback.fill_steps(steps)
    assert shown(steps) == expected(made, playback.position)
    assert not shown_steps.more
    assert [point.step for point in steps.points] == [
        int(name[-6:]) for name, status in reversed(shown(steps)) if status == "committed"
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(OFTEN, min_size=10, max_size=60), st.integers(1, 6), st.data())
def test_steps_are_limited_and_no_further_frame_is_read(
    tmp_path_factory: pytest.TempPathFactory, things: list[str], most: int, data: st.DataObject
) -> None:
    made = Training(tmp_path_factory.mktemp("recording"))
    for what in things:
        made.happen(what)
    made.wait(2)
    recording = made.ended()
    recorded = RecordedSteps(most)
    for _ in range(4):
        at = data.draw(st.floats(recording.begin, recording.end))
        index = recording.frame_at(at)
        recorded.keep(index, step_reports(change for block in recording.blocks(index) for change in block))
        reads = 0
        while unread := recorded.steps_at(index, at).unread:
            assert max(unread) < index
            for each in unread:
                recorded.keep(each, step_reports(change for block in recording.blocks(each) for change in block))
            reads += 1
            assert reads <= len(recording.frames), "frames are read only once"
        part, everything = recorded.steps_at(index, at), expected(made, at)
        assert [row["id"] for row in part.rows] == [name for name, _ in everything[:most]]
        assert part.more == (len(everything) > most)


def test_step_has_the_numbers_of_its_first_report(tmp_path: Path) -> None:
    made = Training(tmp_path)
    made.wait(30)
    made.train(base_version=4, records=12, seconds=8.0, loss=0.25, evaluation=0.5, valid_share=1.0, step_wanted=9)
    made.wait(5)
    made.say(evaluation=0.9)
    made.wait(90)
    playback, steps = Playback(made.ended(), Mirror()), StepCache()
    playback.seek(BEGAN + 120, 0.0)
    read_back(playback)
    playback.fill_steps(steps)
    (row,) = steps.rows
    assert row["metrics"] == {"reward_mean": 0.01, "records": 12, "seconds": 8.0, "loss": 0.25, "evaluation": 0.5}, (
        "a report between two Steps does not change the metrics of a Step"
    )
    assert (row["base_version"], row["counts"], row["duration_s"]) == (4, {"records": 12}, 8.0)
    assert steps.points[0].at == pytest.approx(BEGAN + 30)
    assert (row["committed_at"] - row["leased_at"]).total_seconds() == 8.0


def test_missing_steps_are_counted(tmp_path: Path) -> None:
    made = Training(tmp_path)
    for _ in range(2):
        made.wait(5)
        made.train()
    made.step += 3
    made.wait(5)
    made.train()
    made.die(back_to=4)
    made.wait(5)
    made.train()
    made.step += 2
    made.die(back_to=made.step)
    made.wait(70)
    made.train()
    playback, steps = Playback(made.ended(), Mirror()), StepCache()
    playback.seek(made.now, 0.0)
    read_back(playback)
    shown_steps = playback.fill_steps(steps)
    found = [(row["id"][8:], row.get("untold", 0)) for row in shown_steps.rows]
    assert found == [("0.3/000008", 2), ("0.2/000005", 0), ("0.1/000006", 3), ("0.1/000002", 0), ("0.1/000001", 0)]
    assert shown_steps.untold == 5


def test_unreadable_frame_loses_only_its_own_steps(tmp_path: Path) -> None:
    made = Training(tmp_path)
    for _ in range(3):
        made.train()
        made.wait(61)
    recording = made.ended()

    class Damaged(Recording):
        def blocks(self, index: int) -> Iterator[list[Change]]:
            if index == 1:
                raise OSError("a bad sector")
            return super().blocks(index)

    playback, steps = Playback(Damaged(recording.frames, recording.marks, ()), Mirror()), StepCache()
    playback.seek(recording.end, 0.0)
    read_back(playback)
    playback.fill_steps(steps)
    numbers = [row["step"] for row in steps.rows]
    assert numbers[0] == 3
    assert numbers[-1] == 1
    playback.seek(BEGAN + 70, 0.0)
    assert "bad sector" in playback.problem


@pytest.mark.parametrize(
    "numbers",
    [{}, {"step": math.inf}, {"step": 1.0, "records": math.nan}, {"step": 1.0, "seconds": 1e300}],
)
def test_row_with_a_number_that_is_not_finite_is_left_out(numbers: Mapping[str, float]) -> None:
    row = UnitRow("trainer-0", "trainer", "trainer", UnitState.READY, incarnation=1, metrics=dict(numbers))
    found = step_reports(
        [
            Change(1.0, "unit/odd", msgspec.Raw(msgspec.msgpack.encode({"type": "from the future"}))),
            Change(1.0, "unit/trainer-0", wire.raw(row)),
        ]
    )
    recorded = RecordedSteps()
    recorded.keep(0, found)
    found_rows = recorded.steps_at(0, 2.0).rows
    assert [row["step"] for row in found_rows] == ([1] if "seconds" in numbers else [])
    assert all(row.keys().isdisjoint({"counts", "duration_s", "leased_at"}) for row in found_rows)


def test_filters_of_lists_apply(tmp_path: Path) -> None:
    made = Training(tmp_path)
    for _ in range(4):
        made.train(seconds=1.0)
        made.wait(10)
    playback, steps = Playback(made.ended(), Mirror()), StepCache()
    playback.seek(BEGAN + 40, 0.0)
    rows_there = playback.fill_steps(steps).rows
    assert [row["step"] for row in chosen(rows_there, "metrics.reward_mean>0.02", BEGAN + 40)] == [4, 3]
    assert [row["step"] for row in chosen(rows_there, "committed_at>-25s", BEGAN + 40)] == [4, 3]
    with pytest.raises(FilterError):
        chosen(rows_there, "nosuch=1", BEGAN)


# ---- on the screen ----


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Twelve steps in six minutes, with a knob change before the sixth and a death before the ninth."""
    made = Training(tmp_path / "shop")
    made.put("knob/groups", rows.KnobRow("groups", "int", 1, value=2, revision=1, scientific=True))
    for number in range(12):
        made.wait(30)
        if number == 5:
            succeeded = rows.OperationState.SUCCEEDED
            made.put(
                "op/1", rows.OperationRow("1", "tune", "tune: groups: 1 -> 2", "ann", succeeded, made.now, made.now)
            )
        if number == 8:
            made.put("incident/i", rows.IncidentRow("i", "trainer-0", 1, made.now, "trainer-0.1 died", tail=("oh",)))
            made.die(back_to=7)
        made.wait(1)
        made.train(loss=1.0 - number / 20, records=8.0, base_version=float(number), seconds=9.0)
    made.wait(5)
    made.ended()
    return tmp_path / "shop"


@pytest.mark.parametrize("size", SIZES)
async def test_table_curves_and_ticks_match_the_position(trained: Path, size: tuple[int, int]) -> None:
    app = Console(recording_lookup.link(str(trained), "", 0.25))  # slow, so that the pause comes before the first step
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.press("P", "8")
        await screen.shows("▸ 0 steps", "no trainer's row of the recording had one")
        app.playback_actions.do_jump(math.inf)
        await screen.shows("12 steps", "reward_mean 0.11", "◆", "✖", "trainer-0.2/000011")
        whole(screen, *size)
        await screen.press("g", "left_square_bracket")
        await screen.shows("trainer-0.1 died", "step 8 ")
        await screen.press("left_square_bracket")
        await screen.shows("tune: groups: 1 -> 2, by ann · a new segment", "step 6 ")
        await screen.press("e")
        await screen.shows("ann")
        await screen.press("escape", "g", "enter")
        await screen.shows("trainer-0.2/000011  committed, from v11", "loss 0.45", "Its records are in no recording")
        await screen.press("escape")
        assert app.playback is not None
        app.playback.seek(BEGAN + 100, 0.0)
        app.view.update()
        await screen.shows("3 steps", "reward_mean 0.03")
        await aeventually(lambda: "✖" not in screen.text and "◆" not in screen.text)
        await screen.press("slash")
        await screen.type("metrics.loss<0.97")
        await screen.press("enter")
        await screen.shows("2 steps")
        await screen.press("slash")
        await screen.type("x")
        await screen.press("enter")
        await screen.shows("cannot be understood")
        await screen.press("escape")
        await screen.shows("3 steps")


async def test_gap_between_steps_is_shown(tmp_path: Path) -> None:
    made = Training(tmp_path / "shop")
    made.train(loss=0.5)
    made.wait(1)
    made.step += 12
    made.train(loss=0.4)
    made.wait(1)
    made.ended()
    app = Console(recording_lookup.link(str(tmp_path / "shop"), "-0s", 1.0))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.press("P", "8")
        await screen.shows("2 steps, 12 between them not told", "12 not told")
        await screen.press("g", "enter")
        await screen.shows("This recording has no data of 12 steps before it")
        whole(screen, 80, 24)


async def test_first_screen_has_step_rate_and_dropped_records_if_reported(trained: Path) -> None:
    app = Console(recording_lookup.link(str(trained), "-1s", 1.0))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = Screen(app, pilot)
        await screen.press("P")
        await screen.shows("one in 3", "last step")
        assert "dropped" not in screen.text, "the count of old records was not reported"
