"""The first screen."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult

from agentrl.protocol.rows import AlertRow, AnyRow, IncidentRow, KnobRow, OperationRow
from agentrl.words.rows import when
from tui.model import happenings, overview
from tui.model.ink import Line, Span, Tone, cut
from tui.model.table import cells, layout
from tui.views.base import View
from tui.widgets.lines import Lines


class Overview(View):
    """Blocks on top; where there is room, what happened lately below them."""

    name_in_registry = "overview"
    DEFAULT_CSS = "Overview > Lines { height: 1fr; }"

    def compose(self) -> ComposeResult:
        yield Lines(self._lines)

    def _lines(self, width: int, height: int) -> Iterable[Line]:
        inner = width - 2
        made = overview.blocks(self.mirror, self.console_app.why, self.now(), inner)
        made += self._lately(inner, height - len(made))
        return [(Span(" "), *line) for line in made]

    def _lately(self, width: int, room: int) -> list[Line]:
        """The newest events in columns."""
        if room < 4:
            return []
        rows: list[AnyRow] = [*self.mirror.of(OperationRow), *self.mirror.of(IncidentRow), *self.mirror.of(AlertRow)]
        rows += [row for row in self.mirror.of(KnobRow) if row.changed_at]
        rows.sort(key=when, reverse=True)
        shown = layout(happenings.columns(), width)
        head = cut((Span("Lately", Tone.ACCENT),), width)
        return [(), head, *(cells(row, shown, self.now()) for row in rows[: room - 2])]

    def do_cure_1(self) -> None:
        self._open(0)

    def do_cure_2(self) -> None:
        self._open(1)

    def do_cure_3(self) -> None:
        self._open(2)

    def _open(self, place: int) -> None:
        firing = self.mirror.firing
        if place < len(firing):
            self.console_app.navigation.open_row(f"alert/{firing[place].id}")
        else:
            self.console_app.say("There is no such alert.")
