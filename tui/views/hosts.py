"""Shows the hosts of the run: what runs where, and why units wait for a place. Implements the actions on one host."""

from __future__ import annotations

from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.protocol.control_commands import DrainUnits, ForgetHost, RemoveHost
from agentrl.protocol.rows import AnyRow, HostRow
from tui.model import host_table
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, cut, span
from tui.model.table import TableModel
from tui.views.detail_pages import DetailPage
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table


class HostVerbs(View):
    """Actions on one host: the selected one, or that of the page."""

    def selected(self) -> HostRow | None:
        raise NotImplementedError

    def do_host_drain(self, cancel: bool) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(DrainUnits(host=row.host, cancel=cancel)))

    def do_host_remove(self) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(RemoveHost(row.host)))

    def do_host_forget(self) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(ForgetHost(row.host)))


class Hosts(FeedTable[HostRow], HostVerbs):
    name_in_registry = "hosts"
    kind = "host"
    shares = (("waiting", 4),)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._groups: host_table.Groups = {}

    def update(self) -> None:
        self._groups = host_table.groups_of(self.mirror)
        super().update()

    def compose(self) -> ComposeResult:
        model: TableModel[HostRow] = TableModel(host_table.columns(lambda: self._groups), "host")
        self.table = Table(model, self.now, empty="no host yet")
        yield self.table
        yield Lines(self._waiting, id="waiting")

    def heading(self) -> str:
        hosts = self.mirror.hosts
        up = sum(row.state == "up" for row in hosts)
        return f"{up} of {len(hosts)} up"

    def _waiting(self, width: int, height: int) -> list[Line]:
        """Why units are on no host."""
        sentences = host_table.waiting_for_a_place(self.mirror)[:height]
        return [cut((Span(" waits  ", Tone.WARN), span(each, Tone.DIM)), width) for each in sentences]

    def takes(self, row: AnyRow | None) -> TypeGuard[HostRow]:
        return isinstance(row, HostRow)

    def searched_text(self, row: HostRow) -> str:
        return f"{row.host} {row.state} {host_table.faults(row)}"

    def open_row(self, row: HostRow) -> None:
        self.actions.navigation.open_page(HostPage(row.host))

    def cli_line(self) -> tuple[str, ...]:
        return ("hosts", "list")


class HostPage(DetailPage, HostVerbs):
    name_in_registry = "host"

    def __init__(self, name: str) -> None:
        super().__init__(f"host {name}", self._lines, ("hosts", "show", name))
        self._host = name
        self._last: HostRow | None = None

    def selected(self) -> HostRow | None:
        found = self.mirror.get(f"host/{self._host}")
        if not isinstance(found, HostRow):
            self.actions.say(f"Host {self._host} is not in the run any more.", Tone.WARN)
            return None
        return found

    def _lines(self, width: int) -> list[Line]:
        found = self.mirror.get(f"host/{self._host}")
        gone: list[Line] = []
        if isinstance(found, HostRow):
            self._last = found
        else:
            gone = [(Span("It is not in the run any more; this is what was last seen of it.", Tone.WARN),)]
        return gone + (host_table.of_host(self._last, self.mirror, self.now(), width) if self._last else [])
