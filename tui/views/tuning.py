"""Every knob, and the way to turn it."""

from __future__ import annotations

from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.protocol.rows import AnyRow, KnobRow
from tui.model import intents, knobs
from tui.model.ink import Line, Span, Tone, cut, span
from tui.model.table import TableModel
from tui.views.base import FeedTable
from tui.widgets.lines import Lines, Table


class Tuning(FeedTable[KnobRow]):
    name_in_registry = "tuning"
    kind = "knob"
    DEFAULT_CSS = "Tuning > #help { height: 2; }"

    def compose(self) -> ComposeResult:
        model: TableModel[KnobRow] = TableModel(knobs.columns(), "name")
        self.table = Table(model, self.now, empty="no knob yet")
        yield self.table
        yield Lines(self._help, id="help")

    def _help(self, width: int, _: int) -> list[Line]:
        row = self.under_cursor()
        if row is None:
            return []
        owner = f" It is applied by {row.owner}." if row.owner else ""
        changed = f"last changed by {row.changed_by}{f' ({row.note})' if row.note else ''}" if row.changed_at else ""
        scientific = "◆ scientific: a change begins a new segment and wants a note. " if row.scientific else ""
        return [
            cut((Span("  "), span(f"{row.help}{owner}")), width),
            cut((Span("  "), span(scientific, Tone.WARN), span(changed, Tone.DIM)), width),
        ]

    def takes(self, row: AnyRow | None) -> TypeGuard[KnobRow]:
        return isinstance(row, KnobRow)

    def apply_filter(self, words: frozenset[str]) -> None:
        self.table.model.filter((lambda row: knobs.keeps(words, row)) if words else None)

    def select(self, name: str) -> None:
        self.table.model.aim(name)
        self.repaint()

    def cli_line(self) -> tuple[str, ...]:
        row = self.under_cursor()
        return ("tune", row.name) if row else ("tune",)

    def do_drill(self) -> None:
        row = self.under_cursor()
        if row is None:
            self.console_app.say("No knob is aimed at.", Tone.WARN)
        else:
            self.console_app.asking.ask_value(row)

    def do_knob_undo(self) -> None:
        row = self.under_cursor()
        if row is None:
            self.console_app.say("No knob is aimed at.", Tone.WARN)
        elif not row.changed_at:
            self.console_app.say(f"{row.name} was never changed.")
        else:
            self.console_app.perform(intents.undo_tune(row))
