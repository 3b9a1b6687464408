"""Real mongods for the tests, and databases in them that are emptied instead of dropped.

Invariants:
- The server of a session (`mongo_url` in tests/conftest.py) is started once; all lanes of the suite share one.
- Each process of tests has a database of its own.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from agentrl.store import database, indexes, mongod_server
from agentrl.store.database import Database, Driver
from agentrl.store.mongod_binary import find_mongod
from agentrl.store.mongod_files import prepare

NAME = f"test-{os.getpid()}"

_indexed: set[str] = set()
"""The servers whose database of the session has its indexes."""


def keep_trying(seconds: float) -> bool:
    """The pause of `Mongod.bring_up` between two attempts."""
    time.sleep(seconds)
    return True


@contextlib.contextmanager
def shared_server() -> Iterator[str]:
    """The URL of a server that runs during the body."""
    # Directly under /tmp, because of the limits that paths of sockets have.
    directory = tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True)
    with directory as root, server_in(Path(root) / "mongo") as (_, url):
        yield url


@contextlib.contextmanager
def server_in(directory: Path) -> Iterator[tuple[mongod_server.Mongod, str]]:
    """A server with its data in that directory, and its URL."""
    files = prepare(directory)
    server = mongod_server.Mongod(find_mongod(), files)
    server.start()
    try:
        assert server.bring_up(keep_trying=keep_trying)
        yield server, files.url
    finally:
        server.stop(within_s=20)


@contextlib.asynccontextmanager
async def empty_database(url: str, *, driver: Driver = "motor") -> AsyncIterator[Database]:
    """The database of this session, with its indexes and without documents."""
    opened = database.connect(url, NAME, driver=driver, within_s=20)
    try:
        if url not in _indexed:
            await indexes.ensure(opened)
            _indexed.add(url)
        for collection in await opened.collections():
            await opened.delete_many(collection, {})
        yield opened
    finally:
        await opened.close()
