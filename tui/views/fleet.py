"""Shows the list of units, and implements the actions on one unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from textual import events
from textual.app import ComposeResult

from agentrl.formatting.row_text import unit_summary
from agentrl.protocol.control_commands import CollectStacks, Pause, Resume
from agentrl.protocol.rows import AnyRow, UnitRow, UnitState
from tui.dialogs.form import Values, with_note
from tui.model import pending_commands, unit_table
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, cut, span, wrapped
from tui.model.table import TableModel
from tui.model.unit_table import PART
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table


class UnitVerbs(View):
    """Actions on one unit: the selected one, or that of the page."""

    def selected(self) -> UnitRow | None:
        """The unit as it was shown last; shows a message if no unit is selected."""
        raise NotImplementedError

    def selected_units(self) -> list[str]:
        """Names of the marked units, or of the selected one."""
        row = self.selected()
        return [row.unit] if row is not None else []

    def do_unit_command(self, command: Callable[[UnitRow], PendingCommand]) -> None:
        if (row := self.selected()) is not None:
            self.perform(command(row))

    def do_unit_confirm(self) -> None:
        if (row := self.selected()) is not None:
            if row.state is UnitState.LOST:
                self.perform(pending_commands.confirm_dead(row))
            else:
                self.actions.say(f"{row.unit} is {row.state.value}, not lost: there is no death to confirm.")

    def do_unit_pause(self) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(Resume(row.unit) if row.paused else Pause(row.unit)))

    def do_unit_exclude(self) -> None:
        if (row := self.selected()) is None:
            return
        if row.role != "engine" or not row.incarnation:
            self.actions.say(f"{row.unit} is no engine that has run, so it has no canary.")
            return
        engine = row

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(pending_commands.exclude_since_canary(engine, values[0].strip()))

        self.app.push_screen(with_note(pending_commands.exclude_since_canary(engine).what), then)

    def do_unit_stacks(self) -> None:
        if units := self.selected_units():
            self.perform(PendingCommand(CollectStacks(tuple(units))))

    def do_unit_logs(self) -> None:
        if units := self.selected_units():
            self.actions.navigation.open_logs(units)

    def do_unit_previous(self) -> None:
        if (row := self.selected()) is not None:
            self.actions.navigation.open_logs([row.unit], -1)

    def do_unit_incident(self) -> None:
        if (row := self.selected()) is not None:
            found = self.mirror.incidents(row.unit)
            if found:
                self.actions.navigation.open_row(f"incident/{found[0].id}")
            else:
                self.actions.say(f"{row.unit} has no incident on record.")


_STORY_FROM = 16
"""Height of the view from which the status of the selected unit is shown."""


class Fleet(FeedTable[UnitRow], UnitVerbs):
    name_in_registry = "fleet"
    kind = "unit"
    DEFAULT_CSS = "Fleet > #strengths { height: 1; } Fleet > #hosts { height: 1; } Fleet > #story { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._parts: dict[str, frozenset[str]] = {}
        """The rows of the parts of each unit."""

    def compose(self) -> ComposeResult:
        yield Lines(self._strengths, id="strengths")
        yield Lines(self._hosts, id="hosts")
        model: TableModel[UnitRow] = TableModel(unit_table.columns(self.mirror), "unit")
        self.table = Table(model, self.now, empty="no unit yet")
        yield self.table
        yield Lines(self._story, id="story")

    def on_resize(self, event: events.Resize) -> None:
        # Units have priority in a low view.
        self.query_one("#story").display = event.size.height >= _STORY_FROM

    def _story(self, width: int, height: int) -> list[Line]:
        """The whole status of the selected unit, because its column is cut on a narrow terminal."""
        row = self.under_cursor()
        if row is None:
            return []
        lines = wrapped(span(f"{row.unit}: {unit_summary(row, self.now())}").text, width - 3)
        if len(lines) > height:
            lines[height - 1 :] = [" ".join(lines[height - 1 :])]
        return [cut((Span("  "), Span(part, Tone.DIM)), width) for part in lines]

    def _strengths(self, width: int, _: int) -> list[Line]:
        return [cut((Span(" "), *unit_table.strengths(self.mirror)), width)]

    def _hosts(self, width: int, _: int) -> list[Line]:
        return [cut((Span(" "), *unit_table.hosts(self.mirror)), width)]

    def takes(self, row: AnyRow | None) -> TypeGuard[UnitRow]:
        return isinstance(row, UnitRow)

    def put_row(self, name: str, row: UnitRow) -> None:
        model, parts = self.table.model, unit_table.parts(row)
        for gone in self._parts.pop(name, frozenset()) - parts.keys():
            model.drop(gone)
        super().put_row(name, row)
        for key, part in parts.items():
            model.put(key, part)
        if parts:
            self._parts[name] = frozenset(parts)

    def drop_row(self, name: str) -> None:
        super().drop_row(name)
        for part in self._parts.pop(name, frozenset()):
            self.table.model.drop(part)

    def selected(self) -> UnitRow | None:
        row: UnitRow | None = super().selected()
        if row is not None and PART in row.unit:
            unit, _, part = row.unit.partition(PART)
            self.actions.say(f"{part} is a part of {unit}, which restarts it; the keys are for {unit}.", Tone.WARN)
            return None
        return row

    def searched_text(self, row: UnitRow) -> str:
        return unit_table.searched_text(row)

    # ---- actions of the table ----

    def row_to_open(self) -> UnitRow | None:
        return super().selected()

    def open_row(self, row: UnitRow) -> None:
        self.actions.navigation.open_unit(row.unit.partition(PART)[0])

    def do_scale(self, by: int) -> None:
        row = self.selected()
        group = self.mirror.group(row.group) if row else None
        if group is not None:
            if group.desired + by < 0:
                self.actions.say(f"{group.name} has no unit already.")
            else:
                self.perform(pending_commands.scale(group, group.desired + by))

    def do_group_restart(self) -> None:
        row = self.selected()
        group = self.mirror.group(row.group) if row else None
        if group is not None:
            self.perform(pending_commands.restart_group(group))

    def selected_units(self) -> list[str]:
        return sorted({name.partition(PART)[0] for name in self.table.model.marked}) or super().selected_units()
