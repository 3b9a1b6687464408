"""A terminal of a few lines: what is looked for comes before what stands beside it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agentrl.protocol.data import Page
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened
from tests.tui.test_curves import trained
from tests.tui.test_screens import whole
from tests.waiting import aeventually
from tui.model.actions import BY_ID
from tui.views.base import TableView


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
