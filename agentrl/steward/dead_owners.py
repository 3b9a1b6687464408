"""Takes back what dead owners held: expires leases that are past, and frees everything that belonged to them.

Invariants: after a gap in which no owner could renew, all get a full lease before any is declared dead; calls that a
dead owner waited for are marked lost before its Record is free, so a repetition finds the Record unchanged; everything
here starts from the store and may be repeated.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from agentrl.policies.status_tables import RECORD, Actor, RecordStatus, check
from agentrl.store import calls, claims, owners, publications, rescoring, service_registry, steps
from agentrl.store.database import Database
from agentrl.store.documents import Record, load
from agentrl.store.update_expressions import NOW, seconds_since, setting

log = logging.getLogger("steward")

ROLE = "steward"
GAP_S = 25.0
"""A steward missed more than two renewals: the database was away, or no steward was running."""
OVERDUE_S = 300.0
"""How long engines may try a publication before it counts as rejected."""


class Expired(NamedTuple):
    owners: list[str]
    handed_over: int = 0
    abandoned: int = 0
    steps: int = 0

    @property
    def freed(self) -> int:
        return self.handed_over + self.abandoned + self.steps


async def bridge_gap(database: Database) -> bool:
    """Call it before a steward renews its own lease, because the age of that lease shows the gap."""
    silent = await owners.silence_s(database, ROLE)
    if silent is None or silent <= GAP_S:
        return False
    extended = await owners.extend_all(database)
    log.warning("no steward renewed for %.0f s: %d owners get a full lease", silent, extended)
    return True


async def expire(database: Database) -> Expired:
    dead = await owners.reap(database)
    for incarnation in dead:
        log.warning("%s is declared dead: its lease is past", incarnation)
    handed_over, abandoned = await _free_records(database)
    await rescoring.free_dead(database)
    return Expired(dead, handed_over, abandoned, await _free_steps(database))


async def tidy(database: Database) -> list[int]:
    """Marks silent services and rejects publications that no engine takes. Returns the rejected versions."""
    await service_registry.forget_silent(database)
    return await publications.reject_overdue(database, after_s=OVERDUE_S)


async def _free_records(database: Database) -> tuple[int, int]:
    held = [RecordStatus.RUNNING, RecordStatus.FINISHED, RecordStatus.UNSCORED]
    names = await database.distinct("Record", "owner", {"status": {"$in": held}})
    dead = sorted(await owners.dead_among(database, names))
    if not dead:
        return 0, 0
    # A record that has already ended only needs a sampler that scores it.
    unscored = {"owner": {"$in": dead}, "status": {"$in": held[1:]}}
    await database.update_many("Record", unscored, {"$set": {"owner": ""}})
    handed_over = abandoned = 0
    running = {"owner": {"$in": dead}, "status": RecordStatus.RUNNING}
    for record in [load(Record, document) for document in await database.find("Record", running)]:
        await calls.lose(database, record.id, record.owner, resumable=record.resumable)
        if not await _free(database, record):
            continue
        handed_over += record.resumable
        abandoned += not record.resumable
    return handed_over, abandoned


async def _free(database: Database, record: Record) -> bool:
    target = RecordStatus.OPEN if record.resumable else RecordStatus.ABANDONED
    check(RECORD, RecordStatus.RUNNING, target, Actor.STEWARD, record.id)
    still = {"_id": record.id, "status": RecordStatus.RUNNING, "owner": record.owner}
    update: dict[str, Any] | list[dict[str, Any]]
    if record.resumable:
        update = {"$set": {"status": target, "owner": ""}}
    else:
        ended = {"finished_at": NOW, "duration_s": seconds_since("started_at")}
        update = setting(claims.abandoned_fields(), **ended)
    return await database.update_one("Record", still, update)


async def _free_steps(database: Database) -> int:
    """Release Steps that a dead trainer leased, and Tasks whose Step has ended."""
    freed = await steps.follow_leased(database)
    for step in await steps.leased(database):
        lineage = await database.find_one("Lineage", {"_id": step.lineage}, projection=["owner"])
        owner = None if lineage is None else lineage["owner"]
        # Only if the trainer was declared dead; without an Owner document that is unknown.
        if await database.find_one("Owner", {"_id": owner, "expired": True}, projection=["_id"]) is not None:
            freed += await steps.release(database, step.id, f"{owner} is dead", Actor.STEWARD, died=True)
    return freed
