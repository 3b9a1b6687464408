"""Shows the list of knobs, with their changes below and, for the staleness bound, the ready records by age.

Invariants:
- The lines below belong to the selected knob or are empty.
- A mark on another bound only previews it; it is applied in the same way as any knob.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import age, moment
from agentrl.formatting.row_text import knob_range, owner_done, takes_effect
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.rows import AnyRow, AuditRow, KnobRow
from tui.console_interface import work
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import cell_text, detail_lines, pending_commands, staleness_histogram
from tui.model.actions import Action
from tui.model.effect_text import effect_sentence
from tui.model.mirror import Mirror
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, cut, folded, span
from tui.model.table import Column, TableModel, text_column
from tui.views.query_views import ANSWER_S, ASKING, QueryPage
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table

BOUND = "bound"
"""The knob whose values are ages."""
OF_THE_BOUND = frozenset({"knob.bound", "knob.less", "knob.more"})
"""Actions that are not offered in a run without it."""
ASK_AFTER_S = 0.15
AGES_EVERY_S = 2.0
MOST_LINES = 2
"""Lines of the preview of another bound."""


def columns(mirror: Mirror) -> tuple[Column[KnobRow], ...]:
    return (
        text_column("name", "KNOB", 34, lambda row: row.name, Tone.STRONG, least=16),
        Column("value", "VALUE", 12, _value, lambda row: plain_value(row.value), True),
        Column("in-force", "IN FORCE", 10, _in_force, lambda row: plain_value(row.in_force), True, 6, optional=True),
        Column("default", "DEFAULT", 9, _default, lambda row: plain_value(row.default), True, 4),
        text_column("allowed", "ALLOWED", 20, knob_range, Tone.DIM, rank=5),
        Column(
            "boundary", "TAKES EFFECT", 14, lambda row, now: _boundary(row, mirror), lambda row: row.boundary, rank=2
        ),
        Column("changed", "CHANGED", 7, _changed, lambda row: -row.changed_at, True, 1, optional=True),
        text_column("by", "BY", 14, lambda row: row.changed_by, Tone.DIM, rank=3, optional=True),
        text_column("help", "WHAT", 12, lambda row: row.help, Tone.DIM, rank=7, stretches=True),
    )


def _value(row: KnobRow, now: float) -> Span:
    tuned = row.value != row.default
    return span(f"{plain_value(row.value)}{f' {row.unit}' if row.unit else ''}", Tone.ACCENT if tuned else Tone.PLAIN)


def _in_force(row: KnobRow, now: float) -> Span:
    waits = row.in_force is not None and row.in_force != row.value
    return span(f"still {plain_value(row.in_force)}" if waits else "", Tone.BUSY)


def _default(row: KnobRow, now: float) -> Span:
    return span(plain_value(row.default), Tone.DIM)


def _boundary(row: KnobRow, mirror: Mirror) -> Span:
    text = f"{takes_effect(row, mirror.groups)}{' ◆' if row.scientific else ''}"
    return span(text, Tone.WARN if row.scientific else Tone.DIM)


def _changed(row: KnobRow, now: float) -> Span:
    return Span(cell_text.ago(row.changed_at, now), Tone.PLAIN)


class KnobVerbs(View):
    """Actions on one knob: the selected one, or that of the page."""

    def selected(self) -> KnobRow | None:
        raise NotImplementedError

    def do_knob_undo(self) -> None:
        row = self.selected()
        if row is None:
            return
        if row.changed_at:
            self.perform(pending_commands.undo_tune(row))
        else:
            self.actions.say(f"{row.name} was never changed.")


class Tuning(FeedTable[KnobRow], KnobVerbs):
    name_in_registry = "tuning"
    kind = "knob"
    shares = (("help", 2), ("beside", 8))

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ages: StalenessReport | None = None
        self._ages_at = 0.0
        self._unknown = "its answer is not there yet."
        """The reason why the ages are unknown."""
        self._mark: int | None = None
        self._would = ""
        """The preview of the mark."""
        self._history: tuple[AuditRow, ...] = ()
        self._history_of = ("", 0)
        """Name and revision of the knob that the history is of."""
        self._history_queried = ("", 0)
        """Name and revision of the knob whose history was queried; empty after a failed query."""

    def compose(self) -> ComposeResult:
        model: TableModel[KnobRow] = TableModel(columns(self.mirror), "name")
        self.table = Table(model, self.now, empty="no knob yet")
        yield self.table
        yield Lines(self._help, id="help")
        yield Lines(self._beside, id="beside")

    def on_mount(self) -> None:
        self.set_interval(AGES_EVERY_S, self._ask_ages, name="ages")

    # ---- the lines below the table ----

    def _help(self, width: int, _: int) -> list[Line]:
        row = self.under_cursor()
        if row is None:
            return []
        owner = f" It is applied by {row.owner}." if row.owner else ""
        done = owner_done(row, self.mirror.groups)
        ended = f"{row.owner} is done: what is set now holds if it is run again. " if done else ""
        changed = f"last changed by {row.changed_by}{f' ({row.note})' if row.note else ''}" if row.changed_at else ""
        scientific = "◆ scientific: a change begins a new segment and wants a note. " if row.scientific else ""
        return [
            cut((Span("  "), span(f"{row.help}{owner}")), width),
            cut((Span("  "), span(ended + scientific, Tone.WARN), span(changed, Tone.DIM)), width),
        ]

    def _beside(self, width: int, height: int) -> list[Line]:
        row = self.under_cursor()
        if row is None:
            return []
        made: list[Line] = []
        if row.name == BOUND and self._ages is not None:
            mark = self._mark_of(self._ages)
            picture = staleness_histogram.histogram(self._ages, mark, width - 2)
            made += picture if len(picture) + MOST_LINES <= height else []
            tries_another = self._mark is not None and mark != row.value
            text = f"at {mark}: {self._would or ASKING}" if tries_another else "← → try another bound"
            counted = Span(f"  counted {age(self.actions.clock() - self._ages_at)} ago", Tone.DIM)
            made += folded((span(text, Tone.STRONG), counted), width - 2, MOST_LINES)
            if hit := staleness_histogram.dropped(self._ages):
                made.append(hit)
        if self._history_of == (row.name, row.revision):
            made += [_change(each) for each in reversed(self._history)]
        return [cut((Span("  "), *line), width) for line in made[:height]]

    def update(self) -> None:
        super().update()
        row = self.under_cursor()
        if row is None:
            return
        if self._history_of != (row.name, row.revision):
            self._history_of, self._history = (row.name, row.revision), ()
            self._forget_mark()
            self._ask_ages()
        if self._history_queried != self._history_of and self.mirror.link.connected:
            self._history_queried = self._history_of
            self.set_timer(ASK_AFTER_S, partial(self._ask_history, self._history_of))

    def do_move(self, how: str) -> None:
        super().do_move(how)
        self.update()

    def _live(self) -> bool:
        return self.display and self.actions.navigation.is_shown(self) and self.actions.playback is None

    def _ask_history(self, of: tuple[str, int]) -> None:
        async def ask() -> None:
            try:
                found = await self.actions.connection.client.knob_history(of[0])
            except AgentrlError:
                if not self.mirror.link.connected:
                    self._history_queried = "", 0  # queried again after the next connection
                return
            if of == self._history_of:
                self._history = tuple(found)
                self.repaint()

        # The answer is used only if the cursor has stayed on this knob.
        if of != self._history_of:
            return
        if self._live():
            self.run_worker(work(ask), group="history", exclusive=True)
        else:
            self._history_queried = "", 0  # queried when the view is shown again

    def _ask_ages(self) -> None:
        async def ask() -> None:
            try:
                client = await self.actions.connection.to_ask()
                self._ages = await client.staleness(deadline_s=ANSWER_S)
                self._ages_at = self.actions.clock()
            except AgentrlError as error:
                self._ages, self._unknown = None, str(error)
            self.repaint()
            # The preview is queried together with the ages, so that both show the same moment.
            if row is not None and self._ages is not None and self._mark is not None and self._mark != row.value:
                await self._preview(row, self._mark)

        row = self.under_cursor()
        if row is not None and row.name == BOUND and self._live():
            self.run_query(ask, "ages")

    # ---- previewing another bound ----

    def has_use_for(self, action: Action) -> bool:
        return action.id not in OF_THE_BOUND or self.mirror.get(f"knob/{BOUND}") is not None

    def _mark_of(self, report: StalenessReport) -> int:
        return report.bound if self._mark is None else self._mark

    def _forget_mark(self) -> None:
        self._mark, self._would = None, ""

    def do_knob_bound(self) -> None:
        if not self.table.model.select(BOUND):
            self.actions.say("This run has no staleness bound.")
        self.update()

    def do_knob_try(self, by: int) -> None:
        row = self.under_cursor()
        if row is None or row.name != BOUND:
            self.actions.say("Only the bound has a preview by keys; b goes to it.")
            return
        if self._ages is None:
            self.actions.say(f"What another bound would do is not known: {self._unknown}", Tone.WARN)
            return
        self._mark, self._would = max(0, self._mark_of(self._ages) + by), ""
        self.set_timer(ASK_AFTER_S, partial(self._ask_preview, row, self._mark))
        self.repaint()

    def _ask_preview(self, row: KnobRow, mark: int) -> None:
        if mark == self._mark and mark != row.value:
            work: Callable[[], Awaitable[None]] = partial(self._preview, row, mark)
            self.run_worker(work, group="what-if", exclusive=True)

    async def _preview(self, row: KnobRow, mark: int) -> None:
        intent = pending_commands.tune(row, mark)
        try:
            found = await self.actions.connection.client.preview(intent.command, intent.args)
            text = effect_sentence(found.effect, self.mirror)
        except AgentrlError as error:
            text = str(error)
        if mark == self._mark:
            self._would = text
            self.repaint()

    # ---- the list ----

    def takes(self, row: AnyRow | None) -> TypeGuard[KnobRow]:
        return isinstance(row, KnobRow)

    def searched_text(self, row: KnobRow) -> str:
        scientific = " scientific" if row.scientific else ""
        tuned = " changed tuned" if row.value != row.default else ""
        return f"{row.name} {row.owner} {row.boundary} {row.help} {row.changed_by}{scientific}{tuned}"

    def select(self, name: str) -> None:
        self.table.model.select(name)
        self.update()

    def cli_line(self) -> tuple[str, ...]:
        row = self.under_cursor()
        return ("tune", row.name) if row else ("tune",)

    def open_row(self, row: KnobRow) -> None:
        if not self.actions.commands.may_ever("tune"):
            self.do_knob_history()
            return
        marked = row.name == BOUND and self._mark is not None and self._mark != row.value
        known = self._history if self._history_of == (row.name, row.revision) else ()
        self._ask_value(row, known, f"{self._mark}" if marked else "")

    def _ask_value(self, row: KnobRow, history: Sequence[AuditRow], value: str) -> None:
        """Ask for a new value and show what it would do. The form opens at once: keys typed next are for its field."""

        async def preview(values: Values) -> str:
            pending = _tuned(row, values)
            found = await self.actions.connection.client.preview(pending.command, pending.args)
            return f"{found.tier.name.lower()}: {effect_sentence(found.effect, self.mirror)}"

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(_tuned(row, values))

        lines = detail_lines.of_knob(row, history[-3:], self.mirror, 72)
        fields = (Field("new value", value, hint=f"it is {row.value} now"), Field("note", hint="why"))
        question = Question(row.name, tuple(lines), fields, "change it", partial(_wrong_value, row), preview)
        self.app.push_screen(Form(question), then)

    def do_knob_history(self) -> None:
        row = self.selected()
        if row is not None:
            self.actions.navigation.open_page(KnobPage(row))


class KnobPage(QueryPage, KnobVerbs):
    """One knob with all its changes."""

    name_in_registry = "knob"

    def __init__(self, row: KnobRow) -> None:
        super().__init__(row.name, ("tune", row.name, "--history"))
        self._row = row
        self._asked_at = row.revision

    def heading(self) -> str:
        """The heading has no age, because every change is queried at once."""
        return self._row.name

    def selected(self) -> KnobRow | None:
        """As it was drawn, so that an undo takes back the change that a person saw."""
        return self._row

    async def ask(self, client: Client) -> list[AuditRow]:
        return await client.knob_history(self._row.name)

    def update(self) -> None:
        found = self.mirror.get(f"knob/{self._row.name}")
        self._row = found if isinstance(found, KnobRow) else self._row
        if self._row.revision != self._asked_at:
            self._asked_at = self._row.revision
            self.run_worker(work(self._ask), name=self._row.name, group="page")
        super().update()

    def content(self, width: int) -> list[Line]:
        return detail_lines.of_knob(self._row, self._answer, self.mirror, width)


def _parsed(row: KnobRow, text: str) -> tuple[KnobValue, str]:
    """The typed value, and its fault."""
    try:
        return row.verified().parse(text.strip()), ""
    except AgentrlError as wrong:
        return None, wrong.message


def _wrong_value(row: KnobRow, values: Values) -> str:
    """The fault of a new value and its note; empty if both are valid."""
    if not values[0].strip():
        return f"Type a value: {knob_range(row)}."
    value, wrong = _parsed(row, values[0])
    if wrong:
        return wrong
    if value == row.value:
        return "This is its value now."
    return "A scientific knob wants a note." if row.scientific and not values[1].strip() else ""


def _tuned(row: KnobRow, values: Values) -> PendingCommand:
    value, _ = _parsed(row, values[0])
    return pending_commands.tune(row, value, values[1].strip())


def _change(row: AuditRow) -> Line:
    note = f" ({row.note})" if row.note else ""
    return (Span(f"{moment(row.at)}  ", Tone.DIM), span(f"{row.what}{note}"), span(f"  {row.who}", Tone.DIM))
