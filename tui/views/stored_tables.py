"""Tasks, checkpoints and keys: lists in which one points at what is meant; and the account of all that is stored.

Invariant: an act names what was under the cursor, or what was marked, by its id at the key press.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from agentrl.client import Client
from agentrl.formatting.amounts import counted
from agentrl.protocol.commands import KeyRow
from agentrl.protocol.data_commands import AccountReport, ListRows, Page, Story
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import inventory, pending_commands
from tui.model.styled_text import Line
from tui.model.table import Column
from tui.views.detail_pages import DetailPage as PlainPage
from tui.views.query_views import ANSWER_S, QueryPage, QueryTable, RecordLinksPage

NEWEST = {"list_tasks": "-admitted_at", "list_checkpoints": "-at"}


class Stored(QueryTable):
    """Rows of one list of the data plane, the newest first."""

    command: str
    words: str
    """The group of verbs of the command line."""

    async def ask(self, client: Client) -> dict[str, Any]:
        asked = ListRows(filter=self.filter_text, sort=NEWEST[self.command], limit=self._wanted)
        found: Page = await client.call(self.command, asked, deadline_s=ANSWER_S)
        self._more = bool(found.after)
        return {str(row["id"]): {**row, "~order": place} for place, row in enumerate(found.rows)}

    def cli_line(self) -> tuple[str, ...]:
        return (self.words, "list", *(("--filter", self.filter_text) if self.filter_text else ()))


class Tasks(Stored):
    name_in_registry = "tasks"
    what = "tasks"
    filled_by = "the steward makes them of the datasets of the run file; a queues the rows of another file"
    command = "list_tasks"
    words = "tasks"

    def columns(self) -> tuple[Column[Any], ...]:
        return inventory.task_columns()

    def do_mark(self) -> None:
        self.table.model.toggle_mark()
        self.do_move("down")

    def do_task_requeue(self) -> None:
        """Those that are marked, or the one under the cursor."""
        marked = sorted(self.table.model.marked)
        if not marked and (row := self._target()) is not None:
            marked = [str(row["id"])]
        if not marked:
            return

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(pending_commands.requeue(marked, values[0].strip()))

        which = marked[0] if len(marked) == 1 else counted(len(marked), "tasks")
        note = Field("note", hint="why; kept with them, may be empty")
        self.app.push_screen(Form(Question(f"Sample {which} again", (), (note,), "preview it")), then)

    def do_task_add(self) -> None:
        def wrong(values: Values) -> str:
            return "" if all(value.strip() for value in values) else "Type the environment and the file."

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(pending_commands.add_tasks(values[1].strip(), values[0].strip()))

        fields = (Field("environment", hint="whose tasks they become"), Field("file", hint="on the steward's host"))
        self.app.push_screen(Form(Question("Queue the rows of a file", (), fields, "preview it", wrong)), then)

    def do_drill(self) -> None:
        if (row := self._target()) is not None:
            self.console_app.navigation.open_page(TaskPage(str(row["id"])))


class Checkpoints(Stored):
    name_in_registry = "checkpoints"
    what = "checkpoints"
    filled_by = "the trainer saves one every training.checkpoint_every steps; 8 shows the steps"
    command = "list_checkpoints"
    words = "checkpoints"

    def columns(self) -> tuple[Column[Any], ...]:
        return inventory.checkpoint_columns()

    def do_checkpoint_pin(self) -> None:
        if (row := self._target()) is not None:
            self.perform(pending_commands.pin(str(row["id"])))

    def do_checkpoint_unpin(self) -> None:
        if (row := self._target()) is not None:
            self.perform(pending_commands.unpin(str(row["id"])))

    def do_drill(self) -> None:
        if (row := self._target()) is not None:
            self.console_app.navigation.open_page(CheckpointPage(str(row["id"])))


class Keys(QueryTable):
    """Who may reach this run from elsewhere."""

    name_in_registry = "keys"
    what = "keys"
    filled_by = "n makes one for somebody who reaches this run from elsewhere"
    first_sort = "name"
    filters_at_once = True

    def columns(self) -> tuple[Column[Any], ...]:
        return inventory.key_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        return {row.name: row for row in await client.list_keys()}

    def apply_filter(self, words: frozenset[str]) -> None:
        def keep(row: KeyRow) -> bool:
            return all(word in f"{row.name} {row.permission.value}".casefold() for word in words)

        self.table.model.filter(keep if words else None)

    def cli_line(self) -> tuple[str, ...]:
        return ("keys", "list")

    def do_drill(self) -> None:
        row: KeyRow | None = self._target()
        if row is not None:
            lines = partial(inventory.of_key, row)
            self.console_app.navigation.open_page(PlainPage(f"key {row.name}", lines, ("keys", "list")))

    def do_key_new(self) -> None:
        self.console_app.cli.ask_new_key()

    def do_key_revoke(self) -> None:
        row: KeyRow | None = self._target()
        if row is not None:
            self.perform(pending_commands.revoke_key(row.name))


class TaskPage(RecordLinksPage):
    name_in_registry = "task"

    def __init__(self, task: str) -> None:
        super().__init__(task, ("tasks", "show", task))
        self._named = task

    async def ask(self, client: Client) -> Story:
        return await client.show_task(self._named, deadline_s=ANSWER_S)

    def told(self, width: int) -> list[Line]:
        return inventory.of_task(self._answer, width)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return cast(Story, self._answer).records


class CheckpointPage(QueryPage):
    def __init__(self, checkpoint: str) -> None:
        super().__init__(checkpoint, ("checkpoints", "show", checkpoint))
        self._checkpoint = checkpoint

    async def ask(self, client: Client) -> Story:
        return await client.show_checkpoint(self._checkpoint, deadline_s=ANSWER_S)

    def told(self, width: int) -> list[Line]:
        return inventory.of_checkpoint(self._answer, width)


class AccountPage(QueryPage):
    """Whether anything was lost or counted twice."""

    def __init__(self) -> None:
        super().__init__("accounting", ("accounting",))

    async def ask(self, client: Client) -> AccountReport:
        return await client.accounting(deadline_s=ANSWER_S)

    def told(self, width: int) -> list[Line]:
        return inventory.of_account(self._answer, width)
