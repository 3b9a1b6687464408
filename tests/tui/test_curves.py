"""Curves of steps: the columns of steps and events, and the keys that open their pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import UnavailableError
from agentrl.protocol import rows
from agentrl.protocol.data_commands import Page, Story
from agentrl.protocol.rows import OperationRow, OperationState
from agentrl.telemetry.learning_metrics import LEARNING
from tests.cli.scripted import Scripted
from tests.tui import all_screens, fixed_console
from tests.tui.all_screens import Stop
from tests.tui.conftest import opened, populate
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.model import curves
from tui.model.curves import Chart, Point, Tick
from tui.model.line_plot import AXIS, NEWEST, Scale
from tui.model.styled_text import Line, Tone, as_ascii, width_of
from tui.views.query_views import ASK_EVERY_S

BEGAN = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
NUMBERS = st.lists(st.none() | st.floats(-1e30, 1e30), min_size=1, max_size=300)


def point(number: int, value: float | None) -> Point:
    return Point(f"s{number}", number, 100.0 + number, {} if value is None else {"loss": value})


def text_of(line: Line) -> str:
    return "".join(part.text for part in line)


def incident(at: float) -> Tick:
    row = rows.IncidentRow(f"{at}", "web-0", 1, at, "died")
    return Tick(at, "✖", Tone.BAD, "died", row)


@given(NUMBERS, st.integers(1, 120), st.integers(1, 6), st.data())
def test_curve_has_a_column_for_every_step_with_any_numbers(
    values: list[float | None], width: int, height: int, data: st.DataObject
) -> None:
    found = [point(number, value) for number, value in enumerate(values)]
    ats = data.draw(st.lists(st.floats(0, 500), max_size=20))
    whole = data.draw(st.booleans())
    chart = Chart(found, [incident(at) for at in ats], width, from_the_first=whole)
    place = data.draw(st.integers(0, len(found) - 1))
    cursor = chart.column_of(f"s{place}")
    assert cursor is not None
    lines = chart.curve("loss", height, cursor)
    assert len(lines) == height + 2
    assert {width_of(line) for line in lines[1:]} == {AXIS + width + NEWEST}, "a curve takes the whole width"
    assert chart.columns == min(width, len(found))
    last = chart.last_of(cursor)
    assert last is not None
    assert place <= last.step
    shown = sum(len(each) for each in chart.ticks.values())
    since = 0.0 if whole else 100.0
    assert shown == sum(at >= since for at in ats), "only events since the steps before have a tick"


def test_tick_is_drawn_at_the_first_step_after_its_event_and_a_gap_is_not_zero() -> None:
    found = [point(0, 1.0), point(1, None), point(2, 3.0)]
    chart = Chart(found, [incident(100.5), incident(99.0), incident(500.0)], 7, from_the_first=False)
    assert {column: len(each) for column, each in chart.ticks.items()} == {1: 1, 2: 1}
    assert chart.values("loss") == [1.0, None, 3.0]
    assert chart.neighbour(0, 1) == 1
    assert chart.neighbour(1, -1) is None
    assert text_of(chart.curve("loss", 1, None)[1]) == "      3┤ ●   ●  3      "
    assert text_of(chart.curve("loss", 1, 0)[2]) == " step 0└▲─✖─✖── 2      "


@pytest.mark.parametrize(
    ("metric", "values", "low", "high"),
    [
        ("loss", [0.0, 0.0], 0.0, 1.0),
        ("reward_mean", [0.81, 0.953], 0.0, 1.0),
        ("loss", [-0.021, 0.13], -0.025, 0.15),
        ("loss", [-3.2], -4.0, 0.0),
        ("mismatch_mean", [2e-7, 1e-6], 0.0, 0.02),
        ("mismatch_mean", [0.07], 0.0, 0.08),
        ("weight_mean", [0.9988, 1.002], 0.5, 2.0),
        ("ess", [0.97], 0.0, 1.0),
        ("collapse", [-0.4], -0.4, 1.0),
        ("loss", [-1e308, 1.7e308], -1e308, 1.7e308),
        ("loss", [5e-324], 0.0, 5e-324),
    ],
)
def test_axis_ends_at_zero_or_the_band_or_at_a_round_number_beyond(
    metric: str, values: list[float], low: float, high: float
) -> None:
    declared = LEARNING.get(metric)
    scale = Scale.of(values, declared.normal if declared else None)
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert all(0 <= scale.share(value) <= 1 for value in values)


def test_curve_has_labels_the_unit_and_the_newest_value_at_its_height() -> None:
    found = [Point(f"s{n}", 40 + n, 1.0 + n, {"entropy": value}) for n, value in enumerate([0.1, 0.2, 0.06])]
    assert [text_of(line) for line in Chart(found, [], 12).curve("entropy", 5, None)] == [
        "entropy 0.06 nat · 0.06 to 0.2",
        "    0.2┤     ⡴⠻⣄            ",
        "       │   ⢠⠞⠁ ⠘⢦           ",
        "    0.1┤  ⠴⠋    ⠈⢧⡀         ",
        "       │          ⠃  0.06   ",
        "      0┤                    ",
        "step 40└──────────── 42     ",
    ]


def test_value_between_gaps_is_drawn_and_numbers_that_are_not_finite_are_gaps() -> None:
    found = [point(n, value) for n, value in enumerate([math.nan, 0.5, math.inf, None, 0.25, 0.5])]
    chart = Chart(found, [], 6)
    assert chart.values("loss") == [None, 0.5, None, None, 0.25, 0.5]
    assert text_of(chart.curve("loss", 1, None)[1]) == "    0.5┤ ●  ⠴⠃ 0.5    "
    nothing = Chart([point(0, math.nan)], [], 4).curve("loss", 2, None)
    assert [text_of(line).strip() for line in nothing] == ["loss –", "1┤", "0┤", "step 0└──── 0"]


def test_values_outside_the_band_have_the_tone_of_a_warning_and_the_limit_is_drawn() -> None:
    found = [Point(f"s{n}", n, 1.0 + n, {"mismatch_mean": value}) for n, value in enumerate([0.0, 0.0, 0.08, 0.08])]
    lines = Chart(found, [], 8).curve("mismatch_mean", 4, None)
    assert any(part.tone is Tone.WARN for part in lines[1])
    assert not any(part.tone is Tone.WARN for part in lines[4])
    assert "┄" in text_of(lines[3] + lines[4]), "the limit of 0.02 is inside the axis"
    assert text_of(lines[0]).endswith("0.08 nat ! · 0 to 0.08 · normal at most 0.02")


def test_curves_in_ascii_keep_their_shape() -> None:
    assert as_ascii("0.2┤⠁⠤⡀⣿┄●") == "0.2|'-.:.+"
    assert as_ascii("".join(map(chr, range(0x2801, 0x2900)))).isascii()


def operation(command: str, summary: str, state: OperationState, at: float = 2.0) -> OperationRow:
    return OperationRow(summary, command, summary, "ann", state, at - 1.0, at)


def test_early_events_are_drawn_at_the_first_step_and_no_tick_hides_another() -> None:
    done = OperationState.SUCCEEDED
    before = curves.ticks(
        [
            operation("tune", "tune: bound: 2 -> 1", done, 20.0),
            operation("scale", "scale: starts web-1", done, 10.0),
            operation("undo_tune", "tune --undo: bound: 1 -> 2", done, 30.0),
        ],
        frozenset(),
    )
    ticks, found = [*before, incident(99.0)], [point(0, 1.0), point(1, 2.0)]

    def drawn(width: int, cursor: int | None = None) -> str:
        return text_of(Chart(found, ticks, width).curve("loss", 1, cursor)[2])[AXIS:-NEWEST]

    assert [drawn(width) for width in (2, 4, 6, 10)] == ["≡─", "≡───", "✖◆○───", "✖◆○───────"]
    assert drawn(10, 1) == "✖◆○──▲────"
    chart = Chart(found, ticks, 10)
    assert chart.neighbour(1, -1) == 0, "the tick at column 0 is reachable"
    told = "".join(part.text for part in chart.caption(0))
    assert "1 more before these, e lists all" in told
    assert "tune: bound: 2 -> 1" in told
    assert "starts web-1" not in told


def test_rolled_back_steps_are_in_no_curve() -> None:
    told: list[dict[str, Any]] = [
        {"id": "a", "step": 1, "status": "rolled_back", "committed_at": BEGAN, "metrics": {"loss": 9.0}},
        {"id": "b", "step": 1, "status": "committed", "committed_at": BEGAN, "metrics": {"loss": 1.0}},
        {"id": "c", "step": 2, "status": "leased", "committed_at": None, "metrics": {}},
    ]
    assert [each.id for each in curves.points(told)] == ["b"]


def test_failed_operations_have_no_tick_and_scientific_changes_draw_a_line() -> None:
    done, failed = OperationState.SUCCEEDED, OperationState.FAILED
    found = curves.ticks(
        [
            operation("tune", "tune: groups: 1 -> 2", done),
            operation("tune", "tune: bound: 1 -> 2", done),
            operation("scale", "scale web to 3", failed),
            operation("acknowledge", "acknowledge x", done),
            operation("restart", "restart web-0", done, 3.0),
        ],
        frozenset({"groups"}),
    )
    assert [(tick.sign, tick.segment) for tick in found] == [("◆", True), ("◆", False), ("○", False)]


def trained(coordinator: Scripted, count: int = 40) -> None:
    populate(coordinator)
    steps = [
        {
            "id": f"t@1/{number:06d}",
            "step": number,
            "status": "committed",
            "leased_at": BEGAN + timedelta(minutes=number),
            "committed_at": BEGAN + timedelta(minutes=number, seconds=30),
            "metrics": {"reward_mean": number / count, "loss": 1.0 - number / count},
        }
        for number in range(count)
    ]
    coordinator.answers["list_steps"] = lambda args: Page(tuple(steps[::-1][: args.limit]))
    coordinator.answers["show_step"] = lambda args: Story({"id": args.id, "status": "committed", "metrics": {}})
    coordinator.rows["knob/groups"] = rows.KnobRow("groups", "int", 1, value=2, revision=1, scientific=True)
    at = (BEGAN + timedelta(minutes=10)).timestamp()
    tune = OperationRow("op1", "tune", "tune: groups: 1 -> 2", "ann", OperationState.SUCCEEDED, at, at)
    died = rows.IncidentRow("7", "web-0", 3, at + 600, "web-0.3 died", tail=("its last words",))
    coordinator.answers["events"] = lambda _: [tune, died]


async def test_keys_move_between_ticks_and_open_events_and_records_of_a_step(coordinator: Scripted) -> None:
    trained(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("8")
        await screen.shows("reward_mean 0.975", "last 10 steps", "step 39", "◆", "✖")
        whole(screen, 80, 24)
        await screen.press("left_square_bracket")
        await screen.shows("step 20 ", "web-0.3 died")
        await screen.press("left_square_bracket")
        await screen.shows("tune: groups: 1 -> 2, by ann · a new segment", "reward_mean 0.25")
        await screen.press("right")
        await screen.shows("step 11 ", "reward_mean 0.275")
        await screen.press("enter")
        await screen.shows("t@1/000011  committed")
        await screen.press("escape", "right_square_bracket", "e")
        await screen.shows("its last words")


async def test_unanswered_events_are_queried_again_at_the_interval_of_the_list(coordinator: Scripted) -> None:
    trained(coordinator)
    told = coordinator.answers["events"]

    def nobody(_: Any) -> None:
        raise UnavailableError("The journal is busy.")

    coordinator.answers["events"] = nobody
    async with fixed_console.standing(coordinator, (80, 24)) as screen:
        await aeventually(lambda: screen.app.why is not None, what="a first answer")
        await all_screens.walk_to(screen, Stop("training", ("8",)))
        await aeventually(lambda: coordinator.sent("events"))
        await aeventually(lambda: not screen.app.view.is_querying("happenings"))
        for _ in range(9):
            screen.app._paint_new_data()
        assert not screen.app.view.is_querying("happenings"), "every paint round queries again"
        coordinator.answers["events"] = told
        fixed_console.let_pass(screen.app, ASK_EVERY_S)

        def ticked() -> bool:
            screen.app._paint_new_data()
            return all(sign in screen.text for sign in "◆✖")

        await aeventually(ticked)
        assert len(coordinator.sent("events")) == 2, "answered events are not queried again"


async def test_metric_can_be_put_first_and_curves_can_fill_the_screen(coordinator: Scripted) -> None:
    trained(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("8")
        await screen.shows("reward_mean")
        await screen.press("m")
        await screen.type("loss")
        await screen.press("enter")
        await screen.shows("loss 0.025")
        assert screen.text.index("loss ") < screen.text.index("STEP")
        await screen.press("v")
        await aeventually(lambda: "RECORDS" not in screen.text)
        await screen.shows("loss 0.025", "reward_mean 0.975")
        whole(screen, 80, 24)


async def test_step_that_is_not_in_the_table_is_selected_from_the_curve(coordinator: Scripted) -> None:
    trained(coordinator, count=600)
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("8")
        await screen.shows("step 599")
        await screen.press("left_square_bracket", "left_square_bracket")
        await screen.shows("tune: groups: 1 -> 2")
        table = screen.app.view.query_one("Table")
        await aeventually(lambda: table.model.cursor == "t@1/000011")  # type: ignore[attr-defined]


async def test_steps_without_metrics_have_no_curves_and_are_listed(coordinator: Scripted) -> None:
    trained(coordinator, count=3)
    told = coordinator.answers["list_steps"]
    coordinator.answers["list_steps"] = lambda args: Page(tuple({**row, "metrics": {}} for row in told(args).rows))
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("8")
        await screen.shows("step 2 ", "t/000002")
        await screen.press("m")
        await screen.shows("No step that is shown has a metric.")


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_curves_have_an_axis_and_the_newest_value_at_any_size(
    coordinator: Scripted, size: tuple[int, int]
) -> None:
    trained(coordinator)
    async with opened(coordinator.state_dir, size) as screen:
        await screen.press("8")
        await screen.shows("1┤", "0┤", " 0.975  ", " step 0└", " 39 ")
        for _ in range(5):
            await screen.press("left")
        await screen.shows("step 34 ", "reward_mean 0.85", " 0.975  ")
        whole(screen, *size)
