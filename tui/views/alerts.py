"""What is wrong, and the verbs for it."""

from __future__ import annotations

from textual.app import ComposeResult

from agentrl.protocol.rows import AlertRow, AlertState
from tui.model import alarms, intents, typed
from tui.model.ink import Line, Span, Tone, cut, span
from tui.model.intents import Intent
from tui.model.mirror import Changes
from tui.model.table import TableModel
from tui.views.base import TableView, View, now
from tui.widgets.lines import Lines, Table


class AlertVerbs(View):
    """Verbs on one alert: the one under the cursor, or the one whose page this is."""

    def alert(self) -> AlertRow | None:
        raise NotImplementedError

    def _aimed(self) -> AlertRow | None:
        row = self.alert()
        if row is None:
            self.console_app.say("No alert is aimed at.", Tone.WARN)
        return row

    def do_alert_ack(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(intents.acknowledge(row))

    def do_alert_silence(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.ask_silence(row)

    def do_alert_cure(self) -> None:
        row = self._aimed()
        if row is None:
            return
        found = typed.cure(row, self.mirror)
        if isinstance(found, Intent):
            self.console_app.perform(found)
        elif found is not None:
            self.console_app.go(found)
        elif row.suggest:
            self.console_app.copy(row.suggest, f"{row.suggest} belongs into a shell; it was copied.")
        else:
            self.console_app.say("This alert suggests nothing.")


class Alerts(TableView, AlertVerbs):
    name_in_registry = "alerts"
    DEFAULT_CSS = "Alerts > #evidence { height: 4; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._changes: Changes | None = None
        self._resolved = False
        self._words: frozenset[str] = frozenset()

    def compose(self) -> ComposeResult:
        model: TableModel[AlertRow] = TableModel(alarms.columns(), "severity")
        self.table = Table(model, now, empty="no alert")
        yield self.table
        yield Lines(self._evidence, id="evidence")

    def on_mount(self) -> None:
        self._refilter()

    def _evidence(self, width: int, height: int) -> list[Line]:
        """Of the alert under the cursor: what it rests on, and what cures it."""
        row = self.alert()
        if row is None:
            return []
        lines = [cut((Span("  "), span(each, Tone.DIM)), width) for each in row.evidence[: height - 1]]
        if row.suggest:
            lines.insert(0, cut((Span(" c ", Tone.ACCENT), span(row.suggest, Tone.STRONG)), width))
        return lines

    def update(self) -> None:
        changes = self._changes = self._changes or self.mirror.watch("alert")
        model = self.table.model
        began_empty = not len(model)
        for key in changes.take():
            row = self.mirror.get(key)
            if isinstance(row, AlertRow) and row.state is not AlertState.PENDING:
                model.put(row.id, row)
            else:
                model.drop(key.partition("/")[2])
        if began_empty and model.cursor is None:
            model.aim_first()
        self.repaint()

    def do_move(self, how: str) -> None:
        super().do_move(how)
        self.repaint()

    def apply_filter(self, words: frozenset[str]) -> None:
        self._words = words
        self._refilter()

    def _refilter(self) -> None:
        words, resolved = self._words, self._resolved
        self.table.model.filter(
            lambda row: (resolved or row.state is not AlertState.RESOLVED) and alarms.keeps(words, row)
        )

    def alert(self) -> AlertRow | None:
        target = self.table.model.target
        return target[1] if target else None

    def do_alert_all(self) -> None:
        self._resolved = not self._resolved
        self._refilter()
        self.repaint()

    def do_drill(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.open_row(f"alert/{row.id}")

    def cli_line(self) -> tuple[str, ...]:
        return ("alerts", "list", *(("--all",) if self._resolved else ()))
