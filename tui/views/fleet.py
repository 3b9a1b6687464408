"""Every unit of the run, and the verbs for it."""

from __future__ import annotations

from typing import TypeGuard

from textual import events
from textual.app import ComposeResult

from agentrl.formatting.row_text import story
from agentrl.protocol.rows import AnyRow, UnitRow, UnitState
from tui.model import pending_commands, unit_table
from tui.model.styled_text import Line, Span, Tone, cut, span, wrapped
from tui.model.table import TableModel
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table


class UnitVerbs(View):
    """Verbs on one unit: the one under the cursor, or the one whose page this is."""

    def unit(self) -> UnitRow | None:
        """The unit that is aimed at, as it was seen last."""
        raise NotImplementedError

    def _aimed(self) -> UnitRow | None:
        row = self.unit()
        if row is None:
            self.console_app.say(
                "No unit is aimed at: the one under the cursor is gone or out of view. Move to one.", Tone.WARN
            )
        return row

    def do_unit_restart(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.restart(row))

    def do_unit_drain(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.drain(row))

    def do_unit_undrain(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.cancel_drain(row))

    def do_unit_stop(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.stop(row))

    def do_unit_kill(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.stop(row, now=True))

    def do_unit_vouch(self) -> None:
        if (row := self._aimed()) is not None:
            if row.state is UnitState.LOST:
                self.console_app.perform(pending_commands.vouch(row))
            else:
                self.console_app.say(f"{row.unit} is {row.state.value}, not lost: there is nothing to vouch for.")

    def do_unit_pause(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(
                pending_commands.resume(row.unit) if row.paused else pending_commands.pause(row.unit)
            )

    def do_unit_stacks(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.perform(pending_commands.stacks([row.unit]))

    def do_unit_logs(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.navigation.open_logs([row.unit])

    def do_unit_previous(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.navigation.open_logs([row.unit], -1)

    def do_unit_incident(self) -> None:
        if (row := self._aimed()) is not None:
            found = self.mirror.incidents(row.unit)
            if found:
                self.console_app.navigation.open_row(f"incident/{found[0].id}")
            else:
                self.console_app.say(f"{row.unit} never ended unplanned, as far as is remembered.")


_STORY_FROM = 16
"""Lines of the view."""


class Fleet(FeedTable[UnitRow], UnitVerbs):
    name_in_registry = "fleet"
    kind = "unit"
    DEFAULT_CSS = "Fleet > #strengths { height: 1; } Fleet > #hosts { height: 1; } Fleet > #story { height: 2; }"

    def compose(self) -> ComposeResult:
        yield Lines(self._strengths, id="strengths")
        yield Lines(self._hosts, id="hosts")
        model: TableModel[UnitRow] = TableModel(unit_table.columns(self.mirror), "unit")
        self.table = Table(model, self.now, empty="no unit yet")
        yield self.table
        yield Lines(self._story, id="story")

    def on_resize(self, event: events.Resize) -> None:
        # Where few units are in sight, they come first.
        self.query_one("#story").display = event.size.height >= _STORY_FROM

    def _story(self, width: int, height: int) -> list[Line]:
        """All that the unit under the cursor is at: its column is cut where the terminal is narrow."""
        row = self.unit()
        if row is None:
            return []
        lines = wrapped(span(f"{row.unit}: {story(row, self.now())}").text, width - 3)
        if len(lines) > height:
            lines[height - 1 :] = [" ".join(lines[height - 1 :])]
        return [cut((Span("  "), Span(part, Tone.DIM)), width) for part in lines]

    def _strengths(self, width: int, _: int) -> list[Line]:
        return [cut((Span(" "), *unit_table.strengths(self.mirror)), width)]

    def _hosts(self, width: int, _: int) -> list[Line]:
        return [cut((Span(" "), *unit_table.hosts(self.mirror)), width)]

    def takes(self, row: AnyRow | None) -> TypeGuard[UnitRow]:
        return isinstance(row, UnitRow)

    def apply_filter(self, words: frozenset[str]) -> None:
        self.table.model.filter((lambda row: unit_table.keeps(words, row)) if words else None)

    def unit(self) -> UnitRow | None:
        return self.under_cursor()

    def cli_line(self) -> tuple[str, ...]:
        return ("status",)

    # ---- what only the table has ----

    def do_drill(self) -> None:
        if (row := self._aimed()) is not None:
            self.console_app.navigation.open_unit(row.unit)

    def do_mark(self) -> None:
        self.table.model.toggle_mark()
        self.do_move("down")

    def do_unit_more(self) -> None:
        self._scale(1)

    def do_unit_fewer(self) -> None:
        self._scale(-1)

    def _scale(self, by: int) -> None:
        row = self._aimed()
        group = self.mirror.group(row.group) if row else None
        if group is not None:
            if group.desired + by < 0:
                self.console_app.say(f"{group.name} is wanted with none already.")
            else:
                self.console_app.perform(pending_commands.scale(group, group.desired + by))

    def do_group_restart(self) -> None:
        row = self._aimed()
        group = self.mirror.group(row.group) if row else None
        if group is not None:
            self.console_app.perform(pending_commands.restart_group(group))

    def do_unit_stacks(self) -> None:
        marked = sorted(self.table.model.marked)
        if marked:
            self.console_app.perform(pending_commands.stacks(marked))
        else:
            super().do_unit_stacks()

    def do_unit_logs(self) -> None:
        marked = sorted(self.table.model.marked)
        if marked:
            self.console_app.navigation.open_logs(marked)
        else:
            super().do_unit_logs()
