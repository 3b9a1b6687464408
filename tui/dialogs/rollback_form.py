"""Asks for the reason of a rollback; the command's own preview comes after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App

from agentrl.protocol.data_changes import RollBack
from tui.dialogs.form import Field, Form, Question, Values
from tui.model.pending_commands import PendingCommand


def ask_rollback(app: App[Any], checkpoint: str, perform: Callable[[PendingCommand], None]) -> None:
    def then(values: Values | None) -> None:
        if values is not None:
            perform(PendingCommand(RollBack(checkpoint, values[0].strip())))

    def wrong(values: Values) -> str:
        return "" if values[0].strip() else "A rollback needs a reason."

    reason = Field("reason", hint="why; the audit keeps it")
    question = Question(f"Go back to {checkpoint}", (), (reason,), "preview it", check=wrong)
    app.push_screen(Form(question), then)
