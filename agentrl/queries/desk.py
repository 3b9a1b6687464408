"""The desk at which the steward answers: from the name of a command to the function that knows.

Invariants: it serves exactly the commands that the table gives to the steward (a test binds the two); whoever asks may
do so, which the coordinator has seen to; a query changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.errors import RefusedError, UnknownNameError
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.rows import ONLY_READ
from agentrl.protocol.wire import decode_as
from agentrl.queries import accounts, errors, exports, records, rows, staleness, stories, tokens
from agentrl.queries.changes import Changes
from agentrl.steward.epochs import Source
from agentrl.steward.rules import Rules
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
    def __init__(
        self, database: Database, rules: Callable[[], Rules], sources: Mapping[str, Source] | None, run_dir: Path
    ) -> None:
        """Without `sources` it only answers questions, and changes nothing."""
        self.queries: dict[str, Query] = {
            **{name: partial(rows.page, database, kind) for name, kind in LISTS.items()},
            "show_task": lambda args: stories.task(database, args.id),
            "show_step": lambda args: stories.step(database, args.id),
            "show_checkpoint": lambda args: stories.checkpoint(database, args.id),
            "show_record": partial(records.show, database),
            "list_failed_calls": partial(rows.page, database, "ToolCall", also=errors.FAILED),
            "record_tokens": partial(tokens.part, database, tokens.Spelling(database, run_dir)),
            "export_records": partial(exports.part, database),
            "tool_errors": partial(errors.grouped, database),
            "staleness": lambda args: staleness.report(database, rules()),
            "accounting": lambda args: accounts.report(database, rules().max_trained_count),
        }
        self.changes = {} if sources is None else Changes(database, rules, sources).table

    async def answer(self, question: AskUnit) -> Any:
        spec = COMMANDS.get(question.name)
        if spec is not None and spec.mutates and not self.changes:
            raise RefusedError(f"The run is up {ONLY_READ}.", hint="agentrl up brings up all of it.")
        query, change = self.queries.get(question.name), self.changes.get(question.name)
        if spec is None or (query is None and change is None):
            raise UnknownNameError(
                f"This steward does not serve {question.name!r}.", hint="Use the same version on both sides."
            )
        args = decode_as(spec.args, question.args)
        if change is None:
            assert query is not None
            return await query(args)
        return await (change.preview(args) if question.dry_run else change.carry_out(args, question.id))
