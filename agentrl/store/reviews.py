"""Verdicts of people on records."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.store.database import Database
from agentrl.store.documents import Review, to_bson


async def note(database: Database, records: Sequence[str], verdict: str, note: str, *, who: str, by: str) -> int:
    """Replace the verdicts on these records; an empty one removes them. Returns how many records there are."""
    at = await database.now()
    review = to_bson(Review(verdict=verdict, note=note, who=who, at=at, by=by)) if verdict else None
    return await database.update_many("Record", {"_id": {"$in": list(records)}}, {"$set": {"review": review}})
