"""The images of a run.

Invariants:
- an image is stored once, by the hash of its bytes, and never changed;
- its number, by which tokens name it, is never used for another image of the run, even after its bytes were removed;
- images of tasks stay: an operator may have a task sampled again that is dead, or that a rollback freed, and its file
  or address may be gone by then. There are no more of them than datasets have;
- the bytes of another image are removed only if no record with details has used it. Every use notes the time, so an
  image that was not used since the oldest task with details was admitted is in none of their records. A use and a
  removal are one update each, so a process that has noted a use will find the image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta

from agentrl.policies.status_tables import TaskStatus
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Image, load, load_if, to_bson
from agentrl.store.update_expressions import NOW, setting
from agentrl.tokens import image_ids

COLLECTION = "Image"
USED_EVERY_S = 600.0
"""How often a process notes that it still uses an image."""
SLACK_S = 3600.0
"""Must be longer than USED_EVERY_S."""


async def put(database: Database, data: bytes, *, of_task: bool = False) -> Image:
    """Store an image with these bytes and note its use. `of_task`: a task names it, so it is kept for ever."""
    name = hashlib.sha256(data).hexdigest()
    number = image_ids.first_number(name)
    while True:
        if (known := await use(database, name, of_task=of_task)) is not None:
            if known.removed:
                restored = {"$set": {"data": data, "removed": False}}
                await database.update_one(COLLECTION, {"_id": name, "removed": True}, restored)
            known.data, known.removed = data, False
            return known
        stored = Image(id=name, number=number, data=data, length=len(data), of_task=of_task)
        stored.used_at = await database.now()
        if not await database.insert_new(COLLECTION, [to_bson(stored)]):
            # Another image took the number, or another process stored this image.
            number = (number + 1) % image_ids.NUMBERS


async def use(database: Database, name: str, *, of_task: bool = False) -> Image | None:
    """Note that a record or a task is about to name the image. Returns it without its bytes; None if it is not stored.
    Images that an earlier release stored have no time of use, and are never removed."""
    used_at = {"$cond": [{"$eq": [{"$type": "$used_at"}, "date"]}, NOW, "$used_at"]}
    update = setting({"of_task": True} if of_task else {}, used_at=used_at)
    return load_if(Image, await database.find_one_and_update(COLLECTION, {"_id": name}, update, projection={"data": 0}))


async def remove_unused(database: Database) -> int:
    """Remove the bytes of images that no record with details can name. Returns the number of images.

    Comparing with the oldest task avoids a list of images for each record. But one task that is never consumed keeps
    the images of all later records.
    """
    oldest: list[Plain] = [
        # With the statuses in it, this query can use the index on pruned tasks.
        {"$match": {"status": {"$in": list(TaskStatus)}, "pruned": {"$ne": True}, "admitted_at": {"$type": "date"}}},
        {"$group": {"_id": None, "at": {"$min": {"$ifNull": ["$first_admitted_at", "$admitted_at"]}}}},
    ]
    documents = await database.aggregate("Task", oldest)
    before = (documents[0]["at"] if documents else await database.now()) - timedelta(seconds=SLACK_S)
    unused = {"removed": False, "of_task": False, "used_at": {"$lt": before}}
    return await database.update_many(COLLECTION, unused, {"$set": {"removed": True, "data": b""}})


async def bytes_of_tasks(database: Database) -> int:
    """How much of the database the images of tasks are. An index alone has the answer."""
    of_tasks: list[Plain] = [
        {"$match": {"of_task": True, "removed": False}},
        {"$group": {"_id": None, "bytes": {"$sum": "$length"}}},
    ]
    documents = await database.aggregate(COLLECTION, of_tasks)
    return int(documents[0]["bytes"]) if documents else 0


async def get(database: Database, names: Iterable[str]) -> dict[str, Image]:
    """Images by the hashes of their bytes, without those that are not stored or whose bytes were removed."""
    documents = await database.find(COLLECTION, {"_id": {"$in": sorted(set(names))}, "removed": {"$ne": True}})
    return {one.id: one for one in (load(Image, document) for document in documents)}


async def of_numbers(database: Database, numbers: Iterable[int]) -> dict[int, Image]:
    """Images by the numbers that tokens have."""
    wanted = sorted(set(numbers))
    if not wanted:
        return {}
    documents = await database.find(COLLECTION, {"number": {"$in": wanted}, "removed": {"$ne": True}})
    return {one.number: one for one in (load(Image, document) for document in documents)}


async def described(database: Database, names: Iterable[str] = (), numbers: Iterable[int] = ()) -> list[Image]:
    """Images without their bytes."""
    named: list[dict[str, object]] = [{"_id": {"$in": sorted(set(names))}}, {"number": {"$in": sorted(set(numbers))}}]
    documents = await database.find(COLLECTION, {"$or": named}, projection={"data": 0})
    return [load(Image, document) for document in documents]


async def note_size(database: Database, image: Image, *, width: int, height: int, format: str) -> None:
    """Store the format and size that the first decoding found; only people read them."""
    seen = {"width": width, "height": height, "format": format}
    await database.update_one(COLLECTION, {"_id": image.id, "width": 0}, {"$set": seen})
