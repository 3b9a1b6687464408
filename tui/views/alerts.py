"""What is wrong, and the verbs for it."""

from __future__ import annotations

from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.protocol.rows import AlertRow, AlertState, AnyRow
from tui.model import alarms, command_line, pending_commands
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, cut, span
from tui.model.table import TableModel
from tui.views.view import FeedTable, View
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
            self.console_app.perform(pending_commands.acknowledge(row))

    def do_alert_silence(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.prompts.ask_silence(row)

    def do_alert_cure(self) -> None:
        row = self._aimed()
        if row is None:
            return
        found = command_line.parse_cure(row, self.mirror)
        if isinstance(found, PendingCommand):
            self.console_app.perform(found)
        elif found is not None:
            self.console_app.navigation.look(found)
        elif row.suggest:
            self.console_app.copy(row.suggest, f"{row.suggest} belongs into a shell; it was copied.")
        else:
            self.console_app.say("This alert suggests nothing.")


class Alerts(FeedTable[AlertRow], AlertVerbs):
    name_in_registry = "alerts"
    kind = "alert"
    shares = (("evidence", 4),)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._resolved = False
        self._words: frozenset[str] = frozenset()

    def compose(self) -> ComposeResult:
        model: TableModel[AlertRow] = TableModel(alarms.columns(), "severity")
        self.table = Table(model, self.now, empty="no alert")
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

    def takes(self, row: AnyRow | None) -> TypeGuard[AlertRow]:
        return isinstance(row, AlertRow) and row.state is not AlertState.PENDING

    def apply_filter(self, words: frozenset[str]) -> None:
        self._words = words
        self._refilter()

    def _refilter(self) -> None:
        words, resolved = self._words, self._resolved
        self.table.model.filter(lambda row: alarms.shown(row, resolved=resolved) and alarms.keeps(words, row))

    def alert(self) -> AlertRow | None:
        return self.under_cursor()

    def do_alert_all(self) -> None:
        self._resolved = not self._resolved
        self._refilter()
        self.repaint()

    def do_drill(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.navigation.open_row(f"alert/{row.id}")

    def cli_line(self) -> tuple[str, ...]:
        return ("alerts", "list", *(("--all",) if self._resolved else ()))
