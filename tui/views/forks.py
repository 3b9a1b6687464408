"""Forks records from other views: from a turn, after a tool call, or with the result of a replay.

Invariants:
- The form shows whether a fork repairs or branches off before it is sent.
- The place was chosen at the key press.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from agentrl.formatting.amounts import counted
from agentrl.protocol.data_changes import ForkRecords
from tui.dialogs.form import Field, Form, Question, Values
from tui.model.effect_text import effect_sentence
from tui.model.pending_commands import PendingCommand
from tui.views.records import Records
from tui.views.view import View

_Command = Callable[[Values], PendingCommand]
MOST_TIMES = 64
TIMES = Field("times", hint="how many go on from there; empty: as the rules say")
NOTE = Field("note", hint="why; kept with it, may be empty")
RESULT = Field("result", hint="the result of the call; empty: the recorded one, or that of a new call")
PLACE = "place"
MESSAGE = Field("message", hint="the first message of the user; empty: unchanged")


def fork_replays(view: View, replays: Sequence[str], call: str) -> None:
    """Ask how to continue from the results of replays. `call`: a call that they replayed; the forks of its record are
    shown afterwards."""

    def command(values: Values) -> PendingCommand:
        times, note = (value.strip() for value in values)
        return PendingCommand(ForkRecords(replays=tuple(replays), times=int(times or 0), note=note))

    which = replays[0] if len(replays) == 1 else counted(len(replays), "replays")
    _ask(view, f"Fork {which}", (TIMES, NOTE), command, _record_of(call))


def fork_call(view: View, call: str) -> None:
    """Ask how to continue a record after one of its tool calls."""

    def command(values: Values) -> PendingCommand:
        times, note, result = (value.strip() for value in values)
        return PendingCommand(ForkRecords(call, times=int(times or 0), note=note, result=result or None))

    _ask(view, f"Fork behind {call}", (TIMES, NOTE, RESULT), command, _record_of(call))


def fork_record(view: View, record: str, place: str) -> None:
    """Ask from which turn or call to continue a record; `place` is proposed."""
    of_place = Field(PLACE, place, "TURN samples it again, TURN.CALL goes on behind a call; empty: where it failed")

    def command(values: Values) -> PendingCommand:
        times, note, chosen, message = (value.strip() for value in values)
        target = record if not chosen or message else f"{record}/{chosen}"
        return PendingCommand(ForkRecords(target, times=int(times or 0), note=note, message=message or None))

    _ask(view, f"Fork {record}", (TIMES, NOTE, of_place, MESSAGE), command, record)


def _ask(view: View, title: str, fields: tuple[Field, ...], command: _Command, record: str) -> None:
    async def preview(values: Values) -> str:
        client = await view.actions.connection.to_ask()
        pending = command(values)
        return effect_sentence((await client.preview(pending.command, pending.args)).effect, view.mirror)

    def then(values: Values | None) -> None:
        if values is not None:
            view.perform(command(values))
            view.actions.navigation.open_page(Records(f"base = {json.dumps(record, ensure_ascii=False)}"))

    view.app.push_screen(Form(Question(title, (), fields, "fork", wrong, preview)), then)


def wrong(values: Values) -> str:
    """The fault of the values of the form."""
    times = values[0].strip()
    if times and not (times.isdecimal() and 1 <= int(times) <= MOST_TIMES):
        return f"{TIMES.title} must be a number from 1 to {MOST_TIMES}, or empty."
    return ""


def _record_of(call: str) -> str:
    task, _, rest = call.partition("#")
    return f"{task}#{rest.partition('/')[0]}"
