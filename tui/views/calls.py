"""Shows tool calls: a list of them, one with everything about it, and the failed ones by kind.

Invariants:
- Enter on a kind lists the calls that were counted for it; enter on a call shows the call; enter there shows its turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.protocol.data_commands import (
    MALFORMED,
    VARIES,
    CallStory,
    ListCalls,
    ToolErrorGroup,
)
from tui.model import call_lines, data_tables
from tui.model.styled_text import Line
from tui.model.table import Column
from tui.views.query_views import ANSWER_S, QueryTable, RecordLinksPage
from tui.views.records import FoldingPage, RecordPage
from tui.views.view import View

FAILED = "failed=true"


def filter_from(view: View) -> str:
    """The filter of the list of calls that a view opens."""
    match view:
        case RecordPage():
            return f"record={json.dumps(view.record_id(), ensure_ascii=False)}"
        case ToolErrors():
            return f"{FAILED} and ({view.filter_text})" if view.filter_text else FAILED
    return ""


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
            self.actions.navigation.open_page(Calls(same_kind(group, self.filter_text), group.message))
        elif group.samples:
            # No tool was called, so there is no call to list.
            sample = group.samples[0]
            self.actions.navigation.open_page(RecordPage(sample.record, sample.turn))


def same_kind(group: ToolErrorGroup, besides: str) -> str:
    """The filter of the calls of a kind. The message of the kind is a separate argument."""
    names = ("server", "tool", "status", "error_class")
    values = {name: getattr(group, name) for name in names if getattr(group, name) != VARIES}
    same = " and ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{same} and ({besides})" if besides else same


class Calls(QueryTable):
    """Tool calls, the newest first; enter shows one."""

    name_in_registry = "calls"
    what = "calls"
    follows_newest = True
    filled_by = "no tool was called; 7 shows the records"

    def __init__(self, filter: str = "", error: str = "") -> None:
        super().__init__()
        self._filter = filter
        self._error = error
        """Only the calls that the list of kinds counts under this message."""
        # A part of the time may have other kinds of errors.
        self.newest_by = "" if error else "called_at"

    def heading(self) -> str:
        return f"{super().heading()}: {self._error}" if self._error else super().heading()

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.call_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        query = ListCalls(filter=self.filter_text, sort="-called_at", limit=self._wanted, error=self._error)
        return await self.listed(client, "list_calls", query)

    def cli_line(self) -> tuple[str, ...]:
        error = ("--error", self._error) if self._error else ()
        if self.filter_text == FAILED:
            return ("calls", "--failed", *error)
        return ("calls", *error, *(("--filter", self.filter_text) if self.filter_text else ()))

    def do_calls_failed(self) -> None:
        """All calls, or only those that failed."""
        # The selection belongs to the other list.
        self.table.model.cursor = None
        self.table.model.replace({})
        text, both = self.filter_text, f" and ({FAILED})"
        if text in ("", FAILED):
            self.take_filter("" if text else FAILED)
        else:
            self.take_filter(text.removesuffix(both) if text.endswith(both) else f"{text}{both}")
        self.actions.paint_frame()

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(CallPage(str(row["id"])))


class CallPage(RecordLinksPage, FoldingPage):
    """One tool call with its arguments, result, turn, record and session; enter shows its turn."""

    name_in_registry = "call"

    def __init__(self, call: str) -> None:
        super().__init__(call, ("calls", "show", call))
        self.call = call

    async def ask(self, client: Client) -> CallStory:
        return await client.show_call(self.call, deadline_s=ANSWER_S)

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The recorded arguments, once the answer has come."""
        return self._answer.call.get("arguments") if isinstance(self._answer, CallStory) else None

    def content(self, width: int) -> list[Line]:
        return call_lines.of_call(self._answer, width, self.unfolded)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return (cast(CallStory, self._answer).record,)

    def open_record(self, id: str) -> None:
        self.actions.navigation.open_page(RecordPage(id, cast(CallStory, self._answer).turn["turn"]))
