"""A database of a real server, empty at the start of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from agentrl.store.database import Database
from tests.store.server import empty_database, shared_server


@pytest.fixture(scope="session")
def mongo_url() -> Iterator[str]:
    with shared_server() as url:
        yield url


@pytest.fixture
async def db(mongo_url: str) -> AsyncIterator[Database]:
    async with empty_database(mongo_url) as database:
        yield database
