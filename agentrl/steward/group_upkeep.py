"""Looks after groups: opens the next attempt at a failed seat, closes what no sampler closed, requeues trained Tasks,
queues the Tasks of evaluations.

Invariants:
- The number of an attempt follows from the one before it, so it is opened once, however many stewards see it.
- At most two failed attempts of a seat are followed by another, besides those that operators requeue.
- A seat of a round that is over gets no attempt.
- A steward and a sampler close a group with the same result, because both use the same policy.
- The Tasks of an evaluation are inserted before the evaluation counts as queued; a repetition adds none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agentrl.policies.group_closing import REDRAWN
from agentrl.policies.status_tables import Actor, RecordStatus
from agentrl.steward import epochs, task_images
from agentrl.steward.epochs import Source
from agentrl.steward.settings import StewardSettings
from agentrl.store import evaluations, groups, retraining, tasks
from agentrl.store.database import Database
from agentrl.store.groups import Group


async def queue(database: Database, settings: StewardSettings, sources: Mapping[str, Source]) -> int:
    """Returns how many Tasks are new."""
    new = 0
    for version in await evaluations.wanted(database):
        for name, environment in settings.environments.items():
            rows = sources[name].held_out
            chosen = rows[: settings.evaluation_tasks] if settings.evaluation_tasks else rows
            fresh = epochs.evaluation_tasks(name, environment, chosen, version)
            complete = await task_images.stored(database, fresh, settings.images, patience_s=task_images.AWAY_AT_MOST_S)
            new += await tasks.insert(database, complete)
        await evaluations.mark_queued(database, version)
    return new


MOST_AT_ONCE = 1000
_FAILED = [RecordStatus.FAILED, RecordStatus.ABANDONED]


async def open_next_attempts(database: Database) -> int:
    ended = ({"status": {"$in": _FAILED}}, {"requeued_by": {"$gt": ""}})
    unfollowed = {"$or": [one | {"followed": False} for one in ended]}
    documents = await database.find("Record", unfollowed, limit=MOST_AT_ONCE, projection=["task", "requeued_by"])
    opened = 0
    for group in await groups.read(database, sorted({record["task"] for record in documents})) if documents else ():
        opened += await _redraw(database, group)
    # Noted after the attempts are opened: if this process dies in between, the next one opens them again without
    # effect. If an operator requeued one of them after it was read, the next round follows it.
    requeued = {record["_id"] for record in documents if record.get("requeued_by")}
    for ids, condition in (
        ([record["_id"] for record in documents if record["_id"] not in requeued], {"$in": [None, ""]}),
        (sorted(requeued), {"$gt": ""}),
    ):
        if ids:
            same = {"_id": {"$in": ids}, "requeued_by": condition}
            await database.update_many("Record", same, {"$set": {"followed": True}})
    return opened


async def close(database: Database, settings: StewardSettings) -> Counter[str]:
    """Closes groups that no sampler closed. Returns how many became ready, requeued or dead."""
    became: Counter[str] = Counter()
    for group in await groups.admitted(database):
        if group.may_close:
            became[await groups.close_group(database, group, settings.group_rule, Actor.STEWARD)] += 1
    return became


async def retrain(database: Database, settings: StewardSettings, reported: Mapping[str, Any] | None = None) -> int:
    """Requeues trained Tasks that may train again and are fresh. `reported` is the plan that the trainer wrote."""
    if settings.max_trained_count < 2:
        return 0
    found = await retraining.candidates(
        database,
        most=settings.max_trained_count,
        bound=lambda environment: settings.plan(reported or {}, environment).bound,
        after_s=settings.retrain_after_s,
    )
    return sum([await tasks.again(database, task, most=settings.max_trained_count) for task in found])


async def _redraw(database: Database, group: Group) -> int:
    next_attempts = [
        (attempts[-1].seat, attempts[-1].attempt + 1)
        for attempts in group.seats
        if attempts and attempts[-1].status in REDRAWN and groups.redraws_left(attempts)
    ]
    return await tasks.open_records(database, group.task, next_attempts) if next_attempts else 0
