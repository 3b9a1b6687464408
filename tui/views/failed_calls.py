"""Shows lists of failed tool calls: by kind, and one by one.

Invariants:
- Enter opens the turn in which the call was made.
"""

from __future__ import annotations

import json
from typing import Any

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.protocol.data_commands import VARIES, ListFailedCalls, ToolErrorGroup
from tui.model import data_tables
from tui.model.data_tables import MALFORMED
from tui.model.table import Column
from tui.views.query_views import ANSWER_S, QueryTable
from tui.views.records import RecordPage


class ToolErrors(QueryTable):
    """Failed tool calls by kind; enter lists the calls of a kind."""

    name_in_registry = "tool-errors"
    what = "kinds of tool errors"
    filled_by = "no call of a tool has failed"
    first_sort = "count"

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.table.model.sort("count", descending=True)

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.error_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        found: list[ToolErrorGroup] = await client.tool_errors(filter=self.filter_text, deadline_s=ANSWER_S)
        return {f"{each.server}.{each.tool} {each.status} {each.error_class} {each.message}": each for each in found}

    def cli_line(self) -> tuple[str, ...]:
        return ("tools", "errors", *(("--filter", self.filter_text) if self.filter_text else ()))

    def open_row(self, group: ToolErrorGroup) -> None:
        if group.status != MALFORMED:
            self.actions.navigation.open_page(FailedCalls(same_kind(group, self.filter_text), group.message))
        elif group.samples:
            # No tool was called, so there is no call to list.
            sample = group.samples[0]
            self.actions.navigation.open_page(RecordPage(sample.record, sample.turn))


def same_kind(group: ToolErrorGroup, besides: str) -> str:
    """The filter of the calls of a kind; its message is asked for besides."""
    names = ("server", "tool", "status", "error_class")
    values = {name: getattr(group, name) for name in names if getattr(group, name) != VARIES}
    same = " and ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{same} and ({besides})" if besides else same


class FailedCalls(QueryTable):
    """Failed calls, the newest first; enter opens the turn."""

    name_in_registry = "failed-calls"
    what = "failed calls"
    follows_newest = True
    filled_by = "every call that was made has worked, or none was made; 7 shows the records"

    def __init__(self, filter: str = "", message: str = "") -> None:
        super().__init__()
        self._filter = filter
        self._message = message
        """Only the calls that the list of kinds counts under this message."""
        # The kinds of errors of a part of the time may be others.
        self.newest_by = "" if message else "requested_at"

    def heading(self) -> str:
        return f"{super().heading()}: {self._message}" if self._message else super().heading()

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.call_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        asked = ListFailedCalls(
            filter=self.filter_text, sort="-requested_at", limit=self._wanted, message=self._message
        )
        return await self.listed(client, "list_failed_calls", asked)

    def cli_line(self) -> tuple[str, ...]:
        filtered = ("--filter", self.filter_text) if self.filter_text else ()
        return ("tools", "failures", *filtered, *(("--message", self._message) if self._message else ()))

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(RecordPage(str(row["record"]), row.get("turn")))
