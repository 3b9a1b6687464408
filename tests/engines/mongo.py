"""A real mongod for the tests of this room, one for the session; collections are emptied between tests."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.store.binary import find_mongod
from agentrl.store.embedded import Mongod
from agentrl.store.files import prepare


def _keep_trying(seconds: float) -> bool:
    time.sleep(seconds)
    return True


@contextmanager
def running() -> Iterator[str]:
    """The URL of a server that is there while the body runs."""
    with tempfile.TemporaryDirectory(prefix="mongo-", ignore_cleanup_errors=True) as directory:
        files = prepare(Path(directory))
        server = Mongod(find_mongod(), files)
        server.start()
        try:
            server.bring_up(keep_trying=_keep_trying)
            yield files.url
        finally:
            server.stop(within_s=20)
