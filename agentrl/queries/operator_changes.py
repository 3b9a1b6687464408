"""What operators change in the data plane: tasks sampled again, tasks added, checkpoints kept.

Invariants: a preview changes nothing and raises the errors that the execution would raise; an operation is executed
once, however often it is requested; all changes are conditional updates of the store.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError, RefusedError, UnknownNameError, UsageError
from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import SHOWN, few
from agentrl.policies.status_tables import HOLDS_SEAT, RecordStatus
from agentrl.protocol.data_changes import (
    AddTasks,
    Done,
    PinCheckpoint,
    RequeueTasks,
    RollBack,
    RollbackPreview,
    UnpinCheckpoint,
)
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.queries.record_changes import RecordChanges
from agentrl.steward import epochs
from agentrl.steward.epochs import ADDED, Source
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import checkpoints, datasets, rollbacks, tasks
from agentrl.store.database import Database
from agentrl.store.datasets import Row
from agentrl.store.documents import ConversationMessage


@dataclass(frozen=True, slots=True)
class Change:
    preview: Callable[[Any], Awaitable[Effect | RollbackPreview]]
    carry_out: Callable[[Any, AskUnit], Awaitable[Done]]
    """Gets the request of the operation too, for its id and its author."""


class Changes:
    def __init__(
        self, database: Database, settings: Callable[[], StewardSettings], sources: Mapping[str, Source]
    ) -> None:
        self._database = database
        self._settings = settings
        self._sources = sources
        of_records = RecordChanges(database, settings).table
        self.table: dict[str, Change] = {
            **{name: Change(one.preview, one.carry_out) for name, one in of_records.items()},
            "requeue_tasks": Change(self._preview_requeue, self._requeue),
            "add_tasks": Change(self._preview_add, self._add),
            "pin_checkpoint": Change(self._preview_pin, self._pin),
            "unpin_checkpoint": Change(self._preview_pin, self._pin),
            "rollback": Change(self._preview_rollback, self._rollback),
        }

    # ---- tasks ----

    async def _preview_requeue(self, args: RequeueTasks) -> Effect:
        if not args.ids:
            raise UsageError("No task is named.", hint="See `agentrl tasks list`.")
        changes, loses = [], []
        for id in dict.fromkeys(args.ids):
            task = await tasks.get(self._database, id)
            tasks.refuse_requeue(task)
            changes.append(f"{tasks.story(task)}, and is sampled again")
            held = {"task": id, "round": task.round, "status": {"$in": list(HOLDS_SEAT)}}
            begun = await self._database.count("Record", held | {"status": {"$in": _WORK}})
            if begun:
                given_up = "is given up" if begun == 1 else "are given up"
                loses.append(f"{counted(begun, 'records')} of its round {task.round} {given_up}")
        return Effect(changes=few(changes), loses=tuple(loses))

    async def _requeue(self, args: RequeueTasks, operation: AskUnit) -> Done:
        lines, refused = [], 0
        for id in dict.fromkeys(args.ids):
            try:
                task = await tasks.requeue(self._database, id, _said(args.note), by=operation.id)
                lines.append(f"{task.id} waits for its round {task.round}")
            except (RefusedError, UnknownNameError) as why:
                if len(args.ids) == 1:
                    raise
                refused += 1
                lines.append(str(why))
        return Done(tuple(lines), {"requeued": len(lines) - refused, "refused": refused})

    async def _preview_add(self, args: AddTasks) -> Effect:
        environment = self._environment(args.environment)
        train, held_out = await self._read(args.file)
        new = len(train) - await epochs.count_added(self._database, args.environment, train)
        notes = await self._known_prompts(args.environment, train)
        if held_out:
            are = "is held out by its split and is" if len(held_out) == 1 else "are held out by their split and are"
            notes.append(f"{counted(len(held_out), 'rows')} of the file {are} left out")
        if not new:
            return Effect(notes=("all of its rows are tasks already", *notes))
        scored = f"scored by {train[0].scorer or environment.scorer}"
        queued = f"{counted(new, 'tasks')} of {args.environment}, {scored}, {'waits' if new == 1 else 'wait'}"
        return Effect(changes=(f"{queued} behind what is queued",), notes=tuple(notes))

    async def _add(self, args: AddTasks, operation: AskUnit) -> Done:
        environment = self._environment(args.environment)
        train, _ = await self._read(args.file)
        known = await self._known_prompts(args.environment, train)
        ids = await epochs.add(self._database, args.environment, environment, train)
        return Done(
            (f"{counted(len(ids), 'tasks')}: {ids[0]} to {ids[-1]}", *known),
            {"tasks": len(ids), "first": ids[0], "last": ids[-1]},
        )

    def _environment(self, name: str) -> EnvironmentSettings:
        environments = self._settings().environments
        if name not in environments:
            there = ", ".join(sorted(environments))
            raise UnknownNameError(f"There is no environment {name!r}.", hint=f"There are: {there}.")
        return environments[name]

    @staticmethod
    async def _read(file: str) -> tuple[list[Row], list[Row]]:
        if not Path(file).is_absolute():
            raise UsageError(f"{file} must be a whole path: the steward has a directory of its own.")
        rows = await asyncio.to_thread(_rows_here, file)
        train = datasets.split_of(rows, "train", default="train")
        if not train:
            raise UsageError(f"{file} has no rows to train on: all of them are held out.")
        return train, datasets.split_of(rows, "eval", default="train")

    async def _known_prompts(self, environment: str, rows: list[Row]) -> list[str]:
        """Of the prompts in these rows, those that are already trained on or held out, with the places where they occur
        first."""
        source = self._sources[environment]
        mine = {"_id": epochs.ids_under(f"{environment}/{ADDED}/")}
        added = await self._database.find("Task", mine, projection=["query", "earlier", "epoch"])
        digest = datasets.digest(rows)
        own = await epochs.number_of(self._database, environment, digest)
        before = [
            Row(
                query=task["query"],
                earlier=msgspec.convert(task.get("earlier", []), tuple[ConversationMessage, ...]),
                where=task["_id"],
            )
            for task in added
            if task.get("epoch") != own
        ]
        notes = []
        for what, known in (
            ("are trained on already", [*source.train, *before]),
            ("are held out for evaluation", source.held_out),
        ):
            pairs = datasets.repeated(rows, known)
            if pairs:
                shown = ", ".join(f"{new.file_and_number} ({old.file_and_number})" for new, old in pairs[:SHOWN])
                notes.append(f"{len(pairs)} of its prompts {what}: {shown}{' …' if len(pairs) > SHOWN else ''}")
        return notes

    # ---- checkpoints ----

    async def _preview_pin(self, args: PinCheckpoint | UnpinCheckpoint) -> Effect:
        pinned = isinstance(args, PinCheckpoint)
        found = await checkpoints.get(self._database, args.id)
        if pinned:
            if found.pinned:
                return Effect(notes=(f"{found.id} is pinned already",))
            return Effect(changes=(f"{found.id} is kept, whatever retention says",))
        best = await checkpoints.best(self._database)
        stays = best is not None and best.id == found.id
        if not found.pinned and (stays or not found.kept_for):
            why = "has the best evaluation, so retention keeps it" if stays else "is not pinned already"
            return Effect(notes=(f"{found.id} {why}",))
        becomes = "is kept only for its best evaluation" if stays else "may be removed by retention"
        kept = f"; it was kept for: {found.kept_for}" if found.kept_for and not stays else ""
        return Effect(changes=(f"{found.id} {becomes}{kept}",))

    async def _pin(self, args: PinCheckpoint | UnpinCheckpoint, operation: AskUnit) -> Done:
        pinned = isinstance(args, PinCheckpoint)
        found = await checkpoints.pin(self._database, args.id, pinned=pinned)
        return Done(result={"checkpoint": found.id, "pinned": pinned})

    async def _preview_rollback(self, args: RollBack) -> RollbackPreview:
        target = await rollbacks.resolve(self._database, args.to)
        found = await rollbacks.consequences(self._database, target)
        changes = [f"training goes on from {target.id} (version {target.version}) in a new lineage"]
        if undone := found.undone:
            steps = f"{undone[0].step} to {undone[-1].step}" if len(undone) > 1 else f"{undone[0].step}"
            free = counted(found.freed_records, "records")
            changes.append(f"{counted(len(undone), 'steps')} ({steps}) are undone, and {free} become free")
        if found.reinstated:
            changes.append(f"{counted(len(found.reinstated), 'steps')} that were undone before count again")
        if target.kept_for:
            changes[0] += f", kept for: {target.kept_for}"
        notes = ("the newest checkpoint stays, so another rollback can return to it",)
        return RollbackPreview(
            Effect(changes=tuple(changes), notes=notes),
            dict(target.settings),
            await rollbacks.trained_at(self._database, target),
        )

    async def _rollback(self, args: RollBack, operation: AskUnit) -> Done:
        target = await rollbacks.resolve(self._database, args.to)
        if not await rollbacks.was_requested(self._database, operation.id):
            await rollbacks.request(self._database, target, args.note, by=operation.id)
        done = Done(result=dict(target.settings))
        trained_at = await rollbacks.trained_at(self._database, target)
        done.result.update(checkpoint=target.id, version=target.version, trained_at=trained_at)
        return done


_WORK = sorted(status.value for status in HOLDS_SEAT - {RecordStatus.OPEN})
"""Statuses of records on which work was already done."""


def _rows_here(file: str) -> list[Row]:
    """Reads the rows of the file, which may exist only on the host of the operator."""
    if not Path(file).exists():
        raise ConfigError(
            f"There is no dataset {file} on {platform.node()}, where the steward reads it.",
            hint="Copy it there, or name it by a path that both hosts have.",
        )
    return datasets.read(file)


def _said(note: str) -> str:
    """The reason why an operator ended a round; it differs from every reason that the steward writes itself."""
    return f"requeued: {note}" if note else "requeued by an operator"
