"""Shows replays of tool calls, and replays the calls of other views.

Invariants:
- The form shows what a replay will run before it is sent.
- The calls were chosen at the key press.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.client import Client
from agentrl.formatting.amounts import counted
from agentrl.protocol.data_changes import ContinueReplays, ExcludeReplayed, KeepReplays, ReplayCalls, StopReplays
from agentrl.protocol.data_commands import ListRows, Story
from tui.dialogs.form import Field, Form, Question, Values
from tui.model import replay_lines
from tui.model.effect_text import effect_sentence
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line
from tui.model.table import Column
from tui.views.query_views import ANSWER_S, QueryPage, QueryTable
from tui.views.view import View

MOST_TIMES = 20
TIMES = Field("times", "1", "how often", replaced=True)
SERVER = Field("server", hint="another tool server to run on")
ALLOW = Field("allow", hint="tools that act outside of the session, as SERVER.TOOL")
DIFFERENCES = Field("differences", hint="yes: run it even if its session cannot be rebuilt exactly")
EDIT = "arguments"
YES, NO = ("y", "yes"), ("", "n", "no")


def replay(view: View, calls: Sequence[str], *, arguments: Mapping[str, Any] | None = None) -> None:
    """Ask how to run these calls, show the effect, then send the command and show the replays. `arguments`: those of a
    single call, if known.
    """
    if not calls:
        return
    recorded = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    edit = Field(EDIT, recorded, 'other arguments as JSON, such as {"item": "bake"}')
    fields = (TIMES, SERVER, ALLOW, DIFFERENCES, *((edit,) if len(calls) == 1 else ()))

    def command(values: Values) -> PendingCommand:
        times, server, allow, differences, *edited = (value.strip() for value in values)
        changed = next(iter(edited), "")
        args = ReplayCalls(
            calls=tuple(calls),
            times=int(times),
            server=server,
            allow=tuple(allow.split()),
            despite_differences=differences.lower() in YES,
            edit=json.loads(changed) if changed and changed != recorded else None,
        )
        return PendingCommand(args)

    async def preview(values: Values) -> str:
        client = await view.actions.connection.to_ask()
        pending = command(values)
        return effect_sentence((await client.preview(pending.command, pending.args)).effect, view.mirror)

    def then(values: Values | None) -> None:
        if values is not None:
            view.perform(command(values))
            names = ",".join(json.dumps(call, ensure_ascii=False) for call in calls)
            view.actions.navigation.open_page(Replays(f"call in ({names})"))

    which = calls[0] if len(calls) == 1 else counted(len(calls), "calls")
    view.app.push_screen(Form(Question(f"Execute {which} again", (), fields, "replay", wrong, preview)), then)


def wrong(values: Values) -> str:
    """The fault of the values of the form."""
    times, _, _, differences, *edited = (value.strip() for value in values)
    if not (times.isdecimal() and 1 <= int(times) <= MOST_TIMES):
        return f"A call is replayed 1 to {counted(MOST_TIMES, 'times')}."
    if differences.lower() not in (*YES, *NO):
        return f"{DIFFERENCES.title} must be yes or no."
    if not any(edited):
        return ""
    try:
        arguments = json.loads(edited[0])
    except ValueError as broken:
        return f"The {EDIT} are not JSON: {broken}."
    return "" if isinstance(arguments, dict) else f"The {EDIT} must be a JSON object: each argument by its name."


class Replays(QueryTable):
    """Replays, the newest first; enter shows one with its differences."""

    name_in_registry = "replays"
    what = "replays"
    filled_by = "R on a tool call replays it"
    follows_newest = True
    newest_by = "created_at"

    def __init__(self, filter: str = "") -> None:
        super().__init__()
        self._filter = filter

    def columns(self) -> tuple[Column[Any], ...]:
        return replay_lines.columns()

    async def ask(self, client: Client) -> dict[str, Any]:
        query = ListRows(filter=self.filter_text, sort="-created_at", limit=self._wanted)
        return await self.listed(client, "list_replays", query)

    def cli_line(self) -> tuple[str, ...]:
        return ("replays", "list", *(("--filter", self.filter_text) if self.filter_text else ()))

    def open_row(self, row: Any) -> None:
        self.actions.navigation.open_page(ReplayPage(str(row["id"])))

    def do_replays_decide(self, args: type[KeepReplays | ExcludeReplayed]) -> None:
        """Keep or exclude the records of the marked replays, or of the selected one."""
        if marked := self.marked_ids():
            self.perform(PendingCommand(args(tuple(marked))))

    def do_replays_stop(self) -> None:
        """Hold back what is queued of the operation of the selected replay."""
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(StopReplays((str(row["operation"]),))))

    def do_replays_continue(self) -> None:
        if (row := self.selected()) is not None:
            self.perform(PendingCommand(ContinueReplays((str(row["operation"]),))))


class ReplayPage(QueryPage):
    """One replay: the calls that rebuilt its session, each run, and what changed."""

    name_in_registry = "replay"

    def __init__(self, replay: str) -> None:
        super().__init__(replay, ("replays", "show", replay))
        self.replay = replay

    @property
    def call(self) -> str:
        """The call that was replayed; empty before the first answer."""
        return str(self._answer.document["call"]) if isinstance(self._answer, Story) else ""

    async def ask(self, client: Client) -> Story:
        return await client.show_replay(self.replay, deadline_s=ANSWER_S)

    def content(self, width: int) -> list[Line]:
        return replay_lines.of_replay(cast(Story, self._answer).document, width)
