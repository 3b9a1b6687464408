"""Defines lists and pages whose content comes from queries to the steward or the coordinator. Lists are queried again
while they are shown.

Invariants:
- Only the view on the screen is queried, and only one query runs at a time.
- Rows are never shown under a filter that was not applied to them: a refused filter leaves the one before in force.
- A filter is in the language of `agentrl records list --filter`, and the steward applies it.
- Without an answer the view shows the reason in place of the rows, or below the old rows, as long as the reason
  applies.
- A command on a row is refused if the list is stale, even if the feed is fresh.
- The cursor follows the newest row until a person moves it. Then the list stands still: newer rows are only counted,
  and the row under the cursor stays even if the answer no longer has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, cast

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.worker import Worker

from agentrl.client import Client
from agentrl.errors import AgentrlError, NoCoordinatorError, RefusedError, UsageError
from agentrl.formatting.amounts import age, counted
from agentrl.protocol.data_commands import ListRows, Page, Story
from tui.dialogs.palette import Choice, Palette
from tui.model import data_tables, detail_lines
from tui.model.data_tables import summary
from tui.model.mirror import STALE_S
from tui.model.step_cache import NEWEST_FIRST, StepCache
from tui.model.styled_text import Line, Span, Tone
from tui.model.table import Column, TableModel, in_order
from tui.playback_connection import PlaybackConnection
from tui.views.detail_pages import DetailPage
from tui.views.view import Actions, TableView
from tui.widgets.lines import Table

ASK_EVERY_S = 2.0
FIRST = 200
MORE = 200
MOST = 1000
MOST_COUNTED = 500
"""Newer rows that are counted while a list stands still."""
ANSWER_S = 20.0
ASKING = "asking"


class QueryTable(TableView):
    """A table whose rows are the answer to a query."""

    filters_at_once: ClassVar[bool] = False
    what: ClassVar[str]
    filled_by: ClassVar[str]
    """The command or event that creates the first rows."""
    first_sort: ClassVar[str] = "order"
    follows_newest: ClassVar[bool] = False
    """The cursor is on the newest row until a person moves it."""
    newest_by: str = ""
    """The time by which the newest row is first. A list with it stands still after a move; empty for other lists."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asking: Worker[None] | None = None
        self._ask_now = asyncio.Event()
        self._reason = ASKING
        self._wanted = FIRST
        self._more = False
        self._stands_at = ""
        """The time of the newest row at the move that made the list stand still."""
        self._newer = ""
        """The number of rows that came since then."""
        self._answered_at: float | None = None
        """Clock of the last answer."""
        self._selected_before: str | None = None
        """The row under the cursor before the filter that is not answered yet."""
        self._applied = ""
        """The filter of the rows that are shown."""
        self._refused_filter = ("", "")
        """The text of the last filter, if it was refused, and the reason."""
        self._coming: tuple[dict[str, Any], str] | None = None
        """An answer that is not painted yet, and its filter."""

    def begin_with_filter(self, text: str) -> None:
        """The filter of the first query, before the view is shown."""
        self._filter = text

    def columns(self) -> tuple[Column[Any], ...]:
        raise NotImplementedError

    async def ask(self, client: Client) -> dict[str, Any]:
        """The rows by key, and in `_more` whether more rows exist."""
        raise NotImplementedError

    async def listed(self, client: Client, command: str, query: ListRows) -> dict[str, Any]:
        """The rows of a list of the steward, the newest first: up to the newest one at the move of a person, and the
        number of later ones.
        """
        self._stands_at = self._stand()
        later = f"{self.newest_by}>{self._stands_at}" if self._stands_at else ""
        until = replace(query, filter=_both(query.filter, f"not {later}")) if later else query
        page: Page = await client.call(command, until, deadline_s=ANSWER_S)
        self._more, self._newer = bool(page.after), ""
        if later:
            new = replace(query, filter=_both(query.filter, later), limit=MOST_COUNTED)
            found: Page = await client.call(command, new, deadline_s=ANSWER_S)
            self._newer = f"{len(found.rows)}{'+' if found.after else ''}" if found.rows else ""
        return in_order(page.rows)

    def _stand(self) -> str:
        """The time until which rows are queried; empty while the cursor follows the newest row."""
        model = self.table.model
        if not self.newest_by or model.untouched or model.cursor is None:
            return ""
        if self._stands_at:
            return self._stands_at
        rows: Iterator[Mapping[str, Any]] = (row for _, row in model.rows)
        newest = min(rows, key=lambda row: int(row["~order"]), default={})
        at = newest.get(self.newest_by)
        return f"{at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z" if isinstance(at, datetime) else ""

    async def answered(self) -> dict[str, Any]:
        """The present answer."""
        link = self.actions.connection
        if isinstance(link, PlaybackConnection):
            raise NoCoordinatorError(link.without(self.what))
        return await self.ask(await link.to_ask())

    def compose(self) -> ComposeResult:
        self.table = Table(TableModel(self.columns(), self.first_sort), self.now, empty=ASKING)
        yield self.table

    @property
    def fresh(self) -> bool:
        return self._answered_at is not None and self.actions.clock() - self._answered_at <= STALE_S

    @property
    def awaits_rows(self) -> bool:
        # Keys refer to the rows on the screen, so an answer counts when it is painted.
        return self._coming is not None or self._reason == ASKING

    def none_yet(self) -> str:
        """The reason why the list is empty without a filter."""
        return self.filled_by

    def heading(self) -> str:
        if self._answered_at is None:
            not_answered = "not answered" if self.actions.playback is None else "not in a recording"
            return "asking" if self._reason == ASKING else not_answered
        more = ", more below" if self._more else ""
        old = age_of_answer(self.actions, self._answered_at) or (", not answered" if self._reason else "")
        newer = f", ↑ {self._newer} new: g" if self._newer else ""
        return f"{counted(self.table.model.all_count, self.what)}{more}{newer}{old}"

    def why_old(self) -> str:
        return self._refused_filter[1] or (self._reason if self._answered_at is not None else "")

    @property
    def filter_to_edit(self) -> str:
        return self._refused_filter[0] or self._filter

    def shown(self) -> None:
        super().shown()
        if self._asking is None:
            if self._answered_at is None:
                # The reason of the last visit may no longer apply.
                self._reason = ASKING
                for table in self.query(Table):
                    table.empty = ASKING
            self._asking = self.run_worker(self._ask_on, name=self.what, group="ask")
        self._ask_now.set()

    def hidden(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask_on(self) -> None:
        while True:
            self._ask_now.clear()
            filter = self.filter_text
            try:
                found = await self.answered()
            except AgentrlError as error:
                if filter == self.filter_text:
                    self.refused(error)
            else:
                self.take_answer(found, filter)
            try:
                async with asyncio.timeout(ASK_EVERY_S):
                    await self._ask_now.wait()
            except TimeoutError:
                continue

    def refused(self, why: AgentrlError) -> None:
        """The query was refused or not answered."""
        self._reason = self.table.empty = str(why)
        model = self.table.model
        if (
            isinstance(why, RefusedError | UsageError)
            and self._filter != self._applied
            and self._answered_at is not None
        ):
            self._refused_filter = self._filter, str(why)
            self._filter, self._reason = self._applied, ""
        if isinstance(why, RefusedError | UsageError) and model.cursor is None:
            # The old rows stay, so the old selection is valid again.
            if self._selected_before is None or not model.select(self._selected_before):
                model.aim_first()
            self.table.repaint()

    def take_answer(self, found: dict[str, Any], filter: str = "") -> None:
        """Keep the rows until the next repaint, so that keys always refer to the rows on the screen."""
        asked_for_some = filter and not self.filters_at_once
        self._reason = ""
        self.table.empty = f"no {self.what}" + (" match the filter" if asked_for_some else f": {self.none_yet()}")
        self._answered_at = self.actions.clock()
        self._coming = (found, filter)

    def update(self) -> None:
        if self._coming is not None:
            (found, filter), self._coming = self._coming, None
            self._applied = filter
            model = self.table.model
            selected = model.get(model.cursor) if model.cursor is not None and not model.untouched else None
            model.gone = frozenset()
            if selected is not None and model.cursor not in found and filter == self.filter_text:
                found[str(model.cursor)] = selected
                model.gone = frozenset({str(model.cursor)})
            model.replace(found)
            if filter == self.filter_text and (model.cursor is None or model.untouched):
                model.aim_first()
            if self.follows_newest and model.sort_column.name == self.first_sort and not model.descending:
                model.follow_first()
        super().update()

    def take_filter(self, text: str) -> str:
        """Select nothing among the rows of the old filter until the new one is answered or refused."""
        asks = not self.filters_at_once and text != self._filter
        before = self.table.model.cursor
        self._refused_filter = "", ""
        wrong = super().take_filter(text)
        if asks:
            self._selected_before = before or self._selected_before
            self.table.model.cursor = None
            self.table.repaint()
        return wrong

    def apply_filter(self) -> None:
        if self.filters_at_once:
            super().apply_filter()
            return
        # The steward filters.
        self._wanted = FIRST
        self._ask_now.set()

    def do_move(self, how: str) -> None:
        super().do_move(how)
        model = self.table.model
        if model.untouched and self._stands_at:
            self._ask_now.set()
        last = model.cursor is not None and model.place_of(model.cursor) == len(model) - 1
        if last and self._more and self._wanted < MOST:
            self._wanted += MORE
            self._ask_now.set()


def _both(filter: str, besides: str) -> str:
    return f"({filter}) and {besides}" if filter else besides


async def catch_up(steps: StepCache, client: Client) -> None:
    """Query new and changed steps."""
    wanted = steps.question()
    page = await client.list_steps(filter=wanted, sort=NEWEST_FIRST, limit=steps.most, deadline_s=ANSWER_S)
    steps.take(wanted, page.rows, more=bool(page.after))


def age_of_answer(actions: Actions, at: float | None) -> str:
    """The part of a heading with the age of an answer that is too old for commands."""
    old = 0.0 if at is None else actions.clock() - at
    return f", answered {age(old)} ago" if old > STALE_S else ""


class QueryPage(DetailPage):
    """A page that is queried when it is opened, and again by a key."""

    name_in_registry = "answer"

    def __init__(self, title: str, cli: tuple[str, ...]) -> None:
        super().__init__(title, self._lines, cli)
        self._answer: Any = None
        self._answered_at: float | None = None
        self._reason = ASKING

    def heading(self) -> str:
        return f"{super().heading()}{age_of_answer(self.actions, self._answered_at)}"

    def shown(self) -> None:
        super().shown()
        self.run_query(self._ask, "page")

    @property
    def awaits_rows(self) -> bool:
        return self._answer is None and self._reason == ASKING

    def do_page_again(self) -> None:
        self.run_query(self._ask, "page")

    async def _ask(self) -> None:
        try:
            self._answer = await self.answered()
            self._answered_at = self.actions.clock()
        except AgentrlError as error:
            self._reason = str(error)
            if self._answer is not None:
                self.actions.say(self._reason, Tone.WARN)
        self.repaint()

    async def answered(self) -> Any:
        """The present answer."""
        return await self.ask(await self.actions.connection.to_ask())

    async def ask(self, client: Client) -> Any:
        raise NotImplementedError

    def _lines(self, width: int) -> list[Line]:
        return [(Span(self._reason, Tone.DIM),)] if self._answer is None else self.content(width)

    def content(self, width: int) -> list[Line]:
        raise NotImplementedError


class RecordLinksPage(QueryPage):
    """A page that names records, which enter opens."""

    def records(self) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def open_record(self, id: str) -> None:
        self.actions.navigation.open_record(id)

    def do_page_record(self) -> None:
        """Open the only record, or the one that is chosen."""
        rows, open_record = self.records() if self._answer is not None else (), self.open_record
        if len(rows) == 1:
            open_record(str(rows[0]["id"]))
        elif rows:
            # The ends of ids differ.
            choices = [Choice(id := str(row["id"]), id.rpartition("/")[2], "", summary(row)) for row in rows]
            self.app.push_screen(Palette(choices, hint="which record"), lambda id: open_record(id) if id else None)
        elif self._answer is not None:
            self.actions.say("This page names no record.")


class StepPage(RecordLinksPage):
    """One step, with its metrics and records."""

    name_in_registry = "step"

    def __init__(self, step: str) -> None:
        super().__init__(step, ("steps", "show", step))
        self._step = step

    async def ask(self, client: Client) -> Any:
        return await client.show_step(self._step, deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        return data_tables.of_step(self._answer, width)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return cast(Story, self._answer).records


class WaitsPage(DetailPage):
    """Shows the wait chains of the coordinator's last answer; an old answer shows its age."""

    def __init__(self) -> None:
        super().__init__("who waits for whom", self._lines, ("why",))

    def heading(self) -> str:
        actions = self.actions
        return f"{super().heading()}{age_of_answer(actions, actions.why_at if actions.why else None)}"

    def _lines(self, width: int) -> list[Line]:
        if self.actions.why is not None:
            return detail_lines.of_waits(self.actions.why, width)
        if self.mirror.link.connected:
            return [(Span(ASKING, Tone.DIM),)]
        return [(Span("Not known: there was no answer on who waits for whom.", Tone.DIM),)]
