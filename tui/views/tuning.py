"""Every knob, and the way to turn it; below them who turned it, and for the bound what waits for training by age.

Invariants: what stands below belongs to the knob under the cursor, or says nothing; a mark is a question and changes
nothing: to apply it goes the way of every knob.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeGuard

from textual.app import ComposeResult

from agentrl.client import Client
from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import age, moment
from agentrl.formatting.row_text import owner_done
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.rows import AnyRow, AuditRow, KnobRow
from tui.model import detail_lines, knob_table, pending_commands, staleness_histogram
from tui.model.actions import Action
from tui.model.effect_text import effect_sentence
from tui.model.styled_text import Line, Span, Tone, cut, folded, span
from tui.model.table import TableModel
from tui.views.query_views import ANSWER_S, ASKING, QueryPage
from tui.views.view import FeedTable, View
from tui.widgets.lines import Lines, Table

BOUND = "bound"
"""The knob whose values are ages."""
OF_THE_BOUND = frozenset({"knob.bound", "knob.less", "knob.more"})
"""Actions that mean nothing in a run without it."""
ASK_AFTER_S = 0.15
AGES_EVERY_S = 2.0
MOST_LINES = 2
"""Of what another bound would do."""


class KnobVerbs(View):
    """Verbs on one knob: the one under the cursor, or the one whose page this is."""

    def knob(self) -> KnobRow | None:
        raise NotImplementedError

    def aimed(self) -> KnobRow | None:
        row = self.knob()
        if row is None:
            self.console_app.say("No knob is aimed at.", Tone.WARN)
        return row

    def do_knob_undo(self) -> None:
        row = self.aimed()
        if row is None:
            return
        if row.changed_at:
            self.console_app.perform(pending_commands.undo_tune(row))
        else:
            self.console_app.say(f"{row.name} was never changed.")


class Tuning(FeedTable[KnobRow], KnobVerbs):
    name_in_registry = "tuning"
    kind = "knob"
    shares = (("help", 2), ("beside", 8))

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ages: StalenessReport | None = None
        self._ages_at = 0.0
        self._unknown = "its answer is not there yet."
        """Why the ages are not known."""
        self._mark: int | None = None
        self._would = ""
        """What the knob itself says of the mark."""
        self._history: tuple[AuditRow, ...] = ()
        self._told_of = ("", 0)
        """Name and revision of the knob that the history is of."""
        self._asked_of = ("", 0)
        """Of the knob whose history was asked for: never of nobody, and again after a silence."""

    def compose(self) -> ComposeResult:
        model: TableModel[KnobRow] = TableModel(knob_table.columns(self.mirror), "name")
        self.table = Table(model, self.now, empty="no knob yet")
        yield self.table
        yield Lines(self._help, id="help")
        yield Lines(self._beside, id="beside")

    def on_mount(self) -> None:
        self.set_interval(AGES_EVERY_S, self._ask_ages, name="ages")

    # ---- what stands below ----

    def _help(self, width: int, _: int) -> list[Line]:
        row = self.knob()
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
        row = self.knob()
        if row is None:
            return []
        made: list[Line] = []
        if row.name == BOUND and self._ages is not None:
            mark = self._mark_of(self._ages)
            picture = staleness_histogram.histogram(self._ages, mark, width - 2)
            made += picture if len(picture) + MOST_LINES <= height else []
            asked = self._mark is not None and mark != row.value
            said = f"at {mark}: {self._would or ASKING}" if asked else "← → try another bound"
            counted = Span(f"  counted {age(self.console_app.clock() - self._ages_at)} ago", Tone.DIM)
            made += folded((span(said, Tone.STRONG), counted), width - 2, MOST_LINES)
            if hit := staleness_histogram.dropped(self._ages):
                made.append(hit)
        if self._told_of == (row.name, row.revision):
            made += [_change(each) for each in reversed(self._history)]
        return [cut((Span("  "), *line), width) for line in made[:height]]

    def update(self) -> None:
        super().update()
        row = self.knob()
        if row is None:
            return
        if self._told_of != (row.name, row.revision):
            self._told_of, self._history = (row.name, row.revision), ()
            self._forget_mark()
            self._ask_ages()
        if self._asked_of != self._told_of and self.mirror.link.connected:
            self._asked_of = self._told_of
            self.set_timer(ASK_AFTER_S, partial(self._ask_history, self._told_of))

    def do_move(self, how: str) -> None:
        super().do_move(how)
        self.update()

    def _live(self) -> bool:
        return self.display and self.console_app.view is self and self.console_app.replay is None

    def _ask_history(self, of: tuple[str, int]) -> None:
        async def ask() -> None:
            try:
                found = await self.console_app.connection.client.knob_history(of[0])
            except AgentrlError:
                if not self.mirror.link.connected:
                    self._asked_of = "", 0  # asked again once somebody is heard
                return
            if of == self._told_of:
                self._history = tuple(found)
                self.repaint()

        # Only where the cursor came to rest.
        if of != self._told_of:
            return
        if self._live():
            self.run_worker(ask(), group="history", exclusive=True)
        else:
            self._asked_of = "", 0  # asked once somebody looks again

    def _ask_ages(self) -> None:
        async def ask() -> None:
            try:
                client = await self.console_app.connection.to_ask()
                self._ages = await client.staleness(deadline_s=ANSWER_S)
                self._ages_at = self.console_app.clock()
            except AgentrlError as error:
                self._ages, self._unknown = None, str(error)
            self.repaint()
            # What the knob says of the mark is asked with it: numbers beside each other are of one time.
            if row is not None and self._ages is not None and self._mark is not None and self._mark != row.value:
                await self._preview(row, self._mark)

        row = self.knob()
        if row is not None and row.name == BOUND and self._live():
            self.ask_in_rounds(ask, "ages")

    # ---- what-if ----

    def has_use_for(self, action: Action) -> bool:
        return action.id not in OF_THE_BOUND or self.mirror.get(f"knob/{BOUND}") is not None

    def _mark_of(self, report: StalenessReport) -> int:
        return report.bound if self._mark is None else self._mark

    def _forget_mark(self) -> None:
        self._mark, self._would = None, ""

    def do_knob_bound(self) -> None:
        if not self.table.model.aim(BOUND):
            self.console_app.say("This run has no staleness bound.")
        self.update()

    def do_knob_less(self) -> None:
        self._try(-1)

    def do_knob_more(self) -> None:
        self._try(1)

    def _try(self, by: int) -> None:
        row = self.knob()
        if row is None or row.name != BOUND:
            self.console_app.say("b goes to the bound; what-if is for that knob.")
            return
        if self._ages is None:
            self.console_app.say(f"What another bound would do is not known: {self._unknown}", Tone.WARN)
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
            found = await self.console_app.connection.client.preview(intent.command, intent.args)
            said = effect_sentence(found.effect, self.mirror)
        except AgentrlError as error:
            said = str(error)
        if mark == self._mark:
            self._would = said
            self.repaint()

    # ---- the list ----

    def takes(self, row: AnyRow | None) -> TypeGuard[KnobRow]:
        return isinstance(row, KnobRow)

    def apply_filter(self, words: frozenset[str]) -> None:
        self.table.model.filter((lambda row: knob_table.keeps(words, row)) if words else None)

    def select(self, name: str) -> None:
        self.table.model.aim(name)
        self.update()

    def knob(self) -> KnobRow | None:
        return self.under_cursor()

    def cli_line(self) -> tuple[str, ...]:
        row = self.knob()
        return ("tune", row.name) if row else ("tune",)

    def do_drill(self) -> None:
        row = self.aimed()
        if row is not None and not self.console_app.commands.may_ever("tune"):
            self.do_knob_history()
        elif row is not None:
            marked = row.name == BOUND and self._mark is not None and self._mark != row.value
            known = self._history if self._told_of == (row.name, row.revision) else ()
            self.console_app.prompts.ask_value(row, known, f"{self._mark}" if marked else "")

    def do_knob_history(self) -> None:
        row = self.aimed()
        if row is not None:
            self.console_app.navigation.open_page(KnobPage(row))


class KnobPage(QueryPage, KnobVerbs):
    """One knob with all its changes."""

    name_in_registry = "knob"

    def __init__(self, row: KnobRow) -> None:
        super().__init__(row.name, ("tune", row.name, "--history"))
        self._row = row
        self._asked_at = row.revision

    def heading(self) -> str:
        """Without an age: what was asked is asked anew with every change."""
        return self._row.name

    def knob(self) -> KnobRow | None:
        """As it was drawn, so that an undo takes back the change that a person saw."""
        return self._row

    async def ask(self, client: Client) -> list[AuditRow]:
        return await client.knob_history(self._row.name)

    def update(self) -> None:
        found = self.mirror.get(f"knob/{self._row.name}")
        self._row = found if isinstance(found, KnobRow) else self._row
        if self._row.revision != self._asked_at:
            self._asked_at = self._row.revision
            self.run_worker(self._ask(), name=self._row.name, group="page")
        super().update()

    def told(self, width: int) -> list[Line]:
        return detail_lines.of_knob(self._row, self._answer, self.mirror, width)


def _change(row: AuditRow) -> Line:
    note = f" ({row.note})" if row.note else ""
    return (Span(f"{moment(row.at)}  ", Tone.DIM), span(f"{row.what}{note}"), span(f"  {row.who}", Tone.DIM))
