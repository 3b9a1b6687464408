"""The desk at which the steward answers: from the name of a command to the function that knows.

Invariants: it serves exactly the commands that the table gives to the steward (a test binds the two); whoever asks may
do so, which the coordinator has seen to; a query changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentrl.errors import UnknownNameError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.serving import AskUnit
from agentrl.protocol.wire import decode_as
from agentrl.steward.queries import rows
from agentrl.store.database import Database

LISTS = {
    "list_tasks": "Task",
    "list_records": "Record",
    "list_steps": "Step",
    "list_checkpoints": "Checkpoint",
    "list_versions": "Publication",
}

Query = Callable[[Any], Awaitable[Any]]


class Desk:
    def __init__(self, database: Database) -> None:
        self.queries: dict[str, Query] = {name: partial(rows.page, database, kind) for name, kind in LISTS.items()}

    async def answer(self, question: AskUnit) -> Any:
        spec = COMMANDS.get(question.name)
        query = self.queries.get(question.name)
        if spec is None or query is None:
            raise UnknownNameError(
                f"This steward does not serve {question.name!r}.", hint="Use the same version on both sides."
            )
        return await query(decode_as(spec.args, question.args))
