"""What follows a Record that failed or was abandoned: another attempt, or an empty seat.

Invariants: an attempt follows the one before it by its number, so it is opened once, however many stewards see it; at
most two re-draws are paid for; a seat of a round that is over gets nothing.
"""

from __future__ import annotations

from agentrl.policies.status_tables import RecordStatus
from agentrl.store import groups, tasks
from agentrl.store.database import Database
from agentrl.store.groups import Group

MOST_AT_ONCE = 1000
_FAILED = [RecordStatus.FAILED, RecordStatus.ABANDONED]


async def follow(database: Database) -> int:
    """Answers how many attempts were opened."""
    unfollowed = {"status": {"$in": _FAILED}, "followed": False}
    found = await database.find("Record", unfollowed, limit=MOST_AT_ONCE, projection=["task"])
    opened = 0
    for group in await groups.read(database, sorted({record["task"] for record in found})) if found else ():
        opened += await _redraw(database, group)
    # After the attempts: whoever dies between the two is followed by somebody who opens them again, without effect.
    ids = [record["_id"] for record in found]
    if ids:
        await database.update_many("Record", {"_id": {"$in": ids}}, {"$set": {"followed": True}})
    return opened


async def _redraw(database: Database, group: Group) -> int:
    next_attempts = [
        (attempts[-1].seat, attempts[-1].attempt + 1)
        for attempts in group.seats
        if attempts and attempts[-1].status in _FAILED and groups.redraws_left(attempts)
    ]
    return await tasks.open_records(database, group.task, next_attempts) if next_attempts else 0
