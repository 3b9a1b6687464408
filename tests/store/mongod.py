"""A real mongod for the tests.

The suite starts one before it forks its lanes, so this module has nothing that must differ between lanes, such as the
name of a database.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from agentrl.store import mongod_server
from agentrl.store.mongod_binary import find_mongod
from agentrl.store.mongod_files import prepare


def keep_trying(seconds: float) -> bool:
    """The pause of `Mongod.bring_up` between two attempts."""
    time.sleep(seconds)
    return True


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
