"""Shows the first screen.

Invariants:
- The view sends no query while another view is shown.
- An old answer shows its age until the next answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.errors import AgentrlError, UsageError
from agentrl.formatting.row_text import happened_at
from agentrl.protocol.data_commands import Page
from agentrl.protocol.rows import AlertRow, AnyRow, IncidentRow, KnobRow, OperationRow
from tui.model import curves, event_table, overview_blocks
from tui.model.styled_text import Line, Span, Tone, cut
from tui.model.table import cells, layout
from tui.model.training_status import TrainingFacts
from tui.playback_connection import PlaybackConnection
from tui.views.query_views import ANSWER_S, catch_up
from tui.views.view import View
from tui.widgets.lines import Lines

ASK_EVERY_S = 5.0
OLD_S = 2 * ASK_EVERY_S


class Overview(View):
    """Blocks on top and, if there is room, recent events below."""

    name_in_registry = "overview"
    moves = False
    vocabulary = (
        ("longest without any: x, 9s", "no unit is without progress for longer than x"),
        ("≤1, ≥0.5, 0.5–2", "the band of a healthy run; ! is outside"),
        ("×0.9", "against the steps before, of which the band is"),
        ("valid, infrastructure", "of the attempts of the last ten minutes"),
        ("dropped in 10 steps", "records and groups that those did not train"),
        ("mismatch", "engine against trainer, as a share of the limit"),
        ("drift", "chance of a token now against when sampled"),
        ("accepted", "share of tokens that no clip or bound took out"),
        ("length", "trained tokens of a record"),
        ("at risk", "what a death of the trainer would cost now"),
    )
    DEFAULT_CSS = "Overview > Lines { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._facts = TrainingFacts()
        self._answered_at: float | None = None
        """The clock of the answer; None in playback, where it belongs to the moment shown."""

    def compose(self) -> ComposeResult:
        yield Lines(self._lines)

    def on_mount(self) -> None:
        self.set_interval(ASK_EVERY_S, self._ask, name="overview")

    def shown(self) -> None:
        super().shown()
        self._ask()

    def _ask(self) -> None:
        if self.display and self.actions.navigation.is_shown(self):
            link = self.actions.connection
            self.run_query(link.read_back if isinstance(link, PlaybackConnection) else self._query, "overview")

    def update(self) -> None:
        if (playback := self.actions.playback) is not None:
            playback.fill_steps(self.actions.steps)
            self._facts = TrainingFacts(self.actions.steps.points)
        super().update()

    async def _query(self) -> None:
        """Query what the feed does not carry. Without an answer, the old one stays with its age."""
        try:
            client = await self.actions.connection.to_ask()
            asked_at = self.actions.clock()
            await catch_up(self.actions.steps, client)
            saved = await client.list_checkpoints(sort="-at", limit=1, deadline_s=ANSWER_S)
            published = await client.list_versions(sort="-announced_at", limit=1, deadline_s=ANSWER_S)
            ended = await client.list_records(sort="-finished_at", limit=1, deadline_s=ANSWER_S)
            evaluated = await self._evaluated(client)
        except AgentrlError:
            return
        checkpoint = saved.rows[0] if saved.rows else {}
        self._facts = TrainingFacts(
            self.actions.steps.points,
            _newest(published, "announced_at"),
            _newest(ended, "finished_at"),
            checkpoint.get("step"),
            _newest(saved, "at"),
            evaluated,
        )
        self._answered_at = asked_at
        self.repaint()

    def _aged_facts(self) -> TrainingFacts:
        old_s = 0.0 if self._answered_at is None else self.actions.clock() - self._answered_at
        return replace(self._facts, old_s=old_s) if old_s > OLD_S else self._facts

    async def _evaluated(self, client: Client) -> Mapping[str, float]:
        """Scores of the last evaluation. A steward of an older version refuses this query; then they are left out."""
        try:
            page = await client.list_versions(filter="evaluation=done", sort="-id", limit=1, deadline_s=ANSWER_S)
        except UsageError:
            return {}
        return page.rows[0].get("evaluated") or {} if page.rows else {}

    def _lines(self, width: int, height: int) -> Iterable[Line]:
        inner = width - 2
        made = overview_blocks.blocks(
            self.mirror, self.actions.why, self.now(), inner, height, self._aged_facts(), self._after()
        )
        made += self._lately(inner, height - len(made))
        return [(Span(" "), *line) for line in made]

    def _after(self) -> Line:
        run = self.mirror.run
        if self.actions.playback is not None or run is None:
            return ()
        return overview_blocks.what_next(self.actions.allowed(), up=run.desired == "up")

    def _lately(self, width: int, room: int) -> list[Line]:
        """The newest events in columns."""
        if room < 4:
            return []
        rows: list[AnyRow] = [*self.mirror.of(OperationRow), *self.mirror.of(IncidentRow), *self.mirror.of(AlertRow)]
        rows += [row for row in self.mirror.of(KnobRow) if row.changed_at]
        rows.sort(key=happened_at, reverse=True)
        shown = layout(event_table.columns(), width)
        head = cut((Span("Lately", Tone.ACCENT),), width)
        return [(), head, *(cells(row, shown, self.now()) for row in rows[: room - 2])]

    def do_open_alert(self, place: int) -> None:
        firing = self.mirror.firing_by_cause
        if place < len(firing):
            self.actions.navigation.open_row(f"alert/{firing[place][0].id}")
        else:
            self.actions.say("There is no such alert.")


def _newest(page: Page, name: str) -> float:
    return curves.seconds(page.rows[0].get(name)) if page.rows else 0.0
