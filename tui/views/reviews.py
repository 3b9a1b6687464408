"""Shows the review queue: records that a person should look at, with the reasons; one key notes a verdict."""

from __future__ import annotations

from typing import Any

from agentrl.client import Client
from agentrl.protocol.data_changes import ReviewRecords, Verdict
from agentrl.protocol.data_commands import ListReviews, Page
from tui.model import data_tables
from tui.model.pending_commands import PendingCommand
from tui.model.table import Column, in_order
from tui.views.query_views import ANSWER_S, QueryTable
from tui.views.records import RecordPage


class Reviews(QueryTable):
    """Suspicious records first, then a random choice; enter shows a record."""

    name_in_registry = "reviews"
    what = "records to review"
    filled_by = "records that end fill it until they have a verdict"

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.review_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        query = ListReviews(filter=self.filter_text, limit=self._wanted)
        page: Page = await client.call("list_reviews", query, deadline_s=ANSWER_S)
        self._more = len(page.rows) >= query.limit
        return in_order(page.rows)

    def cli_line(self) -> tuple[str, ...]:
        return ("review", "list", *(("--filter", self.filter_text) if self.filter_text else ()))

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(RecordPage(str(row["id"])))

    def do_review(self, verdict: Verdict) -> None:
        """Note a verdict on the marked records, or on the selected one."""
        if marked := self.marked_ids():
            self.perform(PendingCommand(ReviewRecords(tuple(marked), verdict=verdict)))
