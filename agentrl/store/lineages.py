"""Lineages: a lineage is one lifetime of the trainer's weights, and the fencing token of everything that a trainer
writes.

Invariants: at most one lineage is open, the newest; opening one first closes all older ones, then releases and rolls
back what they left, and only then may it lease; every write of a trainer of a closed lineage is refused, even if the
trainer checked before that the write was allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agentrl.store import checkpoints, history, pruning, publications, steps
from agentrl.store.database import Database
from agentrl.store.documents import load, load_if, to_bson
from agentrl.store.weight_documents import OPENED, Lineage


async def begin(
    database: Database,
    owner: str,
    *,
    parent_checkpoint: str,
    after_step: int,
    first_version: int | None = None,
    rolled_back_to: str = "",
) -> Lineage:
    """The first act of a trainer: take over. `after_step`: the last Step that its checkpoint covers, 0 for none. Raises
    LineageClosedError if a newer lineage took over before this one was stored."""
    known = await current(database)
    now = await database.now()
    if known is not None and known.opened_at is not None:
        # Every open lineage is older than this one, even if the server's clock was set back.
        now = max(now, known.opened_at + timedelta(milliseconds=1))
    lineage = Lineage(
        id=f"{owner}@{now:%Y%m%dT%H%M%S}",
        owner=owner,
        parent_checkpoint=parent_checkpoint,
        first_version=first_version,
        first_step=after_step + 1,
        opened_at=now,
        rolled_back_to=rolled_back_to,
        # The hold lasts until the trainer reports its plan, because records sampled for a finished run would never
        # train.
        plan={name: known.plan[name] for name in ("hold", "trial") if name in known.plan} if known else {},
    )
    await database.insert_new("Lineage", [to_bson(lineage)])
    older = {"_id": {"$ne": lineage.id}, "closed": False, "opened_at": {"$not": {"$gt": now}}}
    await database.update_many("Lineage", older, {"$set": {"closed": True}})
    newest = await current(database)
    if newest is None or newest.id != lineage.id:
        await database.update_one("Lineage", {"_id": lineage.id}, {"$set": {"closed": True}})
        raise steps.LineageClosedError(f"{lineage.id} was late: another trainer took over before it was opened.")
    await publications.skip_unfinished(database, lineage.id)
    for step in await steps.leased(database):
        if step.lineage != lineage.id:
            await steps.release(database, step.id, f"{lineage.id} took over", died=True)
    every = [load(Lineage, document) for document in await database.find("Lineage", OPENED, projection={"plan": 0})]
    counts, reason = history.last_steps(every), f"{lineage.id} starts from step {after_step}"
    await steps.roll_back(database, counts, reason)
    await steps.reinstate(database, counts, reason)
    await steps.follow(database)
    await pruning.sample_again(database)
    await checkpoints.abandon_unfinished(database, lineage.id)
    return lineage


async def is_open(database: Database, lineage: str) -> bool:
    return await database.find_one("Lineage", {"_id": lineage, "closed": False}, projection=["_id"]) is not None


async def current(database: Database) -> Lineage | None:
    newest = await database.find_one("Lineage", {"closed": False}, sort=[("opened_at", -1)])
    return load_if(Lineage, newest)


async def report_plan(database: Database, lineage: str, plan: Mapping[str, Any]) -> bool:
    """Store what admission must know of the trainer: bound, groups, publish_every; `hold`, why nothing may be admitted;
    and `trial`, whether a few groups are tried meanwhile. Returns False if the lineage was closed."""
    return await database.update_one("Lineage", {"_id": lineage, "closed": False}, {"$set": {"plan": dict(plan)}})


async def set_first_version(database: Database, lineage: str, version: int) -> bool:
    return await database.update_one("Lineage", {"_id": lineage, "closed": False}, {"$set": {"first_version": version}})
