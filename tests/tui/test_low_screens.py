"""Low and narrow terminals: the most important rows and columns stay."""

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
from tui.action_registry import BY_ID
from tui.model import data_tables
from tui.model.mirror import Mirror
from tui.model.table import GAP, Column, layout
from tui.views import alerts, stored_tables, tuning
from tui.views.view import TableView


@pytest.mark.parametrize("view", ["fleet", "events", "alerts", "tuning", "records", "training"])
async def test_low_screen_shows_rows_before_other_parts(coordinator: Scripted, view: str) -> None:
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
        (tuning.columns(Mirror()), ("name", "value")),
        (alerts.columns(), ("severity", "sentence")),
        (data_tables.record_columns(), ("id", "status")),
        (stored_tables.task_columns(), ("id", "status")),
    ],
)
def test_narrow_screen_keeps_the_most_important_columns(
    columns: tuple[Column[Any], ...], first: tuple[str, str]
) -> None:
    """The name column shrinks before the value column is left out."""
    for width in range(38, 81):
        shown = layout([column for column in columns if not column.optional], width)
        names = [column.name for column, _ in shown]
        assert set(first) <= set(names), f"{names} at {width}"
        assert sum(width for _, width in shown) + GAP * (len(shown) - 1) <= width


async def test_narrow_screen_shows_the_value_of_a_knob(coordinator: Scripted) -> None:
    populate(coordinator)
    async with opened(coordinator.state_dir, (40, 10)) as screen:
        await screen.press("5")
        await screen.shows("pool.work_s", "trainer.rate")
        (line,) = [line for line in screen.lines if "pool.work_s" in line]
        assert line.rstrip().endswith("2 s")
