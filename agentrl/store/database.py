"""The only interface to the MongoDB driver: no other file sends anything to a run's database. Other files only describe
changes and indexes. Files that manage a server and its users have clients of their own: `mongod_server`,
`server_checks`, `database_users`.

Invariants:
- Every operation has a deadline. Within it, operations that a restart of the server interrupted are repeated. The
  driver repeats a single write so that it happens exactly once; this module repeats only operations that may be made
  any number of times, or that the server refused because it had just started.
- Errors of the driver become errors of agentrl.
- Write and read concerns are stated here, and a URL cannot lower them.

Motor and PyMongo's own asyncio client both work behind this interface, and the same tests run with both. Motor is the
default: single operations take the same time, and large cursors are read 1.4 to 2.6 times as fast. Motor is deprecated
and gets critical fixes only, until May 2027. Make PyMongo the default when those fixes end, when Motor does not support
a PyMongo or a server that runs need, or when PyMongo reads cursors as fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

import pymongo
import pymongo.errors
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, IndexModel, InsertOne, ReturnDocument, UpdateMany, UpdateOne

from agentrl.errors import AgentrlError, ConfigError, ConflictError, DiskError, ExitCode

Plain = dict[str, Any]
Filter = Mapping[str, Any]
Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Sort = Sequence[tuple[str, int]]
Projection = Mapping[str, Any] | Sequence[str]
Write = InsertOne[Plain] | UpdateOne | UpdateMany
T = TypeVar("T")
Driver = Literal["motor", "pymongo"]

OPERATION_WITHIN_S = 30.0
"""A killed server is back within a few seconds; until then writers wait and see no error."""
CLOSE_WITHIN_S = 2.0
"""The time to tell the server which sessions are over. The server would notice anyway, so a silent one is not waited
for."""
AGAIN_S = 0.1
INSERTED_AT_ONCE = 1000
READ_AT_ONCE = 10_000
"""Documents in the first answer to a query that reads them all, if they fit into 16 MB. The server's default is 101."""
CONCERNS = {
    "w": "majority",
    "journal": True,
    "retryWrites": True,
    "readPreference": "primary",
    "readConcernLevel": "local",
}
"""The write and read concerns, whatever the URL and the server's defaults are. An acknowledged write survives the
loss of any minority of servers. Reads see the newest data of the primary; every decision is a conditional update.
"""

_DUPLICATE_KEY = 11000
_OTHER_INDEX = frozenset({85, 86})
_NO_SUCH_INDEX = 27
WHOLE_BATCH = 10_000
"""A result that is read as a whole comes in one answer if it fits into one message; by default the driver asks again
after 101 documents."""
KEYS_NOT_READ = 211
"""A server that has just started refuses cluster times that clients got before its restart, until it has read its
keys."""
_DISK_IS_FULL = frozenset({14031, 24})
_LOGIN_FAILED = frozenset({13, 18})
_SHUTS_DOWN = frozenset({91, 189, 10107, 11600, 11602, 13435, 13436})
"""Codes of a server that shuts down. As an error of the write concern they raise no ConnectionFailure: the write was
made, and the server is ending."""


class StoreError(AgentrlError):
    """MongoDB refused an operation."""


class StoreUnavailableError(StoreError):
    """MongoDB did not answer in time. The operation may have happened or not; repeating it is safe."""

    exit_code = ExitCode.UNAVAILABLE


class NotYetError(StoreUnavailableError):
    """MongoDB has just started and refused the operation, so this try had no effect. An earlier try of the driver may
    have had one: as after any lost answer, a change that now matches nothing may already have been made."""


class AlreadyThereError(ConflictError):
    """A unique key exists already."""


class Bulk(NamedTuple):
    """The result of a batch of writes."""

    inserted: int
    matched: int


class Database:
    """One database. Collections are named by words, filters and updates are written in MongoDB's own language."""

    def __init__(self, client: Any, name: str, *, within_s: float = OPERATION_WITHIN_S) -> None:
        # Both drivers have the same methods but not the same types, so only this place has no types.
        self._client = client
        self._database = client[name]
        self._known: dict[str, Any] = {}
        self.name = name
        self._within_s = within_s

    # ---- reading ----

    async def find_one(
        self, collection: str, filter: Filter, *, sort: Sort | None = None, projection: Projection | None = None
    ) -> Plain | None:
        source = self._collection(collection)
        found: Plain | None = await self._asked(collection, lambda: source.find_one(filter, projection, sort=sort))
        return found

    async def find(
        self,
        collection: str,
        filter: Filter,
        *,
        sort: Sort | None = None,
        limit: int = 0,
        projection: Projection | None = None,
    ) -> list[Plain]:
        async def read() -> list[Plain]:
            cursor = self._collection(collection).find(
                filter, projection, sort=sort, limit=limit, batch_size=READ_AT_ONCE
            )
            found: list[Plain] = await cursor.to_list(None)
            return found

        return await self._repeated(collection, read)

    async def stream(
        self,
        collection: str,
        filter: Filter,
        *,
        sort: Sort | None = None,
        projection: Projection | None = None,
    ) -> AsyncIterator[Plain]:
        """Yields documents one by one, for large results. Each batch has the deadline of an operation, the whole has
        none."""
        with _our_errors(collection):
            cursor = self._collection(collection).find(filter, projection, sort=sort)
            async for document in cursor:
                yield document

    async def count(self, collection: str, filter: Filter) -> int:
        number: int = await self._asked(collection, lambda: self._collection(collection).count_documents(filter))
        return number

    async def distinct(self, collection: str, field: str, filter: Filter) -> list[Any]:
        values: list[Any] = await self._asked(collection, lambda: self._collection(collection).distinct(field, filter))
        return values

    async def aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> list[Plain]:
        async def read() -> list[Plain]:
            source = self._collection(collection).aggregate(pipeline, batchSize=WHOLE_BATCH)
            # Motor returns a cursor, PyMongo a coroutine that returns one.
            cursor = await source if inspect.isawaitable(source) else source
            found: list[Plain] = await cursor.to_list(None)
            return found

        return await self._repeated(collection, read)

    async def stream_aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> AsyncIterator[Plain]:
        """Yields the results of a pipeline one by one, for large results."""
        with _our_errors(collection):
            source = self._collection(collection).aggregate(pipeline)
            async for document in await source if inspect.isawaitable(source) else source:
                yield document

    # ---- writing ----

    async def insert_many(self, collection: str, documents: Sequence[Plain], *, ordered: bool = True) -> None:
        """Raises AlreadyThereError if one exists; those before it (`ordered`), or all others, are inserted anyway."""
        if not documents:
            return
        into, tries = self._collection(collection), count(1)

        async def insert() -> None:
            tried_before = next(tries) > 1
            try:
                await into.insert_many(documents, ordered=ordered)
            except pymongo.errors.BulkWriteError as partly:
                if tried_before and _codes_of(partly) == {_DUPLICATE_KEY}:
                    # The existing document may be this one: the driver may have repeated an insert that had succeeded.
                    raise StoreUnavailableError(f"It is not known whether {collection} was written to.") from partly
                raise

        await self._asked(collection, insert)

    async def insert_new(self, collection: str, documents: Sequence[Plain]) -> int:
        """Insert documents whose keys do not exist yet. Returns their number."""
        return len(documents) - len(await self.insert_missing(collection, documents))

    async def insert_missing(self, collection: str, documents: Sequence[Plain]) -> list[Any]:
        """Insert documents whose keys do not exist yet. Returns the ids of the others, which stay unchanged."""
        there: list[Any] = []
        for start in range(0, len(documents), INSERTED_AT_ONCE):
            batch = documents[start : start + INSERTED_AT_ONCE]
            there += await self._asked(collection, partial(self._insert_missing, collection, batch))
        return there

    async def _insert_missing(self, collection: str, batch: Sequence[Plain]) -> list[Any]:
        try:
            await self._collection(collection).insert_many(batch, ordered=False)
        except pymongo.errors.BulkWriteError as partly:
            return _there_before(partly)
        return []

    async def update_one(self, collection: str, filter: Filter, update: Update, *, upsert: bool = False) -> bool:
        """Returns True if a document matched, whether or not it was changed."""
        changed = self._collection(collection)
        done = await self._asked(collection, lambda: changed.update_one(filter, update, upsert=upsert))
        return bool(done.matched_count or done.upserted_id is not None)

    async def update_many(
        self,
        collection: str,
        filter: Filter,
        update: Update,
        *,
        array_filters: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Returns how many documents matched; after a restart of the server in the middle, how many still matched."""
        changed = self._collection(collection)
        done = await self._repeated(
            collection, lambda: changed.update_many(filter, update, array_filters=array_filters)
        )
        return int(done.matched_count)

    async def find_one_and_update(
        self,
        collection: str,
        filter: Filter,
        update: Update,
        *,
        sort: Sort | None = None,
        projection: Projection | None = None,
    ) -> Plain | None:
        """Returns the document after the update; None if none matched."""
        changed = self._collection(collection)
        found: Plain | None = await self._asked(
            collection,
            lambda: changed.find_one_and_update(
                filter, update, sort=sort, projection=projection, return_document=ReturnDocument.AFTER
            ),
        )
        return found

    async def write(self, collection: str, writes: Sequence[Write], *, ordered: bool = True) -> Bulk:
        """Sends a batch of writes; with `ordered`, one after the other."""
        if not writes:
            return Bulk(0, 0)
        changed = self._collection(collection)
        done = await self._asked(collection, lambda: changed.bulk_write(writes, ordered=ordered))
        return Bulk(done.inserted_count + done.upserted_count, done.matched_count)

    async def delete_many(self, collection: str, filter: Filter) -> int:
        done = await self._repeated(collection, lambda: self._collection(collection).delete_many(filter))
        return int(done.deleted_count)

    def _collection(self, name: str) -> Any:
        """The collection, made once, because drivers make a new one with all its options at each access."""
        if name not in self._known:
            self._known[name] = self._database[name]
        return self._known[name]

    # ---- the whole ----

    async def now(self) -> datetime:
        """The server's time."""
        answer: Plain = await self._repeated("the server", lambda: self._database.command("hello"))
        at: datetime = answer["localTime"]
        return at.replace(tzinfo=UTC)  # answers to commands have no time zone

    async def create_indexes(self, collection: str, indexes: Sequence[IndexModel]) -> None:
        """If an index of this name has other keys, another version of agentrl made it, and it is replaced."""
        await self._repeated(collection, lambda: self._create_indexes(collection, indexes))

    async def _create_indexes(self, collection: str, indexes: Sequence[IndexModel]) -> None:
        made = self._collection(collection)
        try:
            await made.create_indexes(indexes)
            return
        except pymongo.errors.OperationFailure as refused:
            if refused.code not in _OTHER_INDEX:
                raise
        known = await made.index_information()
        for index in indexes:
            if index.document["name"] in known and not _is_known(index, known):
                await made.drop_index(index.document["name"])
        await made.create_indexes(indexes)

    async def index_names(self, collection: str) -> set[str]:
        return set(await self._repeated(collection, lambda: self._collection(collection).index_information()))

    async def drop_indexes(self, collection: str, indexes: Sequence[IndexModel]) -> None:
        """Drop the indexes that exist with these names and keys. Several processes may do so at once."""
        await self._repeated(collection, lambda: self._drop_indexes(collection, indexes))

    async def _drop_indexes(self, collection: str, indexes: Sequence[IndexModel]) -> None:
        known = await self._collection(collection).index_information()
        for index in indexes:
            if not _is_known(index, known):
                continue
            try:
                await self._collection(collection).drop_index(index.document["name"])
            except pymongo.errors.OperationFailure as refused:
                # Several units start at once, and another one was faster.
                if refused.code != _NO_SUCH_INDEX:
                    raise

    async def collections(self) -> list[str]:
        with _our_errors(self.name):
            names: list[str] = await self._database.list_collection_names()
        return sorted(name for name in names if not name.startswith("system."))

    async def size_bytes(self) -> int:
        """The size of the data before compression."""
        with _our_errors(self.name):
            answer: Plain = await self._database.command("dbStats")
        return int(answer["dataSize"])

    async def disk_free_bytes(self) -> int | None:
        """The free space on the disk of the server; None if the server does not tell."""
        with _our_errors(self.name):
            answer: Plain = await self._database.command("dbStats")
        if "fsTotalSize" not in answer:
            return None
        return int(answer["fsTotalSize"]) - int(answer["fsUsedSize"])

    async def drop(self) -> None:
        """Delete everything, for good."""
        with _our_errors(self.name):
            await self._client.drop_database(self.name)

    async def _asked(self, where: str, act: Callable[[], Awaitable[T]]) -> T:
        """Runs an operation that the driver itself repeats after a lost answer; refusals of a server that just started
        are repeated here."""
        return await self._repeated(where, act, after=NotYetError)

    async def _repeated(
        self, where: str, act: Callable[[], Awaitable[T]], *, after: type[StoreUnavailableError] = StoreUnavailableError
    ) -> T:
        """Runs an operation that the driver does not repeat, and that may be made any number of times."""
        deadline = time.monotonic() + self._within_s
        while True:
            try:
                with _our_errors(where):
                    return await act()
            except after:
                if time.monotonic() + AGAIN_S > deadline:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Closes the connections without waiting for a server that hangs."""
        with pymongo.timeout(CLOSE_WITHIN_S):
            if inspect.iscoroutinefunction(self._client.close):
                await self._client.close()
            else:
                # Motor's `close` talks to the server, which would block the event loop.
                await asyncio.to_thread(self._client.close)


def connect(url: str, name: str, *, driver: Driver = "motor", within_s: float = OPERATION_WITHIN_S) -> Database:
    """Sends nothing before the first operation. Call it in the event loop that will use the database.

    PyMongo's own client is not for units yet: a few cancelled operations go on as if they were not cancelled, so their
    task does not end. A sampler that was declared dead would stay.
    """
    options: dict[str, Any] = {**CONCERNS, "tz_aware": True, "timeoutMS": round(within_s * 1000), "appname": "agentrl"}
    try:
        client: Any = AsyncIOMotorClient(url, **options) if driver == "motor" else AsyncMongoClient(url, **options)
    except (pymongo.errors.ConfigurationError, pymongo.errors.InvalidURI, ValueError) as wrong:
        # The URL contains a password, so the message has only what is wrong.
        raise ConfigError(f"The URL of MongoDB cannot be used: {wrong}.") from wrong
    return Database(client, name, within_s=within_s)


@contextlib.contextmanager
def _our_errors(where: str) -> Iterator[None]:
    try:
        yield
    except pymongo.errors.PyMongoError as foreign:
        raise _translated(foreign, where) from foreign


def _translated(foreign: pymongo.errors.PyMongoError, where: str) -> AgentrlError:
    codes = _codes_of(foreign)
    if codes and codes <= {_DUPLICATE_KEY}:
        return AlreadyThereError(f"{where} has a document with this key already: {foreign}.")
    if codes & _DISK_IS_FULL:
        return DiskError(f"MongoDB cannot write to {where}: its disk is full.", hint="Make room; nothing was changed.")
    if codes & _LOGIN_FAILED:
        return ConfigError(f"MongoDB does not let this user in ({where}).", hint="Check the URL's user and password.")
    # An unknown cursor was open when the server was killed.
    away = isinstance(foreign, pymongo.errors.ConnectionFailure | pymongo.errors.CursorNotFound)
    if KEYS_NOT_READ in codes:
        return NotYetError(f"MongoDB has just begun ({where}): {_shortly(foreign)}.")
    if foreign.timeout or away or codes & _SHUTS_DOWN:
        return StoreUnavailableError(f"MongoDB did not answer ({where}): {_shortly(foreign)}.")
    return StoreError(f"MongoDB refused an operation on {where}: {_shortly(foreign)}.")


def _codes_of(foreign: pymongo.errors.PyMongoError) -> set[int]:
    if isinstance(foreign, pymongo.errors.BulkWriteError):
        details = foreign.details or {}
        errors = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        return {int(error.get("code", 0)) for error in errors}
    if isinstance(foreign, pymongo.errors.OperationFailure) and foreign.code is not None:
        return {foreign.code}
    return set()


def _shortly(foreign: pymongo.errors.PyMongoError) -> str:
    """The first sentence of the error, because the driver appends the whole topology."""
    return str(foreign).partition(", Timeout:")[0].partition(", full error:")[0][:500]


def _there_before(partly: pymongo.errors.BulkWriteError) -> list[Any]:
    """The ids of the documents that were refused because their keys exist. Raises any other error."""
    details = partly.details or {}
    errors = details.get("writeErrors", ())
    if details.get("writeConcernErrors") or any(error.get("code") != _DUPLICATE_KEY for error in errors):
        raise partly
    return [error["op"]["_id"] for error in errors]


def _is_known(index: IndexModel, known: Plain) -> bool:
    """Whether the server has an index of that name and those keys."""
    found = known.get(index.document["name"])
    return found is not None and found["key"] == list(index.document["key"].items())
