"""Maps the name of each command of the steward to the function that serves it.

Invariants: it serves exactly the commands that the table gives to the steward (a test binds the two); the
coordinator has checked the permission; a query changes nothing.
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
from agentrl.queries import (
    details,
    evaluations,
    exports,
    image_parts,
    other_models,
    pages,
    past_batches,
    record_tokens,
    records,
    reviews,
    staleness,
    tool_calls,
    tool_errors,
)
from agentrl.queries.fork_changes import ForkChanges
from agentrl.queries.operator_changes import Change, Changes
from agentrl.queries.published_tokenizer import PublishedTokenizer
from agentrl.queries.replay_changes import ReplayChanges
from agentrl.steward.epochs import Source
from agentrl.steward.replays import ReplayRunner
from agentrl.steward.settings import StewardSettings
from agentrl.store.database import Database

LISTS = {
    "list_tasks": "Task",
    "list_records": "Record",
    "list_steps": "Step",
    "list_checkpoints": "Checkpoint",
    "list_versions": "Publication",
    "list_replays": "Replay",
}

Query = Callable[[Any], Awaitable[Any]]


class Dispatcher:
    def __init__(
        self,
        database: Database,
        settings: Callable[[], StewardSettings],
        sources: Mapping[str, Source] | None,
        run_dir: Path,
        *,
        run: str = "",
        replays: ReplayRunner | None = None,
    ) -> None:
        """Without `sources` it only answers questions, and changes nothing. `replays` executes replays."""
        published, errors = PublishedTokenizer(database, run_dir), tool_errors.ToolErrorQueries(database)
        evaluated = evaluations.EvaluationQueries(database)
        self.queries: dict[str, Query] = {
            **{name: partial(pages.page, database, kind) for name, kind in LISTS.items()},
            "show_task": lambda args: details.task(database, args.id),
            "show_step": lambda args: details.step(database, args.id),
            "show_checkpoint": lambda args: details.checkpoint(database, args.id),
            "show_replay": lambda args: details.replay(database, args.id),
            "show_record": partial(records.show, database, published, run),
            "read_image": image_parts.ImageParts(database).part,
            "list_calls": errors.calls,
            "show_call": partial(tool_calls.show, database),
            "record_tokens": partial(record_tokens.part, database, published),
            "export_records": partial(exports.part, database, published),
            "tool_errors": errors.grouped,
            "staleness": lambda args: staleness.report(database, settings()),
            "other_models": other_models.OtherModelQueries(database, run_dir).report,
            "preview_past": partial(past_batches.preview, database, settings),
            "list_evaluations": evaluated.rows,
            "show_evaluation": evaluated.show,
            "list_reviews": partial(reviews.page, database),
            "accounting": lambda args: details.account(database, settings().max_trained_count),
        }
        self.changes: dict[str, Change] = {}
        if sources is not None:
            forks = ForkChanges(database, settings, replays)
            self.changes |= Changes(database, settings, sources).table | forks.table
            self.changes |= ReplayChanges(database, replays, forks).table

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
        return await (change.preview(args) if question.dry_run else change.carry_out(args, question))
