"""Every view at three sizes, in good and in bad conditions: no line wraps, hostile text has no effect, and the
important parts are shown.
"""

from __future__ import annotations

import json
import os
import time
import unicodedata
from typing import cast

import msgspec
import pytest
from rich.cells import cell_len

from agentrl.protocol.rows import AlertRow, AlertState, IncidentRow, RunRow
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, SIZES, Screen, opened, populate
from tests.waiting import aeventually
from tui.console_interface import Settings
from tui.widgets.lines import Table
from tui.widgets.themes import LIGHT

VIEWS = {"1": "overview", "2": "fleet", "3": "events", "4": "alerts", "5": "tuning", "6": "logs"}
ESSENTIAL = {
    "overview": (
        "Needs you",
        "[a] ‼ page",
        "judge-0 is fatal",
        "[c]",
        "and 1 more",
        "Fleet",
        "!judge 0/1 fatal 1",
        "web 3/3",
    ),
    "fleet": ("UNIT▲", "web-2", "● ready", "✖ fatal", "far up cpu"),
    "events": ("judge-0.6", "incident", "✓ succeeded", "pool.work_s"),
    "alerts": ("‼ page", "bad:judge-0", "! firing", "c agentrl restart judge-0", "exit 1"),
    "tuning": ("pool.work_s", "2 s", "trainer.rate", "next version ◆"),
    "logs": ("── judge-0.7",),
}


def whole(screen: Screen, width: int, height: int) -> None:
    """Check that the screen has the size of the terminal and only text."""
    lines = screen.lines
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) == width, line
        assert not any(unicodedata.category(sign) in ("Cc", "Cs") or sign in "\u202e\u200b" for sign in line), line


@pytest.mark.parametrize("times", ["normal", "empty", "overflowing", "light ascii"])
async def test_every_view_at_every_size(coordinator: Scripted, times: str) -> None:
    if times != "empty":
        long = f" {HOSTILE}" if times == "overflowing" else ""
        populate(coordinator, units=400 if times == "overflowing" else 3, long=long)
    settings = Settings(ascii_only=times == "light ascii", theme=LIGHT) if times == "light ascii" else None
    async with opened(coordinator.state_dir, SIZES[0], settings) as screen:
        for size in SIZES:
            await screen.resize(*size)
            for key, view in VIEWS.items():
                await screen.press(key)
                await aeventually(lambda view=view: screen.app.view.name_in_registry == view)
                if times == "normal":
                    await screen.shows(*ESSENTIAL[view])
                whole(screen, *size)
                assert times != "light ascii" or screen.text.isascii()
                for keys in (["enter"], ["question_mark"], ["colon"]) if size == SIZES[0] else ():
                    await screen.press(*keys)
                    whole(screen, *size)
                    await screen.press("escape", "escape")
        assert "demo" in screen.lines[0]


async def test_lost_coordinator_dims_the_screen_and_shows_since_when(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (100, 30)) as screen:
        await screen.press("2", "down")
        await screen.shows("web-1")
        before = screen.app.line_styles
        about = coordinator.state_dir / "coordinator.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"pid": 0}))
        agent = coordinator.state_dir / "hosts" / "here" / "agent.json"
        agent.parent.mkdir(parents=True)
        agent.write_text(json.dumps({"pid": os.getpid()}))
        coordinator.end()
        await screen.shows("✗ no connection since", "The coordinator is silent", "web-2")
        await screen.shows("starts it again by itself, within seconds")
        assert screen.app.line_styles is not before
        for key in VIEWS:
            await screen.press(key)
            whole(screen, 100, 30)
        await screen.press("2", "r")
        await screen.shows("more than 5 s old")


async def test_run_that_was_taken_down_shows_no_problem(coordinator: Scripted) -> None:
    populate(coordinator)
    down = msgspec.structs.replace(cast(RunRow, coordinator.rows["run"]), state="stopped", desired="down")
    coordinator.rows["run"] = down
    async with opened(coordinator.state_dir, (100, 30)) as screen:
        await screen.shows("■ stopped")
        coordinator.end()
        await screen.shows("The run was taken down", "agentrl tui --playback demo")


async def test_missing_coordinator_is_reported(coordinator: Scripted) -> None:
    (coordinator.state_dir / "coordinator.json").unlink()
    async with opened(coordinator.state_dir, (80, 24), connected=False) as screen:
        await screen.shows("The run demo is not up", "no data")
        whole(screen, 80, 24)


async def test_filter_keeps_rows_with_its_words_and_escape_ends_it(coordinator: Scripted) -> None:
    populate(coordinator, units=30)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "slash")
        await screen.type("fatal")
        await screen.press("enter")
        await screen.shows("/fatal", "judge-0")
        assert "web-2" not in screen.text
        assert screen.app.view.filter_text == "fatal"
        await screen.press("escape")
        await screen.shows("web-2")


async def test_escape_returns_to_the_view_that_opened_the_page(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "end", "enter")
        await screen.shows("web-2.7", "host far, pid 402", "judge")
        await screen.press("escape", "home", "i")
        await screen.shows("judge-0.6 died", "last words")
        await screen.press("escape")
        await screen.shows("UNIT▲")
        await screen.press("1", "a")
        await screen.shows("agentrl restart judge-0", "evidence")


async def test_palette_runs_the_choice_or_the_typed_line(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("ctrl+p")
        await screen.type("tuni")
        await screen.press("enter")
        await screen.shows("KNOB▲")
        await screen.command("scale web +1")
        await aeventually(lambda: coordinator.sent("scale"))
        await screen.command("restart nobody")
        await screen.shows("There is no unit named nobody.")


async def test_unknown_word_in_the_palette_gets_a_message_and_has_no_effect(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("colon")
        await screen.type("tunnig")
        await screen.press("space")
        await screen.shows("Nothing is called 'tunnig'. Did you mean the command `tune`, or:", "tuning")
        await screen.press("escape", "colon")
        await screen.type("restrat web-0")
        await screen.shows("Nothing is called 'restrat web-0'. Did you mean the command `restart`, or:")
        await screen.press("escape", "colon")
        await screen.type("tunnig")
        await screen.press("enter")
        await screen.shows("The console has no verb 'tunnig'.")
        await screen.press("colon")
        await screen.type("qqqq")
        await screen.shows("Nothing is called 'qqqq'.")
        assert "'qqqq'. Did you mean" not in screen.text
        await screen.press("escape", "colon")
        await screen.type("restart wbe-0")
        await screen.shows("There is no unit named wbe-0. Did you mean web-0?")
        await screen.press("escape", "colon")
        await screen.type("tunnig")
        await screen.press("down", "enter")
        await screen.shows("KNOB▲")
        whole(screen, 80, 24)


async def test_status_of_a_unit_is_complete_on_a_narrow_terminal(coordinator: Scripted) -> None:
    populate(coordinator, sentence="serving 12 of 64 episodes, the last of them has been waiting for a tool; the end")
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("2", "end")
        await screen.shows("waiting for a ", "tool; the end", "q quit")
        whole(screen, 80, 24)


async def test_frozen_screen_does_not_change_while_data_arrives(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("2", "z")
        await screen.shows("frozen")
        row = coordinator.rows["unit/web-1"]
        coordinator.publish("unit/web-1", msgspec.structs.replace(row, status="something else"))
        await aeventually(lambda: screen.app.mirror.unit("web-1").status == "something else")  # type: ignore[union-attr]
        assert "something else" not in screen.text
        await screen.press("z")
        await screen.shows("something else")


@pytest.mark.parametrize(
    ("view", "key", "beside"), [("4", "alert/bad:judge-0", "exit 1"), ("5", "knob/pool.work_s", "")]
)
async def test_first_row_is_selected_when_it_appears(coordinator: Scripted, view: str, key: str, beside: str) -> None:
    """Before it there were no rows, or only hidden ones."""
    populate(coordinator)
    rows = {name: coordinator.rows.pop(name) for name in list(coordinator.rows) if name.startswith(("alert/", "knob/"))}
    row = rows[key]
    if isinstance(row, AlertRow):
        coordinator.rows[f"{key}-before"] = msgspec.structs.replace(
            row, id=f"{row.id}-before", state=AlertState.RESOLVED
        )
    async with opened(coordinator.state_dir) as screen:
        await screen.press(view)
        await aeventually(lambda: screen.app.view.name_in_registry == VIEWS[view])
        coordinator.publish(key, row)
        table = screen.app.view.query_one(Table)
        await aeventually(lambda: table.model.cursor == key.partition("/")[2])


async def test_past_events_are_queried_when_the_connection_is_made(coordinator: Scripted) -> None:
    coordinator.answers["events"] = lambda _: [IncidentRow("i", "web-7", 1, time.time() - 60, "web-7.1 died")]
    file = coordinator.state_dir / "coordinator.json"
    whereabouts = file.read_text()
    file.unlink()
    async with opened(coordinator.state_dir, connected=False) as screen:
        await screen.press("3")
        await screen.shows("The run demo is not up", "nothing happened yet")
        file.write_text(whereabouts)
        await screen.shows("web-7.1 died")
