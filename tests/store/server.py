"""One real mongod for all tests of a session, and databases in it that are emptied instead of dropped.

Invariant: it starts with the first test that needs it and ends with the session, however many directories share it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from agentrl.store import database, embedded, indexes
from agentrl.store.binary import find_mongod
from agentrl.store.database import Database, Driver
from agentrl.store.files import prepare

NAME = f"test-{os.getpid()}"

_urls: list[str] = []
_indexed = False


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return True


@contextlib.contextmanager
def shared_server() -> Iterator[str]:
    """The URL. Only the first to come starts it; pytest ends sessions in reverse, so the first also ends it."""
    if _urls:
        yield _urls[0]
        return
    with tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True) as directory:
        files = prepare(Path(directory) / "mongo")
        server = embedded.Mongod(find_mongod(), files)
        server.start()
        try:
            assert server.bring_up(keep_trying=_pause)
            _urls.append(files.url)
            yield files.url
        finally:
            _urls.clear()
            server.stop(within_s=20)


@contextlib.asynccontextmanager
async def empty_database(url: str, *, driver: Driver = "motor") -> AsyncIterator[Database]:
    """The database of this session, with its indexes and without documents."""
    global _indexed
    opened = database.connect(url, NAME, driver=driver, within_s=20)
    try:
        if not _indexed:
            await indexes.ensure(opened)
            _indexed = True
        for collection in await opened.collections():
            await opened.delete_many(collection, {})
        yield opened
    finally:
        await opened.close()
