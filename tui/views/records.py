"""Shows the list of records, one record turn by turn with its tokens and their tree, and attempts side by side.

Invariants:
- Tokens are queried only when they are shown.
- A long record is loaded in parts, and keys reach all turns.
- A jump ends at its turn or reports that the turn does not exist.
- An answer never moves what is on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from agentrl.client import Client, long_answers
from agentrl.client.long_answers import Tokens
from agentrl.errors import AgentrlError
from agentrl.formatting.amounts import counted
from agentrl.protocol.data_changes import CancelRecords, ChooseRecords, ExcludeRecords, RequeueRecords, RescoreRecords
from agentrl.protocol.data_commands import ListRows, RecordStory
from tui.console_interface import work
from tui.dialogs.form import Values, with_note
from tui.model import data_tables, record_detail, token_lines
from tui.model.pending_commands import PendingCommand
from tui.model.record_detail import RecordView
from tui.model.styled_text import Line, Span, Tone, span
from tui.model.table import Column, TableModel
from tui.model.token_lines import Colouring, Node
from tui.views.query_views import ANSWER_S, ASKING, QueryPage, QueryTable, RecordLinksPage
from tui.views.view import TableView, View
from tui.widgets.lines import Table

MOST_TOKENS = 50_000
"""The number of tokens that are loaded; the command line shows all tokens."""
UNDER_WAY = "status=running"
NEWEST, OLDEST = "-started_at", "age"
TURNS = 100
BEFORE = 10
"""Turns that are loaded before the target of a jump."""
BEGINNING = -1
"""Stands for the lines above the first turn, in place of a turn."""
MOST_ATTEMPTS = 64
CHANGES: Mapping[str, type[ChooseRecords]] = {
    "exclude": ExcludeRecords,
    "requeue": RequeueRecords,
    "cancel": CancelRecords,
    "rescore": RescoreRecords,
}
"""The commands that change records, by their verbs."""
_ROUND = re.compile(r"#r(\d+)\.")


class AttemptsVerb(View):
    """The action on one record that shows the attempts of its group side by side."""

    def record_id(self) -> str | None:
        raise NotImplementedError

    def do_record_group(self) -> None:
        if (id := self.record_id()) is not None:
            self.actions.navigation.open_page(GroupPage(id))


class FoldingPage(QueryPage):
    """A page with long texts."""

    unfolded = False

    def do_record_unfold(self) -> None:
        self.unfolded = not self.unfolded
        self.repaint()


class Records(QueryTable, AttemptsVerb):
    """Records, the newest first; or running records, the oldest first, because the oldest may be stuck."""

    name_in_registry = "records"
    what = "records"
    follows_newest = True
    filled_by = "samplers make them of the tasks that the steward admits; T shows the tasks, w who waits for whom"

    def __init__(self, filter: str = "", sort: str = "", *, id: str | None = None) -> None:
        """With `sort`, always in this order."""
        super().__init__(id=id)
        self._filter, self._sort = filter, sort

    def columns(self) -> tuple[Column[Any], ...]:
        return data_tables.record_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        query = ListRows(filter=self.filter_text, sort=self._sort_asked, limit=self._wanted)
        return await self.listed(client, "list_records", query)

    @property
    def newest_by(self) -> str:  # type: ignore[override]
        return "started_at" if self._sort_asked == NEWEST else ""

    def cli_line(self) -> tuple[str, ...]:
        filtered = ("--filter", self.filter_text) if self.filter_text else ()
        return ("records", "list", *filtered, *(("--sort", self._sort_asked) if self._sort_asked != NEWEST else ()))

    @property
    def _sort_asked(self) -> str:
        return self._sort or (OLDEST if self.filter_text == UNDER_WAY else NEWEST)

    def do_records_under_way(self) -> None:
        # The selection belongs to the other list.
        self.table.model.cursor = None
        self.table.model.replace({})
        self.take_filter("" if self.filter_text == UNDER_WAY else UNDER_WAY)
        self.actions.paint_frame()

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(RecordPage(str(row["id"])))

    def do_records_export(self) -> None:
        self.actions.exporter.ask_for_trajectories(self.filter_text)

    def do_records_change(self, verb: str) -> None:
        """Exclude, requeue, cancel or rescore the marked records, or the selected one."""
        if not (marked := self.marked_ids()):
            return

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(PendingCommand(CHANGES[verb](tuple(marked), note=values[0].strip())))

        self.app.push_screen(with_note(CHANGES[verb](tuple(marked)).title()), then)

    def record_id(self) -> str | None:
        row = self.selected()
        return None if row is None else str(row["id"])


class RecordPage(RecordLinksPage, FoldingPage, AttemptsVerb):
    """One attempt, turn by turn."""

    name_in_registry = "record"

    def __init__(self, record: str, turn: int | None = None) -> None:
        super().__init__(record, ("records", "show", record))
        self._record = record
        self._wanted = turn
        """The turn to jump to when the answer arrives."""
        self._after = -1 if turn is None or turn < TURNS else turn - BEFORE - 1
        """The turn before those that are loaded."""
        self._next: tuple[int, int] | None = None
        """The next part to load, and the turn to jump to then."""
        self._under_way: int | None = None
        """The target of the running query."""
        self._colouring = Colouring.NONE
        self._tokens: Tokens | None = None
        self._drawn: tuple[object, record_detail.RecordLines] | None = None

    async def _ask(self) -> None:
        """Query again for a jump that was requested during the query."""
        await super()._ask()
        while self._next is not None:
            await super()._ask()

    async def ask(self, client: Client) -> Any:
        after, turn = self._next or (self._after, None)
        self._next, self._under_way = None, turn
        try:
            story = await client.show_record(self._record, after_turn=after, limit=TURNS, deadline_s=ANSWER_S)
            if self._tokens is not None or self._colouring is not Colouring.NONE:
                self._tokens = await long_answers.tokens(client, self._record, most=MOST_TOKENS, deadline_s=ANSWER_S)
        finally:
            self._under_way = None
        self._after = after
        self._wanted = self._wanted if turn is None else turn
        return story

    def content(self, width: int) -> list[Line]:
        wanted, self._wanted = self._wanted, None
        made = self._made(width)
        if wanted is not None and not self._jumped(made, wanted):
            self.actions.say(f"Turn {wanted} is not loaded.", Tone.WARN)
        return made.lines

    def _made(self, width: int) -> record_detail.RecordLines:
        """Cached, because a page may have thousands of tokens and is drawn at every round."""
        look = RecordView(self.unfolded, self._colouring)
        key = (width, look, id(self._answer), id(self._tokens))
        if self._drawn is None or self._drawn[0] != key:
            segments = self._tokens.segments if self._tokens else ()
            made = record_detail.of_record(self._answer, width, look, segments)
            if self._colouring is not Colouring.NONE:
                note = self._tokens.note if self._tokens else "asking for its tokens"
                made = record_detail.RecordLines(
                    [*made.lines, (), (span(note, Tone.WARN),)] if note else made.lines, made.turns
                )
            self._drawn = (key, made)
        return self._drawn[1]

    def _jumped(self, made: record_detail.RecordLines, turn: int) -> bool:
        if turn != BEGINNING and turn not in made.turns:
            return False
        self.scroll.go_to(0 if turn == BEGINNING else made.turns[turn])
        return True

    def go_to_turn(self, turn: int) -> None:
        first, last = self._here()
        if first <= turn <= last:
            self._next, self._wanted = None, turn
            self.repaint()
        elif turn != self._under_way:
            # Load mostly in the direction of the jump.
            self._next = (max(-1, turn - 1 - (BEFORE if turn > last else TURNS // 2)), turn)
            self.run_query(self._ask, "page")

    def _here(self) -> tuple[int, int]:
        """The first and the last loaded turn; an empty range before the first answer."""
        turns = self._answer.turns if self._answer is not None else ()
        return (int(turns[0]["index"]), int(turns[-1]["index"])) if turns else (0, -1)

    def _beyond(self, how: str) -> int | None:
        """The turn that a move leads to if it is not loaded."""
        before, after = self._turn_before_these(), self._turn_after_these()
        if how == "last" and after is not None:
            return max(after, int(self._answer.record.get("turns") or 0) - 1)
        if how == "first" and before is not None:
            return BEGINNING
        if how in ("down", "page-down") and self.scroll.at_end:
            return after
        return before if how in ("up", "page-up") and not self.scroll.top else None

    def _turn_before_these(self) -> int | None:
        first, _ = self._here()
        return first - 1 if first > 0 else None

    def _turn_after_these(self) -> int | None:
        return self._here()[1] + 1 if self._answer is not None and self._answer.more_turns else None

    def do_move(self, how: str) -> None:
        turn = self._beyond(how)
        if turn is None:
            super().do_move(how)
        else:
            self.go_to_turn(turn)

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Other attempts at its seat, and the records of its lineage."""
        return record_detail.related(self._answer)

    # ---- actions ----

    def do_record_colour(self) -> None:
        turn = self._turn_at_top()
        self._colouring = self._colouring.next()
        self._wanted = turn
        if self._colouring is not Colouring.NONE and self._tokens is None:
            self.run_worker(work(self._ask_tokens, lambda: None), name=self._record, group="tokens", exclusive=True)
        self.repaint()

    def do_record_tree(self) -> None:
        def show() -> None:
            assert self._tokens is not None
            self.actions.navigation.open_page(TokenTree(self._record, self._tokens, self._back_at))

        if self._tokens is not None:
            show()
        else:
            self.run_worker(work(self._ask_tokens, show), name=self._record, group="tokens", exclusive=True)

    def _back_at(self, turn: int) -> None:
        self.actions.navigation.do_back()
        self.go_to_turn(turn)

    def record_id(self) -> str:
        return self._record

    def do_to_neighbour(self, by: int) -> None:
        if self._answer is None:
            return
        starts = self._made(self.scroll.width).turns
        top = self.scroll.top
        if by > 0:
            found = next((turn for turn, at in starts.items() if at > top), None)
        else:
            found = next((turn for turn, at in reversed(starts.items()) if at < top), None)
        if by > 0 and self.scroll.at_end:
            found = self._turn_after_these() or found
        elif found is None and by < 0:
            found = self._turn_before_these()
        if found is not None:
            self.go_to_turn(found)

    def place_to_fork(self) -> str:
        """The place where the record failed (an empty name), or the turn at the top of the screen."""
        failed = self._answer is not None and self._answer.record.get("status") in ("failed", "abandoned")
        turn = self._turn_at_top()
        return "" if failed or turn is None else str(turn)

    def _turn_at_top(self) -> int | None:
        if self._answer is None:
            return None
        begun = [turn for turn, at in self._made(self.scroll.width).turns.items() if at <= self.scroll.top]
        return begun[-1] if begun else None

    async def _ask_tokens(self, then: Callable[[], None]) -> None:
        try:
            client = self.actions.connection.client
            self._tokens = await long_answers.tokens(client, self._record, most=MOST_TOKENS, deadline_s=ANSWER_S)
        except AgentrlError as error:
            self.actions.say(str(error), Tone.WARN)
            return
        if self.actions.navigation.is_shown(self):
            self.repaint()
            then()


class TokenTree(TableView):
    """The branches of a record's calls; enter goes to the turn."""

    name_in_registry = "token-tree"

    def __init__(self, record: str, found: Tokens, jump: Callable[[int], None]) -> None:
        super().__init__()
        self._record = record
        self._found = found
        self._jump = jump

    def compose(self) -> ComposeResult:
        self.table = Table(
            TableModel(token_lines.tree_columns(), "order"), self.now, empty=self._found.note or "no tokens"
        )
        self.table.model.replace(token_lines.tree(self._found.segments))
        self.table.model.aim_first()
        yield self.table

    def heading(self) -> str:
        trained = sum(len(each.ids) for each in self._found.segments if each.trains)
        return f"{counted(self._found.total, 'tokens')}, {trained} trained"

    def cli_line(self) -> tuple[str, ...]:
        return ("records", "show", self._record, "--tokens")

    def searched_text(self, node: Node) -> str:
        return token_lines.searched_text(node)

    def export_rows(self) -> list[Any]:
        return [row.segment for row in super().export_rows()]

    def open_row(self, node: Node) -> None:
        if node.segment.turn < 0:
            self.actions.say("These tokens belong to no turn.", Tone.WARN)
        else:
            self._jump(node.segment.turn)


class GroupPage(FoldingPage):
    """Attempts at the same task in columns; keys shift to those that do not fit."""

    name_in_registry = "group"

    def __init__(self, record: str) -> None:
        task = record.partition("#")[0]
        super().__init__(task, ("records", "list", "--filter", f'task="{task}"'))
        self._record = record
        self._first: int | None = None
        self._fits = 2
        self._stories: dict[str, RecordStory] = {}
        self._asked: set[str] = set()
        self._load_error = ""
        """The reason why an attempt could not be loaded."""

    async def ask(self, client: Client) -> Any:
        """The ids of the attempts, in the order of their seats."""
        task = self._record.partition("#")[0]
        of_round = f" and round={found.group(1)}" if (found := _ROUND.search(self._record)) else ""
        page = await client.list_records(
            filter=f'task="{task}"{of_round}', sort="seat,attempt", limit=MOST_ATTEMPTS, deadline_s=ANSWER_S
        )
        ids = [str(row["id"]) for row in page.rows]
        if self._first is None:
            self._first = ids.index(self._record) if self._record in ids else 0
        self._asked.clear()
        return ids

    @property
    def awaits_rows(self) -> bool:
        # The attempts are queried when the answer with their ids is drawn.
        drawn = bool(self._asked) and all(id in self._stories for id in self._shown())
        return super().awaits_rows or (bool(self._answer) and not drawn and not self._load_error)

    def heading(self) -> str:
        return f"attempts at {super().heading()}"

    @property
    def _begin(self) -> int:
        """The first attempt that is shown; all columns stay filled."""
        return max(0, min(self._first or 0, len(self._answer or ()) - self._fits))

    def _shown(self) -> list[str]:
        return list(self._answer or ())[self._begin : self._begin + self._fits]

    def content(self, width: int) -> list[Line]:
        self._fits = record_detail.columns_for(width)
        shown = self._shown()
        missing = [id for id in shown if id not in self._asked]
        if missing:
            self._asked.update(missing)
            self.run_worker(work(self._ask_stories, missing), name="attempts", group="attempts")
        stories = [self._stories[id] for id in shown if id in self._stories]
        if len(stories) < len(shown) or not shown:
            return [(Span((self._load_error or ASKING) if shown else "no attempts", Tone.DIM),)]
        which = f"attempts {self._begin + 1}-{self._begin + len(shown)} of {len(self._answer)} at {self._title}"
        return [(span(which, Tone.DIM),), *record_detail.beside(stories, width, self.unfolded)]

    async def _ask_stories(self, ids: list[str]) -> None:
        self._load_error = ""
        for id in ids:
            try:
                client = self.actions.connection.client
                self._stories[id] = await client.show_record(id, limit=TURNS, deadline_s=ANSWER_S)
            except AgentrlError as error:
                self._load_error = str(error)
                self.actions.say(self._load_error, Tone.WARN)
        self.repaint()

    # ---- actions ----

    def do_group_shift(self, by: int) -> None:
        last = max(0, len(self._answer or ()) - self._fits)
        self._first = max(0, min(last, self._begin + by))
        self.repaint()
        self.actions.paint_frame()
