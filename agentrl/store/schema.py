"""The version of the documents in a database.

Invariant: a process that writes refuses a database of another version before it writes anything.
"""

from __future__ import annotations

from agentrl.errors import ConfigError
from agentrl.store.database import Database

VERSION = 2
"""1: model calls, turns and tool calls were documents of their own. 2: a turn is one document."""
COLLECTION = "Schema"
_ID = "documents"
_ONLY_IN_1 = ("Turn", "ToolCall")


async def ensure(database: Database) -> None:
    """Raises ConfigError if the documents are of another version. A new database gets the version of this program."""
    document = await database.find_one(COLLECTION, {"_id": _ID})
    version = int(document["version"]) if document else await _unnamed_version(database)
    if version != VERSION:
        raise ConfigError(
            f"The database {database.name} has documents of version {version}, and this program has version {VERSION}.",
            hint="Continue with the release that began the run, or start again with another `name`.",
        )
    if document is None:
        await database.update_one(COLLECTION, {"_id": _ID}, {"$set": {"version": VERSION}}, upsert=True)


async def _unnamed_version(database: Database) -> int:
    """Version 1 did not store its number."""
    for collection in _ONLY_IN_1:
        if await database.find_one(collection, {}, projection=["_id"]) is not None:
            return 1
    return VERSION
