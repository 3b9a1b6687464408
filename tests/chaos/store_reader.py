"""Reads the store of a run with its own driver, independent of the code under test.

Invariant: every call returns or raises `AwayError` within seconds, because the server is killed too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymongo
import pymongo.errors
from pymongo.database import Database

from agentrl.store.database import KEYS_NOT_READ
from tests.waiting import eventually

Plain = dict[str, Any]
logging.getLogger("pymongo.client").disabled = True  # it logs failed clean-ups in a dead server
SOON_S = 3.0


class AwayError(Exception):
    """The store does not answer now."""


class StoreReader:
    def __init__(self, url: str, name: str) -> None:
        soon_ms = round(SOON_S * 1000)
        self._client: pymongo.MongoClient[Plain] = pymongo.MongoClient(
            url, tz_aware=True, socketTimeoutMS=soon_ms, connectTimeoutMS=soon_ms, serverSelectionTimeoutMS=soon_ms
        )
        self.database: Database[Plain] = self._client[name]

    @classmethod
    def of(cls, state_dir: Path, name: str) -> StoreReader:
        """Waits until the store has written its URL."""
        file = state_dir / "mongo" / "url"
        url = eventually(lambda: file.exists() and file.read_text().strip(), within_s=120, what="the store's URL")
        assert isinstance(url, str)
        return cls(url, name)

    def close(self) -> None:
        self._client.close()

    def find(self, collection: str, filter: Mapping[str, Any] | None = None, *fields: str) -> list[Plain]:
        with _answers():
            return list(self.database[collection].find(filter or {}, list(fields) or None))

    def tool_calls(self, filter: Mapping[str, Any] | None = None) -> list[Plain]:
        """Each with the record, the turn and the owner of the model call that caused it."""
        around = ("record", "turn", "owner")
        return [
            {"_id": one["id"], **{name: call[name] for name in around}, **one}
            for call in self.find("DispatchedSamplingTask", filter, *around, "tool_calls")
            for one in call["tool_calls"]
        ]

    def one(self, collection: str, filter: Mapping[str, Any]) -> Plain | None:
        with _answers():
            return self.database[collection].find_one(filter)

    def count(self, collection: str, filter: Mapping[str, Any]) -> int:
        with _answers():
            return self.database[collection].count_documents(filter)

    def change(self, collection: str, filter: Mapping[str, Any], update: Mapping[str, Any]) -> bool:
        """Whether the store acknowledged the update, even if it changed nothing."""
        with _answers():
            return self.database[collection].update_many(filter, update).acknowledged

    def answers(self) -> bool:
        """Whether the store accepts writes now."""
        try:
            return bool(self._client.admin.command("hello").get("isWritablePrimary"))
        except pymongo.errors.PyMongoError:
            return False

    def committed(self) -> int:
        return self.count("Step", {"status": "committed"})

    @contextmanager
    def changes(self, collection: str, match: Mapping[str, Any]) -> Iterator[Iterator[Plain | None]]:
        """Matching changes from now on. It also yields None regularly, so that the caller can check its deadline.

        The server may be dead at the end."""
        with _answers():
            stream = self.database[collection].watch(
                [{"$match": dict(match)}], full_document="updateLookup", max_await_time_ms=200
            )
            try:
                yield iter(stream.try_next, object())
            finally:
                with suppress(pymongo.errors.PyMongoError):
                    stream.close()


class ChangeRecorder:
    """Records acknowledged changes, so that lost ones are found after the deaths of the server."""

    _ENDS = ("scored", "finished", "committed", "trained")

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self.seen: dict[tuple[str, str], set[str]] = {}
        """The observed statuses, by collection and id."""
        self.failure = ""

    def __enter__(self) -> ChangeRecorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _watch(self) -> None:
        token: Mapping[str, Any] | None = None
        match = {"ns.coll": {"$in": ["Record", "Step", "Task"]}, "operationType": {"$in": ["insert", "update"]}}
        while not self._over.is_set():
            try:
                with self._store.database.watch(
                    [{"$match": match}], resume_after=token, max_await_time_ms=200
                ) as stream:
                    while not self._over.is_set():
                        change = stream.try_next()
                        token = stream.resume_token
                        if change is not None:
                            self._note(change)
            except pymongo.errors.ConnectionFailure:
                self._over.wait(0.2)
            except pymongo.errors.OperationFailure as refused:
                if refused.code != KEYS_NOT_READ and not refused.has_error_label("ResumableChangeStreamError"):
                    self.failure = f"the change stream cannot be resumed: {refused}"
                    return
                self._over.wait(0.2)

    def _note(self, change: Mapping[str, Any]) -> None:
        fields = change.get("fullDocument") or change.get("updateDescription", {}).get("updatedFields", {})
        if fields.get("status") in self._ENDS:
            key = change["ns"]["coll"], str(change["documentKey"]["_id"])
            self.seen.setdefault(key, set()).add(fields["status"])


@contextmanager
def _answers() -> Iterator[None]:
    try:
        yield
    except pymongo.errors.PyMongoError as away:
        raise AwayError(str(away)[:200]) from away


def by_id(documents: Sequence[Plain]) -> dict[str, Plain]:
    return {document["_id"]: document for document in documents}
