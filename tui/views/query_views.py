"""Lists of the data plane, which the steward answers: asked for anew while they are looked at.

Invariants: only what is seen is asked for, and never faster than it is answered; a filter is in the language of
`agentrl records list --filter`, and goes to the steward whole; where nobody answers, that is said in place of rows, or
below those that were told before, as long as it is so; an act on a row is refused when the list was not answered
lately, however young the feed is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.worker import Worker

from agentrl.client import Client
from agentrl.errors import AgentrlError, NoCoordinatorError, RefusedError, UsageError
from agentrl.formatting.amounts import age, counted
from agentrl.protocol.data_commands import Story
from tui.model import data_tables
from tui.model.mirror import STALE_S
from tui.model.pending_commands import PendingCommand
from tui.model.step_cache import NEWEST_FIRST, StepCache
from tui.model.styled_text import Line, Span, Tone
from tui.model.table import Column, TableModel
from tui.playback_connection import Replay
from tui.views.detail_pages import DetailPage
from tui.views.view import TableView
from tui.widgets.lines import Table

if TYPE_CHECKING:
    from tui.app import Console

ASK_EVERY_S = 2.0
FIRST = 200
MORE = 200
MOST = 1000
ANSWER_S = 20.0
ASKING = "asking"


class QueryTable(TableView):
    """A table whose rows are answers."""

    filters_at_once: ClassVar[bool] = False
    what: ClassVar[str]
    filled_by: ClassVar[str]
    """What would bring the first rows."""
    first_sort: ClassVar[str] = "order"
    follows_newest: ClassVar[bool] = False
    """The cursor is on the newest row until a person moves it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asking: Worker[None] | None = None
        self._ask_now = asyncio.Event()
        self._said = ASKING
        self._wanted = FIRST
        self._more = False
        self._answered_at: float | None = None
        """Clock of the last answer."""
        self._aimed_before: str | None = None
        """The row under the cursor when the filter was typed that is not answered yet."""
        self._coming: tuple[dict[str, Any], str] | None = None
        """An answer that is not painted yet, and its filter."""

    def columns(self) -> tuple[Column[Any], ...]:
        raise NotImplementedError

    async def ask(self, client: Client) -> dict[str, Any]:
        """The rows by key, and in `_more` whether there are more of them."""
        raise NotImplementedError

    async def answered(self) -> dict[str, Any]:
        """What whoever knows says now."""
        link = self.console_app.connection
        if isinstance(link, Replay):
            raise NoCoordinatorError(link.without(self.what))
        return await self.ask(await link.to_ask())

    def compose(self) -> ComposeResult:
        self.table = Table(TableModel(self.columns(), self.first_sort), self.now, empty=ASKING)
        yield self.table

    @property
    def fresh(self) -> bool:
        return self._answered_at is not None and self.console_app.clock() - self._answered_at <= STALE_S

    def none_yet(self) -> str:
        """Why there are no rows, where nothing was left out."""
        return self.filled_by

    def perform(self, intent: PendingCommand) -> None:
        """An act on what is seen here."""
        self.console_app.perform(intent, self)

    def heading(self) -> str:
        if self._answered_at is None:
            not_told = "not answered" if self.console_app.replay is None else "not in a recording"
            return "asking" if self._said == ASKING else not_told
        more = ", more below" if self._more else ""
        old = age_of_answer(self.console_app, self._answered_at) or (", not answered" if self._said else "")
        return f"{counted(self.table.model.all_count, self.what)}{more}{old}"

    def why_old(self) -> str:
        return self._said if self._answered_at is not None else ""

    def shown(self) -> None:
        super().shown()
        if self._asking is None:
            if self._answered_at is None:
                # What was the matter when it was looked at last is not known to be so now.
                self._said = ASKING
                for table in self.query(Table):
                    table.empty = ASKING
            self._asking = self.run_worker(self._ask_on(), name=self.what, group="ask")
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
        """Nobody answers, or not to this."""
        self._said = self.table.empty = str(why)
        model = self.table.model
        if isinstance(why, RefusedError | UsageError) and model.cursor is None:
            # The rows that are there stay, so what was aimed at is aimed at again.
            if self._aimed_before is None or not model.aim(self._aimed_before):
                model.aim_first()
            self.table.repaint()

    def take_answer(self, found: dict[str, Any], filter: str = "") -> None:
        """Rows in the place of those that were there, as soon as they are painted: keys mean what is seen."""
        asked_for_some = filter and not self.filters_at_once
        self._said = ""
        self.table.empty = f"no {self.what}" + (" match the filter" if asked_for_some else f": {self.none_yet()}")
        self._answered_at = self.console_app.clock()
        self._coming = (found, filter)

    def update(self) -> None:
        if self._coming is not None:
            (found, filter), self._coming = self._coming, None
            model = self.table.model
            model.replace(found)
            if model.cursor is None and filter == self.filter_text:
                # Else it stays where it was, though its row may be gone: nothing is aimed at then.
                model.aim_first()
            elif self.follows_newest and model.sort_column.name == self.first_sort and not model.descending:
                model.follow_first()
        super().update()

    def take_filter(self, text: str) -> str:
        """Rows of another filter are not aimed at, unless by a person, until this one is answered or refused."""
        asks = not self.filters_at_once and text != self._filter
        before = self.table.model.cursor
        wrong = super().take_filter(text)
        if asks:
            self._aimed_before = before or self._aimed_before
            self.table.model.cursor = None
            self.table.repaint()
        return wrong

    def apply_filter(self, words: frozenset[str]) -> None:
        """The steward does it."""
        self._wanted = FIRST
        self._ask_now.set()

    def do_move(self, how: str) -> None:
        super().do_move(how)
        model = self.table.model
        last = model.cursor is not None and model.place_of(model.cursor) == len(model) - 1
        if last and self._more and self._wanted < MOST:
            self._wanted += MORE
            self._ask_now.set()

    def _target(self) -> Any | None:
        target = self.table.model.target
        if target is None:
            self.console_app.say("Nothing is aimed at.", Tone.WARN)
        return target[1] if target else None


async def catch_up(steps: StepCache, client: Client) -> None:
    """Ask for the Steps that are not known yet, or not as they are now."""
    asked = steps.question()
    page = await client.list_steps(filter=asked, sort=NEWEST_FIRST, limit=steps.most, deadline_s=ANSWER_S)
    steps.take(asked, page.rows, more=bool(page.after))


def age_of_answer(console: Console, at: float | None) -> str:
    """Said where it is too old to be taken for what is."""
    old = 0.0 if at is None else console.clock() - at
    return f", told {age(old)} ago" if old > STALE_S else ""


class QueryPage(DetailPage):
    """A page that is asked for once, and again when somebody wants it."""

    name_in_registry = "answer"

    def __init__(self, title: str, cli: tuple[str, ...]) -> None:
        super().__init__(title, self._lines, cli)
        self._answer: Any = None
        self._answered_at: float | None = None
        self._said = ASKING

    def heading(self) -> str:
        return f"{super().heading()}{age_of_answer(self.console_app, self._answered_at)}"

    def shown(self) -> None:
        super().shown()
        self.ask_in_rounds(self._ask, "page")

    def do_page_again(self) -> None:
        self.ask_in_rounds(self._ask, "page")

    async def _ask(self) -> None:
        try:
            self._answer = await self.ask(await self.console_app.connection.to_ask())
            self._answered_at = self.console_app.clock()
        except AgentrlError as error:
            self._said = str(error)
            if self._answer is not None:
                self.console_app.say(self._said, Tone.WARN)
        self.repaint()

    async def ask(self, client: Client) -> Any:
        raise NotImplementedError

    def _lines(self, width: int) -> list[Line]:
        return [(Span(self._said, Tone.DIM),)] if self._answer is None else self.told(width)

    def told(self, width: int) -> list[Line]:
        raise NotImplementedError


class RecordLinksPage(QueryPage):
    """A page that names records, which enter leads to."""

    def records(self) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def do_page_record(self) -> None:
        if self._answer is not None:
            self.console_app.prompts.choose_record(self.records())


class StepPage(RecordLinksPage):
    """One step, with its metrics and records."""

    name_in_registry = "step"

    def __init__(self, step: str) -> None:
        super().__init__(step, ("steps", "show", step))
        self._step = step

    async def ask(self, client: Client) -> Any:
        return await client.show_step(self._step, deadline_s=ANSWER_S)

    def told(self, width: int) -> list[Line]:
        return data_tables.of_step(self._answer, width)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return cast(Story, self._answer).records
