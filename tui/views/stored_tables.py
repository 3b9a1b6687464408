"""Shows the lists of tasks, checkpoints and keys with their pages, and the account of the stored data.

Invariants:
- A command names the selected or the marked rows by their ids at the key press.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

from agentrl.client import Client
from agentrl.formatting import account_lines
from agentrl.formatting.amounts import counted, moment, size
from agentrl.protocol.control_commands import KeyRow, RevokeKey, RotateKeys
from agentrl.protocol.data_changes import AddTasks, PinCheckpoint, RequeueTasks, UnpinCheckpoint
from agentrl.protocol.data_commands import AccountReport, ListRows, Story
from tui.dialogs.form import Field, Form, Question, Values
from tui.dialogs.rollback_form import ask_rollback
from tui.model import cell_text
from tui.model.curves import seconds
from tui.model.data_tables import Row, doing
from tui.model.detail_lines import page
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, span, wrapped
from tui.model.table import Column, order_column
from tui.views.detail_pages import DetailPage as PlainPage
from tui.views.query_views import ANSWER_S, QueryPage, QueryTable, RecordLinksPage

_TONES = {"done": Tone.GOOD, "trained": Tone.GOOD, "complete": Tone.GOOD, "dead": Tone.BAD, "deleted": Tone.DIM}
_TONES |= {"admitted": Tone.BUSY, "leased": Tone.BUSY, "writing": Tone.BUSY}


def _text(name: str, title: str, width: int, rank: int = 0, *, stretches: bool = False) -> Column[Row]:
    def shown(row: Row) -> str:
        return str(row.get(name) or "")

    return Column(name, title, width, lambda row, now: span(shown(row)), shown, rank=rank, stretches=stretches)


def _number(name: str, title: str, width: int, rank: int) -> Column[Row]:
    def value(row: Row) -> float:
        found = row.get(name)
        return float(found) if isinstance(found, int | float) else -1.0

    def show(row: Row, now: float) -> Span:
        return span("" if row.get(name) is None else f"{value(row):g}")

    return Column(name, title, width, show, value, True, rank)


def _status() -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        name = str(row.get("status", ""))
        return span(name, _TONES.get(name, Tone.PLAIN))

    return Column("status", "STATUS", 9, show, lambda row: str(row.get("status")))


def _ago(name: str, title: str, rank: int) -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        return Span(cell_text.ago(seconds(row.get(name)), now), Tone.DIM)

    return Column(name, title, 5, show, lambda row: seconds(row.get(name)), True, rank)


def task_columns() -> tuple[Column[Row], ...]:
    return (
        order_column(),
        Column("id", "TASK", 28, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"]), least=20),
        _status(),
        _text("purpose", "FOR", 6, 4),
        _number("round", "ROUND", 5, 3),
        _number("trained_count", "TRAINED", 7, 5),
        _ago("admitted_at", "SINCE", 2),
        Column("what", "WHAT", 20, lambda row, now: span(_why(row), Tone.DIM), _why, stretches=True),
    )


def _why(row: Row) -> str:
    return str(row.get("reason") or row.get("query") or "")


def checkpoint_columns() -> tuple[Column[Row], ...]:
    def pinned(row: Row, now: float) -> Span:
        return Span("◆ pinned" if row.get("pinned") else "", Tone.ACCENT)

    return (
        order_column(),
        Column("id", "CHECKPOINT", 26, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"])),
        _status(),
        _number("step", "STEP", 6, 1),
        _number("version", "WEIGHTS", 7, 2),
        _ago("at", "AGO", 3),
        Column("pinned", "", 8, pinned, lambda row: bool(row.get("pinned"))),
        _text("path", "WHERE", 16, 5, stretches=True),
    )


def key_columns() -> tuple[Column[KeyRow], ...]:
    def state(row: KeyRow, now: float) -> Span:
        return Span(f"revoked {moment(row.revoked_at)}" if row.revoked_at else "", Tone.WARN)

    return (
        Column("name", "KEY", 20, lambda row, now: span(row.name, Tone.STRONG), lambda row: row.name),
        Column("may", "MAY", 9, lambda row, now: span(row.permission.value), lambda row: row.permission.value),
        Column("made", "MADE", 19, lambda row, now: Span(moment(row.created_at), Tone.DIM), lambda row: row.created_at),
        Column("state", "", 28, state, lambda row: row.revoked_at, rank=1),
        Column("public", "PUBLIC", 12, lambda row, now: span(row.public, Tone.DIM), lambda row: 0, stretches=True),
    )


NEWEST = {"list_tasks": "-admitted_at", "list_checkpoints": "-at"}


class Stored(QueryTable):
    """Rows of one list of the data plane, the newest first."""

    command: str
    words: str
    """The command group of the command line."""
    follows_newest = True

    async def ask(self, client: Client) -> dict[str, Any]:
        query = ListRows(filter=self.filter_text, sort=NEWEST[self.command], limit=self._wanted)
        return await self.listed(client, self.command, query)

    def cli_line(self) -> tuple[str, ...]:
        return (self.words, "list", *(("--filter", self.filter_text) if self.filter_text else ()))


class Tasks(Stored):
    name_in_registry = "tasks"
    what = "tasks"
    filled_by = "the steward makes them of the datasets of the run file; a queues the rows of another file"
    command = "list_tasks"
    newest_by = "admitted_at"
    words = "tasks"

    def columns(self) -> tuple[Column[Any], ...]:
        return task_columns()

    def do_task_requeue(self) -> None:
        """Requeue the marked tasks, or the selected one."""
        if not (marked := self.marked_ids()):
            return

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(PendingCommand(RequeueTasks(tuple(marked), values[0].strip())))

        which = marked[0] if len(marked) == 1 else counted(len(marked), "tasks")
        note = Field("note", hint="why; kept with them, may be empty")
        self.app.push_screen(Form(Question(f"Sample {which} again", (), (note,), "preview it")), then)

    def do_task_add(self) -> None:
        def wrong(values: Values) -> str:
            return "" if all(value.strip() for value in values) else "Type the environment and the file."

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(PendingCommand(AddTasks(values[0].strip(), values[1].strip())))

        fields = (Field("environment", hint="whose tasks they become"), Field("file", hint="on the steward's host"))
        self.app.push_screen(Form(Question("Queue the rows of a file", (), fields, "preview it", wrong)), then)

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(TaskPage(str(row["id"])))


class Checkpoints(Stored):
    name_in_registry = "checkpoints"
    what = "checkpoints"
    filled_by = "the trainer saves one every training.checkpoint_every steps; 8 shows the steps"
    command = "list_checkpoints"
    newest_by = "at"
    words = "checkpoints"

    def columns(self) -> tuple[Column[Any], ...]:
        return checkpoint_columns()

    def do_checkpoint_command(self, args: type[PinCheckpoint | UnpinCheckpoint]) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(args(str(row["id"]))))

    def do_checkpoint_rollback(self) -> None:
        """Go on from the selected checkpoint."""
        if (row := self.selected()) is not None:
            ask_rollback(self.app, str(row["id"]), self.perform)

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(CheckpointPage(str(row["id"])))


class Keys(QueryTable):
    """Shows the keys of clients and hosts that may reach this run from elsewhere."""

    name_in_registry = "keys"
    what = "keys"
    filled_by = "n makes one for somebody who reaches this run from elsewhere"
    first_sort = "name"
    filters_at_once = True

    def columns(self) -> tuple[Column[Any], ...]:
        return key_columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        return {row.name: row for row in await client.list_keys()}

    def searched_text(self, row: KeyRow) -> str:
        return f"{row.name} {row.permission.value}"

    def cli_line(self) -> tuple[str, ...]:
        return ("keys", "list")

    def open_row(self, row: KeyRow) -> None:
        lines = partial(_key_lines, row)
        self.actions.navigation.open_page(PlainPage(f"key {row.name}", lines, ("keys", "list")))

    def do_key_new(self) -> None:
        self.actions.cli.ask_for_new_key()

    def do_key_revoke(self) -> None:
        row: KeyRow | None = self.selected()
        if row is not None:
            self.perform(PendingCommand(RevokeKey(row.name)))

    def do_key_rotate(self) -> None:
        self.perform(PendingCommand(RotateKeys()))


class TaskPage(RecordLinksPage):
    name_in_registry = "task"

    def __init__(self, task: str) -> None:
        super().__init__(task, ("tasks", "show", task))
        self._named = task

    async def ask(self, client: Client) -> Story:
        return await client.show_task(self._named, deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        return _task_lines(self._answer, width)

    def records(self) -> Sequence[Mapping[str, Any]]:
        return cast(Story, self._answer).records


class CheckpointPage(QueryPage):
    def __init__(self, checkpoint: str) -> None:
        super().__init__(checkpoint, ("checkpoints", "show", checkpoint))
        self._checkpoint = checkpoint

    async def ask(self, client: Client) -> Story:
        return await client.show_checkpoint(self._checkpoint, deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        return _checkpoint_lines(self._answer, width)


class AccountPage(QueryPage):
    """Whether anything was lost or counted twice."""

    def __init__(self) -> None:
        super().__init__("accounting", ("accounting",))

    async def ask(self, client: Client) -> AccountReport:
        return await client.accounting(deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        return _account_lines(self._answer, width)


# ---- the lines of the pages ----


def _key_lines(row: KeyRow, width: int) -> list[Line]:
    return page(
        (
            ("name", span(row.name, Tone.STRONG)),
            ("may", row.permission.value),
            ("made", moment(row.created_at)),
            ("revoked", moment(row.revoked_at) if row.revoked_at else ""),
            ("public", row.public),
        ),
        width,
    )


def _task_lines(story: Story, width: int) -> list[Line]:
    return [
        *_document_lines(story, ("query", "answer", "status", "reason", "round", "n"), width),
        *_record_lines(story),
    ]


def _account_lines(report: AccountReport, width: int) -> list[Line]:
    wrong = [
        (span(part, Tone.BAD),) for each in report.problems for part in wrapped(account_lines.disagreement(each), width)
    ]
    agrees: list[Line] = [(Span(f"✓ {account_lines.ALL_AGREE}", Tone.GOOD),)] if report.balanced else []
    lines_shown = [(span(part),) for line in account_lines.totals(report) for part in wrapped(line, width)]
    return [*agrees, *wrong, (), *lines_shown]


def _checkpoint_lines(story: Story, width: int) -> list[Line]:
    lines = _document_lines(story, ("status", "step", "version", "pinned", "at", "path"), width)
    files = story.document.get("files") or {}
    lines_shown = [span(f"  {name}  {size(int(file.get('bytes', 0)))}") for name, file in sorted(files.items())]
    return [*lines, (), (Span("files", Tone.ACCENT),), *((each,) for each in lines_shown)]


def _document_lines(story: Story, names: tuple[str, ...], width: int) -> list[Line]:
    title = (span(story.document.get("id", ""), Tone.STRONG),)
    return [title, (), *page(((name, _plain(story.document.get(name))) for name in names), width)]


def _plain(value: Any) -> Any:
    return moment(seconds(value)) if isinstance(value, datetime) else value


def _record_lines(story: Story) -> list[Line]:
    count = len(story.records)
    head = (Span(f"its attempts ({count} of {count + story.more_records})", Tone.ACCENT),)
    return [(), head, *((span(f"  {row.get('id')}  {row.get('status')}  {doing(row)}"),) for row in story.records)]
