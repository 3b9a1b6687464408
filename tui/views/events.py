"""Shows the list of events, the newest first. The feed has no past events, so they are queried when the view opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual.app import ComposeResult

from agentrl.errors import AgentrlError
from agentrl.formatting.row_text import happened_at, row_kind, without_audit_repeats
from agentrl.protocol.rows import AlertRow, AnyRow, IncidentRow, KnobRow, OperationRow
from tui.model import event_table
from tui.model.mirror import Changes
from tui.model.styled_text import Tone
from tui.model.table import TableModel
from tui.views.view import TableView, before_first_rows
from tui.widgets.lines import Table

MOST = 1000
MOST_ASKED = 500
NEWEST = "at"
"""The order of the list as it is opened, in which the cursor follows the newest event."""
_SHOWN = (OperationRow, IncidentRow, AlertRow, KnobRow)


class Events(TableView):
    name_in_registry = "events"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._changes: Changes | None = None
        self._kinds: frozenset[str] = frozenset()
        self._past_wanted = True
        """The past was not queried since the view was opened."""

    def compose(self) -> ComposeResult:
        model: TableModel[AnyRow] = TableModel(event_table.columns(), NEWEST, descending=True)
        self.table = Table(model, self.now, empty="nothing happened yet")
        yield self.table

    def heading(self) -> str:
        return f"only {', '.join(sorted(self._kinds))}" if self._kinds else ""

    def shown(self) -> None:
        super().shown()
        self._past_wanted = True
        self._ask_past()

    def _ask_past(self) -> None:
        """Query the past once there is a connection."""
        if self._past_wanted and self.mirror.link.connected:
            self._past_wanted = False
            if self.actions.playback is None:
                # A callable, so that a query replaced before it begins leaves no coroutine behind.
                work: Callable[[], Awaitable[None]] = self._query_past
                self.run_worker(work, group="events", exclusive=True)

    async def _query_past(self) -> None:
        try:
            self.take_past(list(await self.actions.connection.client.events(limit=MOST_ASKED)))
        except AgentrlError as error:
            self.actions.say(str(error), Tone.WARN)

    @property
    def awaits_rows(self) -> bool:
        return before_first_rows(self.mirror)

    def update(self) -> None:
        self._ask_past()
        changes = self._changes = self._changes or self.mirror.watch("op", "incident", "alert", "knob")
        model = self.table.model
        for key in changes.take():
            row = self.mirror.get(key)
            if isinstance(row, _SHOWN) and happened_at(row):
                model.put(event_table.key_of(row), row)
        model.aim_first()
        self._forget_oldest()
        if model.sort_column.name == NEWEST and model.descending:
            model.follow_first()
        self.repaint()

    def take_past(self, found: list[AnyRow]) -> None:
        """Add events from before the console was opened."""
        for row in without_audit_repeats(found):
            self.table.model.put(event_table.key_of(row), row)
        self.table.model.aim_first()
        self._forget_oldest()
        self.repaint()

    def _forget_oldest(self) -> None:
        model = self.table.model
        if model.all_count > MOST * 1.1:
            rows = [(key, row) for key in model.ordered() if (row := model.get(key)) is not None]
            rows.sort(key=lambda pair: happened_at(pair[1]), reverse=True)
            kept = dict(rows[:MOST])
            if (selected := model.target) is not None:
                kept.setdefault(*selected)
            model.replace(kept)

    def apply_filter(self) -> None:
        self.table.model.filter(self.keeps if self._kinds or self._words else None)

    def keeps(self, row: AnyRow) -> bool:
        return (not self._kinds or row_kind(row) in self._kinds) and super().keeps(row)

    def searched_text(self, row: AnyRow) -> str:
        return event_table.searched_text(row)

    def cli_line(self) -> tuple[str, ...]:
        return ("events", *(word for kind in sorted(self._kinds) for word in ("--kind", kind)))

    def do_events_kind(self) -> None:
        """All kinds, then each alone."""
        order = ["", *event_table.KINDS]
        now_only = next(iter(self._kinds), "")
        following = order[(order.index(now_only) + 1) % len(order)]
        self.only(following)

    def only(self, kind: str) -> None:
        self._kinds = frozenset({kind} - {""})
        self.apply_filter()
        self.table.model.aim_first()
        self.repaint()

    def open_row(self, row: AnyRow) -> None:
        self.actions.navigation.open_event(row)
