"""Shows models other than the trained one: calls and costs of judges, users and summaries, and whether their services
answer.

Invariant: services are named without their keys; questions and answers are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.protocol.other_model_commands import OtherModelsReport
from agentrl.protocol.rows import UnitRow
from agentrl.telemetry.data_plane_metrics import OTHER_MODEL_WAITING
from tui.cli_runner import CliRunner
from tui.model import other_model_tables
from tui.model.other_model_tables import Use
from tui.model.styled_text import Line, cut
from tui.model.table import Column
from tui.views.query_views import ANSWER_S, QueryTable, RecordLinksPage
from tui.views.view import View
from tui.widgets.lines import Lines

CALLS = 200


class ChangeVerb(View):
    """Changes models, judges and summaries: sections of the run file that take effect without a restart."""

    def do_models_change(self) -> None:
        cli: CliRunner = self.actions.cli
        cli.do_run_apply()


class OtherModels(QueryTable, ChangeVerb):
    """Models by purpose, the most expensive first; the services of the selected one below."""

    name_in_registry = "other-models"
    what = "other models"
    filled_by = "the run file names none in `models`"
    first_sort = "cost"
    filters_at_once = True
    shares = (("services", 4),)

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.table.model.sort("cost", descending=True)
        yield Lines(self._services, id="services")

    def columns(self) -> tuple[Column[Any], ...]:
        return other_model_tables.columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        report: OtherModelsReport = await client.other_models(limit=1, deadline_s=ANSWER_S)
        return dict(other_model_tables.uses(report))

    def heading(self) -> str:
        if self._answered_at is None:
            return super().heading()
        found = [use for _, use in self.table.model.rows]
        waiting = sum(unit.metrics.get(OTHER_MODEL_WAITING.name, 0.0) for unit in self.mirror.of(UnitRow))
        total = f" · {other_model_tables.total(found, waiting)}" if found else ""
        return f"{super().heading()}{total}"

    def _services(self, width: int, height: int) -> list[Line]:
        target = self.table.model.target
        use: Use | None = target[1] if target else None
        if use is None:
            return []
        lines = other_model_tables.service_lines(use, self.now(), width, briefly=True)
        return [cut(line, width) for line in lines[:height]]

    def searched_text(self, row: Use) -> str:
        return other_model_tables.searched_text(row)

    def cli_line(self) -> tuple[str, ...]:
        return ("models",)

    def open_row(self, row: Use) -> None:
        self.actions.navigation.open_page(OtherModelPage(row))


class OtherModelPage(RecordLinksPage, ChangeVerb):
    """One model for one purpose, with its services and newest calls; enter opens a record."""

    name_in_registry = "other-model"

    def __init__(self, use: Use) -> None:
        super().__init__(use.model, ("models", "--model", use.model))
        self._use = use

    async def ask(self, client: Client) -> OtherModelsReport:
        named = {"model": self._use.model, "purpose": self._use.purpose}
        return await client.other_models(limit=CALLS, deadline_s=ANSWER_S, **named)

    def content(self, width: int) -> list[Line]:
        report: OtherModelsReport = self._answer
        use = other_model_tables.uses(report).get(self._use.key, self._use)
        return other_model_tables.of_model(use, report.calls, self.now(), width)

    def records(self) -> Sequence[Mapping[str, Any]]:
        report: OtherModelsReport = self._answer
        found: dict[str, Mapping[str, Any]] = {}
        for call in report.calls:
            if call.get("record"):
                found.setdefault(str(call["record"]), {"id": call["record"], "outcome": call.get("outcome")})
        return list(found.values())
