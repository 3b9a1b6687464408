"""A terminal of a few lines: what is looked for comes before what stands beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agentrl.protocol.data_commands import Page
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.tui.test_curves import trained
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.model import alarms, data_tables, inventory, knob_table
from tui.model.actions import BY_ID
from tui.model.mirror import Mirror
from tui.model.table import GAP, Column, layout
from tui.views.view import TableView


@pytest.mark.parametrize("view", ["fleet", "events", "alerts", "tuning", "records", "training"])
async def test_on_a_low_screen_rows_come_before_what_stands_beside_them(coordinator: Scripted, view: str) -> None:
    trained(coordinator)
    at = datetime(2001, 9, 9, tzinfo=UTC)
    record = {"id": "r", "task": "t", "status": "scored", "started_at": at, "purpose": "train"}
    coordinator.answers["list_records"] = lambda _: Page((record,))
    async with opened(coordinator.state_dir, (40, 10)) as screen:
        await screen.press(BY_ID[f"go.{view}"].keys[0])

        def rows_are_seen() -> bool:
            shown = screen.app.view
            assert isinstance(shown, TableView)
            assert len(shown.table.model.visible()) > 0
            assert shown.table.size.height > 1, screen.text
            return True

        await aeventually(rows_are_seen)
        whole(screen, 40, 10)


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        (knob_table.columns(Mirror()), ("name", "value")),
        (alarms.columns(), ("severity", "sentence")),
        (data_tables.record_columns(), ("id", "status")),
        (inventory.task_columns(), ("id", "status")),
    ],
)
def test_on_a_narrow_screen_the_columns_that_say_most_are_left(
    columns: tuple[Column[Any], ...], first: tuple[str, str]
) -> None:
    """And what has no room for itself becomes narrower before the other one goes."""
    for width in range(38, 81):
        shown = layout([column for column in columns if not column.optional], width)
        names = [column.name for column, _ in shown]
        assert set(first) <= set(names), f"{names} at {width}"
        assert sum(width for _, width in shown) + GAP * (len(shown) - 1) <= width


async def test_a_knob_has_its_value_beside_it_on_a_narrow_screen(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (40, 10)) as screen:
        await screen.press("5")
        await screen.shows("pool.work_s", "trainer.rate")
        (line,) = [line for line in screen.lines if "pool.work_s" in line]
        assert line.rstrip().endswith("2 s")
