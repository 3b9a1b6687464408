"""What happened, the newest first. The audit, which the feed does not carry, is asked for when something happens."""

from __future__ import annotations

from textual.app import ComposeResult

from agentrl.formatting.row_text import told_once, when
from agentrl.protocol.rows import AlertRow, AnyRow, IncidentRow, KnobRow, OperationRow
from tui.model import event_table
from tui.model.mirror import Changes
from tui.model.styled_text import Tone
from tui.model.table import TableModel
from tui.views.view import TableView
from tui.widgets.lines import Table

MOST = 1000
_SHOWN = (OperationRow, IncidentRow, AlertRow, KnobRow)


class Events(TableView):
    name_in_registry = "events"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._changes: Changes | None = None
        self._kinds: frozenset[str] = frozenset()
        self._words: frozenset[str] = frozenset()
        self._past_wanted = True
        """What happened before the console came was not asked for since this was opened."""

    def compose(self) -> ComposeResult:
        model: TableModel[AnyRow] = TableModel(event_table.columns(), "at", descending=True)
        self.table = Table(model, self.now, empty="nothing happened yet")
        yield self.table

    def heading(self) -> str:
        return f"only {', '.join(sorted(self._kinds))}" if self._kinds else ""

    def shown(self) -> None:
        super().shown()
        self._past_wanted = True
        self._ask_past()

    def _ask_past(self) -> None:
        """As soon as somebody is heard who can be asked; who comes first may be early."""
        if self._past_wanted and self.console_app.mirror.link.connected:
            self._past_wanted = False
            self.console_app.ask_events(self.take_past)

    def update(self) -> None:
        self._ask_past()
        changes = self._changes = self._changes or self.mirror.watch("op", "incident", "alert", "knob")
        model = self.table.model
        began_empty = not model.all_count
        for key in changes.take():
            row = self.mirror.get(key)
            if isinstance(row, _SHOWN) and when(row):
                model.put(event_table.key_of(row), row)
        if began_empty:
            model.aim_first()
        self._forget_oldest()
        self.repaint()

    def take_past(self, found: list[AnyRow]) -> None:
        """The coordinator's memory of what happened before the console came."""
        for row in told_once(found):
            self.table.model.put(event_table.key_of(row), row)
        self.table.model.aim_first()
        self._forget_oldest()
        self.repaint()

    def _forget_oldest(self) -> None:
        model = self.table.model
        if model.all_count > MOST * 1.1:
            rows = [(key, row) for key in model.ordered() if (row := model.get(key)) is not None]
            rows.sort(key=lambda pair: when(pair[1]), reverse=True)
            model.replace(dict(rows[:MOST]))

    def apply_filter(self, words: frozenset[str]) -> None:
        self._words = words
        self._refilter()

    def _refilter(self) -> None:
        kinds, words = self._kinds, self._words
        self.table.model.filter((lambda row: event_table.keeps(words, kinds, row)) if kinds or words else None)

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
        self._refilter()
        self.table.model.aim_first()
        self.repaint()

    def do_drill(self) -> None:
        target = self.table.model.target
        if target is None:
            self.console_app.say("Nothing is aimed at.", Tone.WARN)
            return
        self.console_app.navigation.open_happening(target[1])
