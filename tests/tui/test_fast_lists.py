"""Lists whose rows are replaced within seconds: the cursor follows the newest row, or the list stands still."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from agentrl.filters.evaluate import matches
from agentrl.filters.fields import RECORDS
from agentrl.filters.parser import parse
from agentrl.protocol.data_commands import ListRows, Page
from agentrl.protocol.rows import OperationRow, OperationState
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, opened, populate
from tests.tui.steward_answers import answers
from tests.waiting import aeventually
from tui.model.table import TableModel
from tui.views.query_views import QueryTable

SHOWN = 40


class FastRecords:
    """A steward whose records begin and end as fast as the test says."""

    def __init__(self) -> None:
        self.newest = 100
        self.asked: list[str] = []

    def __call__(self, asked: ListRows) -> Page:
        self.asked.append(asked.filter)
        now = datetime(2030, 1, 1, tzinfo=UTC)
        query = parse(asked.filter, RECORDS)
        rows: list[dict[str, Any]] = [
            {"id": f"r{n:04}", "status": "running", "started_at": datetime.fromtimestamp(1e9 + n / 8, UTC)}
            for n in range(self.newest, 0, -1)
        ]
        found = [row for row in rows if matches(query, row, now)]
        return Page(tuple(found[:SHOWN]), "more" if len(found) > SHOWN else "")


async def _next_answer(screen: Screen, steward: FastRecords) -> None:
    """Wait until a query that begins now is answered and painted."""
    view = screen.app.view
    assert isinstance(view, QueryTable)
    for _ in range(2):
        before = len(steward.asked)
        view._ask_now.set()
        await aeventually(lambda before=before: len(steward.asked) > before)
    await aeventually(lambda: not view.awaits_rows)


def _model(screen: Screen) -> TableModel[Any]:
    view = screen.app.view
    assert isinstance(view, QueryTable)
    return view.table.model


async def test_untouched_cursor_follows_the_newest_row(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    steward = FastRecords()
    coordinator.answers["list_records"] = steward
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("7")
        await screen.shows("▸ r0100")
        steward.newest = 400
        await screen.shows("▸ r0400")
        await screen.press("2", "7")
        steward.newest = 900
        await screen.shows("▸ r0900")
        await screen.press("enter")
        await aeventually(lambda: [args.id for args in coordinator.sent("show_record")][-1:] == ["r0900"])  # type: ignore[attr-defined]


async def test_list_stands_still_after_a_move_and_counts_new_rows(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    steward = FastRecords()
    coordinator.answers["list_records"] = steward
    async with opened(coordinator.state_dir, (140, 30)) as screen:
        await screen.press("7")
        await screen.shows("▸ r0100")
        await screen.press("down", "down")
        await screen.shows("▸ r0098")
        await _next_answer(screen, steward)
        steward.newest = 131
        await screen.shows("▸ r0098", "r0100", "↑ 31 new: g")
        assert "r0101" not in screen.text
        steward.newest = 800
        await screen.shows("▸ r0098", "↑ 40+ new: g")
        await screen.press("g")
        await screen.shows("▸ r0800")
        await aeventually(lambda: "new: g" not in screen.text)
        steward.newest = 900
        await screen.shows("▸ r0900")


async def test_selected_row_stays_when_the_answer_has_it_no_more(coordinator: Scripted) -> None:
    populate(coordinator)
    answers(coordinator)
    left = ["a", "b", "c"]
    coordinator.answers["list_records"] = lambda _: Page(tuple({"id": id, "status": "running"} for id in left))
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("7", "s")
        await screen.shows("▸ a")
        await screen.press("down")
        left.remove("b")
        await aeventually(lambda: _model(screen).gone == {"b"})
        await screen.shows("▸ b", "  c")
        await screen.press("enter")
        await aeventually(lambda: [args.id for args in coordinator.sent("show_record")] == ["b"])  # type: ignore[attr-defined]
        await screen.press("escape", "down")
        await screen.shows("▸ c")
        await aeventually(lambda: "b" not in dict(_model(screen).rows))


async def test_cursor_of_the_events_follows_and_never_leaves_the_list(coordinator: Scripted) -> None:
    populate(coordinator)

    def happened(number: int) -> None:
        at = time.time() + number
        row = OperationRow(f"op{number:08}", "restart", f"restart {number}", "ann", OperationState.SUCCEEDED, at, at)
        coordinator.publish(f"op/{row.id}", row)

    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("3")
        for number in range(50):
            happened(number)
        model = screen.app.view.query_one("Table").model  # type: ignore[attr-defined]
        await aeventually(lambda: model.target and model.target[1].summary == "restart 49")
        await screen.press("down")
        await aeventually(lambda: model.target[1].summary == "restart 48")
        for number in range(50, 1300):
            happened(number)
        await screen.shows("above")
        await aeventually(
            lambda: model.all_count >= 1000 and model.key_at(0) and "1299" in model.get(model.key_at(0)).id
        )
        assert model.target[1].summary == "restart 48"
