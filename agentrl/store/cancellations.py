"""Cancels records that have not ended.

Invariants:
- One conditional update ends the record; the sampler that runs its episode finds it and stops the episode.
- The seat stays empty, and the group closes without it, unless an operator requeues it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.policies.status_tables import IN_FLIGHT, RECORD, Actor, RecordStatus, check
from agentrl.store.chosen_records import Chosen, Refused
from agentrl.store.database import Database
from agentrl.store.update_expressions import NOW, seconds_since, setting

STOPPED = (RecordStatus.CANCELLED.value, RecordStatus.SUPERSEDED.value)
"""An episode no longer counts if its record has one of these statuses."""


def refusal(one: Chosen) -> Refused | None:
    record = one.record
    if record.status in IN_FLIGHT:
        return None
    sentence = f"{record.id} is {record.status}; only records that have not ended can be cancelled."
    return Refused("they have ended", sentence)


async def cancel(database: Database, records: Sequence[str], note: str, *, by: str) -> int:
    """Returns how many of the records had not ended."""
    for source in IN_FLIGHT:
        check(RECORD, source, RecordStatus.CANCELLED, Actor.OPERATOR)
    reason = f"cancelled: {note}" if note else "cancelled by an operator"
    ended = {"status": RecordStatus.CANCELLED, "reason": reason, "cancelled_by": by}
    return await database.update_many(
        "Record",
        {"_id": {"$in": list(records)}, "status": {"$in": sorted(IN_FLIGHT)}},
        setting(ended, finished_at=NOW, duration_s=seconds_since("started_at")),
    )


async def among(database: Database, records: Sequence[str]) -> list[str]:
    """The records whose episodes must be stopped."""
    stopped = {"_id": {"$in": list(records)}, "status": {"$in": list(STOPPED)}}
    return [one["_id"] for one in await database.find("Record", stopped, projection=["_id"])]
