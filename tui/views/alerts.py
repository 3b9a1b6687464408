"""Shows the list of alerts, the most severe first, and implements the actions on one alert."""

from __future__ import annotations

from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import moment
from agentrl.formatting.row_text import SEVERITY_ORDER
from agentrl.protocol.control_commands import Acknowledge, Silence
from agentrl.protocol.rows import AlertRow, AlertState, AnyRow
from agentrl.protocol.words import seconds
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import cell_text, command_line
from tui.model.cell_text import alert_state
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, cut, span
from tui.model.table import Column, TableModel, text_column
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table

_LISTED = (AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.RESOLVED)
_ORDER = {state: place for place, state in enumerate(_LISTED)}


def columns() -> tuple[Column[AlertRow], ...]:
    return (
        Column("severity", "SEVERITY", 9, lambda row, now: _severity(row), _severity_order),
        Column("state", "STATE", 14, lambda row, now: alert_state(row), lambda row: alert_state(row).text, rank=1),
        Column(
            "since",
            "FOR",
            5,
            lambda row, now: Span(cell_text.ago(row.since_at, now)),
            lambda row: -row.since_at,
            True,
            2,
        ),
        text_column("id", "ALERT", 26, lambda row: row.id, Tone.STRONG, rank=1),
        Column("quiet", "SENT", 14, _sent, lambda row: row.silenced_until_at, rank=3, optional=True),
        text_column("sentence", "WHAT", 20, lambda row: row.sentence, stretches=True),
    )


def _severity_order(row: AlertRow) -> tuple[int, int, bool, float]:
    """Alerts that another one explains come after the others of their severity."""
    return (_ORDER.get(row.state, len(_ORDER)), SEVERITY_ORDER.index(row.severity), bool(row.cause), row.since_at)


def _severity(row: AlertRow) -> Span:
    made = cell_text.severity(row.severity)
    return made if row.state is AlertState.FIRING else Span(made.text, Tone.DIM)


def _sent(row: AlertRow, now: float) -> Span:
    if row.silenced_until_at > now:
        return Span(f"× till {moment(row.silenced_until_at)[-8:-3]}", Tone.DIM)
    return Span("")


class AlertVerbs(View):
    """Actions on one alert: the selected one, or that of the page."""

    def selected(self) -> AlertRow | None:
        raise NotImplementedError

    def do_alert_ack(self) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(Acknowledge(row.id)))

    def do_alert_silence(self) -> None:
        row = self.selected()
        if row is None:
            return

        def check(values: Values) -> str:
            try:
                seconds(values[0].strip())
            except AgentrlError as wrong:
                return str(wrong)
            return ""

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(PendingCommand(Silence(row.id, seconds(values[0].strip()), values[1].strip())))

        fields = (Field("for", "1h", "15m, 2h, 1d; 0 ends it"), Field("why", hint="for those who look later"))
        question = Question(f"Send nothing about {row.id}", (), fields, "silence it", check)
        self.app.push_screen(Form(question), then)

    def do_alert_cure(self) -> None:
        row = self.selected()
        if row is None:
            return
        found = command_line.parse_cure(row, self.mirror)
        if isinstance(found, PendingCommand):
            self.perform(found)
        elif found is not None:
            self.actions.navigation.go_to(found)
        elif row.suggest:
            self.actions.copy(row.suggest, f"Run {row.suggest} in a shell; it was copied.")
        else:
            self.actions.say("This alert suggests no command.")


class Alerts(FeedTable[AlertRow], AlertVerbs):
    name_in_registry = "alerts"
    kind = "alert"
    shares = (("evidence", 4),)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._resolved = False

    def compose(self) -> ComposeResult:
        model: TableModel[AlertRow] = TableModel(columns(), "severity")
        self.table = Table(model, self.now, empty="no alert")
        yield self.table
        yield Lines(self._evidence, id="evidence")

    def on_mount(self) -> None:
        self.apply_filter()

    def _evidence(self, width: int, height: int) -> list[Line]:
        """Evidence and suggested command of the selected alert."""
        row = self.under_cursor()
        if row is None:
            return []
        explained = [f"a consequence of {row.cause}"] if row.cause else []
        evidence = [*explained, *row.evidence]
        lines = [cut((Span("  "), span(each, Tone.DIM)), width) for each in evidence[: height - 1]]
        if row.suggest:
            lines.insert(0, cut((Span(" c ", Tone.ACCENT), span(row.suggest, Tone.STRONG)), width))
        return lines

    def takes(self, row: AnyRow | None) -> TypeGuard[AlertRow]:
        return isinstance(row, AlertRow) and row.state is not AlertState.PENDING

    def apply_filter(self) -> None:
        self.table.model.filter(self.keeps)

    def keeps(self, row: AlertRow) -> bool:
        # An alert that went away before it fired stays in the list: a person may have seen it coming.
        listed = self._resolved or row.passed or row.state is not AlertState.RESOLVED
        return listed and super().keeps(row)

    def searched_text(self, row: AlertRow) -> str:
        return f"{row.id} {row.severity.value} {alert_state(row).text} {row.sentence} {row.suggest}"

    def do_alert_all(self) -> None:
        self._resolved = not self._resolved
        self.apply_filter()
        self.repaint()

    def open_row(self, row: AlertRow) -> None:
        self.actions.navigation.open_row(f"alert/{row.id}")

    def cli_line(self) -> tuple[str, ...]:
        return ("alerts", "list", *(("--all",) if self._resolved else ()))
