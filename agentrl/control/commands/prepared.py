"""Represents a command that is ready to be executed: its effect is computed, and nothing is changed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentrl.control.state.operations import Goal, Operation
from agentrl.protocol.effects import Effect

Goals = dict[str, Goal]


class Prepared(msgspec.Struct, frozen=True):
    """The present effect of a command, and the function that executes it."""

    effect: Effect
    execute: Callable[[Operation], Goals | None]
    """Executes the command. Returns the goals at which the operation ends; None if it has no goals or ends by
    itself."""
    revisions: dict[str, str] = {}
    """The revisions from which the effect was computed, as in `Consent.revisions`."""


Prepare = Callable[[Any], Prepared]
"""Prepares a command from its arguments. Changes nothing, and raises every error that the execution would raise."""


def preparing(preview: Callable[[Any], Effect], execute: Callable[[Operation, Any], Goals | None]) -> Prepare:
    """Makes a `Prepare` for a command whose preview and execution share no data."""
    return lambda args: Prepared(preview(args), lambda operation: execute(operation, args))
