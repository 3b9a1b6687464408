"""The optional mouse: a click selects a row, the wheel scrolls, and neither runs a command."""

from __future__ import annotations

from textual import events

from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually
from tui.widgets.lines import WHEEL_ROWS, Table


async def test_click_selects_a_row_and_wheel_scrolls(coordinator: Scripted) -> None:
    populate(coordinator, units=60)
    async with opened(coordinator.state_dir, (100, 30)) as screen:
        await screen.press("2")
        await screen.shows("web-2")
        table = screen.app.view.query_one(Table)
        await screen._pilot.click(table, offset=(8, 4))
        await aeventually(lambda: table.model.cursor == table.model.key_at(table.model.offset + 3))
        cursor_before = table.model.cursor
        top = table.model.offset
        await screen._pilot._post_mouse_events([events.MouseScrollDown], widget=table, offset=(8, 4))
        await aeventually(lambda: table.model.offset == top + WHEEL_ROWS)
        assert table.model.cursor == cursor_before, "the wheel moves the viewport, not the cursor"
        assert not coordinator.sent("restart")
