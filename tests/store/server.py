"""Real mongods for the tests, and databases in them that are emptied instead of dropped.

Invariants:
- The server of a session (`mongo_url` in tests/conftest.py) is started once; all lanes of the suite share one.
- Each process of tests has a database of its own.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from agentrl.store import database, indexes
from agentrl.store.database import Database, Driver
from tests.store.mongod import server_in

NAME = f"test-{os.getpid()}"
"""The database of this process: lanes share a server, so this module is imported after the fork of a lane."""

_indexed: set[str] = set()
"""The servers whose database of the session has its indexes."""


@contextlib.contextmanager
def shared_server() -> Iterator[str]:
    """The URL of a server that runs during the body."""
    # Directly under /tmp, because of the limits that paths of sockets have.
    directory = tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True)
    with directory as root, server_in(Path(root) / "mongo") as (_, url):
        yield url


@contextlib.asynccontextmanager
async def empty_database(url: str, *, driver: Driver = "motor") -> AsyncIterator[Database]:
    """The database of this session, with its indexes and without documents."""
    assert NAME.endswith(f"-{os.getpid()}"), "this module was imported before the fork, so lanes share a database"
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
