"""All rows of a run by kind, as a status report or the feed gave them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from agentrl.client import CAUGHT_UP, RESET, SILENT
from agentrl.formatting.row_text import by_gravity, slot_order
from agentrl.protocol.rows import (
    AlertRow,
    AnyRow,
    GroupRow,
    HostRow,
    OperationRow,
    PulseRow,
    RunRow,
    UnitRow,
)

if TYPE_CHECKING:
    from agentrl.protocol.commands import StatusReport


@dataclasses.dataclass(slots=True)
class View:
    """Rows by their key."""

    rows: dict[str, AnyRow] = dataclasses.field(default_factory=dict)
    silent: bool = False
    """The coordinator is not heard; the rows are what it last said."""

    @classmethod
    def of_report(cls, report: StatusReport) -> View:
        view = cls()
        rows: tuple[AnyRow, ...] = (
            report.run,
            *report.groups,
            *report.units,
            *report.hosts,
            *report.alerts,
            *report.operations,
            *(() if report.pulse is None else (report.pulse,)),
        )
        view.rows.update((str(number), row) for number, row in enumerate(rows))
        return view

    def put(self, key: str, row: AnyRow | None) -> None:
        """One item of the feed."""
        if key == RESET:
            self.rows.clear()
            self.silent = False
        elif key in (SILENT, CAUGHT_UP):
            self.silent = key == SILENT
        elif row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    @property
    def run(self) -> RunRow | None:
        return next((row for row in self.rows.values() if isinstance(row, RunRow)), None)

    @property
    def pulse(self) -> PulseRow | None:
        return next((row for row in self.rows.values() if isinstance(row, PulseRow)), None)

    @property
    def groups(self) -> list[GroupRow]:
        return sorted((row for row in self.rows.values() if isinstance(row, GroupRow)), key=lambda row: row.name)

    @property
    def units(self) -> list[UnitRow]:
        found = (row for row in self.rows.values() if isinstance(row, UnitRow))
        return sorted(found, key=lambda row: (row.group, slot_order(row.unit)))

    @property
    def hosts(self) -> list[HostRow]:
        return sorted((row for row in self.rows.values() if isinstance(row, HostRow)), key=lambda row: row.host)

    @property
    def firing(self) -> list[AlertRow]:
        """Alerts that fire or are acknowledged, the gravest first; silence stops the sending, not the showing."""
        return by_gravity([row for row in self.rows.values() if isinstance(row, AlertRow)])

    @property
    def operations(self) -> list[OperationRow]:
        """Those that have not ended, oldest first."""
        found = (row for row in self.rows.values() if isinstance(row, OperationRow) and not row.state.ended)
        return sorted(found, key=lambda row: row.accepted_at)
