"""Fixtures of all rooms: a real MongoDB, started with the first test that needs it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from agentrl.store.database import Database


settings.register_profile("many", max_examples=3000, deadline=None, print_blob=True)
"""More examples, for tests that leave their number to the profile: `pytest tests/supervision --hypothesis-profile=many
--timeout=0`."""

settings.register_profile("quick", max_examples=10, deadline=None, derandomize=True)
"""Few and always the same examples, for `make check`."""


# Lanes of tests share the cores, so the threads of one computation would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Most objects of imports and collection live until the end of the lane, so the garbage collector need not scan them.
gc.set_threshold(50_000, 20, 50)


MONGO_URL = "TESTS_MONGO_URL"
"""The variable with the server that the lanes of the suite share."""


def pytest_configure() -> None:
    """Replace inherited SIG_IGN. Tests in the background inherit it, and every program that they start would inherit it
    too."""

    def ignored(*_: object) -> None:
        """Unlike SIG_IGN, a handler is not inherited."""

    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, ignored)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="replace the snapshots of screens")


@pytest.fixture(scope="session")
def mongo_url() -> Iterator[str]:
    if MONGO_URL in os.environ:
        yield os.environ[MONGO_URL]
        return
    from tests.store.server import shared_server

    with shared_server() as url:
        yield url


@pytest.fixture
async def db(mongo_url: str) -> AsyncIterator[Database]:
    """A database of a real server, empty at the start of each test."""
    from tests.store.server import empty_database

    async with empty_database(mongo_url) as database:
        yield database
